"""Lower bounds of a run: what no schedule of the same tasks on the same chips can beat.

- Each resource (kind of unit): the work of its busiest instance over the data sheet's rate.
- Dependencies: the longest chain of tasks that wait for each other, with as many units and buffers as one likes and no
  queues; each task at the ideal model's price (data-sheet rates, hop latencies, no issue cost that the chip adds).

The best bound is the largest. A run is rebuilt from its `RunResult` with `flat_of`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from simcore.engine.folding import fold
from simcore.errors import GraphError
from simcore.graph.flat import FlatGraph, IntArray
from simcore.graph.unroll import unroll
from simcore.hardware import Hardware
from simcore.pricing import Price, price
from simcore.result import RunResult
from simcore.timeline import Timeline

DEPENDENCIES = "dependencies"


@dataclass(frozen=True, slots=True)
class Chain:
    """A chain of dependent instances, the first to start first.

    ``links`` has for each what the next waits for: -1 its completion, else its start plus that many picoseconds.
    """

    total_ps: int
    rows: tuple[int, ...] = ()
    links: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Bounds:
    """Lower bounds in picoseconds; ``lane`` is the busiest instance of the resource that bounds best, or -1."""

    resources_ps: Mapping[str, int]
    chain: Chain
    lane: int

    @property
    def dependencies_ps(self) -> int:
        return self.chain.total_ps

    @property
    def best_ps(self) -> int:
        return max([self.dependencies_ps, *self.resources_ps.values()])

    @property
    def best(self) -> str:
        """The resource (its unit kind), "dependencies", or "none" where nothing takes time."""
        if not self.best_ps:
            return "none"
        for kind, ps in self.resources_ps.items():
            if ps == self.best_ps:
                return kind
        return DEPENDENCIES

    def all_ps(self) -> dict[str, int]:
        """Every bound by name, the largest first."""
        named = {**self.resources_ps, DEPENDENCIES: self.dependencies_ps}
        return dict(sorted(named.items(), key=lambda item: -item[1]))


def flat_of(result: RunResult) -> FlatGraph:
    """The flat graph that a result's timeline has the instances of, in the same order.

    Raises `GraphError` if the result's graph is another one than its timeline's.
    """
    timeline = result.timeline
    folded = any(entity.alike for entity in timeline.entities)
    flat = unroll(fold(result.graph).graph if folded else result.graph, Hardware(result.chip, result.ideal))
    names = np.array([task.name for task in flat.templates], dtype=object)
    if len(flat) != len(timeline) or names.tolist() != list(timeline.task_names):
        raise GraphError(f"{result.scenario}: its timeline is not one of its graph, so the run can't be explained")
    return flat


def lane_works_ps(timeline: Timeline) -> IntArray:
    """Work over the data sheet's rate of every lane."""
    per_lane = np.zeros(len(timeline.lanes), dtype=np.int64)
    on_unit = timeline.lane >= 0
    np.add.at(per_lane, timeline.lane[on_unit], timeline.work_ps[on_unit])
    return per_lane


def bounds(timeline: Timeline, flat: FlatGraph, hardware: Hardware) -> Bounds:
    """All bounds of a run of ``flat``."""
    works = lane_works_ps(timeline).tolist()
    resources: dict[str, int] = {}
    busiest: dict[str, int] = {}
    for number, (lane, work) in enumerate(zip(timeline.lanes, works, strict=True)):
        if work > resources.get(lane.kind, -1):
            resources[lane.kind], busiest[lane.kind] = work, number
    chain = longest_chain(flat, price(flat, Hardware(hardware.chip, ideal=True)))
    largest = max(resources, key=lambda kind: resources[kind], default="")
    binding = largest and resources[largest] >= chain.total_ps
    return Bounds(resources, chain, busiest[largest] if binding else -1)


def bounds_of(result: RunResult) -> Bounds:
    """All bounds of a run.

    >>> import simcore
    >>> found = bounds_of(simcore.run_scenario("double_buffering"))
    >>> found.best, found.best_ps, found.dependencies_ps
    ('hbm', 400000000, 75000000)
    """
    return bounds(result.timeline, flat_of(result), Hardware(result.chip, result.ideal))


def longest_chain(flat: FlatGraph, costs: Price) -> Chain:
    """The longest path through dependencies alone; of several the one that ends with the earliest instance.

    Raises `GraphError` if the dependencies form a cycle.
    """
    n = len(flat)
    if not n:
        return Chain(0)
    whole = (costs.duration_ps + costs.latency_ps).tolist()
    done, done_from = flat.dependents.values.tolist(), flat.dependents.start.tolist()
    begun, begun_from = flat.start_dependents.values.tolist(), flat.start_dependents.start.tolist()
    lags = flat.start_lags_ps.tolist()
    left = flat.n_dependencies.tolist()
    start, by, link = [0] * n, [-1] * n, [-1] * n
    order = [i for i in range(n) if not left[i]]
    for i in order:  # grows while it is gone through
        completes = start[i] + whole[i]
        for d in done[done_from[i] : done_from[i + 1]]:
            if by[d] < 0 or completes > start[d]:
                start[d], by[d], link[d] = completes, i, -1
            left[d] -= 1
            if not left[d]:
                order.append(d)
        for edge in range(begun_from[i], begun_from[i + 1]):
            d, since = begun[edge], start[i] + lags[edge]
            if by[d] < 0 or since > start[d]:
                start[d], by[d], link[d] = since, i, lags[edge]
            left[d] -= 1
            if not left[d]:
                order.append(d)
    if len(order) < n:
        raise GraphError("the dependencies form a cycle")
    last = max(range(n), key=lambda i: (start[i] + whole[i], -i))
    total = start[last] + whole[last]
    rows, links = [last], [-1]
    while by[rows[-1]] >= 0:
        links.append(link[rows[-1]])
        rows.append(by[rows[-1]])
    return Chain(total, tuple(rows[::-1]), tuple(links[::-1]))
