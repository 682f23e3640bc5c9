"""AllGather, ReduceScatter and AllReduce over several axes at once."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcore.collectives import RingTensor, ring, torus
from simcore.collectives.closed_forms import ring_both_ways_ps, ring_one_way_ps, torus_bound_ps, torus_ps
from simcore.errors import GraphError
from simcore.quantities import duration_ps
from simcore.running import run
from tests.collective_checks import BANDWIDTH, HOP_PS, assert_values, chips, gathered, ideal_ps, summed

KINDS = ["all_gather", "reduce_scatter", "all_reduce"]


def over(kind, mesh, elements, axes=None, wraps=True, **options):
    """One collective over all axes of ``mesh``, of shards of ``elements`` 8-byte elements."""
    axes = tuple(mesh) if axes is None else axes
    devices = math.prod(mesh[axis] for axis in axes)
    graph, cls = chips(mesh, {"t": (devices * elements,)}, wraps)
    getattr(torus, kind)(cls, "c", axes, RingTensor("t", 8 * elements, 8), **options)
    return graph


@pytest.mark.parametrize(
    ("n", "axes"), [(1, 2), (2, 1), (5, 1), (8, 1), (2, 2), (3, 2), (4, 2), (8, 2), (2, 3), (3, 3)]
)
@pytest.mark.parametrize("elements", [6, 6 * 5000])
class TestEqualAxes:
    @pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter"])
    def test_one_way_all_links_are_busy_and_each_axis_costs_its_hops(self, kind, n, axes, elements):
        shard, mesh = 8 * elements, {"xyz"[d]: n for d in range(axes)}
        wanted = sum((n - 1) * (duration_ps(n**p * shard // axes, BANDWIDTH) + HOP_PS) for p in range(axes))
        assert ideal_ps(over(kind, mesh, elements)) == wanted
        assert wanted == torus_ps(n, axes, shard, BANDWIDTH, HOP_PS)
        array = n**axes * shard
        book = (1 - n**-axes) * array / (axes * BANDWIDTH) * 1e12 + axes * (n - 1) * HOP_PS
        assert wanted == pytest.approx(book, abs=axes * n)

    @pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter"])
    def test_both_ways_it_is_half_the_bytes_and_half_the_hops(self, kind, n, axes, elements):
        shard, mesh = 8 * elements, {"xyz"[d]: n for d in range(axes)}
        wanted = torus_ps(n, axes, shard, BANDWIDTH, HOP_PS, both=True, element_bytes=8)
        assert ideal_ps(over(kind, mesh, elements, direction="both")) == wanted
        if elements // axes % 2 == 0:
            book = (1 - n**-axes) * n**axes * shard / (2 * axes * BANDWIDTH) * 1e12 + axes * (n // 2) * HOP_PS
            assert wanted == pytest.approx(book, abs=axes * n)

    def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather(self, n, axes, elements):
        mesh = {"xyz"[d]: n for d in range(axes)}
        assert ideal_ps(over("all_reduce", mesh, elements)) == 2 * torus_ps(n, axes, 8 * elements, BANDWIDTH, HOP_PS)


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_over_one_axis_it_is_the_ring(n):
    for direction, form in (("one_way", ring_one_way_ps), ("both", ring_both_ways_ps)):
        for kind in KINDS:
            graph, cls = chips({"x": n}, {"t": (n * 1000,)})
            getattr(ring, kind)(cls, "c", "x", RingTensor("t", 8000, 8), direction=direction)
            assert ideal_ps(graph) == ideal_ps(over(kind, {"x": n}, 1000, direction=direction))
        extra = (8,) if direction == "both" else ()
        assert ideal_ps(over("all_gather", {"x": n}, 1000, direction=direction)) == form(
            n, 8000, BANDWIDTH, HOP_PS, *extra
        )


@pytest.mark.parametrize("mesh", [{"x": 2, "y": 4}, {"x": 8, "y": 2}, {"x": 4, "y": 4, "z": 2}, {"x": 3, "y": 5}])
@pytest.mark.parametrize("direction", ["one_way", "both"])
def test_unequal_axes_are_not_below_the_bandwidth_bound_and_within_three_times_it(mesh, direction):
    devices = math.prod(mesh.values())
    elements = 6 * 5000
    bound = torus_bound_ps(
        list(mesh.values()), [True] * len(mesh), devices * 8 * elements, BANDWIDTH, both=direction == "both"
    )
    hops = sum(mesh.values()) * len(mesh) * HOP_PS
    for kind in ("all_gather", "reduce_scatter"):
        time = ideal_ps(over(kind, mesh, elements, direction=direction))
        assert bound <= time <= 3 * bound + hops


def test_an_axis_that_does_not_wrap_is_a_line_in_it():
    """v5e 8 x 16 has rings on the 16 axis only."""
    mesh, elements = {"x": 4, "y": 8}, 6000
    mixed = ideal_ps(over("all_gather", mesh, elements, wraps={"x": False}, direction="both"))
    torus_time = ideal_ps(over("all_gather", mesh, elements, direction="both"))
    lines = ideal_ps(over("all_gather", mesh, elements, wraps=False, direction="both"))
    assert torus_time < mixed <= lines


def test_every_chip_takes_in_all_but_its_own_shard_once():
    mesh, elements = {"x": 3, "y": 4}, 6
    for kind, times in (("all_gather", 1), ("reduce_scatter", 1), ("all_reduce", 2)):
        result = run(over(kind, mesh, elements), ideal=True)
        assert result.bytes == {"ici": times * 12 * 11 * 8 * elements}


@settings(max_examples=25, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    mesh=st.lists(st.integers(1, 3), min_size=1, max_size=3).filter(lambda sizes: math.prod(sizes) <= 9),
    used=st.permutations("xyz"),
    elements=st.integers(1, 4),
    chunks=st.integers(1, 2),
    wraps=st.booleans(),
    direction=st.sampled_from(["one_way", "both"]),
    memory=st.sampled_from(["vmem", "hbm"]),
    seed=st.integers(0, 10**6),
)
def test_values_over_axes_in_any_order(kind, mesh, used, elements, chunks, wraps, direction, memory, seed):
    mesh = dict(zip("xyz", mesh, strict=False))
    axes = tuple(axis for axis in used if axis in mesh)
    devices = math.prod(mesh.values())
    graph, cls = chips(mesh, {"t": (devices * elements,)}, wraps)
    tensor = RingTensor("t", 8 * elements, 8, memory=memory)
    getattr(torus, kind)(cls, "c", axes, tensor, direction=direction, chunks=chunks)
    rng, sizes = np.random.default_rng(seed), [elements] * devices
    inputs, wanted = gathered(rng, sizes) if kind == "all_gather" else summed(rng, sizes, (), kind == "all_reduce")
    # Chips are numbered in the mesh's order, shards in that of the axes as they are named.
    where = np.arange(devices).reshape([mesh[axis] for axis in axes]).transpose([axes.index(axis) for axis in mesh])
    shard_of = where.reshape(-1).tolist()
    assert_values(
        graph,
        {(chip, "t"): inputs[shard, "t"] for chip, shard in enumerate(shard_of)},
        {(chip, "t"): wanted[shard, "t"] for chip, shard in enumerate(shard_of)},
        seed=seed,
        orders=1,
    )


def test_a_collective_over_some_axes_leaves_the_others_apart():
    rng = np.random.default_rng(0)
    mesh = {"x": 2, "y": 3}
    graph = over("all_reduce", mesh, 2, axes=("y",))
    inputs, wanted = {}, {}
    for x in range(2):
        given, summed_up = summed(rng, [2, 2, 2], (), True)
        inputs |= {(3 * x + y, name): array for (y, name), array in given.items()}
        wanted |= {(3 * x + y, name): array for (y, name), array in summed_up.items()}
    assert_values(graph, inputs, wanted)


class TestMisuse:
    def test_an_axis_used_twice_or_unknown_or_none(self):
        with pytest.raises(GraphError, match="'x' is named twice"):
            over("all_gather", {"x": 2}, 2, axes=("x", "x"))
        with pytest.raises(GraphError, match="at least one mesh axis"):
            over("all_gather", {"x": 2}, 2, axes=())
        _, cls = chips({"x": 2}, {"t": (2,)})
        with pytest.raises(GraphError, match="has no mesh axis 'q'; it has x"):
            torus.all_gather(cls, "c", ("x", "q"), RingTensor("t", 8))

    def test_uneven_shards_over_several_axes(self):
        _, cls = chips({"x": 2, "y": 1}, {"t": (3,)})
        with pytest.raises(GraphError, match="pad them to 2 elements"):
            torus.all_gather(cls, "c", ("x", "y"), RingTensor.uneven("t", (2, 1)))
