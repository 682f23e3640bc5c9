"""Collectives of chips that a full-bandwidth switch joins: NVLink inside a node, a network between nodes.

Every chip has one port; in each schedule it sends to one other chip at a time and receives from one. ``network`` names
the kind of port, "nvlink", "network" or "dcn", and so whose bandwidth and latency count.

| algorithm | AllGather, ReduceScatter | AllReduce |
|---|---|---|
| ring | (n - 1)(V/(n b) + l) | twice |
| halving_doubling (n a power of two) | (n - 1) V/(n b) + log2 n l | twice |
| direct | (n - 1) V/(n b) + l | (n - 1) V/b + l; two_shot: twice the left |
| tree | | 2 log2 n (V/b + l) |
| in_network (where the switch can add) | | V/b + l |

Exact forms: `simcore.collectives.switch_forms`.
"""

from __future__ import annotations

from collections.abc import Sequence

from simcore.collectives import direct, doubling, in_network, tree
from simcore.collectives.blocks import Leg
from simcore.collectives.legs import gather_leg, scatter_leg
from simcore.collectives.moving import Wire, port
from simcore.collectives.ring import one_leg
from simcore.collectives.tensor import RingTensor, check_chunks
from simcore.collectives.ways import ring_size, ring_ways
from simcore.errors import GraphError, nearest
from simcore.graph import EntityClass, Task
from simcore.graph.graph import Reference

NETWORKS = ("nvlink", "network", "dcn", "dcn_share")
GATHERS = ("ring", "halving_doubling", "direct")
ALL_REDUCES = ("ring", "halving_doubling", "direct", "two_shot", "tree", "in_network")


def all_gather(
    cls: EntityClass,
    name: str,
    axis: str,
    tensor: RingTensor,
    *,
    algorithm: str = "ring",
    network: str = "nvlink",
    chunks: int = 1,
    after: Sequence[Reference] = (),
) -> Task:
    """AllGather: chip c starts with shard c of ``tensor`` in place and ends with all n. ``chunks`` are a ring's.

    Returns the task that completes when all has arrived and this chip has sent its own. Raises `GraphError` for an
    unknown algorithm or network, and for halving and doubling over other than a power of two chips.
    """
    wire = _wire(network)
    match _known(algorithm, GATHERS, chunks):
        case "ring":
            return one_leg(gather_leg, cls, name, _ring(cls, axis, chunks), tensor, after, lambda _: wire)
        case "halving_doubling":
            return doubling.all_gather(cls, name, axis, tensor, wire, after)
        case _:
            return direct.all_gather(cls, name, axis, tensor, wire, after)


def reduce_scatter(
    cls: EntityClass,
    name: str,
    axis: str,
    tensor: RingTensor,
    *,
    algorithm: str = "ring",
    network: str = "nvlink",
    chunks: int = 1,
    after: Sequence[Reference] = (),
) -> Task:
    """ReduceScatter: a partial sum of the whole ``tensor`` on every chip at first, the complete shard c on chip c."""
    wire = _wire(network)
    match _known(algorithm, GATHERS, chunks):
        case "ring":
            return one_leg(scatter_leg, cls, name, _ring(cls, axis, chunks), tensor, after, lambda _: wire)
        case "halving_doubling":
            return doubling.reduce_scatter(cls, name, axis, tensor, wire, after)
        case _:
            return direct.reduce_scatter(cls, name, axis, tensor, wire, after)


def all_reduce(
    cls: EntityClass,
    name: str,
    axis: str,
    tensor: RingTensor,
    *,
    algorithm: str = "ring",
    network: str = "nvlink",
    chunks: int = 1,
    after: Sequence[Reference] = (),
) -> Task:
    """AllReduce: a partial sum of the whole ``tensor`` on every chip at first, the complete sum on every chip."""
    wire = _wire(network)
    match _known(algorithm, ALL_REDUCES, chunks):
        case "direct":
            return direct.all_reduce(cls, name, axis, tensor, wire, after)
        case "tree":
            return tree.all_reduce(cls, name, axis, tensor, wire, after=after)
        case "in_network":
            return in_network.all_reduce(cls, name, axis, tensor, wire, after)
    each = "direct" if algorithm == "two_shot" else algorithm
    scattered = reduce_scatter(
        cls, f"{name}.rs", axis, tensor, algorithm=each, network=network, chunks=chunks, after=after
    )
    return all_gather(
        cls, f"{name}.ag", axis, tensor, algorithm=each, network=network, chunks=chunks, after=[scattered]
    )


def all_to_all(
    cls: EntityClass,
    name: str,
    axis: str,
    tensor: RingTensor,
    out: str | RingTensor,
    *,
    network: str = "nvlink",
    after: Sequence[Reference] = (),
) -> Task:
    """AllToAll of blocks of ``shard_bytes`` = V/n^2 from ``tensor`` into ``out``, straight: (n - 1) V/(n^2 b) + l."""
    return direct.all_to_all(cls, name, axis, tensor, out, _wire(network), after)


def permute(
    cls: EntityClass,
    name: str,
    axis: str,
    tensor: RingTensor,
    out: str | RingTensor,
    *,
    shift: int = 1,
    network: str = "nvlink",
    after: Sequence[Reference] = (),
) -> Task:
    """CollectivePermute of ``shard_bytes`` from ``tensor`` into ``out`` of the chip ``shift`` places on: V/b + l."""
    return direct.permute(cls, name, axis, tensor, out, _wire(network), shift, after)


def broadcast(
    cls: EntityClass,
    name: str,
    axis: str,
    tensor: RingTensor,
    *,
    root: int = 0,
    network: str = "nvlink",
    after: Sequence[Reference] = (),
) -> Task:
    """Copy ``tensor``, ``shard_bytes`` on every chip, from the chip at ``root`` to all, along a binomial tree."""
    size = tensor.shard_elements
    return tree.broadcast(cls, name, axis, tensor, _wire(network), elements=size, root=root, after=after)


def reduce(
    cls: EntityClass,
    name: str,
    axis: str,
    tensor: RingTensor,
    *,
    root: int = 0,
    network: str = "nvlink",
    after: Sequence[Reference] = (),
) -> Task:
    """Sum ``tensor``, ``shard_bytes`` on every chip, into the root's array, along a binomial tree."""
    size = tensor.shard_elements
    return tree.reduce(cls, name, axis, tensor, _wire(network), elements=size, root=root, after=after)


def _wire(network: str) -> Wire:
    if network not in NETWORKS:
        raise GraphError(f"unknown network {network!r}, {nearest(network, NETWORKS)}")
    return port(network)


def _known(algorithm: str, known: Sequence[str], chunks: int) -> str:
    if algorithm not in known:
        raise GraphError(f"unknown algorithm {algorithm!r}, {nearest(algorithm, known)}")
    check_chunks(chunks)
    if chunks > 1 and algorithm != "ring":
        raise GraphError(f"chunks are a ring's; {algorithm} sends whole blocks: chunks=1 is meant, not {chunks}")
    return algorithm


def _ring(cls: EntityClass, axis: str, chunks: int) -> Leg:
    """A ring through the switch goes one way: a chip has one port out."""
    n = ring_size(cls, axis)
    return Leg({axis: n}, axis, ring_ways(axis, n, "one_way"), chunks=chunks)
