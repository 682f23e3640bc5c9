"""The race check: conflicting accesses that only the timing happens to order.

Two accesses to one region, one of them a write, must be ordered by dependencies, by the order of a queue on one unit,
or by a buffer's release and grant. And whoever touches a buffer must be done before the buffer's release: be one of
its named readers, or be complete before one of them is.

The check misses no race in the graph it is given. It may ask for a dependency too many where only a pool of several
buffers orders two accesses to a tensor. It is quadratic in the accesses to one tensor: run it on small instances of a
lowering, which have the same structure as large ones. So it may where two accesses see one array in different shapes.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

from simcore.errors import RaceError
from simcore.graph.flat import FlatGraph, completion_chains
from simcore.graph.storage import AccessTable, Place, overlap


def check_races(flat: FlatGraph) -> None:
    """Raise `RaceError` naming two accesses that nothing orders, if there are any."""
    before_start, before_done = _ancestors(flat)
    table = AccessTable(flat)
    tensors: dict[tuple[int, str, int], list[tuple[int, bool, Place]]] = defaultdict(list)
    buffers: dict[int, list[tuple[int, bool, Place]]] = defaultdict(list)
    for instance in range(len(flat)):
        for place, write in table.accesses(instance):
            if place.take >= 0:
                buffers[place.take].append((instance, write, place))
            else:
                tensors[place.entity, place.tensor, place.scope].append((instance, write, place))
    for (entity, tensor, _), touched in tensors.items():
        _check_group(flat, touched, before_start, f"tensor {tensor!r} of {_entity(flat, entity)}")
    freers = _freers(flat)
    for take, touched in buffers.items():
        taker = int(flat.take_instance[take])
        pool = flat.pools[int(flat.take_pool[take])].pool.name
        where = f"the buffer of {pool!r} taken by {flat.label(taker)}"
        _check_group(flat, touched, before_start, where)
        held_to_end = int(flat.take_waits[take]) < 0
        for instance, _, _ in touched:
            if instance != taker and not before_start[instance] >> taker & 1:
                raise RaceError(f"{flat.label(instance)} touches {where}, but need not come after it")
            if not held_to_end and not any(before_done[freer] >> instance & 1 for freer in freers[take]):
                raise RaceError(
                    f"{flat.label(instance)} touches {where}, which may be freed before it is done: name it in freed_by"
                )


def _check_group(flat: FlatGraph, touched: list[tuple[int, bool, Place]], before_start: list[int], where: str) -> None:
    for position, (i, i_writes, i_place) in enumerate(touched):
        if not i_writes:
            continue
        for other, (j, j_writes, j_place) in enumerate(touched):
            if i == j or (j_writes and other < position):
                continue
            if before_start[j] >> i & 1 or before_start[i] >> j & 1:
                continue
            if overlap(i_place, j_place):
                verb = "write" if j_writes else "read"
                raise RaceError(
                    f"race on {where}: the write by {flat.label(i)} and the {verb} by {flat.label(j)} are not ordered"
                )


def _entity(flat: FlatGraph, entity: int) -> str:
    cls, index = flat.entities[entity]
    return " ".join([cls.name, *(f"{a}={c}" for a, c in zip(cls.axes, cls.coordinates[index].tolist(), strict=True))])


def _ancestors(flat: FlatGraph) -> tuple[list[int], list[int]]:
    """For each instance, as bit sets, the instances that are complete before its start, and before its completion
    (itself included), in every permitted order.

    A unit serves one task after another, so of two of its tasks the one that must start first is served first; with no
    latency it is then complete when the other starts.
    """
    n = len(flat)
    latency, unit = flat.latency_ps.tolist(), flat.unit.tolist()
    done_before: list[list[int]] = [[] for _ in range(n)]  # complete before my start
    start_before: list[list[int]] = [[] for _ in range(n)]  # started before my start
    in_order: list[list[int]] = [[] for _ in range(n)]  # complete before my completion
    for i in range(n):
        for j in flat.dependents.row(i).tolist():
            done_before[j].append(i)
        for j in flat.start_dependents.row(i).tolist():
            start_before[j].append(i)
        j = int(flat.queue_next[i])
        if j >= 0:
            start_before[j].append(i)
    for i, j in completion_chains(flat):
        in_order[j].append(i)
    freers = _freers(flat)
    for pool in flat.pools:
        if pool.pool.buffers == 1:
            for earlier, later in pairwise(pool.takes):
                taker = int(flat.take_instance[later])
                done_before[taker] += freers[earlier]
    without_latency = [0] * len(flat.units)
    for i in range(n):
        if unit[i] >= 0 and latency[i] == 0:
            without_latency[unit[i]] |= 1 << i
    started, before_start, before_done = [0] * n, [0] * n, [0] * n
    for i in _topological(n, [done_before, start_before, in_order]):
        begun = start = 0
        for j in done_before[i]:
            start |= before_done[j]
            begun |= started[j] | 1 << j
        for j in start_before[i]:
            start |= before_start[j]
            begun |= started[j] | 1 << j
        begun |= start
        if unit[i] >= 0:
            # The latest first: what it brings in need not be looked at.
            served = begun & without_latency[unit[i]] & ~start
            while served:
                j = served.bit_length() - 1
                start |= before_done[j]
                served &= ~start
        done = start | 1 << i
        for j in in_order[i]:
            done |= before_done[j]
        started[i], before_start[i], before_done[i] = begun | start, start, done
    return before_start, before_done


def _freers(flat: FlatGraph) -> dict[int, list[int]]:
    """For each take the instances whose completions free its buffer."""
    freers: dict[int, list[int]] = defaultdict(list)
    for instance in range(len(flat)):
        for take in flat.take_frees.row(instance).tolist():
            freers[take].append(instance)
    return freers


def _topological(n: int, before: list[list[list[int]]]) -> list[int]:
    waits = [0] * n
    after: list[list[int]] = [[] for _ in range(n)]
    for relation in before:
        for i, earlier in enumerate(relation):
            waits[i] += len(earlier)
            for j in earlier:
                after[j].append(i)
    order = [i for i in range(n) if waits[i] == 0]
    for i in order:
        for j in after[i]:
            waits[j] -= 1
            if waits[j] == 0:
                order.append(j)
    if len(order) < n:
        raise RaceError("the race check needs a graph without cycles")
    return order
