"""Recursive halving and doubling on a switch: as few bytes as a ring with only log2 n latencies.

In each stage a chip exchanges blocks with the one whose number differs in one bit. A ReduceScatter halves what it still
sums, the furthest partner first; an AllGather doubles what it has. The number of chips is a power of two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from simcore.collectives.moving import Done, Mover, Sent, Wire, pairwise_sum
from simcore.collectives.tensor import RingTensor
from simcore.collectives.ways import ring_size
from simcore.errors import GraphError
from simcore.graph import EntityClass, Ref, Task, TensorAccess
from simcore.graph.graph import Guard, Reference
from simcore.graph.reference import Indices


def all_gather(
    cls: EntityClass, name: str, axis: str, tensor: RingTensor, wire: Wire, after: Sequence[Reference] = ()
) -> Task:
    """AllGather by recursive doubling: blocks of 1, 2, 4, ... shards, (n - 1) V/(n b) + log2 n l."""
    n, size = _power_of_two(cls, axis, tensor), tensor.shard_elements
    cls.unit(wire.out, kind=wire.kind)
    begin, mover = cls.task(f"{name}.begin", after=after, kind="sync"), Mover(cls, tensor)
    sent: list[Sent] = []
    for distance in _distances(n)[::-1]:

        def mine(i: Indices, c: Indices, distance: int = distance) -> tuple[slice, ...]:
            return tensor.block(c[axis] // distance * distance, 0, distance * size)

        # What has come in so far goes out with the chip's own.
        so_far = [ref for one in sent for ref in one.arrived(outside="ignore")]
        sent += [
            mover.send(
                f"{name}.send{distance}{'+' if sign > 0 else '-'}",
                wire,
                {axis: sign * distance},
                bytes=distance * tensor.shard_bytes,
                after=[begin, Ref(begin.name, on={axis: sign * distance}), *so_far],
                reads=[tensor.access(mine)],
                writes=[tensor.access(mine, on={axis: sign * distance})],
                function=lambda block: block,
                when=_lower(axis, distance, sign),
            )
            for sign in (+1, -1)
        ]
    return cls.task(f"{name}.end", after=[begin, *_both_ends(sent)], kind="sync")


def reduce_scatter(
    cls: EntityClass, name: str, axis: str, tensor: RingTensor, wire: Wire, after: Sequence[Reference] = ()
) -> Task:
    """ReduceScatter by recursive halving: blocks of n/2, n/4, ... 1 shards, (n - 1) V/(n b) + log2 n l."""
    n, size = _power_of_two(cls, axis, tensor), tensor.shard_elements
    cls.unit(wire.out, kind=wire.kind)
    begin, mover = cls.task(f"{name}.begin", after=after, kind="sync"), Mover(cls, tensor)
    inbox = cls.tensor(
        f"{name}.inbox",
        memory=tensor.memory,
        bytes=n // 2 * tensor.shard_bytes,
        shape=(*tensor.lead, n // 2 * size),
    )
    sent: list[Sent] = []
    added: Done | None = None
    for distance in _distances(n):

        def theirs(i: Indices, c: Indices, distance: int = distance) -> tuple[slice, ...]:
            return tensor.block((c[axis] ^ distance) // distance * distance, 0, distance * size)

        def mine(i: Indices, c: Indices, distance: int = distance) -> tuple[slice, ...]:
            return tensor.block(c[axis] // distance * distance, 0, distance * size)

        def arrived(i: Indices, c: Indices, distance: int = distance) -> tuple[slice, ...]:
            return tensor.block(0, 0, distance * size)

        stage = []
        for sign in (+1, -1):
            to = {axis: sign * distance}
            # Both have added what they got before: this chip to send it on, the partner to have room in its inbox.
            before = [*added.refs(), *added.refs(on=to)] if added else []
            stage.append(
                mover.send(
                    f"{name}.send{distance}{'+' if sign > 0 else '-'}",
                    wire,
                    to,
                    bytes=distance * tensor.shard_bytes,
                    after=[begin, Ref(begin.name, on=to), *before],
                    reads=[tensor.access(theirs)],
                    writes=[TensorAccess(inbox, arrived, on=to)],
                    function=lambda block: block,
                    when=_lower(axis, distance, sign),
                )
            )
        added = mover.add(
            f"{name}.add{distance}",
            elements=distance * size,
            after=[begin, *(ref for one in stage for ref in one.arrived(outside="ignore"))],
            reads=[tensor.access(mine), TensorAccess(inbox, arrived)],
            writes=[tensor.access(mine)],
            function=pairwise_sum,
        )
        sent += stage
    last = added.refs() if added else []
    return cls.task(f"{name}.end", after=[begin, *_both_ends(sent), *last], kind="sync")


def _power_of_two(cls: EntityClass, axis: str, tensor: RingTensor) -> int:
    tensor.require_even("a collective on a switch")
    n = ring_size(cls, axis)
    if n & (n - 1):
        raise GraphError(
            f"recursive halving and doubling over {n} chips of axis {axis!r}: a power of two is meant; a ring, a tree "
            "or the direct algorithm takes any number"
        )
    return n


def _distances(n: int) -> list[int]:
    """n/2, n/4, ... 1."""
    return [n >> stage for stage in range(1, n.bit_length())]


def _lower(axis: str, distance: int, sign: int) -> Guard:
    """Whether the partner at ``distance`` is ``sign`` of the way up: up for the lower of the two."""

    def guard(_: Indices, c: Indices) -> Any:
        return (np.asarray(c[axis]) & distance == 0) == (sign > 0)

    return guard


def _both_ends(sent: Sequence[Sent]) -> list[Ref]:
    return [ref for one in sent for ref in (*one.arrived(outside="ignore"), *one.left(outside="ignore"))]
