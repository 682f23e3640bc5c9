"""One front door to all collectives: the fastest algorithm that fits, by its closed form, or the one that is named."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from simcore.chips import Chip, load_chip
from simcore.collectives.candidates import KINDS, WAYS, Candidate, Request, candidates
from simcore.collectives.estimates import Link
from simcore.collectives.tensor import RingTensor, check_chunks
from simcore.collectives.ways import check_axes, ring_size
from simcore.errors import GraphError, nearest
from simcore.graph import EntityClass, Task, TaskGraph
from simcore.graph.graph import Reference
from simcore.hardware import Channel, memory_capacities, unit_model
from simcore.quantities import PS_PER_S, format_bytes, format_seconds

NETWORKS = ("ici", "nvlink", "network", "dcn", "dcn_share")
ONE_AXIS_KINDS = ("CollectivePermute", "Broadcast", "Reduce")
NEED_OUT = ("AllToAll", "CollectivePermute")


def collective(
    cls: EntityClass,
    name: str,
    kind: str,
    axes: str | Sequence[str],
    tensor: RingTensor,
    *,
    chip: str | Chip,
    graph: TaskGraph | None = None,
    algorithm: str = "auto",
    network: str = "ici",
    direction: Literal["auto", "one_way", "both"] = "auto",
    chunks: int = 1,
    out: str | RingTensor = "",
    shift: int = 1,
    root: int = 0,
    in_network: bool = False,
    after: Sequence[Reference] = (),
) -> Task:
    """Lower a collective over ``axes``; what it did, and what else there was, is noted in ``graph.notes``.

    Parameters
    ----------
    kind : AllGather, ReduceScatter, AllReduce, AllToAll, CollectivePermute, Broadcast or Reduce. ``tensor.shard_bytes``
        are a shard's, an AllToAll's block's, or the whole array's of the last three.
    chip : whose link or port and memory the algorithm is chosen for.
    algorithm : "auto", or a candidate's name.
    network : "ici", rings and lines along the axes; or "nvlink", "network" or "dcn", a switch along one axis.
    direction : what rings may use; "auto" leaves it open.
    out : where an AllToAll or a CollectivePermute puts what arrives.
    shift, root : of a CollectivePermute; of a Broadcast or a Reduce.
    in_network : whether the switch can add.

    Returns the task that completes when this chip's part is done. Raises `GraphError` for an unknown kind, axis or
    algorithm, and `ChipError` for a network that the chip does not have.
    """
    found = choices(
        cls,
        name,
        kind,
        axes,
        tensor,
        chip=chip,
        network=network,
        direction=direction,
        chunks=chunks,
        out=out,
        shift=shift,
        root=root,
        in_network=in_network,
        after=after,
    )
    names = [candidate.name for candidate in found]
    if algorithm != "auto" and algorithm not in names:
        raise GraphError(f"{kind} {name!r}: unknown algorithm {algorithm!r}, {nearest(algorithm, ['auto', *names])}")
    room = _room(load_chip(chip), cls, tensor)
    fitting = [candidate for candidate in found if room is None or candidate.room_bytes <= room]
    best = fitting[0] if fitting else min(found, key=lambda candidate: candidate.room_bytes)
    chosen = best if algorithm == "auto" else found[names.index(algorithm)]
    if graph is not None:
        graph.notes.append(_note(name, kind, cls, axes, tensor, algorithm, chosen, found, fitting))
    return chosen.make()


def choices(
    cls: EntityClass,
    name: str,
    kind: str,
    axes: str | Sequence[str],
    tensor: RingTensor,
    *,
    chip: str | Chip,
    network: str = "ici",
    direction: Literal["auto", "one_way", "both"] = "auto",
    chunks: int = 1,
    out: str | RingTensor = "",
    shift: int = 1,
    root: int = 0,
    in_network: bool = False,
    after: Sequence[Reference] = (),
) -> list[Candidate]:
    """The algorithms for a collective, the fastest first; arguments as in `collective`."""
    if kind not in KINDS:
        raise GraphError(f"collective {name!r}: unknown kind {kind!r}, {nearest(kind, KINDS)}")
    if network not in NETWORKS:
        raise GraphError(f"collective {name!r}: unknown network {network!r}, {nearest(network, NETWORKS)}")
    if direction not in ("auto", *WAYS):
        raise GraphError(f"direction {direction!r}; auto, one_way or both is meant")
    named = check_axes(cls, (axes,) if isinstance(axes, str) else axes)
    if len(named) > 1 and (kind in ONE_AXIS_KINDS or network != "ici"):
        where = f"on a switch ({network})" if network != "ici" else kind
        raise GraphError(f"collective {name!r}: {where} goes along one axis, not {len(named)}: {', '.join(named)}")
    if network != "ici":
        ring_size(cls, named[0])
        tensor.require_even("a collective on a switch")
    if kind in NEED_OUT and not out:
        raise GraphError(f"{kind} {name!r}: give the tensor `out` for what arrives")
    check_chunks(chunks)
    model = unit_model(load_chip(chip), network, ideal=True)
    assert isinstance(model, Channel)
    request = Request(
        cls=cls,
        name=name,
        kind=kind,
        axes=named,
        tensor=tensor,
        link=Link(model.bandwidth_bytes_per_s, model.latency_ps),
        network=network,
        chunks=chunks,
        ways=WAYS if direction == "auto" else (direction,),
        out=out,
        shift=shift,
        root=root,
        in_network=in_network,
        after=after,
    )
    return sorted(candidates(request), key=lambda candidate: candidate.time_ps)


def _room(chip: Chip, cls: EntityClass, tensor: RingTensor) -> int | None:
    """What the class's tensors and pools leave of the memory that the tensor is in; None if it has no bound."""
    capacity = memory_capacities(chip).get(tensor.memory)
    if capacity is None:
        return None
    taken = sum(other.bytes for other in cls.tensors.values() if other.memory == tensor.memory)
    taken += sum(pool.buffers * pool.buffer_bytes for pool in cls.pools.values() if pool.memory == tensor.memory)
    return capacity - taken


def _note(
    name: str,
    kind: str,
    cls: EntityClass,
    axes: str | Sequence[str],
    tensor: RingTensor,
    algorithm: str,
    chosen: Candidate,
    found: Sequence[Candidate],
    fitting: Sequence[Candidate],
) -> str:
    named = (axes,) if isinstance(axes, str) else tuple(axes)
    over = " x ".join(f"{axis}={cls.sizes[cls.axes.index(axis)]}" for axis in named)
    times = ", ".join(
        f"{one.name} {format_seconds(one.time_ps / PS_PER_S)}" + ("" if one in fitting else " (does not fit)")
        for one in found
    )
    how = "as asked" if algorithm != "auto" else "fastest by closed form" if fitting else "the least that does not fit"
    return (
        f"{name}: {kind} over {over}, shards of {format_bytes(tensor.shard_bytes)}: {chosen.name} ({how}) of: {times}"
    )
