"""What of a timeline is drawn: options, and from them the time axis and the curves below the lanes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from simcore.errors import OutputError
from simcore.memory import occupancy, peak_bytes
from simcore.timeline import COMPUTE_UNITS, Timeline

if TYPE_CHECKING:
    from simcore.result import RunResult

FloatArray = npt.NDArray[np.float64]
UNITS = ((1e12, "s"), (1e9, "ms"), (1e6, "us"), (1e3, "ns"), (1.0, "ps"))
LEFT_IN, RIGHT_IN = 1.55, 0.62
STRIP_BINS = 400
STRIPPED = ("mxu", "vpu", "hbm", "ici", "nvlink", "pcie", "dcn", "dcn_share", "network")


@dataclass(frozen=True, slots=True)
class GanttOptions:
    """What of the timeline is drawn, and how large.

    Parameters
    ----------
    window_s : only from the one time to the other.
    layers : only the first to the last of these layers, both included.
    chips : only these, by their number in the order of their coordinates.
    memory : also curves of what each memory holds, of the fullest chip.
    width_in : width of the picture in inches.
    title, under : instead of the finding, and of the line below it.
    """

    window_s: tuple[float, float] | None = None
    layers: tuple[int, int] | None = None
    chips: tuple[int, ...] = ()
    memory: bool = False
    width_in: float = 13.0
    title: str | None = None
    under: str | None = None


@dataclass(frozen=True, slots=True)
class Scale:
    """The time axis: the window in picoseconds, its unit, and inches."""

    begin_ps: float
    end_ps: float
    factor: float
    unit: str
    inches: float

    @property
    def ps_per_in(self) -> float:
        return (self.end_ps - self.begin_ps) / self.inches


def scale_of(timeline: Timeline, options: GanttOptions) -> Scale:
    """The time axis. Raises `OutputError` if the window or the layers hold nothing of the run."""
    makespan = timeline.makespan_ps
    begin, end = 0.0, float(max(makespan, 1))
    if options.layers is not None:
        begin, end = _of_layers(timeline, *options.layers)
    if options.window_s is not None:
        begin, end = (second * 1e12 for second in options.window_s)
        if not 0 <= begin < end or begin >= max(makespan, 1):
            raise OutputError(
                f"the window from {options.window_s[0]:g} s to {options.window_s[1]:g} s shows nothing: the run goes "
                f"from 0 to {makespan / 1e12:g} s"
            )
        end = min(end, float(max(makespan, 1)))
    factor, unit = next((factor, unit) for factor, unit in UNITS if end >= factor or unit == "ps")
    return Scale(begin, end, factor, unit, options.width_in - LEFT_IN - RIGHT_IN)


def _of_layers(timeline: Timeline, first: int, last: int) -> tuple[float, float]:
    """From the first computation of some layers to the end of their last task."""
    some = (timeline.layer >= first) & (timeline.layer <= last) & (timeline.lane >= 0)
    if not some.any():
        known = timeline.layer[timeline.layer >= 0]
        has = f"layers {known.min()} to {known.max()}" if len(known) else "no layers"
        raise OutputError(f"layers {first} to {last} show nothing: the run has {has}")
    compute = np.array([lane.kind in COMPUTE_UNITS for lane in timeline.lanes], dtype=bool)
    computing = np.flatnonzero(some & compute[np.maximum(timeline.lane, 0)])
    rows = computing if len(computing) else np.flatnonzero(some)
    return float(timeline.start_ps[rows].min()), float(
        max(timeline.end_ps[rows].max(), timeline.start_ps[rows].min() + 1)
    )


def unit_strips(timeline: Timeline, scale: Scale) -> list[tuple[str, FloatArray, float]]:
    """(label, share of each bin, share of the window) of the busiest unit of every kind that serves at all."""
    found = []
    edges = np.linspace(scale.begin_ps, scale.end_ps, STRIP_BINS + 1)
    for kind in STRIPPED:
        lanes = [number for number, lane in enumerate(timeline.lanes) if lane.kind == kind]
        if not lanes:
            continue
        busy = np.zeros(len(timeline.lanes), dtype=np.int64)
        on_unit = timeline.lane >= 0
        np.add.at(busy, timeline.lane[on_unit], (timeline.end_ps - timeline.start_ps)[on_unit])
        lane = max(lanes, key=lambda number: busy[number])
        if not busy[lane]:
            continue
        rows = np.flatnonzero((timeline.lane == lane) & (timeline.end_ps > timeline.start_ps))
        # The time served before each edge; services on one unit do not overlap.
        rows = rows[np.argsort(timeline.start_ps[rows], kind="stable")]
        times = np.stack([timeline.start_ps[rows], timeline.end_ps[rows]], axis=1).ravel().astype(float)
        served = np.repeat(np.cumsum(timeline.end_ps[rows] - timeline.start_ps[rows]), 2).astype(float)
        served[0::2] -= (timeline.end_ps[rows] - timeline.start_ps[rows]).astype(float)
        before = np.interp(edges, times, served)
        share = np.diff(before) / np.diff(edges)
        total = float((before[-1] - before[0]) / (edges[-1] - edges[0]))
        found.append((f"{kind.upper() if kind != 'pcie' else 'PCIe'} busy", np.clip(share, 0.0, 1.0), total))
    return found


def memory_strips(result: RunResult, scale: Scale) -> list[tuple[str, FloatArray, float]]:
    """(label, the most that is held in each bin as a share of the capacity or of the peak, its share at most)."""
    timeline, found = result.timeline, []
    edges = np.linspace(scale.begin_ps, scale.end_ps, STRIP_BINS + 1)
    for memory, peak in result.memory_peak_bytes.items():
        if not peak:
            continue
        full = result.memory_capacity_bytes.get(memory, peak)
        fullest = max(range(len(timeline.entities)), key=lambda entity: peak_bytes(timeline, entity, memory))
        at, held = occupancy(timeline, fullest, memory)
        first = np.maximum(np.searchsorted(at, edges[:-1], side="right") - 1, 0)
        last = np.maximum(np.searchsorted(at, edges[1:], side="left"), first + 1)
        most = np.array([held[a:b].max() for a, b in zip(first.tolist(), last.tolist(), strict=True)])
        found.append((f"{memory.upper()} held", np.clip(most / full, 0.0, 1.0), float(most.max()) / full))
    return found
