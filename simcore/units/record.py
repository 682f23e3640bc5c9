"""From the spans that a chip recorded to the columns of a timeline."""

from __future__ import annotations

import heapq

import numpy as np

from simcore.graph.work import matmul_flops, moved_bytes
from simcore.timeline import Entity, IntColumn, Lane, Released, SlotTable, Timeline
from simcore.units.chip import SimChip, Span
from simcore.units.memory import Buffer
from simcore.units.merge import Names


def recorded(chip: SimChip, spans: list[Span], end_ps: int) -> Timeline:
    """The timeline of one chip's ``spans``, which have ended; buffers that are still held are held to ``end_ps``."""
    tasks, kinds, moves = Names(), Names(), Names()
    lanes = {unit: number for number, unit in enumerate(chip.kinds)}

    def column(values: list[int]) -> IntColumn:
        return np.array(values, dtype=np.int64)

    task = column([tasks(span.task) for span in spans])
    return Timeline(
        task=task,
        operation=task,
        kind=column([kinds(span.kind) for span in spans]),
        moves=column([moves(span.moves) for span in spans]),
        task_names=tasks.table,
        operation_names=tasks.table,
        kind_names=kinds.table,
        moves_names=moves.table,
        entities=(Entity(chip.name, "chip", ()),),
        lanes=tuple(Lane(0, unit, kind) for unit, kind in chip.kinds.items()),
        layer=np.full(len(spans), -1),
        iteration=np.full(len(spans), -1),
        entity=np.zeros(len(spans), dtype=np.int64),
        lane=column([lanes[span.unit] for span in spans]),
        bytes=column([int(moved_bytes(span.work)) for span in spans]),
        flops=column([int(matmul_flops(span.work)) for span in spans]),
        ready_ps=column([span.ready_ps for span in spans]),
        granted_ps=column([span.ready_ps for span in spans]),
        start_ps=column([span.start_ps for span in spans]),
        end_ps=column([span.end_ps for span in spans]),
        done_ps=column([span.done_ps for span in spans]),
        released_by=np.full(len(spans), -1),
        released_how=column([Released.UNIT if s.start_ps > s.ready_ps else Released.NOTHING for s in spans]),
        work_ps=column([int(chip.hardware.bound_model(chip.kinds[span.unit]).service_ps(span.work)) for span in spans]),
        slots=_slots(chip, spans, end_ps),
    )


def _slots(chip: SimChip, spans: list[Span], end_ps: int) -> SlotTable:
    """Reservations of one name and size are a pool, of as many slots as were held at once."""
    pools: dict[tuple[str, int], int] = {}
    free: list[list[int]] = []
    made: list[int] = []
    busy: list[list[tuple[int, int]]] = []
    rows: list[tuple[int, int, int, int, int]] = []
    for buffer in chip.vmem.buffers if spans else ():
        pool = pools.setdefault((buffer.name, buffer.size_bytes), len(pools))
        if pool == len(made):
            free.append([])
            busy.append([])
            made.append(0)
        freed = buffer.freed_ps if buffer.freed_ps >= 0 else end_ps
        while busy[pool] and busy[pool][0][0] <= buffer.granted_ps:
            heapq.heappush(free[pool], heapq.heappop(busy[pool])[1])
        if not free[pool]:
            free[pool].append(made[pool])
            made[pool] += 1
        slot = heapq.heappop(free[pool])
        heapq.heappush(busy[pool], (freed, slot))
        rows.append((pool, slot, _taker(buffer, spans), buffer.granted_ps, freed))
    table = np.array(rows, dtype=np.int64).reshape(-1, 5)
    return SlotTable(
        tuple((0, name, "vmem", made[pool], size) for (name, size), pool in pools.items()),
        *(table[:, position] for position in range(5)),
    )


def _taker(buffer: Buffer, spans: list[Span]) -> int:
    """The first work that the process did with the buffer, or the last before it if there was none."""
    mine = [row for row, span in enumerate(spans) if span.process is buffer.process]
    later = [row for row in mine if spans[row].ready_ps >= buffer.granted_ps]
    return (later or mine[-1:] or [0])[0]


def name_releases(timeline: Timeline, spans: list[Span], buffers: list[Buffer]) -> None:
    """Fill in what released the rows of hand-driven work, which come first: what was done at that very moment.

    That a process went on because of it is likely, not known; its own last work is preferred to another process's.
    """
    done_at: dict[int, list[int]] = {}
    for row, done in enumerate(timeline.done_ps.tolist()):
        done_at.setdefault(done, []).append(row)
    granted_late = {(id(b.process), b.granted_ps) for b in buffers if b.granted_ps > b.asked_ps}
    ready, entity = timeline.ready_ps.tolist(), timeline.entity.tolist()
    for row, span in enumerate(spans):
        if timeline.released_how[row] != Released.NOTHING:
            continue
        before = [
            other
            for other in done_at.get(span.ready_ps, ())
            if ready[other] < ready[row] or (entity[other] == entity[row] and other < row)
        ]
        own = [other for other in before if other < len(spans) and spans[other].process is span.process]
        if before:
            waited = (id(span.process), span.ready_ps) in granted_late
            timeline.released_by[row] = (own or before)[-1]
            timeline.released_how[row] = Released.BUFFER if waited else Released.DEPENDENCY
