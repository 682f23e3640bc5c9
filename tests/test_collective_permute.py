"""CollectivePermute, Broadcast and Reduce along rings and lines."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcore.collectives import RingTensor
from simcore.collectives.broadcast import broadcast, reduce
from simcore.collectives.closed_forms import broadcast_ps, permute_both_ways_ps, permute_ps
from simcore.collectives.permute import collective_permute
from simcore.errors import GraphError
from simcore.quantities import duration_ps
from simcore.running import run
from tests.collective_checks import BANDWIDTH, HOP_PS, NAN, assert_values, chips, ideal_ps


def shifted(n, elements, wraps=True, memory="vmem", lead=(), **options):
    shape = (*lead, elements)
    graph, cls = chips({"x": n}, {"t": shape, "out": shape}, wraps)
    collective_permute(cls, "c", "x", RingTensor("t", 8 * elements, 8, lead, memory), "out", **options)
    return graph


def spread_out(what, n, elements, wraps=True, memory="vmem", lead=(), **options):
    graph, cls = chips({"x": n}, {"t": (*lead, elements)}, wraps)
    what(cls, "c", "x", RingTensor("t", 8 * elements, 8, lead, memory), **options)
    return graph


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("elements", [840, 840000])
class TestPermuteTimes:
    def test_the_shorter_way_round_costs_its_hops(self, n, elements):
        for shift in (1, 2, -1, n // 2, n - 1, n + 1):
            hops = min(shift % n, -shift % n)
            time = ideal_ps(shifted(n, elements, shift=shift))
            assert time == hops * (duration_ps(8 * elements, BANDWIDTH) + HOP_PS)
            assert time == permute_ps(hops, 8 * elements, BANDWIDTH, HOP_PS)

    def test_chunks_hide_all_hops_but_one_where_a_chunk_outlasts_a_hop(self, n, elements):
        for chunks in (2, 8):
            time = ideal_ps(shifted(n, elements, shift=n // 2, chunks=chunks))
            piece = duration_ps(8 * elements // chunks, BANDWIDTH)
            whole = chunks * piece
            assert time == (n // 2 - 1) * max(whole, piece + HOP_PS) + whole + HOP_PS
            assert time == permute_ps(n // 2, 8 * elements, BANDWIDTH, HOP_PS, chunks)

    def test_both_ways_all_links_carry_as_much(self, n, elements):
        for shift in (1, n // 2, n - 1):
            time = ideal_ps(shifted(n, elements, shift=shift, direction="both"))
            assert time == permute_both_ways_ps(n, shift, 8 * elements, BANDWIDTH, HOP_PS, 8)
            share = shift * (n - shift) / n * 8 * elements / BANDWIDTH * 1e12
            assert time == pytest.approx(share + max(shift, n - shift) * HOP_PS, rel=0.01)

    def test_on_a_line_what_falls_off_the_end_is_not_sent(self, n, elements):
        for shift in (1, -1, n - 1):
            time = ideal_ps(shifted(n, elements, wraps=False, shift=shift))
            assert time == abs(shift) * (duration_ps(8 * elements, BANDWIDTH) + HOP_PS)
            sent = run(shifted(n, elements, wraps=False, shift=shift), ideal=True).bytes
            assert sent == {"ici": (n - abs(shift)) * abs(shift) * 8 * elements}
        assert ideal_ps(shifted(n, elements, wraps=False, shift=n)) == 0


def test_a_permute_by_a_whole_round_moves_nothing():
    for shift in (0, 4, -8):
        assert run(shifted(4, 8, shift=shift), ideal=True).bytes == {}


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(1, 6),
    shift=st.integers(-7, 7),
    elements=st.integers(1, 5),
    wraps=st.booleans(),
    direction=st.sampled_from(["one_way", "both"]),
    chunks=st.integers(1, 3),
    memory=st.sampled_from(["vmem", "hbm"]),
    lead=st.sampled_from([(), (2,)]),
    seed=st.integers(0, 10**6),
)
def test_chip_c_s_array_ends_on_chip_c_plus_shift(n, shift, elements, wraps, direction, chunks, memory, lead, seed):
    wraps = wraps or n == 1  # one chip is a ring
    graph = shifted(n, elements, wraps, memory, lead, shift=shift, direction=direction, chunks=chunks)
    t = np.random.default_rng(seed).integers(-9, 10, (n, *lead, elements)).astype(float)
    wanted = {}
    for chip in range(n):
        source = chip - shift
        known = wraps or 0 <= source < n
        wanted[chip, "out"] = t[source % n] if known else np.zeros_like(t[0])
    assert_values(graph, {(chip, "t"): t[chip] for chip in range(n)}, wanted, seed=seed, orders=1)


@pytest.mark.parametrize("what", [broadcast, reduce])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("chunks", [1, 4])
@pytest.mark.parametrize("elements", [24 * 5, 24 * 50000])
class TestBroadcastTimes:
    def test_one_way_the_chunks_follow_one_another_round_the_ring(self, what, n, chunks, elements):
        piece = duration_ps(8 * elements // chunks, BANDWIDTH)
        wanted = (chunks - 1) * piece + (n - 1) * (piece + HOP_PS) if n > 1 else 0
        assert ideal_ps(spread_out(what, n, elements, chunks=chunks, root=n - 1)) == wanted
        assert wanted == broadcast_ps(n - 1, 8 * elements, BANDWIDTH, HOP_PS, chunks)

    def test_halves_take_half_the_bytes_and_arms_half_the_hops(self, what, n, chunks, elements):
        halves = ideal_ps(spread_out(what, n, elements, chunks=chunks, root=1 % n, direction="both"))
        assert halves == broadcast_ps(n - 1, 4 * elements, BANDWIDTH, HOP_PS, chunks)
        arms = ideal_ps(spread_out(what, n, elements, chunks=chunks, root=1 % n, direction="both", spread="arms"))
        assert arms == broadcast_ps(n // 2, 8 * elements, BANDWIDTH, HOP_PS, chunks)

    def test_on_a_line_the_longer_arm_decides(self, what, n, chunks, elements):
        for root in {0, n // 3, n - 1}:
            time = ideal_ps(spread_out(what, n, elements, n == 1, chunks=chunks, root=root))
            assert time == broadcast_ps(max(root, n - 1 - root), 8 * elements, BANDWIDTH, HOP_PS, chunks)


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(1, 6),
    root=st.integers(0, 5),
    elements=st.integers(1, 6),
    route=st.sampled_from(["one_way", "halves", "arms", "line"]),
    chunks=st.integers(1, 4),
    memory=st.sampled_from(["vmem", "hbm"]),
    lead=st.sampled_from([(), (2,)]),
    seed=st.integers(0, 10**6),
)
def test_a_broadcast_copies_the_root_s_array_and_a_reduce_sums_all_there(
    n, root, elements, route, chunks, memory, lead, seed
):
    root %= n
    options = {"direction": "both", "spread": route} if route in ("halves", "arms") else {}
    options |= {"root": root, "chunks": chunks, "wraps": route != "line", "memory": memory, "lead": lead}
    t = np.random.default_rng(seed).integers(-9, 10, (n, *lead, elements)).astype(float)
    inputs = {(chip, "t"): t[chip] if chip == root else np.full(t[0].shape, NAN) for chip in range(n)}
    copied = {(chip, "t"): t[root] for chip in range(n)}
    assert_values(spread_out(broadcast, n, elements, **options), inputs, copied, seed=seed, orders=1)
    inputs = {(chip, "t"): t[chip] for chip in range(n)}
    summed = {(root, "t"): t.sum(axis=0)}
    assert_values(spread_out(reduce, n, elements, **options), inputs, summed, seed=seed, orders=1)


class TestMisuse:
    def test_a_root_outside_the_axis(self):
        with pytest.raises(GraphError, match="root 4 on axis 'x' of 4 chips; 0 to 3 is meant"):
            spread_out(broadcast, 4, 8, root=4)

    def test_an_unknown_direction_or_spread(self):
        with pytest.raises(GraphError, match="direction 'up'; one_way or both is meant"):
            shifted(4, 8, direction="up")
        with pytest.raises(GraphError, match="spread 'thirds'; halves or arms is meant"):
            spread_out(broadcast, 4, 8, spread="thirds")
