"""A run as a card for notebooks: the finding, where the time goes as a bar, and the figures. HTML without scripts."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from simcore.exposure import COMMUNICATION
from simcore.quantities import format_bytes, format_flops, format_seconds
from simcore.views.palette import EXPOSED, KINDS, WAITING
from simcore.views.report import CAUSES, RESOURCES, finding

if TYPE_CHECKING:
    from simcore.result import RunResult

WIDTH, HEIGHT = 640, 18


def html_card(result: RunResult) -> str:
    """The card; everything that comes from a user is escaped."""
    title = f"{result.scenario} on {result.chips} x {result.chip.name}"
    figures = [
        ("time", format_seconds(result.time_s)),
        ("lower bound", f"{format_seconds(result.bound_s)} ({RESOURCES.get(result.bound_by, result.bound_by)})"),
        ("FLOPs", format_flops(result.flops)),
        *((interface.replace("_", " "), format_bytes(size)) for interface, size in result.bytes.items()),
        *(
            (f"{memory.upper()} peak", format_bytes(peak, binary=True))
            for memory, peak in result.memory_peak_bytes.items()
        ),
    ]
    cells = "".join(
        f'<tr><td style="text-align:left">{escape(name)}</td><td style="text-align:right">{escape(value)}</td></tr>'
        for name, value in figures
    )
    return (
        f'<div style="font-family:sans-serif;max-width:{WIDTH + 20}px"><b>{escape(title)}</b>'
        f"<div>{escape(finding(result))}</div>{_bar(result)}<table>{cells}</table></div>"
    )


def _bar(result: RunResult) -> str:
    """Busy time and waits of the busiest chip, as wide as their shares."""
    if not result.time_s:
        return ""
    parts = [("MXU or VPU busy", result.busy_s, KINDS["matmul"].colour)]
    for cause, seconds in result.exposed_s.items():
        colour = EXPOSED.colour if cause in COMMUNICATION else WAITING.colour
        parts.append((CAUSES.get(cause, cause), seconds, colour))
    drawn, at = [], 0.0
    for name, seconds, colour in parts:
        width = WIDTH * seconds / result.time_s
        text = f"{name}: {format_seconds(seconds)}"
        drawn.append(
            f'<rect x="{at:.2f}" y="0" width="{width:.2f}" height="{HEIGHT}" fill="{colour}" stroke="white">'
            f"<title>{escape(text)}</title></rect>"
        )
        at += width
    legend = ", ".join(
        f"{name} {100 * seconds / result.time_s:.1f} %" for name, seconds, _ in parts if seconds > 0.005 * result.time_s
    )
    return (
        f'<svg width="{WIDTH}" height="{HEIGHT}" role="img">{"".join(drawn)}</svg>'
        f'<div style="font-size:85%;color:#555">{escape(legend)}</div>'
    )
