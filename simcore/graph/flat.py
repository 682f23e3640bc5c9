"""The flat form of a task graph: every task instance, its durations and its edges, as numpy arrays.

All engines, the race check and the value execution read this one form; `simcore.graph.unroll` makes it. Instances are
numbered in the contract's key order (place in the unrolled program, class, entity), so that comparing keys is comparing
numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simcore.graph.graph import EntityClass, Pool, Task, TaskGraph
from simcore.graph.reference import Ref

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Adjacency:
    """Rows of values: row i is ``values[start[i]:start[i + 1]]``."""

    start: IntArray
    values: IntArray

    def row(self, index: int) -> IntArray:
        return self.values[self.start[index] : self.start[index + 1]]

    def lists(self) -> list[list[int]]:
        values, bounds = self.values.tolist(), self.start.tolist()
        return [values[bounds[i] : bounds[i + 1]] for i in range(len(bounds) - 1)]


def adjacency(rows: IntArray, values: IntArray, count: int) -> tuple[Adjacency, IntArray]:
    """Group ``values`` by ``rows`` (0..count-1), each row's values ascending; also the permutation that does it."""
    order = np.lexsort((values, rows))
    start = np.zeros(count + 1, dtype=np.int64)
    np.cumsum(np.bincount(rows, minlength=count), out=start[1:])
    return Adjacency(start, values[order]), order


@dataclass(frozen=True, slots=True)
class PoolInstance:
    """A pool of one entity; ``takes`` lists the indices of its takes in program order."""

    entity: int
    pool: Pool
    takes: list[int]


@dataclass(frozen=True, slots=True, repr=False)
class FlatGraph:
    """Arrays over instances, in key order. Entities, units and pools are numbered over the whole graph."""

    graph: TaskGraph
    templates: tuple[Task, ...]
    entities: tuple[tuple[EntityClass, int], ...]
    """(class, index within the class)"""
    units: tuple[tuple[int, str], ...]
    """(entity, unit name)"""
    queues: tuple[tuple[int, str], ...]
    template: IntArray
    entity: IntArray
    iteration: IntArray
    """index of the iteration among all of the template's, outermost loop slowest"""
    unit: IntArray
    queue: IntArray
    duration_ps: IntArray
    work_ps: IntArray
    """what the bare work takes at the data sheet's rate"""
    latency_ps: IntArray
    bytes: IntArray
    flops: IntArray
    operations: IntArray
    """vector operations"""
    dependents: Adjacency
    """instance -> instances that wait for its completion"""
    start_dependents: Adjacency
    """instance -> instances that wait for its start"""
    start_lags_ps: IntArray
    """lags, aligned with ``start_dependents.values``"""
    n_dependencies: IntArray
    queue_next: IntArray
    """the instance after this one in its queue, or -1"""
    take_instance: IntArray
    take_pool: IntArray
    takes: Adjacency
    """instance -> its takes"""
    take_frees: Adjacency
    """instance -> takes that wait for its completion"""
    take_waits: IntArray
    """take -> number of completions it waits for (the taker's own included); -1: held to the end"""
    pools: tuple[PoolInstance, ...]
    resolve: Callable[[Task, Ref], tuple[IntArray, IntArray]]
    """(template, reference) -> pairs of (instance of the template, instance that it refers to)"""
    neighbour: Callable[[int, Mapping[str, int]], int]
    """(entity, chip offsets) -> entity, or -1 outside"""

    def __len__(self) -> int:
        return len(self.template)

    def indices(self, instance: int) -> dict[str, int]:
        """Loop name -> iteration of an instance."""
        task = self.templates[self.template[instance]]
        if not task.loops:
            return {}
        unraveled = np.unravel_index(int(self.iteration[instance]), task.counts)
        return {loop.name: int(i) for loop, i in zip(task.loops, unraveled, strict=True)}

    def coordinates(self, instance: int) -> dict[str, int]:
        """Mesh axis -> coordinate of an instance's entity."""
        cls, index = self.entities[self.entity[instance]]
        return dict(zip(cls.axes, cls.coordinates[index].tolist(), strict=True))

    def label(self, instance: int) -> str:
        """``load[tile=3] on chip x=1``: how errors name an instance."""
        task = self.templates[self.template[instance]]
        indices = ", ".join(f"{name}={index}" for name, index in self.indices(instance).items())
        where = " ".join([task.cls, *(f"{axis}={c}" for axis, c in self.coordinates(instance).items())])
        return f"{task.name}[{indices}] on {where}" if indices else f"{task.name} on {where}"


def completion_chains(flat: FlatGraph) -> list[tuple[int, int]]:
    """Pairs of neighbours in one queue on one unit of which the first completes no later than the second.

    The unit serves them in this order, and the first's latency is no longer than the second's.
    """
    i = np.flatnonzero(flat.queue_next >= 0)
    j = flat.queue_next[i]
    chained = (flat.unit[i] >= 0) & (flat.unit[i] == flat.unit[j]) & (flat.latency_ps[i] <= flat.latency_ps[j])
    return list(zip(i[chained].tolist(), j[chained].tolist(), strict=True))
