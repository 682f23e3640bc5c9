"""Times of collectives over axes of any sizes, wrapping around or not: what an algorithm is chosen by.

They add up the closed forms of the legs: exact where all axes wrap around or are equal, and not too small elsewhere: on
lines of different sizes one part's next leg may begin on some chips before another part's has ended on others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from simcore.collectives.closed_forms import all_to_all_both_ways_ps, all_to_all_line_ps, all_to_all_one_way_ps
from simcore.quantities import duration_ps


@dataclass(frozen=True, slots=True)
class Axis:
    """A mesh axis: its size, and whether it wraps around."""

    n: int
    wraps: bool


@dataclass(frozen=True, slots=True)
class Link:
    """A link: one-way bandwidth, and the latency of a hop."""

    bandwidth_bytes_per_s: float
    latency_ps: int

    def time_ps(self, moved_bytes: int) -> int:
        return duration_ps(moved_bytes, self.bandwidth_bytes_per_s)


def leg_ps(axis: Axis, shards: int, elements: int, element_bytes: int, link: Link, both: bool, chunks: int = 1) -> int:
    """One leg: AllGather or ReduceScatter along an axis of blocks of ``shards`` shards of ``elements`` each.

    One way round a ring or out along a line n - 1 steps, both ways about half as many, the antipodal block of an even
    ring halved shard by shard. With k chunks a step is max(t, t/k + l), the last one t + l.
    """
    if axis.n == 1:
        return 0
    whole = shards * elements * element_bytes
    piece, step = link.time_ps(-(-whole // chunks)), link.time_ps(whole)
    next_step = max(step, piece + link.latency_ps)
    if not (both and axis.wraps):
        return (axis.n - 2) * next_step + step + link.latency_ps
    steps = axis.n // 2
    if axis.n % 2:
        return (steps - 1) * next_step + step + link.latency_ps
    half = shards * -(-elements // 2) * element_bytes
    return (steps - 1) * next_step + link.time_ps(half) + link.latency_ps


def exchange_leg_ps(axis: Axis, blocks: int, elements: int, element_bytes: int, link: Link, both: bool) -> int:
    """One leg of an AllToAll: bundles of ``blocks`` blocks of ``elements`` each along an axis."""
    bundle, rate, latency = blocks * elements * element_bytes, link.bandwidth_bytes_per_s, link.latency_ps
    if not axis.wraps:
        return all_to_all_line_ps(axis.n, bundle, rate, latency)
    if both:
        return all_to_all_both_ways_ps(axis.n, bundle, rate, latency, blocks * element_bytes)
    return all_to_all_one_way_ps(axis.n, bundle, rate, latency)


def axes_ps(
    axes: Sequence[Axis],
    elements: int,
    element_bytes: int,
    link: Link,
    *,
    both: bool,
    rotated: bool = True,
    chunks: int = 1,
) -> int:
    """AllGather or ReduceScatter over ``axes`` of shards of ``elements``, in parts along rotated axes or in one."""

    def leg(order: Sequence[int], phase: int, size: int) -> int:
        shards = math.prod(axes[axis].n for axis in order[:phase])
        return leg_ps(axes[order[phase]], shards, size, element_bytes, link, both, chunks)

    return _in_turn_ps(len(axes), elements, rotated, leg, link)


def exchange_axes_ps(axes: Sequence[Axis], elements: int, element_bytes: int, link: Link, *, both: bool) -> int:
    """AllToAll over ``axes`` of blocks of ``elements``, in parts along rotated axes."""
    total = math.prod(axis.n for axis in axes)

    def leg(order: Sequence[int], phase: int, size: int) -> int:
        axis = axes[order[phase]]
        return exchange_leg_ps(axis, total // axis.n, size, element_bytes, link, both)

    return _in_turn_ps(len(axes), elements, True, leg, link)


def _in_turn_ps(
    axes: int, elements: int, rotated: bool, leg: Callable[[Sequence[int], int, int], int], link: Link
) -> int:
    """Each part takes its legs one after the other; a leg waits for its axis while another part is there, whose last
    blocks may still be in flight. ``leg`` gives the time of a part of so many elements in a phase of its order.
    """
    parts = axes if rotated else 1
    ready, free = [0] * parts, [0] * axes
    for phase in range(axes):
        for part in range(parts):
            order = [(part + turn) % axes for turn in range(axes)]
            size = elements * (part + 1) // parts - elements * part // parts
            start = max(ready[part], free[order[phase]])
            taken = leg(order, phase, size)
            ready[part], free[order[phase]] = start + taken, start + max(taken - link.latency_ps, 0)
    return max(ready)
