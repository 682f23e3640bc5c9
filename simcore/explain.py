"""Why a run takes what it takes, and what would help: everything of the page of ``simcore explain``, as values.

The time, its bounds and the gap taken apart (`simcore.gap`), the critical path's resources (`simcore.critical`), what
compute waited for by cause, operation and layer, who holds each memory at its peak, how the time answers to each figure
of the chip (`simcore.sensitivity`), and the changes that help most, each simulated (`simcore.whatif`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from simcore.bounds import Bounds
from simcore.chips import Chip
from simcore.critical import IDLE, SERVICE, CriticalPath, Stretch, Walker, critical_path
from simcore.errors import GraphError, ScenarioError, nearest
from simcore.exposure import COMMUNICATION, busy_intervals, compute_rows
from simcore.gap import Gap, gap
from simcore.memory import alive_at_peak, peak_bytes
from simcore.quantities import format_seconds
from simcore.result import RunResult
from simcore.running import busiest_chip
from simcore.scenario import Scenario
from simcore.sensitivity import Sensitivity
from simcore.timeline import COMPUTE_UNITS, PS_PER_S, Timeline
from simcore.whatif import Change, WhatIf, prepared, short_name

HELPING = 3
TRIED = 4
"""How many changes are shown, and how many of the figures that promise most are tried for them."""
LEAST_GAIN = 1e-4
RANGES_UP_TO = 20_000
"""Tasks up to which the ranges of the sensitivities are looked for."""


@dataclass(frozen=True, slots=True)
class Exposed:
    """Idle time of the busiest chip: its cause (see `simcore.exposure`), and the operation and layer waited for."""

    cause: str
    operation: str
    layer: int
    ps: int


@dataclass(frozen=True, slots=True)
class Held:
    """A memory at its peak on the fullest chip: who holds how much of it."""

    memory: str
    peak_bytes: int
    capacity_bytes: int | None
    holders: tuple[tuple[str, int], ...]


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """All that is on the page."""

    result: RunResult
    bounds: Bounds
    gap: Gap
    path: CriticalPath
    exposed: tuple[Exposed, ...]
    memories: tuple[Held, ...]
    sensitivities: tuple[Sensitivity, ...]
    changes: tuple[Change, ...]
    notes: tuple[str, ...] = ()

    def report(self, width: int = 80) -> str:
        """The page as plain text."""
        from simcore.views.explain_page import page_text

        return page_text(self, width)

    def to_json(self) -> dict[str, Any]:
        """What ``--json`` prints: the figures of the run, and beside them why."""

        def seconds(by: Mapping[Any, int]) -> dict[str, float]:
            return {str(name): ps / PS_PER_S for name, ps in by.items()}

        return {
            **self.result.to_json(),
            "all_bounds_s": seconds(self.bounds.all_ps()),
            "best_bound_s": self.bounds.best_ps / PS_PER_S,
            "best_bound_by": self.bounds.best,
            "gap_s": self.gap.total_ps / PS_PER_S,
            "gap_ps": self.gap.total_ps,
            "gap_parts": [
                {"name": part.name, "cause": part.cause, "operation": part.operation, "ps": part.ps}
                for part in self.gap.parts
            ],
            "gap_sentence": self.gap.sentence(),
            "critical_path_s": {
                "by_resource": seconds(self.path.by_resource()),
                "by_kind": seconds(self.path.by_kind()),
                "by_operation": seconds(self.path.by_operation()),
                "by_layer": seconds(self.path.by_layer()),
            },
            "exposed_by": [
                {"cause": e.cause, "operation": e.operation, "layer": e.layer, "s": e.ps / PS_PER_S}
                for e in self.exposed
            ],
            "memory_holders": {
                held.memory: [{"name": name, "bytes": size} for name, size in held.holders] for held in self.memories
            },
            "sensitivities": [one.to_json() for one in self.sensitivities],
            "helping": [change.to_json() for change in self.changes],
        }


def explain(
    scenario: str | Path | Scenario,
    *,
    chip: str | Path | Chip | None = None,
    figures: Mapping[str, Any] | None = None,
    ideal: bool = False,
    engine: str = "auto",
    parameters: Mapping[str, Any] | None = None,
) -> Explanation:
    """Run a scenario and explain its time; arguments as for `simcore.run_scenario`.

    A scenario may name in ``LEVERS`` those of its parameters that leave the work the same (an order, an algorithm, an
    overlap): their other choices are tried beside the chip's figures.
    """
    base = prepared(scenario, chip=chip, figures=figures, ideal=ideal, engine=engine, parameters=parameters)
    return explained(base)


def explained(base: WhatIf) -> Explanation:
    """The explanation of a base run."""
    study, result = base.study, base.base
    notes = []
    if not base.is_whole:
        shown = format_seconds(result.timeline.makespan_s)
        notes.append(f"explained is the part whose timeline is kept, {shown}; the changes are of the whole")
    found: list[Sensitivity] = []
    try:
        found = study.sensitivities(ranges=len(study.flat) <= RANGES_UP_TO)
    except GraphError as error:
        notes.append(f"no sensitivities: {error}")
    return Explanation(
        result=result,
        bounds=study.bounds,
        gap=gap(result.timeline, study.flat, study.hardware, study.bounds),
        path=critical_path(result.timeline),
        exposed=tuple(exposed(result.timeline, busiest_chip(result.timeline))) if result.timeline.entities else (),
        memories=tuple(_held(result)),
        sensitivities=tuple(found),
        changes=tuple(helping(base)),
        notes=tuple(notes),
    )


def exposed(timeline: Timeline, entity: int) -> list[Exposed]:
    """The idle time of an entity by cause, operation and layer, the largest first.

    By cause it is the same as `simcore.exposure.exposed_ps`.
    """
    total: dict[tuple[str, str, int], int] = {}
    for stretch, phase in _idle(timeline, entity):
        cause = _cause(timeline, stretch)
        operation, layer = "", -1
        if stretch.row >= 0 and stretch.part != IDLE:
            operation = timeline.operation_names[int(timeline.operation[stretch.row])]
            layer = int(timeline.layer[stretch.row])
        key = (cause if not phase or cause in COMMUNICATION else phase), operation, layer
        total[key] = total.get(key, 0) + stretch.ps
    return sorted(
        (Exposed(*key, ps) for key, ps in total.items()), key=lambda e: (-e.ps, e.cause, e.operation, e.layer)
    )


def _idle(timeline: Timeline, entity: int) -> Iterator[tuple[Stretch, str]]:
    """What fills the entity's idle intervals; before its first computation with "fill", after its last with "drain"."""
    makespan, walker = timeline.makespan_ps, Walker(timeline)
    rows = compute_rows(timeline, entity)
    if not len(rows):
        if makespan:
            last = int(np.flatnonzero(timeline.done_ps == makespan)[-1])
            yield from ((stretch, "") for stretch in walker.through(last, 0))
        return
    busy = busy_intervals(timeline, rows)
    starts = timeline.start_ps[rows]
    yield from ((stretch, "fill") for stretch in walker.behind(int(rows[0]), busy[0][0], 0))
    for (_, idle_from), (idle_to, _) in pairwise(busy):
        row = int(rows[np.searchsorted(starts, idle_to)])
        yield from ((stretch, "") for stretch in walker.behind(row, idle_to, idle_from))
    own = np.flatnonzero(timeline.entity == entity)
    last = int(own[np.lexsort((own, timeline.done_ps[own]))[-1]])
    ended = max(busy[-1][1], walker.done[last])
    if ended < makespan:
        yield Stretch(-1, ended, makespan, IDLE), "drain"
    if busy[-1][1] < ended:
        yield from ((stretch, "drain") for stretch in walker.through(last, busy[-1][1]))


def _cause(timeline: Timeline, stretch: Stretch) -> str:
    """The cause as `simcore.exposure` names it."""
    if stretch.row < 0 or stretch.part == IDLE:
        return IDLE
    lane = int(timeline.lane[stretch.row])
    if lane < 0:
        return timeline.kind_names[int(timeline.kind[stretch.row])]
    kind = timeline.lanes[lane].kind
    if kind in COMPUTE_UNITS:
        return "bubble"
    return "latency" if kind in COMMUNICATION and stretch.part != SERVICE else kind


def _held(result: RunResult) -> Iterator[Held]:
    timeline = result.timeline
    for memory, peak in result.memory_peak_bytes.items():
        fullest = max(range(len(timeline.entities)), key=lambda entity: peak_bytes(timeline, entity, memory))
        holders = tuple((name, size) for name, size in alive_at_peak(timeline, fullest, memory) if size)
        yield Held(memory, peak, result.memory_capacity_bytes.get(memory), holders)


def helping(base: WhatIf) -> list[Change]:
    """The changes that help most, each simulated, the best first: at most three, and none that gains next to nothing.

    Tried are: each rate twice what it is and each latency or cost half of it, those first that the frozen order
    promises most of; VMEM twice as large; and the other choices of the scenario's ``LEVERS``.
    """
    tried = [
        base.change({figure: factor}, label=f"{short_name(figure)} {factor}") for figure, factor in _promising(base)
    ]
    tried += [
        base.change({}, {name: value}, label=f"--{name.replace('_', '-')} {value}") for name, value in _levers(base)
    ]
    gained = [c for c in tried if c.speedup is not None and c.speedup > 1 + LEAST_GAIN]
    return sorted(gained, key=lambda c: -(c.speedup or 0.0))[:HELPING]


def _promising(base: WhatIf) -> list[tuple[str, str]]:
    """Figures with their factors, those with the shortest predicted time first."""
    study, time_ps = base.study, base.base.timeline.makespan_ps
    promised: list[tuple[int, str, str]] = []
    try:
        for knob in study.parts:
            predicted = study.predicted_ps(knob.at(base.base.chip, 0.5))
            if predicted < time_ps * (1 - LEAST_GAIN):
                promised.append((predicted, knob.figure, "2x" if knob.is_rate else "0.5x"))
    except GraphError:
        promised = [(0, knob.figure, "2x" if knob.is_rate else "0.5x") for knob in study.parts]
    chosen = [(figure, factor) for _, figure, factor in sorted(promised)[:TRIED]]
    return [*chosen, ("vmem_capacity_bytes", "2x")] if "vmem" in base.base.memory_peak_bytes else chosen


def _levers(base: WhatIf) -> Iterator[tuple[str, Any]]:
    """The other choices of the parameters that the scenario names as levers."""
    names = getattr(base.scenario.module, "LEVERS", ())
    flags = {flag.name: flag for flag in base.scenario.flags}
    for name in names:
        if name not in flags:
            raise ScenarioError(f"scenario {base.scenario.name}: LEVERS: no parameter {name!r}: {nearest(name, flags)}")
        flag, now = flags[name], base.base.parameters.get(name)
        choices = (True, False) if flag.is_switch else flag.choices or ()
        yield from ((name, choice) for choice in choices if choice != now)
