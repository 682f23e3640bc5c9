"""The rules of ties and grants once more, as plainly as they can be written: no SimPy, no arrays, no speed.

An agenda maps (time, round) to what happens then. Each round first lets everything that ends release, in key order,
granting waiters from the head of their lines; then everything ready or just granted takes its next step, in key order.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from simcore.graph.flat import FlatGraph
from simcore.timeline import Released

COLUMNS = ("ready_ps", "granted_ps", "start_ps", "end_ps", "done_ps", "released_by", "released_how")


class Oracle:
    def __init__(self, flat: FlatGraph) -> None:
        n = len(flat)
        self.flat = flat
        self.columns = {name: [-1] * n for name in COLUMNS}
        self.columns["ready_ps"] = [0] * n
        self.columns["released_how"] = [int(Released.NOTHING)] * n
        self.waits: list[set[tuple]] = [set() for _ in range(n)]
        lag_at = 0
        for i in range(n):
            for d in flat.dependents.row(i).tolist():
                self.waits[d].add(("done", i))
            for d in flat.start_dependents.row(i).tolist():
                self.waits[d].add(("start", i, int(flat.start_lags_ps[lag_at])))
                lag_at += 1
            if flat.queue_next[i] >= 0:
                self.waits[flat.queue_next[i]].add(("turn", i))
        self.lags = defaultdict(list)
        for d in range(n):
            for what in self.waits[d]:
                if what[0] == "start":
                    self.lags[what[1]].append((what, d))
        self.holder: dict[int, int | None] = dict.fromkeys(range(len(flat.units)))
        self.line: dict[int, list[int]] = {unit: [] for unit in range(len(flat.units))}
        self.last = dict.fromkeys(range(len(flat.units)), -1)
        self.order = [list(pool.takes) for pool in flat.pools]
        self.free = [set(range(pool.pool.buffers)) for pool in flat.pools]
        self.slot: dict[int, int] = {}
        self.take_granted: dict[int, int] = {}
        self.take_released: dict[int, int] = {}
        self.in_line: set[int] = set()
        self.granted: set[int] = set()
        self.frees_left = {t: int(flat.take_waits[t]) for t in range(len(flat.take_instance))}
        self.agenda: dict[tuple[int, int], list[tuple]] = defaultdict(list)
        for i in range(n):
            if not self.waits[i]:
                self.agenda[0, 0].append(("act", i))
        while self.agenda:
            self.now, self.round = min(self.agenda)
            self.work_off(self.agenda.pop((self.now, self.round)))

    def at(self, delay: int, what: tuple) -> None:
        self.agenda[(self.now + delay, 0) if delay else (self.now, self.round + 1)].append(what)

    def say(self, i: int, by: int, how: Released) -> None:
        self.columns["released_by"][i], self.columns["released_how"][i] = by, int(how)

    def work_off(self, happening: list[tuple]) -> None:
        acting = {i for what, i in happening if what == "act"}
        completing = {i for what, i in happening if what == "done"}
        for i in sorted(i for what, i in happening if what == "end"):
            self.columns["end_ps"][i] = self.now
            unit = int(self.flat.unit[i])
            if unit >= 0:
                self.holder[unit], self.last[unit] = None, i
                if self.line[unit]:
                    head = self.line[unit].pop(0)
                    self.holder[unit] = head
                    self.say(head, i, Released.UNIT)
                    acting.add(head)
            if self.flat.latency_ps[i]:
                self.at(int(self.flat.latency_ps[i]), ("done", i))
            else:
                completing.add(i)
        for i in sorted(completing):
            self.columns["done_ps"][i] = self.now
            for d in range(len(self.flat)):
                acting |= self.satisfy(d, ("done", i), i, Released.DEPENDENCY)
            for take in self.flat.take_frees.row(i).tolist():
                self.frees_left[take] -= 1
                if self.frees_left[take] == 0:
                    self.take_released[take] = self.now
                    self.free[int(self.flat.take_pool[take])].add(self.slot[take])
                    acting |= self.serve_lines(i)
        for i, what, d in sorted((w[1], w, d) for kind, (w, d) in self.lag_events(happening) if kind == "lag"):
            acting |= self.satisfy(d, what, i, Released.DEPENDENCY)
        for i in sorted(acting):
            self.step(i)

    @staticmethod
    def lag_events(happening: list[tuple]) -> list[tuple]:
        return [event for event in happening if event[0] == "lag"]

    def satisfy(self, d: int, what: tuple, by: int, how: Released) -> set[int]:
        if what not in self.waits[d]:
            return set()
        self.waits[d].remove(what)
        self.columns["ready_ps"][d] = self.now
        self.say(d, by, how)
        return set() if self.waits[d] else {d}

    def takes(self, i: int) -> list[int]:
        return self.flat.takes.row(i).tolist()

    def grantable(self, i: int) -> bool:
        for pool in {int(self.flat.take_pool[t]) for t in self.takes(i)}:
            mine = [t for t in self.takes(i) if self.flat.take_pool[t] == pool]
            if self.order[pool][: len(mine)] != mine or len(self.free[pool]) < len(mine):
                return False
        return True

    def grant(self, i: int) -> None:
        for take in self.takes(i):
            pool = int(self.flat.take_pool[take])
            self.order[pool].remove(take)
            self.slot[take] = min(self.free[pool])
            self.free[pool].remove(self.slot[take])
            self.take_granted[take] = self.now
        self.in_line.discard(i)
        self.granted.add(i)
        self.columns["granted_ps"][i] = self.now

    def serve_lines(self, by: int) -> set[int]:
        """Grant everybody in a line whose turn it is and whose buffers are free."""
        served: set[int] = set()
        while possible := [i for i in sorted(self.in_line) if self.grantable(i)]:
            self.grant(possible[0])
            self.say(possible[0], by, Released.BUFFER)
            served.add(possible[0])
        return served

    def step(self, i: int) -> None:
        unit = int(self.flat.unit[i])
        if i not in self.granted:
            if not self.grantable(i):
                self.in_line.add(i)
                return
            self.grant(i)
            if self.takes(i):
                for j in self.serve_lines(i):
                    self.at(0, ("act", j))
        if unit >= 0 and self.holder[unit] != i:
            if self.holder[unit] is not None:
                self.line[unit].append(i)
                return
            self.holder[unit] = i
        self.columns["start_ps"][i] = self.now
        following = int(self.flat.queue_next[i])
        if following >= 0:
            for j in self.satisfy(following, ("turn", i), i, Released.QUEUE):
                self.at(0, ("act", j))
        for what, d in self.lags[i]:
            self.at(what[2], ("lag", (what, d)))
        self.at(int(self.flat.duration_ps[i]), ("end", i))


def oracle_columns(flat: FlatGraph) -> dict[str, list[int]]:
    """The schedule's columns by the oracle; instances that never came to something have -1 there."""
    oracle = Oracle(flat)
    takes = range(len(flat.take_instance))
    return {
        **oracle.columns,
        "take_slot": [oracle.slot.get(t, -1) for t in takes],
        "take_granted_ps": [oracle.take_granted.get(t, -1) for t in takes],
        "take_released_ps": [oracle.take_released.get(t, -1) for t in takes],
    }


def runs_one_at_a_time(flat: FlatGraph) -> bool:
    """Whether all instances can run when each begins only after the one before is complete."""
    done: set[int] = set()
    before = {int(j): i for i, j in enumerate(flat.queue_next) if j >= 0}
    needs = [set() for _ in range(len(flat))]
    for i in range(len(flat)):
        for d in [*flat.dependents.row(i).tolist(), *flat.start_dependents.row(i).tolist()]:
            needs[d].add(i)
    for j, i in before.items():
        needs[j].add(i)
    order = [list(pool.takes) for pool in flat.pools]
    held = [0] * len(flat.pools)
    waits = flat.take_waits.tolist()
    while True:
        for i in range(len(flat)):
            takes = flat.takes.row(i).tolist()
            pools = flat.take_pool[takes].tolist()
            if (
                i not in done
                and needs[i] <= done
                and all(
                    order[p][: pools.count(p)] == [t for t in takes if flat.take_pool[t] == p]
                    and held[p] + pools.count(p) <= flat.pools[p].pool.buffers
                    for p in set(pools)
                )
            ):
                break
        else:
            return len(done) == len(flat)
        done.add(i)
        for take, pool in zip(takes, pools, strict=True):
            order[pool].remove(take)
            held[pool] += 1
        for take in flat.take_frees.row(i).tolist():
            waits[take] -= 1
            if waits[take] == 0:
                held[int(flat.take_pool[take])] -= 1


def same(columns: dict[str, list[int]], schedule: object) -> list[str]:
    """Names of the columns in which a schedule differs."""
    return [name for name, values in columns.items() if not np.array_equal(values, getattr(schedule, name))]
