"""Putting timelines that share units side by side into one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simcore.timeline import Entity, IntColumn, Lane, Released, SlotTable, TensorTable, Timeline

COLUMNS = ("layer", "iteration", "bytes", "flops", "work_ps")
TIMES = ("ready_ps", "granted_ps", "start_ps", "end_ps", "done_ps")


@dataclass(frozen=True, slots=True)
class Part:
    """A timeline and where its entities and lanes are in the whole."""

    timeline: Timeline
    entities: IntColumn
    lanes: IntColumn


class Names:
    """Numbers names in order of first use."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def __call__(self, name: str) -> int:
        return self.numbers.setdefault(name, len(self.numbers))

    def moved(self, names: Sequence[str], column: IntColumn) -> IntColumn:
        """A column of indices into ``names``, as indices into these."""
        if not len(column):
            return column
        return np.array([self(name) for name in names], dtype=np.int64)[column]

    @property
    def table(self) -> tuple[str, ...]:
        return tuple(self.numbers)


def merge(entities: tuple[Entity, ...], lanes: tuple[Lane, ...], parts: Sequence[Part]) -> Timeline:
    """One timeline of all parts' rows, one part after another; ``entities`` and ``lanes`` are the whole's.

    A row that waited for its unit was released by the row before it on that unit, of whatever part.
    """
    firsts = np.cumsum([0, *(len(part.timeline) for part in parts)])[:-1].tolist()
    tasks, operations, kinds, moves, tensors, memories = (Names() for _ in range(6))

    def joined(columns: Sequence[IntColumn]) -> IntColumn:
        return np.concatenate([np.zeros(0, dtype=np.int64), *columns]).astype(np.int64)

    def lane_of(part: Part) -> IntColumn:
        lane = part.timeline.lane
        return np.where(lane >= 0, part.lanes[np.maximum(lane, 0)], -1) if len(part.lanes) else lane

    timelines = [part.timeline for part in parts]
    pools = [
        (int(part.entities[owner]), name, memory, buffers, size)
        for part in parts
        for owner, name, memory, buffers, size in part.timeline.slots.pools
    ]
    first_pools = np.cumsum([0, *(len(t.slots.pools) for t in timelines)])[:-1].tolist()
    whole = Timeline(
        task=joined([tasks.moved(t.task_names, t.task) for t in timelines]),
        operation=joined([operations.moved(t.operation_names, t.operation) for t in timelines]),
        kind=joined([kinds.moved(t.kind_names, t.kind) for t in timelines]),
        moves=joined([moves.moved(t.moves_names, t.moves) for t in timelines]),
        task_names=tasks.table,
        operation_names=operations.table,
        kind_names=kinds.table,
        moves_names=moves.table,
        entities=entities,
        lanes=lanes,
        entity=joined([part.entities[part.timeline.entity] for part in parts if len(part.timeline)]),
        lane=joined([lane_of(part) for part in parts]),
        released_by=joined(
            [
                np.where(t.released_by >= 0, t.released_by + first, -1)
                for t, first in zip(timelines, firsts, strict=True)
            ]
        ),
        released_how=joined([t.released_how for t in timelines]),
        slots=SlotTable(
            pools=tuple(pools),
            pool=joined([t.slots.pool + first for t, first in zip(timelines, first_pools, strict=True)]),
            slot=joined([t.slots.slot for t in timelines]),
            taker=joined([t.slots.taker + first for t, first in zip(timelines, firsts, strict=True)]),
            granted_ps=joined([t.slots.granted_ps for t in timelines]),
            released_ps=joined([t.slots.released_ps for t in timelines]),
        ),
        tensors=TensorTable(
            tensor=joined([tensors.moved(t.tensors.names, t.tensors.tensor) for t in timelines]),
            memory=joined([memories.moved(t.tensors.memories, t.tensors.memory) for t in timelines]),
            names=tensors.table,
            memories=memories.table,
            entity=joined([p.entities[p.timeline.tensors.entity] for p in parts if len(p.timeline.tensors.entity)]),
            bytes=joined([t.tensors.bytes for t in timelines]),
            born_ps=joined([t.tensors.born_ps for t in timelines]),
            died_ps=joined([t.tensors.died_ps for t in timelines]),
        ),
        **{name: joined([getattr(t, name) for t in timelines]) for name in (*COLUMNS, *TIMES)},
    )
    _release_units(whole)
    return whole


def _release_units(timeline: Timeline) -> None:
    """Name in ``released_by`` of each row that waited for its unit the row that held it before."""
    waited: npt.NDArray[np.bool_] = timeline.released_how == Released.UNIT
    for lane in range(len(timeline.lanes)):
        rows = timeline.rows_of_lane(lane)
        following = waited[rows[1:]]
        timeline.released_by[rows[1:][following]] = rows[:-1][following]
        if len(rows) and waited[rows[0]]:
            timeline.released_by[rows[0]] = -1
