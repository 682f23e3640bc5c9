"""Births and deaths of tensors in accounted memories, from a schedule and the accesses of its tasks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simcore.engine.schedule import Schedule
from simcore.graph.access import TensorAccess
from simcore.graph.flat import FlatGraph, IntArray
from simcore.graph.graph import Task
from simcore.timeline import TensorTable

NEVER = int(np.iinfo(np.int64).max)


def tensor_lives(flat: FlatGraph, schedule: Schedule, makespan_ps: int) -> TensorTable:
    """The table of all tensors that live at some time.

    A persistent one lives for the whole run. Any other is born at the start of the first task that writes it, or with
    the run if it is read before that, and dies at the completion of the last task that touches it.
    """
    tensors = {name: n for n, name in enumerate({t: None for c in flat.graph.classes.values() for t in c.tensors})}
    memories: dict[str, int] = {}
    rows = [
        (tensors[t.name], entity, memories.setdefault(t.memory, len(memories)), t.bytes, 0, makespan_ps)
        for entity, (cls, _) in enumerate(flat.entities)
        for t in cls.tensors.values()
        if t.persistent
    ]
    parts = [part for part in _touches(flat, schedule, tensors) if len(part[0])]
    if parts:
        owner, tensor, scope, written, read, died = (np.concatenate(column) for column in zip(*parts, strict=True))
        shape = len(flat.entities), len(tensors), int(scope.max()) + 1
        present, inverse = np.unique(np.ravel_multi_index((owner, tensor, scope), shape), return_inverse=True)
        first_write, first_read = np.full(len(present), NEVER), np.full(len(present), NEVER)
        deaths = np.zeros(len(present), dtype=np.int64)
        np.minimum.at(first_write, inverse, written)
        np.minimum.at(first_read, inverse, read)
        np.maximum.at(deaths, inverse, died)
        births = np.where(first_write <= first_read, first_write, 0)
        names = list(tensors)
        where = np.unravel_index(present, shape)
        for entity, number, born, dead in zip(
            where[0].tolist(), where[1].tolist(), births.tolist(), deaths.tolist(), strict=True
        ):
            declared = flat.entities[entity][0].tensors[names[number]]
            if not declared.persistent:
                memory = memories.setdefault(declared.memory, len(memories))
                rows.append((number, entity, memory, declared.bytes, born, dead))
    table = np.array(rows, dtype=np.int64).reshape(-1, 6)
    columns = ("tensor", "entity", "memory", "bytes", "born_ps", "died_ps")
    return TensorTable(
        names=tuple(tensors),
        memories=tuple(memories),
        **{name: table[:, position] for position, name in enumerate(columns)},
    )


def _touches(flat: FlatGraph, schedule: Schedule, tensors: dict[str, int]) -> Iterator[tuple[IntArray, ...]]:
    """Of each template's accesses: owner, tensor, scope, start if it writes, start if it reads, completion."""
    for number, task in enumerate(flat.templates):
        accesses = {(a, False) for a in map(_key, task.reads) if a} | {(a, True) for a in map(_key, task.writes) if a}
        if not accesses:
            continue
        index = np.flatnonzero(flat.template == number)
        start, done = schedule.start_ps[index], schedule.done_ps[index]
        never = np.full(len(index), NEVER)
        for (name, on), writes in sorted(accesses):
            entities, where = np.unique(flat.entity[index], return_inverse=True)
            owners = np.array([flat.neighbour(e, dict(on)) for e in entities.tolist()], dtype=np.int64)[where]
            inside = owners >= 0
            columns = (
                owners,
                np.full(len(index), tensors[name]),
                _scopes(flat, task, index, name),
                start if writes else never,
                never if writes else start,
                done,
            )
            yield tuple(column[inside] for column in columns)


def _key(access: object) -> tuple[str, tuple[tuple[str, int], ...]] | None:
    if isinstance(access, TensorAccess):
        return access.tensor, tuple(sorted(access.on.items()))
    return None


def _scopes(flat: FlatGraph, task: Task, index: IntArray, tensor: str) -> IntArray:
    """For each instance which iteration's tensor it touches, if the tensor is declared in loops."""
    cls = flat.graph.classes[task.cls]
    declared = cls.tensors.get(tensor)
    scope = np.zeros(len(index), dtype=np.int64)
    if declared is None or not declared.scope or not len(index):
        return scope
    counts = task.counts or (1,)
    at = dict(zip((loop.name for loop in task.loops), np.unravel_index(flat.iteration[index], counts), strict=False))
    loops = [*declared.scope, *(name for name, _ in declared.also)]
    found = declared.scope_of(at, {name: cls.loops[name].count for name in loops})
    if found is not None:
        scope += found
    return scope
