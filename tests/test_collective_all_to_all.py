"""AllToAll on rings, one way and both, and on lines."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcore.collectives import RingTensor
from simcore.collectives.all_to_all import all_to_all
from simcore.collectives.closed_forms import (
    all_to_all_both_ways_ps,
    all_to_all_line_ps,
    all_to_all_one_way_ps,
    all_to_all_torus_ps,
    ring_both_ways_ps,
    ring_one_way_ps,
)
from simcore.errors import GraphError
from simcore.quantities import duration_ps
from simcore.running import run
from tests.collective_checks import BANDWIDTH, HOP_PS, assert_values, chips, ideal_ps


def exchange(n, elements, wraps=True, memory="vmem", lead=(), **options):
    """An AllToAll of blocks of ``elements`` 8-byte elements."""
    shape = (*lead, n * elements)
    graph, cls = chips({"x": n}, {"t": shape, "out": shape}, wraps)
    all_to_all(cls, "c", "x", RingTensor("t", 8 * elements, 8, lead, memory), "out", **options)
    return graph


def exchanged(n, elements, lead, rng):
    """Inputs, and wanted values: block j of chip c's output is block c of chip j's input."""
    t = rng.integers(-9, 10, (n, *lead, n, elements)).astype(float)
    flat = (*lead, n * elements)
    inputs = {(c, "t"): t[c].reshape(flat) for c in range(n)}
    return inputs, {(c, "out"): np.stack(list(t[..., c, :]), axis=-2).reshape(flat) for c in range(n)}


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 16])
@pytest.mark.parametrize("elements", [9, 10, 10000])
class TestClosedForms:
    def test_one_way_messages_shrink_by_a_block_a_step(self, n, elements):
        wanted = sum(duration_ps(m * 8 * elements, BANDWIDTH) + HOP_PS for m in range(1, n))
        assert ideal_ps(exchange(n, elements)) == wanted
        assert wanted == all_to_all_one_way_ps(n, 8 * elements, BANDWIDTH, HOP_PS)
        array = n * n * 8 * elements
        assert wanted == pytest.approx((n - 1) * (array / (2 * n * BANDWIDTH) * 1e12 + HOP_PS), abs=n)

    def test_both_ways_it_is_an_eighth_of_the_array_over_a_link(self, n, elements):
        time = ideal_ps(exchange(n, elements, direction="both"))
        assert time == all_to_all_both_ways_ps(n, 8 * elements, BANDWIDTH, HOP_PS, 8)
        if elements % 2 == 0:
            share = 1 if n % 2 == 0 else 1 - 1 / n**2
            array = n * n * 8 * elements
            assert time == pytest.approx(share * array / (8 * BANDWIDTH) * 1e12 + n // 2 * HOP_PS, abs=n)

    def test_on_a_line_the_slowest_link_decides(self, n, elements):
        block = duration_ps(8 * elements, BANDWIDTH)
        wanted = max((k * (n - k) * block + k * HOP_PS for k in range(1, n)), default=0)
        if n <= 16:
            assert ideal_ps(exchange(n, elements, wraps=False)) == wanted
        assert wanted == all_to_all_line_ps(n, 8 * elements, BANDWIDTH, HOP_PS)


class TestAgainstAnAllGather:
    """Of the same array, without latency: a block is 1/n of a shard."""

    def test_one_way_it_takes_half_as_long_whatever_the_ring(self):
        for n in (2, 3, 8, 64):
            block = 45000 * 64
            ratio = all_to_all_one_way_ps(n, block, BANDWIDTH, 0) / ring_one_way_ps(n, n * block, BANDWIDTH, 0)
            assert ratio == pytest.approx(1 / 2, rel=1e-9)

    def test_both_ways_it_takes_a_quarter_for_large_n_and_more_for_small(self):
        for n in (2, 3, 4, 5, 8, 9, 64, 256):
            block = 45000 * 64
            ratio = all_to_all_both_ways_ps(n, block, BANDWIDTH, 0) / ring_both_ways_ps(n, n * block, BANDWIDTH, 0)
            assert ratio == pytest.approx((n / (n - 1) if n % 2 == 0 else (n + 1) / n) / 4, rel=1e-9)
        assert ratio == pytest.approx(1 / 4, rel=0.005)

    def test_the_book_s_question_ten_a_4096_square_on_a_one_way_ring_of_eight(self):
        """Scalars over each link: N^2 (1 - 1/D) for the AllGather, half of that for the AllToAll."""
        n, devices = 4096, 8
        result = run(exchange(devices, n * n // devices**2), ideal=True)
        assert result.bytes["ici"] / 8 / devices == 7340032 == 14680064 / 2


@pytest.mark.parametrize("chunks", [2, 5])
@pytest.mark.parametrize("direction", ["one_way", "both"])
def test_chunks_hide_latency_and_move_the_same_bytes(chunks, direction):
    whole = run(exchange(8, 10 * 5000, direction=direction), ideal=True)
    cut = run(exchange(8, 10 * 5000, direction=direction, chunks=chunks), ideal=True)
    assert cut.bytes == whole.bytes
    assert whole.bounds_s["ici"] <= cut.time_s < whole.time_s


def test_on_a_line_it_takes_about_twice_the_ring_for_large_arrays():
    line, ring = (ideal_ps(exchange(8, 10**7, wraps, direction="both")) for wraps in (False, True))
    assert line / ring == pytest.approx(2, rel=0.01)


def test_one_chip_moves_nothing():
    for wraps in (True, False):
        result = run(exchange(1, 8, wraps), ideal=True)
        assert result.time_s == 0
        assert result.bytes == {}


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(1, 6),
    elements=st.integers(1, 4),
    route=st.sampled_from(["one_way", "both", "line"]),
    chunks=st.integers(1, 3),
    memory=st.sampled_from(["vmem", "hbm"]),
    lead=st.sampled_from([(), (2,)]),
    seed=st.integers(0, 10**6),
)
def test_block_j_of_chip_c_ends_as_block_c_of_chip_j(n, elements, route, chunks, memory, lead, seed):
    options = {"wraps": False} if route == "line" else {"direction": route, "chunks": chunks}
    graph = exchange(n, elements, memory=memory, lead=lead, **options)
    assert_values(graph, *exchanged(n, elements, lead, np.random.default_rng(seed)), seed=seed, orders=1)


def over_axes(mesh, elements, axes=None, wraps=True, memory="vmem", **options):
    shape = (int(np.prod(list(mesh.values()))) * elements,)
    graph, cls = chips(mesh, {"t": shape, "out": shape}, wraps)
    tensor = RingTensor("t", 8 * elements, 8, memory=memory)
    all_to_all(cls, "c", axes or tuple(mesh), tensor, "out", **options)
    return graph


class TestSeveralAxes:
    @pytest.mark.parametrize(("n", "axes"), [(1, 2), (2, 2), (3, 2), (4, 2), (2, 3), (3, 3)])
    @pytest.mark.parametrize("elements", [12, 12000])
    def test_over_equal_axes_all_links_are_busy(self, n, axes, elements):
        mesh, array = {"xyz"[d]: n for d in range(axes)}, n ** (2 * axes) * 8 * elements
        for both in (False, True):
            time = ideal_ps(over_axes(mesh, elements, direction="both" if both else "one_way"))
            assert time == all_to_all_torus_ps(n, axes, 8 * elements, BANDWIDTH, HOP_PS, both=both, element_bytes=8)
        if n % 2 == 0:
            across = array / 4 / (2 * n ** (axes - 1)) / BANDWIDTH * 1e12
            assert time == pytest.approx(across + axes * n // 2 * HOP_PS, abs=n * axes)

    @settings(max_examples=20, deadline=None)
    @given(
        mesh=st.lists(st.integers(1, 3), min_size=2, max_size=3).filter(lambda sizes: np.prod(sizes) <= 9),
        used=st.permutations("xyz"),
        elements=st.integers(1, 4),
        route=st.sampled_from(["one_way", "both", "line"]),
        chunks=st.integers(1, 2),
        memory=st.sampled_from(["vmem", "hbm"]),
        seed=st.integers(0, 10**6),
    )
    def test_block_j_of_chip_c_ends_as_block_c_of_chip_j_over_axes_in_any_order(
        self, mesh, used, elements, route, chunks, memory, seed
    ):
        mesh = dict(zip("xyz", mesh, strict=False))
        axes = tuple(axis for axis in used if axis in mesh)
        options = {"wraps": False} if route == "line" else {"direction": route, "chunks": chunks}
        graph = over_axes(mesh, elements, axes, memory=memory, **options)
        n = int(np.prod(list(mesh.values())))
        inputs, wanted = exchanged(n, elements, (), np.random.default_rng(seed))
        # Chips are numbered in the mesh's order, blocks in that of the axes as they are named.
        where = np.arange(n).reshape([mesh[axis] for axis in axes]).transpose([axes.index(axis) for axis in mesh])
        number = where.reshape(-1).tolist()
        assert_values(
            graph,
            {(chip, "t"): inputs[block, "t"] for chip, block in enumerate(number)},
            {(chip, "out"): wanted[block, "out"] for chip, block in enumerate(number)},
            seed=seed,
            orders=1,
        )


class TestMisuse:
    def test_it_needs_another_tensor_for_what_arrives(self):
        _, cls = chips({"x": 2}, {"t": (2,)})
        with pytest.raises(GraphError, match="has no tensor 'out' for what arrives"):
            all_to_all(cls, "c", "x", RingTensor("t", 8, 8), "out")
        with pytest.raises(GraphError, match="can't overwrite 't' while it is sent"):
            all_to_all(cls, "c", "x", RingTensor("t", 8, 8), "t")

    def test_uneven_blocks_and_chunks_on_a_line(self):
        _, cls = chips({"x": 2}, {"t": (3,), "out": (3,)})
        with pytest.raises(GraphError, match="not AllToAll: pad them to 2 elements"):
            all_to_all(cls, "c", "x", RingTensor.uneven("t", (2, 1)), "out")
        with pytest.raises(GraphError, match="sends single blocks; chunks=1 is meant"):
            exchange(3, 4, wraps=False, chunks=2)
