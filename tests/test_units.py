"""Units driven by hand from SimPy processes, alone and beside a task graph."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import simpy

from simcore.errors import ChipError, DeadlockError, GraphError
from simcore.exposure import compute_busy_ps, waits
from simcore.graph import Fixed, Matmul, Ref, Take, TaskGraph, Transfer, Vector
from simcore.quantities import duration_ps
from simcore.running import run
from simcore.timeline import Released, Timeline
from simcore.units import SimChip, result_of, run_graph_with, timeline_of

DOCS = Path(__file__).parents[1] / "docs" / "units_by_hand.md"
MIB = 2**20


def made(**options):
    env = simpy.Environment()
    return env, SimChip(env, "v5e", **options)


def spans(timeline: Timeline):
    """Task -> (start, end, done); by task name, each of which happens once."""
    return {
        timeline.task_names[task]: (int(start), int(end), int(done))
        for task, start, end, done in zip(
            timeline.task, timeline.start_ps, timeline.end_ps, timeline.done_ps, strict=True
        )
    }


def released(timeline: Timeline, task: str):
    row = timeline.task.tolist().index(timeline.task_names.index(task))
    by = int(timeline.released_by[row])
    name = timeline.task_names[timeline.task[by]] if by >= 0 else None
    return Released(int(timeline.released_how[row])).name, name


class TestUnits:
    @pytest.mark.parametrize("ideal", [True, False])
    def test_work_costs_what_it_costs_in_a_task_graph(self, ideal):
        env, chip = made(ideal=ideal)

        def everything():
            yield from chip.load("w", 3 * MIB)
            yield from chip.store("w", "5 MiB")
            yield from chip.matmul(100, 200, 300)
            yield from chip.vector(10**6, MIB)
            yield from chip.send("x+", "w", MIB)
            yield from chip.occupy("server", "3 us", task="think")

        env.process(everything())
        env.run()

        graph = TaskGraph("same")
        same = graph.entity_class("chip")
        steps = [
            ("hbm", Transfer(3 * MIB)),
            ("hbm", Transfer(5 * MIB)),
            ("mxu", Matmul(100, 200, 300)),
            ("vpu", Vector(10**6, MIB)),
            ("ici_x+", Transfer(MIB)),
            ("server", Fixed(3_000_000)),
        ]
        for number, (unit, work) in enumerate(steps):
            same.task(f"t{number}", unit=same.unit(unit), work=work, after=[f"t{number - 1}"] if number else [])
        wanted, got = run(graph, ideal=ideal).timeline, timeline_of(env, [chip])
        for column in ("start_ps", "end_ps", "done_ps", "bytes", "flops", "work_ps"):
            assert getattr(got, column).tolist() == getattr(wanted, column).tolist(), column
        assert [got.kind_names[kind] for kind in got.kind] == [
            "hbm_load", "hbm_store", "matmul", "vector", "ici", "server"
        ]  # fmt: skip
        assert got.bytes_by_tensor() == {
            "hbm_read": {"w": 3 * MIB}, "hbm_write": {"w": 5 * MIB}, "ici": {"w": MIB}
        }  # fmt: skip

    def test_a_unit_serves_one_at_a_time_in_order_and_is_free_during_the_latency(self):
        env, chip = made(ideal=True)
        for name in ("a", "b"):
            env.process(chip.send("x+", name, 45_000))
        env.run()
        t = timeline_of(env, [chip])
        us = 10**6
        assert spans(t) == {"send a": (0, us, 2 * us), "send b": (us, 2 * us, 3 * us)}
        assert released(t, "send b") == ("UNIT", "send a")

    def test_directions_of_a_link_are_two_units(self):
        env, chip = made(ideal=True)
        for link in ("x+", "x-"):
            env.process(chip.send(link, link, 45_000))
        env.run()
        assert env.now == 2 * 10**6

    def test_pcie_and_dcn_need_a_chip_that_has_them(self):
        env, chip = made(ideal=True)
        lacking = SimChip(env, replace(chip.hardware.chip, dcn_bandwidth_bytes_per_s_per_host=None), name="bare")
        with pytest.raises(ChipError, match="dcn"):
            lacking.dcn("w", 8)
        figures = {"pcie_bandwidth_bytes_per_s": 1e9, "dcn_bandwidth_bytes_per_s_per_host": 2e9}
        able = SimChip(env, chip.hardware.chip.replace(**figures), ideal=True, name="able")
        for steps in (able.pcie("w", 1000), able.dcn("w", 1000)):
            env.process(steps)
        env.run()
        t = timeline_of(env, [able])
        assert [end - start for start, end, _ in spans(t).values()] == [duration_ps(1000, 1e9), duration_ps(1000, 2e9)]
        assert t.bytes_by_interface() == {"pcie": 1000, "dcn": 1000}

    def test_an_interrupted_piece_of_work_lasts_until_then_and_gives_its_unit_back(self):
        env, chip = made(ideal=True)

        def patient():
            yield from chip.occupy("mxu", 100, task="cut")

        def stop(process):
            yield env.timeout(40)
            process.interrupt()

        def guarded(steps):
            with suppress(simpy.Interrupt):
                yield from steps

        first = env.process(guarded(patient()))
        waiting = env.process(guarded(chip.occupy("mxu", 100, task="never")))
        env.process(stop(waiting))
        env.process(stop(first))
        env.process(chip.occupy("mxu", 10, task="next"))
        env.run()
        assert spans(timeline_of(env, [chip])) == {"cut": (0, 40, 40), "next": (40, 50, 50)}

    @pytest.mark.parametrize(
        ("work", "message"),
        [
            (lambda chip: chip.load("w", -1), "negative work"),
            (lambda chip: chip.occupy("mxu", -1, task="t"), "negative work"),
            (lambda chip: chip.serve("mxu", Transfer(1), task="t"), "can't serve Transfer"),
            (lambda chip: chip.matmul(8, 8, 8, "fp4"), "has no fp4 matmul rate"),
            (lambda chip: chip.occupy("warp", 1, task="t"), "unknown kind 'warp'"),
            (lambda chip: chip.resource("hbm", kind="dcn"), "of kind 'hbm', not 'dcn'"),
        ],
    )
    def test_wrong_work_is_an_error_where_it_is_asked_for(self, work, message):
        _, chip = made()
        chip.resource("hbm")
        with pytest.raises(GraphError, match=message):
            work(chip)

    def test_a_time_that_is_no_whole_number_is_an_error(self):
        env, chip = made()

        def process():
            yield env.timeout(0.5)
            yield from chip.load("w", 1)

        env.process(process())
        with pytest.raises(GraphError, match=r"time is 0\.5: simcore counts whole picoseconds"):
            env.run()


class TestMemory:
    def test_vmem_is_granted_in_order_even_if_a_later_one_would_fit(self):
        env, chip = made()
        granted = []

        def holder(name, size, pause):
            with (yield from chip.reserve(name, size)):
                granted.append((name, env.now))
                yield env.timeout(pause)

        for name, size, pause in (("a", 100 * MIB, 10), ("large", 100 * MIB, 10), ("small", MIB, 10)):
            env.process(holder(name, size, pause))
        env.run()
        assert granted == [("a", 0), ("large", 10), ("small", 10)]
        assert chip.vmem.free_bytes == chip.vmem.capacity_bytes

    def test_two_slots_alternate_and_are_on_the_timeline_with_their_sizes(self):
        env, chip = made(ideal=True)

        def tile(number):
            buffer = yield from chip.reserve("tile", 64 * MIB)
            yield from chip.occupy("hbm", 50, task=f"load {number}")
            yield from chip.occupy("mxu", 25, task=f"multiply {number}")
            buffer.free()

        for number in range(8):
            env.process(tile(number))
        env.run()
        t = timeline_of(env, [chip])
        assert t.makespan_ps == 8 * 50 + 25
        assert t.slots.pools == ((0, "tile", "vmem", 2, 64 * MIB),)
        assert t.slots.slot.tolist() == [0, 1] * 4
        assert [t.task_names[t.task[row]] for row in t.slots.taker] == [f"load {n}" for n in range(8)]
        assert compute_busy_ps(t, 0) + sum(w.end_ps - w.start_ps for w in waits(t, 0)) == t.makespan_ps
        assert {w.cause for w in waits(t, 0)} == {"fill", "hbm"}

    def test_a_wait_for_memory_is_released_by_who_freed_it(self):
        env, chip = made(ideal=True)

        def tile(number):
            with (yield from chip.reserve("tile", 128 * MIB)):
                yield from chip.occupy("hbm", 50, task=f"load {number}")
                yield from chip.occupy("mxu", 25, task=f"multiply {number}")

        for number in range(2):
            env.process(tile(number))
        env.run()
        t = timeline_of(env, [chip])
        assert released(t, "multiply 0") == ("DEPENDENCY", "load 0")
        assert released(t, "load 1") == ("BUFFER", "multiply 0")

    def test_what_can_never_fit_and_what_is_freed_twice_are_errors(self):
        env, chip = made()

        def process():
            with pytest.raises(GraphError, match=r"129 MiB of vmem can't be reserved; there are 128 MiB"):
                yield from chip.reserve("w", 129 * MIB)
            buffer = yield from chip.reserve("w", MIB)
            buffer.free()
            with pytest.raises(GraphError, match="'w' of vmem is freed twice"):
                buffer.free()
            with pytest.raises(GraphError, match="none of this vmem's"):
                SimChip(env).vmem.free(buffer)

        done = env.process(process())
        env.run()
        assert done.ok

    def test_an_interrupted_wait_lets_the_next_one_in(self):
        env, chip = made()
        got = []

        def holder():
            yield from chip.reserve("a", 100 * MIB)

        def impatient():
            try:
                yield from chip.reserve("b", 100 * MIB)
            except simpy.Interrupt:
                got.append("interrupted")

        def modest():
            yield from chip.reserve("c", MIB)
            got.append(env.now)

        def stop(process):
            yield env.timeout(5)
            process.interrupt()

        env.process(holder())
        waiting = env.process(impatient())
        env.process(modest())
        env.process(stop(waiting))
        env.run()
        assert sorted(got, key=str) == [5, "interrupted"]
        assert chip.vmem.free_bytes == 27 * MIB


class TestDeadlock:
    def test_who_waits_for_memory_and_who_holds_it_is_named(self):
        env, chip = made()

        def greedy(name):
            yield from chip.reserve(name, 100 * MIB)

        for name in ("a", "b"):
            env.process(greedy(name))
        env.run()
        with pytest.raises(
            DeadlockError, match=r"b waits for 100 MiB of chip's vmem, of which 28 MiB are free \(held: a 100 MiB\)"
        ):
            timeline_of(env, [chip])

    def test_who_waits_for_a_unit_is_named(self):
        env, chip = made()
        chip.resource("hbm").request()
        env.process(chip.load("w", MIB))
        env.run()
        with pytest.raises(DeadlockError, match="load w waits for hbm of chip, which something holds"):
            timeline_of(env, [chip])

    def test_before_the_events_are_over_what_is_complete_is_there(self):
        env, chip = made(ideal=True)
        for name, ps in (("a", 10), ("b", 10)):
            env.process(chip.occupy("mxu", ps, task=name))
        env.run(until=15)
        assert spans(timeline_of(env, [chip])) == {"a": (0, 10, 10)}


def pipeline_graph(tiles=4, buffers=2, mesh=None):
    graph = TaskGraph("pipeline")
    chip = graph.entity_class("chip", mesh=mesh)
    for unit in ("hbm", "mxu"):
        chip.unit(unit)
    chip.pool("tiles", memory="vmem", buffers=buffers, buffer_bytes=MIB)
    with chip.loop("tile", tiles):
        load = chip.task("load", unit="hbm", work=Fixed(50), takes=[Take("tiles", ["compute"])])
        chip.task("compute", unit="mxu", work=Fixed(25), after=[load])
    return graph


class TestTogether:
    def test_a_graph_alone_gives_the_timeline_that_it_has_in_its_own_environment(self):
        env, chip = made()
        graph = pipeline_graph()
        run_graph_with(env, [chip], graph)
        env.run()
        got, wanted = timeline_of(env, [chip]), run(graph).timeline
        columns = (
            "task",
            "lane",
            "ready_ps",
            "granted_ps",
            "start_ps",
            "end_ps",
            "done_ps",
            "released_by",
            "released_how",
        )
        for column in columns:
            assert getattr(got, column).tolist() == getattr(wanted, column).tolist(), column
        assert got.slots.slot.tolist() == wanted.slots.slot.tolist()

    def test_processes_and_tasks_stand_in_the_same_line(self):
        env, chip = made()

        def by_hand():
            yield env.timeout(60)
            yield from chip.occupy("hbm", 1000, task="by hand")

        env.process(by_hand())
        run_graph_with(env, [chip], pipeline_graph(tiles=4))
        env.run()
        t = timeline_of(env, [chip])
        hbm = [lane.unit for lane in t.lanes].index("hbm")
        rows = t.rows_of_lane(hbm)
        names = [t.task_names[task] for task in t.task[rows]]
        assert names == ["load", "load", "by hand", "load", "load"]
        assert t.start_ps[rows].tolist() == [0, 50, 100, 1100, 1150]
        assert t.released_by[rows[1:]].tolist() == rows[:-1].tolist()
        assert waits(t, 0)[-1].cause == "hbm"

    def test_a_graph_starts_when_it_is_started_and_a_process_may_wait_for_it(self):
        env, chip = made()
        seen = []

        def process():
            yield env.timeout(1000)
            graph = run_graph_with(env, [chip], pipeline_graph(tiles=2))
            assert chip.vmem.free_bytes == 126 * MIB
            yield graph.done
            seen.append(env.now)
            yield from chip.occupy("mxu", 5, task="after")

        env.process(process())
        env.run()
        assert seen == [1125]
        assert chip.vmem.free_bytes == 128 * MIB
        t = timeline_of(env, [chip])
        assert int(t.ready_ps.min()) == 1000
        assert spans(t)["after"] == (1125, 1130, 1130)
        assert released(t, "after") == ("DEPENDENCY", "compute")

    def test_two_chips_and_their_host(self):
        env = simpy.Environment()
        chips = [SimChip(env, name=name) for name in ("left", "right")]
        graph = pipeline_graph(tiles=1, mesh={"x": 2})
        host = graph.entity_class("host", kind="host")
        host.unit("server")
        host.task("feed", unit="server", work=Fixed(7))
        graph.classes["chip"].task("late", unit="mxu", work=Fixed(1), after=[Ref("feed", cls="host")])
        run_graph_with(env, chips, graph)
        env.process(chips[1].occupy("hbm", 30, task="by hand"))
        env.run()
        t = timeline_of(env, chips)
        assert [entity.label for entity in t.entities] == ["left", "right", "host"]
        loads = t.rows_of_kind("hbm_load")
        assert {(t.entities[e].label, int(s)) for e, s in zip(t.entity[loads], t.start_ps[loads], strict=True)} == {
            ("left", 0), ("right", 0), ("right", 30)
        }  # fmt: skip
        result = result_of(env, chips, name="two")
        assert (result.chips, result.tasks) == (2, 8)

    def test_what_does_not_go_together_is_said(self):
        env, chip = made()
        other = SimChip(env, "v5p", name="other")
        with pytest.raises(GraphError, match="no chips are given"):
            run_graph_with(env, [], pipeline_graph())
        with pytest.raises(GraphError, match="chips that are alike"):
            run_graph_with(env, [chip, other], pipeline_graph(mesh={"x": 2}))
        with pytest.raises(GraphError, match="has 2 chips, 1 are given"):
            run_graph_with(env, [chip], pipeline_graph(mesh={"x": 2}))
        with pytest.raises(GraphError, match="names of their own"):
            timeline_of(env, [chip, SimChip(env)])
        with pytest.raises(GraphError, match="in another environment"):
            timeline_of(simpy.Environment(), [chip])
        env.process(chip.reserve("most", 127 * MIB))
        env.run()
        with pytest.raises(GraphError, match="need 2 MiB of vmem, of which 1 MiB are free"):
            run_graph_with(env, [chip], pipeline_graph())

    def test_a_graph_that_still_runs_has_no_timeline_yet(self):
        env, chip = made()
        run_graph_with(env, [chip], pipeline_graph())
        env.run(until=10)
        with pytest.raises(GraphError, match="still running"):
            timeline_of(env, [chip])


class TestResult:
    def test_it_has_the_figures_of_a_run(self):
        env, chip = made(ideal=True)

        def process():
            yield from chip.load("w", 810_000)
            yield from chip.matmul(1000, 1000, 1000)
            yield from chip.vector(1000)

        env.process(process())
        env.run()
        result = result_of(env, [chip], name="mine", parameters={"n": 1})
        assert result.time_s == env.now / 1e12
        assert result.flops == 2 * 10**9
        assert result.vector_operations == 1000
        assert result.bytes == {"hbm_read": 810_000}
        assert result.bounds_s["hbm"] == pytest.approx(1e-6)
        assert result.busy_s + sum(result.exposed_s.values()) == pytest.approx(result.time_s)
        assert result.to_json()["scenario"] == "mine"
        assert result.to_json()["parameters"] == {"n": 1}

    def test_a_chip_that_did_nothing_has_an_empty_timeline(self):
        env, chip = made()
        assert len(timeline_of(env, [chip])) == 0
        assert result_of(env, [chip]).time_s == 0


class TestDocs:
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)

    def test_the_example_runs_as_printed(self, tmp_path, monkeypatch, capsys):
        monkeypatch.chdir(tmp_path)
        assert len([line for line in self.blocks[0].splitlines() if line.strip()]) <= 15
        names: dict = {}
        exec(self.blocks[0], names)
        t = names["result"].timeline
        assert len(t) == 8
        assert t.slots.pools[0][3] == 2  # a double buffer
        assert names["result"].utilization["hbm"] > 0.8
        assert "tiles by hand" in capsys.readouterr().out
        assert (tmp_path / "tiles_by_hand.png").stat().st_size > 0

    def test_the_example_beside_a_graph_too(self):
        names = {"simpy": simpy, "SimChip": SimChip}
        exec(self.blocks[1], names)
        t = names["timeline"]
        order = [t.task_names[t.task[row]] for row in t.rows_of_lane(0)]
        assert order[:3] in (
            ["prefetch", "load activations", "prefetch"],
            ["load activations", "prefetch", "prefetch"],
        )
        assert order.count("prefetch") == 4
