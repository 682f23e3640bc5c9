"""Broken schedules of collectives give wrong values: each dependency left out, a sum skipped, another shard sent.

A mutant is executed in orders that it permits, chosen against it: what it no longer waits for is put off as long as
something else can go on. Left out may only be what other dependencies imply, and then the race check finds nothing.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from simcore.chips import load_chip
from simcore.collectives import RingTensor, line, one_shot, ring, switch, torus
from simcore.collectives.all_to_all import all_to_all
from simcore.collectives.broadcast import broadcast, reduce
from simcore.collectives.permute import collective_permute
from simcore.engine.schedule import Schedule
from simcore.errors import RaceError
from simcore.graph import Task, TensorAccess, WithIndices
from simcore.graph.races import check_races
from simcore.graph.unroll import unroll
from simcore.graph.values import execute
from simcore.hardware import Hardware
from tests.collective_checks import chips

ELEMENTS = 2
"""of a shard"""
HARNESS = ("make", "keep", "reuse")
MODELS = {ideal: Hardware(load_chip("v5e"), ideal) for ideal in (True, False)}


@dataclass(frozen=True)
class Case:
    """One collective over all axes of ``mesh``; ``function`` is its ``kind``, with all that need not be said."""

    kind: str
    function: Callable[..., Task]
    mesh: Mapping[str, int]
    options: Mapping[str, Any] = field(default_factory=dict)
    wraps: bool = True

    @property
    def n(self) -> int:
        return math.prod(self.mesh.values())

    @property
    def result(self) -> str:
        """The tensor with the result."""
        return "out" if self.kind in ("all_to_all", "permute") else "t"

    @property
    def length(self) -> int:
        """Elements of each chip's tensors."""
        return ELEMENTS * (1 if self.kind in ("permute", "broadcast", "reduce") else self.n)


RING, BOTH = {"x": 4}, {"direction": "both"}
CASES = {
    "AllGather, ring": Case("all_gather", ring.all_gather, RING),
    "AllGather, ring, chunks": Case("all_gather", ring.all_gather, {"x": 3}, {"chunks": 2}),
    "AllGather, ring both ways": Case("all_gather", ring.all_gather, RING, BOTH),
    "AllGather, line": Case("all_gather", line.all_gather, RING, wraps=False),
    "AllGather, torus": Case("all_gather", torus.all_gather, {"x": 3, "y": 2}),
    "ReduceScatter, ring": Case("reduce_scatter", ring.reduce_scatter, RING),
    "ReduceScatter, ring both ways": Case("reduce_scatter", ring.reduce_scatter, RING, BOTH),
    "ReduceScatter, larger ring both ways": Case("reduce_scatter", ring.reduce_scatter, {"x": 6}, BOTH),
    "ReduceScatter, line": Case("reduce_scatter", line.reduce_scatter, RING, wraps=False),
    "ReduceScatter, torus": Case("reduce_scatter", torus.reduce_scatter, {"x": 2, "y": 2}),
    "AllReduce, ring": Case("all_reduce", ring.all_reduce, {"x": 3}),
    "AllReduce, line": Case("all_reduce", line.all_reduce, {"x": 3}, wraps=False),
    "AllToAll, ring": Case("all_to_all", all_to_all, RING),
    "AllToAll, ring both ways": Case("all_to_all", all_to_all, {"x": 5}, BOTH),
    "AllToAll, line": Case("all_to_all", all_to_all, RING, wraps=False),
    "CollectivePermute, ring": Case("permute", collective_permute, {"x": 7}, {"shift": 3}),
    "CollectivePermute, ring both ways": Case("permute", collective_permute, {"x": 5}, {"shift": 2} | BOTH),
    "CollectivePermute, line": Case("permute", collective_permute, {"x": 5}, {"shift": -2, "chunks": 2}, wraps=False),
    "Broadcast, ring": Case("broadcast", broadcast, RING, {"root": 1, "chunks": 2}),
    "Broadcast, ring both ways": Case("broadcast", broadcast, RING, {"root": 1} | BOTH),
    "Broadcast, line": Case("broadcast", broadcast, RING, {"root": 1}, wraps=False),
    "Reduce, ring": Case("reduce", reduce, RING, {"root": 1, "chunks": 2}),
    "Reduce, ring in arms": Case("reduce", reduce, RING, {"spread": "arms"} | BOTH),
    "Reduce, line": Case("reduce", reduce, RING, {"root": 1}, wraps=False),
    "AllToAll, torus": Case("all_to_all", all_to_all, {"x": 2, "y": 2}),
    "AllReduce, one shot": Case("all_reduce", one_shot.all_reduce, {"x": 3}),
    **{
        f"AllReduce, switch, {algorithm}": Case(
            "all_reduce", switch.all_reduce, RING, {"algorithm": algorithm, "network": "dcn"}
        )
        for algorithm in switch.ALL_REDUCES
        if algorithm != "ring"
    },
    "AllToAll, switch": Case("all_to_all", switch.all_to_all, RING, {"network": "dcn"}),
    "Broadcast, switch": Case("broadcast", switch.broadcast, RING, {"root": 1, "network": "dcn"}),
    "Reduce, switch": Case("reduce", switch.reduce, RING, {"root": 1, "network": "dcn"}),
}


def made(case):
    """The case's graph. Each chip makes its array before, and keeps the result and overwrites everything after."""
    case = CASES[case]
    graph, cls = chips(case.mesh, dict.fromkeys(("source", "t", "out", "result"), (case.length,)), case.wraps)

    def all_of(*tensors):
        return [TensorAccess(tensor, lambda i, c: (slice(0, case.length),)) for tensor in tensors]

    def fresh(source):
        return source, np.full(case.length, -55.0)

    def stale():
        return np.full(case.length, -99.0), np.full(case.length, -99.0)

    make = cls.task("make", reads=all_of("source"), writes=all_of("t", "out"), function=fresh)
    axes = tuple(case.mesh) if len(case.mesh) > 1 else "x"
    out = (case.result,) if case.result == "out" else ()
    end = case.function(cls, "c", axes, RingTensor("t", 8 * ELEMENTS, 8), *out, after=[make], **case.options)
    keep = cls.task("keep", after=[end], reads=all_of(case.result), writes=all_of("result"), function=lambda t: t)
    cls.task("reuse", after=[end, keep], writes=all_of("t", "out"), function=stale)
    return graph, cls


def data(case, rng):
    """Each chip's source, and {chip: (elements that it must end with, their values)}."""
    case = CASES[case]
    n = case.n
    sources = rng.integers(1, 99, (n, case.length)).astype(float)
    own = [slice(chip * ELEMENTS, (chip + 1) * ELEMENTS) for chip in range(n)]
    every = slice(None)
    if case.kind == "all_gather":
        total = np.concatenate([sources[chip, own[chip]] for chip in range(n)])
        for chip in range(n):
            known = sources[chip, own[chip]].copy()
            sources[chip] = np.nan
            sources[chip, own[chip]] = known
        wanted = dict.fromkeys(range(n), (every, total))
    elif case.kind == "all_to_all":
        wanted = {chip: (every, sources[:, own[chip]].reshape(-1)) for chip in range(n)}
    elif case.kind == "permute":
        shift = case.options["shift"]
        come = {chip: chip - shift for chip in range(n)}
        nothing = np.zeros(case.length)
        wanted = {
            chip: (every, sources[source % n] if case.wraps or 0 <= source < n else nothing)
            for chip, source in come.items()
        }
    elif case.kind == "broadcast":
        wanted = dict.fromkeys(range(n), (every, sources[case.options["root"]]))
    elif case.kind == "reduce":
        wanted = {case.options.get("root", 0): (every, sources.sum(axis=0))}
    elif case.kind == "reduce_scatter":
        wanted = {chip: (own[chip], sources.sum(axis=0)[own[chip]]) for chip in range(n)}
    else:
        wanted = {chip: (every, sources.sum(axis=0)) for chip in range(n)}
    return {(chip, "source"): sources[chip] for chip in range(n)}, wanted


def against(flat, put_off, rng):
    """Priorities that put the tasks named ``put_off`` off on some chips, and are random besides."""
    named = np.array([task.name in put_off for task in flat.templates])[flat.template]
    late = np.where(named & (rng.random(len(flat)) < 0.5), 10**9, 0)
    none = np.zeros(0, dtype=np.int64)
    return Schedule(*(late + rng.integers(0, 10**6, len(flat)) for _ in range(5)), *[none] * 5)


def wrong(case, flat, put_off=(), orders=12):
    """Whether the values are wrong in one of some permitted orders."""
    for seed in range(orders):
        rng = np.random.default_rng(seed)
        inputs, wanted = data(case, rng)
        late = (set(), {*put_off}, {*put_off, "make"})[seed % 3]
        schedule = against(flat, late, rng) if late else None
        values = execute(flat, inputs, schedule=schedule, seed=seed)
        if any(not np.array_equal(values[chip, "result"][where], array) for chip, (where, array) in wanted.items()):
            return True
    return False


def races(flat):
    try:
        check_races(flat)
    except RaceError:
        return True
    return False


@pytest.mark.parametrize("case", CASES)
def test_the_schedule_as_it_is_has_no_race_and_the_right_values(case):
    for model in MODELS.values():
        flat = unroll(made(case)[0], model)
        assert not races(flat)
        assert not wrong(case, flat, orders=3)


@pytest.mark.parametrize("case", CASES)
def test_a_missing_dependency_is_implied_by_others_or_gives_wrong_values(case):
    left_out = [
        (task.name, which)
        for task in made(case)[1].tasks.values()
        if task.name not in HARNESS
        for which in range(len(task.after))
    ]
    caught = 0
    for name, which in left_out:
        graph, cls = made(case)
        task = cls.tasks[name]
        reference = task.after[which]
        task.after = (*task.after[:which], *task.after[which + 1 :])
        for ideal, model in MODELS.items():
            flat = unroll(graph, model)
            racy = races(flat)
            caught += racy
            assert wrong(case, flat, {reference.task}, 40 if racy else 2) == racy, (name, reference, ideal)
    assert caught > len(left_out) // 2


IN_STEPS = [name for name in CASES if "switch" not in name and "one shot" not in name]
REDUCING = [name for name in IN_STEPS if "reduce" in CASES[name].kind]
SHARDED = [name for name in IN_STEPS if CASES[name].wraps and CASES[name].length > ELEMENTS]


@pytest.mark.parametrize("case", REDUCING)
def test_a_skipped_addition_in_any_one_step_gives_wrong_values(case):
    additions = [
        (task.name, loop.name, step)
        for task in made(case)[1].tasks.values()
        if task.function is not None and task.unit == "vpu" and len(task.reads) > len(task.writes)
        for loop in task.loops[:1]
        for step in range(loop.count)
    ]
    assert additions
    for name, loop, skipped in additions:
        graph, cls = made(case)
        task = cls.tasks[name]

        def add(i, c, *arrays, task=task, function=task.function, loop=loop, skipped=skipped):
            own = arrays[: len(task.writes)]
            return own if i[loop] == skipped else function(*arrays)

        task.function = WithIndices(add)
        flat = unroll(graph, MODELS[False])
        assert not races(flat)  # nothing but the values tells
        assert wrong(case, flat, orders=1), (name, skipped)


@pytest.mark.parametrize("case", SHARDED)
def test_sending_the_neighbour_s_shard_gives_wrong_values(case):
    sizes = CASES[case].mesh
    sends = [task.name for task in made(case)[1].tasks.values() if ".send" in task.name]
    assert sends
    for name in sends:
        graph, cls = made(case)
        task = cls.tasks[name]

        def off_by_one(access):
            def region(i, c):
                return access.region(i, {axis: (at + 1) % sizes[axis] for axis, at in c.items()})

            return dataclasses.replace(access, region=region)

        task.reads = tuple(off_by_one(access) for access in task.reads)
        assert wrong(case, unroll(graph, MODELS[True]), orders=1), name
