"""The engine keeps the contract of the task graph: queues, units, pools, references, latencies, ties."""

from __future__ import annotations

import numpy as np
import pytest
import simpy

from simcore.collectives.closed_forms import pipeline_ps
from simcore.engine.simpy_engine import SimpyEngine
from simcore.errors import DeadlockError
from simcore.graph import Fixed, Ref, Take, TaskGraph
from simcore.running import run, simulate
from simcore.timeline import Released
from tests.random_graphs import flat_of


def chip_graph(units=("hbm", "mxu"), **options):
    graph = TaskGraph("test")
    chip = graph.entity_class("chip", **options)
    for unit in units:
        chip.unit(unit)
    return graph, chip


def spans(graph):
    """Label -> (ready, granted, start, end, done) and label -> (how it was released, by what)."""
    flat = flat_of(graph)
    t = simulate(flat)
    times = {
        flat.label(i).removesuffix(" on chip"): tuple(
            int(c[i]) for c in (t.ready_ps, t.granted_ps, t.start_ps, t.end_ps, t.done_ps)
        )
        for i in range(len(flat))
    }
    released = {
        flat.label(i).removesuffix(" on chip"): (
            Released(int(t.released_how[i])).name,
            flat.label(int(t.released_by[i])).removesuffix(" on chip") if t.released_by[i] >= 0 else None,
        )
        for i in range(len(flat))
    }
    return times, released


def starts(graph):
    return {name: times[2] for name, times in spans(graph)[0].items()}


class TestQueues:
    def test_a_queue_starts_its_tasks_in_program_order_whatever_is_ready_first(self):
        graph, chip = chip_graph()
        chip.task("slow", unit="mxu", work=Fixed(10))
        chip.task("first", unit="hbm", work=Fixed(1), after=["slow"])
        chip.task("second", unit="hbm", work=Fixed(1))
        assert starts(graph) == {"slow": 0, "first": 10, "second": 11}

    def test_two_queues_that_meet_at_a_unit_are_served_as_they_become_ready(self):
        graph, chip = chip_graph()
        chip.task("slow", unit="mxu", work=Fixed(10))
        chip.task("first", unit="hbm", queue="loads", work=Fixed(1), after=["slow"])
        chip.task("second", unit="hbm", queue="stores", work=Fixed(1))
        assert starts(graph) == {"slow": 0, "first": 10, "second": 0}

    def test_one_queue_may_feed_two_units_and_then_only_starts_are_ordered(self):
        graph, chip = chip_graph()
        chip.task("a", unit="hbm", queue="q", work=Fixed(10))
        chip.task("b", unit="mxu", queue="q", work=Fixed(1))
        chip.task("c", unit="hbm", queue="q", work=Fixed(1))
        chip.task("d", unit="mxu", queue="q", work=Fixed(1))
        assert starts(graph) == {"a": 0, "b": 0, "c": 10, "d": 10}

    def test_each_chip_has_queues_of_its_own(self):
        graph, chip = chip_graph(mesh={"x": 2})
        chip.task("wait", work=Fixed(10), when=lambda i, c: c["x"] == 0)
        chip.task("a", unit="hbm", work=Fixed(1), after=[Ref("wait", outside="ignore")])
        assert starts(graph) == {"wait on chip x=0": 0, "a on chip x=0": 10, "a on chip x=1": 0}

    def test_a_task_without_unit_and_queue_starts_as_soon_as_it_may(self):
        graph, chip = chip_graph()
        for number in range(3):
            chip.task(f"t{number}", work=Fixed(5))
        assert set(starts(graph).values()) == {0}


class TestUnits:
    def test_service_is_first_come_first_served_and_is_not_interrupted(self):
        graph, chip = chip_graph()
        chip.task("holder", unit="hbm", queue="q0", work=Fixed(10))
        chip.task("t3", work=Fixed(3))
        chip.task("t5", work=Fixed(5))
        chip.task("late", unit="hbm", queue="q1", work=Fixed(1), after=["t5"])
        chip.task("early", unit="hbm", queue="q2", work=Fixed(1), after=["t3"])
        assert starts(graph)["early"] == 10
        assert starts(graph)["late"] == 11

    def test_ready_at_the_same_time_the_program_decides_and_then_the_chip(self):
        graph = TaskGraph("hosts")
        host = graph.entity_class("host", kind="host")
        host.unit("pcie")
        chip = graph.entity_class("chip", mesh={"x": 2})
        chip.task("go", work=Fixed(7))
        for chip_number in (1, 0):
            for name in ("b", "a"):
                host.task(
                    f"{name}{chip_number}",
                    unit="pcie",
                    queue=f"{name}{chip_number}",
                    work=Fixed(1),
                    after=[Ref("go", cls="chip", onto=lambda c, n=chip_number: {"x": n})],
                )
        flat = flat_of(graph)
        begun = {flat.label(i): int(s) for i, s in enumerate(simulate(flat).start_ps) if "host" in flat.label(i)}
        assert begun == {"b1 on host": 7, "a1 on host": 8, "b0 on host": 9, "a0 on host": 10}

    def test_what_becomes_ready_a_round_later_at_the_same_instant_is_served_later(self):
        graph, chip = chip_graph()
        chip.task("end", work=Fixed(5))
        chip.task("relay", after=["end"])
        chip.task("behind_relay", unit="hbm", queue="q0", work=Fixed(1), after=["relay"])
        chip.task("direct", unit="hbm", queue="q1", work=Fixed(1), after=["end"])
        assert starts(graph)["direct"] == 5
        assert starts(graph)["behind_relay"] == 6

    def test_a_unit_freed_at_an_instant_goes_to_who_waited_and_not_to_who_comes_then(self):
        graph, chip = chip_graph()
        chip.task("comer", unit="hbm", queue="q0", work=Fixed(1), after=["holder"])
        chip.task("holder", unit="hbm", queue="q1", work=Fixed(5))
        chip.task("tick", work=Fixed(4))
        chip.task("waiter", unit="hbm", queue="q2", work=Fixed(1), after=["tick"])
        assert starts(graph)["waiter"] == 5
        assert starts(graph)["comer"] == 6

    def test_latency_follows_the_service_and_occupies_nothing(self):
        graph, chip = chip_graph()
        chip.task("a", unit="hbm", work=Fixed(5), latency_ps=100)
        chip.task("b", unit="hbm", work=Fixed(5))
        chip.task("after_a", unit="mxu", work=Fixed(1), after=["a"])
        times, _ = spans(graph)
        assert times["a"] == (0, 0, 0, 5, 105)
        assert times["b"][2] == 5
        assert times["after_a"][2] == 105

    def test_the_issue_cost_is_part_of_the_service(self):
        graph, chip = chip_graph()
        chip.task("a", unit="hbm", work=Fixed(5), issue_ps=3)
        assert spans(graph)[0]["a"][3] == 8

    def test_zero_length_tasks_on_a_unit_pass_one_after_another_in_no_time(self):
        graph, chip = chip_graph()
        with chip.loop("i", 50):
            chip.task("a", unit="hbm", after=[Ref("a", at={"i": -1}, outside="ignore")])
        assert set(spans(graph)[0].values()) == {(0, 0, 0, 0, 0)}


class TestReferencesToAStart:
    def test_a_message_cuts_through_at_the_start_plus_the_lag(self):
        graph, chip = chip_graph(("ici_x+",), mesh={"x": 3}, wraps=False)
        chip.task(
            "hop",
            unit="ici_x+",
            work=Fixed(100),
            after=[Ref("hop", on={"x": -1}, event="start", lag_ps=7, outside="ignore")],
        )
        assert list(starts(graph).values()) == [0, 7, 14]

    def test_a_lag_of_nothing_is_a_round_later(self):
        graph, chip = chip_graph()
        chip.task("a", unit="mxu", work=Fixed(9))
        chip.task("late", unit="hbm", queue="q0", work=Fixed(1), after=[Ref("a", event="start")])
        chip.task("direct", unit="hbm", queue="q1", work=Fixed(1))
        assert starts(graph) == {"a": 0, "late": 1, "direct": 0}


class TestPools:
    def pipeline(self, tiles, buffers, **options):
        graph, chip = chip_graph()
        chip.pool("tiles", memory="vmem", buffers=buffers, buffer_bytes=64)
        with chip.loop("tile", tiles):
            load = chip.task("load", unit="hbm", work=Fixed(50), takes=[Take("tiles", ["compute"])], **options)
            chip.task("compute", unit="mxu", work=Fixed(25), after=[load])
        return graph

    def test_with_one_buffer_a_load_waits_for_the_compute_before(self):
        assert [s for name, s in starts(self.pipeline(3, 1)).items() if "load" in name] == [0, 75, 150]

    def test_with_two_it_runs_ahead(self):
        assert [s for name, s in starts(self.pipeline(3, 2)).items() if "load" in name] == [0, 50, 100]

    def test_buffers_alternate_and_a_third_of_three_comes_in_turn_too(self):
        timeline = simulate(flat_of(self.pipeline(6, 2)))
        assert timeline.slots.slot.tolist() == [0, 1, 0, 1, 0, 1]

    def test_a_buffer_is_asked_for_before_the_unit(self):
        graph, chip = chip_graph()
        chip.pool("p", memory="vmem", buffers=1, buffer_bytes=1)
        chip.task("holder", work=Fixed(10), takes=[Take("p", [])])
        chip.task("waiter", unit="hbm", queue="q0", work=Fixed(5), takes=[Take("p", [])])
        chip.task("other", unit="hbm", queue="q1", work=Fixed(50), after=["tick"])
        chip.task("tick", work=Fixed(9))
        times, released = spans(graph)
        assert times["waiter"] == (0, 10, 59, 64, 64)
        assert times["other"][2] == 9
        assert released["waiter"] == ("UNIT", "other")

    def test_grants_follow_the_program_and_not_who_asks_first(self):
        graph, chip = chip_graph()
        chip.pool("p", memory="vmem", buffers=2, buffer_bytes=1)
        chip.task("tick", work=Fixed(5))
        chip.task("first", work=Fixed(3), after=["tick"], takes=[Take("p", [])])
        chip.task("second", work=Fixed(3), takes=[Take("p", [])])
        times, released = spans(graph)
        assert times["second"] == (0, 5, 5, 8, 8)
        assert released["second"] == ("BUFFER", "first")

    def test_a_buffer_is_freed_when_all_its_readers_and_its_taker_have_completed(self):
        graph, chip = chip_graph()
        chip.pool("p", memory="vmem", buffers=1, buffer_bytes=1)
        chip.task("a", work=Fixed(2), latency_ps=20, takes=[Take("p", ["r1", "r2"])])
        chip.task("r1", work=Fixed(5))
        chip.task("r2", work=Fixed(5), latency_ps=6)
        chip.task("b", takes=[Take("p", None)])
        chip.task("c", takes=[Take("p", [])], when=lambda i, c: np.array(False))
        times, released = spans(graph)
        assert times["b"][1] == 22
        assert released["b"] == ("BUFFER", "a")
        slots = simulate(flat_of(graph)).slots
        assert slots.released_ps.tolist() == [22, 22]  # held to the end of the run

    def test_a_task_that_needs_two_pools_takes_both_or_none(self):
        graph, chip = chip_graph()
        for pool in ("p", "r"):
            chip.pool(pool, memory="vmem", buffers=1, buffer_bytes=1)
        chip.task("has_p", work=Fixed(5), takes=[Take("p", [])])
        chip.task("has_r", work=Fixed(9), takes=[Take("r", [])])
        chip.task("both", work=Fixed(1), takes=[Take("p", []), Take("r", [])])
        times, released = spans(graph)
        assert times["both"][1] == 9
        assert released["both"] == ("BUFFER", "has_r")

    def test_all_that_is_freed_in_a_round_is_granted_in_it(self):
        graph, chip = chip_graph()
        chip.pool("p", memory="vmem", buffers=2, buffer_bytes=1)
        for number in range(2):
            chip.task(f"holder{number}", work=Fixed(5), takes=[Take("p", [])])
        for number in range(2):
            chip.task(f"waiter{number}", unit="hbm", queue=f"w{number}", work=Fixed(1), takes=[Take("p", [])])
        chip.task("relay", after=["holder0"])
        chip.task("comer", unit="hbm", queue="c", work=Fixed(1), after=["relay"])
        times, _ = spans(graph)
        assert [times[name][2] for name in ("waiter0", "waiter1", "comer")] == [5, 6, 7]

    def test_a_receive_buffer_is_taken_by_the_receiver_before_the_sender_sends(self):
        graph, chip = chip_graph(("ici_x+", "mxu"), mesh={"x": 2}, wraps=False)
        chip.pool("inbox", memory="vmem", buffers=1, buffer_bytes=8)
        with chip.loop("i", 3):
            chip.task("room", takes=[Take("inbox", ["use"])], when=lambda i, c: c["x"] == 1)
            chip.task(
                "send",
                unit="ici_x+",
                work=Fixed(10),
                after=[Ref("room", on={"x": 1})],
                when=lambda i, c: c["x"] == 0,
            )
            chip.task(
                "use", unit="mxu", work=Fixed(5), after=[Ref("send", on={"x": -1})], when=lambda i, c: c["x"] == 1
            )
        begun = starts(graph)
        assert [begun[f"send[i={i}] on chip x=0"] for i in range(3)] == [0, 15, 30]


class TestReleasedBy:
    def test_the_last_thing_waited_for_is_named(self):
        graph, chip = chip_graph()
        chip.pool("p", memory="vmem", buffers=1, buffer_bytes=1)
        chip.task("nothing", unit="hbm", work=Fixed(4), takes=[Take("p", [])])
        chip.task("queue", unit="hbm", work=Fixed(4))
        chip.task("dependency", unit="mxu", work=Fixed(4), after=["nothing", "queue"])
        chip.task("buffer", takes=[Take("p", [])])
        chip.task("start", after=[Ref("queue", event="start", lag_ps=1)])
        assert spans(graph)[1] == {
            "nothing": ("NOTHING", None),
            "queue": ("UNIT", "nothing"),
            "dependency": ("DEPENDENCY", "queue"),
            "buffer": ("BUFFER", "nothing"),
            "start": ("DEPENDENCY", "queue"),
        }

    def test_a_turn_in_a_queue_that_came_last(self):
        graph, chip = chip_graph()
        chip.task("tick", work=Fixed(5))
        chip.task("a", unit="hbm", queue="q", work=Fixed(9), after=["tick"])
        chip.task("b", unit="mxu", queue="q", work=Fixed(1))
        times, released = spans(graph)
        assert times["b"] == (5, 5, 5, 6, 6)
        assert released["b"] == ("QUEUE", "a")

    def test_of_two_that_end_together_the_later_in_the_program_is_the_last(self):
        graph, chip = chip_graph()
        chip.task("a", work=Fixed(5))
        chip.task("b", work=Fixed(5))
        chip.task("c", after=["b", "a"])
        assert spans(graph)[1]["c"] == ("DEPENDENCY", "b")


class TestDeadlock:
    def message(self, graph):
        with pytest.raises(DeadlockError) as error:
            run(graph)
        return str(error.value)

    def test_a_buffer_that_is_never_freed_names_its_holder(self):
        graph, chip = chip_graph()
        chip.pool("p", memory="vmem", buffers=1, buffer_bytes=1)
        chip.task("keeper", unit="hbm", work=Fixed(1), takes=[Take("p", None)])
        chip.task("waiter", unit="mxu", work=Fixed(1), takes=[Take("p", [])])
        assert self.message(graph) == (
            "the simulation of 'test' can't go on: 1 of 2 tasks wait\n"
            "  waiter on chip waits for a buffer of pool 'p', held by keeper on chip to the end of the run"
        )

    def test_a_buffer_freed_by_a_task_behind_the_waiter_names_that_task(self):
        graph, chip = chip_graph()
        chip.pool("p", memory="vmem", buffers=1, buffer_bytes=1)
        chip.task("a", takes=[Take("p", ["c"])])
        chip.task("b", takes=[Take("p", [])])
        chip.task("d", takes=[Take("p", [])])
        chip.task("c", after=["b"])
        message = self.message(graph)
        assert "b on chip waits for a buffer of pool 'p', held by a on chip until c on chip is done" in message
        assert "d on chip waits for its turn in pool 'p', which is that of b on chip" in message
        assert "c on chip waits for b on chip" in message

    def test_a_cycle_and_a_queue_and_a_start_are_named(self):
        graph, chip = chip_graph()
        chip.task("a", unit="hbm", after=["b"])
        chip.task("b", unit="hbm")
        chip.task("c", after=[Ref("a", event="start")])
        message = self.message(graph)
        assert "a on chip waits for b on chip" in message
        assert "b on chip waits for the start of a on chip, which is before it in its queue" in message
        assert "c on chip waits for the start of a on chip" in message

    def test_many_waiters_are_counted_and_the_first_shown(self):
        graph, chip = chip_graph()
        chip.task("never", after=["never"])
        with chip.loop("i", 100):
            chip.task("t", after=["never"])
        message = self.message(graph)
        assert "101 of 101 tasks wait" in message
        assert message.endswith("... and 95 more")

    def test_a_unit_that_another_process_keeps_is_named(self):
        graph, chip = chip_graph(("hbm",))
        chip.task("a", unit="hbm", work=Fixed(1))
        env = simpy.Environment()
        hbm = simpy.Resource(env)
        hbm.request()
        engine = SimpyEngine(flat_of(graph), env, [hbm])
        env.run()
        with pytest.raises(DeadlockError, match=r"a on chip waits for unit 'hbm'.* outside the graph holds"):
            engine.schedule()


class TestClosedForms:
    @pytest.mark.parametrize("tiles", [*range(10), 64, 1000])
    @pytest.mark.parametrize("buffers", [1, 2, 3])
    @pytest.mark.parametrize(
        ("load", "compute", "issue"), [(50, 25, 0), (25, 50, 0), (30, 30, 0), (17, 40, 5), (40, 17, 5)]
    )
    def test_tiles_take_the_slower_side_once_each_and_the_other_once(self, tiles, buffers, load, compute, issue):
        graph, chip = chip_graph()
        chip.pool("p", memory="vmem", buffers=buffers, buffer_bytes=1)
        with chip.loop("tile", tiles):
            chip.task("load", unit="hbm", work=Fixed(load), issue_ps=issue, takes=[Take("p", ["compute"])])
            chip.task("compute", unit="mxu", work=Fixed(compute), after=["load"])
        a = load + issue
        wanted = tiles * (a + compute) if buffers == 1 else tiles * max(a, compute) + min(a, compute) * (tiles > 0)
        assert simulate(flat_of(graph)).makespan_ps == wanted == pipeline_ps(tiles, load, compute, buffers, issue)

    @pytest.mark.parametrize("tiles", [1, 2, 4, 8, 16, 32, 64, 128])
    def test_an_issue_cost_makes_the_best_number_of_tiles_finite(self, tiles):
        load, compute, issue = 400_000_000, 200_000_000, 1_000_000
        graph, chip = chip_graph()
        chip.pool("p", memory="vmem", buffers=2, buffer_bytes=1)
        with chip.loop("tile", tiles):
            chip.task("load", unit="hbm", work=Fixed(load // tiles), issue_ps=issue, takes=[Take("p", ["compute"])])
            chip.task("compute", unit="mxu", work=Fixed(compute // tiles), after=["load"])
        makespan = simulate(flat_of(graph)).makespan_ps
        assert makespan == load + compute // tiles + tiles * issue
        assert (makespan == 428_500_000) == (tiles == 16)
        assert makespan >= 428_500_000
