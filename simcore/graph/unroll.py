"""Unrolling a task graph for a chip into its flat form: durations, units, queues, dependencies and buffers."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from simcore.errors import GraphError, nearest
from simcore.graph.access import TensorAccess
from simcore.graph.flat import Adjacency, FlatGraph, IntArray, PoolInstance, adjacency
from simcore.graph.graph import Task, TaskGraph
from simcore.graph.reference import Ref
from simcore.graph.resolve import Resolver, Template, program_places
from simcore.graph.work import NOTHING, matmul_flops, moved_bytes, vector_operations
from simcore.hardware import Hardware

__all__ = ["Adjacency", "FlatGraph", "IntArray", "PoolInstance", "unroll"]

COLUMNS = ("template", "entity", "iteration", "unit", "queue", "duration", "work", "latency", "bytes", "flops")


def unroll(graph: TaskGraph, hardware: Hardware) -> FlatGraph:
    """Unroll ``graph`` for ``hardware``.

    Raises `GraphError` on a reference that leads nowhere or falls outside where that is not allowed, on work that its
    unit does not serve, and on a task that takes more buffers of a pool than there are.
    """
    resolver = Resolver(graph)
    templates = resolver.templates
    units = [(entity, name) for entity, (cls, _) in enumerate(resolver.entities) for name in cls.units]
    queues = _Queues(units)
    parts: dict[str, list[IntArray]] = defaultdict(list)
    for number, template in enumerate(templates):
        _check_tensors(graph, template)
        parts["template"].append(np.full(template.size, number, dtype=np.int64))
        for name, values in _template_columns(template, queues, hardware).items():
            parts[name].append(values)
    whole = {name: _joined(parts[name]) for name in (*COLUMNS, "operations")}

    kept = np.flatnonzero(_joined([t.exists.reshape(-1).astype(np.int64) for t in templates]))
    places = program_places(graph, templates)
    order = kept[np.lexsort((whole["entity"][kept], *(column[kept] for column in reversed(places))))]
    n = len(order)
    rank = np.full(resolver.size, -1, dtype=np.int64)
    rank[order] = np.arange(n)
    column = {name: values[order] for name, values in whole.items()}

    edges = _Edges(resolver, rank)
    dependents, _ = adjacency(_joined(edges.done_from), _joined(edges.done_to), n)
    start_dependents, by_row = adjacency(_joined(edges.start_from), _joined(edges.start_to), n)
    waiting = np.concatenate([dependents.values, start_dependents.values])
    takes = _Takes(resolver, rank)
    take_instance, take_pool = _joined(takes.instance), _joined(takes.pool)
    take_frees, _ = adjacency(_joined(takes.freed_by), _joined(takes.freed), n)
    take_waits = np.bincount(take_frees.values, minlength=takes.count).astype(np.int64)
    take_waits[_joined(takes.held)] = -1
    for take in np.argsort(take_instance, kind="stable").tolist():
        takes.pools[int(take_pool[take])].takes.append(take)

    def resolve(task: Task, ref: Ref) -> tuple[IntArray, IntArray]:
        rows, targets = resolver.resolve(resolver.by_name[task.cls, task.name], ref)
        return rank[rows], rank[targets]

    neighbours: dict[tuple[str, tuple[tuple[str, int], ...]], IntArray] = {}

    def neighbour(entity: int, on: Mapping[str, int]) -> int:
        cls, index = resolver.entities[entity]
        if not on:
            return entity
        key = cls.name, tuple(sorted(on.items()))
        if key not in neighbours:
            source = next(t for t in templates if t.cls is cls)
            neighbours[key] = resolver.target_entities(source, Ref("an access", on=on))
        return int(neighbours[key][index])

    return FlatGraph(
        graph=graph,
        templates=tuple(t.task for t in templates),
        entities=tuple(resolver.entities),
        units=tuple(units),
        queues=tuple(queues.numbers),
        template=column["template"],
        entity=column["entity"],
        iteration=column["iteration"],
        unit=column["unit"],
        queue=column["queue"],
        duration_ps=column["duration"],
        work_ps=column["work"],
        latency_ps=column["latency"],
        bytes=column["bytes"],
        flops=column["flops"],
        operations=column["operations"],
        dependents=dependents,
        start_dependents=start_dependents,
        start_lags_ps=_joined(edges.lag)[by_row],
        n_dependencies=np.bincount(waiting, minlength=n).astype(np.int64),
        queue_next=_queue_next(column["queue"]),
        take_instance=take_instance,
        take_pool=take_pool,
        takes=adjacency(take_instance, np.arange(takes.count, dtype=np.int64), n)[0],
        take_frees=take_frees,
        take_waits=take_waits,
        pools=tuple(takes.pools),
        resolve=resolve,
        neighbour=neighbour,
    )


def _joined(parts: Sequence[IntArray]) -> IntArray:
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


class _Queues:
    """Numbers of the units, which are known, and of the queues, in order of first use."""

    def __init__(self, units: Sequence[tuple[int, str]]) -> None:
        self.units = {unit: number for number, unit in enumerate(units)}
        self.numbers: dict[tuple[int, str], int] = {}

    def of(self, template: Template, unit: str | None, queue: str | None) -> tuple[IntArray, IntArray]:
        """For each entity of the template's class the number of its unit and its queue, -1 for none."""
        entities = range(template.first_entity, template.first_entity + template.cls.count)
        return (
            np.array([self.units[e, unit] if unit else -1 for e in entities], dtype=np.int64),
            np.array(
                [-1 if queue is None else self.numbers.setdefault((e, queue), len(self.numbers)) for e in entities],
                dtype=np.int64,
            ),
        )


def _template_columns(t: Template, queues: _Queues, hardware: Hardware) -> dict[str, IntArray]:
    """The columns of one template's instances, before guards are applied."""
    task, cls = t.task, t.cls
    absent = task.overhead and hardware.ideal
    unit, queue, work = (None, None, NOTHING) if absent else (task.unit, task.queue, task.work)
    kind = cls.units[unit].kind if unit else "server"
    model = hardware.model(kind)
    for cost, what in ((task.issue_ps, "an issue cost"), (task.latency_ps, "a latency")):
        if cost is not None and cost < 0:
            raise GraphError(f"task {task.name!r}: {what} of {cost} ps; 0 or more is meant")
    try:
        service, bound = model.service_ps(work), hardware.bound_model(kind).service_ps(work)
    except GraphError as error:
        where = "" if unit else " (it has no unit)"
        raise GraphError(f"task {task.name!r}{where}: {error}") from None
    service_ps, moved = t.per_instance(service), t.per_instance(moved_bytes(work))
    flops, operations = t.per_instance(matmul_flops(work)), t.per_instance(vector_operations(work))
    if min((int(a.min()) for a in (service_ps, moved, flops, operations) if len(a)), default=0) < 0:
        raise GraphError(f"task {task.name!r}: negative work; amounts and durations are 0 or more")
    if absent:
        issue, latency = np.zeros_like(moved), np.zeros_like(moved)
    else:
        # The unit's own costs are those of transfers: nothing moved, nothing issued and nothing in flight.
        issue = np.where(moved > 0, model.issue_ps, 0) if task.issue_ps is None else np.array(task.issue_ps)
        latency = np.where(moved > 0, model.latency_ps, 0) if task.latency_ps is None else np.array(task.latency_ps)
    entity = t.first_entity + np.arange(cls.count, dtype=np.int64)
    of_unit, of_queue = queues.of(t, unit, queue)
    return {
        **{
            name: np.broadcast_to(values, t.shape).reshape(-1)
            for name, values in (("entity", entity), ("unit", of_unit), ("queue", of_queue))
        },
        "iteration": np.repeat(np.arange(math.prod(task.counts), dtype=np.int64), cls.count),
        "duration": service_ps + issue,
        "work": t.per_instance(bound),
        "latency": np.broadcast_to(latency, moved.shape),
        "bytes": moved,
        "flops": flops,
        "operations": operations,
    }


def _check_tensors(graph: TaskGraph, t: Template) -> None:
    for access in (*t.task.reads, *t.task.writes):
        if not isinstance(access, TensorAccess):
            continue
        classes = [t.cls] if not access.on else [c for c in graph.classes.values() if c.axes == t.cls.axes]
        known = {name for cls in classes for name in cls.tensors}
        if access.tensor not in known:
            raise GraphError(
                f"task {t.task.name!r} accesses an undeclared tensor {access.tensor!r}, {nearest(access.tensor, known)}"
            )


def _queue_next(queue: IntArray) -> IntArray:
    """The instance that follows each in its queue, in program order; -1 for the last."""
    following = np.full(len(queue), -1, dtype=np.int64)
    queued = np.flatnonzero(queue >= 0)
    by_queue = queued[np.lexsort((queued, queue[queued]))]
    same = queue[by_queue[:-1]] == queue[by_queue[1:]]
    following[by_queue[:-1][same]] = by_queue[1:][same]
    return following


class _Edges:
    """Dependencies as pairs of instances, those on a start apart, with their lags."""

    def __init__(self, resolver: Resolver, rank: IntArray) -> None:
        self.done_from: list[IntArray] = []
        self.done_to: list[IntArray] = []
        self.start_from: list[IntArray] = []
        self.start_to: list[IntArray] = []
        self.lag: list[IntArray] = []
        for t in resolver.templates:
            for ref in t.task.after:
                rows, targets = resolver.resolve(t, ref)
                if ref.event == "done":
                    if ref.lag_ps:
                        raise GraphError(
                            f"task {t.task.name!r}: a lag of {ref.lag_ps} ps after a completion; a lag is for "
                            'event="start", a flight time is the latency_ps of the task itself'
                        )
                    self.done_from.append(rank[targets])
                    self.done_to.append(rank[rows])
                    continue
                if ref.event != "start":
                    raise GraphError(f"task {t.task.name!r}: unknown event {ref.event!r}, known: done, start")
                if ref.lag_ps < 0:
                    raise GraphError(f"task {t.task.name!r}: a lag of {ref.lag_ps} ps; 0 or more is meant")
                self.start_from.append(rank[targets])
                self.start_to.append(rank[rows])
                self.lag.append(np.full(len(rows), ref.lag_ps, dtype=np.int64))


class _Takes:
    """Every buffer taken: by which instance, of which pool, and which completions free it."""

    def __init__(self, resolver: Resolver, rank: IntArray) -> None:
        self.pools: list[PoolInstance] = []
        self.instance: list[IntArray] = []
        self.pool: list[IntArray] = []
        self.freed_by: list[IntArray] = []
        self.freed: list[IntArray] = []
        self.held: list[IntArray] = []
        self.count = 0
        numbers: dict[tuple[int, str], int] = {}
        for entity, (cls, _) in enumerate(resolver.entities):
            for pool in cls.pools.values():
                numbers[entity, pool.name] = len(self.pools)
                self.pools.append(PoolInstance(entity, pool, []))
        for t in resolver.templates:
            wanted = [pool for pool, _ in t.task.takes]
            for pool_name in set(wanted):
                there = t.cls.pools[pool_name].buffers
                if wanted.count(pool_name) > there:
                    raise GraphError(
                        f"task {t.task.name!r} takes {wanted.count(pool_name)} buffers of pool {pool_name!r}, which "
                        f"has {there}"
                    )
            for pool_name, freed_by in t.task.takes:
                self._add(resolver, rank, t, numbers, pool_name, freed_by)

    def _add(
        self,
        resolver: Resolver,
        rank: IntArray,
        t: Template,
        numbers: Mapping[tuple[int, str], int],
        pool_name: str,
        freed_by: tuple[Ref, ...] | None,
    ) -> None:
        exists = np.flatnonzero(t.exists.reshape(-1))
        take_of = np.full(t.size, -1, dtype=np.int64)
        take_of[exists] = self.count + np.arange(len(exists))
        self.count += len(exists)
        instances = rank[exists + t.base]
        self.instance.append(instances)
        of_entity = np.array([numbers[t.first_entity + i, pool_name] for i in range(t.cls.count)], dtype=np.int64)
        self.pool.append(of_entity[exists % max(t.cls.count, 1)])
        if freed_by is None:
            self.held.append(take_of[exists])
            return
        # The taker itself always counts: a buffer is not freed while it is being filled.
        self.freed_by.append(instances)
        self.freed.append(take_of[exists])
        for ref in freed_by:
            rows, targets = resolver.resolve(t, ref)
            self.freed_by.append(rank[targets])
            self.freed.append(take_of[rows - t.base])
