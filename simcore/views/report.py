"""The result of a run as a page of plain text: the answer, its lower bound, and what makes up the difference."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from simcore.exposure import exposed_communication_s
from simcore.memory import alive_at_peak, peak_bytes
from simcore.quantities import format_bytes, format_flops, format_seconds

if TYPE_CHECKING:
    from simcore.result import RunResult

CAUSES = {
    "hbm": "waiting for HBM",
    "ici": "waiting for a link (ICI)",
    "pcie": "waiting for PCIe",
    "dcn": "waiting for the data-centre network (DCN)",
    "dcn_share": "waiting for the host's network card (DCN)",
    "nvlink": "waiting for NVLink",
    "network": "waiting for the network",
    "latency": "hop latency of a message",
    "fill": "before the first computation (fill)",
    "drain": "after the last computation (drain)",
    "bubble": "waiting for another chip's computation",
    "queue": "waiting for an earlier task of the queue",
    "launch": "launch by the host",
    "start": "waiting for the start",
}
RESOURCES = {
    "hbm": "HBM",
    "mxu": "MXU",
    "vpu": "VPU",
    "ici": "ICI",
    "pcie": "PCIe",
    "dcn": "DCN",
    "dcn_share": "DCN, a chip's share",
    "nvlink": "NVLink",
    "network": "network",
}
MOST_TENSORS = 6


def finding(result: RunResult) -> str:
    """The result in one line: time, busiest compute, exposed communication, and what bounds it."""
    parts = [format_seconds(result.time_s)]
    for kind in ("mxu", "hbm"):
        if kind in result.utilization:
            parts.append(f"{RESOURCES[kind]} {100 * result.utilization[kind]:.0f} %")
    exposed = exposed_communication_s(result.exposed_s)
    if exposed and result.time_s:
        parts.append(f"exposed communication {format_seconds(exposed)} ({100 * exposed / result.time_s:.0f} %)")
    if result.bound_s:
        ratio = result.time_s / result.bound_s
        parts.append(f"bound by {_resource(result.bound_by)}, {ratio:.2f} x its {format_seconds(result.bound_s)}")
    return " · ".join(parts)


def render_report(result: RunResult) -> str:
    """The page."""
    model = "ideal" if result.ideal else "calibrated"
    chips = f"{result.chips} chips" if result.chips != 1 else "1 chip"
    lines = [f"{result.scenario} on {chips} {result.chip.name} ({model} model): {finding(result)}", *_notes(result)]
    lines += ["", *_where_time_goes(result), "", *_resources(result)]
    moved = _moved(result)
    if moved:
        lines += ["", *moved]
    memories = _memories(result)
    if memories:
        lines += ["", *memories]
    rate = result.tasks / result.wall_s if result.wall_s else 0
    lines += ["", f"{result.tasks:,} tasks simulated in {format_seconds(result.wall_s)} ({rate:,.0f} a second)"]
    return "\n".join(lines)


def _resource(kind: str) -> str:
    return RESOURCES.get(kind, kind)


def _notes(result: RunResult) -> list[str]:
    return [f"  {note}" for note in result.notes]


def _table(rows: Sequence[Sequence[str]], right: Iterable[int] = ()) -> list[str]:
    """Rows as aligned columns; columns in ``right`` are aligned to the right."""
    numbers = set(right)
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return [
        "  "
        + "  ".join(
            cell.rjust(width) if number in numbers else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


def _where_time_goes(result: RunResult) -> list[str]:
    """Busy time and attributed waits of the busiest chip: they add up to the time."""
    rows = [("MXU or VPU busy", format_seconds(result.busy_s), _share(result.busy_s, result.time_s))]
    for cause, seconds in result.exposed_s.items():
        if seconds:
            what = CAUSES.get(cause, f"waiting for {cause}")
            rows.append((what, format_seconds(seconds), _share(seconds, result.time_s)))
    rows.append(("in all", format_seconds(result.time_s), _share(result.time_s, result.time_s)))
    head = "where the time goes" + (" (the busiest chip)" if result.chips > 1 else "")
    lines = [head, *_table(rows, right=(1, 2))]
    excess = result.time_s - result.bound_s
    if result.bound_s and excess > 0:
        lines.append(f"  {_difference(result, excess)}")
    return lines


def _difference(result: RunResult, excess: float) -> str:
    """Why the time is more than its bound: the binding resource's own overheads, and the time it was idle."""
    served = result.utilization.get(result.bound_by, 0.0) * result.time_s
    overhead, idle = max(served - result.bound_s, 0.0), result.time_s - max(served, result.bound_s)
    name = _resource(result.bound_by)
    parts = []
    if overhead > 1e-12:
        parts.append(f"{format_seconds(overhead)} are overheads of {name} itself (efficiency, issue costs, padding)")
    if idle > 1e-12:
        parts.append(f"{format_seconds(idle)} in which {name} had nothing to serve")
    return f"over the bound by {format_seconds(excess)}: " + ", ".join(parts) if parts else ""


def _resources(result: RunResult) -> list[str]:
    """Work, service and share of each kind of unit."""
    rows = [("resource", "work / peak rate", "busy", "under compute", "")]
    for kind in sorted(result.bounds_s, key=lambda kind: -result.bounds_s[kind]):
        share = result.utilization.get(kind, 0.0)
        mark = "<- the bound" if kind == result.bound_by else ""
        hidden = format_seconds(result.overlap_s[kind]) if kind in result.overlap_s else ""
        rows.append((_resource(kind), format_seconds(result.bounds_s[kind]), f"{100 * share:.1f} %", hidden, mark))
    return ["resources (the busiest of each)", *_table(rows, right=(1, 2, 3))]


def _moved(result: RunResult) -> list[str]:
    """FLOPs, and bytes by interface and tensor."""
    lines = []
    if result.flops:
        lines.append(f"matmuls: {format_flops(result.flops)}" + (" on all chips" if result.chips > 1 else ""))
    if not result.bytes:
        return lines
    lines.append("bytes moved" + (" on all chips" if result.chips > 1 else ""))
    rows = []
    for interface, total in result.bytes.items():
        by = sorted(result.bytes_by_tensor.get(interface, {}).items(), key=lambda item: (-item[1], item[0]))
        shown = [f"{name} {format_bytes(size)}" for name, size in by[:MOST_TENSORS]]
        if len(by) > MOST_TENSORS:
            rest = sum(size for _, size in by[MOST_TENSORS:])
            shown.append(f"{len(by) - MOST_TENSORS} others {format_bytes(rest)}")
        rows.append((interface, format_bytes(total), ", ".join(shown)))
    return lines + _table(rows, right=(1,))


def _memories(result: RunResult) -> list[str]:
    """Peak of each memory, of the fullest chip, and what was in it then."""
    rows = []
    timeline = result.timeline
    for memory, peak in result.memory_peak_bytes.items():
        capacity = result.memory_capacity_bytes.get(memory)
        fullest = max(range(len(timeline.entities)), key=lambda entity: peak_bytes(timeline, entity, memory))
        alive = alive_at_peak(timeline, fullest, memory)
        shown = [f"{name} {format_bytes(size, binary=True)}" for name, size in alive[:4] if size]
        if len(alive) > 4:
            shown.append(f"{len(alive) - 4} others")
        of = f"of {format_bytes(capacity, binary=True)}, {100 * peak / capacity:.0f} %" if capacity else ""
        warning = "DOES NOT FIT: " if memory in result.overflowing_memories else ""
        rows.append((memory.upper(), format_bytes(peak, binary=True), of, warning + ", ".join(shown)))
    return (
        ["memory at its peak" + (" (the fullest chip)" if result.chips > 1 else ""), *_table(rows, right=(1,))]
        if rows
        else []
    )
