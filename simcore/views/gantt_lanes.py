"""What a timeline picture shows: the lanes of each group of alike chips and the bars in them. No drawing here."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from simcore.critical import critical_rows
from simcore.errors import OutputError
from simcore.exposure import COMMUNICATION, waits
from simcore.timeline import COMPUTE_UNITS, IntColumn, Timeline
from simcore.views.palette import EXPOSED, SLOT, WAITING, Style, style_of

BoolColumn = npt.NDArray[np.bool_]
UNIT_ORDER = ("mxu", "vpu", "hbm", "ici", "nvlink", "pcie", "dcn", "dcn_share", "network", "server")
NETWORK_UNITS = ("ici", "nvlink", "pcie", "dcn", "dcn_share", "network")
KIND_LABELS = {
    "mxu": "MXU",
    "vpu": "VPU",
    "ici": "ICI",
    "pcie": "PCIe",
    "dcn": "DCN",
    "dcn_share": "DCN share",
    "nvlink": "NVLink",
}
MOST_POOLS, MOST_SLOTS, MOST_GROUPS = 3, 4, 4


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars of one style in one lane; ``rows`` are the timeline's, -1 for bars that are no task."""

    style: Style
    start_ps: IntColumn
    end_ps: IntColumn
    rows: IntColumn
    numbers: IntColumn
    """what to write in each bar, -1 for nothing"""
    takers: IntColumn = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """of buffers that are held: the rows of the tasks that took them"""
    causes: Sequence[str] = ()
    """of waits: the cause of each, as in `simcore.exposure`"""


@dataclass(frozen=True, slots=True)
class Lane:
    """One line of the picture; ``share`` is the part of the time it is busy, where that means something."""

    label: str
    bars: Sequence[Bars]
    share: float | None = None
    thin: bool = False


@dataclass(frozen=True, slots=True)
class Band:
    """A labelled stretch: a layer, an operation."""

    label: str
    start_ps: int
    end_ps: int


NUMBERED = re.compile(r"(?:layer |m)(\d+)")
STEPS = (5, 10, 20, 50, 100, 200, 500, 1000)


def band_labels(labels: Sequence[str], edges: Sequence[tuple[float, float]], character: float) -> list[str]:
    """What to write in bands from ``edges`` to ``edges``, a ``character`` wide each: whatever fits, else nothing.

    Numbered bands (layers, microbatches) are all written alike: whole, or as numbers; where not every number fits,
    every fifth has one, or every tenth, and so on.
    """
    numbers = [match[1] if (match := NUMBERED.fullmatch(label)) else "" for label in labels]

    def fits(text: str, at: int) -> bool:
        return (len(text) + 1) * character <= edges[at][1] - edges[at][0]

    if not all(numbers):
        return [label if fits(label, at) else "" for at, label in enumerate(labels)]
    # The first and the last may be cut off by the picture, or shorter.
    inner = range(1, len(labels) - 1) if len(labels) > 2 else range(len(labels))
    for texts in (list(labels), numbers):
        if all(fits(texts[at], at) for at in inner):
            return [text if fits(text, at) else "" for at, text in enumerate(texts)]
    for step in STEPS:
        shown = [at for at, number in enumerate(numbers) if int(number) % step == 0]
        ends = [(_middle(edges[at]), (len(numbers[at]) + 1) * character / 2) for at in shown]
        if all(one + half <= other - other_half for (one, half), (other, other_half) in pairwise(ends)):
            return [number if int(number) % step == 0 else "" for number in numbers]
    return [""] * len(labels)


def _middle(edges: tuple[float, float]) -> float:
    return (edges[0] + edges[1]) / 2


@dataclass(frozen=True, slots=True)
class Group:
    """Chips that do the same at the same times, drawn once."""

    header: str
    entity: int
    entities: Sequence[int]
    """these entities; the first is the one that is drawn"""
    members: int
    bands: Sequence[Band]
    lanes: Sequence[Lane]
    critical: BoolColumn
    """row -> on the critical path, of this chip or of one that does the same"""
    notes: Sequence[str] = field(default_factory=tuple)


def groups_of(timeline: Timeline, only: Sequence[int] = (), *, most: int = MOST_GROUPS) -> tuple[list[Group], str]:
    """The groups that are drawn, the busiest kinds of chips first, and a note on those that are not.

    ``only`` these chips, by their number in the order of coordinates; at most ``most`` groups. Raises `OutputError`
    for a chip that is not there.
    """
    wanted = _chosen(timeline, only)
    alike: dict[tuple[str, bytes], list[int]] = {}
    order = np.argsort(timeline.entity, kind="stable")
    cuts = np.searchsorted(timeline.entity[order], np.arange(len(timeline.entities) + 1))
    for number, entity in enumerate(timeline.entities):
        if wanted is not None and number not in wanted:
            continue
        rows = order[cuts[number] : cuts[number + 1]]
        columns = (timeline.task, timeline.start_ps, timeline.end_ps, timeline.done_ps)
        signature = b"".join(np.ascontiguousarray(column[rows]).tobytes() for column in columns)
        alike.setdefault((entity.cls, signature), []).append(number)
    chosen = list(alike.values())
    note = ""
    if len(chosen) > most:
        left = sum(len(members) for members in chosen[most:])
        note = f"{left} more that differ are not drawn"
        chosen = chosen[:most]
    on_path = np.zeros(len(timeline), dtype=bool)
    on_path[critical_rows(timeline)] = True
    groups = []
    for members in chosen:
        of_members = [order[cuts[member] : cuts[member + 1]] for member in members]
        critical = np.zeros(len(timeline), dtype=bool)
        # The path hops between chips that do the same: what is critical on one of them is on all.
        critical[of_members[0]] = np.logical_or.reduce([on_path[rows] for rows in of_members])
        groups.append(_group(timeline, members, of_members[0], critical))
    return groups, note


def _chosen(timeline: Timeline, only: Sequence[int]) -> set[int] | None:
    """The entities that stand for these chips; None for all entities."""
    if not only:
        return None
    chips = sorted(
        (entity.cls, at, number)
        for number, entity in enumerate(timeline.entities)
        if entity.kind == "chip"
        for at in entity.each()
    )
    for number in only:
        if not 0 <= number < len(chips):
            raise OutputError(f"there is no chip {number}: the run has {len(chips)}, from 0 on")
    return {chips[number][2] for number in only}


def _group(timeline: Timeline, members: list[int], rows: IntColumn, critical: BoolColumn) -> Group:
    entity = members[0]
    lanes: list[Lane] = []
    own = [(number, lane) for number, lane in enumerate(timeline.lanes) if lane.entity == entity and len(rows)]
    own.sort(key=lambda item: (_rank(item[1].kind), item[0]))
    waiting = _waiting(timeline, entity)
    computes = [lane.kind in COMPUTE_UNITS for _, lane in own]
    for index, (number, lane) in enumerate(own):
        of_lane = rows[timeline.lane[rows] == number]
        if not (timeline.end_ps[of_lane] > timeline.start_ps[of_lane]).any():
            continue
        if lane.kind == "hbm":
            lanes += _hbm_lanes(timeline, of_lane)
            lanes += _slot_lanes(timeline, entity)
        else:
            lanes.append(_unit_lane(timeline, unit_label(lane.unit, lane.kind), of_lane))
        if waiting and computes[index] and not any(computes[index + 1 :]):
            lanes.append(waiting)
            waiting = None
    if waiting:
        lanes.append(waiting)
    if not any(lane.kind == "hbm" for _, lane in own):
        lanes += _slot_lanes(timeline, entity)
    notes = [lane_note for lane_note in _slot_notes(timeline, entity) if lane_note]
    count = sum(timeline.entities[member].multiplicity for member in members)
    return Group(_header(timeline, members), entity, members, count, _bands(timeline, rows), lanes, critical, notes)


def _rank(kind: str) -> int:
    return UNIT_ORDER.index(kind) if kind in UNIT_ORDER else len(UNIT_ORDER)


def unit_label(unit: str, kind: str) -> str:
    """``ici_x+`` as ``ICI x+``."""
    name = KIND_LABELS.get(kind, kind)
    rest = unit.removeprefix(kind).lstrip("_")
    return f"{name} {rest.lower()}".rstrip()


def _header(timeline: Timeline, members: list[int]) -> str:
    entity = timeline.entities[members[0]]
    count = sum(timeline.entities[member].multiplicity for member in members)
    if count == 1:
        return entity.label
    axes = [
        f"{axis}={_ranges(sorted({at[number] for m in members for at in timeline.entities[m].each()}))}"
        for number, (axis, _) in enumerate(entity.coordinates)
    ]
    return " ".join([f"{entity.cls}s", *axes]) + f": {count} alike, drawn once"


def _ranges(values: Sequence[int]) -> str:
    """0,1,2,5 as ``0-2,5``."""
    parts: list[list[int]] = []
    for value in values:
        if parts and value == parts[-1][-1] + 1:
            parts[-1].append(value)
        else:
            parts.append([value])
    return ",".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)


def _bars(timeline: Timeline, rows: IntColumn) -> list[Bars]:
    """Bars of a lane by style; tasks of no length have none."""
    rows = rows[timeline.end_ps[rows] > timeline.start_ps[rows]]
    found = []
    for kind in np.unique(timeline.kind[rows]).tolist():
        of_kind = rows[timeline.kind[rows] == kind]
        of_kind = of_kind[np.argsort(timeline.start_ps[of_kind], kind="stable")]
        found.append(
            Bars(
                style_of(timeline.kind_names[kind]),
                timeline.start_ps[of_kind],
                timeline.end_ps[of_kind],
                of_kind,
                timeline.iteration[of_kind],
            )
        )
    return found


def _share(timeline: Timeline, rows: IntColumn) -> float:
    makespan = timeline.makespan_ps
    return float((timeline.end_ps[rows] - timeline.start_ps[rows]).sum() / makespan) if makespan else 0.0


def _unit_lane(timeline: Timeline, label: str, rows: IntColumn) -> Lane:
    return Lane(label, _bars(timeline, rows), _share(timeline, rows))


def _hbm_lanes(timeline: Timeline, rows: IntColumn) -> list[Lane]:
    """One channel, drawn as two lanes: what it loads and what it stores."""
    stores = np.array([name == "hbm_store" for name in timeline.kind_names])[timeline.kind[rows]]
    lanes = []
    for label, part in (("HBM→VMEM", rows[~stores]), ("VMEM→HBM", rows[stores])):
        if (timeline.end_ps[part] > timeline.start_ps[part]).any():
            lanes.append(_unit_lane(timeline, label, part))
    return lanes


def _drawn_pools(timeline: Timeline, entity: int) -> list[int]:
    """Pools that transfers fill, the largest first."""
    slots = timeline.slots
    filled = []
    for number, (owner, _, _, buffers, size) in enumerate(slots.pools):
        takers = slots.taker[slots.pool == number]
        lane = int(timeline.lane[takers[0]]) if len(takers) else -1
        if owner == entity and lane >= 0 and timeline.lanes[lane].kind not in COMPUTE_UNITS:
            filled.append((-buffers * size, number))
    return [number for _, number in sorted(filled)[:MOST_POOLS]]


def _slot_lanes(timeline: Timeline, entity: int) -> list[Lane]:
    """One lane a buffer: from its load's start to its release."""
    slots, lanes = timeline.slots, []
    for number in _drawn_pools(timeline, entity):
        _, name, _, buffers, _ = slots.pools[number]
        for slot in range(min(buffers, MOST_SLOTS)):
            held = np.flatnonzero((slots.pool == number) & (slots.slot == slot))
            takers = slots.taker[held]
            start = np.maximum(timeline.start_ps[takers], slots.granted_ps[held])
            none = np.full(len(held), -1)
            bars = Bars(SLOT, start, slots.released_ps[held], none, timeline.iteration[takers], takers=takers)
            label = f"{name} {slot}"
            lanes.append(Lane(label, [bars] if len(held) else [], thin=True))
    return lanes


def _slot_notes(timeline: Timeline, entity: int) -> list[str]:
    notes = []
    for number in _drawn_pools(timeline, entity):
        _, name, _, buffers, _ = timeline.slots.pools[number]
        if buffers > MOST_SLOTS:
            notes.append(f"{MOST_SLOTS} of {buffers} buffers of {name} are drawn")
    return notes


def _waiting(timeline: Timeline, entity: int) -> Lane | None:
    """What the chip's compute waits for: communication, and everything else."""
    if timeline.entities[entity].kind != "chip":
        return None
    found = waits(timeline, entity)
    bars = []
    for style, wanted in ((EXPOSED, True), (WAITING, False)):
        of_style = [wait for wait in found if (wait.cause in COMMUNICATION) == wanted]
        if of_style:
            none = np.full(len(of_style), -1)
            start = np.array([wait.start_ps for wait in of_style], dtype=np.int64)
            end = np.array([wait.end_ps for wait in of_style], dtype=np.int64)
            bars.append(Bars(style, start, end, none, none, causes=[wait.cause for wait in of_style]))
    return Lane("waiting on", bars) if bars else None


MICROBATCH = re.compile(r"_m(\d+)(?:_|$)")


def _pieces(timeline: Timeline) -> IntColumn:
    """The microbatch of each operation, by its name; -1 for none."""
    found = [MICROBATCH.search(name) for name in timeline.operation_names]
    return np.array([int(match[1]) if match else -1 for match in found], dtype=np.int64)


def _stretches(timeline: Timeline, rows: IntColumn, of: IntColumn, name: Callable[[int], str]) -> list[Band]:
    """Bands for each value of 0 or more: from its first start to its last end, but for gaps in which others compute.

    So a layer has one in the forward and one in the backward pass. Gaps of less than a 200th of the time are none.
    """
    start, end = timeline.start_ps[rows], timeline.end_ps[rows]
    order = np.argsort(start, kind="stable")
    rows, of, start, end = rows[order], of[order], start[order], end[order]
    computed = np.concatenate([[0], np.cumsum(end - start)])
    bands = []
    for value in np.unique(of[of >= 0]).tolist():
        mine = np.flatnonzero(of == value)
        until = np.maximum.accumulate(end[mine])
        gaps = start[mine[1:]] - until[:-1]
        others = computed[mine[1:]] - computed[mine[:-1] + 1]
        cuts = np.flatnonzero((gaps > timeline.makespan_ps / 200) & (others > gaps / 20)) + 1
        for part in np.split(np.arange(len(mine)), cuts):
            bands.append(Band(name(value), int(start[mine[part[0]]]), int(end[mine[part]].max())))
    return sorted(bands, key=lambda band: band.start_ps)


def _bands(timeline: Timeline, rows: IntColumn) -> list[Band]:
    """Microbatches where there are several, else layers, else operations: from their first start to their last end."""
    served = rows[(timeline.lane[rows] >= 0) & (timeline.end_ps[rows] > timeline.start_ps[rows])]
    by_layer = (timeline.layer[served] >= 0).any()
    labels = timeline.layer if by_layer else timeline.operation
    # A layer begins with its computation: its weights are loaded while the layer before it runs.
    compute = np.array([lane.kind in COMPUTE_UNITS for lane in timeline.lanes], dtype=bool)
    if len(compute) and compute[timeline.lane[served]].any():
        served = served[compute[timeline.lane[served]]]
    pieces = _pieces(timeline)[timeline.operation[served]]
    if len(np.unique(pieces[pieces >= 0])) > 1:
        return _stretches(timeline, served, pieces, lambda piece: f"m{piece}")
    if by_layer:
        found = _stretches(timeline, served, labels[served], lambda value: f"layer {value}")
        return found if len(found) > 1 else []
    found = []
    for value in np.unique(labels[served]).tolist():
        of_value = served[labels[served] == value]
        name = timeline.operation_names[value]
        found.append(Band(name, int(timeline.start_ps[of_value].min()), int(timeline.end_ps[of_value].max())))
    found.sort(key=lambda band: band.start_ps)
    if any(after.start_ps < before.end_ps for before, after in pairwise(found)):
        return []  # operations that overlap have no order to show
    return found if len(found) > 1 else []
