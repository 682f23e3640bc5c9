"""AllGather, ReduceScatter and AllReduce over axes that are on different networks: one axis after the other.

What is slow carries the least: a ReduceScatter goes along the fast axes first, so that only a shard of what they have
added goes over the slow ones; an AllGather goes back the same way, and an AllReduce is the one and then the other. On
every axis it is a ring, on a switch or a network among the ports of its chips.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from simcore.collectives.blocks import Leg
from simcore.collectives.legs import gather_leg, links, scatter_leg
from simcore.collectives.moving import port
from simcore.collectives.tensor import RingTensor
from simcore.collectives.ways import Direction, axis_size, check_axes, ring_ways, ways_along
from simcore.errors import GraphError
from simcore.graph import EntityClass, Ref, Task
from simcore.graph.graph import Reference

SLOWEST_FIRST = ("dcn", "dcn_share", "network", "nvlink", "ici")


def in_turn(
    kind: str,
    cls: EntityClass,
    name: str,
    axes: Sequence[str],
    tensor: RingTensor,
    *,
    networks: Mapping[str, str],
    direction: Direction = "both",
    after: Sequence[Reference] = (),
) -> Task:
    """The collective ``kind`` over ``axes``, of which ``networks`` says what each is on.

    Shards are numbered row-major over the axes as they are given. Raises `GraphError` for another kind of collective.
    """
    axes = check_axes(cls, axes)
    tensor.require_even("a collective over several networks")
    slow_first = tuple(sorted(axes, key=lambda axis: SLOWEST_FIRST.index(networks[axis])))
    begin = cls.task(f"{name}.begin", after=after, kind="sync")
    if kind == "AllGather":
        end = _legs("gather", cls, name, axes, slow_first, tensor, networks, direction, begin)
    elif kind == "ReduceScatter":
        end = _legs("scatter", cls, name, axes, slow_first[::-1], tensor, networks, direction, begin)
    elif kind == "AllReduce":
        summed = _legs("scatter", cls, f"{name}.rs", axes, slow_first[::-1], tensor, networks, direction, begin)
        end = _legs("gather", cls, f"{name}.ag", axes, slow_first, tensor, networks, direction, summed)
    else:
        raise GraphError(f"{kind} {name!r}: axes {', '.join(axes)} are on different networks: use one after the other")
    return cls.task(f"{name}.end", after=[end], kind="sync")


def _legs(
    what: Literal["gather", "scatter"],
    cls: EntityClass,
    name: str,
    axes: tuple[str, ...],
    order: tuple[str, ...],
    tensor: RingTensor,
    networks: Mapping[str, str],
    direction: Direction,
    begin: Task,
) -> Task:
    grid = {axis: axis_size(cls, axis) for axis in axes}
    last = begin
    for number, axis in enumerate(order):
        free = order[:number] if what == "gather" else order[number + 1 :]
        on_links = networks[axis] == "ici"
        ways = ways_along(cls, axis, direction) if on_links else ring_ways(axis, grid[axis], "one_way")
        wires = links if on_links else (lambda way, network=networks[axis]: port(network))
        make = gather_leg if what == "gather" else scatter_leg
        done = make(cls, f"{name}.{axis}", tensor, Leg(grid, axis, ways, free), last.name, begin.name, wires)
        last = cls.task(f"{name}.{axis}.end", after=[Ref(last.name), *done], kind="sync")
    return last
