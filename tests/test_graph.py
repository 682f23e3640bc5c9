"""Building, unrolling and validating task graphs."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from simcore.errors import GraphError, RaceError
from simcore.graph import (
    ALL,
    BufferAccess,
    Fixed,
    Matmul,
    Ref,
    Take,
    TaskGraph,
    TensorAccess,
    Transfer,
    Vector,
    resolve,
)
from simcore.graph.validate import validate
from tests.random_graphs import flat_of, random_graph


def chip_graph(units=("hbm", "mxu"), **options):
    graph = TaskGraph("test")
    chip = graph.entity_class("chip", **options)
    for unit in units:
        chip.unit(unit)
    return graph, chip


def edges(flat):
    return {(flat.label(i), flat.label(j)) for i in range(len(flat)) for j in flat.dependents.row(i).tolist()}


def labels(flat):
    return [flat.label(i) for i in range(len(flat))]


class TestOrder:
    def test_instances_are_numbered_by_place_in_the_unrolled_program_and_the_chip_comes_last(self):
        graph, chip = chip_graph(mesh={"x": 2})
        chip.task("first")
        with chip.loop("tile", 2):
            chip.task("load")
            with chip.loop("part", 2):
                chip.task("compute")
        chip.task("last")
        bare = [label.split(" on ")[0] for label in labels(flat_of(graph))]
        assert (
            bare[::2]
            == bare[1::2]
            == [
                "first",
                "load[tile=0]",
                "compute[tile=0, part=0]",
                "compute[tile=0, part=1]",
                "load[tile=1]",
                "compute[tile=1, part=0]",
                "compute[tile=1, part=1]",
                "last",
            ]
        )
        assert [label.split("x=")[1] for label in labels(flat_of(graph))] == ["0", "1"] * 8

    def test_between_classes_an_iteration_stays_together_however_many_tasks_each_class_has(self):
        graph = TaskGraph("classes")
        for name, tasks in (("long", 3), ("short", 1)):
            cls = graph.entity_class(name)
            with cls.loop("layer", 3):
                for number in range(tasks):
                    cls.task(f"t{number}")
        layers = [flat_of(graph).indices(i)["layer"] for i in range(12)]
        assert layers == sorted(layers)

    def test_places_that_do_not_fit_one_64_bit_column_sort_the_same(self, monkeypatch):
        graphs = [random_graph(Random(seed)) for seed in range(20)]
        one_column = [labels(flat_of(graph)) for graph in graphs]
        monkeypatch.setattr(resolve, "LARGEST_CODE", 10)
        assert [labels(flat_of(graph)) for graph in graphs] == one_column


class TestReferences:
    def test_a_shared_loop_means_the_same_iteration_and_a_number_is_an_offset(self):
        graph, chip = chip_graph()
        with chip.loop("i", 3):
            chip.task("a")
            chip.task("b", after=["a", Ref("b", at={"i": -1}, outside="ignore")])
        assert edges(flat_of(graph)) == {
            *((f"a[i={i}] on chip", f"b[i={i}] on chip") for i in range(3)),
            *((f"b[i={i}] on chip", f"b[i={i + 1}] on chip") for i in range(2)),
        }

    def test_any_other_loop_means_all_iterations_or_the_one_that_is_told(self):
        graph, chip = chip_graph()
        with chip.loop("i", 3):
            chip.task("a")
        chip.task("all", after=["a"])
        chip.task("also_all", after=[Ref("a", at={"i": ALL})])
        chip.task("second", after=[Ref("a", at={"i": 1})])
        chip.task("last", after=[Ref("a", at={"i": np.int64(-1)})])
        with chip.loop("j", 3):
            chip.task("mirror", after=[Ref("a", at={"i": lambda i, c: 2 - i["j"]})])
        assert edges(flat_of(graph)) == {
            *((f"a[i={i}] on chip", f"{name} on chip") for i in range(3) for name in ("all", "also_all")),
            ("a[i=1] on chip", "second on chip"),
            ("a[i=2] on chip", "last on chip"),
            *((f"a[i={2 - j}] on chip", f"mirror[j={j}] on chip") for j in range(3)),
        }

    @pytest.mark.parametrize("wraps", [True, False])
    def test_a_chip_offset_wraps_on_a_ring_and_falls_off_a_line(self, wraps):
        graph, chip = chip_graph(mesh={"x": 3}, wraps=wraps)
        chip.task("a")
        chip.task("b", after=[Ref("a", on={"x": 1}, outside="ignore")])
        wanted = {(f"a on chip x={(x + 1) % 3}", f"b on chip x={x}") for x in range(3 if wraps else 2)}
        assert edges(flat_of(graph)) == wanted

    def test_offsets_of_iteration_and_chip_go_together(self):
        graph, chip = chip_graph(mesh={"x": 2, "y": 3})
        with chip.loop("s", 2):
            chip.task("send", after=[Ref("send", at={"s": -1}, on={"y": -1}, outside="ignore")])
        assert edges(flat_of(graph)) == {
            (f"send[s=0] on chip x={x} y={(y - 1) % 3}", f"send[s=1] on chip x={x} y={y}")
            for x in range(2)
            for y in range(3)
        }

    def test_an_offset_leads_from_one_class_into_another_over_the_same_axes(self):
        graph = TaskGraph("line")
        ends = graph.entity_class("end", mesh={"x": 4}, wraps=False, only=[(0,), (3,)])
        middle = graph.entity_class("middle", mesh={"x": 4}, wraps=False, only=[(1,), (2,)])
        ends.task("a")
        middle.task("a", after=[Ref("a", on={"x": -1})])
        assert edges(flat_of(graph)) == {
            ("a on end x=0", "a on middle x=1"),
            ("a on middle x=1", "a on middle x=2"),
        }

    def test_a_class_that_is_named_excludes_others_at_the_same_place(self):
        graph = TaskGraph("line")
        first = graph.entity_class("first", mesh={"x": 2}, only=[(0,)])
        second = graph.entity_class("second", mesh={"x": 2}, only=[(1,)])
        first.task("a")
        second.task("a", after=[Ref("a", on={"x": 1}, cls="second", outside="ignore")])
        first.task("b", after=[Ref("a", on={"x": 1}, cls="second")])
        assert edges(flat_of(graph)) == {("a on second x=1", "b on first x=0")}

    def test_a_chip_finds_its_host_by_a_function(self):
        graph = TaskGraph("hosts")
        host = graph.entity_class("host", kind="host", mesh={"h": 2})
        chip = graph.entity_class("chip", mesh={"x": 4})
        host.task("feed")
        chip.task("use", after=[Ref("feed", cls="host", onto=lambda c: {"h": c["x"] // 2})])
        assert edges(flat_of(graph)) == {(f"feed on host h={x // 2}", f"use on chip x={x}") for x in range(4)}

    def test_a_reference_outside_is_an_error_unless_it_may_be_ignored(self):
        graph, chip = chip_graph()
        with chip.loop("i", 3):
            chip.task("a", after=[Ref("a", at={"i": -1})])
        with pytest.raises(GraphError, match=r"'a': its reference to 'a' falls outside at i=0.*outside=\"ignore\""):
            flat_of(graph)

    def test_a_guarded_task_is_not_there_and_references_to_it_fall_outside(self):
        graph, chip = chip_graph(mesh={"x": 3})
        chip.task("a", when=lambda i, c: c["x"] > 0)
        chip.task("b", after=[Ref("a", outside="ignore")])
        assert edges(flat_of(graph)) == {(f"a on chip x={x}", f"b on chip x={x}") for x in (1, 2)}
        chip.task("c", after=["a"])
        with pytest.raises(GraphError, match="falls outside"):
            flat_of(graph)

    def test_a_misspelt_task_is_an_error_even_where_references_may_fall_outside(self):
        graph, chip = chip_graph(mesh={"x": 1}, wraps=False)
        chip.task("load")
        for reference in (Ref("laod", outside="ignore"), Ref("laod", on={"x": 1}, outside="ignore")):
            chip.task(f"use{len(chip.tasks)}", after=[reference])
            with pytest.raises(GraphError, match=r"unknown task 'laod', did you mean load\?"):
                flat_of(graph)
            chip.tasks.popitem()
            chip.body.pop()

    @pytest.mark.parametrize(
        ("reference", "message"),
        [
            (Ref("a", at={"tiel": 0}), r"names the loop 'tiel', which is not around it, did you mean tile\?"),
            (Ref("a", at={"tile": "first"}), "has 'first' for the loop 'tile'"),
            (Ref("a", on={"y": 1}), "unknown axis 'y'"),
            (Ref("a", cls="chp"), r"unknown class 'chp', did you mean chip\?"),
            (Ref("a", event="start", lag_ps=-1), "a lag of -1 ps"),
            (Ref("a", lag_ps=5), 'a lag is for event="start"'),
            (Ref("a", event="end"), "unknown event 'end'"),
        ],
    )
    def test_references_that_make_no_sense_say_so(self, reference, message):
        graph, chip = chip_graph(mesh={"x": 2})
        with chip.loop("tile", 2):
            chip.task("a")
        chip.task("b", after=[reference])
        with pytest.raises(GraphError, match=message):
            flat_of(graph)

    def test_which_of_another_class_s_entities_must_be_said(self):
        graph = TaskGraph("two")
        for name in ("a", "b"):
            graph.entity_class(name, mesh={name: 2})
        graph.classes["a"].task("t")
        graph.classes["b"].task("u", after=[Ref("t", cls="a")])
        with pytest.raises(GraphError, match="must say which of the 2 entities"):
            flat_of(graph)


class TestWork:
    def test_an_amount_may_differ_by_iteration(self):
        graph, chip = chip_graph()
        with chip.loop("i", 2), chip.loop("j", 3):
            chip.task("a", unit="hbm", work=Transfer(np.array([[1], [2]]) * np.array([819, 819, 81])))
        flat = flat_of(graph)
        assert flat.bytes.tolist() == [819, 819, 81, 1638, 1638, 162]
        assert (flat.duration_ps > 0).all()

    def test_the_ideal_model_leaves_overhead_out_and_the_order_of_its_queue_with_it(self):
        graph, chip = chip_graph(("vpu",))
        chip.task("add", unit="vpu", work=Vector(10**6, 10**6), overhead=True)
        assert flat_of(graph, ideal=True).duration_ps.tolist() == [0]
        assert flat_of(graph, ideal=True).unit.tolist() == [-1]
        assert flat_of(graph, ideal=False).duration_ps[0] > 0

    def test_a_transfer_of_nothing_pays_no_issue_cost_and_has_no_flight(self):
        graph, chip = chip_graph(("hbm", "ici_x+"))
        with chip.loop("i", 2):
            chip.task("a", unit="hbm", work=Transfer(np.array([0, 1])), issue_ps=None)
            chip.task("b", unit="ici_x+", work=Transfer(np.array([0, 1])))
        flat = flat_of(graph, ideal=False)
        assert (flat.duration_ps[:2] == 0).all()
        assert (flat.latency_ps[:2] == 0).all()
        assert flat.latency_ps[3] == 10**6

    @pytest.mark.parametrize(
        ("unit", "work", "message"),
        [
            ("hbm", Transfer(-1), "negative work"),
            ("mxu", Matmul(8, -8, 8), "negative work"),
            ("mxu", Fixed(-5), "negative work"),
            ("mxu", Fixed(0.5), "whole numbers"),
            ("mxu", Transfer(8), "'t': a unit of kind 'mxu' can't serve Transfer; it serves Matmul or Fixed"),
            (None, Transfer(8), r"'t' \(it has no unit\)"),
            ("hbm", Transfer(np.array([1, 2, 3])), "do not fit its loops"),
            ("mxu", Matmul(8, 8, 8, "fp4"), "has no fp4 matmul rate"),
        ],
    )
    def test_work_that_its_unit_cannot_serve(self, unit, work, message):
        graph, chip = chip_graph()
        with chip.loop("i", 2):
            chip.task("t", unit=unit, work=work)
        with pytest.raises(GraphError, match=message):
            flat_of(graph)

    @pytest.mark.parametrize("cost", ["issue_ps", "latency_ps"])
    def test_costs_are_not_negative(self, cost):
        graph, chip = chip_graph()
        chip.task("t", unit="hbm", work=Transfer(1), **{cost: -1})
        with pytest.raises(GraphError, match="of -1 ps; 0 or more"):
            flat_of(graph)


class TestDeclarations:
    def test_names_are_unique_and_known(self):
        graph, chip = chip_graph()
        chip.task("t", unit="hbm")
        chip.pool("p", memory="vmem", buffers=1, buffer_bytes=8)
        chip.tensor("w", bytes=8)
        with chip.loop("i", 2):
            pass
        for make, message in (
            (lambda: chip.task("t"), "task 't' of class 'chip' is already declared"),
            (lambda: chip.task("u", unit="hmb"), r"unknown unit 'hmb', did you mean hbm\?"),
            (lambda: chip.task("u", takes=[Take("q", [])]), "unknown pool 'q', known: p"),
            (lambda: chip.task("u", after="t"), "'u': after is a list of references"),
            (lambda: chip.task("u", takes=[Take("p", "t")]), "'u': freed_by is a list of references"),
            (lambda: chip.pool("p", memory="vmem", buffers=1, buffer_bytes=8), "already declared"),
            (lambda: chip.pool("q", memory="vmem", buffers=0, buffer_bytes=8), "at least 1 buffer"),
            (lambda: chip.tensor("w", bytes=8), "already declared"),
            (lambda: chip.tensor("v", bytes=-8), "a size is 0 or more"),
            (lambda: chip.unit("hbm", kind="dcn"), "already declared with another kind"),
            (lambda: chip.unit("warp"), "unknown kind 'warp'"),
            (lambda: graph.entity_class("chip"), "already declared"),
            (lambda: graph.entity_class("c", mesh={"x": 0}), "a size is 1 or more"),
            (lambda: chip.loop("i", 2).__enter__(), "already used"),
            (lambda: chip.loop("j", -1).__enter__(), "0 or more"),
        ):
            with pytest.raises(GraphError, match=message):
                make()

    def test_classes_may_not_own_the_same_coordinates(self):
        graph = TaskGraph("t")
        graph.entity_class("a", mesh={"x": 2}, only=[(0,)])
        with pytest.raises(GraphError, match="own the same coordinates"):
            graph.entity_class("b", mesh={"x": 2})
        with pytest.raises(GraphError, match="listed twice"):
            graph.entity_class("d", mesh={"x": 2}, only=[(1,), (1,)])
        with pytest.raises(GraphError, match=r"wraps names an unknown axis 'z', known: x"):
            graph.entity_class("e", mesh={"x": 2}, wraps={"z": False})
        with pytest.raises(GraphError, match="outside the mesh"):
            graph.entity_class("c", mesh={"x": 2}, only=[(5,)])

    def test_an_undeclared_tensor_is_found_with_the_nearest_name(self):
        graph, chip = chip_graph()
        chip.tensor("weights", bytes=8)
        chip.task("t", reads=[TensorAccess("wieghts")])
        with pytest.raises(GraphError, match=r"undeclared tensor 'wieghts', did you mean weights\?"):
            flat_of(graph)

    def test_a_guard_must_work_on_arrays(self):
        graph, chip = chip_graph()
        with chip.loop("i", 3), chip.loop("j", 3):
            chip.task("t", when=lambda i, c: i["i"] > 0 and i["j"] > 0)
        with pytest.raises(GraphError, match="its guard must work on arrays"):
            flat_of(graph)

    def test_a_graph_of_nothing_and_a_loop_of_none_are_fine(self):
        assert len(flat_of(TaskGraph("empty"))) == 0
        graph, chip = chip_graph()
        with chip.loop("i", 0):
            chip.task("never", unit="hbm", work=Transfer(8))
        chip.task("after", after=["never"])
        assert labels(flat_of(graph)) == ["after on chip"]
        assert graph.task_count() == 1


class TestValidate:
    def test_a_cycle_is_named_from_end_to_end(self):
        graph, chip = chip_graph()
        chip.task("a", after=["c"])
        chip.task("b", after=["a"])
        chip.task("c", after=["b"])
        chip.task("d", after=["c"])
        with pytest.raises(GraphError, match="cycle: a on chip waits for c on chip waits for b on chip waits for a"):
            validate(graph)

    def test_a_cycle_through_the_order_of_a_queue_is_one_too(self):
        graph, chip = chip_graph()
        chip.task("first", unit="hbm", after=["second"])
        chip.task("second", unit="hbm")
        with pytest.raises(GraphError, match="first on chip waits for second on chip waits for first"):
            validate(graph)

    def test_a_task_that_waits_for_itself(self):
        graph, chip = chip_graph()
        chip.task("a", after=["a"])
        with pytest.raises(GraphError, match="a on chip waits for a on chip"):
            validate(graph)

    def test_a_long_cycle_is_cut_in_the_middle(self):
        graph, chip = chip_graph()
        for number in range(30):
            chip.task(f"t{number}", after=[f"t{(number + 1) % 30}"])
        with pytest.raises(GraphError, match=r"\.\.\. waits for t0 on chip"):
            validate(graph)

    def test_pools_must_fit_their_memory_together(self):
        graph, chip = chip_graph()
        chip.pool("a", memory="vmem", buffers=2, buffer_bytes=2**26)
        chip.pool("b", memory="vmem", buffers=1, buffer_bytes=1)
        with pytest.raises(GraphError, match=r"pools of class 'chip' need .* of vmem, chip v5e has .*a 2 x 64 MiB"):
            validate(graph)

    def test_a_task_may_not_take_more_buffers_than_there_are(self):
        graph, chip = chip_graph()
        chip.pool("p", memory="vmem", buffers=1, buffer_bytes=1)
        chip.task("t", takes=[Take("p", []), Take("p", [])])
        with pytest.raises(GraphError, match="takes 2 buffers of pool 'p', which has 1"):
            validate(graph)

    def test_races_are_found_too(self):
        graph, chip = chip_graph()
        chip.pool("p", memory="vmem", buffers=2, buffer_bytes=1)
        load = chip.task("load", unit="hbm", takes=[Take("p", [])], writes=[BufferAccess("p")])
        chip.task("use", unit="mxu", after=[load], reads=[BufferAccess("p", load.ref())])
        with pytest.raises(RaceError, match="may be freed before it is done: name it in freed_by"):
            validate(graph)
        validate(graph, races=False)
