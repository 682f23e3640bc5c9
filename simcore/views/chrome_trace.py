"""A run as a Chrome trace (JSON, gzipped or not), for Perfetto: laid out as the profiles of JAX are.

A process for each group of chips that do the same (``/device:TPU:0``), with the lines Steps, XLA Modules, XLA Ops (what
the matrix and vector units work on, one after the other), Async XLA Ops (collectives in flight; where they overlap, on
numbered lines), then a line for each unit and direction, and for each slot of a pool of buffers. Counters are what
memories hold and how fast HBM moves bytes; arrows are the critical path. On no line does anything overlap.

Times are microseconds to six decimals, which is every picosecond. The same run gives the same bytes.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from simcore.critical import critical_rows
from simcore.errors import OutputError
from simcore.exposure import compute_rows
from simcore.files import written_beside
from simcore.memory import occupancy
from simcore.timeline import IntColumn, Released, Timeline
from simcore.views.gantt_lanes import NETWORK_UNITS, groups_of, unit_label
from simcore.views.report import finding

if TYPE_CHECKING:
    from simcore.result import RunResult

Event = dict[str, Any]
PS_PER_US = 10**6
STEPS, MODULES, OPS, ASYNC, UNITS, SLOTS = 1, 2, 3, 10, 100, 1000
BANDWIDTH_BINS = 400
SUFFIXES = (".json", ".json.gz")


def write_trace(result: RunResult, path: str | Path) -> None:
    """Write the trace; ``.json.gz`` is compressed, ``.json`` not. Raises `OutputError`."""
    name = Path(path).name
    if not name.endswith(SUFFIXES):
        raise OutputError(f"cannot write {path}: a trace is one of {', '.join(SUFFIXES)}")
    data = {"displayTimeUnit": "ns", "otherData": {"title": finding(result)}, "traceEvents": events_of(result)}
    raw = json.dumps(data, separators=(",", ":")).encode()
    with written_beside(path) as temporary:
        temporary.write_bytes(gzip.compress(raw, compresslevel=6, mtime=0) if name.endswith(".gz") else raw)


def us(ps: int) -> float:
    """Picoseconds as the trace has them."""
    return ps / PS_PER_US


def events_of(result: RunResult) -> list[Event]:
    """All events of the trace."""
    groups, _ = groups_of(result.timeline, most=10_000)
    device = "GPU" if result.chip.family == "gpu" else "TPU"
    events: list[Event] = []
    numbers = {"chip": 0, "host": 0}
    places: dict[int, tuple[int, int]] = {}
    for number, group in enumerate(groups):
        entity = result.timeline.entities[group.entity]
        kind = entity.kind if entity.kind in numbers else "host"
        name = f"/device:{device}:{numbers[kind]}" if kind == "chip" else f"/host:{numbers[kind]}"
        numbers[kind] += group.members
        process = _Process(result, group.entity, number + 1)
        events += [
            _meta("process_name", process.pid, name=f"{name} {group.header}"),
            {**_meta("process_sort_index", process.pid), "args": {"sort_index": number}},
        ]
        events += process.events()
        places.update(process.places)
    events += _arrows(result.timeline, places)
    return events


def _meta(what: str, pid: int, tid: int | None = None, **args: Any) -> Event:
    event: Event = {"ph": "M", "name": what, "pid": pid, "args": args}
    return event if tid is None else {**event, "tid": tid}


class _Process:
    """The lines of one chip (or host) and those that do the same."""

    def __init__(self, result: RunResult, entity: int, pid: int) -> None:
        self.result, self.timeline, self.entity, self.pid = result, result.timeline, entity, pid
        self.rows = np.flatnonzero(self.timeline.entity == entity)
        self.places: dict[int, tuple[int, int]] = {}
        """row -> (process, line) that it is drawn on"""

    def events(self) -> Iterator[Event]:
        makespan = self.timeline.makespan_ps
        for tid, line, name in ((STEPS, "Steps", "0"), (MODULES, "XLA Modules", self.result.scenario)):
            yield self._line(tid, line)
            yield self._span(tid, name, 0, makespan)
        yield from self._ops()
        yield from self._async()
        yield from self._units()
        yield from self._slots()
        yield from self._counters()

    def _line(self, tid: int, name: str) -> Event:
        return _meta("thread_name", self.pid, tid, name=name)

    def _span(self, tid: int, name: str, start: int, end: int, **args: Any) -> Event:
        event: Event = {"ph": "X", "pid": self.pid, "tid": tid, "name": name, "ts": us(start), "dur": us(end - start)}
        return {**event, "args": args} if args else event

    def _ops(self) -> Iterator[Event]:
        """Runs of one operation and layer on the compute units; where two units overlap, the first one's goes on."""
        t = self.timeline
        yield self._line(OPS, "XLA Ops")
        current: tuple[int, int] | None = None
        start = end = flops = 0
        for row in compute_rows(t, self.entity).tolist():
            key = int(t.operation[row]), int(t.layer[row])
            begins, ends = max(int(t.start_ps[row]), end), int(t.end_ps[row])
            if key != current and ends > begins:
                if current is not None:
                    yield self._op(current, start, end, flops)
                current, start, flops = key, begins, 0
            end, flops = max(end, ends), flops + int(t.flops[row])
        if current is not None:
            yield self._op(current, start, end, flops)

    def _op(self, key: tuple[int, int], start: int, end: int, flops: int) -> Event:
        args: dict[str, Any] = {"layer": key[1]} if key[1] >= 0 else {}
        return self._span(OPS, self.timeline.operation_names[key[0]], start, end, **args, flops=flops)

    def _async(self) -> Iterator[Event]:
        """What each operation sends, from its first transfer to the last arrival, on as many lines as it takes."""
        t = self.timeline
        network = np.array([lane.kind in NETWORK_UNITS for lane in t.lanes], dtype=bool)
        rows = self.rows[t.lane[self.rows] >= 0]
        rows = rows[network[t.lane[rows]]]
        spans: dict[tuple[int, int], list[int]] = {}
        for row in rows.tolist():
            key = int(t.operation[row]), int(t.layer[row])
            begin, end, moved = int(t.start_ps[row]), int(t.done_ps[row]), int(t.bytes[row])
            span = spans.setdefault(key, [begin, end, 0])
            span[:] = [min(span[0], begin), max(span[1], end), span[2] + moved]
        free: list[int] = []
        drawn = []
        for (operation, layer), (begin, end, moved) in sorted(spans.items(), key=lambda item: (item[1], item[0])):
            line = next((number for number, until in enumerate(free) if until <= begin), len(free))
            if line == len(free):
                free.append(0)
            free[line] = end
            args: dict[str, Any] = {"layer": layer} if layer >= 0 else {}
            drawn.append(self._span(ASYNC + line, t.operation_names[operation], begin, end, **args, bytes=moved))
        for line in range(len(free)):
            yield self._line(ASYNC + line, "Async XLA Ops" if line == 0 else f"Async XLA Ops {line}")
        yield from drawn

    def _units(self) -> Iterator[Event]:
        t = self.timeline
        tid = UNITS
        for number, lane in enumerate(t.lanes):
            if lane.entity != self.entity:
                continue
            rows = t.rows_of_lane(number)
            rows = rows[t.end_ps[rows] > t.start_ps[rows]]
            if not len(rows):
                continue
            lines = [(unit_label(lane.unit, lane.kind), rows)]
            if lane.kind == "hbm":
                stores = np.array([t.kind_names[kind] == "hbm_store" for kind in t.kind[rows].tolist()], dtype=bool)
                lines = [("DMA HBM to VMEM", rows[~stores]), ("DMA VMEM to HBM", rows[stores])]
            for name, some in lines:
                if len(some):
                    yield self._line(tid, name)
                    for row in some.tolist():
                        self.places[row] = self.pid, tid
                        yield self._task(tid, row)
                    tid += 1

    def _task(self, tid: int, row: int) -> Event:
        t = self.timeline
        args: dict[str, Any] = {"operation": t.operation_names[int(t.operation[row])]}
        for name, column in (("layer", t.layer), ("bytes", t.bytes), ("flops", t.flops), ("index", t.iteration)):
            value = int(column[row])
            if value > 0 or (name in ("layer", "index") and value == 0):
                args[name] = value
        by = int(t.released_by[row])
        if by >= 0:
            how = Released(int(t.released_how[row])).name.lower()
            args["waited for"] = f"{t.task_names[int(t.task[by])]} ({how})"
        return self._span(tid, t.task_names[int(t.task[row])], int(t.start_ps[row]), int(t.end_ps[row]), **args)

    def _slots(self) -> Iterator[Event]:
        t, slots = self.timeline, self.timeline.slots
        tid = SLOTS
        for number, (owner, name, _memory, buffers, size) in enumerate(slots.pools):
            if owner != self.entity:
                continue
            mine = np.flatnonzero((slots.pool == number) & (slots.released_ps > slots.granted_ps))
            for slot in range(buffers):
                held = mine[slots.slot[mine] == slot]
                held = held[np.argsort(slots.granted_ps[held], kind="stable")]
                if not len(held):
                    continue
                yield self._line(tid, f"{name} {slot}")
                for at in held.tolist():
                    label = t.task_names[int(t.task[int(slots.taker[at])])]
                    span = int(slots.granted_ps[at]), int(slots.released_ps[at])
                    yield self._span(tid, label, *span, bytes=size)
                tid += 1

    def _counters(self) -> Iterator[Event]:
        t = self.timeline
        for memory in self.result.memory_peak_bytes:
            at, held = occupancy(t, self.entity, memory)
            for time, size in zip(at.tolist(), held.tolist(), strict=True):
                yield self._count(f"{memory.upper()} held", time, size)
        makespan = t.makespan_ps
        lanes = [number for number, lane in enumerate(t.lanes) if lane.entity == self.entity and lane.kind == "hbm"]
        rows = np.flatnonzero(np.isin(t.lane, lanes) & (t.end_ps > t.start_ps))
        if not len(rows) or makespan < BANDWIDTH_BINS:
            return
        edges = np.linspace(0, makespan, BANDWIDTH_BINS + 1)
        moved = _moved_before(t, rows, edges)
        rate = np.diff(moved) / np.diff(edges) * 1e12
        for time, value in zip(edges[:-1].tolist(), rate.tolist(), strict=True):
            yield self._count("HBM bytes/s", int(time), round(value))

    def _count(self, name: str, time: int, value: int) -> Event:
        return {"ph": "C", "pid": self.pid, "name": name, "ts": us(time), "args": {"value": value}}


def _moved_before(t: Timeline, rows: IntColumn, edges: Any) -> Any:
    """Bytes that the rows of one unit have moved before each time, evenly over each service."""
    rows = rows[np.argsort(t.start_ps[rows], kind="stable")]
    times = np.stack([t.start_ps[rows], t.end_ps[rows]], axis=1).ravel().astype(float)
    total = np.repeat(np.cumsum(t.bytes[rows]), 2).astype(float)
    total[0::2] -= t.bytes[rows].astype(float)
    return np.interp(edges, times, total)


def _arrows(t: Timeline, places: dict[int, tuple[int, int]]) -> Iterator[Event]:
    """The critical path from task to task, those that are drawn."""
    path = [row for row in critical_rows(t).tolist() if row in places]
    for number, (one, other) in enumerate(pairwise(path)):
        shared: Event = {"cat": "critical path", "name": "critical path", "id": number + 1}
        (pid, tid), (to_pid, to_tid) = places[one], places[other]
        yield {**shared, "ph": "s", "pid": pid, "tid": tid, "ts": us(int(t.start_ps[one]))}
        yield {**shared, "ph": "f", "bp": "e", "pid": to_pid, "tid": to_tid, "ts": us(int(t.start_ps[other]))}


def check_trace(events: Sequence[Event] | Iterable[Event]) -> None:
    """Raise `OutputError` naming the first fault: an event without a time or a line, or spans of a line that overlap
    without one being inside the other, rounding included."""
    lines: dict[tuple[int, int], list[tuple[int, int, str]]] = {}
    named: set[tuple[int, int]] = set()
    for event in events:
        if event.get("ph") not in ("M", "X", "C", "s", "f"):
            raise OutputError(f"trace: an event of an unknown kind, {event.get('ph')!r}")
        if event["ph"] == "M":
            if event["name"] == "thread_name":
                named.add((event["pid"], event["tid"]))
            continue
        if not isinstance(event.get("ts"), int | float) or event["ts"] < 0:
            raise OutputError(f"trace: {event.get('name')!r} has no time")
        if event["ph"] == "X":
            begin = round(event["ts"] * PS_PER_US)
            end = begin + round(event["dur"] * PS_PER_US)
            lines.setdefault((event["pid"], event["tid"]), []).append((begin, -end, event["name"]))
    for line, spans in lines.items():
        if line not in named:
            raise OutputError(f"trace: line {line} has no name")
        open_until: list[int] = []
        for begin, negative, name in sorted(spans):
            while open_until and open_until[-1] <= begin:
                open_until.pop()
            if open_until and -negative > open_until[-1]:
                raise OutputError(f"trace: {name!r} overlaps another span of line {line} at {begin} ps")
            open_until.append(-negative)
