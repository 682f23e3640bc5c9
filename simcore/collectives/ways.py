"""The directions in which a collective goes along a mesh axis: round a ring, one way or both, or out along a line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from simcore.errors import GraphError
from simcore.graph import EntityClass
from simcore.graph.reference import Indices

Direction = Literal["one_way", "both"]


@dataclass(frozen=True, slots=True)
class Way:
    """One direction along an axis of ``n`` chips, taken in ``steps`` steps of one hop each.

    On a ring that goes both ways, an even number of chips has one that is as far in either direction: its shard is
    ``halved`` between them. Positions and indices below are integers or arrays of them.
    """

    axis: str
    n: int
    sign: int
    steps: int
    halved: bool
    wraps: bool

    @property
    def suffix(self) -> str:
        return "+" if self.sign > 0 else "-"

    @property
    def on(self) -> dict[str, int]:
        """The chip that is sent to, as an offset."""
        return {self.axis: self.sign}

    @property
    def back(self) -> dict[str, int]:
        """The chip that is received from, as an offset."""
        return {self.axis: -self.sign}

    def beyond(self, position: Any, hops: Any) -> Any:
        """The position ``hops`` further on; on a line it may be outside."""
        there = position + self.sign * hops
        return there % self.n if self.wraps else there

    def inside(self, *positions: Any) -> Any:
        """Whether all positions are chips: always on a ring."""
        if self.wraps:
            return np.True_
        found: Any = np.True_
        for position in positions:
            position = np.asarray(position)
            found = found & (position >= 0) & (position < self.n)
        return found


def axis_size(cls: EntityClass, axis: str) -> int:
    """The size of a mesh axis. Raises `GraphError` if the class has no such axis."""
    if axis not in cls.axes:
        raise GraphError(f"class {cls.name!r} has no mesh axis {axis!r}; it has {', '.join(cls.axes) or 'none'}")
    return cls.sizes[cls.axes.index(axis)]


def axis_wraps(cls: EntityClass, axis: str) -> bool:
    """Whether the axis wraps around; one of a single chip does."""
    return axis_size(cls, axis) == 1 or cls.wraps[cls.axes.index(axis)]


def ring_size(cls: EntityClass, axis: str) -> int:
    """The size of an axis that wraps around. Raises `GraphError` if it does not."""
    n = axis_size(cls, axis)
    if not axis_wraps(cls, axis):
        raise GraphError(f"axis {axis!r} of class {cls.name!r} does not wrap around: it is a line, not a ring")
    return n


def ring_ways(axis: str, n: int, direction: Direction) -> list[Way]:
    """The directions used by a ring of ``n``: one of n - 1 steps, or two of about half as many."""
    if n < 1:
        raise GraphError(f"a ring of {n} chips; 1 or more is meant")
    wraps = n > 1  # a single chip has no neighbours, whatever its axis does
    if direction == "one_way":
        return [Way(axis, n, +1, n - 1, False, wraps)]
    if direction != "both":
        raise GraphError(f"direction {direction!r}; one_way or both is meant")
    even = n % 2 == 0
    return [Way(axis, n, +1, n // 2, even, wraps), Way(axis, n, -1, n // 2, even, wraps)]


def line_ways(axis: str, n: int) -> list[Way]:
    """The two directions of a line of ``n``: what is sent goes to its ends, in up to n - 1 steps."""
    return [Way(axis, n, sign, n - 1, False, False) for sign in (+1, -1)]


def ways_along(cls: EntityClass, axis: str, direction: Direction) -> list[Way]:
    """The directions along an axis: those of a ring if it wraps around, else those of a line."""
    n = axis_size(cls, axis)
    if axis_wraps(cls, axis):
        return ring_ways(axis, n, direction)
    if direction not in ("one_way", "both"):
        raise GraphError(f"direction {direction!r}; one_way or both is meant")
    return line_ways(axis, n)


def check_axes(cls: EntityClass, axes: Sequence[str]) -> tuple[str, ...]:
    """The axes of a collective. Raises `GraphError` for none, an unknown one, or one named twice."""
    if isinstance(axes, str):
        axes = (axes,)
    if not axes:
        raise GraphError("a collective needs at least one mesh axis")
    for axis in axes:
        axis_size(cls, axis)
        if list(axes).count(axis) > 1:
            raise GraphError(f"mesh axis {axis!r} is named twice; a collective uses an axis once")
    return tuple(axes)


Index = Callable[[Indices, Indices], Any]
"""(iterations, coordinates) -> index of a shard along the axis, as integers or arrays"""
