"""Hosts beside their chips, and transfers through a host's network card that its chips share.

Chips and hosts are two classes over the same mesh axes and one more, ``host``: chips are at 0 there, a host is at 1,
beside the first of its chips. So a host names its chips by offsets, and all of a host's chips go through one unit.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from simcore.collectives.moving import Mover, Sent, Wire
from simcore.errors import GraphError
from simcore.graph import EntityClass, Ref, TaskGraph, TensorAccess, Transfer
from simcore.graph.access import Access, RegionFunction
from simcore.graph.graph import Guard, Reference, Task
from simcore.graph.reference import At, Indices
from simcore.graph.work import Amount

HOST_AXIS = "host"

Offset = Mapping[str, int]


@dataclass(frozen=True)
class Hosts:
    """The hosts of a class of chips; ``offsets`` lead from a host to each of its chips, in order."""

    cls: EntityClass
    chips: EntityClass
    offsets: tuple[Offset, ...]

    @property
    def chips_per_host(self) -> int:
        return len(self.offsets)

    def of_chip(self, number: int, beside: Offset | None = None) -> dict[str, int]:
        """From a chip that is its host's chip ``number`` to the host, or to the one of the chip ``beside`` it."""
        return add_offsets(negative(self.offsets[number]), beside or {})


def chips_and_hosts(
    graph: TaskGraph,
    mesh: Mapping[str, int],
    host_shape: Sequence[int],
    *,
    wraps: bool | Mapping[str, bool] = True,
    chips: str = "chip",
    hosts: str = "host",
) -> Hosts:
    """Declare chips over ``mesh`` and a host for each block of ``host_shape`` of them, over the mesh's last axes.

    >>> hosts = chips_and_hosts(TaskGraph("v5e"), {"x": 4, "y": 4}, (4, 2))
    >>> hosts.chips.count, hosts.cls.count, hosts.chips_per_host
    (16, 2, 8)

    Raises `GraphError` if the host's shape does not divide the mesh.
    """
    shape = (1,) * (len(mesh) - len(host_shape)) + tuple(host_shape)
    if len(shape) > len(mesh) or any(h < 1 or size % h for size, h in zip(mesh.values(), shape, strict=True)):
        raise GraphError(f"hosts of {'x'.join(map(str, host_shape))} chips do not fill the mesh {dict(mesh)}")
    if HOST_AXIS in mesh:
        raise GraphError(f"the mesh has an axis {HOST_AXIS!r}, which is the hosts' own: give it another name")
    axes = {**mesh, HOST_AXIS: 2}
    wrap = {**(dict.fromkeys(mesh, wraps) if isinstance(wraps, bool) else dict(wraps)), HOST_AXIS: False}
    everywhere = list(itertools.product(*(range(size) for size in mesh.values())))
    first = [at for at in everywhere if not any(c % h for c, h in zip(at, shape, strict=True))]
    within = itertools.product(*(range(h) for h in shape))
    return Hosts(
        cls=graph.entity_class(hosts, kind="host", mesh=axes, wraps=wrap, only=[(*at, 1) for at in first]),
        chips=graph.entity_class(chips, mesh=axes, wraps=wrap, only=[(*at, 0) for at in everywhere]),
        offsets=tuple({**dict(zip(mesh, by, strict=True)), HOST_AXIS: -1} for by in within),
    )


def add_offsets(*offsets: Offset) -> dict[str, int]:
    """Their sum."""
    total: dict[str, int] = {}
    for offset in offsets:
        for axis, by in offset.items():
            total[axis] = total.get(axis, 0) + by
    return total


def negative(offset: Offset) -> dict[str, int]:
    """The way back."""
    return {axis: -by for axis, by in offset.items()}


@dataclass(frozen=True)
class HostSent(Sent):
    """A transfer through the hosts: its tasks ``name.j`` are the hosts', one for each of a host's chips."""

    hosts: Hosts | None = None

    def arrived(self, at: Mapping[str, At] | None = None, outside: Any = "error") -> list[Ref]:
        there = [Ref(name, at=at or {}, cls=self.cls, outside=outside) for name in self.there]
        return [*self._through(at, negative(self.to)), *there]

    def left(
        self, at: Mapping[str, At] | None = None, outside: Any = "error", on: Mapping[str, int] | None = None
    ) -> list[Ref]:
        return [*self._through(at, on or {}), *super().left(at, outside, on)[1:]]

    def _through(self, at: Mapping[str, At] | None, beside: Offset, event: Any = "done") -> list[Ref]:
        """A chip's references to its own host's task, or to that of the chip ``beside`` it: the one that there is."""
        assert self.hosts is not None
        return [
            Ref(f"{self.here[0]}.{j}", at=at or {}, on=self.hosts.of_chip(j, beside), event=event, outside="ignore")
            for j in range(self.hosts.chips_per_host)
        ]

    def starts(self, beside: Offset) -> list[Ref]:
        """References to its start, as `arrived` and `left` are to its completion."""
        return self._through(None, beside, "start")


@dataclass(frozen=True)
class ThroughHosts(Mover):
    """Makes the transfers of chips as tasks of their hosts, in ``loops`` (name, count) like the chips' own tasks."""

    hosts: Hosts | None = None
    loops: tuple[tuple[str, int], ...] = ()

    def sent(self, name: str, to: Mapping[str, int]) -> HostSent:
        plain = super().sent(name, to)
        return HostSent(plain.cls, plain.to, plain.here, plain.there, self.hosts)

    def send(
        self,
        name: str,
        wire: Wire,
        to: Mapping[str, int],
        *,
        bytes: Amount,
        after: Sequence[Reference],
        reads: Sequence[Access],
        writes: Sequence[Access],
        function: Callable[..., Any],
        when: Guard | None = None,
    ) -> HostSent:
        hosts, sent = self.hosts, self.sent(name, to)
        assert hosts is not None
        if when is not None:
            raise GraphError(f"transfer {name!r}: what goes through hosts goes from every chip")
        hosts.cls.unit(wire.out, kind=wire.kind)
        self._in_loops(
            lambda: [
                hosts.cls.task(
                    f"{name}.{j}",
                    unit=wire.out,
                    work=Transfer(bytes),
                    moves=self.tensor.name,
                    after=[_seen_by_host(ref, offset) for ref in after],
                    reads=[_access_by_host(access, offset) for access in reads],
                    writes=[_access_by_host(access, offset) for access in writes],
                    function=function,
                )
                for j, offset in enumerate(hosts.offsets)
            ],
            0,
        )
        if self.in_hbm:
            self.hbm(f"{name}.read", bytes, "hbm_load", sent.starts({}))
            self.hbm(f"{name}.write", bytes, "hbm_store", sent.starts(negative(to)))
        return sent

    def _in_loops(self, make: Callable[[], Any], depth: int) -> None:
        if depth == len(self.loops):
            make()
            return
        assert self.hosts is not None
        with self.hosts.cls.loop(*self.loops[depth]):
            self._in_loops(make, depth + 1)


def _seen_by_host(reference: Reference, offset: Offset) -> Ref:
    """The host's reference to what its chip at ``offset`` refers to."""
    if isinstance(reference, Task):
        reference = reference.ref()
    ref = Ref(reference) if isinstance(reference, str) else reference
    at = {loop: _moved(which, offset) if callable(which) else which for loop, which in ref.at.items()}
    return replace(ref, at=at, on=add_offsets(offset, ref.on), cls=None)


def _access_by_host(access: Access, offset: Offset) -> TensorAccess:
    assert isinstance(access, TensorAccess)
    region: RegionFunction | None = None if access.region is None else _moved(access.region, offset)
    return TensorAccess(access.tensor, region, add_offsets(offset, access.on), access.view)


def _moved(function: Callable[[Indices, Indices], Any], offset: Offset) -> Callable[[Indices, Indices], Any]:
    """A function of a chip's coordinates as one of its host's."""

    def of_host(i: Indices, c: Indices) -> Any:
        return function(i, {axis: at + offset.get(axis, 0) for axis, at in c.items()})

    return of_host
