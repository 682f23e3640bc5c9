"""Putting a schedule and its flat graph together into a timeline."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from simcore.engine.lives import tensor_lives
from simcore.engine.schedule import Schedule
from simcore.graph.flat import FlatGraph, IntArray
from simcore.graph.graph import Task
from simcore.timeline import Entity, Lane, SlotTable, Timeline

Alike = Mapping[str, tuple[tuple[str, int], ...]]
"""Class -> (axis, size) pairs along which all entities do the same."""


class _Names:
    """Numbers names in order of first use."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def __call__(self, name: str) -> int:
        return self.numbers.setdefault(name, len(self.numbers))

    def table(self) -> tuple[str, ...]:
        return tuple(self.numbers)


def _layer_of(task: Task) -> IntArray:
    """The layer of each iteration of a template: a loop over layers, or the operation's layer."""
    for position, loop in enumerate(task.loops):
        if loop.name == "layer" or loop.layers:
            inner = math.prod(task.counts[position + 1 :])
            outer = math.prod(task.counts[:position])
            numbers = max(task.layer, 0) + (loop.layers or 1) * np.arange(loop.count, dtype=np.int64)
            return np.tile(np.repeat(numbers, inner), outer)
    return np.full(math.prod(task.counts), task.layer, dtype=np.int64)


def _index_in_innermost(task: Task, iteration: IntArray) -> IntArray:
    """The index in the innermost loop that repeats at all; 0 where none does, -1 outside loops."""
    inner = 1
    for count in reversed(task.counts):
        if count > 1:
            return (iteration // inner) % count
        inner *= count
    return np.full(len(iteration), 0 if task.loops else -1, dtype=np.int64)


def assemble(flat: FlatGraph, schedule: Schedule, alike: Alike | None = None) -> Timeline:
    """The timeline of a run; ``alike`` says of each class along which axes an entity stands for all others."""
    along = alike or {}
    operations, kinds, moves = _Names(), _Names(), _Names()
    per_template = [(operations(t.operation), kinds(t.kind), moves(t.moves)) for t in flat.templates]
    table = np.array(per_template, dtype=np.int64).reshape(-1, 3)
    layer = np.zeros(len(flat), dtype=np.int64)
    innermost = np.zeros(len(flat), dtype=np.int64)
    for number, task in enumerate(flat.templates):
        rows = flat.template == number
        iteration = flat.iteration[rows]
        layer[rows] = _layer_of(task)[iteration]
        innermost[rows] = _index_in_innermost(task, iteration)
    makespan = int(schedule.done_ps.max()) if len(flat) else 0
    released = np.where(schedule.take_released_ps < 0, makespan, schedule.take_released_ps)
    return Timeline(
        task_names=tuple(t.name for t in flat.templates),
        operation_names=operations.table(),
        kind_names=kinds.table(),
        moves_names=moves.table(),
        entities=tuple(
            Entity(
                cls.name,
                cls.kind,
                tuple(zip(cls.axes, cls.coordinates[index].tolist(), strict=True)),
                along.get(cls.name, ()),
            )
            for cls, index in flat.entities
        ),
        lanes=tuple(Lane(entity, name, flat.entities[entity][0].units[name].kind) for entity, name in flat.units),
        task=flat.template,
        operation=table[flat.template, 0],
        layer=layer,
        iteration=innermost,
        entity=flat.entity,
        lane=flat.unit,
        kind=table[flat.template, 1],
        moves=table[flat.template, 2],
        bytes=flat.bytes,
        flops=flat.flops,
        ready_ps=schedule.ready_ps,
        granted_ps=schedule.granted_ps,
        start_ps=schedule.start_ps,
        end_ps=schedule.end_ps,
        done_ps=schedule.done_ps,
        released_by=schedule.released_by,
        released_how=schedule.released_how,
        work_ps=flat.work_ps,
        slots=SlotTable(
            pools=tuple(
                (p.entity, p.pool.name, p.pool.memory, p.pool.buffers, p.pool.buffer_bytes) for p in flat.pools
            ),
            pool=flat.take_pool,
            slot=schedule.take_slot,
            taker=flat.take_instance,
            granted_ps=schedule.take_granted_ps,
            released_ps=released,
        ),
        tensors=tensor_lives(flat, schedule, makespan),
    )
