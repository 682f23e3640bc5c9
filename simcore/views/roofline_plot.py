"""The roofline: attainable FLOPs per second against arithmetic intensity, log-log, with simulated points under it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from simcore.chips import Chip
from simcore.files import written_beside
from simcore.quantities import format_bandwidth, format_flops_per_s

COLOURS = ("#E69F00", "#0072B2", "#009E73", "#CC79A7")
MARKERS = ("o", "s", "^", "D")


@dataclass(frozen=True, slots=True)
class Point:
    """A run: its intensity (each array moved once), and what it achieved."""

    intensity_flops_per_byte: float
    flops_per_s: float
    label: str = ""


@dataclass(frozen=True, slots=True)
class Series:
    """Points that belong together."""

    name: str
    points: Sequence[Point]


def draw_roofline(
    path: str | Path, chip: Chip, dtype: str, series: Sequence[Series], *, title: str, ideal: bool
) -> None:
    """Draw the roof of ``chip`` for ``dtype`` (data-sheet rates) and the points under it.

    The title says the last point's share of its roof.
    """
    peak, bandwidth = chip.peak(dtype), chip.hbm_bandwidth_bytes_per_s
    ridge = peak / bandwidth
    points = [point for one in series for point in one.points]
    intensities = [point.intensity_flops_per_byte for point in points]
    low, high = min([*intensities, ridge / 4]) / 1.6, max([*intensities, ridge * 4]) * 1.6
    figure = Figure(figsize=(8.6, 5.4), layout="constrained")
    axes = figure.add_subplot()
    x = np.array([low, ridge, high])
    axes.plot(x, np.minimum(peak, x * bandwidth), color="black", linewidth=1.6, zorder=2)
    axes.axvline(ridge, color="#999999", linewidth=0.8, linestyle=":", zorder=1)
    for number, one in enumerate(series):
        axes.plot(
            [point.intensity_flops_per_byte for point in one.points],
            [point.flops_per_s for point in one.points],
            color=COLOURS[number % len(COLOURS)],
            marker=MARKERS[number % len(MARKERS)],
            markersize=5,
            linewidth=0.9,
            label=one.name,
            zorder=3 + number,
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlim(low, high)
    floor = min([point.flops_per_s for point in points] + [low * bandwidth])
    axes.set_ylim(floor / 1.6, peak * 2.6)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: format_flops_per_s(value)))
    axes.set_xlabel("arithmetic intensity, FLOPs per byte of HBM traffic (each array moved once)")
    axes.grid(True, which="major", color="#DDDDDD", linewidth=0.6)
    axes.annotate(
        f"peak {dtype}: {format_flops_per_s(peak)}",
        (high / 1.1, peak * 1.12),
        ha="right",
        va="bottom",
    )
    at = (low * ridge) ** 0.5
    axes.annotate(
        f"HBM: {format_bandwidth(bandwidth)}",
        (at, at * bandwidth * 1.25),
        rotation=_slope_degrees(axes.get_xlim(), axes.get_ylim(), figure),
        rotation_mode="anchor",
        ha="center",
        va="bottom",
    )
    axes.annotate(
        f"ridge {ridge:.0f}", (ridge, floor / 1.3), xytext=(4, 0), textcoords="offset points", color="#555555"
    )
    if points:
        last = points[-1]
        label = f" at {last.label}" if last.label else ""
        title += f": {100 * _share(last, peak, bandwidth):.0f} % of its roof{label} with {series[-1].name}"
        axes.legend(loc="upper left", frameon=False)
    axes.set_title(f"{title}\n{chip.name}, {'ideal' if ideal else 'calibrated'} model", fontsize=11, loc="left")
    with written_beside(path) as temporary:
        figure.savefig(temporary, dpi=150)


def _share(point: Point, peak: float, bandwidth: float) -> float:
    return point.flops_per_s / min(peak, point.intensity_flops_per_byte * bandwidth)


def _slope_degrees(x_limits: tuple[float, float], y_limits: tuple[float, float], figure: Figure) -> float:
    """Angle on the page of a line that grows tenfold in both directions at once."""
    width, height = figure.get_size_inches()
    per_x = width * 0.85 / np.log(x_limits[1] / x_limits[0])
    per_y = height * 0.78 / np.log(y_limits[1] / y_limits[0])
    return float(np.degrees(np.arctan2(per_y, per_x)))
