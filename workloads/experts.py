"""How many rows each expert gets: from the real routing, or as expected of one with a given imbalance.

Each token uses k of E experts; expert e is among them with probability p_e, which add up to k. Of N tokens that choose
independently, expert e gets N p_e rows on average and is hit by none with probability (1 - p_e)^N, so that

    E[distinct experts hit] = sum over e of 1 - (1 - p_e)^N,        balanced: E (1 - (1 - k/E)^N).

An imbalance of i makes the most popular expert's p_e i times the mean k/E, the others following a power law.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simcore.errors import ModelConfigError
from simcore.opgraph import Groups
from workloads.config import MoeConfig


@dataclass(frozen=True, slots=True)
class ExpertLoad:
    """How tokens spread over experts.

    Parameters
    ----------
    imbalance : rows of the fullest expert over the mean of all; 1 is balanced.
    capacity_factor : None drops no token. Else every expert has room for ceil(factor * tokens * k / E) rows, computes
        all of them and leaves out tokens beyond.
    rows : the rows of each expert, for every layer with experts: what a real router gives.
    """

    imbalance: float = 1.0
    capacity_factor: float | None = None
    rows: tuple[tuple[int, ...], ...] | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.imbalance) and self.imbalance >= 1):
            raise ModelConfigError(f"imbalance {self.imbalance}: the fullest expert's share of the mean is 1 or more")
        factor = self.capacity_factor
        if factor is not None and not (math.isfinite(factor) and factor > 0):
            raise ModelConfigError(f"capacity factor {factor}: it must be more than 0 (leave it out to drop no token)")


def hit_probabilities(moe: MoeConfig, imbalance: float = 1.0) -> list[float]:
    """The probability that a token uses each expert, the most popular first; they add up to k."""
    e, k = moe.n_experts, moe.top_k
    if imbalance > e / k:
        raise ModelConfigError(
            f"imbalance {imbalance:g}: with {k} of {e} experts the fullest gets at most {e / k:g} times the mean"
        )
    ranks = np.arange(1, e + 1, dtype=float)

    def shares(power: float) -> list[float]:
        weights = ranks**-power
        return [float(share) for share in k * weights / weights.sum()]

    low, high = 0.0, 64.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if shares(middle)[0] < imbalance * k / e else (low, middle)
    return shares(low)


def expected_distinct_experts(moe: MoeConfig, tokens: int, imbalance: float = 1.0) -> float:
    """Experts of one layer that at least one of ``tokens`` uses, on average; see the module's formula."""
    return sum(1 - (1 - p) ** tokens for p in hit_probabilities(moe, imbalance))


def capacity(moe: MoeConfig, tokens: int, factor: float) -> int:
    """Rows that each expert has room for."""
    return math.ceil(factor * tokens * moe.top_k / moe.n_experts)


def expert_groups(moe: MoeConfig, tokens: int, load: ExpertLoad, layers: Sequence[int]) -> Groups:
    """The groups of rows of the layers with experts whose numbers among these are ``layers``."""
    e = moe.n_experts
    if load.capacity_factor is not None:
        room = capacity(moe, tokens, load.capacity_factor)
        return Groups((((room,) * e),), ((tuple(range(e))),), padded=True)
    if load.rows is not None:
        counts = [_checked(moe, tokens, load.rows, layer) for layer in layers]
        members = [tuple(expert for expert, rows in enumerate(row) if rows) for row in counts]
        rows = [tuple(row[expert] for expert in hit) for row, hit in zip(counts, members, strict=True)]
        return Groups(tuple(rows), tuple(members))
    rows_of_hit = _expected_rows(moe, tokens, load.imbalance)
    return Groups((rows_of_hit,), (tuple(range(len(rows_of_hit))),))


def sent_rows(moe: MoeConfig, tokens: int, ways: int, imbalance: float = 1.0) -> int:
    """Rows that a chip with ``tokens`` tokens sends to the chip that gets most of ``ways`` that share the experts.

    Experts are dealt out by popularity, so that the first chip has the most popular one, and most of the rows.
    """
    share = sum(hit_probabilities(moe, imbalance)[::ways]) / moe.top_k
    return math.ceil(tokens * moe.top_k * share - 1e-9)


def received_groups(moe: MoeConfig, tokens: int, ways: int, load: ExpertLoad) -> Groups:
    """The rows of a chip's own experts, of ``ways`` chips with ``tokens`` tokens each: those of the fullest chip."""
    mine = moe.n_experts // ways
    if load.capacity_factor is not None:
        room = ways * capacity(moe, tokens, load.capacity_factor)
        return Groups(((room,) * mine,), (tuple(range(mine)),), padded=True)
    popularity = hit_probabilities(moe, load.imbalance)[::ways]
    expected = sum(1 - (1 - p) ** (tokens * ways) for p in popularity)
    total = ways * sent_rows(moe, tokens, ways, load.imbalance)
    rows = _in_proportion(popularity, max(min(round(expected), total), 1), total, total)
    return Groups((rows,), (tuple(range(len(rows))),))


def sent_groups(moe: MoeConfig, tokens: int, ways: int, load: ExpertLoad) -> Groups:
    """A chip's rows as it sends them, sorted by the chip that has their expert: by expert with a capacity, else as many
    to each chip as the fullest gets."""
    if load.capacity_factor is not None:
        return expert_groups(moe, tokens, load, [])
    each = sent_rows(moe, tokens, ways, load.imbalance)
    return Groups(((each,) * ways,), (tuple(range(ways)),), padded=True)


def _checked(moe: MoeConfig, tokens: int, rows: tuple[tuple[int, ...], ...], layer: int) -> tuple[int, ...]:
    if layer >= len(rows) or len(rows[layer]) != moe.n_experts or sum(rows[layer]) != tokens * moe.top_k:
        raise ModelConfigError(
            f"expert rows: each of {len(moe.layers)} layers needs {moe.n_experts} counts that add up to "
            f"{tokens} tokens x {moe.top_k}"
        )
    return rows[layer]


def _expected_rows(moe: MoeConfig, tokens: int, imbalance: float) -> tuple[int, ...]:
    """Rows of the experts that are hit: as many as expected, in proportion to their popularity, at least 1 each."""
    popularity = hit_probabilities(moe, imbalance)
    hit = max(round(expected_distinct_experts(moe, tokens, imbalance)), moe.top_k)
    return _in_proportion(popularity, hit, tokens * moe.top_k, tokens)


def _in_proportion(popularity: Sequence[float], hit: int, total: int, most: int) -> tuple[int, ...]:
    """``total`` rows over the first ``hit`` experts in proportion to their popularity, from 1 to ``most`` each."""
    share = np.array(popularity[:hit])
    ideal = 1 + (total - hit) * share / share.sum()
    rows = np.minimum(np.floor(ideal + 1e-9).astype(int), most)
    # What rounding and the most that an expert can get leave over goes to the most popular with room.
    order = np.argsort(-(ideal - rows), kind="stable")
    while rows.sum() < total:
        for at in order:
            if rows.sum() < total and rows[at] < most:
                rows[at] += 1
    return tuple(int(count) for count in rows)
