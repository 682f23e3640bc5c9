"""What a task reads and writes: regions of tensors in an entity's memory, and buffers of a pool.

From these follow the execution on values, the tensors' lifetimes and the race check.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from simcore.graph.reference import Indices, Ref

Region: TypeAlias = tuple[slice, ...]
RegionFunction: TypeAlias = Callable[[Indices, Indices], Region]


@dataclass(frozen=True, slots=True)
class TensorAccess:
    """A region of the local array of ``tensor`` on this entity, or on the one ``on`` chips away.

    ``region`` maps (iterations, coordinates) of the accessing task, plain integers, to slices with explicit starts and
    stops, one a dimension; None is the whole array. With ``view`` the region is of the array in that shape instead of
    its own.
    """

    tensor: str
    region: RegionFunction | None = None
    on: Mapping[str, int] = field(default_factory=dict)
    view: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class BufferAccess:
    """The buffer that the task behind ``taker`` took from ``pool``; the taker itself refers to its own with None.

    ``region`` as in `TensorAccess`, within the buffer's array; None is the whole buffer.
    """

    pool: str
    taker: Ref | None = None
    region: RegionFunction | None = None


Access: TypeAlias = TensorAccess | BufferAccess


@dataclass(frozen=True, slots=True)
class WithIndices:
    """A task's function that besides its reads gets the iterations and the chip's coordinates, as plain integers."""

    function: Callable[..., Any]

    def __call__(self, iterations: Indices, coordinates: Indices, *reads: Any) -> Any:
        return self.function(iterations, coordinates, *reads)
