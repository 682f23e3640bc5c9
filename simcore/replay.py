"""A run's order, frozen: who came before whom on every unit and in every pool, as a graph of longest paths.

With the order of one run fixed, the times of another are longest paths: no events, no queues. That is exact for as long
as first come, first served would give the same order: `Frozen.in_order` is the certificate of that.

Nodes are *grants* (instance i's buffers are granted, row i), *starts* (row n + i) and *releases* of buffers (row
2 n + take). An edge leads from a node, plus a delay, to one that may be no earlier. Delays are rows of a table as well:
row i of it is instance i's duration, row n + i its duration and latency, and lags follow.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from simcore.errors import GraphError
from simcore.graph.flat import FlatGraph, IntArray
from simcore.timeline import Timeline

FloatArray = npt.NDArray[np.float64]
Edge = tuple[int, int]
"""(node, row of the delay, or -1 for none)"""


@dataclass
class Frozen:
    """The frozen order of one run of ``flat``."""

    flat: FlatGraph
    timeline: Timeline
    incoming: list[list[Edge]] = field(init=False)
    lags: list[int] = field(init=False)
    order: list[int] = field(init=False)
    rivals: IntArray = field(init=False)
    """pairs of nodes [pairs, 2] of which the first must come no later, for the order to be that of first come, first
    served: grants of two queues on a unit, and releases of one pool"""

    def __post_init__(self) -> None:
        n = len(self.flat)
        self.lags = []
        self.incoming = [[] for _ in range(2 * n + len(self.flat.take_instance))]
        rivals: list[tuple[int, int]] = []
        self._dependencies(n)
        self._units(n, rivals)
        self._pools(n, rivals)
        self.rivals = np.array(rivals, dtype=np.int64).reshape(-1, 2)
        self.order = self._sorted()
        self.base_ps = np.concatenate(
            [self.timeline.granted_ps, self.timeline.start_ps, self.timeline.slots.released_ps]
        ).astype(np.int64)

    def __len__(self) -> int:
        return len(self.flat)

    def _dependencies(self, n: int) -> None:
        flat, incoming = self.flat, self.incoming
        for i, dependents in enumerate(flat.dependents.lists()):
            for d in dependents:
                incoming[d].append((n + i, n + i))
        edge = 0
        numbers: dict[int, int] = {}
        lags = flat.start_lags_ps.tolist()
        for i, dependents in enumerate(flat.start_dependents.lists()):
            for d in dependents:
                lag = lags[edge]
                edge += 1
                incoming[d].append((n + i, 2 * n + numbers.setdefault(lag, len(numbers)) if lag else -1))
        self.lags = list(numbers)
        for i, following in enumerate(flat.queue_next.tolist()):
            incoming[n + i].append((i, -1))
            if following >= 0:
                incoming[following].append((n + i, -1))

    def _units(self, n: int, rivals: list[tuple[int, int]]) -> None:
        """Each start after the end of the one before it on its unit; what takes no time holds nobody up."""
        t, queue = self.timeline, self.flat.queue.tolist()
        takes_time = (t.end_ps > t.start_ps).tolist()
        for unit in range(len(self.flat.units)):
            rows = t.rows_of_lane(unit).tolist()
            holder, before = -1, -1
            for row in rows:
                if holder >= 0:
                    self.incoming[n + row].append((n + holder, holder))
                if before >= 0 and queue[before] != queue[row] and (takes_time[before] or takes_time[row]):
                    rivals.append((before, row))
                holder = row if takes_time[row] else holder
                before = row

    def _pools(self, n: int, rivals: list[tuple[int, int]]) -> None:
        """Grants in program order, and a grant after as many releases as it needs, in the order they happened."""
        flat, released = self.flat, self.timeline.slots.released_ps.tolist()
        for i, takes in enumerate(flat.take_frees.lists()):
            for take in takes:
                self.incoming[2 * n + take].append((n + i, n + i))
        instance, waits = flat.take_instance.tolist(), flat.take_waits.tolist()
        for pool in flat.pools:
            freed = sorted((take for take in pool.takes if waits[take] > 0), key=lambda take: (released[take], take))
            needed = 0
            for place, take in enumerate(pool.takes):
                i = instance[take]
                if place and instance[pool.takes[place - 1]] != i:
                    self.incoming[i].append((instance[pool.takes[place - 1]], -1))
                release = place - pool.pool.buffers
                if release >= 0:
                    self.incoming[i].append((2 * n + freed[release], -1))
                    needed = release + 1
            rivals += [(2 * n + a, 2 * n + b) for a, b in pairwise(freed[: needed + 1])]

    def _sorted(self) -> list[int]:
        """All nodes, each after those its edges come from."""
        nodes = len(self.incoming)
        outgoing: list[list[int]] = [[] for _ in range(nodes)]
        left = [len(edges) for edges in self.incoming]
        for node, edges in enumerate(self.incoming):
            for source, _ in edges:
                outgoing[source].append(node)
        order = [node for node in range(nodes) if not left[node]]
        for node in order:  # grows while it is gone through
            for target in outgoing[node]:
                left[target] -= 1
                if not left[target]:
                    order.append(target)
        if len(order) < nodes:
            raise GraphError(
                "the run's order has a cycle, which tasks without any length can make; it can't be replayed"
            )
        return order

    def delays(self, duration: FloatArray, latency: FloatArray) -> FloatArray:
        """The table of delays [rows, columns] of durations and latencies [instances, columns]."""
        lags = np.repeat(np.array(self.lags, dtype=np.float64)[:, None], duration.shape[1], axis=1)
        return np.concatenate([duration, duration + latency, lags])

    def times(self, delays: FloatArray) -> FloatArray:
        """The time of every node in every column of delays: the longest path to it."""
        columns = delays.shape[1]
        if columns == 1:
            return np.array(self._times(delays[:, 0].tolist()))[:, None]
        value = np.zeros((len(self.incoming), columns))
        scratch = np.empty(columns)
        maximum, add, incoming = np.maximum, np.add, self.incoming
        rows, delay_rows = list(value), list(delays)
        for node in self.order:
            here = rows[node]
            for source, delay in incoming[node]:
                if delay < 0:
                    maximum(here, rows[source], out=here)
                else:
                    add(rows[source], delay_rows[delay], out=scratch)
                    maximum(here, scratch, out=here)
        return value

    def _times(self, delays: list[float]) -> list[float]:
        """The same for one column, without numpy's cost a call."""
        value = [0.0] * len(self.incoming)
        incoming = self.incoming
        for node in self.order:
            latest = 0.0
            for source, delay in incoming[node]:
                at = value[source] + delays[delay] if delay >= 0 else value[source]
                if at > latest:
                    latest = at
            value[node] = latest
        return value

    def completions(self, value: FloatArray, delays: FloatArray) -> FloatArray:
        """When every instance completes [instances, columns]."""
        n = len(self)
        done: FloatArray = value[n : 2 * n] + delays[n : 2 * n]
        return done

    def makespans(self, duration: IntArray, latency: IntArray) -> FloatArray:
        """The makespans in the frozen order, of durations and latencies [instances, columns]."""
        delays = self.delays(duration.astype(np.float64), latency.astype(np.float64))
        found: FloatArray = self.completions(self.times(delays), delays).max(axis=0, initial=0.0)
        return found
