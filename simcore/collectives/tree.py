"""Broadcast, Reduce and AllReduce along a binomial tree on a switch: whole arrays, in log2 n rounds.

In round r of a Broadcast the chips that have the array, 2^r of them counted from the root, each send it to the one 2^r
further. A Reduce is the same backwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from simcore.collectives.moving import Mover, Wire, pairwise_sum
from simcore.collectives.tensor import RingTensor
from simcore.collectives.ways import ring_size
from simcore.errors import GraphError
from simcore.graph import EntityClass, Ref, Task, TensorAccess
from simcore.graph.graph import Reference
from simcore.graph.reference import Indices


def broadcast(
    cls: EntityClass,
    name: str,
    axis: str,
    tensor: RingTensor,
    wire: Wire,
    *,
    elements: int,
    root: int = 0,
    after: Sequence[Reference] = (),
) -> Task:
    """Copy the first ``elements`` of the array from the chip at ``root`` to all: log2 n (V/b + l) for n a power of two,
    see `closed_forms.tree_broadcast_ps`.
    """
    n, begin, mover, whole = _begin(cls, name, axis, tensor, wire, elements, root, after)
    ends: list[Ref] = []
    has: list[Ref] = []
    for round_ in range((n - 1).bit_length()):
        distance = 1 << round_
        to = {axis: distance}

        def sends(_: Indices, c: Indices, distance: int = distance) -> Any:
            place = (np.asarray(c[axis]) - root) % n
            return (place < distance) & (place + distance < n)

        sent = mover.send(
            f"{name}.send{round_}",
            wire,
            to,
            bytes=elements * tensor.element_bytes,
            after=[begin, Ref(begin.name, on=to), *has],
            reads=[tensor.access(whole)],
            writes=[tensor.access(whole, on=to)],
            function=lambda array: array,
            when=sends,
        )
        has += sent.arrived(outside="ignore")
        ends += [*sent.arrived(outside="ignore"), *sent.left(outside="ignore")]
    return cls.task(f"{name}.end", after=[begin, *ends], kind="sync")


def reduce(
    cls: EntityClass,
    name: str,
    axis: str,
    tensor: RingTensor,
    wire: Wire,
    *,
    elements: int,
    root: int = 0,
    after: Sequence[Reference] = (),
) -> Task:
    """Sum the first ``elements`` of all arrays into the root's: ceil(log2 n) (V/b + l).

    A chip takes in one array at a time, and the next when that is added; so no port is asked for twice at once.
    """
    n, begin, mover, whole = _begin(cls, name, axis, tensor, wire, elements, root, after)
    inbox = cls.tensor(
        f"{name}.inbox",
        memory=tensor.memory,
        bytes=elements * tensor.element_bytes if n > 1 else 0,
        shape=(*tensor.lead, elements),
    )
    rounds = (n - 1).bit_length()
    ends: list[Ref] = []
    for round_ in reversed(range(rounds)):
        distance = 1 << round_
        to = {axis: -distance}

        def sends(_: Indices, c: Indices, distance: int = distance) -> Any:
            place = (np.asarray(c[axis]) - root) % n
            return (place >= distance) & (place < 2 * distance)

        def adds(_: Indices, c: Indices, distance: int = distance) -> Any:
            place = (np.asarray(c[axis]) - root) % n
            return (place < distance) & (place + distance < n)

        earlier = mover.added(f"{name}.add{round_ + 1}") if round_ + 1 < rounds else None
        before = [*earlier.refs(outside="ignore"), *earlier.refs(on=to, outside="ignore")] if earlier else []
        sent = mover.send(
            f"{name}.send{round_}",
            wire,
            to,
            bytes=elements * tensor.element_bytes,
            after=[begin, Ref(begin.name, on=to), *before],
            reads=[tensor.access(whole)],
            writes=[TensorAccess(inbox, whole, on=to)],
            function=lambda array: array,
            when=sends,
        )
        added = mover.add(
            f"{name}.add{round_}",
            elements=elements,
            after=[begin, *sent.arrived()],
            reads=[tensor.access(whole), TensorAccess(inbox, whole)],
            writes=[tensor.access(whole)],
            function=pairwise_sum,
            when=adds,
        )
        ends += [*sent.left(outside="ignore"), *added.refs(outside="ignore")]
    return cls.task(f"{name}.end", after=[begin, *ends], kind="sync")


def all_reduce(
    cls: EntityClass,
    name: str,
    axis: str,
    tensor: RingTensor,
    wire: Wire,
    *,
    after: Sequence[Reference] = (),
) -> Task:
    """AllReduce of the whole array of n shards: a Reduce to chip 0 and a Broadcast from it, 2 log2 n (V/b + l)."""
    elements = ring_size(cls, axis) * tensor.shard_elements
    reduced = reduce(cls, f"{name}.reduce", axis, tensor, wire, elements=elements, after=after)
    return broadcast(cls, f"{name}.broadcast", axis, tensor, wire, elements=elements, after=[reduced])


def _begin(
    cls: EntityClass,
    name: str,
    axis: str,
    tensor: RingTensor,
    wire: Wire,
    elements: int,
    root: int,
    after: Sequence[Reference],
) -> tuple[int, Task, Mover, Any]:
    tensor.require_even("a tree")
    n = ring_size(cls, axis)
    if not 0 <= root < n:
        raise GraphError(f"root {root} on axis {axis!r} of {n} chips; 0 to {n - 1} is meant")
    cls.unit(wire.out, kind=wire.kind)

    def whole(i: Indices, c: Indices) -> tuple[slice, ...]:
        return tensor.block(0, 0, elements)

    return n, cls.task(f"{name}.begin", after=after, kind="sync"), Mover(cls, tensor), whole
