"""Scatter and Gather over PCIe, and collectives over slices through network cards."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcore.collectives import RingTensor, hierarchical, host
from simcore.collectives.closed_forms import across_ps, host_ps, ring_both_ways_ps, torus_ps
from simcore.collectives.hosts import chips_and_hosts
from simcore.collectives.switch_forms import direct_ps
from simcore.errors import GraphError
from simcore.graph import TaskGraph
from simcore.quantities import duration_ps
from simcore.running import run
from tests.collective_checks import BANDWIDTH, HOP_PS, assert_values, chips, gathered, ideal_ps, summed

PCIE, PCIE_PS = 15e9, 10**6
DCN, DCN_PS = 25e9, 10**7
"""v5e: bytes/s of a PCIe link and of a host's network card, and their latencies"""


def copied(what, mesh, host_shape, elements, memory="hbm", **options):
    """A Scatter or Gather of arrays of ``elements`` 8-byte elements a chip."""
    graph = TaskGraph("pcie")
    hosts = chips_and_hosts(graph, mesh, host_shape)
    hosts.chips.tensor("t", bytes=8 * elements, shape=(elements,), memory=memory, persistent=True)
    size = elements * hosts.chips_per_host
    hosts.cls.tensor("all", bytes=8 * size, shape=(size,), memory="host", persistent=True)
    getattr(host, what)(hosts, "c", RingTensor("t", 8 * elements, 8, memory=memory), "all", **options)
    return graph, hosts


@pytest.mark.parametrize("what", ["scatter", "gather"])
class TestPcie:
    @pytest.mark.parametrize("elements", [0, 12, 120000])
    @pytest.mark.parametrize("chunks", [1, 4])
    def test_the_chips_of_a_link_take_turns(self, what, elements, chunks):
        for chips_per_link in (1, 2, 8):
            graph, _ = copied(what, {"x": 4, "y": 4}, (4, 2), elements, chips_per_link=chips_per_link, chunks=chunks)
            piece = duration_ps(8 * elements // chunks, PCIE)
            wanted = chips_per_link * chunks * piece + (PCIE_PS if elements else 0)
            assert ideal_ps(graph) == wanted
            assert wanted == host_ps(chips_per_link, 8 * elements, PCIE, PCIE_PS, chunks)

    def test_the_book_s_16_gb_on_16_chips_take_66_ms_over_a_link_each(self, what):
        """How To Scale Your Model, "How to Think About TPUs", question 6: V / (16 links x 1.5e10 B/s)."""
        graph, _ = copied(what, {"x": 4, "y": 4}, (4, 2), 16_000_000_000 // 16 // 8)
        assert ideal_ps(graph) * 1e-12 == pytest.approx(0.066, rel=0.08)
        assert ideal_ps(graph) * 1e-12 == pytest.approx(16e9 / 16 / 1.5e10, rel=1e-4)

    @pytest.mark.parametrize(("chips_per_link", "chunks", "memory"), [(1, 1, "vmem"), (2, 3, "hbm"), (4, 2, "hbm")])
    def test_block_j_of_a_host_s_array_is_that_of_its_chip_j(self, what, chips_per_link, chunks, memory):
        graph, hosts = copied(what, {"x": 2, "y": 4}, (2, 2), 3, memory, chips_per_link=chips_per_link, chunks=chunks)
        arrays = np.random.default_rng(1).integers(-9, 10, (2, 4, 3)).astype(float)
        on_hosts = {(h, "all"): arrays[h].ravel() for h in range(2)}
        # Chips in the order x, y; hosts have y 0-1 and 2-3 of both x. Hosts are numbered first.
        on_chips = {(2 + 4 * x + y, "t"): arrays[y // 2, 2 * x + y % 2] for x in range(2) for y in range(4)}
        given, wanted = (on_hosts, on_chips) if what == "scatter" else (on_chips, on_hosts)
        assert_values(graph, given, wanted)
        assert hosts.chips_per_host == 4

    def test_the_chip_s_hbm_is_loaded_too(self, what):
        graph, _ = copied(what, {"x": 2}, (2,), 1000)
        side = "hbm_write" if what == "scatter" else "hbm_read"
        assert run(graph).bytes == {"pcie": 16000, side: 16000}


def over_slices(kind, slices, inner, elements, host_shape=None, **options):
    """One collective over slices of a ring or torus of chips, with a card for each host or for each chip."""
    mesh = {"slice": slices, **inner}
    devices = int(np.prod(list(inner.values())))
    shape, size = (devices * elements,), 8 * devices * elements
    tensor = RingTensor("t", 8 * elements, 8)
    if host_shape is None:
        graph, cls = chips(mesh, {"t": shape})
    else:
        graph = TaskGraph("slices")
        hosts = chips_and_hosts(graph, mesh, host_shape)
        cls, options = hosts.chips, {**options, "hosts": hosts}
        cls.tensor("t", bytes=size, shape=shape, persistent=True)
    getattr(hierarchical, kind)(cls, "c", tuple(inner), "slice", tensor, **options)
    return graph


@pytest.mark.parametrize("slices", [1, 2, 3, 4])
@pytest.mark.parametrize("elements", [12 * 5, 12 * 50000])
class TestAcrossSlices:
    def test_a_chip_with_its_own_card_sends_its_shard_twice_but_for_its_own_piece(self, slices, elements):
        inside = ring_both_ways_ps(4, 8 * elements, BANDWIDTH, HOP_PS, 8)
        across = 2 * (slices - 1) * (duration_ps(8 * elements // slices, DCN) + DCN_PS)
        assert ideal_ps(over_slices("all_reduce", slices, {"x": 4}, elements)) == 2 * inside + across
        assert across == across_ps(slices, 8 * elements, DCN, DCN_PS)

    @pytest.mark.parametrize("chips_per_host", [1, 2, 4])
    def test_the_chips_of_a_host_share_its_card(self, slices, elements, chips_per_host):
        inside = ring_both_ways_ps(4, 8 * elements, BANDWIDTH, HOP_PS, 8)
        across = across_ps(slices, 8 * elements, DCN, DCN_PS, chips_per_host=chips_per_host)
        graph = over_slices("all_reduce", slices, {"x": 4}, elements, (chips_per_host,))
        assert ideal_ps(graph) == 2 * inside + across
        if slices > 1:
            assert across >= 2 * (slices - 1) * chips_per_host * 8 * elements // slices / DCN * 1e12

    def test_a_gather_or_a_scatter_is_half_of_it(self, slices, elements):
        inside = torus_ps(2, 2, 8 * elements, BANDWIDTH, HOP_PS, both=True, element_bytes=8)
        across = across_ps(slices, 8 * elements, DCN, DCN_PS, steps=slices - 1, chips_per_host=4)
        for kind in ("all_gather", "reduce_scatter"):
            graph = over_slices(kind, slices, {"x": 2, "y": 2}, elements, (2, 2))
            assert ideal_ps(graph) == inside + across

    def test_gpus_go_one_shot_inside_and_by_their_own_cards_across(self, slices, elements):
        graph = over_slices("all_reduce", slices, {"x": 8}, elements, inside="nvlink", network="network")
        inside = direct_ps(8, 8 * elements, 450e9, 10**6)
        assert ideal_ps(graph, "H100") == 2 * inside + across_ps(slices, 8 * elements, 50e9, 5 * 10**6)


def test_the_book_s_two_nodes_gather_a_gibibyte_bound_inside_the_node():
    """How To Scale Your Model, "How to Think About GPUs", quiz 4 question 5: 7 B/(8 x 450e9) against B/(2 x 400e9)."""
    array = 2**30
    elements = array // 8 // 8
    graph = over_slices("all_gather", 2, {"x": 8}, elements, inside="nvlink", network="network")
    inside, across = direct_ps(8, array // 8, 450e9, 0), across_ps(2, array // 8, 50e9, 0, steps=1)
    assert inside * 1e-12 == pytest.approx(array / 514e9, rel=0.001)
    assert across * 1e-12 == pytest.approx(array / 800e9, rel=0.001)
    assert max(inside, across) * 1e-12 == pytest.approx(0.0020878313244444445, rel=1e-6)
    assert ideal_ps(graph, "H100") == inside + across + 10**6 + 5 * 10**6


def test_only_a_chip_s_shard_crosses_the_network():
    result = run(over_slices("all_reduce", 2, {"x": 4}, 100, (4,)), ideal=True)
    assert result.bytes["dcn"] == 8 * 2 * 800 // 2
    assert result.bytes["ici"] == 8 * 2 * 3 * 800


@settings(max_examples=30, deadline=None)
@given(
    kind=st.sampled_from(["all_gather", "reduce_scatter", "all_reduce"]),
    slices=st.integers(1, 3),
    inner=st.sampled_from([{"x": 1}, {"x": 2}, {"x": 4}, {"x": 2, "y": 2}]),
    host_shape=st.sampled_from([None, (1,), (2,), (2, 2)]),
    pieces=st.integers(1, 2),
    chunks=st.integers(1, 2),
    memory=st.sampled_from(["vmem", "hbm"]),
    seed=st.integers(0, 10**6),
)
def test_values(kind, slices, inner, host_shape, pieces, chunks, memory, seed):
    if host_shape and (len(host_shape) > len(inner) or inner[list(inner)[-1]] % host_shape[-1]):
        host_shape = (1,)
    elements, mesh = pieces * slices, {"slice": slices, **inner}
    devices = int(np.prod(list(inner.values())))
    tensor = RingTensor("t", 8 * elements, 8, memory=memory)
    graph = TaskGraph("slices")
    if host_shape is None:
        cls, hosts, first = graph.entity_class("chip", mesh=mesh), None, 0
    else:
        hosts = chips_and_hosts(graph, mesh, host_shape)
        cls, first = hosts.chips, hosts.cls.count
    cls.tensor("t", bytes=8 * devices * elements, shape=(devices * elements,), persistent=True)
    getattr(hierarchical, kind)(cls, "c", tuple(inner), "slice", tensor, hosts=hosts, chunks=chunks)
    rng = np.random.default_rng(seed)
    sizes = [pieces] * (devices * slices)
    given, wanted = gathered(rng, sizes) if kind == "all_gather" else summed(rng, sizes, (), kind == "all_reduce")
    # Piece number: place in the slice x slices + slice; chips are numbered slice by slice.
    piece_of = [place * slices + number for number in range(slices) for place in range(devices)]
    assert_values(
        graph,
        {(first + chip, "t"): given[piece, "t"] for chip, piece in enumerate(piece_of)},
        {(first + chip, "t"): wanted[piece, "t"] for chip, piece in enumerate(piece_of)},
        seed=seed,
        orders=1,
    )


class TestMisuse:
    def test_hosts_that_do_not_fill_the_mesh(self):
        with pytest.raises(GraphError, match="hosts of 3 chips do not fill the mesh"):
            chips_and_hosts(TaskGraph("t"), {"x": 4}, (3,))
        with pytest.raises(GraphError, match="hosts of 2x2 chips do not fill the mesh"):
            chips_and_hosts(TaskGraph("t"), {"x": 4}, (2, 2))
        with pytest.raises(GraphError, match="an axis 'host', which is the hosts' own"):
            chips_and_hosts(TaskGraph("t"), {"host": 4}, (2,))

    def test_links_that_do_not_fill_a_host_and_no_array_on_it(self):
        with pytest.raises(GraphError, match="3 chips a PCIe link do not fill a host of 4 chips"):
            copied("scatter", {"x": 4}, (4,), 8, chips_per_link=3)
        hosts = chips_and_hosts(TaskGraph("t"), {"x": 4}, (4,))
        with pytest.raises(GraphError, match="has no tensor 'all'"):
            host.scatter(hosts, "c", RingTensor("t", 8), "all")

    def test_a_shard_that_does_not_cut_into_a_piece_a_slice(self):
        with pytest.raises(GraphError, match=r"each of 3 slices: pad it to 6"):
            over_slices("all_reduce", 3, {"x": 2}, 4)

    def test_a_way_inside_that_there_is_not(self):
        with pytest.raises(GraphError, match="inside a slice by 'pcie'"):
            over_slices("all_reduce", 2, {"x": 2}, 4, inside="pcie")
        with pytest.raises(GraphError, match="joins one axis, not 2: x, y"):
            over_slices("all_reduce", 2, {"x": 2, "y": 2}, 4, inside="nvlink")
