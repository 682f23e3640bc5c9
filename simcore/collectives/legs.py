"""AllGather and ReduceScatter along one axis, a ring or a line: what collectives over one or more axes are made of.

In each step a chip sends one block to its neighbour; the next step forwards what came in the one before, so a step
starts when the whole block (or, with chunks, the chunk) has arrived. A line's chips forward to its two ends, each link
direction carrying what is on one side of it to the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from simcore.collectives.blocks import Blocks, Leg, distinct_sizes
from simcore.collectives.moving import Done, Mover, Sent, Wire, ici, identity, pairwise_sum
from simcore.collectives.tensor import RingTensor
from simcore.collectives.ways import Way
from simcore.graph import ALL, EntityClass, Ref, TensorAccess
from simcore.graph.graph import Guard
from simcore.graph.reference import Indices

INBOX_SLOTS = 2
"""Blocks that an inbox holds: one is added while the next comes in."""

Wires = Callable[[Way], Wire]


def links(way: Way) -> Wire:
    """The link in the direction of ``way``."""
    return ici(way.axis, way.suffix)


def gather_leg(
    cls: EntityClass,
    name: str,
    tensor: RingTensor,
    leg: Leg,
    begin: str,
    ready: str,
    wires: Wires = links,
    mover: Mover | None = None,
) -> list[Ref]:
    """AllGather along the leg's axis: block c on chip c at first, every block on every chip at last.

    ``begin`` is this chip's task after which its block may be sent, ``ready`` the one after which a neighbour's array
    may be written. Returns references to all that is sent and received.
    """
    step, chunk = f"{name}.step", f"{name}.chunk"
    mover, sizes = mover or Mover(cls, tensor), distinct_sizes(tensor, leg.ways[0].n)
    ends: list[Ref] = []
    with cls.loop(step, leg.steps), cls.loop(chunk, leg.chunks):
        for way in leg.ways:
            for number, size in enumerate(sizes):
                blocks = Blocks(tensor, leg, way, size, step, chunk, halved_step=way.steps - 1)

                def index(i: Indices, c: Indices, way: Way = way) -> Any:
                    return way.beyond(c[way.axis], -np.asarray(i[step]))

                def sends(i: Indices, c: Indices, way: Way = way) -> Any:
                    here = np.asarray(c[way.axis])
                    return way.inside(way.beyond(here, -np.asarray(i[step])), here, way.beyond(here, 1))

                places = blocks.of_array(index)
                send = _label(f"{name}.send{way.suffix}", number, sizes)
                sent = mover.send(
                    send,
                    wires(way),
                    way.on,
                    bytes=blocks.bytes,
                    after=[
                        Ref(begin),
                        Ref(ready, on=way.on),
                        *mover.sent(send, way.on).arrived({step: -1}, "ignore"),
                    ],
                    reads=[tensor.access(place) for place in places],
                    writes=[tensor.access(place, on=way.on) for place in places],
                    function=identity,
                    when=_of_size(tensor, way, sizes, size, index, sends),
                )
                ends += _both_ends(sent, step, chunk, way, sizes)
    return ends


def scatter_leg(
    cls: EntityClass,
    name: str,
    tensor: RingTensor,
    leg: Leg,
    begin: str,
    ready: str,
    wires: Wires = links,
    mover: Mover | None = None,
) -> list[Ref]:
    """ReduceScatter along the leg's axis: a partial sum of all blocks on every chip at first, at last the sum of block
    c on chip c; what else its array holds has been passed on.

    Arguments and result are those of `gather_leg`. An arriving block is added on the VPU; the neighbour sends into the
    inbox again when the block that lay there has been added.
    """
    step, chunk, steps = f"{name}.step", f"{name}.chunk", leg.steps
    mover, sizes = mover or Mover(cls, tensor), distinct_sizes(tensor, leg.ways[0].n)
    slots = min(steps, INBOX_SLOTS)
    ends: list[Ref] = []

    def slot(i: Indices, _: Indices) -> Any:
        return i[step] % max(slots, 1)

    def last_step_only(i: Indices, _: Indices) -> Any:
        return np.where(np.asarray(i[step]) == steps - 1, i[step], -1)

    def added(way: Way, number: int) -> Done:
        return mover.added(_label(f"{name}.add{way.suffix}", number, sizes))

    with cls.loop(step, steps), cls.loop(chunk, leg.chunks):
        sent: dict[tuple[int, int], Sent] = {}
        for way in leg.ways:
            inbox = f"{name}.inbox{way.suffix}"
            room = Blocks(tensor, leg, way, tensor.shard_elements, step, chunk, 0).room * slots
            cls.tensor(inbox, memory=tensor.memory, bytes=room * tensor.element_bytes, shape=(*tensor.lead, room))
            for number, size in enumerate(sizes):
                blocks = Blocks(tensor, leg, way, size, step, chunk, halved_step=0)

                def index(i: Indices, c: Indices, way: Way = way) -> Any:
                    return way.beyond(c[way.axis], way.steps - np.asarray(i[step]))

                def sends(i: Indices, c: Indices, way: Way = way) -> Any:
                    here = np.asarray(c[way.axis])
                    return way.inside(way.beyond(here, way.steps - np.asarray(i[step])), here)

                # The slot is free when what the neighbour got two steps ago, of whichever size, has been added.
                every = {chunk: ALL} if len(sizes) > 1 else {}
                free = [
                    ref
                    for other in range(len(sizes))
                    for ref in added(way, other).refs({step: -slots, **every}, way.on, "ignore")
                    if steps > slots
                ]
                sent[way.sign, number] = mover.send(
                    _label(f"{name}.send{way.suffix}", number, sizes),
                    wires(way),
                    way.on,
                    bytes=blocks.bytes,
                    after=[
                        Ref(begin),
                        Ref(ready, on=way.on),
                        *added(way, number).refs({step: -1}, outside="ignore"),
                        *free,
                    ],
                    reads=[tensor.access(place) for place in blocks.of_array(index)],
                    writes=[TensorAccess(inbox, place, on=way.on) for place in blocks.of_inbox(slot)],
                    function=identity,
                    when=_of_size(tensor, way, sizes, size, index, sends),
                )
                ends += _both_ends(sent[way.sign, number], step, chunk, way, sizes)
        for way in leg.ways:
            for number, size in enumerate(sizes):
                blocks = Blocks(tensor, leg, way, size, step, chunk, halved_step=0)

                def arrived(i: Indices, c: Indices, way: Way = way) -> Any:
                    return way.beyond(c[way.axis], way.steps - 1 - np.asarray(i[step]))

                def receives(i: Indices, c: Indices, way: Way = way) -> Any:
                    here = np.asarray(c[way.axis])
                    return way.inside(way.beyond(here, way.steps - 1 - np.asarray(i[step])), way.beyond(here, -1))

                # Both directions end at the same shard: the one is added after the other.
                first = added(leg.ways[0], number).refs({step: last_step_only}, outside="ignore")
                mine = blocks.of_array(arrived)
                done = mover.add(
                    _label(f"{name}.add{way.suffix}", number, sizes),
                    elements=blocks.elements,
                    after=[
                        *([Ref(begin)] if begin != ready else []),  # what comes first was sent when this chip was ready
                        *sent[way.sign, number].arrived(),
                        *(first if way.sign < 0 else []),
                    ],
                    reads=[
                        *(tensor.access(place) for place in mine),
                        *(TensorAccess(f"{name}.inbox{way.suffix}", place) for place in blocks.of_inbox(slot)),
                    ],
                    writes=[tensor.access(place) for place in mine],
                    function=pairwise_sum,
                    when=_of_size(tensor, way, sizes, size, arrived, receives),
                )
                ends += done.refs({step: ALL, chunk: ALL}, outside="ignore")
    return ends


def _label(name: str, number: int, sizes: Sequence[int]) -> str:
    """A transfer's name: shards of different sizes have one each."""
    return name if len(sizes) == 1 else f"{name}.{number}"


def _of_size(
    tensor: RingTensor,
    way: Way,
    sizes: Sequence[int],
    size: int,
    index: Callable[[Indices, Indices], Any],
    inside: Callable[[Indices, Indices], Any],
) -> Guard | None:
    """The guard of the transfer of shards of ``size``; None where every chip has it in every step."""
    if way.wraps and len(sizes) == 1:
        return None
    of = np.array(tensor.sizes(way.n))

    def guard(i: Indices, c: Indices) -> Any:
        return inside(i, c) & (of[np.clip(index(i, c), 0, way.n - 1)] == size)

    return guard


def _both_ends(sent: Sent, step: str, chunk: str, way: Way, sizes: Sequence[int]) -> list[Ref]:
    """All of a direction's transfers that this chip receives, and all that it sends."""
    at = {step: ALL, chunk: ALL}
    outside = "error" if way.wraps and len(sizes) == 1 else "ignore"
    return [*sent.arrived(at, outside), *sent.left(at, outside)]
