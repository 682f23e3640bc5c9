"""AllGather, ReduceScatter and AllReduce on a line: an axis that does not wrap around, as on small slices.

Each link carries, in either direction, all that is on one side of it to the other: the busiest n - 1 shards, over up
to n - 1 hops. That is the time of a one-way ring, twice that of a ring that goes both ways. A line always uses both
directions.
"""

from __future__ import annotations

from collections.abc import Sequence

from simcore.collectives.blocks import Leg
from simcore.collectives.legs import gather_leg, scatter_leg
from simcore.collectives.ring import one_leg
from simcore.collectives.tensor import RingTensor, check_chunks
from simcore.collectives.ways import axis_size, line_ways
from simcore.errors import GraphError
from simcore.graph import EntityClass, Task
from simcore.graph.graph import Reference


def all_gather(
    cls: EntityClass,
    name: str,
    axis: str,
    tensor: RingTensor,
    *,
    chunks: int = 1,
    after: Sequence[Reference] = (),
) -> Task:
    """AllGather along a line: chip c starts with shard c of ``tensor`` in place and ends with all n shards.

    Time, with t = shard / link bandwidth and hop latency l: (n - 1)(t + l), with k chunks a shard
    (n - 2) max(t, t/k + l) + t + l; see `simcore.collectives.closed_forms.line_ps`.

    Returns the zero-work task that completes when all shards have arrived and this chip has sent all that it passes on.
    Raises `GraphError` for an axis that wraps around.
    """
    return one_leg(gather_leg, cls, name, _line_leg(cls, axis, chunks), tensor, after)


def reduce_scatter(
    cls: EntityClass,
    name: str,
    axis: str,
    tensor: RingTensor,
    *,
    chunks: int = 1,
    after: Sequence[Reference] = (),
) -> Task:
    """ReduceScatter along a line: a partial sum of the whole ``tensor`` on every chip at first, the complete shard c on
    chip c at last. The sums from either side travel towards their shard's chip, those that go furthest first; the time
    is that of `all_gather`.
    """
    return one_leg(scatter_leg, cls, name, _line_leg(cls, axis, chunks), tensor, after)


def all_reduce(
    cls: EntityClass,
    name: str,
    axis: str,
    tensor: RingTensor,
    *,
    chunks: int = 1,
    after: Sequence[Reference] = (),
) -> Task:
    """AllReduce along a line: a ReduceScatter and then an AllGather of the shards."""
    scattered = reduce_scatter(cls, f"{name}.rs", axis, tensor, chunks=chunks, after=after)
    return all_gather(cls, f"{name}.ag", axis, tensor, chunks=chunks, after=[scattered])


def _line_leg(cls: EntityClass, axis: str, chunks: int) -> Leg:
    n = axis_size(cls, axis)
    if n > 1 and cls.wraps[cls.axes.index(axis)]:
        raise GraphError(f"axis {axis!r} of class {cls.name!r} wraps around: it is a ring, not a line")
    check_chunks(chunks)
    return Leg({axis: n}, axis, line_ways(axis, n), chunks=chunks)
