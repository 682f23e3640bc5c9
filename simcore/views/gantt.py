"""The timeline as a picture: who held what, from when to when, with the finding as its title. PNG, SVG or PDF.

Lanes are those of `simcore.views.gantt_lanes`; bars are drawn as collections, so that a hundred thousand of them take
a second or two.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from simcore.files import written_beside
from simcore.quantities import format_seconds
from simcore.timeline import PS_PER_S, IntColumn
from simcore.views.gantt_lanes import Band, Bars, BoolColumn, Group, Lane, band_labels, groups_of
from simcore.views.gantt_scale import (
    LEFT_IN,
    STRIP_BINS,
    FloatArray,
    GanttOptions,
    Scale,
    memory_strips,
    scale_of,
    unit_strips,
)
from simcore.views.heading import under_title
from simcore.views.palette import BANDS, Style
from simcore.views.report import finding

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from simcore.result import RunResult

LANE_IN, THIN_IN, HEADER_IN, BAND_IN, STRIP_IN = 0.30, 0.17, 0.30, 0.22, 0.19
TOP_IN, BOTTOM_IN = 0.62, 0.95
DPI = 150
MOST_LABELS = 600
CHARACTER_IN = 0.062
HATCH_FROM_IN = 0.06
OUTLINE_FROM_IN = 0.03
LEAST_IN = 1 / DPI
"""Bars are drawn at least a pixel wide: the renderer moves edges to whole pixels, and would lose one in two."""
LIGHTEST = 0.4
"""Merged bars are as light as the share of their stretch that they take, but not lighter than this."""


def draw_gantt(result: RunResult, path: str | Path, options: GanttOptions | None = None) -> None:
    """Draw a run's timeline; the suffix of ``path`` chooses the format.

    Raises `OutputError` if the window holds nothing of the run, or the file cannot be written.
    """
    options = options or GanttOptions()
    timeline = result.timeline
    scale = scale_of(timeline, options)
    groups, note = groups_of(timeline, options.chips)
    # Fixed identifiers and no date: the same run gives the same file.
    style: Any = {"svg.fonttype": "none", "svg.hashsalt": "simcore", "hatch.linewidth": 0.5, "font.size": 8.5}
    with matplotlib.rc_context(style):
        figure = _Picture(result, groups, scale, options).draw(note)
        metadata: dict[str, Any] = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(
            Path(path).suffix.lower(), {}
        )
        with written_beside(path) as temporary:
            figure.savefig(temporary, dpi=DPI, metadata=metadata)


class _Picture:
    def __init__(self, result: RunResult, groups: Sequence[Group], scale: Scale, options: GanttOptions) -> None:
        self.result, self.groups, self.scale, self.options = result, groups, scale, options
        self.timeline = result.timeline
        self.merged = 0
        self.labels = 0
        self.styles: dict[str, Style] = {}
        self.critical: BoolColumn = np.zeros(0, dtype=bool)
        self.strips = unit_strips(self.timeline, scale)
        if options.memory:
            self.strips += memory_strips(result, scale)

    def draw(self, note: str) -> Figure:
        lanes_in = sum(self._group_in(group) for group in self.groups) or LANE_IN
        strips_in = STRIP_IN * len(self.strips) + (0.22 if self.strips else 0.0)
        height = TOP_IN + lanes_in + strips_in + BOTTOM_IN
        figure = Figure(figsize=(self.options.width_in, height))
        width = self.options.width_in
        axes = figure.add_axes(
            (LEFT_IN / width, (BOTTOM_IN + strips_in) / height, self.scale.inches / width, lanes_in / height)
        )
        at = 0.0
        self.axes = axes
        for group in self.groups:
            at = self._group(group, at)
        axes.set_ylim(lanes_in, 0)
        self._x_axis(axes, labelled=not self.strips)
        axes.set_yticks([])
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
        if self.strips:
            below = figure.add_axes(
                (LEFT_IN / width, BOTTOM_IN / height, self.scale.inches / width, STRIP_IN * len(self.strips) / height)
            )
            self._draw_strips(below)
        self._title(figure, height)
        self._foot(figure, height, note)
        return figure

    def _group_in(self, group: Group) -> float:
        lanes = sum(THIN_IN if lane.thin else LANE_IN for lane in group.lanes)
        return HEADER_IN + (BAND_IN if group.bands else 0.0) + lanes

    # -- parts ------------------------------------------------------------------------------------------------

    def _x_axis(self, axes: Axes, labelled: bool) -> None:
        s = self.scale
        axes.set_xlim(s.begin_ps / s.factor, s.end_ps / s.factor)
        axes.tick_params(axis="x", labelbottom=labelled, length=3)
        if labelled:
            axes.set_xlabel(f"time, {s.unit}")

    def _title(self, figure: Figure, height: float) -> None:
        title = self.options.title or finding(self.result)
        under = under_title(self.result) if self.options.under is None else self.options.under
        x = LEFT_IN / self.options.width_in
        room = int((self.options.width_in - LEFT_IN - 0.1) / 0.075)
        figure.text(x, 1 - 0.24 / height, title, fontsize=11.5, weight="bold", va="center")
        figure.text(x, 1 - 0.46 / height, _cut(under, room), fontsize=8.5, color="#555555", va="center")

    def _group(self, group: Group, top: float) -> float:
        """Draw a group from ``top`` (inches) downwards; returns where it ends."""
        axes, s = self.axes, self.scale
        left = s.begin_ps / s.factor
        axes.text(left, top + 0.68 * HEADER_IN, group.header, weight="bold", va="center")
        axes.plot([left, s.end_ps / s.factor], [top + 0.05] * 2, color="#BBBBBB", linewidth=0.6)
        at = top + HEADER_IN
        if group.bands:
            self._bands(group.bands, at, top + self._group_in(group))
            at += BAND_IN
        self.critical = group.critical
        for lane in group.lanes:
            height = THIN_IN if lane.thin else LANE_IN
            self._lane(lane, at, height)
            at += height
        return at

    def _bands(self, bands: Sequence[Band], at: float, bottom: float) -> None:
        axes, s = self.axes, self.scale
        visible = [band for band in bands if band.end_ps > s.begin_ps and band.start_ps < s.end_ps]
        wide = [band for band in visible if (band.end_ps - band.start_ps) / s.ps_per_in > 0.02]
        begin = np.array([max(band.start_ps, s.begin_ps) for band in wide], dtype=float)
        end = np.array([min(band.end_ps, s.end_ps) for band in wide], dtype=float)
        if wide:
            shades = [BANDS[number % 2] for number in range(len(wide))]
            corners = _rectangles(begin / s.factor, end / s.factor, at, BAND_IN * 0.8)
            axes.add_collection(PolyCollection(corners, facecolors=shades, linewidths=0.0, zorder=1), autolim=False)
        if 1 < len(wide) <= 100:
            lines: Any = [[(x, at), (x, bottom)] for x in (begin[1:] / s.factor).tolist()]
            drawn = LineCollection(lines, colors="#CCCCCC", linewidths=0.6, zorder=0.5)
            axes.add_collection(drawn, autolim=False)
        edges = zip((begin / s.ps_per_in).tolist(), (end / s.ps_per_in).tolist(), strict=True)
        labels = band_labels([band.label for band in wide], list(edges), CHARACTER_IN)
        for label, x in zip(labels, ((begin + end) / 2 / s.factor).tolist(), strict=True):
            if label:
                axes.text(x, at + BAND_IN * 0.4, label, ha="center", va="center", fontsize=7)
        self._lane_label(
            self.axes, "layer" if wide and wide[0].label.startswith("layer ") else "operation", at, BAND_IN
        )

    def _lane_label(self, axes: Axes, label: str, at: float, height: float, small: bool = False) -> None:
        axes.annotate(
            _cut(label, 24),
            (0, at + height / 2),
            xycoords=("axes fraction", "data"),
            xytext=(-6, 0),
            textcoords="offset points",
            ha="right",
            va="center",
            fontsize=7 if small else 8.5,
            annotation_clip=False,
        )

    def _lane(self, lane: Lane, at: float, height: float) -> None:
        self._lane_label(self.axes, lane.label, at, height, small=lane.thin)
        if lane.share is not None:
            self.axes.annotate(
                f"{100 * lane.share:.0f} %",
                (1, at + height / 2),
                xycoords=("axes fraction", "data"),
                xytext=(5, 0),
                textcoords="offset points",
                va="center",
                annotation_clip=False,
            )
        for bars in lane.bars:
            self._bars(bars, at + 0.1 * height, 0.8 * height)

    def _bars(self, bars: Bars, y: float, height: float) -> None:
        s = self.scale
        inside = (bars.end_ps > s.begin_ps) & (bars.start_ps < s.end_ps)
        if not inside.any():
            return
        self.styles.setdefault(bars.style.label, bars.style)
        start = np.maximum(bars.start_ps[inside], s.begin_ps)
        end = np.minimum(bars.end_ps[inside], s.end_ps)
        rows, numbers = bars.rows[inside], bars.numbers[inside]
        begins, ends, sizes = merge_slivers(start, end, LEAST_IN * s.ps_per_in)
        first = np.cumsum(sizes) - sizes
        density = np.add.reduceat(end - start, first) / np.maximum(ends - begins, 1)
        begins, ends = at_least(begins, ends, LEAST_IN * s.ps_per_in, s.end_ps)
        self.merged += int(sizes[sizes > 1].sum())
        widths = (ends - begins) / s.ps_per_in
        hatched = widths > HATCH_FROM_IN
        for part, hatch in ((hatched, bars.style.hatch), (~hatched, "")):
            # A line of a pixel or two would be hard to see lighter.
            solid = (sizes[part] == 1) | (widths[part] < 2.5 * LEAST_IN)
            colours = _mixed(bars.style.colour, np.where(solid, 1.0, np.maximum(density[part], LIGHTEST)))
            self._collection(begins[part], ends[part], y, height, colours, hatch)
        single = np.flatnonzero(sizes == 1)
        of_single = first[single]
        outlined = (rows[of_single] >= 0) & self.critical[rows[of_single]] & (widths[single] > OUTLINE_FROM_IN)
        self._outline(begins[single[outlined]], ends[single[outlined]], y, height)
        self._numbers(begins[single], ends[single], numbers[of_single], y, height, bars.style)

    def _collection(
        self, begin: FloatArray, end: FloatArray, y: float, height: float, colours: Any, hatch: str
    ) -> None:
        if len(begin):
            self.axes.add_collection(
                PolyCollection(
                    _rectangles(begin / self.scale.factor, end / self.scale.factor, y, height),
                    facecolors=colours,
                    edgecolors="#00000055" if hatch else "none",
                    linewidths=0.0,
                    hatch=hatch or None,
                    zorder=2,
                ),
                autolim=False,
            )

    def _outline(self, begin: FloatArray, end: FloatArray, y: float, height: float) -> None:
        if len(begin):
            self.styles.setdefault("critical path", Style("critical path", "none"))
            self.axes.add_collection(
                PolyCollection(
                    _rectangles(begin / self.scale.factor, end / self.scale.factor, y, height),
                    facecolors="none",
                    edgecolors="black",
                    linewidths=0.9,
                    zorder=3,
                ),
                autolim=False,
            )

    def _numbers(
        self, begin: FloatArray, end: FloatArray, numbers: IntColumn, y: float, height: float, style: Style
    ) -> None:
        """Tile indices, where they fit."""
        widths = (end - begin) / self.scale.ps_per_in
        dark = style.colour in ("#0072B2", "#009E73")
        for x0, x1, width, number in zip(begin, end, widths.tolist(), numbers.tolist(), strict=True):
            if number < 0 or self.labels >= MOST_LABELS or width < (len(str(number)) + 1) * CHARACTER_IN:
                continue
            self.labels += 1
            text = self.axes.text(
                (x0 + x1) / 2 / self.scale.factor,
                y + height / 2,
                str(number),
                ha="center",
                va="center_baseline",
                fontsize=7 if height > 0.2 else 6,
                color="white" if dark else "black",
                zorder=4,
            )
            if style.hatch:
                text.set_bbox({"facecolor": style.colour, "edgecolor": "none", "pad": 0.6})

    def _draw_strips(self, axes: Axes) -> None:
        """Share of each bin in which each kind of unit serves."""
        s = self.scale
        edges = np.linspace(s.begin_ps, s.end_ps, STRIP_BINS + 1) / s.factor
        for number, (kind, busy, share) in enumerate(self.strips):
            base = number + 0.9
            axes.stairs(base - 0.8 * busy, edges, baseline=base, fill=True, color="#777777")
            axes.plot([edges[0], edges[-1]], [base, base], color="#CCCCCC", linewidth=0.5)
            self._lane_label(axes, kind, number, 1.0, small=True)
            axes.annotate(
                f"{100 * share:.0f} %",
                (1, number + 0.5),
                xycoords=("axes fraction", "data"),
                xytext=(5, 0),
                textcoords="offset points",
                va="center",
                fontsize=7,
                annotation_clip=False,
            )
        axes.set_ylim(len(self.strips), 0)
        axes.set_yticks([])
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
        self._x_axis(axes, labelled=True)

    def _foot(self, figure: Figure, height: float, note: str) -> None:
        handles = [
            Patch(
                facecolor=style.colour,
                edgecolor="black" if style.colour == "none" else "#00000055",
                linewidth=0.9 if style.colour == "none" else 0.0,
                hatch=style.hatch or None,
                label=style.label,
            )
            for style in self.styles.values()
        ]
        if handles:
            figure.legend(
                handles=handles,
                loc="lower left",
                bbox_to_anchor=(LEFT_IN / self.options.width_in, 0.16 / height),
                ncols=len(handles),
                frameon=False,
                fontsize=8,
                handlelength=1.6,
                columnspacing=1.4,
                borderaxespad=0,
            )
        notes = [note] if note else []
        notes += [line for group in self.groups for line in group.notes]
        if self.merged:
            notes.append(f"{self.merged:,} bars narrower than a pixel are merged with their neighbours")
        if self.options.window_s is not None or self.options.layers is not None:
            whole = format_seconds(self.timeline.makespan_ps / PS_PER_S)
            notes.append(f"a part of a run of {whole}, of which the title and the shares right of lanes are")
        if notes:
            text = "; ".join(dict.fromkeys(notes))
            figure.text(LEFT_IN / self.options.width_in, 0.1 / height, text, fontsize=7, color="#555555", va="center")


def merge_slivers(start: IntColumn, end: IntColumn, narrow: float) -> tuple[FloatArray, FloatArray, IntColumn]:
    """Merge runs of adjacent bars that are all narrower than ``narrow`` and no farther apart.

    ``start`` is ascending. Returns starts, ends, and how many bars each one stands for.
    """
    begins, ends = start.astype(float), end.astype(float)
    small = ends - begins < narrow
    joined = np.zeros(len(begins), dtype=bool)
    joined[1:] = small[1:] & small[:-1] & (begins[1:] - ends[:-1] < narrow)
    heads = np.flatnonzero(~joined)
    sizes = np.diff(np.append(heads, len(begins)))
    return begins[heads], np.maximum.reduceat(ends, heads), sizes


def _rectangles(begin: FloatArray, end: FloatArray, y: float, height: float) -> Any:
    """Corners [bars, 4, 2]; matplotlib's types ask for a list, its code takes the array."""
    corners = np.empty((len(begin), 4, 2))
    corners[:, 0, 0] = corners[:, 3, 0] = begin
    corners[:, 1, 0] = corners[:, 2, 0] = end
    corners[:, :2, 1], corners[:, 2:, 1] = y, y + height
    return corners


def at_least(begin: FloatArray, end: FloatArray, width: float, last: float) -> tuple[FloatArray, FloatArray]:
    """Bars no narrower than ``width``, and none that ends after ``last``."""
    wide = np.minimum(np.maximum(end, begin + width), np.maximum(last, end))
    return np.minimum(begin, wide - width), wide


def _mixed(colour: str, density: FloatArray) -> Any:
    """The colour, mixed with white where the density is below 1."""
    if (density >= 1).all():
        return colour
    share = np.clip(density, 0.0, 1.0)[:, None]
    mixed = np.ones((len(density), 4))
    mixed[:, :3] = share * np.array(to_rgba(colour)[:3]) + 1 - share
    return mixed


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
