"""Curves over one quantity: what scenarios draw of a sweep of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from simcore.files import written_beside
from simcore.views.sweep_plot import COLOURS, MARKERS


@dataclass(frozen=True, slots=True)
class Curve:
    """A named curve; ``dashed`` for what is a bound or a closed form rather than a simulation."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    dashed: bool = False
    colour: int | None = None
    """the number of another curve whose colour it shares"""


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes: its curves, what y is and how it is written.

    y is logarithmic where it spans more than a factor of 12, unless ``log_y`` is False; else it starts at zero.
    """

    curves: Sequence[Curve]
    y_label: str
    y_format: Callable[[float], str]
    log_y: bool = True


def draw_lines(
    path: str | Path,
    panels: Sequence[Panel],
    *,
    title: str,
    x_label: str,
    x_format: Callable[[float], str] = lambda value: f"{value:g}",
    marks: Sequence[tuple[float, str]] = (),
) -> None:
    """Panels side by side over one logarithmic x; ``marks`` are x values with a word each, drawn as dotted lines.

    Raises `OutputError` if the file cannot be written.
    """
    figure = Figure(figsize=(max(4.8 * len(panels), 7.6), 4.8), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    for number, panel in enumerate(panels):
        axes = figure.add_subplot(1, len(panels), number + 1)
        for at, curve in enumerate(panel.curves):
            colour = COLOURS[(at if curve.colour is None else curve.colour) % len(COLOURS)]
            axes.plot(
                curve.x,
                curve.y,
                color=colour,
                linestyle="--" if curve.dashed else "-",
                marker="" if curve.dashed else MARKERS[at % len(MARKERS)],
                markersize=5,
                linewidth=1.0 if curve.dashed else 1.3,
                label=curve.name,
            )
        axes.set_xscale("log", base=2)
        ticks = sorted({x for curve in panel.curves for x in curve.x})
        if len(ticks) > 8:
            ticks = ticks[:: -(-len(ticks) // 8)]
        axes.set_xticks(ticks, [x_format(tick) for tick in ticks])
        axes.xaxis.set_minor_formatter(NullFormatter())
        heights = [y for curve in panel.curves for y in curve.y]
        if panel.log_y and min(heights) > 0 and max(heights) > 12 * min(heights):
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _, write=panel.y_format: write(value)))
        axes.yaxis.set_minor_formatter(NullFormatter())
        for x, word in marks:
            axes.axvline(x, color="#777777", linestyle=":", linewidth=0.9)
            axes.annotate(
                word, (x, 0.02), xycoords=("data", "axes fraction"), rotation=90, fontsize=8, color="#555555",
                ha="right", va="bottom",
            )  # fmt: skip
        axes.set_xlabel(x_label)
        axes.set_ylabel(panel.y_label)
        axes.grid(True, which="major", color="#DDDDDD", linewidth=0.6)
        axes.legend(frameon=False, fontsize=8)
    with written_beside(path) as temporary:
        figure.savefig(temporary, dpi=150)
