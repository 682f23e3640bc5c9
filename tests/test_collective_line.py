"""AllGather, ReduceScatter and AllReduce on a line, with uneven shards, and of tensors in HBM."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcore.chips import load_chip
from simcore.collectives import RingTensor, even_split, line, ring
from simcore.collectives.closed_forms import line_ps, ring_both_ways_ps, ring_one_way_ps
from simcore.errors import GraphError
from simcore.quantities import duration_ps
from simcore.running import run
from tests.collective_checks import BANDWIDTH, HOP_PS, assert_values, chips, gathered, ideal_ps, summed

KINDS = ["all_gather", "reduce_scatter", "all_reduce"]


def collective_on(kind, n, elements, wraps=False, element_bytes=8, memory="vmem", lead=(), **options):
    """One collective over shards of ``elements`` (a number, or one a chip) on a line or a ring of ``n``."""
    sizes = [elements] * n if isinstance(elements, int) else elements
    graph, cls = chips({"x": n}, {"t": (*lead, sum(sizes))}, wraps)
    tensor = RingTensor.uneven("t", sizes, element_bytes, lead, memory)
    getattr(ring if wraps else line, kind)(cls, "c", "x", tensor, **options)
    return graph


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 16, 33])
@pytest.mark.parametrize("elements", [125, 2**18])
@pytest.mark.parametrize("kind", KINDS)
def test_a_line_takes_as_long_as_a_one_way_ring(kind, n, elements):
    phases = 2 if kind == "all_reduce" else 1
    wanted = phases * (n - 1) * (duration_ps(8 * elements, BANDWIDTH) + HOP_PS)
    assert ideal_ps(collective_on(kind, n, elements)) == wanted
    assert wanted == phases * line_ps(n, 8 * elements, BANDWIDTH, HOP_PS)


@pytest.mark.parametrize("n", [2, 3, 4, 8, 16])
@pytest.mark.parametrize("chunks", [2, 4, 16])
@pytest.mark.parametrize("elements", [16 * 5, 16 * 5 * 500])
@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter"])
def test_chunks_hide_all_hops_of_a_line_but_one_where_a_chunk_outlasts_a_hop(kind, n, chunks, elements):
    piece = duration_ps(8 * elements // chunks, BANDWIDTH)
    whole = chunks * piece
    wanted = (n - 2) * max(whole, piece + HOP_PS) + whole + HOP_PS
    assert ideal_ps(collective_on(kind, n, elements, chunks=chunks)) == wanted
    assert wanted == line_ps(n, 8 * elements, BANDWIDTH, HOP_PS, chunks)


def test_a_line_takes_about_twice_the_ring_that_goes_both_ways():
    shard = 8 * 2**18
    for n in (5, 9, 17):
        ratio = ideal_ps(collective_on("all_gather", n, 2**18)) / ring_both_ways_ps(n, shard, BANDWIDTH, HOP_PS, 8)
        assert ratio == 2


def test_a_line_of_one_moves_nothing():
    for kind in KINDS:
        result = run(collective_on(kind, 1, 64))
        assert result.time_s == 0
        assert result.bytes == {}


@pytest.mark.parametrize("n", [2, 3, 6])
def test_each_link_of_a_line_carries_what_is_on_one_side_of_it(n):
    result = run(collective_on("all_gather", n, 7))
    assert result.bytes == {"ici": 2 * sum(range(1, n)) * 56}


@settings(max_examples=25, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    sizes=st.lists(st.integers(0, 4), min_size=1, max_size=5),
    even=st.booleans(),
    wraps=st.booleans(),
    both=st.booleans(),
    chunks=st.integers(1, 3),
    memory=st.sampled_from(["vmem", "hbm"]),
    lead=st.sampled_from([(), (2,)]),
    seed=st.integers(0, 10**6),
)
def test_values_on_rings_and_lines_of_even_and_uneven_shards(
    kind, sizes, even, wraps, both, chunks, memory, lead, seed
):
    if even:
        sizes = [max(sizes)] * len(sizes)
    options = {"direction": "both"} if both and wraps else {}
    graph = collective_on(kind, len(sizes), sizes, wraps, memory=memory, lead=lead, chunks=chunks, **options)
    rng = np.random.default_rng(seed)
    given = gathered(rng, sizes, lead) if kind == "all_gather" else summed(rng, sizes, lead, kind == "all_reduce")
    assert_values(graph, *given, seed=seed, orders=1)


class TestUnevenShards:
    def test_an_even_split_gives_the_remainder_to_the_first_and_grows_nothing(self):
        assert even_split(5120, 3) == (1707, 1707, 1706)
        assert even_split(40, 3) == (14, 13, 13)
        assert sum(even_split(1001, 7)) == 1001

    @pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter"])
    @pytest.mark.parametrize("sizes", [(1707, 1707, 1706), (5, 1, 4, 2, 90000), (0, 3, 0, 70000)])
    def test_the_time_is_the_largest_shard_s(self, kind, sizes):
        n, largest = len(sizes), 8 * max(sizes)
        one_way = ideal_ps(collective_on(kind, n, sizes, wraps=True))
        both = ideal_ps(collective_on(kind, n, sizes, wraps=True, direction="both"))
        assert one_way == ring_one_way_ps(n, largest, BANDWIDTH, HOP_PS)
        assert both == ring_both_ways_ps(n, largest, BANDWIDTH, HOP_PS, 8)

    def test_the_bytes_are_the_shards_own(self):
        result = run(collective_on("all_gather", 3, (1707, 1707, 1706), wraps=True))
        assert result.bytes == {"ici": 2 * 5120 * 8}

    def test_as_many_shards_as_chips(self):
        _graph, cls = chips({"x": 4}, {"t": (6,)})
        with pytest.raises(GraphError, match="has 3 shards, the collective has 4 chips"):
            ring.all_gather(cls, "c", "x", RingTensor.uneven("t", (1, 2, 3), 8))


class TestHbm:
    def test_both_ends_of_each_transfer_load_hbm(self):
        n, shard = 4, 8 * 2**18
        real = run(collective_on("all_gather", n, 2**18, wraps=True, memory="hbm"))
        assert real.bytes == {
            "ici": n * (n - 1) * shard,
            **{f"hbm_{way}": n * (n - 1) * shard for way in ("read", "write")},
        }

    def test_a_reduction_also_loads_two_operands_and_stores_the_sum(self):
        n, shard = 4, 8 * 2**18
        real = run(collective_on("reduce_scatter", n, 2**18, wraps=True, memory="hbm"))
        sent = n * (n - 1) * shard
        assert real.bytes == {"ici": sent, "hbm_read": (1 + 2) * sent, "hbm_write": (1 + 1) * sent}

    @pytest.mark.parametrize("kind", KINDS)
    def test_the_ideal_model_leaves_hbm_out(self, kind):
        vmem, hbm = (collective_on(kind, 4, 2**16, wraps=True, memory=memory) for memory in ("vmem", "hbm"))
        assert ideal_ps(hbm) == ideal_ps(vmem)
        assert run(hbm, ideal=True).bytes == run(vmem, ideal=True).bytes

    def test_what_arrives_to_be_added_waits_in_the_memory_of_its_array(self):
        shard = 8 * 2**16
        hbm = run(collective_on("reduce_scatter", 4, 2**16, wraps=True, memory="hbm"))
        vmem = run(collective_on("reduce_scatter", 4, 2**16, wraps=True))
        assert hbm.memory_peak_bytes == {"hbm": (4 + 2) * shard}
        assert vmem.memory_peak_bytes == {"hbm": 4 * shard, "vmem": 2 * shard}  # the test's array is declared in HBM

    def test_slow_hbm_holds_the_collective_back(self):
        graph = collective_on("all_gather", 4, 2**18, wraps=True, memory="hbm")
        slow = load_chip("v5e").replace(hbm_bandwidth="20 GB/s")
        assert run(graph, chip=slow).time_s > 2 * run(graph).time_s


class TestMisuse:
    def test_a_line_is_no_ring(self):
        _graph, cls = chips({"x": 4}, {"t": (4,)})
        with pytest.raises(GraphError, match="wraps around: it is a ring, not a line"):
            line.all_gather(cls, "c", "x", RingTensor("t", 8))

    @pytest.mark.parametrize("chunks", [0, -1])
    def test_fewer_than_one_chunk(self, chunks):
        for wraps in (True, False):
            with pytest.raises(GraphError, match=f"{chunks} chunks; a shard is sent in 1 or more"):
                collective_on("all_gather", 4, 8, wraps, chunks=chunks)

    def test_a_shard_of_no_whole_number_of_elements(self):
        with pytest.raises(GraphError, match="7 bytes is no whole number of elements of 2 bytes; 6 or 8 would be"):
            RingTensor("t", 7, 2)

    def test_an_unknown_memory(self):
        with pytest.raises(GraphError, match="memory 'smem'; vmem or hbm is meant"):
            RingTensor("t", 8, memory="smem")
