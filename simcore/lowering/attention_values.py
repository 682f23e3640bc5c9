"""What attention's tasks do on values: masked scores, the online softmax, sums of weighted values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from simcore.graph.access import Region, RegionFunction
from simcore.graph.reference import Indices
from simcore.lowering.spans import Loops, Span
from simcore.opgraph.operations import Attention


@dataclass(frozen=True, slots=True)
class AttentionValues:
    """The functions of one attention's tasks, for blocks of ``heads`` query heads and ``kv_heads`` key-value heads."""

    operation: Attention
    heads: int
    kv_heads: int
    k_dim: int
    v_dim: int
    new: int
    q_block: int
    stripes: tuple[tuple[str, int], ...] = ()
    """mesh axes, with their sizes, that positions are dealt out over"""

    def chip(self, c: Indices) -> int:
        """The number of a chip among those that positions are dealt out over."""
        number = 0
        for axis, size in self.stripes:
            number = number * size + int(c[axis])
        return number

    def sums_region(self, loops: Loops) -> RegionFunction:
        """The part of a buffer of sums that a block of queries uses."""

        def region(i: Indices, _: Indices) -> Region:
            begin = int(i[loops.queries]) * self.q_block
            rows = min(begin + self.q_block, self.new) - begin
            return (slice(0, self.heads), slice(0, rows), slice(0, self.v_dim + 2))

        return region

    def empty_sums(self, i: Indices, _: Indices) -> Any:
        """[heads, queries, v_dim + 2]: weighted values, running maximum, running sum."""
        begin = int(i[f"{self.operation.name}.queries"]) * self.q_block
        sums = np.zeros([self.heads, min(self.q_block, self.new - begin), self.v_dim + 2])
        sums[..., -2] = -np.inf
        return sums

    def _by_head(self, rows: Any, width: int) -> Any:
        """[positions, kv heads x width] as [heads, positions, width]."""
        split = rows.reshape(-1, self.kv_heads, width).transpose(1, 0, 2)
        return np.repeat(split, self.heads // self.kv_heads, axis=0)

    def scores(self, source: Span, loops: Loops) -> Callable[..., Any]:
        """Scores [heads, queries, positions] of a block, minus infinity where a query does not see a position."""

        stripe = source.stripe

        def scores(i: Indices, c: Indices, q: Any, *keys: Any) -> Any:
            k = np.concatenate([part.reshape(-1, part.shape[-1]) for part in keys])
            queries = q.reshape(-1, self.heads, self.k_dim).transpose(1, 0, 2)
            product = queries @ self._by_head(k, self.k_dim).transpose(0, 2, 1) * self.operation.scale
            begin, count = source.begin(i, loops)
            chip = self.chip(c)
            cached = int(source.cached[int(i[loops.request])])
            places = int(i[loops.queries]) * self.q_block + np.arange(product.shape[1])
            mine = stripe.query(cached, places, chip)[:, None]
            theirs = stripe.key(begin + np.arange(count), (chip - stripe.shift) % stripe.n)
            seen = (theirs <= mine) & (theirs >= self.operation.view.first(mine))
            if source.label == "cached":
                seen &= theirs < cached  # a place may be empty yet
            elif stripe.n > 1 and not stripe.of_keys:
                seen &= theirs % stripe.n == chip  # each new position counts on the chip that will have it
            return np.where(seen, product, -np.inf)

        return scores

    def add_values(self, weights: Any, sums: Any, *values: Any) -> Any:
        """The sums with a block's weighted values added; of a latent block, its first features are the values."""
        rows = np.concatenate([part.reshape(-1, part.shape[-1]) for part in values])
        if self.operation.v.name == self.operation.k.name:
            rows = rows.reshape(-1, self.kv_heads, self.k_dim)[..., : self.v_dim]
        return self._added(weights, sums, rows)

    def add_rows(self, weights: Any, sums: Any, *values: Any) -> Any:
        """As `add_values`, of rows that hold values and nothing else."""
        return self._added(weights, sums, np.concatenate([part.reshape(-1, part.shape[-1]) for part in values]))

    def _added(self, weights: Any, sums: Any, rows: Any) -> Any:
        added = sums.copy()
        if self.stripes:  # what no query sees may not have been written yet
            unseen = (weights == 0).all(axis=(0, 1))
            rows = np.where(unseen[:, None], 0.0, rows.reshape(len(unseen), -1))
        added[..., : self.v_dim] += weights @ self._by_head(rows, self.v_dim)
        return added


def online_softmax(scores: Any, sums: Any) -> tuple[Any, Any]:
    """Weights of this block at the new running maximum, and the sums rescaled to it."""
    old = sums[..., -2]
    highest = np.maximum(old, scores.max(axis=-1))
    # A row that has seen nothing yet (all masked) keeps its weight of nothing.
    safe = np.where(np.isneginf(highest), 0.0, highest)
    weights = np.exp(scores - safe[..., None])
    factor = np.exp(np.where(np.isneginf(old), -np.inf, old - safe))
    values = sums[..., :-2] * factor[..., None]
    total = sums[..., -1] * factor + weights.sum(axis=-1)
    return weights, np.concatenate([values, highest[..., None], total[..., None]], axis=-1)


def normalise_and_keep_sums(sums: Any) -> Any:
    """Rows [queries, heads x (v_dim + 1)]: of each head its normalised values and the logarithm of its sum of weights,
    zeros and -inf where nothing was seen."""
    total, highest = sums[..., -1:], sums[..., -2:-1]
    nothing = total == 0
    safe = np.where(nothing, 1.0, total)
    values = np.where(nothing, 0.0, sums[..., :-2] / safe)
    log = np.where(nothing, -np.inf, highest + np.log(safe))
    out = np.concatenate([values, log], axis=-1)
    heads, queries, width = out.shape
    return out.transpose(1, 0, 2).reshape(queries, heads * width)


def normalise_beside_sums(sums: Any) -> tuple[Any, Any]:
    """As `normalise`, and beside it the logarithm of each head's sum of weights, [queries, heads]."""
    return normalise(sums), (sums[..., -2] + np.log(sums[..., -1])).T


def normalise(sums: Any) -> Any:
    """Weighted values over the sum of weights, as rows [queries, heads x v_dim]."""
    out = sums[..., :-2] / sums[..., -1:]
    heads, queries, width = out.shape
    return out.transpose(1, 0, 2).reshape(queries, heads * width)
