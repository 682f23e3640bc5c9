"""Folding is exact: one chip in place of many has the times of each of them, to the picosecond."""

from random import Random

import numpy as np
import pytest

from simcore.chips import load_chip
from simcore.collectives import RingTensor
from simcore.collectives.auto import collective
from simcore.engine.folding import fold
from simcore.graph import Fixed, Ref, TaskGraph
from simcore.lowering import LoweringOptions, lower
from simcore.running import run
from simcore.scenario import run_scenario
from tests.random_graphs import UNITS, _fill, flat_of, play
from workloads.catalogue import load_model
from workloads.transformer import model_step

COLUMNS = ("ready_ps", "granted_ps", "start_ps", "end_ps", "done_ps")


def random_rings(rng: Random) -> TaskGraph:
    """Chips of a ring or a torus that all run one random program."""
    graph = TaskGraph("rings")
    mesh = {"x": rng.randint(2, 4)} | ({"y": rng.randint(2, 3)} if rng.random() < 0.4 else {})
    cls = graph.entity_class("chip", mesh=mesh)
    for unit in UNITS:
        cls.unit(unit)
    cls.pool("p", memory="vmem", buffers=rng.randint(1, 3), buffer_bytes=8)
    cls.pool("r", memory="vmem", buffers=rng.randint(1, 2), buffer_bytes=8)
    _fill(rng, cls, [f"t{number}" for number in range(8)], 0)
    return graph


def test_random_programs_take_the_same_time_folded_and_in_full():
    compared = 0
    for seed in range(400):
        graph = random_rings(Random(seed))
        folded = fold(graph)
        if not folded.alike or not any(folded.alike.values()):
            continue
        whole, few = flat_of(graph), flat_of(folded.graph)
        chips = len(whole.entities) // len(few.entities)
        engines = [play(flat) for flat in (whole, few)]
        assert engines[0].finished == chips * engines[1].finished, seed
        if engines[1].finished < len(few):  # a deadlock, of all chips alike
            continue
        schedules = [engine.schedule() for engine in engines]
        for name in COLUMNS:
            full, one = (getattr(schedule, name) for schedule in schedules)
            np.testing.assert_array_equal(full, np.repeat(one, chips), err_msg=f"seed {seed}: {name}")
        compared += 1
    assert compared > 40


def both_ways(graph, **options):
    full, one = (run(graph, reduce=reduce, **options) for reduce in (False, True))
    for name in (
        "time_s", "busy_s", "bounds_s", "exposed_s", "overlap_s", "memory_peak_bytes", "flops", "vector_operations",
        "bytes", "bytes_by_tensor", "chips", "tasks_represented",
    ):  # fmt: skip
        assert getattr(full, name) == getattr(one, name), name
    assert full.tasks == full.tasks_represented
    return full, one


@pytest.mark.parametrize("ideal", [False, True])
@pytest.mark.parametrize("kind", ["AllGather", "ReduceScatter", "AllReduce", "AllToAll"])
@pytest.mark.parametrize("direction", ["one_way", "both"])
def test_collectives_on_a_torus_fold_to_one_chip(kind, direction, ideal):
    graph = TaskGraph("collective")
    cls = graph.entity_class("chip", mesh={"x": 4, "y": 3})
    for name in ("array", "out"):
        cls.tensor(name, bytes=12 * 4096, shape=(12 * 1024,))
    tensor = RingTensor("array", 4096, 4, memory="hbm")
    collective(cls, "c", kind, ("x", "y"), tensor, chip="v5e", direction=direction, out="out")
    full, one = both_ways(graph, chip="v5e", ideal=ideal)
    assert one.tasks * 12 == full.tasks
    assert one.timeline.entities[0].multiplicity == 12
    assert set(one.timeline.entities[0].each()) == {(x, y) for x in range(4) for y in range(3)}


@pytest.mark.parametrize("plan", ["tensor=4", "fsdp=2,tensor=2,sequence", "data=2,tensor2=2"])
@pytest.mark.parametrize("mode", ["decode", "prefill"])
def test_a_model_under_a_plan_folds_to_one_chip(plan, mode):
    ops = model_step(load_model("tiny"), mode, batch=4, context=64, plan=plan)
    full, one = both_ways(lower(ops, load_chip("v5e")), chip="v5e")
    assert one.tasks * 4 == full.tasks


def test_a_line_is_not_folded_and_the_axis_beside_it_is():
    ops = model_step(load_model("tiny"), "decode", batch=4, context=64, plan="data=2,tensor=4")
    graph = lower(ops, load_chip("v5e"), LoweringOptions(lines=frozenset({"tensor"})))
    assert fold(graph).why == ("axis tensor: it does not wrap around",)
    full, one = both_ways(graph, chip="v5e")
    assert one.tasks * 2 == full.tasks
    alone = lower(ops, load_chip("v5e"), LoweringOptions(lines=frozenset({"data"})))
    assert fold(alone).why == ()  # nothing goes along the axis, so that its ends do not matter
    assert [entity.label for entity in one.timeline.entities] == [f"chip data=0 tensor={t}" for t in range(4)]


def line_of_two(**options):
    graph = TaskGraph("two")
    cls = graph.entity_class("chip", mesh={"x": 4}, **options)
    cls.unit("mxu")
    return graph, cls


def test_a_straggler_is_not_folded_away():
    graph, cls = line_of_two()
    cls.task("work", unit="mxu", work=Fixed.of("1us"))
    cls.task("more", unit="mxu", work=Fixed.of("1us"), when=lambda i, c: c["x"] == 2)
    assert fold(graph).why == ("axis x: task 'more' has a guard that depends on the coordinate",)
    assert run(graph).tasks == 5


def test_a_guard_that_looks_at_the_coordinate_and_does_not_depend_on_it_is_folded():
    graph, cls = line_of_two()
    cls.task("work", unit="mxu", work=Fixed.of("1us"), when=lambda i, c: c["x"] >= 0)
    assert run(graph).tasks == 1


def test_a_wait_whose_iteration_depends_on_the_coordinate_is_not_folded():
    graph, cls = line_of_two()
    with cls.loop("step", 4):
        cls.task("first", unit="mxu", work=Fixed.of("1us"))
    cls.task("last", after=[Ref("first", at={"step": lambda i, c: c["x"]})])
    assert fold(graph).why == ("axis x: task 'last' has a reference that depends on the coordinate",)


def test_classes_that_share_the_axis_are_not_folded():
    graph = TaskGraph("two")
    for name, at in (("first", [(0,)]), ("others", [(1,), (2,)])):
        cls = graph.entity_class(name, mesh={"x": 3}, only=at)
        cls.unit("mxu")
        cls.task("work", unit="mxu", work=Fixed.of("1us"))
    assert fold(graph).why == ("axis x: first has not all of its coordinates",)


def test_a_large_ring_costs_no_more_than_one_chip():
    result = run_scenario("ring_allgather", ideal=True, parameters={"ring": 256})
    assert (result.tasks_represented, result.chips) == (256 * result.tasks, 256)
