"""Several runs as panels of one picture that share the time axis, with a line where each of the shorter ones ends."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib

from simcore.files import written_beside
from simcore.quantities import format_seconds
from simcore.views import gantt
from simcore.views.gantt_lanes import groups_of
from simcore.views.gantt_scale import GanttOptions, scale_of
from simcore.views.heading import under_titles

if TYPE_CHECKING:
    from simcore.result import RunResult

PANEL_GROUPS = 2
"""Groups of chips that a panel shows."""


def draw_gantts(panels: Sequence[tuple[str, RunResult]], path: str | Path, title: str) -> None:
    """Timelines below each other, on an axis as long as the longest; the suffix of ``path`` chooses the format."""
    longest = max((result for _, result in panels), key=lambda result: result.time_s)
    groups, note = [], ""
    for label, result in panels:
        found, _ = groups_of(result.timeline)
        note = "chips that differ from those drawn are left out" if len(found) > PANEL_GROUPS else note
        head = f"{label}, {format_seconds(result.time_s)}"
        groups += [dataclasses.replace(group, header=f"{head}: {group.header}") for group in found[:PANEL_GROUPS]]
    options = GanttOptions(title=title, under=under_titles(panels))
    picture = gantt._Picture(longest, groups, scale_of(longest.timeline, options), options)
    picture.strips = []
    style: Any = {"svg.fonttype": "none", "svg.hashsalt": "simcore", "hatch.linewidth": 0.5, "font.size": 8.5}
    with matplotlib.rc_context(style):
        figure = picture.draw(note)
        for _, result in panels:
            if result is not longest:
                end = result.timeline.makespan_ps / picture.scale.factor
                figure.axes[0].axvline(end, color="black", linestyle=":", linewidth=0.9)
        dated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(Path(path).suffix.lower(), {})
        with written_beside(path) as temporary:
            figure.savefig(temporary, dpi=gantt.DPI, metadata=dated)
