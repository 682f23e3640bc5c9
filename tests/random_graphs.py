"""Random task graphs that use the whole contract, with few different durations so that ties are dense."""

from __future__ import annotations

from random import Random

import simpy

from simcore.chips import load_chip
from simcore.engine.simpy_engine import SimpyEngine
from simcore.graph import EntityClass, Fixed, Ref, Take, TaskGraph
from simcore.graph.flat import FlatGraph
from simcore.graph.unroll import unroll
from simcore.hardware import Hardware

UNITS = ("server_a", "server_b", "mxu", "ici_x+")
QUEUES = ("q0", "q1")
DURATIONS = (0, 0, 1, 1, 2, 3)
LATENCIES = (0, 0, 0, 1, 2)


def random_graph(rng: Random, tasks: int = 8) -> TaskGraph:
    """One or two classes over a line or ring of 1 to 3, and now and then a host without coordinates."""
    graph = TaskGraph("random")
    size, wraps = rng.randint(1, 3), rng.random() < 0.5
    split = rng.randint(1, size)
    classes = []
    for name, own in (("even", range(split)), ("odd", range(split, size))):
        if own:
            classes.append(graph.entity_class(name, mesh={"x": size}, wraps=wraps, only=[(x,) for x in own]))
    if rng.random() < 0.3:
        classes.append(graph.entity_class("host", kind="host"))
    names = [f"t{number}" for number in range(tasks)]
    for cls in classes:
        for unit in UNITS:
            cls.unit(unit)
        cls.pool("p", memory="vmem", buffers=rng.randint(1, 3), buffer_bytes=8)
        cls.pool("r", memory="vmem", buffers=rng.randint(1, 2), buffer_bytes=8)
        _fill(rng, cls, list(names), 0)
    return graph


def _fill(rng: Random, cls: EntityClass, names: list[str], depth: int) -> None:
    """Append the tasks ``names`` in order, runs of them in loops."""
    while names:
        if depth < 2 and rng.random() < 0.4:
            inside = [names.pop(0) for _ in range(rng.randint(1, len(names)))]
            with cls.loop(f"loop{depth}_{inside[0]}", rng.randint(1, 3)):
                _fill(rng, cls, inside, depth + 1)
        else:
            _task(rng, cls, names.pop(0))


def _earlier(rng: Random, cls: EntityClass, name: str) -> Ref:
    """A reference to an earlier task, or to any task of the iteration before."""
    on = {"x": rng.choice((-1, 1))} if cls.axes and rng.random() < 0.3 else {}
    start = rng.random() < 0.2
    known = sorted(cls.tasks)
    loop = cls._stack[-1].name if cls._stack else None
    before = {}
    target = rng.choice(known) if known else name
    if loop is not None and (not known or rng.random() < 0.3):
        inside = [t for t in known if cls.tasks[t].loops[: len(cls._stack)] == tuple(cls._stack)]
        target, before = rng.choice([*inside, name]), {loop: -1}
    return Ref(
        target,
        at=before,
        on=on,
        cls=cls.name if before else None,
        event="start" if start else "done",
        lag_ps=rng.choice((0, 1, 2)) if start else 0,
        outside="ignore",
    )


def _task(rng: Random, cls: EntityClass, name: str) -> None:
    may_depend = bool(cls.tasks) or bool(cls._stack)
    later = f"t{int(name[1:]) + 1}"
    takes = []
    if rng.random() < 0.3:
        room = {pool.name: pool.buffers for pool in cls.pools.values()}
        for pool in rng.sample(("p", "p", "r"), rng.choice((1, 1, 1, 2, 3))):
            if room[pool]:
                room[pool] -= 1
                freed_by = [Ref(later, outside="ignore")] if later != "t8" and rng.random() < 0.4 else []
                takes.append(Take(pool, freed_by if rng.random() < 0.97 else None))
    unit = rng.choice((*UNITS, None))
    modulus, remainder = rng.randint(2, 3), rng.randint(0, 1)

    def guard(i, c):
        return (sum(i.values()) + sum(c.values())) % modulus != remainder

    cls.task(
        name,
        unit=unit,
        queue=rng.choice((None, *QUEUES)),
        work=Fixed(rng.choice(DURATIONS)),
        latency_ps=rng.choice(LATENCIES),
        issue_ps=rng.choice((0, 0, 1)),
        after=[_earlier(rng, cls, name) for _ in range(rng.randint(0, 3))] if may_depend else [],
        takes=takes,
        when=guard if rng.random() < 0.2 else None,
    )


def flat_of(graph: TaskGraph, ideal: bool = True) -> FlatGraph:
    return unroll(graph, Hardware(load_chip("v5e"), ideal))


def play(flat: FlatGraph) -> SimpyEngine:
    """Run the engine to the end of its events, whether all tasks came through or not."""
    env = simpy.Environment(initial_time=0)
    engine = SimpyEngine(flat, env, [simpy.Resource(env) for _ in flat.units])
    env.run()
    return engine
