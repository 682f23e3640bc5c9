"""Checks of a task graph before it is run: memories, cycles and, with `simcore.graph.races`, races."""

from __future__ import annotations

import numpy as np

from simcore.chips import Chip, load_chip
from simcore.errors import GraphError
from simcore.graph.flat import FlatGraph
from simcore.graph.graph import TaskGraph
from simcore.graph.races import check_races
from simcore.graph.unroll import unroll
from simcore.hardware import Hardware, memory_capacities
from simcore.quantities import format_bytes


def validate(graph: TaskGraph, chip: str | Chip = "v5e", *, races: bool = True) -> None:
    """Check that ``graph`` can run on ``chip``: references, pools that fit their memory, no cycle, no race.

    Raises `GraphError` (or its subclass `RaceError`) that names the tasks.
    """
    hardware = Hardware(load_chip(chip), ideal=True)
    check_memories(graph, hardware.chip)
    flat = unroll(graph, hardware)
    check_cycles(flat)
    if races:
        check_races(flat)


def check_memories(graph: TaskGraph, chip: Chip) -> None:
    """The pools of an entity must fit each memory together."""
    capacities = memory_capacities(chip)
    for cls in graph.classes.values():
        if cls.kind != "chip":
            continue
        wanted: dict[str, int] = {}
        for pool in cls.pools.values():
            wanted[pool.memory] = wanted.get(pool.memory, 0) + pool.buffers * pool.buffer_bytes
        for memory, size in wanted.items():
            if memory in capacities and size > capacities[memory]:
                parts = ", ".join(
                    f"{pool.name} {pool.buffers} x {format_bytes(pool.buffer_bytes, binary=True)}"
                    for pool in cls.pools.values()
                    if pool.memory == memory
                )
                raise GraphError(
                    f"the pools of class {cls.name!r} need {format_bytes(size, binary=True)} of {memory}, chip "
                    f"{chip.name} has {format_bytes(capacities[memory], binary=True)} ({parts}): use smaller tiles or "
                    "fewer buffers"
                )


def check_cycles(flat: FlatGraph) -> None:
    """No task may wait for itself through dependencies and queues. Raises `GraphError` that names the cycle."""
    n = len(flat)
    successors = [[*flat.dependents.row(i).tolist(), *flat.start_dependents.row(i).tolist()] for i in range(n)]
    for i, following in enumerate(flat.queue_next.tolist()):
        if following >= 0:
            successors[i].append(following)
    waits = np.zeros(n, dtype=np.int64)
    for targets in successors:
        for target in targets:
            waits[target] += 1
    ready = np.flatnonzero(waits == 0).tolist()
    seen = 0
    while ready:
        i = ready.pop()
        seen += 1
        for target in successors[i]:
            waits[target] -= 1
            if waits[target] == 0:
                ready.append(target)
    if seen == n:
        return
    # Every task left waits for another one left: walk back until one comes again.
    left = set(np.flatnonzero(waits > 0).tolist())
    before = {target: i for i in left for target in successors[i] if target in left}
    trail = [min(left)]
    while trail[-1] not in trail[:-1]:
        trail.append(before[trail[-1]])
    cycle = trail[trail.index(trail[-1]) :]
    named = [flat.label(i) for i in cycle]
    if len(named) > 8:
        named = [*named[:6], "...", named[-1]]
    raise GraphError(f"graph {flat.graph.name!r} has a cycle: " + " waits for ".join(named))
