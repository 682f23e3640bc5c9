"""The gap between a run and its best lower bound, taken apart into named parts that add up to it exactly.

The bound is laid along a *spine* of the run:

- a resource bounds: the spine is its busiest instance. The makespan is the work of its tasks at the data sheet's rate
  (the bound), what their service takes beyond that, and the time in which it does not serve. Each idle interval is
  walked back along `Timeline.released_by` from the task that ends it, to what was done meanwhile.
- dependencies bound: the spine is the longest chain. The makespan is the chain at the ideal model's prices (the bound),
  what its tasks really take beyond that, and the time that each waits after the one before: until it is ready, which
  is walked back too, then for buffers until it is granted, then for its unit. What follows the chain's last completion
  is walked back from the last completion of all.

Names of the parts:

- "efficiency of X", "issue costs", "padding and filling of X": service beyond the bound;
- "exposed O": the spine waits for operation O's messages on a link, and "latency" for their flight;
- "pipeline fill": it waits for its first task otherwise, "pipeline drain": what is left after its last;
- "queueing for X", "waiting for buffers": a task of the chain stands in line for its unit, or for VMEM;
- "waiting for X": the spine waits for what unit X, or a task of kind X, does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from simcore.bounds import Bounds, bounds, flat_of
from simcore.chips import Chip
from simcore.critical import IDLE, SERVICE, Stretch, Walker
from simcore.exposure import COMMUNICATION
from simcore.graph.flat import FlatGraph, IntArray
from simcore.hardware import Hardware
from simcore.pricing import Price, Pricer
from simcore.result import RunResult
from simcore.timeline import Timeline
from simcore.views.report import RESOURCES

FILL, DRAIN, LATENCY = "pipeline fill", "pipeline drain", "latency"


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the gap: its name, the unit kind (or task kind) and the operation that took the time."""

    name: str
    cause: str
    operation: str
    ps: int


@dataclass(frozen=True, slots=True)
class Gap:
    """``makespan_ps == bound_ps + sum(part.ps)``; parts are positive, the largest first."""

    makespan_ps: int
    bound_ps: int
    bound_by: str
    parts: tuple[Part, ...]

    @property
    def total_ps(self) -> int:
        return self.makespan_ps - self.bound_ps

    def by_name(self) -> dict[str, int]:
        """Name -> picoseconds, the largest first."""
        total: dict[str, int] = {}
        for part in self.parts:
            total[part.name] = total.get(part.name, 0) + part.ps
        return dict(sorted(total.items(), key=lambda item: (-item[1], item[0])))

    def sentence(self, most: int = 3) -> str:
        """``simulated is 1.12 x the bound (HBM); of the 12 %: 7 exposed all_gather, 3 pipeline fill, 2 latency``.

        Percentages are of the bound, and rounded so that those named add up to the whole.
        """
        if not self.bound_ps:
            return "nothing bounds this run from below"
        by = RESOURCES.get(self.bound_by, self.bound_by)
        head = f"simulated is {self.makespan_ps / self.bound_ps:.2f} x the bound ({by})"
        if not self.total_ps:
            return f"{head}: nothing is lost"
        named = list(self.by_name().items())
        shown = named[:most] + ([("others", sum(ps for _, ps in named[most:]))] if len(named) > most else [])
        percent = 100 * self.total_ps / self.bound_ps
        digits = 0 if percent >= 10 else 1 - math.floor(math.log10(percent))  # two that count
        shares = _rounded([100 * ps / self.bound_ps for _, ps in shown], percent, digits)
        listed = ", ".join(
            f"{share:.{digits}f} {name}" for share, (name, _) in zip(shares, shown, strict=True) if share
        )
        return f"{head}; of the {percent:.{digits}f} %: {listed}"


def _rounded(shares: list[float], whole: float, digits: int) -> list[float]:
    """Shares rounded so that they add up to the rounded whole: the largest remainders are rounded up."""
    unit = 10.0**-digits
    floors = [int(share / unit) for share in shares]
    missing = round(whole / unit) - sum(floors)
    by_remainder = sorted(range(len(shares)), key=lambda i: floors[i] - shares[i] / unit)
    for i in by_remainder[: max(missing, 0)]:
        floors[i] += 1
    return [floor * unit for floor in floors]


def gap_of(result: RunResult) -> Gap:
    """The gap of a run, taken apart.

    >>> import simcore
    >>> found = gap_of(simcore.run_scenario("double_buffering"))
    >>> found.total_ps, found.by_name()
    (25000000, {'pipeline drain': 25000000})
    """
    flat, hardware = flat_of(result), Hardware(result.chip, result.ideal)
    return gap(result.timeline, flat, hardware, bounds(result.timeline, flat, hardware))


def gap(timeline: Timeline, flat: FlatGraph, hardware: Hardware, found: Bounds) -> Gap:
    """The gap between a run of ``flat`` and the best of the bounds ``found``."""
    makespan = timeline.makespan_ps
    if not makespan:
        return Gap(0, 0, "none", ())
    take = _Parts(timeline, Walker(timeline), _Excess.of(flat, hardware, timeline))
    if found.lane >= 0:
        position = _along_lane(take, found.lane)
    else:
        position = _along_chain(take, found)
    last = int(np.flatnonzero(timeline.done_ps == makespan)[-1])
    for stretch in take.walker.through(last, position) if position < makespan else ():
        take.idle(stretch, DRAIN)
    parts = sorted(
        (Part(*key, ps) for key, ps in take.total.items() if ps), key=lambda part: (-part.ps, part.name, part.operation)
    )
    return Gap(makespan, found.best_ps, found.best, tuple(parts))


@dataclass(frozen=True, slots=True)
class _Excess:
    """For every instance, what its service takes beyond the ideal one, in the order of what causes it."""

    issue: IntArray
    efficiency: IntArray
    work: IntArray
    """service with efficiencies of 1 and without issue cost"""
    ideal: Price

    @classmethod
    def of(cls, flat: FlatGraph, hardware: Hardware, timeline: Timeline) -> _Excess:
        pricer = Pricer(flat)
        now, ideal = pricer(hardware), pricer(Hardware(hardware.chip, ideal=True))
        full = pricer(Hardware(_sustained(hardware.chip), hardware.ideal))
        return cls(now.issue_ps, now.service_ps - full.service_ps, full.service_ps, ideal)


def _sustained(chip: Chip) -> Chip:
    return chip.replace(efficiency=1.0) if chip.efficiency else chip


@dataclass
class _Parts:
    """Collects the parts."""

    timeline: Timeline
    walker: Walker
    excess: _Excess
    total: dict[tuple[str, str, str], int] = field(default_factory=dict)

    def add(self, name: str, row: int, ps: int, cause: str = "") -> None:
        if ps:
            key = name, cause or self.cause(row), self.operation(row)
            self.total[key] = self.total.get(key, 0) + ps

    def cause(self, row: int) -> str:
        """Kind of the row's unit, or its own kind where it has none."""
        if row < 0:
            return IDLE
        lane = int(self.timeline.lane[row])
        return self.timeline.lanes[lane].kind if lane >= 0 else self.timeline.kind_names[int(self.timeline.kind[row])]

    def operation(self, row: int) -> str:
        return self.timeline.operation_names[int(self.timeline.operation[row])] if row >= 0 else ""

    def resource(self, row: int) -> str:
        cause = self.cause(row)
        return RESOURCES.get(cause, cause)

    def idle(self, stretch: Stretch, phase: str = "") -> None:
        """An interval in which the spine does nothing, by what was done meanwhile."""
        row = stretch.row
        cause = self.cause(row)
        if stretch.part == IDLE:
            name = IDLE
        elif cause in COMMUNICATION:
            name = f"exposed {self.operation(row)}" if stretch.part == SERVICE else LATENCY
        else:
            name = phase or f"waiting for {self.resource(row)}"
        self.add(name, row, stretch.ps)

    def served(self, row: int, bare_ps: int, issue_ps: int) -> None:
        """A service on the spine beyond its bare work, of which ``issue_ps`` of the issue cost is not in the bound."""
        excess = self.excess
        self.add("issue costs", row, issue_ps)
        self.add(f"efficiency of {self.resource(row)}", row, int(excess.efficiency[row]))
        self.add(f"padding and filling of {self.resource(row)}", row, int(excess.work[row]) - bare_ps)


def _along_lane(take: _Parts, lane: int) -> int:
    """The parts along a lane; returns the end of its last service."""
    t, walker = take.timeline, take.walker
    rows = t.rows_of_lane(lane).tolist()
    works, issues = t.work_ps.tolist(), take.excess.issue.tolist()
    position, begun = 0, False
    for row in rows:
        if walker.start[row] > position:
            for stretch in walker.behind(row, walker.start[row], position):
                take.idle(stretch, "" if begun else FILL)
        take.served(row, works[row], issues[row])
        position = walker.end[row]
        begun = begun or walker.end[row] > walker.start[row]
    return position


def _along_chain(take: _Parts, found: Bounds) -> int:
    """The parts along the longest chain of dependencies; returns its last completion."""
    t, walker, ideal = take.timeline, take.walker, take.excess.ideal
    position = 0
    for row, lag in zip(found.chain.rows, found.chain.links, strict=True):
        ready, granted, start = int(t.ready_ps[row]), int(t.granted_ps[row]), walker.start[row]
        for stretch in walker.behind(row, ready, position) if ready > position else ():
            behind_own_unit = stretch.row >= 0 and t.lane[stretch.row] == t.lane[row] >= 0 and stretch.part == SERVICE
            take.idle(stretch, f"queueing for {take.resource(row)}" if behind_own_unit else "")
        position = max(position, ready)
        take.add("waiting for buffers", row, max(granted - position, 0))
        position = max(position, granted)
        take.add(f"queueing for {take.resource(row)}", row, max(start - position, 0))
        if lag >= 0:
            position = start + lag
            continue
        take.served(row, int(ideal.service_ps[row]), int(take.excess.issue[row] - ideal.issue_ps[row]))
        take.add(LATENCY, row, int(t.done_ps[row]) - walker.end[row] - int(ideal.latency_ps[row]))
        position = walker.done[row]
    return position
