"""A run under the roofs of its chip: every operation a point for each interface that it moves bytes over.

A point's intensity is its FLOPs over the bytes that it moved over one interface (HBM, a network; of VMEM, the operands
and results of its tiles), its height the FLOPs a second and chip that it achieved over the time in which it used its
units. Its roof there is the lower of the peak and
of intensity times the interface's bandwidth; how near it comes is its share of its own roof.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from simcore.dtypes import dtype_bits
from simcore.errors import OutputError
from simcore.exposure import busy_intervals
from simcore.files import written_beside
from simcore.graph.work import Matmul
from simcore.hardware import Channel, unit_model
from simcore.quantities import format_bandwidth, format_flops_per_s
from simcore.running import busiest_chip
from simcore.timeline import PS_PER_S
from simcore.views.sweep_plot import COLOURS, MARKERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from simcore.result import RunResult

INTERFACES = ("vmem", "hbm", "ici", "nvlink", "network", "pcie", "dcn", "dcn_share")
SUM_BYTES = 4
LINE_PT = 11
LABELLED = 6
"""How many operations, those that take longest, are named in the picture."""


@dataclass(frozen=True, slots=True)
class OperationPoint:
    """An operation at one interface, figures of the busiest chip."""

    operation: str
    interface: str
    flops: int
    moved_bytes: int
    busy_s: float
    roof_flops_per_s: float

    @property
    def intensity_flops_per_byte(self) -> float:
        return self.flops / self.moved_bytes

    @property
    def flops_per_s(self) -> float:
        return self.flops / self.busy_s

    @property
    def share_of_roof(self) -> float:
        """Achieved over what its own roof permits."""
        return self.flops_per_s / self.roof_flops_per_s


def roofline_points(result: RunResult) -> list[OperationPoint]:
    """A point for each operation with matmuls and each interface that it moves bytes over; the longest first."""
    timeline = result.timeline
    if not timeline.entities:
        return []
    chip = busiest_chip(timeline)
    kinds = np.array([lane.kind for lane in timeline.lanes], dtype=object)
    own = np.flatnonzero((timeline.entity == chip) & (timeline.lane >= 0))
    peak = peak_flops_per_s(result)
    in_vmem = _vmem_bytes(result, chip)
    found = []
    for number, name in enumerate(timeline.operation_names):
        rows = own[timeline.operation[own] == number]
        flops = int(timeline.flops[rows].sum())
        if not flops:
            continue
        served = rows[timeline.end_ps[rows] > timeline.start_ps[rows]]
        served = served[np.lexsort((served, timeline.start_ps[served]))]
        busy = sum(end - start for start, end in busy_intervals(timeline, served)) / PS_PER_S
        for interface in INTERFACES:
            moved = int(timeline.bytes[rows[kinds[timeline.lane[rows]] == interface]].sum())
            if interface == "vmem":
                moved = in_vmem.get(name, 0)
            if moved and busy:
                roof = min(peak, flops / moved * bandwidth_of(result, interface))
                found.append(OperationPoint(name, interface, flops, moved, busy, roof))
    return sorted(found, key=lambda point: (-point.busy_s, point.operation, point.interface))


def _vmem_bytes(result: RunResult, chip: int) -> dict[str, int]:
    """Operation -> bytes of its tiles' operands, and of their sums in fp32, that the matrix unit reads and writes."""
    timeline = result.timeline
    tasks = result.graph.classes[timeline.entities[chip].cls].tasks if timeline.entities else {}
    counts = np.bincount(timeline.task[timeline.entity == chip], minlength=len(timeline.task_names))
    found: dict[str, int] = {}
    for name, count in zip(timeline.task_names, counts.tolist(), strict=True):
        task = tasks.get(name)
        if task is None or not count or not isinstance(task.work, Matmul):
            continue
        w = task.work
        each = (w.m * w.k + w.k * w.n) * float(dtype_bits(w.dtype)) / 8 + w.m * w.n * SUM_BYTES
        every = np.broadcast_to(np.asarray(each * w.batch, dtype=float), task.counts)
        # Tasks that a guard leaves out are taken to be like the others.
        found[task.operation] = found.get(task.operation, 0) + int(every.mean() * count)
    return found


def peak_flops_per_s(result: RunResult) -> float:
    """The data sheet's rate that the run's matmuls are bound by: their FLOPs over their work at that rate."""
    timeline = result.timeline
    mxu = [number for number, lane in enumerate(timeline.lanes) if lane.kind == "mxu"]
    rows = np.isin(timeline.lane, mxu)
    work_ps = int(timeline.work_ps[rows].sum())
    if not work_ps:
        return max(result.chip.peak_flops_per_s.values(), default=0.0)
    return float(timeline.flops[rows].sum()) / work_ps * PS_PER_S


def bandwidth_of(result: RunResult, interface: str) -> float:
    """Bytes a second of one instance of the interface, by the data sheet."""
    if interface == "vmem":
        return result.chip.vmem_bandwidth_bytes_per_s
    model = unit_model(result.chip, interface, ideal=True)
    assert isinstance(model, Channel)
    return model.bandwidth_bytes_per_s


def draw_roofline_of(result: RunResult, path: str | Path) -> None:
    """Draw it, log-log; the suffix chooses the format. Raises `OutputError` where nothing computes from memory."""
    points = roofline_points(result)
    if not points:
        raise OutputError(f"cannot draw {path}: no operation of the run multiplies matrices and moves bytes")
    interfaces = [name for name in INTERFACES if any(point.interface == name for point in points)]
    peak = peak_flops_per_s(result)
    x = [point.intensity_flops_per_byte for point in points]
    ridges = [peak / bandwidth_of(result, name) for name in interfaces]
    low, high = min([*x, *ridges]) / 2.5, max([*x, *ridges]) * 2.5
    figure = Figure(figsize=(9.4, 5.8), layout="constrained")
    axes = figure.add_subplot()
    for number, name in enumerate(interfaces):
        bandwidth, colour = bandwidth_of(result, name), COLOURS[number % len(COLOURS)]
        line = np.array([low, peak / bandwidth, high])
        axes.plot(line, np.minimum(peak, line * bandwidth), color=colour, linewidth=1.4, zorder=2)
        mine = [point for point in points if point.interface == name]
        axes.scatter(
            [point.intensity_flops_per_byte for point in mine],
            [point.flops_per_s for point in mine],
            color=colour, marker=MARKERS[number % len(MARKERS)], s=34, zorder=3,
            label=f"over {name.upper()}, {format_bandwidth(bandwidth)}",
        )  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlim(low, high)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: format_flops_per_s(value)))
    axes.set_xlabel("FLOPs per byte moved over the interface")
    axes.set_ylabel("achieved, a chip")
    axes.grid(True, which="major", color="#DDDDDD", linewidth=0.6)
    axes.annotate(f"peak {format_flops_per_s(peak)}", (high / 1.15, peak * 1.1), ha="right", va="bottom")
    axes.set_ylim(top=peak * 3)
    _name(axes, points, figure.get_figheight() * 72 * 0.8)
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    longest = next((point for point in points if point.interface != "vmem"), points[0])
    axes.set_title(
        f"{result.scenario}: {longest.operation}, the longest, reaches {100 * longest.share_of_roof:.0f} % of its roof "
        f"over {longest.interface.upper()}\n{result.chip.name}, {'ideal' if result.ideal else 'calibrated'} model",
        fontsize=11, loc="left",
    )  # fmt: skip
    with written_beside(path) as temporary:
        figure.savefig(temporary, dpi=150)


def _name(axes: Axes, points: Sequence[OperationPoint], height: float) -> None:
    """Names beside the longest operations, one above the other where they would be at one place.

    ``height`` of the axes in points; room is made below for names that would be under its lower edge.
    """
    taken: list[tuple[float, float]] = []
    named: set[str] = set()
    for point in points:
        if point.operation in named or len(named) == LABELLED:
            continue
        named.add(point.operation)
        at = np.log2(point.intensity_flops_per_byte), np.log10(point.flops_per_s)
        near = sum(abs(at[0] - x) < 2.5 and abs(at[1] - y) < 0.25 for x, y in taken)
        taken.append(at)
        bottom, top = axes.get_ylim()
        # So low that with the names' room added, a point's share of the height is at least that room.
        room = min((4 + LINE_PT * (near + 1)) / height, 0.5)
        lowest = (at[1] - room * np.log10(top)) / (1 - room)
        axes.set_ylim(bottom=min(bottom, 10**lowest))
        axes.annotate(
            f"{point.operation} ({100 * point.share_of_roof:.0f} %)",
            (point.intensity_flops_per_byte, point.flops_per_s),
            xytext=(9, -4 - LINE_PT * near), textcoords="offset points", fontsize=8,
        )  # fmt: skip
