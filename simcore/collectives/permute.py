"""CollectivePermute: every chip sends its array to the chip a fixed number of places along an axis.

The array is passed on hop by hop, a whole chunk at a time; as every chip sends, each link carries the arrays of as many
chips as there are hops. On an axis that does not wrap around, what would fall off the end is not sent, and a chip that
nothing comes to gets zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from simcore.collectives.exchange import output_of
from simcore.collectives.legs import links
from simcore.collectives.moving import Mover
from simcore.collectives.tensor import RingTensor, check_chunks
from simcore.collectives.ways import Direction, Way, axis_size, axis_wraps
from simcore.errors import GraphError
from simcore.graph import ALL, EntityClass, Ref, Task, TensorAccess
from simcore.graph.access import WithIndices
from simcore.graph.graph import Reference
from simcore.graph.reference import Indices


def collective_permute(
    cls: EntityClass,
    name: str,
    axis: str,
    tensor: RingTensor,
    out: str | RingTensor,
    *,
    shift: int = 1,
    direction: Direction = "one_way",
    chunks: int = 1,
    after: Sequence[Reference] = (),
) -> Task:
    """Send ``tensor``, ``shard_bytes`` on every chip, ``shift`` places along ``axis`` into the tensor ``out``.

    On a ring "one_way" takes the shorter way round and "both" sends a part either way, so that all links carry as much.
    Time over k hops, t = array / link bandwidth: k (t + l); both ways k (n - k)/n t + max(k, n - k) l; see
    `closed_forms.permute_ps`. Returns the task that completes when this chip has received and passed on everything.
    """
    tensor.require_even("CollectivePermute")
    check_chunks(chunks)
    target = output_of(cls, tensor, out)
    begin = cls.task(f"{name}.begin", after=after, kind="sync")
    mover, n, size = Mover(cls, tensor), axis_size(cls, axis), tensor.shard_elements
    wraps = axis_wraps(cls, axis)
    ends: list[Ref] = []
    for way, first, last in _routes(axis, n, wraps, shift, direction, size):
        ends += _relay(mover, name, way, target, first, last, chunks, begin)
    if shift == 0 or (wraps and shift % n == 0):
        ends += _local(mover, f"{name}.keep", target, lambda array: array, begin)
    elif not wraps:

        def nothing_comes(i: Indices, c: Indices) -> Any:
            source = np.asarray(c[axis]) - shift
            return (source < 0) | (source >= n)

        ends += _local(mover, f"{name}.zeros", target, np.zeros_like, begin, nothing_comes)
    return cls.task(f"{name}.end", after=[begin, *ends], kind="sync")


def _routes(axis: str, n: int, wraps: bool, shift: int, direction: Direction, size: int) -> list[tuple[Way, int, int]]:
    """(direction and hops, first element, last element) of each part of the array."""
    if direction not in ("one_way", "both"):
        raise GraphError(f"direction {direction!r}; one_way or both is meant")
    if not wraps:
        sign = 1 if shift > 0 else -1
        return [(Way(axis, n, sign, abs(shift), False, False), 0, size)] if 0 < abs(shift) < n else []
    forward = shift % n
    if forward == 0:
        return []
    ahead, back = Way(axis, n, +1, forward, False, True), Way(axis, n, -1, n - forward, False, True)
    if direction == "both":
        cut = size * (n - forward) // n
        return [(way, first, last) for way, first, last in ((ahead, 0, cut), (back, cut, size)) if last > first]
    return [(ahead if ahead.steps <= back.steps else back, 0, size)]


def _relay(
    mover: Mover, name: str, way: Way, out: RingTensor, first: int, last: int, chunks: int, begin: Task
) -> list[Ref]:
    """One part of the array over ``way.steps`` hops. Returns all that this chip receives and sends."""
    cls, tensor = mover.cls, mover.tensor
    hop, chunk, hops, size = f"{name}.hop{way.suffix}", f"{name}.chunk{way.suffix}", way.steps, last - first
    cuts = first + size * np.arange(chunks + 1, dtype=np.int64) // chunks
    slots = 2 if hops > 1 else 0
    transit = cls.tensor(
        f"{name}.transit{way.suffix}",
        memory=tensor.memory,
        bytes=slots * size * tensor.element_bytes,
        shape=(*tensor.lead, slots * size),
    )
    lead = tuple(slice(0, rows) for rows in tensor.lead)

    def piece(base: int, i: Indices, there: bool) -> tuple[slice, ...]:
        begins, ends = (int(cuts[i[chunk]]), int(cuts[i[chunk] + 1])) if there else (0, 0)
        return (*lead, slice(base + begins, base + ends))

    def source(i: Indices, _: Indices) -> tuple[slice, ...]:
        return piece(0, i, i[hop] == 0)

    def waiting(i: Indices, _: Indices) -> tuple[slice, ...]:
        return piece(int(i[hop]) % 2 * size - first, i, i[hop] > 0)

    def goes_on(i: Indices, _: Indices) -> tuple[slice, ...]:
        return piece((int(i[hop]) + 1) % 2 * size - first, i, i[hop] < hops - 1)

    def delivered(i: Indices, _: Indices) -> tuple[slice, ...]:
        return piece(0, i, i[hop] == hops - 1)

    def split(i: Indices, _: Indices, *parts: Any) -> Any:
        whole = np.concatenate(parts, axis=-1)
        return (whole, whole[..., :0]) if i[hop] == hops - 1 else (whole[..., :0], whole)

    def exists(i: Indices, c: Indices) -> Any:
        here = np.asarray(c[way.axis])
        return way.inside(way.beyond(here, -np.asarray(i[hop])), here, way.beyond(here, hops - np.asarray(i[hop])))

    send = f"{name}.send{way.suffix}"
    before = mover.sent(send, way.on)
    with cls.loop(hop, hops), cls.loop(chunk, chunks):
        sent = mover.send(
            send,
            links(way),
            way.on,
            bytes=(cuts[1:] - cuts[:-1])[None, :] * tensor.element_bytes,
            after=[
                begin,
                Ref(begin.name, on=way.on),
                *before.arrived({hop: -1}, "ignore"),
                # The neighbour has sent on what lay in the slot that this piece goes to.
                *before.left({hop: -1}, "ignore", way.on),
            ],
            reads=[tensor.access(source), TensorAccess(transit, waiting)],
            writes=[out.access(delivered, on=way.on), TensorAccess(transit, goes_on, on=way.on)],
            function=WithIndices(split),
            when=None if way.wraps else exists,
        )
    at = {hop: ALL, chunk: ALL}
    outside = "error" if way.wraps else "ignore"
    return [*sent.arrived(at, outside), *sent.left(at, outside)]


def _local(mover: Mover, name: str, out: RingTensor, function: Any, begin: Task, when: Any = None) -> list[Ref]:
    """What a chip does to its own output, on the VPU; the ideal model leaves it out."""
    tensor = mover.tensor

    def whole(i: Indices, c: Indices) -> tuple[slice, ...]:
        return (*(slice(0, rows) for rows in tensor.lead), slice(0, tensor.shard_elements))

    done = mover.add(
        name,
        elements=tensor.shard_elements,
        operands=1,
        after=[begin],
        reads=[tensor.access(whole)],
        writes=[out.access(whole)],
        function=function,
        when=when,
    )
    return done.refs(outside="ignore")
