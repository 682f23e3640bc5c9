"""Collectives on a full-bandwidth switch: ring, halving and doubling, one-shot, tree, and in the network."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcore.chips import load_chip
from simcore.collectives import RingTensor, switch
from simcore.collectives.closed_forms import ring_chunked_one_way_ps, ring_one_way_ps
from simcore.collectives.switch_forms import (
    direct_ps,
    halving_doubling_ps,
    in_network_ps,
    tree_broadcast_ps,
    tree_reduce_ps,
)
from simcore.errors import ChipError, GraphError
from simcore.quantities import duration_ps
from simcore.running import run
from tests.collective_checks import NAN, assert_values, chips, gathered, ideal_ps, summed

B, LATENCY_PS = 450e9, 10**6
"""H100: one-way bytes/s of its NVLink port, and the latency through the switch"""
KINDS = ["all_gather", "reduce_scatter", "all_reduce"]


def joined(kind, n, elements, memory="vmem", lead=(), **options):
    """One collective over shards of ``elements`` 8-byte elements of chips on a switch."""
    graph, cls = chips({"x": n}, {"t": (*lead, n * elements)})
    getattr(switch, kind)(cls, "c", "x", RingTensor("t", 8 * elements, 8, lead, memory), **options)
    return graph


def time_of(kind, n, elements, **options):
    return ideal_ps(joined(kind, n, elements, **options), "H100")


@pytest.mark.parametrize("elements", [125, 2**18])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 16])
class TestClosedForms:
    def test_a_ring_pays_each_hop(self, n, elements):
        wanted = (n - 1) * (duration_ps(8 * elements, B) + LATENCY_PS)
        for kind in KINDS:
            assert time_of(kind, n, elements) == (2 if kind == "all_reduce" else 1) * wanted
        assert wanted == ring_one_way_ps(n, 8 * elements, B, LATENCY_PS)

    def test_one_shot_pays_the_latency_once(self, n, elements):
        shards = (n - 1) * duration_ps(8 * elements, B) + (LATENCY_PS if n > 1 else 0)
        assert shards == direct_ps(n, 8 * elements, B, LATENCY_PS)
        for kind in ("all_gather", "reduce_scatter"):
            assert time_of(kind, n, elements, algorithm="direct") == shards
        assert time_of("all_reduce", n, elements, algorithm="two_shot") == 2 * shards
        whole = direct_ps(n, 8 * n * elements, B, LATENCY_PS)
        assert time_of("all_reduce", n, elements, algorithm="direct") == whole

    def test_halving_and_doubling_pays_a_latency_a_stage(self, n, elements):
        if n & (n - 1):
            with pytest.raises(GraphError, match="a power of two is meant"):
                time_of("all_gather", n, elements, algorithm="halving_doubling")
            return
        stages = int(math.log2(n))
        wanted = sum(duration_ps(2**s * 8 * elements, B) + LATENCY_PS for s in range(stages))
        assert wanted == halving_doubling_ps(n, 8 * elements, B, LATENCY_PS)
        for kind in KINDS:
            times = 2 if kind == "all_reduce" else 1
            assert time_of(kind, n, elements, algorithm="halving_doubling") == times * wanted
        assert wanted == pytest.approx((n - 1) * 8 * elements / B * 1e12 + stages * LATENCY_PS, abs=stages + 1)

    def test_a_tree_sends_whole_arrays(self, n, elements):
        array = 8 * n * elements
        down, up = tree_broadcast_ps(n, array, B, LATENCY_PS), tree_reduce_ps(n, array, B, LATENCY_PS)
        assert time_of("all_reduce", n, elements, algorithm="tree") == up + down
        if not n & (n - 1):
            assert up == down == int(math.log2(n)) * (duration_ps(array, B) + LATENCY_PS) * (n > 1)
        one = 8 * elements
        for root in {0, n // 2, n - 1}:
            assert time_of("broadcast", n, elements, root=root) == tree_broadcast_ps(n, one, B, LATENCY_PS)
            assert time_of("reduce", n, elements, root=root) == tree_reduce_ps(n, one, B, LATENCY_PS)

    def test_in_the_network_each_port_carries_the_array_once_either_way(self, n, elements):
        array = 8 * n * elements
        wanted = duration_ps(array, B) + LATENCY_PS if n > 1 else 0
        graph = joined("all_reduce", n, elements, algorithm="in_network")
        assert ideal_ps(graph, "H100") == wanted == in_network_ps(n, array, B, LATENCY_PS)
        if n > 1:
            assert run(graph, chip="H100", ideal=True).bytes == {"nvlink": 2 * n * array}

    def test_an_all_to_all_goes_straight(self, n, elements):
        graph, cls = chips({"x": n}, {"t": (n * elements,), "out": (n * elements,)})
        switch.all_to_all(cls, "c", "x", RingTensor("t", 8 * elements, 8), "out")
        assert ideal_ps(graph, "H100") == direct_ps(n, 8 * elements, B, LATENCY_PS)


def test_chunks_on_a_ring_through_a_switch_hide_latency():
    for chunks in (2, 8):
        time = time_of("all_gather", 8, 800, chunks=chunks)
        assert time == ring_chunked_one_way_ps(8, 6400, chunks, B, LATENCY_PS)


def test_one_shot_wins_for_small_arrays_and_two_shots_for_large():
    small, large = 16, 2**18
    for elements, wins in ((small, "direct"), (large, "two_shot")):
        times = {a: time_of("all_reduce", 8, elements, algorithm=a) for a in switch.ALL_REDUCES if a != "in_network"}
        assert min(times, key=times.get) == wins


def test_the_network_between_nodes_has_its_own_bandwidth_and_latency():
    graph = joined("all_gather", 4, 2**16, network="network")
    assert ideal_ps(graph, "H100") == ring_one_way_ps(4, 8 * 2**16, 50e9, 5 * 10**6)
    with pytest.raises(ChipError, match="v5e has no nvlink_bandwidth"):
        run(joined("all_gather", 4, 8), chip="v5e")


class TestTheBook:
    """How To Scale Your Model, "How to Think About GPUs": 8 H100 with 450 GB/s each; latency apart."""

    def test_pop_quiz_one_an_all_gather_of_1024_by_16384_takes_65_us(self):
        time = time_of("all_gather", 8, 1024 * 16384 * 2 // 8 // 8, algorithm="direct") - LATENCY_PS
        assert time * 1e-12 == pytest.approx(65e-6, rel=0.007)

    def test_quiz_two_question_three_an_all_gather_of_4096_by_65536_takes_about_a_millisecond(self):
        time = time_of("all_gather", 8, 4096 * 65536 * 2 // 8 // 8, algorithm="direct") - LATENCY_PS
        assert time * 1e-12 == pytest.approx(1.04e-3, rel=0.005)

    def test_pop_quiz_two_a_dense_all_to_all_takes_an_eighth_of_the_all_gather(self):
        graph, cls = chips({"x": 8}, {"t": (8,), "out": (8,)})
        switch.all_to_all(cls, "c", "x", RingTensor("t", 67108864 // 64, 8), "out")
        time = ideal_ps(graph, "H100") - LATENCY_PS
        assert time * 1e-12 == pytest.approx(1.6311182222222222e-05, rel=1e-6)
        assert time * 8 == pytest.approx(
            time_of("all_gather", 8, 67108864 // 64, algorithm="direct") - LATENCY_PS, abs=99
        )

    def test_adding_in_the_network_gains_at_most_a_factor_of_1_75(self):
        elements = 67108864 // 8 // 8
        sharp = time_of("all_reduce", 8, elements, algorithm="in_network") - LATENCY_PS
        ring = time_of("all_reduce", 8, elements) - 14 * LATENCY_PS
        assert sharp * 1e-12 == pytest.approx(0.0001491308088888889, rel=1e-6)
        assert ring * 1e-12 == pytest.approx(0.00026097891555555556, rel=1e-6)
        assert ring / sharp == pytest.approx(1.75, rel=1e-6)

    def test_quiz_four_question_two_in_the_network_the_switch_takes_in_and_gives_out_the_array_of_each_chip(self):
        result = run(joined("all_reduce", 8, 67108864 // 64, algorithm="in_network"), chip="H100", ideal=True)
        assert result.bytes["nvlink"] == 2 * 536870912


@settings(max_examples=40, deadline=None)
@given(
    what=st.sampled_from([("all_gather", a) for a in switch.GATHERS] + [("reduce_scatter", a) for a in switch.GATHERS]),
    reduces=st.sampled_from(switch.ALL_REDUCES),
    all_reduce=st.booleans(),
    n=st.integers(1, 8),
    elements=st.integers(1, 3),
    memory=st.sampled_from(["vmem", "hbm"]),
    lead=st.sampled_from([(), (2,)]),
    seed=st.integers(0, 10**6),
)
def test_values(what, reduces, all_reduce, n, elements, memory, lead, seed):
    kind, algorithm = ("all_reduce", reduces) if all_reduce else what
    if algorithm == "halving_doubling":
        n = 1 << (n.bit_length() - 1)
    graph = joined(kind, n, elements, memory, lead, algorithm=algorithm)
    rng, sizes = np.random.default_rng(seed), [elements] * n
    given = gathered(rng, sizes, lead) if kind == "all_gather" else summed(rng, sizes, lead, kind == "all_reduce")
    assert_values(graph, *given, seed=seed, chip="H100", orders=1)


@settings(max_examples=25, deadline=None)
@given(n=st.integers(1, 9), root=st.integers(0, 8), memory=st.sampled_from(["vmem", "hbm"]), seed=st.integers(0, 99))
def test_values_of_trees_and_of_the_all_to_all(n, root, memory, seed):
    root %= n
    t = np.random.default_rng(seed).integers(-9, 10, (n, 3)).astype(float)

    def graph(kind):
        made, cls = chips({"x": n}, {"t": (3,)})
        getattr(switch, kind)(cls, "c", "x", RingTensor("t", 24, 8, memory=memory), root=root)
        return made

    mine = {(chip, "t"): t[chip] if chip == root else np.full(3, NAN) for chip in range(n)}
    all_ = {(chip, "t"): t[chip] for chip in range(n)}
    assert_values(graph("broadcast"), mine, {(chip, "t"): t[root] for chip in range(n)}, seed, "H100", 1)
    assert_values(graph("reduce"), all_, {(root, "t"): t.sum(axis=0)}, seed, "H100", 1)
    made, cls = chips({"x": n}, {"t": (2 * n,), "out": (2 * n,)})
    switch.all_to_all(cls, "c", "x", RingTensor("t", 16, 8, memory=memory), "out")
    blocks = np.random.default_rng(seed).integers(-9, 10, (n, n, 2)).astype(float)
    inputs = {(chip, "t"): blocks[chip].ravel() for chip in range(n)}
    assert_values(made, inputs, {(chip, "out"): blocks[:, chip].ravel() for chip in range(n)}, seed, "H100", 1)


def test_arrays_in_hbm_load_it_at_both_ends():
    h100 = load_chip("H100")
    for kind, algorithm in (
        ("all_gather", "direct"),
        ("reduce_scatter", "halving_doubling"),
        ("all_reduce", "in_network"),
    ):
        result = run(joined(kind, 4, 2**16, "hbm", algorithm=algorithm), chip=h100)
        assert result.bytes["hbm_read"] >= result.bytes["nvlink"] / 2
        assert result.bytes["hbm_write"] >= result.bytes["nvlink"] / 2


class TestMisuse:
    def test_unknown_algorithms_and_networks(self):
        with pytest.raises(GraphError, match="unknown algorithm 'rings'"):
            joined("all_gather", 4, 8, algorithm="rings")
        with pytest.raises(GraphError, match="unknown algorithm 'tree'"):
            joined("all_gather", 4, 8, algorithm="tree")
        with pytest.raises(GraphError, match="unknown network 'nvlnk'"):
            joined("all_gather", 4, 8, network="nvlnk")

    def test_chunks_are_a_ring_s(self):
        with pytest.raises(GraphError, match="chunks are a ring's; direct sends whole blocks"):
            joined("all_gather", 4, 8, algorithm="direct", chunks=2)
        with pytest.raises(GraphError, match="0 chunks"):
            joined("all_gather", 4, 8, chunks=0)
