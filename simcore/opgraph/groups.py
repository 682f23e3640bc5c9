"""Groups of rows: which rows of a matmul meet which matrix of a stack, such as tokens and their experts.

The sizes are part of the graph, since its tasks are; which rows they are comes out of the values of a routing, and
must agree with the sizes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from simcore.errors import GraphError


@dataclass(frozen=True, slots=True)
class Groups:
    """Rows sorted by group, the groups one after another.

    Parameters
    ----------
    rows : rows of each group, one tuple for every iteration of the repeat around it, or one for all.
    members : the matrix of the stack that each group meets, shaped as ``rows``.
    padded : groups are filled up with empty rows, and what is over is left out (a capacity); else rows and routing
        must agree.
    """

    rows: tuple[tuple[int, ...], ...]
    members: tuple[tuple[int, ...], ...]
    padded: bool = False

    def __post_init__(self) -> None:
        if not self.rows or not all(self.rows):
            raise GraphError("groups of rows: there must be at least one group in each iteration")
        if [len(r) for r in self.rows] != [len(m) for m in self.members]:
            raise GraphError("groups of rows: rows and members must have the same shape")
        if any(count < 0 for rows in self.rows for count in rows):
            raise GraphError("groups of rows: a group has 0 or more rows")
        if len({sum(rows) for rows in self.rows}) > 1:
            raise GraphError("groups of rows: every iteration must have the same number of rows in all")

    @property
    def total(self) -> int:
        """Rows of all groups together."""
        return sum(self.rows[0])

    @property
    def slots(self) -> int:
        """The most groups that an iteration has."""
        return max(len(rows) for rows in self.rows)

    def _table(self, of: tuple[tuple[int, ...], ...]) -> np.ndarray[Any, np.dtype[np.int64]]:
        table = np.zeros((len(of), self.slots), dtype=np.int64)
        for at, values in enumerate(of):
            table[at, : len(values)] = values
        return table

    def row_table(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Rows [iterations or 1, slots]; 0 where an iteration has fewer groups."""
        return self._table(self.rows)

    def member_table(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Members [iterations or 1, slots]."""
        return self._table(self.members)

    def at(self, iteration: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Rows and members of one iteration."""
        number = iteration if len(self.rows) > 1 else 0
        return self.rows[number], self.members[number]

    def sources(self, routing: Any, iteration: int = 0) -> np.ndarray[Any, np.dtype[np.int64]]:
        """For each row of all groups the row of ``routing`` [rows, stack] that it comes from, -1 for an empty one.

        A group takes the rows with a weight for its member, in order. Raises `GraphError` where the routing sends a
        group another number of rows than planned, or rows to a member without a group.
        """
        rows, members = self.at(iteration)
        chosen = np.asarray(routing) != 0
        found = []
        for count, member in zip(rows, members, strict=True):
            mine = np.flatnonzero(chosen[:, member])
            if not self.padded and len(mine) != count:
                raise GraphError(f"the routing sends {len(mine)} rows to expert {member}, the graph has {count}")
            found.append(np.concatenate([mine[:count], np.full(max(count - len(mine), 0), -1)]))
        alone = set(np.flatnonzero(chosen.any(axis=0)).tolist()) - set(members)
        if alone:
            raise GraphError(f"the routing sends rows to experts {sorted(alone)}, which the graph does not have")
        return np.concatenate(found).astype(np.int64)

    def targets(self, iteration: int = 0) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The member of each row of all groups."""
        rows, members = self.at(iteration)
        return np.repeat(np.array(members, dtype=np.int64), rows)
