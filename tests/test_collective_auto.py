"""The front door: the fastest algorithm by its closed form, noted with what else there was."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcore.chips import load_chip
from simcore.collectives import RingTensor, collective, torus
from simcore.collectives.auto import choices
from simcore.collectives.estimates import Axis, Link, axes_ps
from simcore.errors import ChipError, GraphError
from simcore.running import run
from tests.collective_checks import BANDWIDTH, HOP_PS, assert_values, chips, gathered, ideal_ps, summed

GATHERS = ("AllGather", "ReduceScatter", "AllReduce")


def chosen(kind, mesh, elements, chip="v5e", wraps=True, memory="vmem", **options):
    """(graph, note) of a collective over all axes of ``mesh``."""
    devices = math.prod(mesh.values())
    shape = (devices * elements,) if kind not in ("CollectivePermute", "Broadcast", "Reduce") else (elements,)
    graph, cls = chips(mesh, {"t": shape, "out": shape}, wraps)
    if kind in ("AllToAll", "CollectivePermute"):
        options["out"] = "out"
    tensor = RingTensor("t", 8 * elements, 8, memory=memory)
    collective(cls, "c", kind, tuple(mesh), tensor, chip=chip, graph=graph, **options)
    return graph, graph.notes[-1]


def algorithms(kind, mesh, elements, chip="v5e", wraps=True, **options):
    """Every candidate and its time."""
    _, cls = chips(mesh, {"t": (8,), "out": (8,)}, wraps)
    tensor = RingTensor("t", 8 * elements, 8)
    found = choices(cls, "c", kind, tuple(mesh), tensor, chip=chip, out="out", **options)
    return {candidate.name: candidate.time_ps for candidate in found}


CASES = [
    *((kind, {"x": n}, wraps, {}) for kind in GATHERS for n in (1, 2, 5, 8) for wraps in (True, False)),
    *((kind, mesh, True, {}) for kind in GATHERS for mesh in ({"x": 4, "y": 4}, {"x": 2, "y": 4}, {"x": 8, "y": 2})),
    *((kind, {"x": 3, "y": 3}, False, {}) for kind in GATHERS),
    *(("AllToAll", {"x": n}, wraps, {}) for n in (1, 4, 5) for wraps in (True, False)),
    *(("AllToAll", mesh, True, {}) for mesh in ({"x": 4, "y": 4}, {"x": 2, "y": 3}, {"x": 2, "y": 2, "z": 4})),
    ("AllToAll", {"x": 3, "y": 3}, False, {}),
    *(("CollectivePermute", {"x": 5}, wraps, {"shift": shift}) for shift in (0, 1, -2) for wraps in (True, False)),
    *(
        (kind, {"x": n}, wraps, {"root": 1})
        for kind in ("Broadcast", "Reduce")
        for n in (2, 5)
        for wraps in (True, False)
    ),
]


@pytest.mark.parametrize(("kind", "mesh", "wraps", "options"), CASES)
@pytest.mark.parametrize("elements", [8, 8 * 3000])
def test_every_candidate_takes_the_time_that_it_was_judged_by(kind, mesh, wraps, options, elements):
    times = algorithms(kind, mesh, elements, wraps=wraps, **options)
    for name, time in times.items():
        graph, _ = chosen(kind, mesh, elements, wraps=wraps, algorithm=name, **options)
        assert ideal_ps(graph) == time, name
    graph, note = chosen(kind, mesh, elements, wraps=wraps, **options)
    assert ideal_ps(graph) == min(times.values())
    assert all(name in note for name in times)


@pytest.mark.parametrize("kind", [*GATHERS, "AllToAll", "Broadcast", "Reduce"])
@pytest.mark.parametrize("n", [1, 5, 8])
@pytest.mark.parametrize("elements", [8, 8 * 3000])
def test_on_a_switch_too(kind, n, elements):
    options = {"network": "nvlink", "in_network": True}
    times = algorithms(kind, {"x": n}, elements, "H100", **options)
    for name, time in times.items():
        graph, _ = chosen(kind, {"x": n}, elements, "H100", algorithm=name, **options)
        assert ideal_ps(graph, "H100") == time, name
    assert ideal_ps(chosen(kind, {"x": n}, elements, "H100", **options)[0], "H100") == min(times.values())


class TestTheChoice:
    def test_a_ring_goes_both_ways(self):
        _, note = chosen("AllGather", {"x": 8}, 2**18)
        assert note.startswith(
            "c: AllGather over x=8, shards of 2.097 MB: ring both ways (fastest by closed form) of: "
        )
        assert "ring both ways 167.1 us" in note
        assert "ring one way 333.2 us" in note

    def test_small_arrays_are_summed_in_one_shot_and_large_ones_in_two(self):
        small, large = (chosen("AllReduce", {"x": 4}, elements)[1] for elements in (64, 2**18))
        assert "one shot, ring both ways (fastest" in small
        assert ": ring both ways (fastest" in large

    def test_several_axes_are_used_at_once(self):
        _, note = chosen("AllGather", {"x": 4, "y": 4}, 2**16)
        assert "rotated both (fastest by closed form)" in note

    def test_a_broadcast_goes_in_halves_when_large_and_in_arms_when_small(self):
        assert "ring in arms (fastest" in chosen("Broadcast", {"x": 8}, 16)[1]
        assert "ring in halves (fastest" in chosen("Broadcast", {"x": 8}, 2**20, chunks=16)[1]

    def test_what_does_not_fit_is_not_chosen_and_said_to(self):
        small = load_chip("v5e").replace(vmem_capacity="16 KiB")
        _, note = chosen("AllReduce", {"x": 4}, 64, chip=small)
        assert "one shot, ring both ways (fastest by closed form)" in note  # 4 arrays of 2 KiB
        _, note = chosen("AllReduce", {"x": 8}, 64, chip=small)
        assert ": ring both ways (fastest by closed form)" in note
        assert "one shot, ring both ways 4.319 us (does not fit)" in note  # 8 arrays of 4 KiB
        tiny = load_chip("v5e").replace(vmem_capacity=16)
        assert "the least that does not fit" in chosen("AllReduce", {"x": 8}, 64, chip=tiny)[1]

    def test_what_is_asked_for_is_done(self):
        graph, note = chosen("AllReduce", {"x": 8}, 64, algorithm="ring one way")
        assert "ring one way (as asked)" in note
        assert run(graph, ideal=True).time_s == pytest.approx(14e-6, rel=0.02)

    def test_the_network_decides_what_is_fast(self):
        nvlink = algorithms("AllReduce", {"x": 8}, 2**18, "H100", network="nvlink")
        across = algorithms("AllReduce", {"x": 8}, 2**18, "H100", network="network")
        assert min(across.values()) > 8 * min(nvlink.values())
        assert "in_network" not in nvlink


@settings(max_examples=25, deadline=None)
@given(
    kind=st.sampled_from(GATHERS),
    mesh=st.sampled_from([{"x": 4}, {"x": 3}, {"x": 2, "y": 3}, {"x": 1}]),
    wraps=st.booleans(),
    elements=st.integers(1, 4),
    chunks=st.integers(1, 3),
    pick=st.integers(0, 5),
    memory=st.sampled_from(["vmem", "hbm"]),
    seed=st.integers(0, 10**6),
)
def test_values_whatever_is_chosen(kind, mesh, wraps, elements, chunks, pick, memory, seed):
    names = list(algorithms(kind, mesh, elements, wraps=wraps))
    options = {"algorithm": names[pick % len(names)], "chunks": chunks, "memory": memory}
    graph, _ = chosen(kind, mesh, elements, wraps=wraps, **options)
    sizes, rng = [elements] * math.prod(mesh.values()), np.random.default_rng(seed)
    given = gathered(rng, sizes) if kind == "AllGather" else summed(rng, sizes, (), kind == "AllReduce")
    assert_values(graph, *given, seed=seed, orders=1)


@pytest.mark.parametrize("mesh", [{"x": 2, "y": 4}, {"x": 8, "y": 2}, {"x": 3, "y": 5}, {"x": 4, "y": 4, "z": 2}])
@pytest.mark.parametrize("both", [True, False])
def test_over_axes_of_any_size_the_estimate_is_exact_on_rings_and_no_less_on_lines(mesh, both):
    link, elements = Link(BANDWIDTH, HOP_PS), 6 * 5000
    for wraps in (True, False):
        axes = [Axis(n, wraps) for n in mesh.values()]
        estimate = axes_ps(axes, elements, 8, link, both=both)
        graph, cls = chips(mesh, {"t": (math.prod(mesh.values()) * elements,)}, wraps)
        direction = "both" if both else "one_way"
        torus.all_gather(cls, "c", tuple(mesh), RingTensor("t", 8 * elements, 8), direction=direction)
        time = ideal_ps(graph)
        assert time == estimate if wraps else 0.85 * estimate < time <= estimate


class TestMisuse:
    def test_unknown_kinds_algorithms_networks_and_directions(self):
        with pytest.raises(GraphError, match=r"unknown kind 'AllGathr'.*AllGather"):
            chosen("AllGathr", {"x": 4}, 8)
        with pytest.raises(GraphError, match="unknown algorithm 'tree'"):
            chosen("AllGather", {"x": 4}, 8, algorithm="tree")
        with pytest.raises(GraphError, match="unknown network 'ethernet'"):
            chosen("AllGather", {"x": 4}, 8, network="ethernet")
        with pytest.raises(GraphError, match="auto, one_way or both is meant"):
            chosen("AllGather", {"x": 4}, 8, direction="up")

    def test_several_axes_where_one_is_meant(self):
        with pytest.raises(GraphError, match="Broadcast goes along one axis, not 2: x, y"):
            chosen("Broadcast", {"x": 2, "y": 2}, 8)
        with pytest.raises(GraphError, match=r"on a switch \(nvlink\) goes along one axis"):
            chosen("AllGather", {"x": 2, "y": 2}, 8, "H100", network="nvlink")

    def test_a_network_that_the_chip_does_not_have(self):
        with pytest.raises(ChipError, match="H100 has no ici_link_bandwidth"):
            chosen("AllGather", {"x": 4}, 8, "H100")

    def test_no_place_for_what_arrives(self):
        _, cls = chips({"x": 4}, {"t": (8,)})
        with pytest.raises(GraphError, match="give the tensor `out` for what arrives"):
            collective(cls, "c", "AllToAll", "x", RingTensor("t", 16, 8), chip="v5e")
