"""AllReduce in one shot on a ring or a line: every chip's whole partial sum goes to all, and each adds them itself.

n times the bytes of a ring's ReduceScatter and AllGather, in half their hops: for arrays so small that hops are all
that counts, such as the activations of a decode step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simcore.collectives.blocks import Leg
from simcore.collectives.legs import gather_leg
from simcore.collectives.moving import Mover
from simcore.collectives.tensor import RingTensor, check_chunks
from simcore.collectives.ways import Direction, axis_size, ways_along
from simcore.graph import EntityClass, Ref, Task, TensorAccess
from simcore.graph.graph import Reference
from simcore.graph.reference import Indices


def all_reduce(
    cls: EntityClass,
    name: str,
    axis: str,
    tensor: RingTensor,
    *,
    direction: Direction = "both",
    chunks: int = 1,
    after: Sequence[Reference] = (),
) -> Task:
    """AllReduce along ``axis``, which may wrap around or not: an AllGather of whole arrays of V bytes, n V in all.

    Time: both ways (n - 1)/2 V/b + floor(n/2) l; it takes room for n arrays on each chip. Returns the task that
    completes when the sum is complete and all that this chip passes on has been sent.
    """
    tensor.require_even("AllReduce in one shot")
    check_chunks(chunks)
    n, mover = axis_size(cls, axis), Mover(cls, tensor)
    elements = n * tensor.shard_elements
    whole = RingTensor(f"{name}.all", n * tensor.shard_bytes, tensor.element_bytes, tensor.lead, tensor.memory)
    cls.tensor(
        whole.name,
        memory=tensor.memory,
        bytes=n * whole.shard_bytes if n > 1 else 0,
        shape=(*tensor.lead, n * elements),
    )

    def array(i: Indices, c: Indices) -> tuple[slice, ...]:
        return tensor.block(0, 0, elements)

    def of_chip(number: int | None) -> Any:
        """The array of a chip, or the chip's own, among all."""

        def region(i: Indices, c: Indices) -> tuple[slice, ...]:
            return whole.block(c[axis] if number is None else number, 0, elements)

        return region

    begin = cls.task(f"{name}.begin", after=after, kind="sync")
    if n == 1:
        return cls.task(f"{name}.end", after=[begin], kind="sync")
    mover.add(
        f"{name}.keep",
        elements=elements,
        operands=1,
        after=[begin],
        reads=[tensor.access(array)],
        writes=[TensorAccess(whole.name, of_chip(None))],
        function=lambda own: own,
    )
    kept = cls.task(f"{name}.kept", after=mover.added(f"{name}.keep").refs(), kind="sync")
    leg = Leg({axis: n}, axis, ways_along(cls, axis, direction), chunks=chunks)
    ends = gather_leg(cls, name, whole, leg, kept.name, begin.name)
    gathered = cls.task(f"{name}.gathered", after=[kept, *ends], kind="sync")
    summed = mover.add(
        f"{name}.add",
        elements=elements,
        operands=n,
        after=[gathered],
        reads=[TensorAccess(whole.name, of_chip(chip)) for chip in range(n)],
        writes=[tensor.access(array)],
        function=lambda *parts: sum(parts[1:], start=parts[0]),
    )
    return cls.task(f"{name}.end", after=[Ref(begin.name), *summed.refs()], kind="sync")
