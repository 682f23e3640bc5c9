"""Tables of a run: per task, operation, layer and resource; as columns, text, CSV, Parquet, polars or pandas frames.

Times of operations and layers are those of the busiest chip: how long each of its units serves them, and what of its
idle time waits for them. Bytes and FLOPs are totals over all chips.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from simcore.errors import OutputError, nearest
from simcore.explain import exposed
from simcore.files import written_beside
from simcore.running import busiest_chip
from simcore.timeline import PS_PER_S, IntColumn, Timeline

if TYPE_CHECKING:
    from simcore.result import RunResult

Columns = dict[str, list[Any]]
TABLES = ("task", "operation", "layer", "resource")
SUFFIXES = (".csv", ".parquet")
NETWORKS = ("ici", "nvlink", "network", "pcie", "dcn", "dcn_share")


def columns_of(result: RunResult, by: str = "operation") -> Columns:
    """The table ``by`` "task", "operation", "layer" or "resource": column -> values, one a row.

    Raises `OutputError` for another kind of table.
    """
    if by not in TABLES:
        raise OutputError(f"a table by {by!r}: {nearest(by, TABLES)}")
    if by == "task":
        from simcore.views.table import COLUMNS, task_rows

        rows = list(task_rows(result))
        return {name: [row[number] for row in rows] for number, name in enumerate(COLUMNS)}
    if by == "resource":
        return _resources(result)
    timeline = result.timeline
    if by == "operation":
        return _groups(result, timeline.operation, lambda value: timeline.operation_names[value], "operation")
    return _groups(result, timeline.layer, int, "layer")


def _groups(result: RunResult, of: IntColumn, name: Callable[[int], Any], title: str) -> Columns:
    timeline, chip = result.timeline, busiest_chip(result.timeline)
    values = [value for value in np.unique(of).tolist() if value >= 0]
    waits = _waits(timeline, chip)
    weight = np.array([entity.multiplicity for entity in timeline.entities], dtype=np.int64)
    kinds = np.array([lane.kind for lane in timeline.lanes] or [""], dtype=object)
    own = timeline.entity == chip
    peak = max(result.chip.peak_flops_per_s.values(), default=0.0)
    table: Columns = {column: [] for column in (
        title, "tasks", "start_s", "end_s", "mxu_s", "vpu_s", "hbm_s", "network_s", "waited_for_s", "hbm_bytes",
        "network_bytes", "flops", "flops_per_s", "share_of_peak",
    )}  # fmt: skip
    for value in values:
        rows = np.flatnonzero(of == value)
        served = rows[timeline.lane[rows] >= 0]
        unit = kinds[timeline.lane[served]]
        lasted = timeline.end_ps[served] - timeline.start_ps[served]
        mine = own[served]

        def busy(*names: str, unit: Any = unit, lasted: Any = lasted, mine: Any = mine) -> float:
            return float(lasted[mine & np.isin(unit, names)].sum()) / PS_PER_S

        def moved(*names: str, served: Any = served, unit: Any = unit) -> int:
            some = served[np.isin(unit, names)]
            return int((timeline.bytes[some] * weight[timeline.entity[some]]).sum())

        flops = int((timeline.flops[rows] * weight[timeline.entity[rows]]).sum())
        first, last = timeline.start_ps[rows].min(), timeline.done_ps[rows].max()
        mxu_s = busy("mxu")
        rate = flops / max(result.chips, 1) / mxu_s if mxu_s else 0.0
        row = {
            title: name(value),
            "tasks": len(rows),
            "start_s": int(first) / PS_PER_S,
            "end_s": int(last) / PS_PER_S,
            "mxu_s": mxu_s,
            "vpu_s": busy("vpu"),
            "hbm_s": busy("hbm"),
            "network_s": busy(*NETWORKS),
            "waited_for_s": waits.get((title, value), 0) / PS_PER_S,
            "hbm_bytes": moved("hbm"),
            "network_bytes": moved(*NETWORKS),
            "flops": flops,
            "flops_per_s": rate,
            "share_of_peak": rate / peak if peak else 0.0,
        }
        for column, cell in row.items():
            table[column].append(cell)
    order = sorted(range(len(values)), key=lambda at: table["start_s"][at])
    return {column: [cells[at] for at in order] for column, cells in table.items()}


def _waits(timeline: Timeline, chip: int) -> dict[tuple[str, int], int]:
    """("operation" or "layer", its number) -> idle time of the chip that waits for it."""
    found: dict[tuple[str, int], int] = {}
    numbers = {name: number for number, name in enumerate(timeline.operation_names)}
    for one in exposed(timeline, chip) if timeline.entities else []:
        for key in (("operation", numbers.get(one.operation, -1)), ("layer", one.layer)):
            found[key] = found.get(key, 0) + one.ps
    return found


def _resources(result: RunResult) -> Columns:
    timeline = result.timeline
    table: Columns = {column: [] for column in (
        "resource", "unit", "chip", "alike", "tasks", "bytes", "work_s", "busy_s", "share"
    )}  # fmt: skip
    makespan = timeline.makespan_ps
    for number, lane in enumerate(timeline.lanes):
        rows = np.flatnonzero(timeline.lane == number)
        entity = timeline.entities[lane.entity]
        busy = int((timeline.end_ps[rows] - timeline.start_ps[rows]).sum())
        row = {
            "resource": lane.kind,
            "unit": lane.unit,
            "chip": entity.label,
            "alike": entity.multiplicity,
            "tasks": len(rows),
            "bytes": int(timeline.bytes[rows].sum()),
            "work_s": int(timeline.work_ps[rows].sum()) / PS_PER_S,
            "busy_s": busy / PS_PER_S,
            "share": busy / makespan if makespan else 0.0,
        }
        for column, cell in row.items():
            table[column].append(cell)
    return table


def write_table(result: RunResult, path: str | Path, by: str = "task") -> None:
    """Write a table; the suffix, .csv or .parquet, chooses the format. Raises `OutputError`."""
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise OutputError(f"cannot write {path}: a table is one of {', '.join(SUFFIXES)}")
    columns = columns_of(result, by)
    if suffix == ".parquet":
        frame = _polars(columns, by)
        with written_beside(path) as temporary:
            frame.write_parquet(temporary)
        return
    with written_beside(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))


def frame_of(result: RunResult, by: str = "operation", library: str = "polars") -> Any:
    """The table as a polars or a pandas frame. Raises `OutputError` where the library is not installed."""
    columns = columns_of(result, by)
    if library == "polars":
        return _polars(columns, by)
    if library != "pandas":
        raise OutputError(f"a frame of {library!r}: {nearest(library, ('polars', 'pandas'))}")
    try:
        import pandas  # type: ignore[import-untyped,unused-ignore]
    except ImportError:
        raise OutputError('pandas is not installed: pip install "simcore[tables]"') from None
    return pandas.DataFrame(_without_gaps(columns))


def _polars(columns: Mapping[str, Sequence[Any]], by: str) -> Any:
    try:
        import polars
    except ImportError:
        raise OutputError(f'a table by {by} needs polars here: pip install "simcore[tables]"') from None
    return polars.DataFrame(_without_gaps(columns), strict=False)


def _without_gaps(columns: Mapping[str, Sequence[Any]]) -> Columns:
    """Empty cells of columns of numbers as None."""
    return {
        name: [None if cell == "" and any(isinstance(c, int | float) for c in cells) else cell for cell in cells]
        for name, cells in columns.items()
    }


def text_of(result: RunResult, by: str = "operation", *, most: int = 60) -> str:
    """The table for a terminal: quantities with units, at most ``most`` rows, columns that say nothing left out."""
    from io import StringIO

    from rich.console import Console
    from rich.table import Table

    columns = columns_of(result, by)
    names = [name for name in columns if name not in HIDDEN and any(cell not in ("", 0) for cell in columns[name])]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in names:
        numeric = any(isinstance(cell, int | float) for cell in columns[name])
        table.add_column(_heading(name), justify="right" if numeric else "left", no_wrap=True)
    count = len(next(iter(columns.values()), []))
    for at in range(min(count, most)):
        table.add_row(*(_cell(name, columns[name][at]) for name in names))
    out = StringIO()
    Console(file=out, width=WIDEST, highlight=False, no_color=True).print(table)
    more = f"... and {count - most} more rows\n" if count > most else ""
    return out.getvalue() + more


WIDEST = 1000
HEADINGS = {
    "mxu_s": "MXU time",
    "vpu_s": "VPU time",
    "hbm_s": "HBM time",
    "network_s": "network time",
    "hbm_bytes": "HBM bytes",
    "network_bytes": "network bytes",
    "flops": "FLOPs",
}
"""Where a time and an amount would have one name."""
HIDDEN = ("row", "released_by", "released_how", "granted_ps", "ready_ps", "flops_per_s", "start_s", "end_s")


def _heading(name: str) -> str:
    if name in HEADINGS:
        return HEADINGS[name]
    for suffix in ("_s", "_bytes", "_ps"):
        name = name.removesuffix(suffix)
    return name.replace("_", " ")


def _cell(name: str, value: Any) -> str:
    from simcore.quantities import format_bytes, format_flops, format_seconds

    if not isinstance(value, int | float) or name in ("layer", "tasks", "alike", "iteration"):
        return str(value)
    if name.endswith("_ps"):
        return format_seconds(value / PS_PER_S)
    if name.endswith("_s") and name != "flops_per_s":
        return format_seconds(value) if value else ""
    if name.endswith("bytes"):
        return format_bytes(value) if value else ""
    if name == "flops":
        return format_flops(value) if value else ""
    return f"{100 * value:.1f} %" if name.startswith("share") else f"{value:g}"
