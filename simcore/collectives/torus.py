"""AllGather, ReduceScatter and AllReduce over several mesh axes at once, all of whose links are used all the time.

The array is cut in as many parts as there are axes, each shard along its elements. Part d is gathered along the axes in
the rotated order d, d + 1, ..., so that at any time every axis carries another part; a ReduceScatter goes back the same
way. Axes that do not wrap around are lines in it. The shards are numbered row-major over the axes as they are named.

``rotated=False`` leaves the array whole and goes along one axis after the other.

Axes of one size are all busy to the end. On axes of different sizes a part's turn on a short axis is over before the
others', and links wait: the time is then more than the bandwidth bound, which `closed_forms.torus_bound_ps` gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from simcore.collectives.blocks import Leg
from simcore.collectives.legs import gather_leg, scatter_leg
from simcore.collectives.tensor import RingTensor, check_chunks
from simcore.collectives.ways import Direction, axis_size, check_axes, ways_along
from simcore.graph import EntityClass, Ref, Task
from simcore.graph.graph import Reference


def all_gather(
    cls: EntityClass,
    name: str,
    axes: Sequence[str],
    tensor: RingTensor,
    *,
    direction: Direction = "one_way",
    chunks: int = 1,
    rotated: bool = True,
    after: Sequence[Reference] = (),
) -> Task:
    """AllGather over ``axes``: the chip at (x, y, ...) starts with shard number (x, y, ...) and ends with all of them.

    Over D equal axes that wrap around: (1 - n^-D) V/(D b) + D (n - 1) l one way, see
    `simcore.collectives.closed_forms.torus_ps`. Returns the task that completes when all has arrived and been sent.
    """
    return _rotated("gather", cls, name, axes, tensor, direction, chunks, rotated, after)


def reduce_scatter(
    cls: EntityClass,
    name: str,
    axes: Sequence[str],
    tensor: RingTensor,
    *,
    direction: Direction = "one_way",
    chunks: int = 1,
    rotated: bool = True,
    after: Sequence[Reference] = (),
) -> Task:
    """ReduceScatter over ``axes``: a partial sum of the whole array on every chip at first, at last the complete shard
    number (x, y, ...) on the chip at (x, y, ...). In the ideal model the time is that of `all_gather`.
    """
    return _rotated("scatter", cls, name, axes, tensor, direction, chunks, rotated, after)


def all_reduce(
    cls: EntityClass,
    name: str,
    axes: Sequence[str],
    tensor: RingTensor,
    *,
    direction: Direction = "one_way",
    chunks: int = 1,
    rotated: bool = True,
    after: Sequence[Reference] = (),
) -> Task:
    """AllReduce over ``axes``: a ReduceScatter and then an AllGather of the shards."""
    scattered = reduce_scatter(
        cls, f"{name}.rs", axes, tensor, direction=direction, chunks=chunks, rotated=rotated, after=after
    )
    return all_gather(
        cls, f"{name}.ag", axes, tensor, direction=direction, chunks=chunks, rotated=rotated, after=[scattered]
    )


def _rotated(
    what: Literal["gather", "scatter"],
    cls: EntityClass,
    name: str,
    axes: Sequence[str],
    tensor: RingTensor,
    direction: Direction,
    chunks: int,
    rotated: bool,
    after: Sequence[Reference],
) -> Task:
    axes = check_axes(cls, axes)
    check_chunks(chunks)
    if len(axes) > 1:
        tensor.require_even("a collective over several axes")
    grid = {axis: axis_size(cls, axis) for axis in axes}
    parts = len(axes) if rotated else 1
    begin = cls.task(f"{name}.begin", after=after, kind="sync")
    last = [begin.name] * parts
    ends: list[Ref] = []
    for phase in range(len(axes)):
        for part in range(parts):
            order = axes[part:] + axes[:part]
            if what == "scatter":
                order = order[::-1]
            free = order[:phase] if what == "gather" else order[phase + 1 :]
            axis = order[phase]
            leg = Leg(grid, axis, ways_along(cls, axis, direction), free, (part, parts), chunks)
            make = gather_leg if what == "gather" else scatter_leg
            leg_name = f"{name}.{axis}.part{part}"
            done = make(cls, leg_name, tensor, leg, last[part], begin.name)
            last[part] = cls.task(f"{leg_name}.end", after=[last[part], *done], kind="sync").name
            ends.append(Ref(last[part]))
    return cls.task(f"{name}.end", after=[begin, *ends], kind="sync")
