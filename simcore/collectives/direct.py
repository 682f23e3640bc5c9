"""One-shot collectives on a switch: every chip sends straight to every other, and pays the latency once.

In its k-th send a chip goes to the one k places on, so that no two send to the same one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from simcore.collectives.exchange import Exchange, output_of
from simcore.collectives.moving import Mover, Sent, Wire
from simcore.collectives.tensor import RingTensor
from simcore.collectives.ways import ring_size
from simcore.graph import EntityClass, Ref, Task
from simcore.graph.graph import Reference
from simcore.graph.reference import Indices


def all_gather(
    cls: EntityClass, name: str, axis: str, tensor: RingTensor, wire: Wire, after: Sequence[Reference] = ()
) -> Task:
    """AllGather: each chip sends its shard to all others, (n - 1) V/(n b) + l."""
    n, size = _size(cls, axis, tensor), tensor.shard_elements
    begin = cls.task(f"{name}.begin", after=after, kind="sync")

    def own(i: Indices, c: Indices) -> tuple[slice, ...]:
        return tensor.block(c[axis], 0, size)

    sends = _to_all(Mover(cls, tensor), name, axis, n, wire, begin, tensor.shard_bytes, lambda k: (own, tensor, own))
    return cls.task(f"{name}.end", after=[begin, *_both_ends(sends)], kind="sync")


def reduce_scatter(
    cls: EntityClass, name: str, axis: str, tensor: RingTensor, wire: Wire, after: Sequence[Reference] = ()
) -> Task:
    """ReduceScatter: each chip sends every other its shard of the partial sum, (n - 1) V/(n b) + l; all that came in is
    added at once.
    """
    n, size = _size(cls, axis, tensor), tensor.shard_elements
    begin, mover = cls.task(f"{name}.begin", after=after, kind="sync"), Mover(cls, tensor)
    inbox = _inbox(mover, name, n - 1, size)

    def own(i: Indices, c: Indices) -> tuple[slice, ...]:
        return tensor.block(c[axis], 0, size)

    def theirs(k: int) -> tuple[Any, RingTensor, Any]:
        return (
            lambda i, c: tensor.block((c[axis] + k) % n, 0, size),
            inbox,
            lambda i, c: tensor.block(k - 1, 0, size),
        )

    sends = _to_all(mover, name, axis, n, wire, begin, tensor.shard_bytes, theirs)
    added = _add_all(mover, name, n, size, own, inbox, sends, begin)
    return cls.task(f"{name}.end", after=[begin, *_both_ends(sends), *added], kind="sync")


def all_reduce(
    cls: EntityClass, name: str, axis: str, tensor: RingTensor, wire: Wire, after: Sequence[Reference] = ()
) -> Task:
    """AllReduce in one shot: each chip sends its whole partial sum to all others, (n - 1) V/b + l.

    More bytes than any other way, and the fewest latencies: for small arrays.
    """
    n = _size(cls, axis, tensor)
    size = n * tensor.shard_elements
    begin, mover = cls.task(f"{name}.begin", after=after, kind="sync"), Mover(cls, tensor)
    inbox = _inbox(mover, name, n - 1, size)

    def whole(i: Indices, c: Indices) -> tuple[slice, ...]:
        return tensor.block(0, 0, size)

    def copied(k: int) -> tuple[Any, RingTensor, Any]:
        return whole, inbox, lambda i, c: tensor.block((k - 1) * n, 0, size)

    sends = _to_all(mover, name, axis, n, wire, begin, n * tensor.shard_bytes, copied)
    added = _add_all(mover, name, n, size, whole, inbox, sends, begin)
    return cls.task(f"{name}.end", after=[begin, *added], kind="sync")


def all_to_all(
    cls: EntityClass,
    name: str,
    axis: str,
    tensor: RingTensor,
    out: str | RingTensor,
    wire: Wire,
    after: Sequence[Reference] = (),
) -> Task:
    """AllToAll of blocks of V/n^2 bytes from ``tensor`` into ``out``: (n - 1) V/(n^2 b) + l."""
    n, size = _size(cls, axis, tensor), tensor.shard_elements
    target = output_of(cls, tensor, out)
    begin, mover = cls.task(f"{name}.begin", after=after, kind="sync"), Mover(cls, tensor)
    kept = Exchange(tensor, target, axis, n, last=size).keep_own(mover, name, [begin.ref()])

    def block(k: int) -> tuple[Any, RingTensor, Any]:
        return (
            lambda i, c: tensor.block((c[axis] + k) % n, 0, size),
            target,
            lambda i, c: target.block(c[axis], 0, size),
        )

    sends = _to_all(mover, name, axis, n, wire, begin, tensor.shard_bytes, block)
    return cls.task(f"{name}.end", after=[begin, *kept, *_both_ends(sends)], kind="sync")


def permute(
    cls: EntityClass,
    name: str,
    axis: str,
    tensor: RingTensor,
    out: str | RingTensor,
    wire: Wire,
    shift: int = 1,
    after: Sequence[Reference] = (),
) -> Task:
    """CollectivePermute: each chip sends its array of ``shard_bytes`` to the one ``shift`` places on, V/b + l."""
    n, size = _size(cls, axis, tensor), tensor.shard_elements
    target = output_of(cls, tensor, out)
    begin, mover = cls.task(f"{name}.begin", after=after, kind="sync"), Mover(cls, tensor)

    def whole(i: Indices, c: Indices) -> tuple[slice, ...]:
        return tensor.block(0, 0, size)

    if shift % n == 0:
        kept = mover.add(
            f"{name}.keep",
            elements=size,
            operands=1,
            after=[begin],
            reads=[tensor.access(whole)],
            writes=[target.access(whole)],
            function=lambda own: own,
        )
        return cls.task(f"{name}.end", after=[begin, *kept.refs()], kind="sync")
    to = {axis: shift % n}
    mover.cls.unit(wire.out, kind=wire.kind)
    sent = mover.send(
        f"{name}.send",
        wire,
        to,
        bytes=tensor.shard_bytes,
        after=[begin, Ref(begin.name, on=to)],
        reads=[tensor.access(whole)],
        writes=[target.access(whole, on=to)],
        function=lambda array: array,
    )
    return cls.task(f"{name}.end", after=[begin, *_both_ends([sent])], kind="sync")


def _size(cls: EntityClass, axis: str, tensor: RingTensor) -> int:
    tensor.require_even("a collective on a switch")
    return ring_size(cls, axis)


def _inbox(mover: Mover, name: str, blocks: int, size: int) -> RingTensor:
    tensor = mover.tensor
    mover.cls.tensor(
        f"{name}.inbox",
        memory=tensor.memory,
        bytes=blocks * size * tensor.element_bytes,
        shape=(*tensor.lead, blocks * size),
    )
    return replace(tensor, name=f"{name}.inbox", view=())


def _to_all(
    mover: Mover,
    name: str,
    axis: str,
    n: int,
    wire: Wire,
    begin: Task,
    bytes: int,
    what: Callable[[int], tuple[Any, RingTensor, Any]],
) -> list[Sent]:
    """The sends to the chip k places on, k = 1 .. n - 1; ``what(k)`` is (region read, array written, region there)."""
    mover.cls.unit(wire.out, kind=wire.kind)
    sends = []
    for k in range(1, n):
        read, there, written = what(k)
        sends.append(
            mover.send(
                f"{name}.send{k}",
                wire,
                {axis: k},
                bytes=bytes,
                after=[begin, Ref(begin.name, on={axis: k})],
                reads=[mover.tensor.access(read)],
                writes=[there.access(written, on={axis: k})],
                function=lambda block: block,
            )
        )
    return sends


def _add_all(
    mover: Mover, name: str, n: int, size: int, own: Any, inbox: RingTensor, sends: Sequence[Sent], begin: Task
) -> list[Ref]:
    """The sum of a chip's own block and all that came in, once it has also sent its own."""
    if n == 1:
        return []
    tensor = mover.tensor

    def came(k: int) -> Any:
        def region(i: Indices, c: Indices) -> tuple[slice, ...]:
            lead = tuple(slice(0, rows) for rows in tensor.lead)
            return (*lead, slice((k - 1) * size, k * size))

        return region

    return mover.add(
        f"{name}.add",
        elements=size,
        operands=n,
        after=[begin, *_both_ends(sends)],
        reads=[tensor.access(own), *(inbox.access(came(k)) for k in range(1, n))],
        writes=[tensor.access(own)],
        function=lambda *parts: sum(parts[1:], start=parts[0]),
    ).refs()


def _both_ends(sends: Sequence[Sent]) -> list[Ref]:
    return [ref for sent in sends for ref in (*sent.arrived(), *sent.left())]
