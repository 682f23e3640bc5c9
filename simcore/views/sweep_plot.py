"""The picture of a sweep: time over the first swept parameter, with the bound under it and the best point marked."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from simcore.errors import OutputError
from simcore.files import written_beside
from simcore.quantities import format_seconds

if TYPE_CHECKING:
    from simcore.sweeping import Row, Sweep

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
MOST_LINES = 12


def draw_sweep(sweep: Sweep, path: str | Path) -> None:
    """Draw it; raises `OutputError` if there is nothing to draw or the file cannot be written."""
    x_name, *others = sweep.grid
    ran = [row for row in sweep.rows if row.get("time_s") is not None]
    if not ran:
        raise OutputError(f"cannot draw {path}: no point of the sweep ran")
    values = list(sweep.grid[x_name])
    numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    place = {_key(value): value if numeric else index for index, value in enumerate(values)}
    figure = Figure(figsize=(8.4, 5.0), layout="constrained")
    axes = figure.add_subplot()
    combinations = list(itertools.product(*(sweep.grid[name] for name in others)))
    best = sweep.best() if any(not row.get("error") for row in sweep.rows) else ran[0]
    for number, combination in enumerate(combinations[:MOST_LINES]):
        rows = [
            row
            for row in ran
            if all(_key(row[name]) == _key(value) for name, value in zip(others, combination, strict=True))
        ]
        rows.sort(key=lambda row: place[_key(row[x_name])])
        label = ", ".join(f"{name}={value}" for name, value in zip(others, combination, strict=True)) or "simulated"
        colour = COLOURS[number % len(COLOURS)]
        x = [place[_key(row[x_name])] for row in rows]
        axes.plot(
            x,
            [row["time_s"] for row in rows],
            color=colour,
            marker=MARKERS[number % len(MARKERS)],
            markersize=5,
            linewidth=1.2,
            label=label,
        )
        axes.plot(x, [row["bound_s"] for row in rows], color=colour, linewidth=0.9, linestyle="--", alpha=0.7)
    axes.plot([], [], color="#555555", linewidth=0.9, linestyle="--", label="lower bound")
    axes.plot(
        [place[_key(best[x_name])]], [best["time_s"]], "o", markersize=13, fillstyle="none", color="#D55E00",
        label="fastest",
    )  # fmt: skip
    _scale(axes, values, numeric, ran)
    axes.set_xlabel(x_name.replace("_", " "))
    axes.grid(True, which="major", color="#DDDDDD", linewidth=0.6)
    axes.legend(frameon=False, fontsize=9)
    at = ", ".join(f"{name}={best[name]}" for name in sweep.grid)
    more = f" (first {MOST_LINES} of {len(combinations)} lines)" if len(combinations) > MOST_LINES else ""
    axes.set_title(
        f"{sweep.scenario}: fastest at {at}: {format_seconds(best['time_s'])}{more}", loc="left", fontsize=11
    )
    with written_beside(path) as temporary:
        figure.savefig(temporary, dpi=150)


def _key(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _is_geometric(values: Sequence[float]) -> bool:
    """Whether values are spaced by factors rather than by steps."""
    ordered = sorted(values)
    return (
        len(ordered) >= 3
        and ordered[0] > 0
        and ordered[-1] / ordered[0] >= 8
        and (ordered[1] - ordered[0] < 0.75 * (ordered[-1] - ordered[-2]))
    )


def _scale(axes: Any, values: Sequence[Any], numeric: bool, rows: Sequence[Row]) -> None:
    times = [row["time_s"] for row in rows if row["time_s"] > 0]
    if numeric and _is_geometric(values):
        axes.set_xscale("log", base=2)
    if numeric and len(values) <= 16:
        axes.set_xticks(list(values), [f"{value:g}" for value in values])
        axes.xaxis.set_minor_formatter(NullFormatter())
    if not numeric:
        axes.set_xticks(range(len(values)), [_key(value) for value in values])
    if times and max(times) / min(times) > 12:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: format_seconds(value)))
    axes.yaxis.set_minor_formatter(NullFormatter())
