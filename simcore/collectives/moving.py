"""One transfer of a collective as tasks: the link's, and beside it those of every other unit that it loads.

A tensor in HBM is read there by the sender and written there by the receiver. These are tasks of their own, ready when
the link begins to serve, so that nothing is held while waiting for another unit; who consumes the transfer waits for
all of them. The ideal model leaves HBM's part out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from simcore.collectives.tensor import RingTensor
from simcore.graph import EntityClass, Ref, Transfer, Vector
from simcore.graph.access import Access
from simcore.graph.graph import Guard, Reference
from simcore.graph.reference import At
from simcore.graph.work import Amount


@dataclass(frozen=True, slots=True)
class Wire:
    """The sender's unit that a transfer goes through: a direction of a link, a port to a switch or a network card.

    What is sent to a switch also comes in at the receiver's port. Every schedule here has each chip send to one other
    and receive from one other at a time, so that port is never the narrower one and needs no task of its own.
    """

    out: str
    kind: str


def ici(axis: str, suffix: str) -> Wire:
    """The link in one direction of an axis."""
    return Wire(f"ici_{axis}{suffix}", "ici")


def port(kind: str) -> Wire:
    """A chip's port to a switch or a network: of kind "nvlink", "network" or "dcn"."""
    return Wire(kind, kind)


@dataclass(frozen=True)
class Sent:
    """A transfer's tasks: those of the sender, the first of them the link's, and those of the receiver."""

    cls: str
    to: Mapping[str, int]
    here: tuple[str, ...]
    there: tuple[str, ...] = ()

    def arrived(self, at: Mapping[str, At] | None = None, outside: Any = "error") -> list[Ref]:
        """What a task of the receiver waits for to have it all."""
        back = {axis: -offset for axis, offset in self.to.items()}
        return [
            *(Ref(name, at=at or {}, on=back, outside=outside) for name in self.here[:1]),
            *(Ref(name, at=at or {}, cls=self.cls, outside=outside) for name in self.there),
        ]

    def left(
        self, at: Mapping[str, At] | None = None, outside: Any = "error", on: Mapping[str, int] | None = None
    ) -> list[Ref]:
        """What a task of the sender (or of the chip that has it at ``on``) waits for to overwrite what was sent."""
        return [
            Ref(name, at=at or {}, on=on or {}, cls=None if on else self.cls, outside=outside) for name in self.here
        ]


@dataclass(frozen=True)
class Done:
    """Tasks that together do one thing on their own chip."""

    names: tuple[str, ...]

    def refs(
        self, at: Mapping[str, At] | None = None, on: Mapping[str, int] | None = None, outside: Any = "error"
    ) -> list[Ref]:
        return [Ref(name, at=at or {}, on=on or {}, outside=outside) for name in self.names]


@dataclass(frozen=True)
class Mover:
    """Makes the transfers and additions of one collective over ``tensor``."""

    cls: EntityClass
    tensor: RingTensor

    @property
    def in_hbm(self) -> bool:
        return self.tensor.memory == "hbm"

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
    ) -> Sent:
        """One transfer to the chip ``to`` away. ``when`` is in terms of the sender and must be false for a sender
        outside the mesh, as it is asked of the receiver's neighbour too.
        """
        cls = self.cls
        cls.unit(wire.out, kind=wire.kind)
        cls.task(
            name,
            unit=wire.out,
            work=Transfer(bytes),
            moves=self.tensor.name,
            after=after,
            reads=reads,
            writes=writes,
            function=function,
            when=when,
        )
        if self.in_hbm:
            back = {axis: -offset for axis, offset in to.items()}
            self.hbm(f"{name}.read", bytes, "hbm_load", [Ref(name, event="start")], when)
            start = Ref(name, on=back, event="start")
            self.hbm(f"{name}.write", bytes, "hbm_store", [start], _seen_from(cls, back, when))
        return self.sent(name, to)

    def add(
        self,
        name: str,
        *,
        elements: Amount,
        operands: int = 2,
        after: Sequence[Reference],
        reads: Sequence[Access],
        writes: Sequence[Access],
        function: Callable[..., Any],
        when: Guard | None = None,
    ) -> Done:
        """The sum of ``operands`` arrays of ``elements`` elements each on the VPU: overhead, which the ideal model
        leaves out. Arrays in HBM are loaded from there and the sum is stored there.
        """
        cls, tensor = self.cls, self.tensor
        cls.unit("vpu")
        rows = int(np.prod(tensor.lead, dtype=np.int64))
        touched = (operands + 1) * elements * tensor.element_bytes
        cls.task(
            name,
            unit="vpu",
            work=Vector(operations=elements * rows * (operands - 1), bytes=touched),
            after=after,
            reads=reads,
            writes=writes,
            function=function,
            when=when,
            overhead=True,
        )
        if self.in_hbm:
            self.hbm(
                f"{name}.load", operands * elements * tensor.element_bytes, "hbm_load", [Ref(name, event="start")], when
            )
            self.hbm(f"{name}.store", elements * tensor.element_bytes, "hbm_store", [Ref(name, event="start")], when)
        return self.added(name)

    def added(self, name: str) -> Done:
        """The tasks of the addition ``name``, which may be made later."""
        return Done((name, f"{name}.load", f"{name}.store") if self.in_hbm else (name,))

    def sent(self, name: str, to: Mapping[str, int]) -> Sent:
        """The tasks of the transfer ``name``, which may be made later."""
        here, there = ((name, f"{name}.read"), (f"{name}.write",)) if self.in_hbm else ((name,), ())
        return Sent(self.cls.name, dict(to), here, there)

    def hbm(self, name: str, bytes: Amount, kind: str, starts: Sequence[Ref], when: Guard | None = None) -> None:
        """HBM's part of a transfer or an addition. A queue of its own: it keeps nothing else waiting for its turn."""
        self.cls.unit("hbm")
        self.cls.task(
            name,
            unit="hbm",
            queue=name,
            work=Transfer(bytes),
            kind=kind,
            moves=self.tensor.name,
            after=starts,
            when=when,
            overhead=True,
        )


def _seen_from(cls: EntityClass, offset: Mapping[str, int], when: Guard | None) -> Guard | None:
    """The guard of the entity ``offset`` away."""
    if when is None:
        return None
    sizes = dict(zip(cls.axes, cls.sizes, strict=True))
    wraps = dict(zip(cls.axes, cls.wraps, strict=True))

    def guard(i: Mapping[str, Any], c: Mapping[str, Any]) -> Any:
        moved = dict(c)
        inside: Any = np.True_
        for axis, by in offset.items():
            there = np.asarray(c[axis]) + by
            inside = inside & (wraps[axis] | ((there >= 0) & (there < sizes[axis])))
            moved[axis] = there % sizes[axis]
        return inside & when(i, moved)

    return guard


def identity(*sent: Any) -> Any:
    """What is written is what was read, part by part."""
    return sent


def pairwise_sum(*arrays: Any) -> Any:
    """Sums of the first half of the arrays, one by one, with the second half."""
    half = len(arrays) // 2
    return tuple(own + arrived for own, arrived in zip(arrays[:half], arrays[half:], strict=True))
