"""The critical path: the chain of work and flights that ends with the last completion, without a gap.

Each task was let start by another (`Timeline.released_by`): it depended on it, or waited behind it for a unit, a buffer
or its turn in a queue. Followed backwards from the last completion, what the tasks of this chain did at each instant
fills the makespan: the stretches of a `CriticalPath` are disjoint and add up to it exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from simcore.timeline import IntColumn, Released, Timeline

SERVICE, LATENCY, LAG, IDLE = "service", "latency", "lag", "idle"


@dataclass(frozen=True, slots=True)
class Stretch:
    """An interval and what filled it: a task's service on its unit, its flight after that, a lag that a dependency
    asks for, or "idle" where nothing was asked for (only with units driven by hand, where ``row`` may be -1).
    """

    row: int
    start_ps: int
    end_ps: int
    part: str

    @property
    def ps(self) -> int:
        return self.end_ps - self.start_ps


def critical_rows(timeline: Timeline) -> IntColumn:
    """Rows of the critical path in order of time, by following ``released_by`` back from the last completion."""
    if not len(timeline):
        return np.zeros(0, dtype=np.int64)
    row = int(np.flatnonzero(timeline.done_ps == timeline.done_ps.max())[-1])
    path: dict[int, None] = {}
    while row >= 0 and row not in path:
        path[row] = None
        row = int(timeline.released_by[row])
    return np.array(list(path)[::-1], dtype=np.int64)


class Walker:
    """Walks back along ``released_by``; made once for many walks over one timeline."""

    def __init__(self, timeline: Timeline) -> None:
        self.start, self.end, self.done = (
            timeline.start_ps.tolist(),
            timeline.end_ps.tolist(),
            timeline.done_ps.tolist(),
        )
        self.by, self.how = timeline.released_by.tolist(), timeline.released_how.tolist()

    def behind(self, row: int, position: int, floor: int) -> list[Stretch]:
        """What the start of ``row`` waited for between ``floor`` and ``position``, in order of time, without a gap."""
        found: list[Stretch] = []
        seen = {row}  # with hand-driven units what released what is a guess, and no-time work might guess in circles
        while position > floor:
            by, how = self.by[row], self.how[row]
            if by < 0 or by in seen:
                found.append(Stretch(row if by >= 0 else -1, floor, position, IDLE))
                break
            if how != Released.QUEUE:
                position = self._served(found, by, position, floor, flight=how != Released.UNIT)
            row = by
            seen.add(by)
        return found[::-1]

    def through(self, row: int, floor: int) -> list[Stretch]:
        """The flight and the service of ``row``, and what its start waited for, down to ``floor``."""
        found: list[Stretch] = []
        position = self._served(found, row, self.done[row], floor, flight=True)
        return [*self.behind(row, position, floor), *found[::-1]]

    def _served(self, found: list[Stretch], row: int, position: int, floor: int, flight: bool) -> int:
        """Append what ``row`` did up to ``position``, the latest first; returns where that begins."""
        parts = [(self.done[row], LAG), (self.end[row], LATENCY)] if flight else []
        for since, part in [*parts, (self.start[row], SERVICE)]:
            since = max(since, floor)
            if since < position:
                found.append(Stretch(row, since, position, part))
                position = since
        return position


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """Stretches in order of time, from 0 to the makespan."""

    timeline: Timeline
    stretches: tuple[Stretch, ...]

    @property
    def total_ps(self) -> int:
        return sum(stretch.ps for stretch in self.stretches)

    @property
    def rows(self) -> IntColumn:
        """Rows of the tasks on the path, each once, in order of time."""
        return np.array(list(dict.fromkeys(s.row for s in self.stretches if s.row >= 0)), dtype=np.int64)

    def by_resource(self) -> dict[str, int]:
        """Unit kind, "KIND latency", or the kind of a task without a unit -> picoseconds; the largest first."""
        return self._sums(lambda s: resource_of(self.timeline, s))

    def by_kind(self) -> dict[str, int]:
        """Kind of task ("matmul", "hbm_load", ...) -> picoseconds."""
        return self._sums(lambda s: self.timeline.kind_names[self.timeline.kind[s.row]])

    def by_operation(self) -> dict[str, int]:
        return self._sums(lambda s: self.timeline.operation_names[self.timeline.operation[s.row]])

    def by_layer(self) -> dict[int, int]:
        """Layer -> picoseconds; -1 is what belongs to none."""
        sums: dict[int, int] = {}
        for s in self.stretches:
            layer = int(self.timeline.layer[s.row]) if s.row >= 0 else -1
            sums[layer] = sums.get(layer, 0) + s.ps
        return dict(sorted(sums.items()))

    def _sums(self, key: Callable[[Stretch], str]) -> dict[str, int]:
        return sums(self.stretches, lambda s: key(s) if s.row >= 0 else IDLE)

    def table(self) -> list[dict[str, Any]]:
        """One row a stretch: what, where, from when, how long."""
        t = self.timeline
        table: list[dict[str, Any]] = []
        for s in self.stretches:
            named: dict[str, Any] = {
                "task": "",
                "operation": "",
                "layer": None,
                "iteration": None,
                "chip": "",
                "unit": "",
            }
            if s.row >= 0:
                layer, iteration, lane = int(t.layer[s.row]), int(t.iteration[s.row]), int(t.lane[s.row])
                named = {
                    "task": t.task_names[t.task[s.row]],
                    "operation": t.operation_names[t.operation[s.row]],
                    "layer": layer if layer >= 0 else None,
                    "iteration": iteration if iteration >= 0 else None,
                    "chip": t.entities[t.entity[s.row]].label,
                    "unit": t.lanes[lane].unit if lane >= 0 else "",
                }
            table.append({"row": s.row, **named, "part": s.part, "start_ps": s.start_ps, "duration_ps": s.ps})
        return table


def resource_of(timeline: Timeline, stretch: Stretch) -> str:
    """The resource that a stretch is time of: "hbm", "ici latency", or the task's kind where it has no unit."""
    if stretch.row < 0 or stretch.part == IDLE:
        return IDLE
    lane = int(timeline.lane[stretch.row])
    kind = timeline.lanes[lane].kind if lane >= 0 else timeline.kind_names[int(timeline.kind[stretch.row])]
    return kind if stretch.part == SERVICE or lane < 0 else f"{kind} {stretch.part}"


def sums(stretches: Sequence[Stretch], key: Callable[[Stretch], str]) -> dict[str, int]:
    """Key -> picoseconds, the largest first."""
    total: dict[str, int] = {}
    for stretch in stretches:
        name = key(stretch)
        total[name] = total.get(name, 0) + stretch.ps
    return dict(sorted(total.items(), key=lambda item: (-item[1], item[0])))


def critical_path(timeline: Timeline) -> CriticalPath:
    """The critical path of a run; of several the one that `Timeline.released_by` tells.

    >>> import simcore
    >>> path = critical_path(simcore.run_scenario("double_buffering").timeline)
    >>> path.total_ps, path.by_resource()
    (425000000, {'hbm': 400000000, 'mxu': 25000000})
    """
    if not len(timeline) or not timeline.makespan_ps:
        return CriticalPath(timeline, ())
    last = int(np.flatnonzero(timeline.done_ps == timeline.makespan_ps)[-1])
    return CriticalPath(timeline, tuple(Walker(timeline).through(last, 0)))
