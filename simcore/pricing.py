"""What each instance of a flat graph costs on another chip, without unrolling it again, and how a figure changes that.

`price` gives service, issue and latency of every instance on any hardware. `Knob` is one rate or latency of a chip;
along it every duration is affine, or the larger of an affine part and a constant (a vector unit's memory traffic beside
its operations), in ``u``: a latency is multiplied by ``u`` and a rate divided by it, so that more ``u`` is always
slower. `affine` measures these parts on the units' own models, with the figure very large and very small.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from simcore.chips import Chip
from simcore.chips.figures import FIGURES, TABLES
from simcore.graph.flat import FlatGraph, IntArray
from simcore.graph.graph import Task
from simcore.graph.work import NOTHING, moved_bytes
from simcore.hardware import Hardware, UnitModel
from simcore.quantities import parse_bandwidth, parse_flops_per_s, parse_seconds

FloatArray = npt.NDArray[np.float64]

LAUNCH = "launch"
"""Kind of the tasks whose fixed work is the chip's launch cost."""


@dataclass(frozen=True, slots=True)
class Price:
    """Columns over instances, in picoseconds: service without issue cost, issue cost, and latency after the service."""

    service_ps: IntArray
    issue_ps: IntArray
    latency_ps: IntArray

    @property
    def duration_ps(self) -> IntArray:
        return self.service_ps + self.issue_ps


@dataclass
class Pricer:
    """Prices one flat graph on several hardwares; what a change does not touch is not worked out again."""

    flat: FlatGraph
    rows: list[IntArray] = field(init=False)
    known: dict[tuple[int, bool], list[tuple[UnitModel, Price]]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        order = np.argsort(self.flat.template, kind="stable")
        cuts = np.searchsorted(self.flat.template[order], np.arange(len(self.flat.templates) + 1))
        self.rows = [order[cuts[i] : cuts[i + 1]] for i in range(len(self.flat.templates))]

    def __call__(self, hardware: Hardware) -> Price:
        n = len(self.flat)
        columns = tuple(np.zeros(n, dtype=np.int64) for _ in range(3))
        for number, task in enumerate(self.flat.templates):
            rows = self.rows[number]
            if len(rows):
                found = self._template(number, task, hardware)
                for column, values in zip(columns, (found.service_ps, found.issue_ps, found.latency_ps), strict=True):
                    column[rows] = values
        return Price(*columns)

    def _template(self, number: int, task: Task, hardware: Hardware) -> Price:
        absent = task.overhead and hardware.ideal
        unit = None if absent else task.unit
        kind = self.flat.graph.classes[task.cls].units[unit].kind if unit else "server"
        model = hardware.model(kind)
        known = self.known.setdefault((number, absent), [])
        for other, found in known:
            if other == model:
                return found
        iteration = self.flat.iteration[self.rows[number]]
        work = NOTHING if absent else task.work

        def each(amount: object) -> IntArray:
            whole = np.broadcast_to(np.asarray(amount).astype(np.int64), task.counts).reshape(-1)
            return whole[iteration]

        moved = each(moved_bytes(work))
        issue = task.issue_ps if task.issue_ps is not None else np.where(moved > 0, model.issue_ps, 0)
        latency = task.latency_ps if task.latency_ps is not None else np.where(moved > 0, model.latency_ps, 0)
        made = Price(
            each(model.service_ps(work)),
            np.broadcast_to(np.asarray(0 if absent else issue, dtype=np.int64), moved.shape),
            np.broadcast_to(np.asarray(0 if absent else latency, dtype=np.int64), moved.shape),
        )
        known.append((model, made))
        return made


def price(flat: FlatGraph, hardware: Hardware) -> Price:
    """What every instance of ``flat`` costs on ``hardware``: the same as unrolling the graph for it."""
    return Pricer(flat)(hardware)


@dataclass(frozen=True, slots=True)
class Knob:
    """One rate or latency of a chip: ``peak_flops_per_s.bf16`` for an entry of a table."""

    figure: str
    is_rate: bool
    value: float

    def at(self, chip: Chip, u: float) -> Chip:
        """The chip with a latency times ``u``, or a rate over ``u``."""
        return chip.replace(**{self.figure: self.value / u if self.is_rate else self.value * u})

    def u_of(self, factor: float) -> float:
        """``u`` of a figure that is ``factor`` times what it is."""
        return 1 / factor if self.is_rate else factor


def knobs(chip: Chip) -> Iterator[Knob]:
    """Every rate and latency that the chip has and that is not zero."""
    for name, figure in FIGURES.items():
        value = getattr(chip, name)
        is_rate = figure.read in (parse_bandwidth, parse_flops_per_s) or name == "clock_hz"
        if value and (is_rate or figure.read is parse_seconds):
            yield Knob(name, is_rate, float(value))
    for dtype in TABLES["peak_flops_per_s"][1]:
        if dtype in chip.peak_flops_per_s:
            yield Knob(f"peak_flops_per_s.{dtype}", True, chip.peak_flops_per_s[dtype])


@dataclass(frozen=True, slots=True)
class Affine:
    """A column of durations as functions of u: max(floor, base + slope (u - 1)), exact at u = 1."""

    base: FloatArray
    slope: FloatArray
    floor: FloatArray

    def at(self, u: float) -> FloatArray:
        value: FloatArray = np.maximum(self.floor, self.base + self.slope * (u - 1.0))
        return value

    def right(self) -> FloatArray:
        """Derivative towards more u."""
        value: FloatArray = np.where(self.base >= self.floor, self.slope, 0.0)
        return value

    def left(self) -> FloatArray:
        """Derivative towards less u."""
        value: FloatArray = np.where(self.base > self.floor, self.slope, 0.0)
        return value


def affine(pricer: Pricer, hardware: Hardware, knob: Knob) -> tuple[Affine, Affine] | None:
    """Durations and latencies as functions of the knob's u; None where nothing depends on it."""
    if knob.figure == "launch_cost_s":
        return _launch(pricer.flat)
    base = pricer(hardware)
    far = 2.0**20
    longest = max((int(c.max()) for c in (base.duration_ps, base.latency_ps) if len(c)), default=0)
    while longest * far > 2.0**60:
        far /= 2

    def at(u: float) -> Price:
        return pricer(Hardware(knob.at(hardware.chip, u), hardware.ideal))

    high, higher, low = at(far), at(2 * far), at(1 / far)
    service, issue, latency = (
        _affine(far, *(getattr(price, column) for price in (base, high, higher, low)))
        for column in ("service_ps", "issue_ps", "latency_ps")
    )
    duration = Affine(service.base + issue.base, service.slope + issue.slope, service.floor + issue.floor)
    return (duration, latency) if duration.slope.any() or latency.slope.any() else None


def _affine(far: float, base: IntArray, high: IntArray, higher: IntArray, low: IntArray) -> Affine:
    """The parts of a column, from its values at u = 1, far, 2 far and 1 / far, each rounded to picoseconds."""
    constant = 2 * high - higher
    constant = np.where(np.abs(constant) <= 2, 0, constant)  # all but a matrix unit's filling is proportional
    slope = np.where(higher > high, (high - constant) / far, 0.0)
    real = constant + slope
    active = (slope > 0) & ((low < base) | (np.abs(real - base) <= 0.5))
    floor = np.where(slope > 0, np.minimum(low, base), base)
    return Affine(np.where(active | (slope == 0), base, real).astype(np.float64), slope, floor.astype(np.float64))


def _launch(flat: FlatGraph) -> tuple[Affine, Affine] | None:
    is_launch = np.array([task.kind == LAUNCH for task in flat.templates], dtype=bool)[flat.template]
    slope = np.where(is_launch, flat.duration_ps, 0).astype(np.float64)
    if not slope.any():
        return None
    base, none = flat.duration_ps.astype(np.float64), np.zeros(len(flat))
    latency = flat.latency_ps.astype(np.float64)
    return Affine(base, slope, base - slope), Affine(latency, none, latency)
