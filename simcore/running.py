"""Running a graph on a chip: validate, unroll, simulate, and gather the figures of the result."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import simpy

from simcore.chips import Chip, load_chip
from simcore.engine.assemble import Alike, assemble
from simcore.engine.folding import Folded, fold
from simcore.engine.simpy_engine import SimpyEngine
from simcore.errors import GraphError, nearest
from simcore.exposure import compute_busy_ps, exposed_ps, overlap_ps
from simcore.graph import TaskGraph
from simcore.graph.unroll import FlatGraph, unroll
from simcore.graph.validate import check_memories
from simcore.hardware import Hardware, memory_capacities
from simcore.lowering import LoweringOptions, lower
from simcore.memory import peak_by_memory
from simcore.opgraph import OpGraph
from simcore.result import RunResult
from simcore.timeline import PS_PER_S, Timeline

ENGINES = ("auto", "simpy")
EngineName = Literal["auto", "simpy"]


def simulate(flat: FlatGraph, engine: str = "auto", alike: Alike | None = None) -> Timeline:
    """Simulate an unrolled graph; ``alike`` as in `assemble`.

    Raises `DeadlockError` if it can't go on to its end.
    """
    if engine not in ENGINES:
        raise GraphError(f"unknown engine {engine!r}, {nearest(engine, ENGINES)}")
    env = simpy.Environment(initial_time=0)
    run = SimpyEngine(flat, env, [simpy.Resource(env, capacity=1) for _ in flat.units])
    env.run()
    return assemble(flat, run.schedule(), alike)


def run(
    graph: TaskGraph | OpGraph,
    *,
    chip: str | Chip = "v5e",
    ideal: bool = False,
    engine: str = "auto",
    scenario: str = "",
    parameters: Mapping[str, Any] | None = None,
    extra: Mapping[str, Any] | None = None,
    check: bool = False,
    reduce: bool = True,
    lowering: LoweringOptions | None = None,
) -> RunResult:
    """Simulate a task graph, or an op graph that is lowered to tasks first, on ``chip``.

    Parameters
    ----------
    chip : a name from the catalogue, a path to a chip file, or a `Chip`.
    ideal : the scaling book's arithmetic instead of the calibrated chip (see `simcore.hardware`).
    check : also look for races between the tasks' accesses before the run.
    reduce : simulate chips that provably do the same once (see `simcore.engine.folding`); the times are the same.
    lowering : how an op graph is lowered.

    Raises `GraphError` for a graph that can't be run, `DeadlockError` for one that can't go on.

    >>> from simcore.graph import Fixed
    >>> graph = TaskGraph("one task")
    >>> one = graph.entity_class("chip")
    >>> _ = one.unit("mxu"), one.task("multiply", unit="mxu", work=Fixed.of("3 us"))
    >>> run(graph, chip="v5e").time_s
    3e-06
    """
    began = time.perf_counter()
    hardware = Hardware(load_chip(chip), ideal)
    if isinstance(graph, OpGraph):
        graph = lower(graph, hardware.chip, lowering)
    check_memories(graph, hardware.chip)
    if check:
        from simcore.graph.races import check_races

        check_races(unroll(graph, hardware))
    folded = fold(graph) if reduce else Folded(graph)
    flat = unroll(folded.graph, hardware)
    timeline = simulate(flat, engine, folded.alike)
    times = np.array([entity.multiplicity for entity in timeline.entities], dtype=np.int64)
    found = figures(timeline, hardware)
    return RunResult(
        scenario=scenario or graph.name,
        parameters=dict(parameters or {}),
        chip=hardware.chip,
        ideal=ideal,
        engine="simpy" if engine == "auto" else engine,
        vector_operations=int((flat.operations * times[flat.entity]).sum()),
        tasks=len(flat),
        tasks_represented=int(times[flat.entity].sum()),
        wall_s=time.perf_counter() - began,
        timeline=timeline,
        graph=graph,
        notes=tuple(graph.notes),
        extra=dict(extra or {}),
        **found,
    )


def bounds_ps(timeline: Timeline) -> dict[str, int]:
    """Resource (kind of unit) -> work over the data sheet's rate, of its busiest instance."""
    per_lane = np.zeros(len(timeline.lanes), dtype=np.int64)
    on_unit = timeline.lane >= 0
    np.add.at(per_lane, timeline.lane[on_unit], timeline.work_ps[on_unit])
    return _largest_by_kind(timeline, per_lane.tolist())


def utilization(timeline: Timeline) -> dict[str, float]:
    """Kind of unit -> share of the makespan that its busiest instance serves."""
    per_lane = np.zeros(len(timeline.lanes), dtype=np.int64)
    on_unit = timeline.lane >= 0
    np.add.at(per_lane, timeline.lane[on_unit], (timeline.end_ps - timeline.start_ps)[on_unit])
    makespan = timeline.makespan_ps
    return {
        kind: busy / makespan if makespan else 0.0
        for kind, busy in _largest_by_kind(timeline, per_lane.tolist()).items()
    }


def _largest_by_kind(timeline: Timeline, per_lane: list[int]) -> dict[str, int]:
    largest: dict[str, int] = {}
    for lane, value in zip(timeline.lanes, per_lane, strict=True):
        largest[lane.kind] = max(largest.get(lane.kind, 0), value)
    return largest


def busiest_chip(timeline: Timeline) -> int:
    """The chip whose MXU and VPU are busy longest; the first of equals."""
    chips = [number for number, entity in enumerate(timeline.entities) if entity.kind == "chip"]
    return max(chips, key=lambda entity: (compute_busy_ps(timeline, entity), -entity), default=0)


def figures(timeline: Timeline, hardware: Hardware) -> dict[str, Any]:
    """The figures of a `RunResult` that a timeline gives, by their names."""
    bounds = bounds_ps(timeline)
    bound_by = max(bounds, key=lambda kind: bounds[kind], default="none")
    chip = busiest_chip(timeline)
    has_entities = bool(timeline.entities)
    return {
        "time_s": timeline.makespan_s,
        "busy_s": compute_busy_ps(timeline, chip) / PS_PER_S if has_entities else 0.0,
        "bounds_s": {kind: ps / PS_PER_S for kind, ps in bounds.items()},
        "bound_s": bounds.get(bound_by, 0) / PS_PER_S,
        "bound_by": bound_by if bounds.get(bound_by) else "none",
        "utilization": utilization(timeline),
        "exposed_s": {
            cause: ps / PS_PER_S for cause, ps in (exposed_ps(timeline, chip) if has_entities else {}).items()
        },
        "overlap_s": {kind: ps / PS_PER_S for kind, ps in (overlap_ps(timeline, chip) if has_entities else {}).items()},
        "memory_peak_bytes": peak_by_memory(timeline),
        "memory_capacity_bytes": memory_capacities(hardware.chip),
        "flops": timeline.total_flops(),
        "bytes": timeline.bytes_by_interface(),
        "bytes_by_tensor": timeline.bytes_by_tensor(),
        "chips": sum(entity.multiplicity for entity in timeline.entities if entity.kind == "chip"),
    }
