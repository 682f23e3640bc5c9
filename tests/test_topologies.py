"""Topologies: the links that are there, where they wrap, and what a logical mesh uses of them."""

import pytest

import topologies
from simcore.layout import Mesh
from simcore.scenario import run_scenario
from simcore.views.topology_plot import draw_topology, traffic_of
from topologies import Link, Topology, TopologyError, build_topology
from topologies.mapping import default_mapping, parse_mapping


def wraps(topology):
    return [axis.wraps for axis in topology.axes]


class TestShapes:
    def test_a_ring_closes_and_a_line_does_not(self):
        ring, line = build_topology("ring", size=8), build_topology("line", size=8)
        assert (len(ring.links), len(line.links)) == (16, 14)
        assert (ring.diameter_hops, line.diameter_hops) == (4, 7)
        assert ring.neighbours(("chip", (0,))) == [("chip", (1,)), ("chip", (7,))]

    @pytest.mark.parametrize("size", [1, 2, 3])
    def test_small_rings(self, size):
        ring = build_topology("ring", size=size)
        assert len(ring.links) == (0 if size == 1 else 2 * size)
        assert ring.diameter_hops == size // 2

    @pytest.mark.parametrize(("shape", "neighbours"), [("4x4", 4), ("4x4x4", 6)])
    def test_every_chip_of_a_torus_has_two_links_an_axis(self, shape, neighbours):
        torus = build_topology("torus", chip="v5p", shape=shape)
        assert {len(torus.links_from(chip)) for chip in torus.chips} == {neighbours}
        assert wraps(torus) == [True] * (neighbours // 2)

    def test_a_mesh_has_corners(self):
        mesh = build_topology("mesh", shape="4x4")
        assert sorted(len(mesh.links_from(chip)) for chip in mesh.chips) == [2] * 4 + [3] * 8 + [4] * 4

    def test_link_figures_are_the_chips(self):
        link = build_topology("ring", chip="v5p").links[0]
        assert (link.bandwidth_bytes_per_s, link.latency_s, link.unit) == (9e10, 1e-6, "ici_x+")


class TestSlices:
    """How To Scale Your Model, "How to Think About TPUs"."""

    @pytest.mark.parametrize(
        ("chip", "shape", "expected"),
        [
            ("v5e", "16x16", [True, True]), ("v5e", "8x16", [False, True]), ("v5e", "4x4", [False, False]),
            ("v6e", "16x16", [True, True]), ("v5p", "4x4x4", [True] * 3), ("v5p", "4x4x8", [True] * 3),
            ("v4p", "2x2x4", [False] * 3), ("v5p", "8x8x2", [False] * 3), ("v3", "32x32", [True, True]),
        ],
    )  # fmt: skip
    def test_axes_wrap_only_where_the_real_slice_does(self, chip, shape, expected):
        assert wraps(build_topology("tpu_slice", chip=chip, shape=shape)) == expected

    def test_a_pod_of_v5e_has_256_chips_and_its_bisection(self):
        pod = build_topology("tpu_slice", shape="16x16")
        assert len(pod.chips) == 256
        assert pod.diameter_hops == 16
        # 16 rows, cut twice because they wrap.
        assert pod.bisection_bandwidth_bytes_per_s == 2 * 16 * 4.5e10

    def test_the_pod_of_v5p(self):
        assert len(build_topology("tpu_slice", chip="v5p", shape="16x20x28").chips) == 8960

    def test_a_slice_that_is_not_sold_is_built_and_noted(self):
        assert "not offered as 3x5" in build_topology("tpu_slice", shape="3x5").notes[0]
        assert build_topology("tpu_slice", shape="4x8").notes == ()
        assert "multiples of 4" in build_topology("tpu_slice", chip="v5p", shape="6x4x4").notes[0]

    @pytest.mark.parametrize(
        ("chip", "shape", "message"),
        [("v5e", "16x32", "a pod of v5e has 256"), ("v5e", "4x4x4", "has 2 axes"), ("v5e", "4xx", "is no shape"),
         ("v5e", "0x4", "at least 1"), ("v5e", "", "is no shape")],
    )  # fmt: skip
    def test_slices_that_cannot_be(self, chip, shape, message):
        with pytest.raises(TopologyError, match=message):
            build_topology("tpu_slice", chip=chip, shape=shape)


class TestHosts:
    def test_eight_chips_of_v5e_share_a_host_and_four_of_v5p(self):
        v5e = build_topology("host", shape="8x8")
        assert sorted(map(len, v5e.hosts().values())) == [8] * 8
        v5p = build_topology("host", chip="v5p", shape="4x4x4")
        assert sorted(map(len, v5p.hosts().values())) == [4] * 16

    def test_pcie_is_a_chips_own_and_one_way_each(self):
        host = build_topology("host", shape="4x4")
        pcie = [link for link in host.links if link.kind == "pcie"]
        assert len(pcie) == 2 * 16
        assert {link.bandwidth_bytes_per_s for link in pcie} == {1.5e10}
        assert host.diameter_hops == 6  # through the mesh, not through hosts

    def test_a_slice_of_broken_hosts_is_refused(self):
        with pytest.raises(TopologyError, match="not made of whole hosts of 4x2"):
            build_topology("host", shape="3x3")

    def test_slices_reach_each_other_by_their_hosts_cards(self):
        two = build_topology("multi_slice", slices=2, shape="4x4")
        dcn = [link for link in two.links if link.kind == "dcn"]
        assert len(dcn) == 2 * 4
        assert {link.bandwidth_bytes_per_s for link in dcn} == {2.5e10}
        path = two.path(("chip", (0, 0, 0)), ("chip", (1, 0, 0)))
        assert [node[0] for node in path] == ["chip", "host", "switch", "host", "chip"]


class TestGpus:
    def test_a_switch_gives_every_gpu_its_full_bandwidth(self):
        switch = build_topology("switch", chip="H100")
        assert len(switch.chips) == 8
        assert {link.bandwidth_bytes_per_s for link in switch.links} == {4.5e11}
        with pytest.raises(TopologyError, match="has 8 GPUs, not 16"):
            build_topology("switch", chip="H100", size=16)

    def test_a_node_leaves_a_fat_tree_at_400_gb_per_s(self):
        tree = build_topology("fat_tree", chip="H100", nodes=4)
        out = [link for link in tree.links if link.source == ("leaf", (0,)) and link.target[0] == "spine"]
        assert sum(link.bandwidth_bytes_per_s for link in out) == 4e11
        assert build_topology("fat_tree", chip="H100", oversubscription=2.0).diameter_hops == 4

    def test_a_chip_without_the_link_says_so(self):
        with pytest.raises(TopologyError, match="v5e has no NVLink"):
            build_topology("switch", chip="v5e")
        with pytest.raises(TopologyError, match="H100 has no ICI"):
            build_topology("ring", chip="H100")


class TestValidation:
    A, B = ("chip", (0,)), ("chip", (1,))

    def test_a_link_without_bandwidth(self):
        links = tuple(Link(*ends, "ici", 0.0, 1e-6) for ends in ((self.A, self.B), (self.B, self.A)))
        with pytest.raises(TopologyError, match="bandwidth of 0"):
            Topology("broken", (), links, (self.A, self.B))

    def test_a_disconnected_topology(self):
        with pytest.raises(TopologyError, match=r"disconnected: it falls into 2 pieces"):
            Topology("broken", (), (Link(self.A, self.B, "ici", 1e9, 1e-6),), (self.A, self.B))

    def test_names_and_parameters_are_hinted_at(self):
        with pytest.raises(TopologyError, match="did you mean torus"):
            build_topology("tours")
        with pytest.raises(TopologyError, match="did you mean size"):
            build_topology("ring", sise=4)
        with pytest.raises(TopologyError, match="has no axis"):
            build_topology("ring").links_on("q")

    def test_the_table_has_a_row_a_module(self):
        columns, rows = topologies.topology_table()
        assert [row[0] for row in rows] == topologies.topology_names()
        assert all(len(row) == len(columns) and row[2] for row in rows)


class TestMapping:
    TORUS = build_topology("tpu_slice", shape="8x16")

    def test_renaming_a_mesh_changes_nothing_physical(self):
        one = default_mapping(Mesh.of(X=8, Y=16), self.TORUS)
        other = default_mapping(Mesh.of(data=8, model=16), self.TORUS)
        assert one.links_of("X") == other.links_of("data")
        assert one.links_of("Y") == other.links_of("model")

    def test_rings_are_where_the_slice_wraps(self):
        mapping = default_mapping(Mesh.of(X=16, Y=8), self.TORUS)
        assert (str(mapping), mapping.closes("X"), mapping.closes("Y")) == ("X=y,Y=x", True, False)

    def test_several_physical_axes_make_one_logical(self):
        cube = build_topology("torus", chip="v5p", shape="4x4x4")
        mapping = parse_mapping("X=x,Y=yz", Mesh.of(X=4, Y=16), cube)
        assert {link.axis for link in mapping.links_of("Y")} == {"y", "z"}
        assert mapping.coordinates({"X": 2, "Y": 7}) == (2, 1, 3)
        assert str(default_mapping(Mesh.of(X=4, Y=16), cube)) == "X=x,Y=yz"

    @pytest.mark.parametrize(
        ("text", "mesh", "message"),
        [
            ("X=x", {"X": 8, "Y": 16}, "Y has 16 devices, but it is laid on no axis"),
            ("X=x,Y=x", {"X": 8, "Y": 8}, "physical axis x is used twice"),
            ("X=y,Y=x", {"X": 8, "Y": 16}, "X has 8 devices, but it is laid on y=16"),
            ("X=x,Y=q", {"X": 8, "Y": 16}, "has no axis 'q'"),
            ("X=x,Z=y", {"X": 8, "Y": 16}, "no axis Z"),
            ("X", {"X": 8, "Y": 16}, "expected LOGICAL=physical"),
            ("X=x,X=y", {"X": 8, "Y": 16}, "given twice"),
        ],
    )
    def test_mappings_that_cannot_be(self, text, mesh, message):
        with pytest.raises(Exception, match=message):
            parse_mapping(text, Mesh.of(mesh), self.TORUS)

    def test_a_mesh_must_fill_the_slice_with_whole_axes(self):
        with pytest.raises(TopologyError, match="has 64 devices"):
            default_mapping(Mesh.of(X=64), self.TORUS)
        with pytest.raises(TopologyError, match="whole axes"):
            default_mapping(Mesh.of(X=4, Y=32), self.TORUS)


class TestDrawing:
    def test_traffic_of_a_one_way_ring_is_on_one_direction(self, tmp_path):
        parameters = {"ring": 8, "bytes": 2**20}
        traffic = traffic_of(run_scenario("ring_allgather", parameters=parameters))
        assert traffic == {((chip,), "ici_x+"): 7 * 2**17 for chip in range(8)}
        draw_topology(build_topology("ring", size=8), tmp_path / "ring.png", traffic)
        assert (tmp_path / "ring.png").stat().st_size > 0

    @pytest.mark.parametrize("name", ["torus", "mesh", "line", "tpu_slice", "host", "multi_slice"])
    def test_every_topology_can_be_drawn(self, tmp_path, name):
        draw_topology(build_topology(name), tmp_path / "a.svg")
        assert (tmp_path / "a.svg").read_text().startswith("<?xml")

    def test_one_chip_can_be_drawn(self, tmp_path):
        draw_topology(build_topology("ring", size=1), tmp_path / "a.png")
