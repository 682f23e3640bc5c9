"""The algorithms for each collective with the time that its closed form gives: what `simcore.collectives.auto` chooses
from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from simcore.collectives import all_to_all, broadcast, one_shot, permute, switch, torus
from simcore.collectives import closed_forms as forms
from simcore.collectives import switch_forms as through_switch
from simcore.collectives.estimates import Axis, Link, axes_ps, exchange_axes_ps, leg_ps
from simcore.collectives.tensor import RingTensor
from simcore.collectives.ways import axis_size, axis_wraps
from simcore.graph import EntityClass, Task
from simcore.graph.graph import Reference

GATHERS = ("AllGather", "ReduceScatter", "AllReduce")
KINDS = (*GATHERS, "AllToAll", "CollectivePermute", "Broadcast", "Reduce")
WAYS = ("both", "one_way")


@dataclass(frozen=True)
class Request:
    """A collective that is asked for."""

    cls: EntityClass
    name: str
    kind: str
    axes: tuple[str, ...]
    tensor: RingTensor
    link: Link
    network: str
    chunks: int
    ways: tuple[str, ...]
    """directions that may be used"""
    out: str | RingTensor
    shift: int
    root: int
    in_network: bool
    after: Sequence[Reference]

    @property
    def sizes(self) -> list[Axis]:
        return [Axis(axis_size(self.cls, axis), axis_wraps(self.cls, axis)) for axis in self.axes]

    @property
    def n(self) -> int:
        """Chips of the collective."""
        total = 1
        for axis in self.sizes:
            total *= axis.n
        return total

    def time(self, form: Callable[..., int], *amounts: int, **options: Any) -> int:
        """A closed form for the link."""
        return form(*amounts, self.link.bandwidth_bytes_per_s, self.link.latency_ps, **options)


@dataclass(frozen=True)
class Candidate:
    """An algorithm: its name, its time, what room it needs beside the arrays, and how it is lowered."""

    name: str
    time_ps: int
    make: Callable[[], Task] = field(repr=False, compare=False)
    room_bytes: int = 0


def candidates(r: Request) -> list[Candidate]:
    """All algorithms for the request, whether they fit or not."""
    if r.network == "ici":
        if r.kind in GATHERS:
            return _gathers_on_links(r)
        if r.kind == "AllToAll":
            return _all_to_all_on_links(r)
        return _permutes_on_links(r) if r.kind == "CollectivePermute" else _broadcasts_on_links(r)
    return _on_a_switch(r)


def _route(r: Request, way: str) -> str:
    """What a candidate along one axis is called."""
    if not r.sizes[0].wraps:
        return "line"
    return "ring both ways" if way == "both" else "ring one way"


def _directions(r: Request) -> tuple[str, ...]:
    """The directions that make a difference: a line has one way to go."""
    return r.ways if any(axis.wraps and axis.n > 1 for axis in r.sizes) else r.ways[:1]


def _gathers_on_links(r: Request) -> list[Candidate]:
    tensor, found = r.tensor, []
    legs = 2 if r.kind == "AllReduce" else 1
    make = {"AllGather": torus.all_gather, "ReduceScatter": torus.reduce_scatter, "AllReduce": torus.all_reduce}[r.kind]
    elements, size = tensor.shard_elements, tensor.element_bytes
    for way in _directions(r):
        for rotated in (True, False) if len(r.axes) > 1 else (False,):
            name = _route(r, way) if len(r.axes) == 1 else f"{'rotated' if rotated else 'in turn'} {way}"
            time = axes_ps(r.sizes, elements, size, r.link, both=way == "both", rotated=rotated, chunks=r.chunks)

            def lower(way: Any = way, rotated: bool = rotated) -> Task:
                return make(
                    r.cls, r.name, r.axes, tensor, direction=way, chunks=r.chunks, rotated=rotated, after=r.after
                )

            # Two blocks of the longest leg's wait in each direction to be added.
            block = r.n * tensor.shard_bytes // min((axis.n for axis in r.sizes if axis.n > 1), default=1)
            room = 0 if r.kind == "AllGather" or r.n == 1 else 2 * block * (2 if way == "both" else 1)
            found.append(Candidate(name, legs * time, lower, room))
        if r.kind == "AllReduce" and len(r.axes) == 1 and len(set(tensor.shards)) < 2:
            time = leg_ps(r.sizes[0], 1, r.n * elements, size, r.link, way == "both", r.chunks)

            def at_once(way: Any = way) -> Task:
                return one_shot.all_reduce(
                    r.cls, r.name, r.axes[0], tensor, direction=way, chunks=r.chunks, after=r.after
                )

            found.append(Candidate(f"one shot, {_route(r, way)}", time, at_once, r.n * r.n * tensor.shard_bytes))
    return found


def _all_to_all_on_links(r: Request) -> list[Candidate]:
    found, chunks = [], r.chunks if all(axis.wraps for axis in r.sizes) else 1
    for way in _directions(r):
        time = exchange_axes_ps(r.sizes, r.tensor.shard_elements, r.tensor.element_bytes, r.link, both=way == "both")

        def lower(way: Any = way) -> Task:
            return all_to_all.all_to_all(
                r.cls, r.name, r.axes, r.tensor, r.out, direction=way, chunks=chunks, after=r.after
            )

        name = _route(r, way) if len(r.axes) == 1 else f"rotated {way}"
        # What waits to go on, and what lies between two axes: no more than this many local arrays.
        found.append(Candidate(name, time, lower, (3 + len(r.axes)) * r.n * r.tensor.shard_bytes))
    return found


def _permutes_on_links(r: Request) -> list[Candidate]:
    (axis,), array, found, n = r.axes, r.tensor.shard_bytes, [], r.n
    for way in _directions(r):
        if not r.sizes[0].wraps:
            hops = abs(r.shift) if abs(r.shift) < n else 0
        else:
            hops = min(r.shift % n, -r.shift % n)
        if way == "both" and r.sizes[0].wraps:
            time = r.time(forms.permute_both_ways_ps, n, r.shift, array, element_bytes=r.tensor.element_bytes)
        else:
            time = r.time(forms.permute_ps, hops, array, chunks=r.chunks)

        def lower(way: Any = way) -> Task:
            return permute.collective_permute(
                r.cls, r.name, axis, r.tensor, r.out, shift=r.shift, direction=way, chunks=r.chunks, after=r.after
            )

        found.append(Candidate(_route(r, way), time, lower, 2 * array))
    return found


def _broadcasts_on_links(r: Request) -> list[Candidate]:
    (axis,), array, n = r.axes, r.tensor.shard_bytes, r.n
    make = broadcast.broadcast if r.kind == "Broadcast" else broadcast.reduce
    half = -(-r.tensor.shard_elements // 2) * r.tensor.element_bytes
    if not r.sizes[0].wraps:
        routes = [("line", "one_way", "arms", max(r.root, n - 1 - r.root), array)]
    else:
        routes = [
            ("ring in halves", "both", "halves", n - 1, half),
            ("ring in arms", "both", "arms", n // 2, array),
            ("ring one way", "one_way", "halves", n - 1, array),
        ]
        routes = [route for route in routes if route[1] in r.ways]
    found = []
    for name, way, spread, hops, moved in routes:
        time = r.time(forms.broadcast_ps, hops, moved, chunks=r.chunks)

        def lower(way: Any = way, spread: Any = spread) -> Task:
            return make(
                r.cls,
                r.name,
                axis,
                r.tensor,
                root=r.root,
                direction=way,
                spread=spread,
                chunks=r.chunks,
                after=r.after,
            )

        found.append(Candidate(name, time, lower, array if r.kind == "Reduce" else 0))
    return found


def _on_a_switch(r: Request) -> list[Candidate]:
    (axis,), n, shard = r.axes, r.n, r.tensor.shard_bytes
    options: dict[str, Any] = {"network": r.network, "after": r.after}
    if r.kind == "AllToAll":

        def exchange() -> Task:
            return switch.all_to_all(r.cls, r.name, axis, r.tensor, r.out, **options)

        return [Candidate("direct", r.time(through_switch.direct_ps, n, shard), exchange)]
    if r.kind == "CollectivePermute":

        def straight() -> Task:
            return switch.permute(r.cls, r.name, axis, r.tensor, r.out, shift=r.shift, **options)

        return [Candidate("direct", r.time(forms.permute_ps, 1 if r.shift % n else 0, shard), straight)]
    if r.kind in ("Broadcast", "Reduce"):
        tree = switch.broadcast if r.kind == "Broadcast" else switch.reduce
        form = through_switch.tree_broadcast_ps if r.kind == "Broadcast" else through_switch.tree_reduce_ps

        def along_tree() -> Task:
            return tree(r.cls, r.name, axis, r.tensor, root=r.root, **options)

        return [Candidate("tree", r.time(form, n, shard), along_tree, shard if r.kind == "Reduce" else 0)]
    legs = 2 if r.kind == "AllReduce" else 1
    adds = r.kind != "AllGather"
    times = {
        "direct": (legs * r.time(through_switch.direct_ps, n, shard), adds * (n - 1) * shard),
        "ring": (
            legs * leg_ps(Axis(n, True), 1, r.tensor.shard_elements, r.tensor.element_bytes, r.link, False, r.chunks),
            adds * 2 * shard,
        ),
    }
    if n & (n - 1) == 0:
        stages = r.time(through_switch.halving_doubling_ps, n, shard)
        times["halving_doubling"] = legs * stages, adds * n // 2 * shard
    if r.kind == "AllReduce":
        times["two_shot"] = times["direct"]
        times["direct"] = r.time(through_switch.direct_ps, n, n * shard), (n - 1) * n * shard
        tree_ps = r.time(through_switch.tree_reduce_ps, n, n * shard)
        times["tree"] = tree_ps + r.time(through_switch.tree_broadcast_ps, n, n * shard), n * shard
        if r.in_network:
            times["in_network"] = r.time(through_switch.in_network_ps, n, n * shard), 0
    make = {"AllGather": switch.all_gather, "ReduceScatter": switch.reduce_scatter, "AllReduce": switch.all_reduce}

    def lowered(algorithm: str) -> Callable[[], Task]:
        chunks = r.chunks if algorithm == "ring" else 1
        return lambda: make[r.kind](r.cls, r.name, axis, r.tensor, algorithm=algorithm, chunks=chunks, **options)

    return [Candidate(name, time, lowered(name), room) for name, (time, room) in times.items()]
