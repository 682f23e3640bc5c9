"""Ring collectives: their times are the closed forms to the picosecond, their values numpy's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcore.collectives import RingTensor, all_gather, all_reduce, reduce_scatter
from simcore.collectives.closed_forms import ring_both_ways_ps, ring_chunked_one_way_ps, ring_one_way_ps
from simcore.errors import GraphError
from simcore.graph import TaskGraph
from simcore.graph.races import check_races
from simcore.graph.values import execute
from simcore.quantities import duration_ps
from simcore.running import run, simulate
from tests.random_graphs import flat_of

BANDWIDTH, HOP_PS = 45e9, 10**6
"""v5e: one-way bytes/s of a link, and a hop's latency"""
COLLECTIVES = {"AllGather": all_gather, "ReduceScatter": reduce_scatter, "AllReduce": all_reduce}
RINGS = [*range(1, 10), 16, 64]


def ring_graph(collective, n, elements, element_bytes=2, **options):
    """One collective over a tensor of ``elements`` elements a shard."""
    graph = TaskGraph("ring")
    chip = graph.entity_class("chip", mesh={"x": n})
    chip.tensor("t", bytes=n * elements * element_bytes, shape=(n * elements,), persistent=True)
    COLLECTIVES[collective](chip, "c", "x", RingTensor("t", elements * element_bytes, element_bytes), **options)
    return graph


def makespan(graph):
    return simulate(flat_of(graph)).makespan_ps


@pytest.mark.parametrize("n", RINGS)
@pytest.mark.parametrize("elements", [999, 2**20])
class TestClosedForms:
    @pytest.mark.parametrize("collective", ["AllGather", "ReduceScatter"])
    def test_one_way_it_is_n_minus_1_shards_and_hops(self, collective, n, elements):
        wanted = (n - 1) * (duration_ps(2 * elements, BANDWIDTH) + HOP_PS)
        assert makespan(ring_graph(collective, n, elements)) == wanted
        assert wanted == ring_one_way_ps(n, 2 * elements, BANDWIDTH, HOP_PS)

    @pytest.mark.parametrize("collective", ["AllGather", "ReduceScatter"])
    def test_both_ways_it_is_half_of_that_and_an_even_ring_halves_the_antipodal_shard(self, collective, n, elements):
        whole = duration_ps(2 * elements, BANDWIDTH)
        half = duration_ps(2 * -(-elements // 2), BANDWIDTH)
        wanted = (n - 1) // 2 * whole + (half if n % 2 == 0 else 0) + -(-(n - 1) // 2) * HOP_PS
        assert makespan(ring_graph(collective, n, elements, direction="both")) == wanted
        assert wanted == ring_both_ways_ps(n, 2 * elements, BANDWIDTH, HOP_PS, 2)

    @pytest.mark.parametrize("direction", ["one_way", "both"])
    def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather(self, n, elements, direction):
        parts = [makespan(ring_graph(c, n, elements, direction=direction)) for c in ("AllGather", "ReduceScatter")]
        assert makespan(ring_graph("AllReduce", n, elements, direction=direction)) == sum(parts)


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8, 9, 33])
@pytest.mark.parametrize("chunks", [1, 2, 3, 7, 16])
@pytest.mark.parametrize("elements", [16 * 21, 16 * 21 * 1000])
def test_k_chunks_a_shard_hide_all_hops_but_one_where_a_chunk_outlasts_a_hop(n, chunks, elements):
    piece = duration_ps(2 * elements // chunks, BANDWIDTH)
    t = chunks * piece
    wanted = (n - 2) * max(t, piece + HOP_PS) + t + HOP_PS
    assert makespan(ring_graph("AllGather", n, elements, chunks=chunks)) == wanted
    assert wanted == ring_chunked_one_way_ps(n, 2 * elements, chunks, BANDWIDTH, HOP_PS)


def test_a_ring_of_one_moves_nothing_and_takes_no_time():
    for collective in COLLECTIVES:
        for direction in ("one_way", "both"):
            result = run(ring_graph(collective, 1, 64, direction=direction))
            assert result.time_s == 0
            assert result.bytes == {}


@pytest.mark.parametrize("direction", ["one_way", "both"])
@pytest.mark.parametrize(("collective", "times"), [("AllGather", 1), ("ReduceScatter", 1), ("AllReduce", 2)])
@pytest.mark.parametrize("n", [2, 3, 4, 7])
def test_every_chip_sends_n_minus_1_shards(n, collective, times, direction):
    result = run(ring_graph(collective, n, 7, direction=direction))
    assert result.bytes == {"ici": times * n * (n - 1) * 14}
    assert result.bytes_by_tensor == {"ici": {"t": times * n * (n - 1) * 14}}


def test_the_additions_cost_time_on_the_real_chip_only():
    graph = ring_graph("ReduceScatter", 4, 2**20)
    ideal, real = run(graph, ideal=True), run(graph, ideal=False)
    assert ideal.timeline.makespan_ps == ring_one_way_ps(4, 2**21, BANDWIDTH, HOP_PS)
    assert real.time_s > ideal.time_s
    assert real.utilization["vpu"] > 0
    assert ideal.utilization["vpu"] == 0


def inputs_of(collective, n, elements, rng):
    """(inputs, full arrays wanted) with small integers, so that sums are exact in any order."""
    if collective == "AllGather":
        whole = rng.integers(-9, 9, n * elements).astype(float)
        own = []
        for chip in range(n):
            array = np.full(n * elements, np.nan)
            array[chip * elements : (chip + 1) * elements] = whole[chip * elements : (chip + 1) * elements]
            own.append(array)
        return {(chip, "t"): array for chip, array in enumerate(own)}, whole
    own = rng.integers(-9, 9, (n, n * elements)).astype(float)
    return {(chip, "t"): own[chip] for chip in range(n)}, own.sum(axis=0)


@settings(max_examples=60, deadline=None)
@given(
    collective=st.sampled_from(sorted(COLLECTIVES)),
    n=st.integers(1, 6),
    elements=st.integers(1, 5),
    chunks=st.integers(1, 3),
    direction=st.sampled_from(["one_way", "both"]),
    ideal=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_values_are_numpy_s_in_the_simulated_and_in_any_permitted_order(
    collective, n, elements, chunks, direction, ideal, seed
):
    graph = ring_graph(collective, n, elements, direction=direction, chunks=chunks)
    flat = flat_of(graph, ideal=ideal)
    check_races(flat)
    inputs, wanted = inputs_of(collective, n, elements, np.random.default_rng(seed))
    for order in ({"seed": seed}, {"seed": seed + 1}, {"schedule": simulate(flat), "seed": seed}):
        values = execute(flat, inputs, **order)
        for chip in range(n):
            got = values[chip, "t"]
            if collective == "ReduceScatter":
                mine = slice(chip * elements, (chip + 1) * elements)
                assert np.array_equal(got[mine], wanted[mine])
            else:
                assert np.array_equal(got, wanted)


class TestMisuse:
    def test_a_ring_needs_an_axis_that_wraps_around(self):
        graph = TaskGraph("t")
        chip = graph.entity_class("chip", mesh={"x": 4}, wraps=False)
        with pytest.raises(GraphError, match="does not wrap around: it is a line, not a ring"):
            all_gather(chip, "c", "x", RingTensor("t", 8))

    def test_an_unknown_axis_or_direction(self):
        graph = TaskGraph("t")
        chip = graph.entity_class("chip", mesh={"x": 4})
        with pytest.raises(GraphError, match="has no mesh axis 'y'; it has x"):
            all_gather(chip, "c", "y", RingTensor("t", 8))
        with pytest.raises(GraphError, match="one_way or both"):
            all_gather(chip, "d", "x", RingTensor("t", 8), direction="round")
