"""AllReduce in the network (SHARP): the switch adds what all chips send up and sends the sum down to all.

Each port carries the array once either way, both at the same time: the switch adds and passes on as the bytes come in.
A ring's ports carry it 2 (n - 1)/n times. Source: How To Scale Your Model, "How to Think About GPUs".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simcore.collectives.moving import Mover, Wire
from simcore.collectives.tensor import RingTensor
from simcore.collectives.ways import ring_size
from simcore.graph import EntityClass, Ref, Task, TensorAccess, Transfer
from simcore.graph.graph import Reference
from simcore.graph.reference import Indices


def all_reduce(
    cls: EntityClass,
    name: str,
    axis: str,
    tensor: RingTensor,
    wire: Wire,
    after: Sequence[Reference] = (),
) -> Task:
    """AllReduce of the whole array of n shards in V/b + l, l being the latency through the switch.

    The way down begins with the last chip's way up, and ends no sooner. What the chips send counts as bytes of their
    ports out (``wire``), what they receive as bytes of a port in.
    """
    tensor.require_even("a collective on a switch")
    n = ring_size(cls, axis)
    begin = cls.task(f"{name}.begin", after=after, kind="sync")
    if n == 1:
        return cls.task(f"{name}.end", after=[begin], kind="sync")
    elements, mover = n * tensor.shard_elements, Mover(cls, tensor)
    port_in = cls.unit(f"{wire.out}_in", kind=wire.kind)
    # What is in the switch takes no memory of a chip; it is declared for the values only.
    above = cls.tensor(f"{name}.above", memory=tensor.memory, bytes=0, shape=(*tensor.lead, elements))

    def whole(i: Indices, c: Indices) -> tuple[slice, ...]:
        return tensor.block(0, 0, elements)

    up = mover.send(
        f"{name}.up",
        wire,
        {},
        bytes=n * tensor.shard_bytes,
        after=[begin],
        reads=[tensor.access(whole)],
        writes=[TensorAccess(above, whole)],
        function=lambda array: array,
    )
    others: list[dict[str, int]] = [{axis: k} for k in range(n)]
    down = cls.task(
        f"{name}.down",
        unit=port_in,
        work=Transfer(n * tensor.shard_bytes),
        moves=tensor.name,
        after=[Ref(f"{name}.up", on=on, event="start") for on in others],
    )
    came = cls.task(
        f"{name}.sum",
        kind="sync",
        after=[down, *(Ref(f"{name}.up", on=on) for on in others), *up.left(), *up.arrived()],
        reads=[TensorAccess(above, whole, on=on) for on in others],
        writes=[tensor.access(whole)],
        function=_total,
    )
    return cls.task(f"{name}.end", after=[begin, came], kind="sync")


def _total(*arrays: Any) -> Any:
    return sum(arrays[1:], start=arrays[0])
