"""The page of ``simcore explain`` and the tables of ``simcore whatif``, for a terminal of 80 columns and more."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from simcore.critical import IDLE, resource_of
from simcore.quantities import format_bytes, format_seconds
from simcore.timeline import PS_PER_S
from simcore.views.report import CAUSES, RESOURCES
from simcore.whatif import bottleneck, short_name

if TYPE_CHECKING:
    from simcore.explain import Explanation
    from simcore.result import RunResult
    from simcore.sensitivity import Sensitivity
    from simcore.whatif import Change, WhatIf

MOST_ROWS = 6
LARGE = 0.25
"""Share of a wait above which the operation, or the layer, is named."""


def show(page: RenderableType) -> None:
    """Print to stdout, in colour on a terminal, never wider than it nor than 100 columns."""
    console = Console(highlight=False)
    console.width = max(80, min(console.width, 100))
    console.print(page)


def plain(page: RenderableType, width: int = 80) -> str:
    """The page as text without colours."""
    console = Console(file=io.StringIO(), width=width, highlight=False, color_system=None)
    console.print(page)
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


def page_text(found: Explanation, width: int = 80) -> str:
    return plain(explain_page(found), width)


def explain_page(found: Explanation) -> Group:
    """The page: time and bound, the gap, the critical path, waits, memory, sensitivity, and what would help."""
    parts: list[RenderableType | None] = [_head(found.result), Text(f"{_capital(found.gap.sentence())}.")]
    parts += [Padding(Text(note, style="dim"), (0, 0, 0, 2)) for note in (*found.result.notes, *found.notes)]
    parts += [_bounds(found), _gap(found), _path(found), _waits(found), _memory(found)]
    parts += [sensitivity_table(found.sensitivities), _helping(found)]
    return Group(*_spaced(parts))


def _spaced(parts: Iterable[RenderableType | None]) -> list[RenderableType]:
    spaced: list[RenderableType] = []
    for part in parts:
        if part is None:
            continue
        if isinstance(part, Table) and spaced:
            spaced.append(Text())
        spaced.append(part)
    return spaced


def _head(result: RunResult) -> Text:
    model = "ideal" if result.ideal else "calibrated"
    chips = "1 chip" if result.chips == 1 else f"{result.chips} chips"
    where = f" on {chips} {result.chip.name} ({model} model)"
    return Text.assemble((result.scenario, "bold"), where, ": ", (format_seconds(result.time_s), "bold"))


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], right: Iterable[int] = ()) -> Table:
    """A table with a title; columns in ``right`` are numbers, the last one takes what is left of the line."""
    table = Table(
        title=title, title_justify="left", title_style="bold", header_style="dim", box=None, padding=(0, 1, 0, 1)
    )
    numbers = set(right)
    for number, name in enumerate(columns):
        last = number == len(columns) - 1
        table.add_column(
            name,
            justify="right" if number in numbers else "left",
            no_wrap=number in numbers,
            overflow="fold" if last else "ellipsis",
        )
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    return table


def _s(ps: float) -> str:
    return format_seconds(ps / PS_PER_S)


def _share(part: float, whole: float) -> str:
    share = 100 * part / whole if whole else 0.0
    return f"{share:.1f} %" if share >= 0.05 or not part else "< 0.1 %"


def resource_name(kind: str) -> str:
    """``ici latency`` as "ICI latency"."""
    base, space, rest = kind.partition(" ")
    return RESOURCES.get(base, base) + space + rest


def _bounds(found: Explanation) -> Table:
    whole = found.gap.makespan_ps
    rows = [
        (resource_name(name), _s(ps), _share(ps, whole), "<- the best bound" if name == found.bounds.best else "")
        for name, ps in found.bounds.all_ps().items()
        if ps
    ]
    return _table("Lower bounds", ("resource", "at least", "of the time", ""), rows, right=(1, 2))


def _gap(found: Explanation) -> Table | None:
    gap = found.gap
    if not gap.parts:
        return None
    rows = []
    names = gap.by_name()
    for name in list(names)[:MOST_ROWS]:
        by = [(part.operation or part.cause, part.ps) for part in gap.parts if part.name == name]
        rows.append((name, _s(names[name]), _share(names[name], gap.makespan_ps), _mostly(by, names[name])))
    rest = sum(list(names.values())[MOST_ROWS:])
    if rest:
        rows.append((f"{len(names) - MOST_ROWS} others", _s(rest), _share(rest, gap.makespan_ps), ""))
    rows.append(("in all", _s(gap.total_ps), _share(gap.total_ps, gap.makespan_ps), ""))
    title = f"The gap: what is beyond the bound ({resource_name(gap.bound_by)})"
    return _table(title, ("part", "time", "of the time", "mostly"), rows, right=(1, 2))


def _mostly(by: Sequence[tuple[str, int]], whole: int) -> str:
    """``w_up 40 %, w_down 38 %``: those with the largest shares."""
    sums: dict[str, int] = {}
    for name, ps in by:
        sums[name] = sums.get(name, 0) + ps
    largest = sorted(sums.items(), key=lambda item: -item[1])
    named = [(name, ps) for name, ps in largest if name]
    if len(named) == 1 and named[0][1] == whole:
        return named[0][0]
    return ", ".join(f"{name} {100 * ps / whole:.0f} %" for name, ps in named[:3] if ps >= 0.05 * whole)


def _path(found: Explanation) -> Table | None:
    path, whole = found.path, found.gap.makespan_ps
    by_resource = path.by_resource()
    if not by_resource:
        return None
    rows = []
    for resource in list(by_resource)[:MOST_ROWS]:
        spent = by_resource[resource]
        rows.append(
            (resource_name(resource), _s(spent), _share(spent, whole), _mostly(_by_operation(found, resource), spent))
        )
    layers = {layer: ps for layer, ps in path.by_layer().items() if layer >= 0}
    if len(layers) > 1:
        least, most = min(layers.values()), max(layers.values())
        each = _s(least) if least == most else f"{_s(least)} to {_s(most)}"
        outside = whole - sum(layers.values())
        rows.append((f"{len(layers)} layers", _s(whole - outside), _share(whole - outside, whole), f"{each} each"))
    return _table("Critical path", ("spent on", "time", "of the time", "mostly"), rows, right=(1, 2))


def _by_operation(found: Explanation, resource: str) -> list[tuple[str, int]]:
    timeline = found.path.timeline
    return [
        (timeline.operation_names[int(timeline.operation[s.row])] if s.row >= 0 else IDLE, s.ps)
        for s in found.path.stretches
        if resource_of(timeline, s) == resource
    ]


def _waits(found: Explanation) -> Table | None:
    whole = found.gap.makespan_ps
    causes = dict.fromkeys(e.cause for e in found.exposed)
    totals = {cause: sum(e.ps for e in found.exposed if e.cause == cause) for cause in causes}
    rows = []
    for cause in sorted(totals, key=lambda cause: -totals[cause])[:MOST_ROWS]:
        total, own = totals[cause], [e for e in found.exposed if e.cause == cause]
        where = _mostly([(e.operation, e.ps) for e in own], total)
        by_layer: dict[int, int] = {}
        for e in own:
            by_layer[e.layer] = by_layer.get(e.layer, 0) + e.ps
        layer = max(by_layer, key=lambda layer: by_layer[layer])
        if layer >= 0 and len(by_layer) > 1 and by_layer[layer] >= LARGE * total:
            where += f"; layer {layer} {100 * by_layer[layer] / total:.0f} %"
        what = CAUSES.get(cause, cause if cause == IDLE else f"waiting for {cause}")
        rows.append((what, _s(total), _share(total, whole), where))
    if not rows:
        return None
    busy = whole - sum(totals.values())
    title = f"What compute waits for (MXU or VPU work {_share(busy, whole)} of the time)"
    return _table(title, ("cause", "time", "of the time", "mostly"), rows, right=(1, 2))


def _memory(found: Explanation) -> Table | None:
    rows = []
    for held in found.memories:
        of = ""
        if held.capacity_bytes:
            share = 100 * held.peak_bytes / held.capacity_bytes
            of = f"{share:.0f} % of {format_bytes(held.capacity_bytes, binary=True)}"
        shown = [f"{name} {format_bytes(size, binary=True)}" for name, size in held.holders[:3]]
        if len(held.holders) > 3:
            shown.append(f"{len(held.holders) - 3} others")
        over = "DOES NOT FIT: " if held.memory in found.result.overflowing_memories else ""
        rows.append((held.memory.upper(), format_bytes(held.peak_bytes, binary=True), of, over + ", ".join(shown)))
    return _table("Memory at its peak", ("memory", "peak", "", "held by"), rows, right=(1,)) if rows else None


def sensitivity_table(found: Sequence[Sensitivity]) -> Table | None:
    """How the time answers to each figure that has an effect; both sides where they differ."""
    rows = []
    for one in found:
        up, down = one.elasticity(True), one.elasticity(False)
        if max(abs(up), abs(down)) < 5e-5:
            continue
        effect = f"{up:+.3f} %" if not one.tie else f"{up:+.3f} % (-1 %: {-down:+.3f} %)"
        rows.append((short_name(one.figure), effect, _range(one)))
    if not rows:
        return None
    return _table(
        "What 1 % more of a figure does",
        ("figure", "to the time", "holds from .. to"),
        rows,
        right=(1,),
    )


def _range(one: Sensitivity) -> str:
    if one.lowest is None or one.highest is None:
        return "not looked for: many tasks"
    if one.lowest == one.highest == 1:
        return "not shown: requests nearly tie"
    return f"{one.lowest:.3g}x .. {one.highest:.3g}x"


def _helping(found: Explanation) -> RenderableType:
    if not found.changes:
        return Text("\nNo change that was tried helps: neither a faster unit nor a lower latency, nor a lever.")
    return changes_table("What would help most (each simulated)", found.changes)


def changes_table(title: str, changes: Sequence[Change]) -> Table:
    """One row a change."""
    rows = []
    for change in changes:
        if change.time_s is None or change.speedup is None:
            rows.append((change.label, "-", "-", "-", change.note))
            continue
        resource, share = change.bottleneck
        predicted = format_seconds(change.predicted_s) if change.predicted_s is not None else "-"
        told = f"{resource_name(resource)} {100 * share:.0f} %" + (f"; {change.note}" if change.note else "")
        rows.append((change.label, format_seconds(change.time_s), f"{change.speedup:.3f} x", predicted, told))
    return _table(title, ("change", "time", "speed-up", "predicted", "bottleneck then"), rows, right=(1, 2, 3))


def whatif_page(found: WhatIf, sensitivities: Sequence[Sensitivity] = ()) -> Group:
    """The base run's line, the changes, and the sensitivities where given."""
    resource, share = bottleneck(found.base)
    head = _head(found.base)
    head.append(f", {100 * share:.0f} % of its critical path on {resource_name(resource)}")
    parts: list[RenderableType | None] = [head]
    if found.changes:
        parts.append(changes_table("With other figures (each simulated)", found.changes))
    parts.append(sensitivity_table(sensitivities))
    return Group(*_spaced(parts))
