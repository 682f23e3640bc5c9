"""Hand-driven chips and task graphs in one environment, and the timeline and figures of all of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import simpy

from simcore.engine.assemble import assemble
from simcore.engine.simpy_engine import SimpyEngine
from simcore.errors import DeadlockError, GraphError
from simcore.graph import TaskGraph
from simcore.graph.unroll import unroll
from simcore.graph.validate import check_memories
from simcore.graph.work import vector_operations
from simcore.quantities import format_bytes
from simcore.result import RunResult
from simcore.running import figures
from simcore.timeline import Entity, Lane, Timeline
from simcore.units.chip import SimChip
from simcore.units.merge import Part, merge
from simcore.units.record import name_releases, recorded


class GraphRun:
    """A task graph that runs on hand-driven chips; ``yield run.done`` waits for its end in a process."""

    def __init__(self, engine: SimpyEngine, chip_of: Mapping[int, SimChip]) -> None:
        self.engine, self.chip_of = engine, chip_of
        """entity number -> its chip; other entities (hosts, switches) have units of their own"""

    @property
    def done(self) -> simpy.Event:
        return self.engine.done


def run_graph_with(env: simpy.Environment, chips: Sequence[SimChip], graph: TaskGraph) -> GraphRun:
    """Start ``graph`` now, its chips being ``chips`` in order, on the units that their processes use too.

    Its pools' part of VMEM is set aside until it is done. Raises `GraphError` if the chips don't match the graph's, or
    the pools don't fit what is free.
    """
    _check_chips(env, chips)
    hardware = chips[0].hardware
    if any(chip.hardware != hardware for chip in chips):
        raise GraphError("a graph runs on chips that are alike: give them the same chip and the same ideal")
    check_memories(graph, hardware.chip)
    flat = unroll(graph, hardware)
    numbers = [number for number, (cls, _) in enumerate(flat.entities) if cls.kind == "chip"]
    if len(numbers) != len(chips):
        raise GraphError(f"graph {graph.name!r} has {len(numbers)} chips, {len(chips)} are given")
    chip_of = dict(zip(numbers, chips, strict=True))
    wanted = {
        number: sum(p.buffers * p.buffer_bytes for p in cls.pools.values() if p.memory == "vmem")
        for number, (cls, _) in enumerate(flat.entities)
        if number in chip_of
    }
    for number, size in wanted.items():
        chip_of[number].vmem.check_free(repr(graph.name), size)  # all of them before any is taken
    for number, size in wanted.items():
        chip_of[number].vmem.set_aside(repr(graph.name), size)
    resources = [
        chip_of[entity].resource(unit, flat.entities[entity][0].units[unit].kind)
        if entity in chip_of
        else simpy.Resource(env, capacity=1)
        for entity, unit in flat.units
    ]
    run = GraphRun(SimpyEngine(flat, env, resources), chip_of)

    def give_back(_: simpy.Event) -> None:
        for number, size in wanted.items():
            chip_of[number].vmem.set_aside(repr(graph.name), -size)

    run.done.callbacks.append(give_back)
    for chip in chips:
        chip.runs.append(run)
    return run


def timeline_of(env: simpy.Environment, chips: Sequence[SimChip]) -> Timeline:
    """The timeline of what ``chips`` did by hand and of the graphs that ran on them.

    Called before the environment is out of events it has the work that is complete by then. Raises `DeadlockError` if
    the events are over and a process still waits for a unit or for memory, or a graph can't go on.
    """
    _check_chips(env, chips)
    over = env.peek() == math.inf
    if over:
        _check_finished(chips)
    runs = list({id(run): run for chip in chips for run in chip.runs}.values())
    if not over and any(not run.done.triggered for run in runs):
        raise GraphError("a task graph is still running: its timeline is there when it is done")
    entities = [Entity(chip.name, "chip", ()) for chip in chips]
    lanes = [Lane(number, unit, kind) for number, chip in enumerate(chips) for unit, kind in chip.kinds.items()]
    lane_of = {(lane.entity, lane.unit): number for number, lane in enumerate(lanes)}
    spans = [[span for span in chip.spans if span.done_ps >= 0] for chip in chips]
    parts = [
        Part(
            recorded(chip, mine, int(env.now)),
            np.array([number]),
            np.array([lane_of[number, unit] for unit in chip.kinds], dtype=np.int64),
        )
        for number, (chip, mine) in enumerate(zip(chips, spans, strict=True))
    ]
    for run in runs:
        flat, numbers = run.engine.flat, []
        for number, (cls, index) in enumerate(flat.entities):
            if number in run.chip_of:
                numbers.append(list(chips).index(run.chip_of[number]))
                continue
            numbers.append(len(entities))
            coordinates = tuple(zip(cls.axes, cls.coordinates[index].tolist(), strict=True))
            entities.append(Entity(cls.name, cls.kind, coordinates))
            for unit in cls.units.values():
                lane_of[numbers[-1], unit.name] = len(lanes)
                lanes.append(Lane(numbers[-1], unit.name, unit.kind))
        parts.append(
            Part(
                assemble(flat, run.engine.schedule()),
                np.array(numbers, dtype=np.int64),
                np.array([lane_of[numbers[entity], unit] for entity, unit in flat.units], dtype=np.int64),
            )
        )
    whole = merge(tuple(entities), tuple(lanes), parts)
    name_releases(whole, [span for mine in spans for span in mine], [b for chip in chips for b in chip.vmem.buffers])
    return whole


def result_of(
    env: simpy.Environment,
    chips: Sequence[SimChip],
    *,
    name: str = "by hand",
    parameters: Mapping[str, Any] | None = None,
    extra: Mapping[str, Any] | None = None,
) -> RunResult:
    """The result that `simcore.run` gives for a graph: figures, ``.report()``, ``.gantt(path)``. See `timeline_of`."""
    timeline = timeline_of(env, chips)
    hardware = chips[0].hardware
    runs = {id(run): run for chip in chips for run in chip.runs}.values()
    operations = sum(int(vector_operations(span.work)) for chip in chips for span in chip.spans if span.done_ps >= 0)
    return RunResult(
        scenario=name,
        parameters=dict(parameters or {}),
        chip=hardware.chip,
        ideal=hardware.ideal,
        engine="simpy",
        vector_operations=operations + sum(int(run.engine.flat.operations.sum()) for run in runs),
        tasks=len(timeline),
        tasks_represented=len(timeline),
        wall_s=0.0,
        timeline=timeline,
        graph=TaskGraph(name),
        extra=dict(extra or {}),
        **figures(timeline, hardware),
    )


def _check_chips(env: simpy.Environment, chips: Sequence[SimChip]) -> None:
    if not chips:
        raise GraphError("no chips are given")
    names = [chip.name for chip in chips]
    if len(set(names)) < len(names):
        raise GraphError(f"chips need names of their own: {', '.join(names)}")
    for chip in chips:
        if chip.env is not env:
            raise GraphError(f"chip {chip.name!r} is in another environment")
        for run in chip.runs:
            missing = [other.name for other in run.chip_of.values() if other not in chips]
            if missing:
                raise GraphError(f"a task graph on {chip.name!r} also runs on {', '.join(missing)}: give these too")


def _check_finished(chips: Sequence[SimChip]) -> None:
    """With no events left nothing may be waiting."""
    stuck = []
    for chip in chips:
        stuck += [
            f"{span.task} waits for {span.unit} of {chip.name}, which something holds"
            for span in chip.spans
            if span.start_ps < 0
        ]
        held = ", ".join(f"{b.name} {format_bytes(b.size_bytes, binary=True)}" for b in chip.vmem.held[:6])
        stuck += [
            f"{buffer.name} waits for {format_bytes(buffer.size_bytes, binary=True)} of {chip.name}'s vmem, of which "
            f"{format_bytes(chip.vmem.free_bytes, binary=True)} are free (held: {held or 'nothing'})"
            for buffer in chip.vmem.waiting
        ]
    if stuck:
        more = [f"... and {len(stuck) - 6} more"] if len(stuck) > 6 else []
        raise DeadlockError("the simulation can't go on:\n  " + "\n  ".join([*stuck[:6], *more]))
