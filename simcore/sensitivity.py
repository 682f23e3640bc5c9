"""Sensitivity: how the makespan answers to every rate and latency of the chip, exactly, and how far that holds.

With the order of service of a run frozen (`simcore.replay`), the makespan is the longest path through tasks whose
durations are affine in ``u``, what a latency is multiplied by or a rate divided by (`simcore.pricing`). So it is
convex and piecewise linear in ``u``; its one-sided derivatives at the run itself are the largest and the smallest sum
of slopes over all critical paths. They differ only at a tie.

They hold while the makespan stays on that line and the order stays first come, first served. Both are shown for whole
intervals, not for points: between two values of ``u`` a time lies below its chord and above its tangent, and every
pair of rivals for a unit or a buffer keeps more than the rounding between the one's chord and the other's tangent, or
is tied for good (`simcore.forks`). The program itself is taken as it is: what the lowering would choose on another
chip, such as larger tiles, only a what-if shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from simcore.bounds import Bounds, bounds, flat_of
from simcore.chips import Chip
from simcore.forks import Forks
from simcore.graph.flat import FlatGraph, IntArray
from simcore.hardware import Hardware
from simcore.pricing import Affine, Knob, Pricer, affine, knobs
from simcore.replay import FloatArray, Frozen
from simcore.result import RunResult

FACTORS = (1.001, 1.01, 1.03, 1.1, 1.2, 1.4, 1.7, 2.0, 3.0, 4.0)
"""Factors of a figure, and one over them, up to which a range is looked for."""
REFINED = 8
MOST_CELLS = 20_000_000


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """The makespan as a function of one figure.

    Attributes
    ----------
    slope_slower, slope_faster : derivative of the makespan by ``u`` (a latency's factor, or one over a rate's), in
        picoseconds, towards more of it and towards less; different only where several critical paths tie.
    lowest, highest : factors of the figure between which the derivatives hold, looked for from a quarter to four times
        the figure; 1 where that cannot be shown even for a thousandth, None where it was not looked for.
    tasks : how many critical tasks depend on it: rounding adds up to as many picoseconds.
    """

    figure: str
    is_rate: bool
    value: float
    makespan_ps: int
    slope_slower: float
    slope_faster: float
    lowest: float | None
    highest: float | None
    tasks: int

    def _slope(self, u: float) -> float:
        return self.slope_slower if u > 1 else self.slope_faster

    def predicted_ps(self, factor: float) -> float:
        """The makespan with ``factor`` times the figure, along the derivative."""
        u = 1 / factor if self.is_rate else factor
        return self.makespan_ps + self._slope(u) * (u - 1)

    def holds(self, factor: float) -> bool:
        return self.lowest is not None and self.highest is not None and self.lowest <= factor <= self.highest

    def elasticity(self, up: bool = True) -> float:
        """Per cent of the makespan for one per cent more (or, not ``up``, less) of the figure, at the limit.

        Both have the sign of a rise of the figure: -0.62 is 0.62 % less time for 1 % more bandwidth.
        """
        slope = self.slope_slower if up != self.is_rate else self.slope_faster
        share = slope / self.makespan_ps if self.makespan_ps else 0.0
        return -share if self.is_rate else share

    @property
    def tie(self) -> bool:
        """Whether the two sides differ by more than the arithmetic does."""
        return abs(self.slope_slower - self.slope_faster) > 1e-6 * max(1.0, self.slope_slower)

    def derivative(self, up: bool = True) -> float:
        """Seconds of makespan per unit of the figure (a second, or a byte or FLOP per second)."""
        return self.elasticity(up) * self.makespan_ps / self.value / 1e12

    def to_json(self) -> dict[str, Any]:
        return {
            "figure": self.figure,
            "value": self.value,
            "elasticity_up": self.elasticity(True),
            "elasticity_down": self.elasticity(False),
            "derivative_up": self.derivative(True),
            "derivative_down": self.derivative(False),
            "holds_from_factor": self.lowest,
            "holds_to_factor": self.highest,
            "critical_tasks": self.tasks,
        }


@dataclass
class Study:
    """One run with all that is worked out about it only once."""

    result: RunResult

    @cached_property
    def flat(self) -> FlatGraph:
        return flat_of(self.result)

    @cached_property
    def hardware(self) -> Hardware:
        return Hardware(self.result.chip, self.result.ideal)

    @cached_property
    def bounds(self) -> Bounds:
        return bounds(self.result.timeline, self.flat, self.hardware)

    @cached_property
    def pricer(self) -> Pricer:
        return Pricer(self.flat)

    @cached_property
    def frozen(self) -> Frozen:
        return Frozen(self.flat, self.result.timeline)

    @cached_property
    def parts(self) -> dict[Knob, tuple[Affine, Affine]]:
        """Of every rate and latency that the run uses: durations and latencies as functions of it."""
        found = ((knob, affine(self.pricer, self.hardware, knob)) for knob in knobs(self.result.chip))
        return {knob: parts for knob, parts in found if parts is not None}

    def predicted_ps(self, chip: Chip) -> int:
        """The makespan of the same program, in the same order of service, on another chip."""
        if not len(self.flat):
            return 0
        cost = self.pricer(Hardware(chip, self.result.ideal))
        return int(self.frozen.makespans(cost.duration_ps[:, None], cost.latency_ps[:, None])[0])

    def sensitivities(self, ranges: bool = True) -> list[Sensitivity]:
        """Of every rate and latency that the run uses, that with most effect first; ``ranges=False`` looks for none.

        Raises `GraphError` where the order cannot be frozen.
        """
        if not len(self.flat) or not self.parts:
            return []
        found = _Slopes(self).found(ranges)
        return sorted(found, key=lambda s: (-max(abs(s.elasticity(True)), abs(s.elasticity(False))), s.figure))


def sensitivities(result: RunResult, ranges: bool = True) -> list[Sensitivity]:
    """How the makespan of a run answers to every rate and latency that it uses; see `Study.sensitivities`.

    >>> import simcore
    >>> ring = simcore.run_scenario("ring_allgather", ideal=True)
    >>> for one in sensitivities(ring):
    ...     print(one.figure, f"{one.elasticity():+.4f}")
    ici_link_bandwidth_bytes_per_s -0.9947
    ici_hop_latency_s +0.0053
    """
    return Study(result).sensitivities(ranges)


@dataclass
class _Slopes:
    """The derivatives and ranges of all knobs of one study."""

    study: Study
    knobs: list[Knob] = field(init=False)

    def __post_init__(self) -> None:
        study = self.study
        self.frozen, self.knobs = study.frozen, list(study.parts)
        flat = study.flat
        self.base = self.frozen.delays(*(c[:, None].astype(np.float64) for c in (flat.duration_ps, flat.latency_ps)))
        self.forks = Forks(self.frozen, self.base, self._kinds())
        self.makespan = study.result.timeline.makespan_ps
        self.last = np.flatnonzero(study.result.timeline.done_ps == self.makespan)
        self._slopes()
        self._depths()

    def _kinds(self) -> list[int]:
        """Numbers of delays that are the same functions of every figure."""
        parts = self.study.parts.values()
        columns = [c for pair in parts for part in pair for c in (part.base, part.slope, part.floor)]
        flat, n = self.study.flat, len(self.study.flat)
        table = np.stack([flat.duration_ps, flat.latency_ps, *columns], axis=1)
        kind = np.unique(table, axis=0, return_inverse=True)[1].reshape(-1)
        lags = np.arange(len(self.frozen.lags)) + 2 * n
        return [*kind.tolist(), *(kind + n).tolist(), *lags.tolist()]

    def _slopes(self) -> None:
        """Right and left derivatives of all nodes and of the makespan: over the edges that are tight, the extremes."""
        parts = list(self.study.parts.values())
        right = self.frozen.delays(*(np.stack([pair[i].right() for pair in parts], axis=1) for i in (0, 1)))
        left = self.frozen.delays(*(np.stack([pair[i].left() for pair in parts], axis=1) for i in (0, 1)))
        counted = self.frozen.delays(*(np.stack([(p[i].slope > 0) * 1.0 for p in parts], axis=1) for i in (0, 1)))
        n = len(self.study.flat)
        right[2 * n :] = left[2 * n :] = counted[2 * n :] = 0.0  # lags are what they are
        step = np.concatenate([right, -left, counted], axis=1)
        value = np.zeros((len(self.frozen.incoming), step.shape[1]))
        for node in self.frozen.order:
            leading = [value[s] + step[row] if row >= 0 else value[s] for s, row in self.forks.leads(node)]
            if leading:
                value[node] = np.max(leading, axis=0) if len(leading) > 1 else leading[0]
        of_last = (value[n + self.last] + step[n + self.last]).max(axis=0)
        count = len(parts)
        self.node_right, self.node_left = value[:, :count], -value[:, count : 2 * count]
        self.right, self.left, self.tasks = of_last[:count], -of_last[count : 2 * count], of_last[2 * count :]
        self.counted = counted

    def _depths(self) -> None:
        """Of every node and knob, on how many roundings at most its time depends."""
        self.depth = self.frozen.times(self.counted)

    def found(self, ranges: bool) -> list[Sensitivity]:
        limits: Sequence[tuple[float | None, float | None]] = [(None, None)] * len(self.knobs)
        if ranges:
            limits = self._limits()
        return [
            Sensitivity(
                figure=knob.figure,
                is_rate=knob.is_rate,
                value=knob.value,
                makespan_ps=self.makespan,
                slope_slower=float(self.right[number]),
                slope_faster=float(self.left[number]),
                lowest=low,
                highest=high,
                tasks=int(self.tasks[number]),
            )
            for number, (knob, (low, high)) in enumerate(zip(self.knobs, limits, strict=True))
        ]

    def _limits(self) -> list[tuple[float, float]]:
        """Lowest and highest factor of each knob: on a coarse grid, then between its last good value and the next."""
        first = [(number, up) for number in range(len(self.knobs)) for up in (False, True)]
        grids = {side: [f if side[1] else 1 / f for f in FACTORS] for side in first}
        reached = self._reached(grids)
        finer = {}
        for side, grid in grids.items():
            good = reached[side]
            if good < len(grid):
                since, until = grid[good - 1] if good else 1.0, grid[good]
                finer[side] = [*grid[:good], *np.geomspace(since, until, REFINED + 1)[1:-1].tolist()]
        again = self._reached(finer) if finer else {}
        ends: dict[tuple[int, bool], float] = {}
        for side, grid in grids.items():
            grid, good = (finer[side], again[side]) if side in finer else (grid, reached[side])
            ends[side] = grid[good - 1] if good else 1.0
        return [(ends[number, False], ends[number, True]) for number in range(len(self.knobs))]

    def _reached(self, grids: dict[tuple[int, bool], list[float]]) -> dict[tuple[int, bool], int]:
        """How many values of each grid of factors, from the run outwards, the derivative reaches."""
        reached: dict[tuple[int, bool], int] = {}
        todo = list(grids)
        per_chunk = max(1, MOST_CELLS // (len(self.frozen.incoming) * max(len(grid) for grid in grids.values())))
        for at in range(0, len(todo), per_chunk):
            chunk = todo[at : at + per_chunk]
            us = {side: [self.knobs[side[0]].u_of(factor) for factor in grids[side]] for side in chunk}
            pairs = list(self.study.parts.values())
            delays = self.frozen.delays(
                *(np.stack([pairs[side[0]][i].at(u) for side in chunk for u in us[side]], axis=1) for i in (0, 1))
            )
            value = self.frozen.times(delays)
            done = self.frozen.completions(value, delays).max(axis=0)
            begin = 0
            for side in chunk:
                columns = slice(begin, begin + len(us[side]))
                begin = columns.stop
                reached[side] = self._good(side[0], np.array(us[side]), value, delays, done[columns], columns)
        return reached

    def _good(
        self, knob: int, us: FloatArray, value: FloatArray, delays: FloatArray, makespans: FloatArray, columns: slice
    ) -> int:
        """How many of ``us``, from 1 outwards, the derivative and the order of service reach without a break."""
        slower = bool(us[0] > 1)
        slope = self.right[knob] if slower else self.left[knob]
        allowed = 0.01 + 1e-3 * self.tasks[knob] + 1e-12 * self.makespan
        on_line = np.abs(makespans - self.makespan - slope * (us - 1)) <= allowed
        good: int = len(us) if on_line.all() else int(np.argmin(on_line))
        rivals = self.frozen.rivals
        if not good or not len(rivals):
            return good
        columns = slice(columns.start, columns.start + good)
        rounding = self.depth[rivals, knob].sum(axis=1)
        in_order = self._in_order(rivals, knob, us[:good], value[:, columns], rounding)
        for pair in np.flatnonzero(~in_order.all(axis=1)).tolist():
            broken = int(np.argmin(in_order[pair]))
            if broken < good:
                good = min(good, max(broken, self._forked(rivals[pair], knob, us, value, delays, columns)))
            if not good:
                break
        return good

    def _in_order(
        self, pairs: IntArray, knob: int, us: FloatArray, value: FloatArray, rounding: FloatArray
    ) -> npt.NDArray[np.bool_]:
        """For each pair and each interval between values of ``us``: whether the first surely comes no later."""
        at = np.concatenate([[1.0], us])
        a, b = (np.concatenate([self.frozen.base_ps[ends, None], value[ends]], axis=1) for ends in pairs.T)
        tangent = (self.node_right if us[0] > 1 else self.node_left)[pairs[:, 1], knob]
        steepness = np.concatenate([tangent[:, None], np.diff(b, axis=1) / np.diff(at)], axis=1)[:, :-1]
        least_b = b[:, :-1] + steepness * np.diff(at)  # b is convex: it goes on at least as steeply
        most = rounding[:, None]
        apart = (b[:, :-1] - a[:, :-1] > most) & (least_b - a[:, 1:] > most)
        # What the figure has no part in stays where it is; the other only gets later, or only earlier, than that.
        fixed = self.depth[pairs, knob] == 0
        still = fixed[:, 1 if us[0] < 1 else 0] | fixed.all(axis=1)
        result: npt.NDArray[np.bool_] = apart | still[:, None]
        return result

    def _forked(
        self, pair: IntArray, knob: int, us: FloatArray, value: FloatArray, delays: FloatArray, columns: slice
    ) -> int:
        """For how many values of ``us`` the order of a pair follows from what is since its fork."""
        a, b = pair.tolist()
        fork = self.forks.fork(a, b)
        if fork is None:
            return 0
        lasting = columns.stop - columns.start
        for node in fork.nodes:
            kept = self.forks.margin(node, value, delays, columns) > 2 * self.depth[node, knob]
            lasting = lasting if kept.all() else min(lasting, int(np.argmin(kept)))
        if lasting and self.frozen.base_ps[a] != self.frozen.base_ps[b]:
            columns = slice(columns.start, columns.start + lasting)
            rounding = self.counted[list(fork.delays), knob].sum(keepdims=True)
            kept = self._in_order(pair[None, :], knob, us[:lasting], value[:, columns], rounding)[0]
            lasting = lasting if kept.all() else int(np.argmin(kept))
        return int(lasting)
