"""What compute waits for, what memories hold, and the sums over a timeline."""

from __future__ import annotations

import pytest

from simcore.collectives import RingTensor, all_gather
from simcore.exposure import Wait, compute_busy_ps, exposed_communication_s, exposed_ps, waits
from simcore.graph import Fixed, Ref, Take, TaskGraph, TensorAccess, Transfer
from simcore.memory import alive_at_peak, occupancy, peak_by_memory, peak_bytes
from simcore.running import run, simulate
from tests.random_graphs import flat_of


def chip_graph(units=("hbm", "mxu", "vpu", "ici_x+"), **options):
    graph = TaskGraph("test")
    chip = graph.entity_class("chip", **options)
    for unit in units:
        chip.unit(unit)
    return graph, chip


def timeline_of(graph):
    return simulate(flat_of(graph))


class TestExposure:
    def test_a_compute_that_waits_for_a_load_waits_for_hbm(self):
        graph, chip = chip_graph()
        with chip.loop("i", 3):
            load = chip.task("load", unit="hbm", work=Fixed(50))
            chip.task("compute", unit="mxu", work=Fixed(20), after=[load])
        t = timeline_of(graph)
        assert waits(t, 0) == [Wait(0, 50, "fill"), Wait(70, 100, "hbm"), Wait(120, 150, "hbm")]
        assert compute_busy_ps(t, 0) == 60

    def test_mxu_and_vpu_together_are_busy_once(self):
        graph, chip = chip_graph()
        chip.task("a", unit="mxu", work=Fixed(10))
        chip.task("b", unit="vpu", work=Fixed(15))
        t = timeline_of(graph)
        assert compute_busy_ps(t, 0) == 15
        assert waits(t, 0) == []

    def test_a_transfer_s_service_is_exposed_by_its_unit_and_its_flight_as_latency(self):
        graph, chip = chip_graph()
        chip.task("a", unit="mxu", work=Fixed(10))
        chip.task("send", unit="ici_x+", work=Fixed(30), latency_ps=7, after=["a"])
        chip.task("b", unit="mxu", work=Fixed(10), after=["send"])
        assert exposed_ps(timeline_of(graph), 0) == {"ici": 30, "latency": 7}
        assert exposed_communication_s({"ici": 30.0, "latency": 7.0, "hbm": 100.0, "fill": 5.0}) == 37

    def test_a_dma_s_flight_is_hbm_s_and_no_communication(self):
        graph, chip = chip_graph()
        chip.task("a", unit="mxu", work=Fixed(10))
        chip.task("load", unit="hbm", work=Fixed(30), latency_ps=7, after=["a"])
        chip.task("b", unit="mxu", work=Fixed(10), after=["load"])
        assert exposed_ps(timeline_of(graph), 0) == {"hbm": 37}

    def test_waiting_behind_another_transfer_of_the_unit_counts_too(self):
        graph, chip = chip_graph()
        chip.task("a", unit="mxu", work=Fixed(10))
        chip.task("other", unit="hbm", queue="q", work=Fixed(40))
        chip.task("load", unit="hbm", work=Fixed(10), after=["a"])
        chip.task("b", unit="mxu", work=Fixed(10), after=["load"])
        assert waits(timeline_of(graph), 0) == [Wait(10, 50, "hbm")]

    def test_a_buffer_that_a_store_holds_up_is_the_store_s_unit(self):
        graph, chip = chip_graph()
        chip.pool("p", memory="vmem", buffers=1, buffer_bytes=8)
        with chip.loop("i", 2):
            chip.task("compute", unit="mxu", work=Fixed(10), takes=[Take("p", ["store"])])
            chip.task("store", unit="hbm", work=Fixed(30), after=["compute"])
        assert waits(timeline_of(graph), 0) == [Wait(10, 40, "hbm"), Wait(50, 80, "drain")]

    def test_a_chip_that_waits_for_another_one_s_compute_is_in_a_bubble(self):
        graph, chip = chip_graph(mesh={"x": 2}, wraps=False)
        with chip.loop("i", 2):
            before = Ref("compute", on={"x": -1}, outside="ignore")
            chip.task("compute", unit="mxu", work=Fixed(10), after=[before], when=lambda i, c: c["x"] == 0)
            chip.task("short", unit="mxu", work=Fixed(4), after=[before], when=lambda i, c: c["x"] == 1)
        t = timeline_of(graph)
        assert waits(t, 0) == [Wait(20, 24, "drain")]
        assert waits(t, 1) == [Wait(0, 10, "fill"), Wait(14, 20, "bubble")]

    def test_communication_before_the_first_and_after_the_last_compute_is_exposed(self):
        graph, chip = chip_graph()
        chip.task("load", unit="hbm", work=Fixed(5))
        chip.task("gather", unit="ici_x+", work=Fixed(30), latency_ps=2, after=["load"])
        chip.task("compute", unit="mxu", work=Fixed(10), after=["gather"])
        chip.task("reduce", unit="ici_x+", work=Fixed(20), latency_ps=2, after=["compute"])
        chip.task("store", unit="hbm", work=Fixed(7), after=["reduce"])
        assert exposed_ps(timeline_of(graph), 0) == {"ici": 50, "drain": 7, "fill": 5, "latency": 4}

    def test_a_chip_that_is_done_before_the_others_only_drains(self):
        graph, chip = chip_graph(mesh={"x": 2}, wraps=False)
        chip.task("compute", unit="mxu", work=Fixed(10))
        chip.task("long", unit="ici_x+", work=Fixed(90), when=lambda i, c: c["x"] == 1)
        t = timeline_of(graph)
        assert exposed_ps(t, 0) == {"drain": 80}
        assert exposed_ps(t, 1) == {"ici": 80}

    def test_a_chip_that_computes_nothing_waits_for_what_the_last_task_waited_for(self):
        graph, chip = chip_graph(mesh={"x": 4})
        chip.tensor("t", bytes=4 * 45_000, shape=(4 * 45_000,))
        all_gather(chip, "c", "x", RingTensor("t", 45_000))
        t = timeline_of(graph)
        for entity in range(4):
            assert exposed_ps(t, entity) == {"ici": 3 * 10**6, "latency": 3 * 10**6}

    def test_a_task_without_a_unit_is_exposed_by_its_kind(self):
        graph, chip = chip_graph()
        chip.task("launch", work=Fixed(4), kind="launch")
        chip.task("a", unit="mxu", work=Fixed(10), after=["launch"])
        chip.task("launch2", work=Fixed(4), kind="launch", after=["a"])
        chip.task("b", unit="mxu", work=Fixed(10), after=["launch2"])
        assert waits(timeline_of(graph), 0) == [Wait(0, 4, "fill"), Wait(14, 18, "launch")]

    def test_a_run_of_nothing_waits_for_nothing(self):
        graph, chip = chip_graph()
        assert waits(timeline_of(graph), 0) == []
        chip.task("t")
        assert waits(timeline_of(graph), 0) == []

    def test_a_result_s_busy_and_exposed_times_add_up_to_its_time(self):
        graph, chip = chip_graph()
        with chip.loop("i", 3):
            load = chip.task("load", unit="hbm", work=Fixed.of("5 us"))
            chip.task("compute", unit="mxu", work=Fixed.of("2 us"), after=[load])
        result = run(graph)
        assert result.busy_s + sum(result.exposed_s.values()) == pytest.approx(result.time_s, rel=1e-12)


class TestMemory:
    def tensors(self):
        graph, chip = chip_graph()
        chip.tensor("weights", bytes=100, persistent=True)
        chip.tensor("given", bytes=10)
        chip.tensor("made", bytes=7)
        chip.tensor("untouched", bytes=1000)
        chip.task("make", unit="mxu", work=Fixed(5), reads=[TensorAccess("given")], writes=[TensorAccess("made")])
        chip.task("idle", unit="mxu", work=Fixed(5))
        chip.task("use", unit="mxu", work=Fixed(5), latency_ps=3, reads=[TensorAccess("made")])
        chip.task("end", unit="mxu", work=Fixed(5))
        return timeline_of(graph)

    def test_tensors_live_from_their_first_write_to_the_completion_of_their_last_use(self):
        t = self.tensors()
        lives = {
            t.tensors.names[n]: (int(born), int(died))
            for n, born, died in zip(t.tensors.tensor, t.tensors.born_ps, t.tensors.died_ps, strict=True)
        }
        assert lives == {"weights": (0, 20), "given": (0, 5), "made": (0, 18)}
        at, held = occupancy(t, 0, "hbm")
        assert dict(zip(at.tolist(), held.tolist(), strict=True)) == {0: 117, 5: 107, 18: 100, 20: 0}
        assert peak_bytes(t, 0, "hbm") == 117
        assert alive_at_peak(t, 0, "hbm") == [("weights", 100), ("given", 10), ("made", 7)]

    def test_what_dies_at_an_instant_makes_room_for_what_is_born_then(self):
        graph, chip = chip_graph()
        for name in ("a", "b"):
            chip.tensor(name, bytes=10)
            chip.task(f"make_{name}", unit="mxu", work=Fixed(5), writes=[TensorAccess(name)])
        assert peak_bytes(timeline_of(graph), 0, "hbm") == 10

    def test_with_a_scope_each_iteration_s_tensor_lives_for_itself(self):
        graph, chip = chip_graph()
        with chip.loop("layer", 4):
            chip.tensor("x", bytes=10, scope=["layer"])
            chip.task("make", unit="mxu", work=Fixed(5), writes=[TensorAccess("x")])
            chip.task("use", unit="mxu", work=Fixed(5), reads=[TensorAccess("x")])
        t = timeline_of(graph)
        assert sorted(zip(t.tensors.born_ps.tolist(), t.tensors.died_ps.tolist(), strict=True)) == [
            (10 * layer, 10 * layer + 10) for layer in range(4)
        ]
        assert peak_bytes(t, 0, "hbm") == 10

    def test_a_neighbour_s_tensor_is_born_when_it_is_written_there(self):
        graph, chip = chip_graph(mesh={"x": 3}, wraps=False)
        chip.tensor("inbox", bytes=10)
        chip.task("wait", work=Fixed(50), when=lambda i, c: c["x"] == 1)
        chip.task(
            "send",
            unit="ici_x+",
            work=Fixed(5),
            after=[Ref("wait", outside="ignore")],
            writes=[TensorAccess("inbox", on={"x": 1})],
            when=lambda i, c: c["x"] < 2,
        )
        t = timeline_of(graph)
        born = dict(zip(t.tensors.entity.tolist(), t.tensors.born_ps.tolist(), strict=True))
        assert born == {1: 0, 2: 50}

    def test_buffers_count_from_grant_to_release(self):
        graph, chip = chip_graph()
        chip.pool("p", memory="vmem", buffers=2, buffer_bytes=64)
        with chip.loop("i", 3):
            load = chip.task("load", unit="hbm", work=Fixed(10), takes=[Take("p", ["use"])])
            chip.task("use", unit="mxu", work=Fixed(4), after=[load])
        t = timeline_of(graph)
        at, held = occupancy(t, 0, "vmem")
        assert dict(zip(at.tolist(), held.tolist(), strict=True)) == {0: 128, 14: 128, 24: 64, 34: 0}
        assert alive_at_peak(t, 0, "vmem") == [("p", 128)]
        assert peak_by_memory(t) == {"vmem": 128}

    def test_the_fullest_chip_decides(self):
        graph, chip = chip_graph(mesh={"x": 2})
        chip.tensor("t", bytes=10)
        chip.task("make", unit="mxu", work=Fixed(5), writes=[TensorAccess("t")], when=lambda i, c: c["x"] == 1)
        t = timeline_of(graph)
        assert peak_bytes(t, 0, "hbm") == 0
        assert peak_by_memory(t) == {"hbm": 10}

    def test_weights_take_room_even_in_a_run_of_no_time(self):
        graph, chip = chip_graph()
        chip.tensor("weights", bytes=100, persistent=True)
        chip.task("t")
        assert peak_by_memory(timeline_of(graph)) == {"hbm": 100}

    def test_a_peak_over_the_capacity_is_reported_and_not_waited_for(self):
        graph, chip = chip_graph()
        chip.tensor("weights", bytes=10**15, persistent=True)
        chip.task("t", unit="mxu", work=Fixed(1))
        assert run(graph).overflowing_memories == ("hbm",)


class TestSums:
    def test_bytes_go_by_the_interface_whatever_the_task_is_called(self):
        graph, chip = chip_graph(mesh={"x": 2})
        chip.task("a", unit="hbm", work=Transfer(10), kind="weights", moves="W")
        chip.task("b", unit="hbm", work=Transfer(5), kind="hbm_store", moves="C")
        chip.task("c", unit="ici_x+", work=Transfer(3), kind="halo")
        t = timeline_of(graph)
        assert t.bytes_by_interface() == {"hbm_read": 20, "hbm_write": 10, "ici": 6}
        assert t.bytes_by_tensor() == {"hbm_read": {"W": 20}, "hbm_write": {"C": 10}, "ici": {"other": 6}}

    def test_rows_of_a_kind_and_of_a_lane(self):
        graph, chip = chip_graph()
        chip.task("b", unit="hbm", queue="late", work=Fixed(5), after=["t"])
        chip.task("a", unit="hbm", work=Fixed(5), kind="mine")
        chip.task("t", work=Fixed(1))
        t = timeline_of(graph)
        assert t.rows_of_lane(0).tolist() == [1, 0]
        assert t.rows_of_kind("mine").tolist() == [1]
        assert t.rows_of_kind("nothing").tolist() == []
        assert [t.entities[0].label, t.lanes[0].unit] == ["chip", "hbm"]


def test_overlap_is_what_compute_hides():
    from simcore.exposure import overlap_ps
    from simcore.scenario import run_scenario

    for buffers, hidden_us in ((1, 0), (2, 175)):
        result = run_scenario("double_buffering", ideal=True, parameters={"buffers": buffers})
        assert overlap_ps(result.timeline, 0) == {"hbm": hidden_us * 10**6}
        assert result.overlap_s == {"hbm": hidden_us / 1e6}
