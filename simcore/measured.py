"""Measured times of operations, read from a table or a profile, and held against a simulated run.

- A CSV file with a column ``name``, one of ``duration_s``, ``duration_ms``, ``duration_us``, ``duration_ns`` or
  ``duration_ps``, and if there is one a ``count``: durations are those of one occurrence.
- A JAX profile, ``*.trace.json.gz``: Chrome trace events; those of a device's line "XLA Ops" count, added up by name.

Names are matched as they are, then without the numbers that a compiler appends (``fusion.12``), then by aliases that
the user gives.
"""

from __future__ import annotations

import csv
import gzip
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simcore.comparison import FILL, Difference, charged_s, difference_lines
from simcore.errors import SimcoreError, nearest
from simcore.quantities import format_seconds
from simcore.result import RunResult

UNITS = {"duration_s": 1.0, "duration_ms": 1e-3, "duration_us": 1e-6, "duration_ns": 1e-9, "duration_ps": 1e-12}
NUMBERED = re.compile(r"(?:[._-]?\d+)+$")
OPS_LINE = "XLA Ops"


class MeasuredError(SimcoreError):
    """A file of measured times that can't be read."""


def read_measured(path: str | Path) -> dict[str, float]:
    """Operation -> seconds of all its occurrences. Raises `MeasuredError` that names the place."""
    path = Path(path)
    if not path.is_file():
        raise MeasuredError(f"measured times {path}: there is no such file")
    if path.name.endswith((".json", ".json.gz")):
        return _from_trace(path)
    if path.suffix.lower() == ".csv":
        return _from_csv(path)
    raise MeasuredError(f"measured times {path}: a .csv, a .trace.json.gz or a .json is meant")


def _from_csv(path: Path) -> dict[str, float]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            columns = reader.fieldnames or []
            unit = next((column for column in columns if column in UNITS), None)
            if "name" not in columns or unit is None:
                raise MeasuredError(
                    f"{path}: needs the columns name and one of {', '.join(UNITS)}; it has "
                    f"{', '.join(columns) or 'none'}"
                )
            found: dict[str, float] = {}
            for number, row in enumerate(reader, start=2):
                try:
                    seconds = float(row[unit]) * UNITS[unit]
                    count = float(row["count"]) if "count" in columns and row["count"] else 1.0
                except (TypeError, ValueError):
                    raise MeasuredError(f"{path}, line {number}: {row[unit]!r} or its count is no number") from None
                if not (math.isfinite(seconds) and seconds >= 0 and math.isfinite(count) and count >= 0):
                    raise MeasuredError(f"{path}, line {number}: a duration and a count are 0 or more")
                found[str(row["name"])] = found.get(str(row["name"]), 0.0) + seconds * count
    except UnicodeDecodeError:
        raise MeasuredError(f"{path} is no text: a CSV file is meant") from None
    if not found:
        raise MeasuredError(f"{path} has no rows")
    return found


def _from_trace(path: Path) -> dict[str, float]:
    try:
        raw = path.read_bytes()
        data = json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)
        events = data["traceEvents"] if isinstance(data, dict) else data
        named = [event for event in events if event.get("ph") == "M"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise MeasuredError(f"{path} is no Chrome trace: {error}") from None
    devices = {e["pid"] for e in named if e.get("name") == "process_name" and _is_device(e)}
    lines = {
        (e["pid"], e.get("tid"))
        for e in named
        if e.get("name") == "thread_name" and e["pid"] in devices and e.get("args", {}).get("name") == OPS_LINE
    }
    if not lines:
        raise MeasuredError(f'{path}: no device has a line "{OPS_LINE}"')
    first = min(lines, key=str)
    found: dict[str, float] = {}
    for event in events:
        if event.get("ph") == "X" and (event.get("pid"), event.get("tid")) == first:
            name = str(event.get("name", ""))
            found[name] = found.get(name, 0.0) + float(event.get("dur", 0.0)) * 1e-6
    if not found:
        raise MeasuredError(f'{path}: the line "{OPS_LINE}" has no events')
    return found


def _is_device(event: Mapping[str, Any]) -> bool:
    return "/device:" in str(event.get("args", {}).get("name", ""))


def normalised(name: str) -> str:
    """A name without the numbers at its end: ``fusion.12`` as ``fusion``."""
    return NUMBERED.sub("", name) or name


@dataclass(frozen=True, slots=True)
class AgainstMeasured:
    """A run held against measured times: matched operations, and those that only one side has."""

    result: RunResult
    matched: tuple[Difference, ...]
    """``a`` is measured, ``b`` simulated"""
    only_measured: Mapping[str, float]
    only_simulated: Mapping[str, float]

    @property
    def measured_s(self) -> float:
        return sum(row.a for row in self.matched) + sum(self.only_measured.values())

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "scenario": self.result.scenario,
            "time_s": self.result.time_s,
            "measured_s": self.measured_s,
            "matched": {
                row.name: {"measured_s": row.a, "simulated_s": row.b, "difference_s": row.change}
                for row in self.matched
            },
            "only_measured_s": dict(self.only_measured),
            "only_simulated_s": dict(self.only_simulated),
        }

    def report(self, most: int = 30) -> str:
        """The comparison as a page of text."""
        ratio = self.result.time_s / self.measured_s if self.measured_s else 0.0
        parts = [
            f"{self.result.scenario}: measured {format_seconds(self.measured_s)}, simulated "
            f"{format_seconds(self.result.time_s)} ({ratio:.3g} x)",
            "",
            "time by operation, the largest difference first",
            *difference_lines(list(self.matched), "measured", "simulated", format_seconds, most),
        ]
        for title, rest in (("only measured", self.only_measured), ("only simulated", self.only_simulated)):
            if rest:
                listed = [f"{name} {format_seconds(seconds)}" for name, seconds in list(rest.items())[:most]]
                more = f", {len(rest) - most} others" if len(rest) > most else ""
                parts += ["", f"{title}: {', '.join(listed)}{more}"]
        return "\n".join(parts)


def against_measured(
    result: RunResult, measured: Mapping[str, float], aliases: Mapping[str, str] | None = None
) -> AgainstMeasured:
    """Match operations by name and hold their times against each other.

    ``aliases`` are simulated name -> measured name. Raises `MeasuredError` for an alias of what is not there.
    """
    simulated = charged_s(result)
    left = dict(measured)
    pairs: dict[str, tuple[float, float]] = {}
    for ours, theirs in (aliases or {}).items():
        for name, known, side in ((ours, simulated, "simulated"), (theirs, measured, "measured")):
            if name not in known:
                raise MeasuredError(f"alias {ours}={theirs}: no {side} operation {name!r}, {nearest(name, known)}")
        pairs[ours] = (left.pop(theirs, 0.0), simulated[ours])
    for ours, seconds in simulated.items():
        if ours not in pairs and ours in left:
            pairs[ours] = (left.pop(ours), seconds)
    by_stem: dict[str, list[str]] = {}
    for theirs in left:
        by_stem.setdefault(normalised(theirs), []).append(theirs)
    for ours, seconds in simulated.items():
        names = by_stem.pop(normalised(ours), []) if ours not in pairs else []
        if names:
            pairs[ours] = (sum(left.pop(name) for name in names), seconds)
    rows = sorted((Difference(name, a, b) for name, (a, b) in pairs.items()), key=lambda row: -abs(row.change))
    rest = {name: seconds for name, seconds in simulated.items() if name not in pairs and (seconds or name != FILL)}
    return AgainstMeasured(result, tuple(rows), dict(sorted(left.items(), key=lambda item: -item[1])), rest)
