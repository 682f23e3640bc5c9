"""The reference engine: the rules of the task graph played by SimPy events.

Units are `simpy.Resource`s; pools are kept here, since a SimPy container can't grant in program order. An instant is
worked off in rounds, each of them after everything else that SimPy has at that instant:

1. what ends at the instant has released its unit (each unit's line is first come, first served, so the order between
   units is of no account); completions release their dependents and buffers, in key order, and buffers go to the heads
   of their pools' lines;
2. everything that is ready or was just granted takes its next step, in key order: its buffers, its unit, its start.
   What a step makes ready at the same instant, and a task of zero length, follow in the next round.

Instances are numbered in key order, so that sorting numbers is sorting keys.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import simpy
from simpy.core import SimTime
from simpy.events import Event, EventPriority, Timeout
from simpy.resources.resource import Request

from simcore.engine.deadlock import explain_deadlock
from simcore.engine.schedule import Schedule
from simcore.errors import DeadlockError
from simcore.graph.flat import Adjacency, FlatGraph
from simcore.timeline import Released

AFTER_ALL = EventPriority(2)  # simpy's own are URGENT (0) and NORMAL (1)
DEPENDENCY, QUEUE, UNIT, BUFFER = (
    int(Released.DEPENDENCY),
    int(Released.QUEUE),
    int(Released.UNIT),
    int(Released.BUFFER),
)


class _Request(Request):
    """A request that knows the instance it is for."""

    instance: int


class SimpyEngine:
    """One run of a flat graph in a SimPy environment; ``resources`` has the server of each of its units.

    The environment may hold other processes and the resources may be theirs too. ``done`` happens when all tasks have
    completed.
    """

    def __init__(self, flat: FlatGraph, env: simpy.Environment, resources: Sequence[simpy.Resource]) -> None:
        n = len(flat)
        self.flat, self.env, self.resources = flat, env, resources
        self.done = Event(env)
        # One event object is scheduled again and again; there is never more than one round due.
        self.round_event = Event(env)
        self.round_event._ok, self.round_event._value = True, None
        self.round_callbacks: list[Callable[[Any], None]] = [self._rounds]
        self.unit = flat.unit.tolist()
        self.duration, self.latency = flat.duration_ps.tolist(), flat.latency_ps.tolist()
        self.dependents, self.dependents_from = flat.dependents.values.tolist(), flat.dependents.start.tolist()
        lags, values = flat.start_lags_ps.tolist(), flat.start_dependents.values.tolist()
        bounds = flat.start_dependents.start.tolist()
        self.start_dependents = {
            i: [(values[e], lags[e]) for e in range(bounds[i], bounds[i + 1])]
            for i in np.flatnonzero(np.diff(flat.start_dependents.start)).tolist()
        }
        self.queue_next = flat.queue_next.tolist()
        behind = np.zeros(n, dtype=np.int64)
        behind[flat.queue_next[flat.queue_next >= 0]] = 1
        self.left = (flat.n_dependencies + behind).tolist()
        """dependencies and turns in queues that each instance still waits for"""
        self.takes, self.frees = _rows_with_values(flat.takes), _rows_with_values(flat.take_frees)
        self.take_instance, self.take_pool = flat.take_instance.tolist(), flat.take_pool.tolist()
        self.take_waits = flat.take_waits.tolist()
        self.pool_order = [p.takes for p in flat.pools]
        self.free_slots = [list(range(p.pool.buffers)) for p in flat.pools]
        self.next_take = [0] * len(flat.pools)
        self.waiting_for_buffer: set[int] = set()
        self.requests: dict[int, _Request] = {}
        self.last_on_unit = [-1] * len(flat.units)
        # What the next round works off.
        self.completions: list[int] = []
        self.lagged: list[tuple[int, int]] = []
        self.steps: list[int] = np.flatnonzero(np.array(self.left, dtype=np.int64) == 0).tolist()
        self.round_due = self.zero_delay = False
        self.finished = 0
        now = env.now
        self.ready_ps: list[SimTime] = [now] * n
        self.granted_ps: list[SimTime] = [-1] * n
        self.start_ps: list[SimTime] = [-1] * n
        self.end_ps: list[SimTime] = [-1] * n
        self.done_ps: list[SimTime] = [-1] * n
        self.by, self.how = [-1] * n, [0] * n
        self.take_slot = [-1] * len(self.take_instance)
        self.take_granted_ps: list[SimTime] = [-1] * len(self.take_instance)
        self.take_released_ps: list[SimTime] = [-1] * len(self.take_instance)
        if self.steps:
            self._call_round()
        elif not n:
            self.done.succeed()

    def _call_round(self) -> None:
        if not self.round_due:
            self.round_due = True
            self.round_event.callbacks = self.round_callbacks
            self.env.schedule(self.round_event, priority=AFTER_ALL)

    def _rounds(self, _: Event) -> None:
        """Work off rounds until something else of this instant has to happen first, or nothing is left."""
        self.round_due = False
        while True:
            self.zero_delay = False
            self._round(self.env.now)
            if not (self.steps or self.completions):
                return
            if self.zero_delay:
                self._call_round()
                return

    def _round(self, now: SimTime) -> None:
        completions, self.completions = self.completions, []
        steps, self.steps = self.steps, []
        left, by, how, ready = self.left, self.by, self.how, self.ready_ps
        if completions:
            done, dependents, bounds, frees = self.done_ps, self.dependents, self.dependents_from, self.frees
            completions.sort()
            for i in completions:
                done[i] = now
                for d in dependents[bounds[i] : bounds[i + 1]]:
                    ready[d], by[d], how[d] = now, i, DEPENDENCY
                    left[d] -= 1
                    if not left[d]:
                        steps.append(d)
                if i in frees:
                    for take in frees[i]:
                        self._release(take, i, steps)
            self.finished += len(completions)
            if self.finished == len(self.left):
                self.done.succeed()
        if self.lagged:
            lagged, self.lagged = self.lagged, []
            lagged.sort()
            for i, d in lagged:
                ready[d], by[d], how[d] = now, i, DEPENDENCY
                left[d] -= 1
                if not left[d]:
                    steps.append(d)
        steps.sort()
        for i in steps:
            self._step(i, now)

    def _step(self, i: int, now: SimTime) -> None:
        """Take instance ``i`` as far as it gets now."""
        unit = self.unit[i]
        if i not in self.requests:
            if self.granted_ps[i] < 0:
                if i in self.takes and not self._arrive(i):
                    return
                self.granted_ps[i] = now
            if unit >= 0:
                request = self.requests[i] = _Request(self.resources[unit])
                if not request.triggered:
                    request.instance = i
                    request.callbacks.append(self._unit_granted)
                    return
        # Start.
        self.start_ps[i] = now
        following = self.queue_next[i]
        if following >= 0:
            self.ready_ps[following], self.by[following], self.how[following] = now, i, QUEUE
            self.left[following] -= 1
            if not self.left[following]:
                self.steps.append(following)
        if i in self.start_dependents:
            for d, lag in self.start_dependents[i]:
                self.zero_delay |= not lag
                Timeout(self.env, lag, (i, d)).callbacks.append(self._lag_over)
        duration = self.duration[i]
        if duration or unit >= 0:
            self.zero_delay |= not duration
            Timeout(self.env, duration, i).callbacks.append(self._served)
        else:
            self._ended(i, now)

    def _served(self, event: Event) -> None:
        i: int = event._value
        unit = self.unit[i]
        if unit >= 0:
            self.last_on_unit[unit] = i
            self.resources[unit].release(self.requests.pop(i))
        self._ended(i, self.env.now)
        if self.completions:
            self._call_round()

    def _ended(self, i: int, now: SimTime) -> None:
        self.end_ps[i] = now
        if self.latency[i]:
            Timeout(self.env, self.latency[i], i).callbacks.append(self._completed)
        else:
            self.completions.append(i)

    def _completed(self, event: Event) -> None:
        self.completions.append(event._value)
        self._call_round()

    def _lag_over(self, event: Event) -> None:
        self.lagged.append(event._value)
        self._call_round()

    def _unit_granted(self, event: Event) -> None:
        assert isinstance(event, _Request)
        i = event.instance
        self.by[i], self.how[i] = self.last_on_unit[self.unit[i]], UNIT
        self.steps.append(i)
        self._call_round()

    def _arrive(self, i: int) -> bool:
        """Whether ``i`` gets its buffers at once; otherwise it waits in its pools' lines.

        If others wait behind it, its turn taken is theirs come: they step in the next round.
        """
        if not self._grant(i):
            self.waiting_for_buffer.add(i)
            return False
        for take in self.takes[i]:
            self._grant_line(self.take_pool[take], i, self.steps)
        return True

    def _grant(self, i: int) -> bool:
        """Give ``i`` all its buffers if each is the next in its pool's order and there are free ones."""
        takes, take_pool = self.takes[i], self.take_pool
        wanted: dict[int, int] = {}
        for take in takes:
            pool = take_pool[take]
            nth = wanted.get(pool, 0)
            if self.pool_order[pool][self.next_take[pool] + nth] != take or len(self.free_slots[pool]) <= nth:
                return False
            wanted[pool] = nth + 1
        now = self.env.now
        self.granted_ps[i] = now
        for take in takes:
            pool = take_pool[take]
            self.take_slot[take] = heapq.heappop(self.free_slots[pool])
            self.take_granted_ps[take] = now
            self.next_take[pool] += 1
        return True

    def _release(self, take: int, by: int, steps: list[int]) -> None:
        """One of the completions that ``take`` waits for; the last frees its buffer."""
        self.take_waits[take] -= 1
        if not self.take_waits[take]:
            pool = self.take_pool[take]
            heapq.heappush(self.free_slots[pool], self.take_slot[take])
            self.take_released_ps[take] = self.env.now
            self._grant_line(pool, by, steps)

    def _grant_line(self, pool: int, by: int, steps: list[int]) -> None:
        """Grant waiters from the head of the pool's line, as far as buffers go; they step with ``steps``."""
        order = self.pool_order[pool]
        while self.waiting_for_buffer and self.next_take[pool] < len(order) and self.free_slots[pool]:
            i = self.take_instance[order[self.next_take[pool]]]
            if i not in self.waiting_for_buffer or not self._grant(i):
                return
            self.waiting_for_buffer.discard(i)
            self.by[i], self.how[i] = by, BUFFER
            steps.append(i)
            for take in self.takes[i]:
                if self.take_pool[take] != pool:
                    self._grant_line(self.take_pool[take], by, steps)

    def schedule(self) -> Schedule:
        """The schedule of a finished run. Raises `DeadlockError` if it could not go on to its end."""
        if self.finished < len(self.flat):
            raise DeadlockError(explain_deadlock(self))

        def column(values: Sequence[SimTime]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
            return np.array(values, dtype=np.int64)

        return Schedule(
            ready_ps=column(self.ready_ps),
            granted_ps=column(self.granted_ps),
            start_ps=column(self.start_ps),
            end_ps=column(self.end_ps),
            done_ps=column(self.done_ps),
            released_by=column(self.by),
            released_how=column(self.how),
            take_slot=column(self.take_slot),
            take_granted_ps=column(self.take_granted_ps),
            take_released_ps=column(self.take_released_ps),
        )


def _rows_with_values(table: Adjacency) -> dict[int, list[int]]:
    return {i: table.row(i).tolist() for i in np.flatnonzero(np.diff(table.start)).tolist()}
