"""Broadcast of one chip's array along an axis, and Reduce of all chips' arrays to one, in pipelined chunks.

The array goes along a chain of chips from the root; each sends a chunk on while the next comes in, so that with many
chunks it takes little longer than over one hop. A Reduce is the same backwards, each chip adding its own.

Round a ring: one way; both ways in halves, each all the way round (half the time for large arrays); or both ways in
arms, the whole array half-way round (half the latency). On a line the array goes from the root to both ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from simcore.collectives.legs import links
from simcore.collectives.moving import Mover, pairwise_sum
from simcore.collectives.tensor import RingTensor, check_chunks
from simcore.collectives.ways import Direction, Way, axis_size, axis_wraps
from simcore.errors import GraphError
from simcore.graph import ALL, EntityClass, Ref, Task, TensorAccess
from simcore.graph.access import RegionFunction
from simcore.graph.flat import IntArray
from simcore.graph.graph import Reference
from simcore.graph.reference import Indices

Spread = Literal["halves", "arms"]


@dataclass(frozen=True)
class _Chain:
    """Chips reached from the root in one direction, ``way.steps`` hops, and the elements that go there."""

    way: Way
    root: int
    first: int
    last: int

    def distance(self, c: Indices) -> Any:
        """Hops from the root."""
        hops = self.way.sign * (np.asarray(c[self.way.axis]) - self.root)
        return hops % self.way.n if self.way.wraps else hops


def broadcast(
    cls: EntityClass,
    name: str,
    axis: str,
    tensor: RingTensor,
    *,
    root: int = 0,
    direction: Direction = "one_way",
    spread: Spread = "halves",
    chunks: int = 1,
    after: Sequence[Reference] = (),
) -> Task:
    """Copy ``tensor``, ``shard_bytes`` on every chip, from the chip at ``root`` to all along ``axis``.

    Time over h hops in k chunks: (k - 1) V/(k b) + h (V/(k b) + l), see `closed_forms.broadcast_ps`. ``spread`` says
    what "both" means on a ring; a line ignores both, having one way to go. Returns the task that completes when this
    chip has the whole array and has passed it on.
    """
    begin, mover, chunk = _begin(cls, name, tensor, chunks, after)
    ends: list[Ref] = []
    with cls.loop(chunk, chunks):
        for chain in _chains(cls, axis, root, direction, spread, tensor):
            way, cuts = chain.way, _cuts(chain, chunks)

            def sends(i: Indices, c: Indices, chain: _Chain = chain) -> Any:
                distance = chain.distance(c)
                return (distance >= 0) & (distance < chain.way.steps) & chain.way.inside(c[chain.way.axis])

            send, piece = f"{name}.send{way.suffix}", _piece(tensor, cuts, chunk)
            sent = mover.send(
                send,
                links(way),
                way.on,
                bytes=(cuts[1:] - cuts[:-1]) * tensor.element_bytes,
                after=[begin, Ref(begin.name, on=way.on), *mover.sent(send, way.on).arrived(outside="ignore")],
                reads=[tensor.access(piece)],
                writes=[tensor.access(piece, on=way.on)],
                function=lambda array: array,
                when=sends,
            )
            ends += [*sent.arrived({chunk: ALL}, "ignore"), *sent.left({chunk: ALL}, "ignore")]
    return cls.task(f"{name}.end", after=[begin, *ends], kind="sync")


def reduce(
    cls: EntityClass,
    name: str,
    axis: str,
    tensor: RingTensor,
    *,
    root: int = 0,
    direction: Direction = "one_way",
    spread: Spread = "halves",
    chunks: int = 1,
    after: Sequence[Reference] = (),
) -> Task:
    """Sum ``tensor``, ``shard_bytes`` on every chip, into the array of the chip at ``root``; the other chips' arrays
    hold what they passed on. In the ideal model the time is that of `broadcast`.
    """
    begin, mover, chunk = _begin(cls, name, tensor, chunks, after)
    ends: list[Ref] = []
    with cls.loop(chunk, chunks):
        for chain in _chains(cls, axis, root, direction, spread, tensor):
            ends += _reduce_along(mover, name, chain, chunk, chunks, begin)
    return cls.task(f"{name}.end", after=[begin, *ends], kind="sync")


def _reduce_along(mover: Mover, name: str, chain: _Chain, chunk: str, chunks: int, begin: Task) -> list[Ref]:
    """The sums along one chain, towards its root. Returns what this chip sends, receives and adds."""
    cls, tensor, out = mover.cls, mover.tensor, chain.way
    to = out.back
    cuts = _cuts(chain, chunks)
    size = chain.last - chain.first
    inbox = cls.tensor(
        f"{name}.inbox{out.suffix}",
        memory=tensor.memory,
        bytes=size * tensor.element_bytes,  # a place for each chunk: however short, none waits for one to be added
        shape=(*tensor.lead, size),
    )
    place = _piece(tensor, cuts - chain.first, chunk)

    def sends(i: Indices, c: Indices) -> Any:
        distance = chain.distance(c)
        return (distance > 0) & (distance <= out.steps) & out.inside(c[out.axis])

    def adds(i: Indices, c: Indices) -> Any:
        distance = chain.distance(c)
        return (distance >= 0) & (distance < out.steps)

    add, piece = f"{name}.add{out.suffix}", _piece(tensor, cuts, chunk)
    added = mover.added(add)
    sent = mover.send(
        f"{name}.send{out.suffix}",
        links(Way(out.axis, out.n, -out.sign, out.steps, False, out.wraps)),
        to,
        bytes=(cuts[1:] - cuts[:-1]) * tensor.element_bytes,
        after=[
            begin,
            Ref(begin.name, on=to),
            *added.refs(outside="ignore"),
        ],
        reads=[tensor.access(piece)],
        writes=[TensorAccess(inbox, place, on=to)],
        function=lambda array: array,
        when=sends,
    )
    # Two arms meet at the root with the same elements: the one is added after the other.
    meets = out.sign < 0 and chain.first == 0 and f"{name}.add+" in cls.tasks
    first_arm = mover.added(f"{name}.add+").refs(outside="ignore") if meets else []
    mover.add(
        add,
        elements=cuts[1:] - cuts[:-1],
        after=[*sent.arrived(), *first_arm],
        reads=[tensor.access(piece), TensorAccess(inbox, place)],
        writes=[tensor.access(piece)],
        function=pairwise_sum,
        when=adds,
    )
    at = {chunk: ALL}
    return [*sent.arrived(at, "ignore"), *sent.left(at, "ignore"), *added.refs(at, outside="ignore")]


def _begin(
    cls: EntityClass, name: str, tensor: RingTensor, chunks: int, after: Sequence[Reference]
) -> tuple[Task, Mover, str]:
    tensor.require_even("Broadcast or Reduce")
    check_chunks(chunks)
    return cls.task(f"{name}.begin", after=after, kind="sync"), Mover(cls, tensor), f"{name}.chunk"


def _chains(
    cls: EntityClass, axis: str, root: int, direction: Direction, spread: Spread, tensor: RingTensor
) -> list[_Chain]:
    n, size = axis_size(cls, axis), tensor.shard_elements
    if not 0 <= root < n:
        raise GraphError(f"root {root} on axis {axis!r} of {n} chips; 0 to {n - 1} is meant")
    if direction not in ("one_way", "both"):
        raise GraphError(f"direction {direction!r}; one_way or both is meant")
    if spread not in ("halves", "arms"):
        raise GraphError(f"spread {spread!r}; halves or arms is meant")

    def chain(sign: int, hops: int, first: int, last: int, wraps: bool) -> _Chain:
        return _Chain(Way(axis, n, sign, hops, False, wraps), root, first, last)

    if not axis_wraps(cls, axis):
        chains = [chain(+1, n - 1 - root, 0, size, False), chain(-1, root, 0, size, False)]
    elif direction == "one_way":
        chains = [chain(+1, n - 1, 0, size, n > 1)]
    elif spread == "halves":
        half = -(-size // 2)
        chains = [chain(+1, n - 1, 0, half, n > 1), chain(-1, n - 1, half, size, n > 1)]
    else:
        chains = [chain(+1, n // 2, 0, size, n > 1), chain(-1, (n - 1) // 2, 0, size, n > 1)]
    return [chain for chain in chains if chain.way.steps]


def _cuts(chain: _Chain, chunks: int) -> IntArray:
    """Where the chain's elements are cut in chunks."""
    return chain.first + (chain.last - chain.first) * np.arange(chunks + 1, dtype=np.int64) // chunks


def _piece(tensor: RingTensor, cuts: IntArray, chunk: str) -> RegionFunction:
    lead = tuple(slice(0, rows) for rows in tensor.lead)

    def region(i: Indices, _: Indices) -> tuple[slice, ...]:
        return (*lead, slice(int(cuts[i[chunk]]), int(cuts[i[chunk] + 1])))

    return region
