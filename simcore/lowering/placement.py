"""What a tiled matmul is told of its surroundings: where its arrays are, a bias, and groups of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from simcore.graph.access import Region
from simcore.graph.graph import Reference
from simcore.graph.reference import Indices
from simcore.graph.work import IntArray

Lead: TypeAlias = Callable[[Indices], Region]


@dataclass(frozen=True, slots=True)
class Placement:
    """Where an operand's array is.

    Parameters
    ----------
    tensor : the declared array, 2-D, or with leading dimensions that ``lead`` indexes (the layer).
    resident : it is in VMEM and moves nothing.
    pool : a declared pool for its tiles; None makes one for this matmul alone.
    after : what its loads (or, resident, the products) wait for; for C, what its stores wait for.
    moves : its name in the bytes by tensor, by default the tensor's.
    transposed : the array of B is [n, k].
    """

    tensor: str
    resident: bool = False
    pool: str | None = None
    after: Sequence[Reference] = ()
    lead: Lead | None = None
    moves: str = ""
    transposed: bool = False


@dataclass(frozen=True, slots=True)
class Bias:
    """A vector that is added to every row: loaded whole, and what the accumulators start from.

    ``tensor`` is declared with its elements last; ``counts`` says on which chips it is added (None: all).
    """

    tensor: str
    dtype: str
    pool: str
    after: Sequence[Reference] = ()
    lead: Lead | None = None
    counts: Callable[[Indices], bool] | None = None


@dataclass(frozen=True, slots=True)
class RowGroups:
    """Groups of A's and C's rows, one after another, each of which meets a B of its own: a loop around the three.

    ``rows`` are [iterations of the loop ``repeat`` or 1, groups]; a tile of rows that a group lacks does not exist.
    """

    loop: str
    rows: IntArray
    repeat: str = ""

    def of(self, table: IntArray, i: Indices) -> Any:
        """The entry of a table [iterations or 1, groups] for these iterations, plain or arrays."""
        return table[i[self.repeat] if len(table) > 1 else 0, i[self.loop]]

    def starts(self) -> IntArray:
        """Where each group begins."""
        return np.cumsum(self.rows, axis=1) - self.rows
