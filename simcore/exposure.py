"""What compute waits for: every idle picosecond of a chip, attributed to a cause.

A chip is idle when neither its MXU nor its VPU is serving. The cause at an instant is found from the next compute task,
in order of start: follow ``released_by`` backwards to the task that is being served or is in flight at that instant.
Its unit is the cause; while it flies after its service on a link, "latency" is.

Idle time before the first compute task is *fill*, and after the last one *drain*, but for what communication takes of
it on the way to the chip's first compute task and to its last task of all: that is exposed communication too. So the
makespan is busy time plus attributed waits, exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from simcore.timeline import COMPUTE_UNITS, IntColumn, Released, Timeline

COMMUNICATION = ("ici", "nvlink", "network", "pcie", "dcn", "dcn_share", "latency")
"""Causes that are exposed communication."""


@dataclass(frozen=True, slots=True)
class Wait:
    """An idle interval of one chip and its cause.

    A unit's kind, "latency" (a link's), "bubble" (another chip computes), "fill", "drain", the kind of a task that has
    no unit, or "idle" where nothing was asked for (only with units driven by hand).
    """

    start_ps: int
    end_ps: int
    cause: str


def compute_rows(timeline: Timeline, entity: int) -> IntColumn:
    """Rows that the entity's MXU and VPU serve for more than no time, in order of start."""
    lanes = [
        number for number, lane in enumerate(timeline.lanes) if lane.entity == entity and lane.kind in COMPUTE_UNITS
    ]
    rows = np.flatnonzero(np.isin(timeline.lane, lanes) & (timeline.end_ps > timeline.start_ps))
    return rows[np.lexsort((rows, timeline.start_ps[rows]))]


def busy_intervals(timeline: Timeline, rows: IntColumn) -> list[tuple[int, int]]:
    """The union of the rows' services; ``rows`` in order of start."""
    merged: list[tuple[int, int]] = []
    for start, end in zip(timeline.start_ps[rows].tolist(), timeline.end_ps[rows].tolist(), strict=True):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def compute_busy_ps(timeline: Timeline, entity: int) -> int:
    """Time in which the entity's MXU or VPU serves."""
    return sum(end - start for start, end in busy_intervals(timeline, compute_rows(timeline, entity)))


def waits(timeline: Timeline, entity: int) -> list[Wait]:
    """The idle intervals of an entity in order, each with its cause; with the busy ones they fill the makespan.

    An entity that computes nothing waits from beginning to end for what the last task of the run waited for.
    """
    makespan = timeline.makespan_ps
    rows = compute_rows(timeline, entity)
    if not len(rows):
        if not makespan:
            return []
        last = int(np.flatnonzero(timeline.done_ps == makespan)[-1])
        tail = _Walk(timeline, entity, 0)
        tail.served(last, with_latency=True)
        tail.back_from(last)
        return tail.waits()
    busy = busy_intervals(timeline, rows)
    starts = timeline.start_ps[rows]
    found: list[Wait] = []
    if busy[0][0] > 0:
        walk = _Walk(timeline, entity, 0)
        walk.position = busy[0][0]
        walk.back_from(int(rows[0]))
        found += _but_for_communication(walk.waits(), "fill")
    for (_, idle_from), (idle_to, _) in pairwise(busy):
        walk = _Walk(timeline, entity, idle_from)
        walk.position = idle_to
        walk.back_from(int(rows[np.searchsorted(starts, idle_to)]))
        found += walk.waits()
    if busy[-1][1] < makespan:
        own = np.flatnonzero(timeline.entity == entity)
        last = int(own[np.lexsort((own, timeline.done_ps[own]))[-1]])
        walk = _Walk(timeline, entity, busy[-1][1])
        walk.paint(int(timeline.done_ps[last]), "drain")
        walk.served(last, with_latency=True)
        walk.back_from(last)
        found += _but_for_communication(walk.waits(), "drain")
    return found


def _but_for_communication(waits: list[Wait], name: str) -> list[Wait]:
    """The same intervals, those of communication by their causes and all others by ``name``."""
    merged: list[Wait] = []
    for wait in waits:
        cause = wait.cause if wait.cause in COMMUNICATION else name
        if merged and merged[-1].cause == cause:
            merged[-1] = Wait(merged[-1].start_ps, wait.end_ps, cause)
        else:
            merged.append(Wait(wait.start_ps, wait.end_ps, cause))
    return merged


def exposed_ps(timeline: Timeline, entity: int) -> dict[str, int]:
    """Cause -> idle time of the entity, the largest first."""
    total: dict[str, int] = {}
    for wait in waits(timeline, entity):
        total[wait.cause] = total.get(wait.cause, 0) + wait.end_ps - wait.start_ps
    return dict(sorted(total.items(), key=lambda item: (-item[1], item[0])))


def overlap_ps(timeline: Timeline, entity: int) -> dict[str, int]:
    """Kind of unit -> time in which one of the entity's such units serves while its MXU or VPU does: what is hidden."""
    computing = busy_intervals(timeline, compute_rows(timeline, entity))
    served: dict[str, list[int]] = {}
    for number, lane in enumerate(timeline.lanes):
        if lane.entity == entity and lane.kind not in COMPUTE_UNITS:
            served.setdefault(lane.kind, []).append(number)
    found = {}
    for kind, lanes in served.items():
        rows = np.flatnonzero(np.isin(timeline.lane, lanes) & (timeline.end_ps > timeline.start_ps))
        rows = rows[np.lexsort((rows, timeline.start_ps[rows]))]
        found[kind] = _common_ps(busy_intervals(timeline, rows), computing)
    return found


def _common_ps(left: list[tuple[int, int]], right: list[tuple[int, int]]) -> int:
    """Time that two lists of disjoint intervals, in order, have in common."""
    common = at = 0
    for start, end in left:
        while at < len(right) and right[at][1] <= start:
            at += 1
        following = at
        while following < len(right) and right[following][0] < end:
            common += min(end, right[following][1]) - max(start, right[following][0])
            following += 1
    return common


def exposed_communication_s(exposed_s: Mapping[str, float]) -> float:
    """The part of ``exposed_s`` that is communication between chips, its latency included."""
    return sum(seconds for cause, seconds in exposed_s.items() if cause in COMMUNICATION)


class _Walk:
    """Walks ``released_by`` backwards from a task, painting causes on the way, down to ``floor`` picoseconds."""

    def __init__(self, timeline: Timeline, entity: int, floor: int) -> None:
        self.timeline, self.entity, self.floor = timeline, entity, floor
        self.position = timeline.makespan_ps
        self.painted: list[Wait] = []

    def paint(self, start: int, cause: str) -> None:
        start = max(start, self.floor)
        if start < self.position:
            if self.painted and self.painted[-1].cause == cause and self.painted[-1].start_ps == self.position:
                self.painted[-1] = Wait(start, self.painted[-1].end_ps, cause)
            else:
                self.painted.append(Wait(start, self.position, cause))
            self.position = start

    def cause(self, row: int) -> str:
        lane = int(self.timeline.lane[row])
        if lane < 0:
            return self.timeline.kind_names[int(self.timeline.kind[row])]
        kind = self.timeline.lanes[lane].kind
        return "bubble" if kind in COMPUTE_UNITS else kind

    def served(self, row: int, with_latency: bool) -> None:
        """Paint the row's service, and its flight after that, up to the present position."""
        cause = self.cause(row)
        if with_latency:
            self.paint(int(self.timeline.end_ps[row]), "latency" if cause in COMMUNICATION else cause)
        self.paint(int(self.timeline.start_ps[row]), cause)

    def back_from(self, row: int) -> None:
        t = self.timeline
        seen = {row}  # with hand-driven units what released what is a guess, and no-time work might guess in circles
        while self.position > self.floor:
            by, how = int(t.released_by[row]), int(t.released_how[row])
            if by < 0 or by in seen:
                self.paint(self.floor, "idle")
                return
            if how != Released.QUEUE:
                self.served(by, with_latency=how != Released.UNIT)
            row = by
            seen.add(by)

    def waits(self) -> list[Wait]:
        return self.painted[::-1]
