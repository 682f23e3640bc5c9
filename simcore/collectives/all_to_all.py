"""AllToAll along one axis or several: from an array split on one dimension to the same array split on another.

A chip holds a block for each chip of the collective, and ends with a block from each. On a ring a block goes hop by
hop, in messages that shrink by a block a step. On a line blocks are sent singly, those that go furthest first.

Over several axes every block is cut in as many parts as there are axes; part d goes along the axes in the rotated order
d, d + 1, ..., so that all links are used at once, and lies in a tensor of its own between two axes.

Time on a ring that goes both ways: about a quarter of an AllGather's, as a block goes n/4 hops on average and is 1/n of
an AllGather's shard. Source: How To Scale Your Model, "Sharded Matrices and How to Multiply Them"; the exact forms are
in `simcore.collectives.closed_forms`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from simcore.collectives.exchange import Exchange, output_of
from simcore.collectives.line_exchange import line_bundles
from simcore.collectives.moving import Mover
from simcore.collectives.ring_exchange import ring_messages
from simcore.collectives.tensor import RingTensor, check_chunks
from simcore.collectives.ways import Direction, axis_size, axis_wraps, check_axes, ways_along
from simcore.errors import GraphError
from simcore.graph import EntityClass, Ref, Task
from simcore.graph.graph import Reference


def all_to_all(
    cls: EntityClass,
    name: str,
    axes: str | Sequence[str],
    tensor: RingTensor,
    out: str | RingTensor,
    *,
    direction: Direction = "one_way",
    chunks: int = 1,
    after: Sequence[Reference] = (),
) -> Task:
    """AllToAll over ``axes`` from ``tensor`` into the tensor ``out`` of the same shape, or one whose
    blocks lie along another dimension.

    ``tensor.shard_bytes`` are those of a block, V/N^2 of an array of V bytes on N chips; blocks are numbered row-major
    over the axes. Time along one axis, with t = block / link bandwidth: on a one-way ring n (n - 1)/2 t + (n - 1) l,
    which is (n - 1) V/(2 n b) + (n - 1) l; both ways V/(8 b) + n/2 l for even n; on a line see
    `closed_forms.all_to_all_line_ps`. Over D equal axes both ways V/(8 n^(D-1) b) + D n/2 l, see
    `closed_forms.all_to_all_torus_ps`. ``chunks`` are the pieces of a message that are sent one after the other, on
    rings.

    Returns the zero-work task that completes when this chip has all its blocks and has sent all that it passes on.
    """
    axes = check_axes(cls, (axes,) if isinstance(axes, str) else axes)
    tensor.require_even("AllToAll")
    check_chunks(chunks)
    target = output_of(cls, tensor, out)
    sizes, wraps = [axis_size(cls, axis) for axis in axes], [axis_wraps(cls, axis) for axis in axes]
    if chunks > 1 and not all(wraps):
        line = axes[wraps.index(False)]
        raise GraphError(f"AllToAll on the line {line!r} sends single blocks; chunks=1 is meant, not {chunks}")
    mover, count = Mover(cls, tensor), len(axes)
    total = math.prod(sizes)
    between = [
        replace(tensor, name=f"{name}.between{phase}", view=(), block_dimension=None) for phase in range(count - 1)
    ]
    for array in between:
        cls.tensor(
            array.name,
            memory=tensor.memory,
            bytes=total * tensor.shard_bytes,
            shape=(*tensor.lead, total * tensor.shard_elements),
        )
    arrays = [tensor, *between, target]
    begin = cls.task(f"{name}.begin", after=after, kind="sync")
    last = [begin.name] * count
    ends: list[Ref] = []
    for phase in range(count):
        for part in range(count):
            number = (part + phase) % count
            axis = axes[number]
            what = Exchange(
                arrays[phase],
                arrays[phase + 1],
                axis,
                sizes[number],
                before=math.prod(sizes[:number]),
                behind=math.prod(sizes[number + 1 :]),
                first=tensor.shard_elements * part // count,
                last=tensor.shard_elements * (part + 1) // count,
            )
            leg = name if count == 1 else f"{name}.{axis}.part{part}"
            done = what.keep_own(mover, leg, [Ref(last[part])])
            ways = ways_along(cls, axis, direction)
            if wraps[number]:
                done += ring_messages(mover, leg, ways, what, chunks, last[part], begin.name)
            else:
                for way in ways:
                    done += line_bundles(mover, leg, way, what, last[part], begin.name)
            if count > 1:
                last[part] = cls.task(f"{leg}.end", after=[Ref(last[part]), *done], kind="sync").name
                done = [Ref(last[part])]
            ends += done
    return cls.task(f"{name}.end", after=[begin, *ends], kind="sync")
