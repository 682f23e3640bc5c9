"""Curves of what memories hold, below the HTML timeline and on its axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from simcore.memory import occupancy, peak_bytes
from simcore.quantities import format_bytes
from simcore.timeline import IntColumn
from simcore.views.bokeh_data import PageData

if TYPE_CHECKING:
    from simcore.result import RunResult

HEIGHT = 92
MOST_POINTS = 100_000
COLOURS, DASHES = ("#444444", "#0072B2"), ("solid", "dashed")
STEPS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B"))
LOW = 0.2
"""Below this share of the capacity, the axis ends at the peak: a curve along the bottom shows nothing."""


def memory_figures(
    runs: Sequence[tuple[str, RunResult]], data: PageData, x_range: Any, figure: Callable[..., Any]
) -> tuple[list[Any], list[dict[str, Any]], list[str]]:
    """A figure for each memory that holds something, of the fullest chip; its curves; notes on what was left out.

    A curve is its whole source and the one that the page fills with what is in view.
    """
    from bokeh.models import ColumnDataSource, Range1d, Span

    memories = dict.fromkeys(
        memory for _, result in runs for memory, peak in result.memory_peak_bytes.items() if peak
    )  # fmt: skip
    figures, curves, notes = [], [], []
    for memory in memories:
        peaks = [result.memory_peak_bytes.get(memory, 0) for _, result in runs]
        capacities = [result.memory_capacity_bytes.get(memory, 0) for _, result in runs]
        peak, capacity = max(peaks), max(capacities)
        top = peak if not capacity or peak < LOW * capacity else max(peak, capacity)
        factor, unit = next((factor, unit) for factor, unit in STEPS if top >= factor or unit == "B")
        plot = figure(HEIGHT, [], y_range=Range1d(0, 1.12 * top / factor))
        plot.toolbar_location = None
        plot.name = f"memory {memory}"
        plot.yaxis[0].axis_label = unit
        plot.yaxis[0].ticker.desired_num_ticks = 3
        plot.ygrid.grid_line_color = "#EEEEEE"
        said = []
        for number, (label, result) in enumerate(runs):
            if not peaks[number]:
                continue
            head = f"{label} ({DASHES[number % 2]}) " if len(runs) > 1 else ""
            said.append(f"{head}peak {_of(peaks[number], capacities[number])}")
            entities = range(len(result.timeline.entities))
            fullest = max(entities, key=lambda entity: peak_bytes(result.timeline, entity, memory))
            at, held = occupancy(result.timeline, fullest, memory)
            at, held = np.append(at, result.timeline.makespan_ps), np.append(held, held[-1])
            if len(at) > MOST_POINTS:
                at, held = thinned(at, held)
                notes.append(f"{memory.upper()} is drawn as its highest in each of {MOST_POINTS:,} parts of the time")
            whole = ColumnDataSource(data={"at": at / data.factor, "held": held / factor})
            drawn = ColumnDataSource(data={"at": [], "held": []})
            curves.append({"whole": whole, "drawn": drawn})
            plot.step(
                "at", "held", source=drawn, mode="after", line_color=COLOURS[number % 2], line_width=1.5,
                line_dash=DASHES[number % 2],
            )  # fmt: skip
        for limit in dict.fromkeys(capacities):
            if limit and limit <= 1.12 * top:
                plot.add_layout(Span(location=limit / factor, line_color="#D55E00", line_dash="dashed", line_width=1.5))
        plot.title.text = f"{memory.upper()}: {', '.join(said)}"
        plot.title.text_font_size, plot.title.text_font_style, plot.title.standoff = "11px", "normal", 2
        figures.append(plot)
    return figures, curves, list(dict.fromkeys(notes))


def _of(peak: int, capacity: int) -> str:
    size = format_bytes(peak, binary=True)
    if not capacity:
        return size
    share = f"{100 * peak / capacity:.0f} %" if 100 * peak >= capacity else "less than 1 %"
    return f"{size} of {format_bytes(capacity, binary=True)} ({share})"


def thinned(at: IntColumn, held: IntColumn) -> tuple[IntColumn, IntColumn]:
    """At most `MOST_POINTS` of the points of a step curve, each the highest until the next."""
    starts = np.unique(np.linspace(0, len(at), MOST_POINTS, endpoint=False).astype(np.int64))
    return at[starts], np.maximum.reduceat(held, starts)
