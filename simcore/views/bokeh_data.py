"""What the HTML timeline holds, as columns: lanes, bars, and the tasks behind them. No Bokeh here.

A page shows one run, or several on one time axis. Bars are stored in blocks, one a lane and style, each in order of
time; the page draws those of a block that are in view. A task of a chip that is not drawn, because another one that
does the same stands for it, is found at that one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from simcore.exposure import compute_rows
from simcore.quantities import format_seconds
from simcore.timeline import IntColumn, Timeline
from simcore.views.gantt import merge_slivers
from simcore.views.gantt_lanes import KIND_LABELS, Bars, Group, Lane, groups_of
from simcore.views.gantt_scale import GanttOptions, scale_of
from simcore.views.palette import Style
from simcore.views.report import CAUSES

if TYPE_CHECKING:
    from simcore.result import RunResult

Columns = dict[str, npt.NDArray[Any]]
MOST_BARS = 100_000
MOST_TASKS = 250_000
"""Above this many, tasks whose bars are merged are left out of the page."""
MOST_GROUPS, OPEN_GROUPS = 24, 4
LANE_PX, THIN_PX = 24, 16
TASK, WAIT, BUFFER = 0, 1, 2
NOT_DRAWN = -2
DARK = ("#0072B2", "#009E73", "#D55E00")
"""Colours on which text is white."""


@dataclass(kw_only=True)
class PageData:
    """Everything that is on a page; lists are small, `bars` and `tasks` are columns of numbers.

    ``bars``: left and right in the page's unit of time, ``row`` in ``tasks`` (of a wait: the task that waits; of a
    buffer: the one that took it), ``kind``, ``critical``, ``cause`` and how many bars it ``stands_for``.
    ``tasks``: what each is, its times, amounts and share of its unit's peak, and the row that it waited for, -1 for
    none and -2 for one that is not on the page.
    """

    factor: float
    unit: str
    end: float
    groups: list[dict[str, Any]] = field(default_factory=list)
    lanes: list[dict[str, Any]] = field(default_factory=list)
    blocks: list[list[int]] = field(default_factory=list)
    """(lane, style, first bar, last bar + 1)"""
    styles: list[Style] = field(default_factory=list)
    bands: list[dict[str, Any]] = field(default_factory=list)
    task_names: list[str] = field(default_factory=list)
    operation_names: list[str] = field(default_factory=list)
    chips: list[str] = field(default_factory=list)
    causes: list[str] = field(default_factory=list)
    bars: Columns = field(default_factory=dict)
    tasks: Columns = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def small(self) -> dict[str, Any]:
        """All but the columns, as plain values."""
        names = ("factor", "unit", "end", "groups", "lanes", "blocks", "bands", "task_names", "operation_names")
        styles = [
            {"label": s.label, "colour": s.colour, "hatch": s.hatch[:1], "text": "#FFFFFF" if s.colour in DARK else
             "#000000"} for s in self.styles
        ]  # fmt: skip
        plain = {name: getattr(self, name) for name in names}
        return {**plain, "chips": self.chips, "causes": self.causes, "styles": styles}


@dataclass(slots=True)
class _Run:
    timeline: Timeline
    groups: list[Group]
    position: IntColumn
    """row -> row on the page"""


def page_data(runs: Sequence[tuple[str, RunResult]], *, most_bars: int = MOST_BARS) -> PageData:
    """The data of a page with these runs; labels are written before the chips' where there are several."""
    longest = max((result for _, result in runs), key=lambda result: result.time_s).timeline
    scale = scale_of(longest, GanttOptions())
    page = PageData(factor=scale.factor, unit=scale.unit, end=scale.end_ps / scale.factor)
    parts: list[Columns] = []
    tasks: list[Columns] = []
    at = 0
    drawn = []
    for number, (label, result) in enumerate(runs):
        groups, note = groups_of(result.timeline, most=MOST_GROUPS)
        run = _Run(result.timeline, groups, np.full(len(result.timeline), NOT_DRAWN, dtype=np.int64))
        rows = _number(run, at)
        tasks.append(_tasks(page, run, rows))
        at += len(rows)
        head = f"{label}, {format_seconds(result.time_s)}: " if len(runs) > 1 else ""
        for place, group in enumerate(groups):
            page.groups.append(
                {"header": head + group.header, "run": number, "folded": place >= max(OPEN_GROUPS // len(runs), 1)}
            )
            _bands(page, group)
            parts += _lanes(page, run, group)
        drawn.append(f"{label}: {note}" if note and len(runs) > 1 else note)
        page.notes += [line for group in groups for line in group.notes]
    page.notes = list(dict.fromkeys([note for note in drawn if note] + page.notes))
    _put(page, _capped(page, parts, most_bars), tasks)
    return page


def _number(run: _Run, offset: int) -> IntColumn:
    """Number the rows of chips that are drawn from ``offset`` on, and those of chips alike with them."""
    order = np.argsort(run.timeline.entity, kind="stable")
    cuts = np.searchsorted(run.timeline.entity[order], np.arange(len(run.timeline.entities) + 1))
    shown = []
    for group in run.groups:
        of_members = [order[cuts[entity] : cuts[entity + 1]] for entity in group.entities]
        numbers = offset + np.arange(len(of_members[0]))
        for rows in of_members:
            run.position[rows] = numbers
        shown.append(of_members[0])
        offset += len(numbers)
    return np.concatenate(shown) if shown else np.zeros(0, dtype=np.int64)


def _tasks(page: PageData, run: _Run, rows: IntColumn) -> Columns:
    t = run.timeline
    by = t.released_by[rows]
    lasted = t.end_ps[rows] - t.start_ps[rows]
    work = t.work_ps[rows] if len(t.work_ps) else np.zeros(len(rows), dtype=np.int64)
    columns: Columns = {
        "task": (t.task[rows] + len(page.task_names)).astype(np.int32),
        "operation": (t.operation[rows] + len(page.operation_names)).astype(np.int32),
        "chip": (t.entity[rows] + len(page.chips)).astype(np.int32),
        "layer": t.layer[rows].astype(np.int32),
        "index": t.iteration[rows].astype(np.int32),
        "start": t.start_ps[rows] / page.factor,
        "end": t.end_ps[rows] / page.factor,
        "bytes": t.bytes[rows].astype(float),
        "flops": t.flops[rows].astype(float),
        "share": (np.divide(work, lasted, out=np.zeros(len(rows)), where=lasted > 0)).astype(np.float32),
        "by": np.where(by >= 0, run.position[np.maximum(by, 0)], -1).astype(np.int32),
        "by_chip": np.where(by >= 0, t.entity[np.maximum(by, 0)] + len(page.chips), -1).astype(np.int32),
        "how": t.released_how[rows].astype(np.uint8),
    }
    page.task_names += t.task_names
    page.operation_names += t.operation_names
    page.chips += [entity.label for entity in t.entities]
    return columns


def _bands(page: PageData, group: Group) -> None:
    page.groups[-1]["bands"] = bool(group.bands)
    first = group.bands[0].label if group.bands else ""
    named = "layer" if first.startswith("layer ") else "microbatch" if re.fullmatch(r"m\d+", first) else "operation"
    page.groups[-1]["band_name"] = named
    for number, band in enumerate(group.bands):
        page.bands.append(
            {
                "group": len(page.groups) - 1,
                "label": band.label,
                "left": band.start_ps / page.factor,
                "right": band.end_ps / page.factor,
                "shade": number % 2,
            }
        )


def kind_of(lane: Lane) -> str:
    """What the lane is shown or hidden with."""
    if lane.thin:
        return "buffers"
    if lane.label in ("HBM→VMEM", "VMEM→HBM"):
        return "HBM"
    longest_first = sorted(KIND_LABELS.values(), key=len, reverse=True)
    return next((name for name in longest_first if lane.label.split(" ")[: name.count(" ") + 1] == name.split(" ")),
                lane.label)  # fmt: skip


def _lanes(page: PageData, run: _Run, group: Group) -> list[Columns]:
    """The group's lanes and their blocks of bars, in picoseconds."""
    t, parts = run.timeline, []
    computing = compute_rows(t, group.entity)
    starts = t.start_ps[computing]
    own = np.flatnonzero(t.entity == group.entity)
    last = int(own[np.argmax(t.done_ps[own])]) if len(own) else -1
    for lane in group.lanes:
        page.lanes.append(
            {
                "group": len(page.groups) - 1,
                "label": lane.label,
                "kind": kind_of(lane),
                "share": "" if lane.share is None else f"{100 * lane.share:.0f} %",
                "height": THIN_PX if lane.thin else LANE_PX,
            }
        )
        for bars in lane.bars:
            if bars.causes:
                # The task that waits is the next to be computed; after the last one, the run's end waits.
                following = np.searchsorted(starts, bars.end_ps)
                rows = np.append(computing, last)[np.minimum(following, len(computing))]
                kind = WAIT
            elif len(bars.takers):
                rows, kind = bars.takers, BUFFER
            else:
                rows, kind = bars.rows, TASK
            parts.append(_block(page, run, group, bars, rows, kind))
    return parts


def _block(page: PageData, run: _Run, group: Group, bars: Bars, rows: IntColumn, kind: int) -> Columns:
    if bars.style not in page.styles:
        page.styles.append(bars.style)
    order = np.argsort(bars.start_ps, kind="stable")
    causes = np.zeros(len(order), dtype=np.uint8)
    for number, cause in enumerate(bars.causes):
        text = CAUSES.get(cause, f"waiting for {cause}")
        if text not in page.causes:
            page.causes.append(text)
        causes[number] = page.causes.index(text)
    critical = group.critical[np.maximum(rows, 0)] & (rows >= 0) if kind == TASK else np.zeros(len(order), dtype=bool)
    none = np.full(len(order), -1, dtype=np.int64)
    block: Columns = {
        "start": bars.start_ps,
        "stop": bars.end_ps,
        "row": np.where(rows >= 0, run.position[np.maximum(rows, 0)], none),
        "critical": critical,
        "cause": causes,
    }
    sorted_block = {name: column[order] for name, column in block.items()}
    fixed = {"lane": len(page.lanes) - 1, "style": page.styles.index(bars.style), "kind": kind}
    return {**sorted_block, **{name: np.array([value]) for name, value in fixed.items()}}


def _capped(page: PageData, parts: list[Columns], most: int) -> list[Columns]:
    """The blocks with slivers merged until there are at most ``most`` bars in all."""
    total = sum(len(part["start"]) for part in parts)
    for part in parts:
        part["stands_for"] = np.ones(len(part["start"]), dtype=np.int64)
    if total <= most:
        return parts
    narrow = page.end * page.factor / 2**20
    while True:
        merged = [_merged(part, narrow) for part in parts]
        count = sum(len(part["start"]) for part in merged)
        if count <= most:
            break
        narrow *= 2
    width = format_seconds(narrow / 1e12)
    page.notes.append(
        f"{total:,} bars are {count:,} here: those shorter than {width} are merged with their neighbours, and have "
        "no card and no search"
    )
    return merged


def _merged(part: Columns, narrow: float) -> Columns:
    begins, ends, sizes = merge_slivers(part["start"], part["stop"], narrow)
    heads = np.cumsum(sizes) - sizes
    several = sizes > 1
    return {
        **part,
        "start": begins,
        "stop": ends,
        "row": np.where(several, -1, part["row"][heads]),
        "critical": part["critical"][heads] & ~several,
        "cause": part["cause"][heads],
        "stands_for": sizes,
    }


def _put(page: PageData, parts: list[Columns], tasks: list[Columns]) -> None:
    """Join the blocks and the runs' tasks."""
    at = 0
    for part in parts:
        size = len(part["start"])
        page.blocks.append([int(part["lane"][0]), int(part["style"][0]), at, at + size])
        at += size

    def joined(name: str, dtype: Any) -> npt.NDArray[Any]:
        columns = [part[name].astype(dtype) for part in parts]
        return np.concatenate(columns) if columns else np.zeros(0, dtype=dtype)

    page.bars = {
        "left": joined("start", float) / page.factor,
        "right": joined("stop", float) / page.factor,
        "row": joined("row", np.int32),
        "critical": joined("critical", np.uint8),
        "cause": joined("cause", np.uint8),
        "stands_for": joined("stands_for", np.int32),
        "kind": np.repeat(np.array([part["kind"][0] for part in parts], dtype=np.uint8),
                          [len(part["start"]) for part in parts]),
    }  # fmt: skip
    page.tasks = {name: np.concatenate([run[name] for run in tasks]) for name in tasks[0]}
    count = len(page.tasks["task"])
    if count > MOST_TASKS:
        kept = np.zeros(count, dtype=bool)
        kept[page.bars["row"][page.bars["row"] >= 0]] = True
        number = np.append(np.where(kept, np.cumsum(kept) - 1, NOT_DRAWN), [NOT_DRAWN, -1]).astype(np.int32)
        page.tasks = {name: column[kept] for name, column in page.tasks.items()}
        page.tasks["by"] = number[page.tasks["by"]]
        page.bars["row"] = number[page.bars["row"]]
