"""Executing a task graph on numpy values, every entity holding its own arrays, in any order that the graph permits.

A task's destinations are NaN from its start to its completion, and a granted buffer is NaN until it is written: a
schedule that forgets a dependency or reuses a buffer too early gives wrong numbers in some permitted order.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from simcore.engine.schedule import Schedule
from simcore.errors import DeadlockError, GraphError
from simcore.graph.access import WithIndices
from simcore.graph.flat import FlatGraph, completion_chains
from simcore.graph.storage import AccessTable, Place

Array: TypeAlias = npt.NDArray[Any]
Storage: TypeAlias = dict[tuple[int, str], Array]
"""(entity number, tensor) -> the entity's local array; of a tensor with a scope, that of the last iteration"""


def execute(
    flat: FlatGraph,
    inputs: Mapping[tuple[int, str], Array],
    *,
    schedule: Schedule | None = None,
    seed: int = 0,
) -> Storage:
    """Execute every task's function and return all tensors' values.

    Parameters
    ----------
    inputs : (entity number, tensor) -> array; every other declared tensor starts as NaN in its declared shape.
    schedule : execute in this simulated order; otherwise in a random permitted order, drawn from ``seed``.
    seed : also draws at which of its ends, start or completion, a task reads each source.

    Raises `DeadlockError` if no order lets all tasks run.
    """
    return _Execution(flat, inputs, schedule, np.random.default_rng(seed)).run()


class _Execution:
    def __init__(
        self,
        flat: FlatGraph,
        inputs: Mapping[tuple[int, str], Array],
        schedule: Schedule | None,
        rng: np.random.Generator,
    ) -> None:
        self.flat, self.schedule, self.rng = flat, schedule, rng
        self.table = AccessTable(flat)
        self.storage: dict[tuple[int, str, int], Array] = {}
        for entity, (cls, _) in enumerate(flat.entities):
            for tensor in cls.tensors.values():
                for scope in range(math.prod(cls.loops[name].count for name in tensor.scope)):
                    array = inputs.get((entity, tensor.name))
                    self.storage[entity, tensor.name, scope] = (
                        np.full(tensor.shape, np.nan) if array is None else np.array(array, order="C")
                    )
        for key in inputs:
            if (*key, 0) not in self.storage:
                raise GraphError(f"input {key[1]!r} of entity {key[0]} is not a declared tensor")
        self.slots: dict[tuple[int, int], Array] = {}
        self.slot_of: dict[int, int] = {}
        self.free = [list(range(pool.pool.buffers)) for pool in flat.pools]
        self.next_take = [0] * len(flat.pools)
        self.take_waits = flat.take_waits.tolist()
        self.unit_busy = [False] * len(flat.units)
        self.left = flat.n_dependencies.copy()
        self.left[flat.queue_next[flat.queue_next >= 0]] += 1
        self.captured: dict[int, list[Array]] = {}
        self.candidates: list[tuple[str, int]] = []
        # On one unit a queue's tasks complete in its order, unless an earlier one flies longer than a later one.
        self.completes_after: dict[int, set[int]] = {}
        for i, j in completion_chains(flat):
            self.completes_after.setdefault(j, set()).add(i)
        self.completed: set[int] = set()
        for i in np.flatnonzero(self.left == 0).tolist():
            self._offer(i)

    def _offer(self, i: int) -> None:
        self.candidates.append(("grant" if len(self.flat.takes.row(i)) else "start", i))

    def run(self) -> Storage:
        while self.candidates:
            action, i = self.candidates.pop(self._choose())
            getattr(self, f"_{action}")(i)
        if len(self.completed) < len(self.flat):
            raise DeadlockError(f"no permitted order runs all of {self.flat.graph.name!r}")
        return {(entity, tensor): array for (entity, tensor, _), array in self.storage.items()}

    def _choose(self) -> int:
        possible = [p for p, (action, i) in enumerate(self.candidates) if self._possible(action, i)]
        if not possible:
            i = self.candidates[0][1]
            raise DeadlockError(f"no permitted order runs all of {self.flat.graph.name!r}: {self.flat.label(i)} waits")
        if self.schedule is None:
            return possible[int(self.rng.integers(len(possible)))]
        s = self.schedule
        at = {"grant": s.granted_ps, "start": s.start_ps, "end": s.end_ps, "done": s.done_ps}
        rank = {"done": 0, "end": 1, "grant": 2, "start": 3}

        def key(position: int) -> tuple[int, int, int]:
            action, i = self.candidates[position]
            return int(at[action][i]), rank[action], i

        return min(possible, key=key)

    def _possible(self, action: str, i: int) -> bool:
        if action == "done":
            return not self.completes_after.get(i, set()) - self.completed
        if action == "start":
            unit = int(self.flat.unit[i])
            return unit < 0 or not self.unit_busy[unit]
        if action == "grant":
            wanted: dict[int, int] = {}
            for take in self.flat.takes.row(i).tolist():
                pool = int(self.flat.take_pool[take])
                nth = wanted.get(pool, 0)
                order = self.flat.pools[pool].takes
                if order[self.next_take[pool] + nth] != take or len(self.free[pool]) <= nth:
                    return False
                wanted[pool] = nth + 1
        return True

    def _grant(self, i: int) -> None:
        for take in self.flat.takes.row(i).tolist():
            pool = int(self.flat.take_pool[take])
            self.slot_of[take] = heapq.heappop(self.free[pool])
            self.slots[pool, self.slot_of[take]] = np.array(np.nan)
            self.next_take[pool] += 1
        self.candidates.append(("start", i))

    def _start(self, i: int) -> None:
        unit = int(self.flat.unit[i])
        if unit >= 0:
            self.unit_busy[unit] = True
        self.captured[i] = [np.array(self._load(place)) for place in self.table.reads(i)]
        for place in self.table.writes(i):
            self._store(place, np.nan)
        following = int(self.flat.queue_next[i])
        for j in [*self.flat.start_dependents.row(i).tolist(), *([following] if following >= 0 else [])]:
            self._satisfy(j)
        self.candidates.append(("end", i))

    def _end(self, i: int) -> None:
        unit = int(self.flat.unit[i])
        if unit >= 0:
            self.unit_busy[unit] = False
        if self.flat.latency_ps[i]:
            self.candidates.append(("done", i))
        else:  # the unit is not given on before this is complete
            self._done(i)

    def _done(self, i: int) -> None:
        task = self.flat.templates[int(self.flat.template[i])]
        reads, writes = self.table.reads(i), self.table.writes(i)
        captured = self.captured.pop(i)
        if task.function is not None:
            own = {(w.entity, w.tensor, w.take, w.scope) for w in writes}
            for position, place in enumerate(reads):
                # A source must keep its values to the end of the task: look again, sometimes.
                if (place.entity, place.tensor, place.take, place.scope) not in own and self.rng.random() < 0.5:
                    captured[position] = np.array(self._load(place))
            function = task.function
            results: Any
            if any(p.take >= 0 and v.ndim == 0 and np.isnan(v) for p, v in zip(reads, captured, strict=True)):
                results = (np.nan,) * len(writes)  # a buffer that nothing has written: not even its shape is known
            elif isinstance(function, WithIndices):
                results = function(self.flat.indices(i), self.flat.coordinates(i), *captured)
            else:
                results = function(*captured)
            if not isinstance(results, tuple):
                results = (results,)
            if len(results) != len(writes):
                raise GraphError(
                    f"{self.flat.label(i)}: its function gives {len(results)} arrays, it writes {len(writes)}"
                )
            for place, result in zip(writes, results, strict=True):
                self._store(place, result)
        self.completed.add(i)
        for j in self.flat.dependents.row(i).tolist():
            self._satisfy(j)
        for take in self.flat.take_frees.row(i).tolist():
            self.take_waits[take] -= 1
            if self.take_waits[take] == 0:
                heapq.heappush(self.free[int(self.flat.take_pool[take])], self.slot_of[take])

    def _satisfy(self, i: int) -> None:
        self.left[i] -= 1
        if self.left[i] == 0:
            self._offer(i)

    def _load(self, place: Place) -> Array:
        if place.take < 0:
            array = self.storage[place.entity, place.tensor, place.scope]
            array = array.reshape(place.view) if place.view else array
        elif place.take not in self.slot_of:
            return np.array(np.nan)
        else:
            array = self._buffer(place)
        return array if place.region is None or array.ndim == 0 else array[place.region]

    def _store(self, place: Place, value: Array | float) -> None:
        if place.take < 0:
            key = place.entity, place.tensor, place.scope
            array = self.storage[key]
            if not np.issubdtype(array.dtype, np.floating):
                array = self.storage[key] = array.astype(float)
            seen = array.reshape(place.view) if place.view else array  # shares its memory with the array
            seen[place.region if place.region is not None else ...] = value
            return
        if place.region is None:
            slot = int(self.flat.take_pool[place.take]), self.slot_of[place.take]
            self.slots[slot] = np.array(value, dtype=float)
        else:
            self._buffer(place)[place.region] = value

    def _buffer(self, place: Place) -> Array:
        """A taken buffer, grown with NaN to what its accesses' regions reach: pools declare bytes, not shapes."""
        slot = int(self.flat.take_pool[place.take]), self.slot_of[place.take]
        array = self.slots[slot]
        if place.region is None:
            return array
        reach = tuple(int(part.stop) for part in place.region)
        if array.ndim == 0:
            array = self.slots[slot] = np.full(reach, np.nan)
        elif any(stop > size for stop, size in zip(reach, array.shape, strict=True)):
            larger = np.full(tuple(map(max, reach, array.shape)), np.nan)
            larger[tuple(slice(size) for size in array.shape)] = array
            array = self.slots[slot] = larger
        return array
