"""What-ifs: a scenario simulated again with other figures of the chip, one row a change.

Every change is really simulated: the scenario is built and lowered anew, so that tiles and algorithms may be chosen
otherwise. Beside it stands what the frozen order of the base run predicts (`simcore.sensitivity.Study.predicted_ps`):
where the two differ, the order of service or the program itself has changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from simcore.chips import Chip, load_chip
from simcore.chips.figures import ALIASES, FIGURES, TABLES
from simcore.critical import critical_path
from simcore.errors import GraphError, ScenarioError, SimcoreError, nearest
from simcore.hardware import Hardware
from simcore.result import RunResult
from simcore.scenario import Scenario, load_scenario, run_scenario
from simcore.sensitivity import Study

SHORT = {
    "hbm": "hbm_bandwidth_bytes_per_s",
    "mxu": "peak_flops_per_s",
    "vpu": "vpu_flops_per_s",
    "ici": "ici_link_bandwidth_bytes_per_s",
    "nvlink": "nvlink_bandwidth_bytes_per_s",
    "nvlink_latency": "nvlink_latency_s",
    "pcie": "pcie_bandwidth_bytes_per_s",
    "pcie_latency": "pcie_latency_s",
    "dcn": "dcn_bandwidth_bytes_per_s_per_host",
    "network": "network_bandwidth_bytes_per_s_per_gpu",
    "network_bandwidth": "network_bandwidth_bytes_per_s_per_gpu",
    "network_latency": "network_latency_s",
    "launch": "launch_cost_s",
    "clock": "clock_hz",
}
"""Names of a unit that mean its rate, and others that are short, beside `simcore.chips.figures.ALIASES`."""

SEEN = 1e-3
"""Relative difference from what was predicted that is worth a note."""


def full_name(figure: str) -> str:
    """The chip figure behind a short or full name; raises `ScenarioError` with the nearest for an unknown one.

    >>> full_name("ici-latency"), full_name("mxu"), full_name("efficiency.hbm")
    ('ici_hop_latency_s', 'peak_flops_per_s', 'efficiency.hbm')
    """
    name = figure.strip().replace("-", "_")
    name = SHORT.get(name, ALIASES.get(name, name))
    entry = name.partition(".")[2]
    dtypes = TABLES["peak_flops_per_s"][1]
    known = {*FIGURES, *TABLES, *ALIASES, *SHORT, *(f"{dtype}_flops" for dtype in dtypes)}
    entries = {f"{table}.{entry}" for table, (_, all_entries) in TABLES.items() for entry in all_entries}
    if (name in known) if not entry else (name in entries):
        return name
    raise ScenarioError(f"no chip figure is called {figure!r}: {nearest(name, entries if entry else known)}")


def short_name(figure: str) -> str:
    """``hbm_bandwidth_bytes_per_s`` as "hbm_bandwidth", which ``--set`` takes as well."""
    return next((short for short, full in ALIASES.items() if full == figure), figure)


def read_sets(items: Sequence[str]) -> dict[str, str]:
    """``hbm_bandwidth=2x`` items as figure -> value, by full names."""
    sets: dict[str, str] = {}
    for item in items:
        figure, equals, value = item.partition("=")
        if not (figure.strip() and equals and value.strip()):
            raise ScenarioError(f"--set {item}: must be FIGURE=VALUE, e.g. hbm_bandwidth=2x or ici_latency=0.5x")
        name = full_name(figure)
        if name in sets:
            raise ScenarioError(f"--set {figure.strip()} is given twice")
        sets[name] = value.strip()
    return sets


@dataclass(frozen=True, slots=True)
class Change:
    """One change and what it gives.

    ``result`` is None where the changed scenario cannot be run; ``note`` then says why. ``predicted_s`` is what the
    base run's frozen order gives, None where that cannot be told (another program is not foreseen).
    """

    label: str
    figures: Mapping[str, Any]
    parameters: Mapping[str, Any]
    result: RunResult | None
    base_s: float
    predicted_s: float | None
    note: str = ""

    @property
    def time_s(self) -> float | None:
        return None if self.result is None else self.result.time_s

    @property
    def speedup(self) -> float | None:
        """How many times as fast as the base."""
        return self.base_s / self.result.time_s if self.result is not None and self.result.time_s else None

    @property
    def bottleneck(self) -> tuple[str, float]:
        """The resource with the largest share of the critical path, and that share."""
        return ("none", 0.0) if self.result is None else bottleneck(self.result)

    def to_json(self) -> dict[str, Any]:
        resource, share = self.bottleneck
        return {
            "change": self.label,
            "figures": dict(self.figures),
            "parameters": dict(self.parameters),
            "time_s": self.time_s,
            "speedup": self.speedup,
            "bottleneck": resource,
            "bottleneck_share": share,
            "bound_by": None if self.result is None else self.result.bound_by,
            "predicted_s": self.predicted_s,
            "note": self.note,
        }


def bottleneck(result: RunResult) -> tuple[str, float]:
    """The resource with the largest share of a run's critical path, and that share."""
    by_resource = critical_path(result.timeline).by_resource()
    resource = next(iter(by_resource), "none")
    makespan = result.timeline.makespan_ps
    return resource, by_resource[resource] / makespan if makespan else 0.0


@dataclass
class WhatIf:
    """A base run and its changes, in the order they were asked for; with several, all of them together come last."""

    scenario: Scenario
    base: RunResult
    engine: str
    given: Mapping[str, Any]
    changes: list[Change] = field(default_factory=list)
    chip: Chip | None = None

    @cached_property
    def study(self) -> Study:
        return Study(self.base)

    def change(
        self, figures: Mapping[str, Any], parameters: Mapping[str, Any] | None = None, label: str = ""
    ) -> Change:
        """Simulate one change of the chip's figures, or of the scenario's parameters.

        Raises `ChipError` for a figure that the chip does not have or a value that it cannot be.
        """
        assert self.chip is not None
        parameters = dict(parameters or {})
        label = label or ", ".join(f"{name}={value}" for name, value in {**figures, **parameters}.items())
        chip = self.chip.replace(**figures)
        try:
            result = run_scenario(
                self.scenario,
                chip=chip,
                ideal=self.base.ideal,
                engine=self.engine,
                parameters={**self.given, **parameters},
            )
        except SimcoreError as error:
            return Change(label, figures, parameters, None, self.base.time_s, None, f"cannot be run: {error}")
        predicted = None if parameters else self._predicted(result.chip)
        note = self._note(figures, result)
        if not note and predicted is not None and abs(predicted - result.time_s) > SEEN * result.time_s:
            note = "its program or order differs"
        return Change(label, figures, parameters, result, self.base.time_s, predicted, note)

    @property
    def is_whole(self) -> bool:
        """Whether the base's timeline is all of its time, not one step of many."""
        return abs(self.base.time_s - self.base.timeline.makespan_s) <= 1e-9 * self.base.time_s

    def _predicted(self, chip: Chip) -> float | None:
        if not self.is_whole:
            return None
        try:
            return self.study.predicted_ps(chip) / 1e12
        except GraphError:
            return None

    def _note(self, figures: Mapping[str, Any], result: RunResult) -> str:
        over = [memory for memory in result.overflowing_memories if memory not in self.base.overflowing_memories]
        if over:
            return f"does not fit in {', '.join(over)}"
        fits = [memory for memory in self.base.overflowing_memories if memory not in result.overflowing_memories]
        if fits:
            return f"now fits in {', '.join(fits)}"
        if result.time_s != self.base.time_s or not figures:
            return ""
        return f"no change: {self._why(result.chip)}"

    def _why(self, chip: Chip) -> str:
        """Why another chip gives the same time."""
        try:
            before, after = self.study.pricer(self.study.hardware), self.study.pricer(Hardware(chip, self.base.ideal))
        except GraphError:
            return "it takes as long"
        columns = ("duration_ps", "latency_ps")
        if all(np.array_equal(getattr(before, c), getattr(after, c)) for c in columns):
            return "this run does not depend on it"
        return "it is not on the critical path"

    def to_json(self) -> dict[str, Any]:
        resource, share = bottleneck(self.base)
        return {
            "scenario": self.base.scenario,
            "parameters": dict(self.base.parameters),
            "chip": self.base.chip.name,
            "ideal": self.base.ideal,
            "engine": self.base.engine,
            "time_s": self.base.time_s,
            "bound_s": self.base.bound_s,
            "bound_by": self.base.bound_by,
            "bottleneck": resource,
            "bottleneck_share": share,
            "changes": [change.to_json() for change in self.changes],
        }


def prepared(
    scenario: str | Path | Scenario,
    *,
    chip: str | Path | Chip | None = None,
    figures: Mapping[str, Any] | None = None,
    ideal: bool = False,
    engine: str = "auto",
    parameters: Mapping[str, Any] | None = None,
) -> WhatIf:
    """The base run, ready to be changed; arguments as for `simcore.run_scenario`."""
    loaded, given = load_scenario(scenario), dict(parameters or {})
    used = load_chip(loaded.default_chip if chip is None else chip).replace(**(figures or {}))
    base = run_scenario(loaded, chip=used, ideal=ideal, engine=engine, parameters=given)
    return WhatIf(loaded, base, engine, given, chip=used)


def whatif(
    scenario: str | Path | Scenario,
    sets: Mapping[str, Any] | Sequence[str],
    *,
    chip: str | Path | Chip | None = None,
    ideal: bool = False,
    engine: str = "auto",
    parameters: Mapping[str, Any] | None = None,
) -> WhatIf:
    """Simulate a scenario, and again with each change of ``sets``; with several, all of them together as well.

    Parameters
    ----------
    sets : figure -> value or factor, ``{"hbm_bandwidth": "2x"}``, or texts, ``["hbm_bandwidth=2x"]``. Short names and
        the chip's own are taken.
    chip, ideal, engine, parameters : as for `simcore.run_scenario`.

    Raises `ScenarioError` for a misspelt figure and `ChipError` for an impossible value, before anything is simulated.

    >>> import simcore
    >>> found = whatif("ring_allgather", {"ici_bandwidth": "2x"}, ideal=True)
    >>> print(f"{found.changes[0].speedup:.2f}")
    1.99
    """
    items = [f"{figure}={value}" for figure, value in sets.items()] if isinstance(sets, Mapping) else list(sets)
    named = read_sets(items)
    loaded = load_scenario(scenario)
    used = load_chip(loaded.default_chip if chip is None else chip)
    used.replace(**named)
    found = prepared(loaded, chip=used, ideal=ideal, engine=engine, parameters=parameters)
    for label, (figure, value) in zip(items, named.items(), strict=True):
        found.changes.append(found.change({figure: value}, label=label))
    if len(named) > 1:
        found.changes.append(found.change(named, label="all together"))
    return found
