"""AllGather, ReduceScatter and AllReduce on a ring, one way or both, as chunk transfers of each link direction.

Written once for all chips of a class, with neighbours named relatively. In each step a chip sends one shard to its
neighbour; the next step forwards what came in the one before, so a step starts when the whole shard (or, with
``chunks`` > 1, the chunk) has arrived. Going both ways, an even ring's antipodal shard is halved between the
directions.

Source of the schedules and times: How To Scale Your Model, "Sharded Matrices and How to Multiply Them".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from simcore.collectives.blocks import Leg
from simcore.collectives.legs import Wires, gather_leg, links, scatter_leg
from simcore.collectives.tensor import RingTensor, check_chunks
from simcore.collectives.ways import Direction, ring_size, ring_ways
from simcore.graph import EntityClass, Ref, Task
from simcore.graph.graph import Reference

__all__ = ["Direction", "RingTensor", "all_gather", "all_reduce", "reduce_scatter"]

LegFunction = Callable[..., list[Ref]]


def all_gather(
    cls: EntityClass,
    name: str,
    axis: str,
    tensor: RingTensor,
    *,
    direction: Direction = "one_way",
    chunks: int = 1,
    after: Sequence[Reference] = (),
) -> Task:
    """AllGather along ``axis``: chip c starts with shard c of ``tensor`` in place and ends with all n shards.

    Time, with t = shard / link bandwidth and hop latency l: one way (n - 1)(t + l); both ways
    (n - 1)/2 t + ceil((n - 1)/2) l; see `simcore.collectives.closed_forms`. The largest of uneven shards counts.

    Returns the zero-work task that completes when all shards have arrived and this chip has sent all of its own.
    Raises `GraphError` for an axis that does not wrap around, and for fewer than 1 chunk.
    """
    return one_leg(gather_leg, cls, name, ring_leg(cls, axis, direction, chunks), tensor, after)


def reduce_scatter(
    cls: EntityClass,
    name: str,
    axis: str,
    tensor: RingTensor,
    *,
    direction: Direction = "one_way",
    chunks: int = 1,
    after: Sequence[Reference] = (),
) -> Task:
    """ReduceScatter along ``axis``: every chip starts with a partial sum of the whole ``tensor``; chip c ends with the
    complete shard c (the rest of its array holds what it passed on).

    Each arriving chunk is added on the VPU, which the ideal model leaves out; then the time is that of `all_gather`.
    Returns the zero-work task that completes when shard c is complete and this chip has sent all of its own.
    """
    return one_leg(scatter_leg, cls, name, ring_leg(cls, axis, direction, chunks), tensor, after)


def all_reduce(
    cls: EntityClass,
    name: str,
    axis: str,
    tensor: RingTensor,
    *,
    direction: Direction = "one_way",
    chunks: int = 1,
    after: Sequence[Reference] = (),
) -> Task:
    """AllReduce along ``axis``: a ReduceScatter and then an AllGather of the shards."""
    scattered = reduce_scatter(cls, f"{name}.rs", axis, tensor, direction=direction, chunks=chunks, after=after)
    return all_gather(cls, f"{name}.ag", axis, tensor, direction=direction, chunks=chunks, after=[scattered])


def ring_leg(cls: EntityClass, axis: str, direction: Direction, chunks: int) -> Leg:
    """The whole of a collective on one ring."""
    n = ring_size(cls, axis)
    check_chunks(chunks)
    return Leg({axis: n}, axis, ring_ways(axis, n, direction), chunks=chunks)


def one_leg(
    make: LegFunction,
    cls: EntityClass,
    name: str,
    leg: Leg,
    tensor: RingTensor,
    after: Sequence[Reference],
    wires: Wires = links,
) -> Task:
    """A collective of a single leg, between the tasks ``name.begin`` and ``name.end``."""
    tensor.sizes(leg.ways[0].n)
    begin = cls.task(f"{name}.begin", after=after, kind="sync")
    ends = make(cls, name, tensor, leg, begin.name, begin.name, wires)
    return cls.task(f"{name}.end", after=[begin, *ends], kind="sync")
