"""AllGather, ReduceScatter and AllReduce over slices: inside by the fast links, across by the slow network.

An AllReduce sums inside each slice (ReduceScatter over the inner axes), then every chip's shard across the slices (a
one-way ring of ReduceScatter and AllGather among the chips at one place), then gathers inside. So only 1/n of the array
of each chip crosses the network, n being the chips of a slice.

The network is each chip's own card (GPUs: "network"), or the host's, which its chips share (TPUs: "dcn", with
``hosts``). What PCIe adds between a chip and its host's card is not modelled: it is wider than the chip's share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from simcore.collectives import switch, torus
from simcore.collectives.blocks import Leg
from simcore.collectives.hosts import Hosts, ThroughHosts
from simcore.collectives.legs import gather_leg, scatter_leg
from simcore.collectives.moving import Mover, port
from simcore.collectives.tensor import RingTensor, check_chunks
from simcore.collectives.ways import Direction, check_axes, ring_size, ring_ways
from simcore.errors import GraphError
from simcore.graph import EntityClass, Task
from simcore.graph.graph import Reference


def all_gather(
    cls: EntityClass,
    name: str,
    inner: Sequence[str],
    outer: str,
    tensor: RingTensor,
    *,
    network: str = "dcn",
    hosts: Hosts | None = None,
    inside: str = "ici",
    direction: Direction = "both",
    chunks: int = 1,
    after: Sequence[Reference] = (),
) -> Task:
    """AllGather over ``inner`` axes and the ``outer`` axis of slices: across the slices first, then inside.

    The shards of ``tensor`` are those of a slice's chips, numbered over ``inner``; each holds a piece for each slice,
    of which a chip has its own slice's at first. ``inside`` is "ici", rings and lines over the axes in ``direction``,
    or "nvlink", one shot through a switch. ``chunks`` are those of the way across.
    """
    check_inside(inner, inside)
    crossed = _across("gather", cls, f"{name}.across", inner, outer, tensor, network, hosts, chunks, after)
    return _inside_gather(cls, f"{name}.inside", inner, tensor, inside, direction, [crossed])


def reduce_scatter(
    cls: EntityClass,
    name: str,
    inner: Sequence[str],
    outer: str,
    tensor: RingTensor,
    *,
    network: str = "dcn",
    hosts: Hosts | None = None,
    inside: str = "ici",
    direction: Direction = "both",
    chunks: int = 1,
    after: Sequence[Reference] = (),
) -> Task:
    """ReduceScatter over ``inner`` axes and the ``outer`` axis of slices, inside first, then across.

    A chip ends with its slice's piece of its shard; arguments are those of `all_gather`.
    """
    check_inside(inner, inside)
    scattered = _inside_scatter(cls, f"{name}.inside", inner, tensor, inside, direction, after)
    return _across("scatter", cls, f"{name}.across", inner, outer, tensor, network, hosts, chunks, [scattered])


def all_reduce(
    cls: EntityClass,
    name: str,
    inner: Sequence[str],
    outer: str,
    tensor: RingTensor,
    *,
    network: str = "dcn",
    hosts: Hosts | None = None,
    inside: str = "ici",
    direction: Direction = "both",
    chunks: int = 1,
    after: Sequence[Reference] = (),
) -> Task:
    """AllReduce over ``inner`` axes and the ``outer`` axis of slices: ReduceScatter inside, AllReduce of the shards
    across, AllGather inside. Time: `closed_forms.across_ps` between those of the two collectives inside.
    """
    check_inside(inner, inside)
    scattered = _inside_scatter(cls, f"{name}.rs", inner, tensor, inside, direction, after)
    summed = _across("scatter", cls, f"{name}.across.rs", inner, outer, tensor, network, hosts, chunks, [scattered])
    crossed = _across("gather", cls, f"{name}.across.ag", inner, outer, tensor, network, hosts, chunks, [summed])
    return _inside_gather(cls, f"{name}.ag", inner, tensor, inside, direction, [crossed])


def check_inside(inner: Sequence[str], inside: str) -> None:
    """Raise `GraphError` for an unknown way to go inside a slice, and for a switch over several axes."""
    if inside not in ("ici", "nvlink"):
        raise GraphError(f"inside a slice by {inside!r}; ici or nvlink is meant")
    if inside == "nvlink" and len(inner) != 1:
        raise GraphError(f"a switch inside a slice joins one axis, not {len(inner)}: {', '.join(inner)}")


def _inside_gather(
    cls: EntityClass,
    name: str,
    inner: Sequence[str],
    tensor: RingTensor,
    inside: str,
    direction: Direction,
    after: Sequence[Reference],
) -> Task:
    if inside == "nvlink":
        return switch.all_gather(cls, name, inner[0], tensor, algorithm="direct", after=after)
    return torus.all_gather(cls, name, inner, tensor, direction=direction, after=after)


def _inside_scatter(
    cls: EntityClass,
    name: str,
    inner: Sequence[str],
    tensor: RingTensor,
    inside: str,
    direction: Direction,
    after: Sequence[Reference],
) -> Task:
    if inside == "nvlink":
        return switch.reduce_scatter(cls, name, inner[0], tensor, algorithm="direct", after=after)
    return torus.reduce_scatter(cls, name, inner, tensor, direction=direction, after=after)


def _across(
    what: str,
    cls: EntityClass,
    name: str,
    inner: Sequence[str],
    outer: str,
    tensor: RingTensor,
    network: str,
    hosts: Hosts | None,
    chunks: int,
    after: Sequence[Reference],
) -> Task:
    """The collective of each chip's shard along the axis of slices, a one-way ring through the network."""
    check_axes(cls, [*inner, outer])
    check_chunks(chunks)
    tensor.require_even("a collective over slices")
    slices = ring_size(cls, outer)
    if tensor.shard_elements % slices:
        padded = -(-tensor.shard_elements // slices) * slices
        raise GraphError(
            f"tensor {tensor.name!r}: a shard of {tensor.shard_elements} elements does not cut into a piece for each "
            f"of {slices} slices: pad it to {padded}"
        )
    if hosts is not None and hosts.chips is not cls:
        raise GraphError(f"the hosts are those of class {hosts.chips.name!r}, the collective is of {cls.name!r}")
    begin = cls.task(f"{name}.begin", after=after, kind="sync")
    if slices == 1:
        return begin
    pieces = replace(tensor, shard_bytes=tensor.shard_bytes // slices, shards=())
    grid = {axis: cls.sizes[cls.axes.index(axis)] for axis in (*inner, outer)}
    leg = Leg(grid, outer, ring_ways(outer, slices, "one_way"), chunks=chunks)
    mover: Mover = Mover(cls, pieces)
    if hosts is not None:
        mover = ThroughHosts(cls, pieces, hosts, ((f"{name}.step", leg.steps), (f"{name}.chunk", chunks)))
    make = gather_leg if what == "gather" else scatter_leg
    done = make(cls, name, pieces, leg, begin.name, begin.name, lambda _: port(network), mover)
    return cls.task(f"{name}.end", after=[begin, *done], kind="sync")
