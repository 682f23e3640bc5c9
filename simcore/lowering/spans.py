"""Which positions attention's blocks cover: of the cache and of the new ones, for each request, and which are needed.

Position p of a cache lies at p modulo its length, so a range of positions is one or two ranges of the array.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from simcore.graph.access import Region, RegionFunction
from simcore.graph.graph import Guard
from simcore.graph.reference import Indices
from simcore.graph.work import IntArray
from simcore.opgraph.operations import Attention, View
from simcore.opgraph.tensor import ShardedTensor

BoolArray = npt.NDArray[np.bool_]


def ring_slices(first: int, count: int, length: int) -> tuple[slice, slice]:
    """Where ``count`` positions from ``first`` on lie in a cache of ``length``: up to its end, and from its start."""
    begin = first % length
    end = min(begin + count, length)
    return slice(begin, end), slice(0, count - (end - begin))


@dataclass(frozen=True, slots=True)
class Loops:
    """The names of attention's loops: requests, blocks of heads, blocks of queries, blocks of a source."""

    request: str
    heads: str
    queries: str
    block: str


@dataclass(frozen=True, slots=True)
class Stripe:
    """Positions dealt out over ``n`` chips: place j of chip c holds position j n + c.

    ``of_keys`` and ``of_queries`` say which of the two are dealt out; keys are those of the chip ``shift`` before.
    """

    n: int = 1
    of_keys: bool = False
    of_queries: bool = False
    shift: int = 0

    def key(self, place: Any, chip: Any) -> Any:
        """Position of a key at a place."""
        return place * self.n + chip if self.of_keys else place

    def query(self, cached: Any, place: Any, chip: Any) -> Any:
        """Position of a new query, after ``cached`` ones."""
        return cached + (place * self.n + chip if self.of_queries else place)


@dataclass(frozen=True)
class Span:
    """A source of keys and values in blocks: the cached positions that are seen, or the new ones.

    ``first`` and ``positions`` are those of each request, ``block`` positions go together; queries of all ``new``
    positions go in blocks of ``q_block``.
    """

    label: Literal["cached", "new"]
    k: ShardedTensor
    v: ShardedTensor
    first: IntArray
    positions: IntArray
    block: int
    cached: IntArray
    new: int
    q_block: int
    view: View
    skip: bool
    stripe: Stripe = Stripe()

    @property
    def count(self) -> int:
        """Blocks of the request that has most."""
        return int(-(-self.positions.max() // self.block))

    def sizes(self) -> IntArray:
        """Positions of each block [requests, 1, 1, blocks], 0 past a request's last."""
        begins = np.arange(self.count, dtype=np.int64) * self.block
        sizes: IntArray = np.clip(self.positions[:, None] - begins, 0, self.block)
        if (sizes == sizes[:1]).all():
            sizes = sizes[:1]
        return sizes[:, None, None, :]

    def needed(self) -> BoolArray:
        """Whether some query of a block sees something of a block [requests, query blocks, blocks]."""
        begins = np.arange(self.count, dtype=np.int64) * self.block
        exists = begins < self.positions[:, None]
        q_first = self.stripe.query(self.cached[:, None], np.arange(0, self.new, self.q_block), 0)
        shape = (len(self.cached), q_first.shape[1], self.count)
        needed: BoolArray = np.broadcast_to(exists[:, None, :], shape)
        if self.skip:
            most = self.stripe.n - 1
            k_slot = self.first[:, None, None] + begins
            k_first = self.stripe.key(k_slot, 0)
            k_last = np.minimum(k_slot + self.block, (self.first + self.positions)[:, None, None]) - 1
            k_last = self.stripe.key(k_last, most)
            ends = np.minimum(np.arange(0, self.new, self.q_block) + self.q_block, self.new) - 1
            q_last = self.stripe.query(self.cached[:, None], ends, most)[..., None]
            needed = needed & (k_first <= q_last) & (k_last >= self.view.first(q_first)[..., None])
        return needed

    def guard(self, loops: Loops) -> Guard | None:
        """Where the tasks of a block exist; None where all do."""
        needed = self.needed()
        if needed.all():
            return None
        return lambda i, _: needed[i[loops.request], i[loops.queries], i[loops.block]]

    def last(self, loops: Loops) -> Callable[[Indices, Indices], Any]:
        """The last block that a block of queries needs, -1 for none; for use from outside the loop over blocks."""
        needed = self.needed()
        last = np.where(needed.any(axis=2), self.count - 1 - np.argmax(needed[:, :, ::-1], axis=2), -1)
        return lambda i, _: last[i[loops.request], i[loops.queries]]

    def begin(self, i: Indices, loops: Loops) -> tuple[int, int]:
        """First position and length of a block."""
        request, at = int(i[loops.request]), int(i[loops.block]) * self.block
        return int(self.first[request]) + at, min(self.block, int(self.positions[request]) - at)

    def regions(
        self, loops: Loops, length: int, columns: Callable[[Indices], slice], lead: Callable[[Indices], Region]
    ) -> list[RegionFunction]:
        """The region, or two, of keys or values that hold a block; ``length`` is that of the cache."""

        def part(number: int) -> RegionFunction:
            def region(i: Indices, _: Indices) -> Region:
                begin, count = self.begin(i, loops)
                request = int(i[loops.request])
                if self.label == "new":
                    row = request * self.new + begin - int(self.first[request])
                    return (slice(row, row + count), columns(i))
                positions = ring_slices(begin, count, length)[number]
                return (*lead(i), slice(request, request + 1), positions, columns(i))

            return region

        two = self.label == "cached" and int((self.first + self.positions).max()) > length
        return [part(0), part(1)] if two else [part(0)]


def spans(
    operation: Attention, new: int, new_block: int, cached_block: int, q_block: int, stripe: Stripe = Stripe()
) -> list[Span]:
    """The cached positions that the new ones see, if there are any, and the new ones themselves.

    Of striped positions each chip has one in n: as many places as the chip that has most.
    """
    cached = np.array(operation.cached, dtype=np.int64)
    skip = operation.causal == "skip"
    found = []
    first = operation.view.first(cached)
    if (cached > first).any() and operation.k_cache is not None and operation.v_cache is not None:
        held = replace(stripe, of_keys=stripe.n > 1)
        first, last = first // stripe.n, -(-cached // stripe.n)
        most = int((last - first).max())
        found.append(
            Span(
                "cached",
                operation.k_cache,
                operation.v_cache,
                first,
                last - first,
                _even(most, cached_block),
                cached,
                new,
                q_block,
                operation.view,
                skip,
                held,
            )
        )
    every = np.full(len(cached), new, dtype=np.int64)
    own = replace(stripe, of_keys=stripe.of_queries)
    begin = cached // stripe.n if own.of_keys else cached
    found.append(
        Span("new", operation.k, operation.v, begin, every, new_block, cached, new, q_block, operation.view, skip, own)
    )
    return found


def _even(size: int, most: int) -> int:
    """Equal blocks of at most ``most``."""
    count = -(-size // max(most, 1))
    return -(-size // count)
