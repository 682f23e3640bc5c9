"""What leads to two nodes of a frozen order from their last common event, and nothing else does: a *fork*.

How the two lie to each other then depends on the delays since the fork alone, whatever came before it, for as long as
nothing else that either waits for becomes later. If the delays are alike the two are tied and stay tied whatever the
durations, and so does their order, which the tie rule gave. If not, only as many roundings count between them as there
are delays since the fork.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
import numpy.typing as npt

from simcore.replay import Edge, FloatArray, Frozen

MOST_STEPS = 400


@dataclass(frozen=True, slots=True)
class Fork:
    """The nodes after the common event on the ways to both, and the delays (rows of the table) on them."""

    nodes: tuple[int, ...]
    delays: tuple[int, ...]


class Forks:
    """What leads to the nodes of a frozen order."""

    def __init__(self, frozen: Frozen, base_delays: FloatArray, kinds: Sequence[int]) -> None:
        """``base_delays`` as of the run itself, one column; ``kinds`` numbers delays that are equal at any figure."""
        self.frozen, self.kinds = frozen, kinds
        self.delay = base_delays[:, 0].tolist()
        self.at = frozen.base_ps.tolist()
        random = Random(0)
        self.codes = {kind: random.getrandbits(64) for kind in sorted(set(kinds))}  # sums tell multisets apart
        self.pairs: dict[tuple[int, int], Fork | None] = {}

    def leads(self, node: int) -> list[Edge]:
        """The edges that the node's time comes from."""
        at, delay = self.at, self.delay
        return [
            (source, row)
            for source, row in self.frozen.incoming[node]
            if at[source] + (delay[row] if row >= 0 else 0) == at[node]
        ]

    def fork(self, a: int, b: int) -> Fork | None:
        """The fork of two nodes, with delays alike if they are at one instant; None where there is none."""
        if (a, b) not in self.pairs:
            self.pairs[a, b] = self._fork(a, b, alike=self.at[a] == self.at[b])
        return self.pairs[a, b]

    def _fork(self, a: int, b: int, alike: bool) -> Fork | None:
        """Go back from both, from the later one first, until one comes to where the other has been."""
        here, passed = [a, b], [0, 0]
        seen: list[dict[tuple[int, int], int]] = [{(a, 0): 0}, {(b, 0): 0}]
        ways: list[list[Edge]] = [[], []]
        going = [True, True]
        for _ in range(MOST_STEPS):
            side = int(self.at[here[1]] > self.at[here[0]]) if all(going) else int(going[1])
            if not going[side]:
                return None
            leading = set(self.leads(here[side]))
            if len(leading) != 1:
                going[side] = False
                continue
            source, row = leading.pop()
            ways[side].append((here[side], row))
            here[side] = source
            if alike and row >= 0:
                passed[side] += self.codes[self.kinds[row]]
            key = source, passed[side]
            if key in seen[1 - side]:
                edges = [*ways[side], *ways[1 - side][: seen[1 - side][key]]]
                return Fork(tuple(node for node, _ in edges), tuple(row for _, row in edges if row >= 0))
            seen[side][key] = len(ways[side])
        return None

    def margin(self, node: int, value: FloatArray, delays: FloatArray, columns: slice) -> FloatArray:
        """By how much the edge that leads to ``node`` is later than any other, in each column."""
        leading = set(self.leads(node))
        here = value[node, columns]
        margin: npt.NDArray[np.float64] = np.full(here.shape, np.inf)
        for source, row in self.frozen.incoming[node]:
            if (source, row) not in leading:
                other = value[source, columns] + (delays[row, columns] if row >= 0 else 0.0)
                np.minimum(margin, here - other, out=margin)
        return margin
