"""Two runs against each other, and a run against what was measured.

Differences are by operation, by kind of wait and by resource. The time of a run is charged to its operations: what the
busiest chip's MXU or VPU computes to the operation that it computes (the one that began first, where two overlap), and
what it waits for to the operation that it waits for. So the operations' times add up to the run's, as the operations of
a profile that run one after the other do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from simcore.explain import exposed
from simcore.exposure import compute_rows
from simcore.quantities import format_bytes, format_seconds
from simcore.result import RunResult
from simcore.running import busiest_chip
from simcore.timeline import PS_PER_S

FILL = "(nothing yet, or no more)"
"""What time is charged to in which no operation is computed or waited for."""


def charged_s(result: RunResult) -> dict[str, float]:
    """Operation -> the part of the run's time that is charged to it; the parts add up to the time."""
    timeline = result.timeline
    if not timeline.entities:
        return {}
    chip = busiest_chip(timeline)
    charged: dict[str, int] = {}
    reached = 0
    rows = compute_rows(timeline, chip)
    for row in rows.tolist():
        start, end = int(timeline.start_ps[row]), int(timeline.end_ps[row])
        alone = end - max(start, reached)
        if alone > 0:
            name = timeline.operation_names[int(timeline.operation[row])]
            charged[name] = charged.get(name, 0) + alone
            reached = end
    for one in exposed(timeline, chip):
        name = one.operation or FILL
        charged[name] = charged.get(name, 0) + one.ps
    return {name: ps / PS_PER_S for name, ps in sorted(charged.items(), key=lambda item: (-item[1], item[0]))}


@dataclass(frozen=True, slots=True)
class Difference:
    """One quantity in both runs."""

    name: str
    a: float
    b: float

    @property
    def change(self) -> float:
        """b - a."""
        return self.b - self.a


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs: ``a``, and ``b`` that is held against it."""

    label_a: str
    label_b: str
    a: RunResult
    b: RunResult

    @property
    def speed_up(self) -> float:
        """How many times as fast b is."""
        return self.a.time_s / self.b.time_s if self.b.time_s else 1.0

    def operations(self) -> list[Difference]:
        """Time charged to each operation; the changes add up to that of the time."""
        return _differences(charged_s(self.a), charged_s(self.b))

    def waits(self) -> list[Difference]:
        """Busy time and waits of the busiest chips, by cause; the changes add up to that of the time."""
        tables = [{"busy": one.busy_s, **one.exposed_s} for one in (self.a, self.b)]
        return _differences(*tables)

    def resources(self) -> list[Difference]:
        """Work over peak rate of each resource's busiest instance."""
        return _differences(self.a.bounds_s, self.b.bounds_s)

    def bytes(self) -> list[Difference]:
        """Bytes over each interface, all chips together."""
        return _differences(self.a.bytes, self.b.bytes)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""

        def plain(rows: list[Difference]) -> dict[str, dict[str, float]]:
            return {row.name: {"a": row.a, "b": row.b, "change": row.change} for row in rows}

        return {
            "a": {"label": self.label_a, **self.a.to_json()},
            "b": {"label": self.label_b, **self.b.to_json()},
            "speed_up": self.speed_up,
            "operations_s": plain(self.operations()),
            "waits_s": plain(self.waits()),
            "resources_s": plain(self.resources()),
            "bytes": plain(self.bytes()),
        }

    def finding(self) -> str:
        """The comparison in a line."""
        times = [format_seconds(one.time_s) for one in (self.a, self.b)]
        what = f"{self.speed_up:.3g} x as fast" if self.speed_up >= 1 else f"{1 / self.speed_up:.3g} x as slow"
        return f"{self.label_a} {times[0]}, {self.label_b} {times[1]}: {what}"

    def report(self, most: int = 12) -> str:
        """The comparison as a page of text."""
        parts = [f"{self.a.scenario}: {self.finding()}"]
        for title, rows, written in (
            ("where the time goes", self.waits(), format_seconds),
            ("time by operation", self.operations(), format_seconds),
            ("work of each resource", self.resources(), format_seconds),
            ("bytes moved", self.bytes(), format_bytes),
        ):
            parts += ["", title, *difference_lines(rows, self.label_a, self.label_b, written, most)]
        return "\n".join(parts)


def difference_lines(rows: list[Difference], label_a: str, label_b: str, written: Any, most: int) -> list[str]:
    """A table of differences, the largest first."""
    shown = [("", label_a, label_b, "change")]
    for row in rows[:most]:
        sign = "+" if row.change > 0 else "-" if row.change < 0 else ""
        change = f"{sign}{written(abs(row.change))}" if sign else "same"
        shown.append((row.name, written(row.a), written(row.b), change))
    if len(rows) > most:
        shown.append((f"{len(rows) - most} others", "", "", ""))
    widths = [max(len(cell) for cell in column) for column in zip(*shown, strict=True)]
    lines = []
    for first, *numbers in shown:
        cells = [first.ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(numbers, widths[1:], strict=True))]
        lines.append("  " + "  ".join(cells))
    return lines


def _differences(a: Mapping[str, float], b: Mapping[str, float]) -> list[Difference]:
    names = dict.fromkeys([*a, *b])
    found = [Difference(name, a.get(name, 0), b.get(name, 0)) for name in names]
    return sorted((row for row in found if row.a or row.b), key=lambda row: -abs(row.change))


def compare(a: RunResult, b: RunResult, label_a: str = "a", label_b: str = "b") -> Comparison:
    """Hold run ``b`` against run ``a``."""
    return Comparison(label_a, label_b, a, b)
