"""AllGather, ReduceScatter and AllReduce on a ring, one way or both, as chunk transfers of each link direction.

Written once for all chips of a class, with neighbours named relatively. In each step a chip sends one shard to its
neighbour; the next step forwards what came in the one before, so a step starts when the whole shard (or, with
``chunks`` > 1, the chunk) has arrived. Going both ways, an even ring's antipodal shard is halved between the
directions.

Source of the schedules and times: How To Scale Your Model, "Sharded Matrices and How to Multiply Them".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from simcore.errors import GraphError
from simcore.graph import ALL, EntityClass, Ref, Task, TensorAccess, Transfer, Vector
from simcore.graph.access import RegionFunction
from simcore.graph.graph import Reference
from simcore.graph.reference import Indices

Direction = Literal["one_way", "both"]


@dataclass(frozen=True, slots=True)
class RingTensor:
    """The array that a ring works on: ``name`` on every chip, of ``n`` shards of ``shard_bytes`` each.

    The shards lie along its last dimension. ``element_bytes`` are those of one index of that dimension, along which
    shards are halved or cut into chunks; ``lead`` are the sizes of the dimensions before it.
    """

    name: str
    shard_bytes: int
    element_bytes: int = 1
    lead: tuple[int, ...] = ()

    @property
    def shard_elements(self) -> int:
        return self.shard_bytes // self.element_bytes


@dataclass(frozen=True, slots=True)
class _Way:
    """One direction of the ring: a sign, its number of steps, and which part of a shard its antipodal step carries."""

    sign: int
    steps: int
    halved: bool  # the antipodal shard is shared with the other direction

    @property
    def suffix(self) -> str:
        return "+" if self.sign > 0 else "-"


def ring_ways(n: int, direction: Direction) -> list[_Way]:
    """The directions used by a ring of ``n``: one of n - 1 steps, or two of about half as many."""
    if n < 1:
        raise GraphError(f"a ring of {n} chips; 1 or more is meant")
    if direction == "one_way":
        return [_Way(+1, n - 1, False)]
    if direction != "both":
        raise GraphError(f"direction {direction!r}; one_way or both is meant")
    even = n % 2 == 0
    return [_Way(+1, n // 2, even), _Way(-1, n // 2, even)]


def _axis_size(cls: EntityClass, axis: str) -> int:
    if axis not in cls.axes:
        raise GraphError(f"class {cls.name!r} has no mesh axis {axis!r}; it has {', '.join(cls.axes) or 'none'}")
    position = cls.axes.index(axis)
    if not cls.wraps[position] and cls.sizes[position] > 1:
        raise GraphError(f"axis {axis!r} of class {cls.name!r} does not wrap around: it is a line, not a ring")
    return cls.sizes[position]


def all_gather(
    cls: EntityClass,
    name: str,
    axis: str,
    tensor: RingTensor,
    *,
    direction: Direction = "one_way",
    chunks: int = 1,
    after: Sequence[Reference] = (),
) -> Task:
    """AllGather along ``axis``: chip c starts with shard c of ``tensor`` in place and ends with all n shards.

    Time, with t = shard / link bandwidth and hop latency l: one way (n - 1)(t + l); both ways
    (n - 1)/2 t + ceil((n - 1)/2) l; see `simcore.collectives.closed_forms`.

    Returns the zero-work task that completes when all shards have arrived and this chip has sent all of its own.
    """
    n = _axis_size(cls, axis)
    begin = cls.task(f"{name}.begin", after=after, kind="sync")
    ways = ring_ways(n, direction)
    step, chunk = f"{name}.step", f"{name}.chunk"
    ends: list[Ref] = []
    with cls.loop(step, ways[0].steps), cls.loop(chunk, chunks):
        for way in ways:
            pieces = _Pieces(step, chunk, way, tensor, chunks, halved_step=way.steps - 1)

            def shard(i: Indices, c: Indices, way: _Way = way) -> Any:
                return (c[axis] - way.sign * i[step]) % n

            region = pieces.of(shard)
            send = cls.task(
                f"{name}.send{way.suffix}",
                unit=cls.unit(f"ici_{axis}{way.suffix}", kind="ici"),
                work=Transfer(pieces.bytes),
                moves=tensor.name,
                after=[
                    begin,
                    Ref(begin.name, on={axis: way.sign}),
                    Ref(f"{name}.send{way.suffix}", at={step: -1}, on={axis: -way.sign}, outside="ignore"),
                ],
                reads=[TensorAccess(tensor.name, region)],
                writes=[TensorAccess(tensor.name, region, on={axis: way.sign})],
                function=_identity,
            )
            ends += _both_ends(send, axis, way)
    return cls.task(f"{name}.end", after=[begin, *ends], kind="sync")


def reduce_scatter(
    cls: EntityClass,
    name: str,
    axis: str,
    tensor: RingTensor,
    *,
    direction: Direction = "one_way",
    chunks: int = 1,
    after: Sequence[Reference] = (),
) -> Task:
    """ReduceScatter along ``axis``: every chip starts with a partial sum of the whole ``tensor``; chip c ends with the
    complete shard c (the rest of its array holds what it passed on).

    Each arriving chunk is added on the VPU, which the ideal model leaves out; then the time is that of `all_gather`.
    Returns the zero-work task that completes when shard c is complete and this chip has sent all of its own.
    """
    n = _axis_size(cls, axis)
    begin = cls.task(f"{name}.begin", after=after, kind="sync")
    cls.unit("vpu")
    ways = ring_ways(n, direction)
    steps = ways[0].steps
    step, chunk = f"{name}.step", f"{name}.chunk"
    ends: list[Ref] = []

    def last_step_only(i: Indices, _: Indices) -> Any:
        return np.where(np.asarray(i[step]) == steps - 1, i[step], -1)

    with cls.loop(step, steps), cls.loop(chunk, chunks):
        for way in ways:
            inbox = cls.tensor(
                f"{name}.inbox{way.suffix}",
                memory="vmem",
                bytes=tensor.shard_bytes * min(steps, 2),  # one shard is added while the next comes in
                shape=(*tensor.lead, steps * tensor.shard_elements),
            )
            pieces = _Pieces(step, chunk, way, tensor, chunks, halved_step=0)

            def shard(i: Indices, c: Indices, way: _Way = way) -> Any:
                return (c[axis] + way.sign * (way.steps - i[step])) % n

            into = pieces.of(lambda i, _: i[step])
            send = cls.task(
                f"{name}.send{way.suffix}",
                unit=cls.unit(f"ici_{axis}{way.suffix}", kind="ici"),
                work=Transfer(pieces.bytes),
                moves=tensor.name,
                after=[
                    begin,
                    Ref(begin.name, on={axis: way.sign}),
                    Ref(f"{name}.add{way.suffix}", at={step: -1}, outside="ignore"),
                ],
                reads=[TensorAccess(tensor.name, pieces.of(shard))],
                writes=[TensorAccess(inbox, into, on={axis: way.sign})],
                function=_identity,
            )
            ends += _both_ends(send, axis, way)
        for way in ways:
            pieces = _Pieces(step, chunk, way, tensor, chunks, halved_step=0)
            # Both directions end at the same shard: the one is added after the other.
            other = [Ref(f"{name}.add+", at={step: last_step_only}, outside="ignore")] if way.sign < 0 else []

            def arrived(i: Indices, c: Indices, way: _Way = way) -> Any:
                return (c[axis] - way.sign + way.sign * (way.steps - i[step])) % n

            mine = pieces.of(arrived)
            add = cls.task(
                f"{name}.add{way.suffix}",
                unit="vpu",
                work=Vector(operations=pieces.elements * math.prod(tensor.lead), bytes=3 * pieces.bytes),
                after=[Ref(f"{name}.send{way.suffix}", on={axis: -way.sign}), *other],
                reads=[
                    TensorAccess(tensor.name, mine),
                    TensorAccess(f"{name}.inbox{way.suffix}", pieces.of(lambda i, _: i[step])),
                ],
                writes=[TensorAccess(tensor.name, mine)],
                function=_sum,
                overhead=True,
            )
            ends.append(add.ref())
    return cls.task(f"{name}.end", after=[begin, *ends], kind="sync")


def all_reduce(
    cls: EntityClass,
    name: str,
    axis: str,
    tensor: RingTensor,
    *,
    direction: Direction = "one_way",
    chunks: int = 1,
    after: Sequence[Reference] = (),
) -> Task:
    """AllReduce along ``axis``: a ReduceScatter and then an AllGather of the shards."""
    scattered = reduce_scatter(cls, f"{name}.rs", axis, tensor, direction=direction, chunks=chunks, after=after)
    return all_gather(cls, f"{name}.ag", axis, tensor, direction=direction, chunks=chunks, after=[scattered])


def _identity(sent: Any) -> Any:
    return sent


def _sum(own: Any, arrived: Any) -> Any:
    return own + arrived


def _both_ends(send: Task, axis: str, way: _Way) -> list[Ref]:
    """All of a direction's transfers that this chip receives, and all that it sends."""
    at = {loop.name: ALL for loop in send.loops[-2:]}
    return [Ref(send.name, at=at, on={axis: -way.sign}), Ref(send.name, at=at, cls=send.cls)]


class _Pieces:
    """Which elements of a shard each (step, chunk) of one direction carries; one step's shard may be halved."""

    def __init__(
        self,
        step: str,
        chunk: str,
        way: _Way,
        tensor: RingTensor,
        chunks: int,
        halved_step: int,
    ) -> None:
        self.step, self.chunk, self.shard_elements = step, chunk, tensor.shard_elements
        self.lead = tuple(slice(0, size) for size in tensor.lead)
        first = np.zeros(way.steps, dtype=np.int64)
        last = np.full(way.steps, tensor.shard_elements, dtype=np.int64)
        if way.halved and way.steps:
            half = -(-tensor.shard_elements // 2)
            first[halved_step], last[halved_step] = (0, half) if way.sign > 0 else (half, last[halved_step])
        cuts = np.arange(chunks + 1, dtype=np.int64)
        # A half is cut where the whole shard is, so that each chunk holds nothing that came with another.
        edges = np.clip(tensor.shard_elements * cuts // chunks, first[:, None], last[:, None])
        self.first, self.last = edges[:, :-1], edges[:, 1:]
        self.elements = self.last - self.first
        self.bytes = self.elements * tensor.element_bytes

    def of(self, shard: Callable[[Indices, Indices], Any]) -> RegionFunction:
        """The region of the piece within the shard whose number ``shard`` gives."""

        def region(i: Indices, c: Indices) -> tuple[slice, ...]:
            base = int(shard(i, c)) * self.shard_elements
            where = i[self.step], i[self.chunk]
            return (*self.lead, slice(base + int(self.first[where]), base + int(self.last[where])))

        return region
