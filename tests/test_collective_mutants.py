"""Deliberately broken schedules are caught: a dropped dependency, a buffer reused early, a skipped reduction."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simcore.collectives import RingTensor, direct, doubling, in_network, line, one_shot, ring, torus, tree
from simcore.collectives.all_to_all import all_to_all
from simcore.collectives.broadcast import broadcast, reduce
from simcore.collectives.moving import port
from simcore.collectives.permute import collective_permute
from simcore.errors import RaceError
from simcore.graph import Fixed, TaskGraph, TensorAccess
from simcore.graph.access import WithIndices
from simcore.graph.races import check_races
from simcore.graph.values import execute
from tests.collective_checks import flat_on

NVLINK = port("nvlink")
T = RingTensor("t", 16, 8)
WHOLE = RingTensor("t", 64, 8)
"""Of 4 chips: shards of 2 elements, and the whole array."""

ALGORITHMS = {
    "ring AllGather": lambda c, after: ring.all_gather(c, "c", "x", T, direction="both", after=after),
    "ring ReduceScatter": lambda c, after: ring.reduce_scatter(c, "c", "x", T, after=after),
    "ring AllReduce both ways": lambda c, after: ring.all_reduce(c, "c", "x", T, direction="both", after=after),
    "uneven AllReduce": lambda c, after: ring.all_reduce(
        c, "c", "x", RingTensor.uneven("t", (3, 2, 2, 1), 8), after=after
    ),
    "AllReduce in HBM": lambda c, after: ring.all_reduce(c, "c", "x", RingTensor("t", 16, 8, (), "hbm"), after=after),
    "one shot": lambda c, after: one_shot.all_reduce(c, "c", "x", T, after=after),
    "AllToAll": lambda c, after: all_to_all(c, "c", "x", T, "out", direction="both", after=after),
    "CollectivePermute": lambda c, after: collective_permute(c, "c", "x", WHOLE, "out", shift=2, after=after),
    "Broadcast": lambda c, after: broadcast(c, "c", "x", WHOLE, root=1, chunks=3, after=after),
    "Reduce": lambda c, after: reduce(c, "c", "x", WHOLE, root=1, direction="both", chunks=2, after=after),
    "direct AllReduce": lambda c, after: direct.all_reduce(c, "c", "x", T, NVLINK, after),
    "direct ReduceScatter": lambda c, after: direct.reduce_scatter(c, "c", "x", T, NVLINK, after),
    "direct AllToAll": lambda c, after: direct.all_to_all(c, "c", "x", T, "out", NVLINK, after),
    "halving": lambda c, after: doubling.reduce_scatter(c, "c", "x", T, NVLINK, after),
    "doubling": lambda c, after: doubling.all_gather(c, "c", "x", T, NVLINK, after),
    "tree": lambda c, after: tree.all_reduce(c, "c", "x", T, NVLINK, after=after),
    "in network": lambda c, after: in_network.all_reduce(c, "c", "x", T, NVLINK, after),
}
ON_LINES = {
    "line AllReduce": lambda c, after: line.all_reduce(c, "c", "x", T, after=after),
    "line AllToAll": lambda c, after: all_to_all(c, "c", "x", T, "out", after=after),
    "line Reduce": lambda c, after: reduce(c, "c", "x", WHOLE, root=1, chunks=2, after=after),
}
TORUS = {
    "torus ReduceScatter": lambda c, after: torus.reduce_scatter(c, "c", ("x", "y"), T, after=after),
    "torus AllToAll": lambda c, after: all_to_all(c, "c", ("x", "y"), T, "out", after=after),
}
ALL = [*ALGORITHMS, *ON_LINES, *TORUS]


def produced_and_used(name):
    """An algorithm between a task that makes its input on every chip and one that uses its output."""
    graph = TaskGraph("mutant")
    mesh = {"x": 2, "y": 2} if name in TORUS else {"x": 4}
    cls = graph.entity_class("chip", mesh=mesh, wraps=name not in ON_LINES)
    for tensor in ("t", "out", "used"):
        cls.tensor(tensor, bytes=64, shape=(8,))
    make = {**ALGORITHMS, **ON_LINES, **TORUS}[name]
    cls.task("make", work=Fixed(3), writes=[TensorAccess("t")], function=WithIndices(made_by))
    end = make(cls, ["make"])
    source = "out" if any(_writes(task, "out") for task in cls.tasks.values()) else "t"
    cls.task("use", after=[end], reads=[TensorAccess(source)], writes=[TensorAccess("used")], function=lambda a: a)
    return graph, cls


def made_by(_, chip):
    """Another array on every chip."""
    return np.arange(1.0, 9.0) + 10 * chip["x"] + 100 * chip.get("y", 0)


def _writes(task, tensor):
    return any(access.tensor == tensor for access in task.writes)


def values_of(graph, seed):
    chip = "H100" if any(unit.kind == "nvlink" for unit in graph.classes["chip"].units.values()) else "v5e"
    flat = flat_on(graph, True, chip)
    if seed == 0:
        check_races(flat)
    return {key: array for key, array in execute(flat, {}, seed=seed).items() if key[1] == "used"}


@pytest.mark.parametrize("name", ALL)
def test_a_dropped_dependency_is_caught_wherever_it_gives_wrong_values(name):
    whole, cls = produced_and_used(name)
    right = values_of(whole, 0)
    places = [(task, place) for task in cls.tasks for place in range(len(cls.tasks[task].after))]
    caught = 0
    for task, place in places:
        graph, mutant = produced_and_used(name)
        after = mutant.tasks[task].after
        mutant.tasks[task].after = after[:place] + after[place + 1 :]
        try:
            got = [values_of(graph, seed) for seed in range(2)]
        except RaceError:
            caught += 1
            continue
        for values in got:
            assert all(np.array_equal(values[key], right[key], equal_nan=True) for key in right), (task, place)
    assert caught >= len(places) / 5


@pytest.mark.parametrize("name", [name for name in ALL if "Reduce" in name or name in ("one shot", "halving", "tree")])
def test_a_skipped_reduction_gives_wrong_values(name):
    whole, cls = produced_and_used(name)
    right = values_of(whole, 0)
    adds = [task.name for task in cls.tasks.values() if ".add" in task.name and task.function is not None]
    assert adds
    for add in adds:
        graph, mutant = produced_and_used(name)
        writes = len(mutant.tasks[add].writes)
        mutant.tasks[add].function = lambda *parts, writes=writes: parts[:writes]
        values = values_of(graph, 0)
        assert not all(np.array_equal(values[key], right[key]) for key in right), add


class TestABufferReusedEarly:
    def test_an_inbox_of_a_slot_too_few_races(self):
        """Block i + 1 comes in where block i may not have been added yet."""
        graph, cls = produced_and_used("ring ReduceScatter")
        first = (slice(0, 2),)
        for task in ("c.send+", "c.add+"):
            mutant = cls.tasks[task]
            mutant.reads = _in_one_slot(mutant.reads, first)
            mutant.writes = _in_one_slot(mutant.writes, first)
        with pytest.raises(RaceError, match=r"race on tensor 'c\.inbox\+'"):
            values_of(graph, 0)

    def test_a_sender_that_does_not_wait_for_its_slot_races(self):
        graph = TaskGraph("t")
        cls = graph.entity_class("chip", mesh={"x": 5})
        cls.tensor("t", bytes=80, shape=(10,), persistent=True)
        ring.reduce_scatter(cls, "c", "x", T)
        check_races(flat_on(graph))
        send = cls.tasks["c.send+"]
        waits = [ref for ref in send.after if ref.at.get("c.step") == -2]
        assert len(waits) == 1
        send.after = tuple(ref for ref in send.after if ref not in waits)
        with pytest.raises(RaceError, match=r"race on tensor 'c\.inbox\+'"):
            check_races(flat_on(graph))

    @pytest.mark.parametrize("name", ["AllToAll", "CollectivePermute"])
    def test_a_transit_slot_that_is_still_being_sent_on_races(self, name):
        graph, cls = _of_eight(name)
        check_races(flat_on(graph))
        send = cls.tasks["c.send+"]
        # What waits for the next chip's own send: of the same task, on the chip that is sent to.
        send.after = tuple(ref for ref in send.after if not (ref.task == "c.send+" and ref.on == {"x": 1}))
        with pytest.raises(RaceError, match=r"race on tensor 'c\.transit\+'"):
            check_races(flat_on(graph))

    def test_a_source_that_is_overwritten_while_it_is_sent_races(self):
        graph, cls = produced_and_used("ring AllGather")
        cls.task("again", after=["make"], writes=[TensorAccess("t")], function=lambda: np.zeros(8))
        with pytest.raises(RaceError, match="race on tensor 't'"):
            values_of(graph, 0)
        graph, cls = produced_and_used("ring AllGather")
        cls.task("again", after=["use"], writes=[TensorAccess("t")], function=lambda: np.zeros(8))
        check_races(flat_on(graph))


def _in_one_slot(accesses, region):
    return tuple(
        TensorAccess(a.tensor, (lambda i, c: region), a.on) if a.tensor.endswith("inbox+") else a for a in accesses
    )


def _of_eight(name):
    graph = TaskGraph("t")
    cls = graph.entity_class("chip", mesh={"x": 8})
    for tensor in ("t", "out"):
        cls.tensor(tensor, bytes=128, shape=(16,), persistent=True)
    if name == "AllToAll":
        all_to_all(cls, "c", "x", T, "out")
    else:
        collective_permute(cls, "c", "x", RingTensor("t", 128, 8), "out", shift=4)
    return graph, cls


@pytest.mark.parametrize("name", ["ring AllGather", "Broadcast", "AllToAll", "line AllReduce"])
def test_a_step_left_out_gives_wrong_values(name):
    whole, cls = produced_and_used(name)
    right = values_of(whole, 0)
    sends = [task.name for task in cls.tasks.values() if ".send" in task.name and task.unit]
    for send in sends:
        graph, mutant = produced_and_used(name)
        last = {loop.name: loop.count - 1 for loop in mutant.tasks[send].loops}
        there = mutant.tasks[send].when

        def all_but_the_last(i, c, there=there, last=last):
            found = np.logical_and.reduce(
                np.broadcast_arrays(*(np.asarray(i[loop]) == at for loop, at in last.items()))
            )
            return ~found & (True if there is None else there(i, c))

        mutant.tasks[send].when = all_but_the_last
        for task in mutant.tasks.values():
            task.after = tuple(replace(ref, outside="ignore") for ref in task.after)
        flat = flat_on(graph)
        wrong = {key: array for key, array in execute(flat, {}).items() if key in right}
        assert not all(np.array_equal(wrong[key], right[key]) for key in right), send
