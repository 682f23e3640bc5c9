"""Sharded tensors of an op graph: a layout, a dtype, and the part that the tensor plays."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from simcore.layout import TensorLayout

Role = Literal["weight", "cache", "state", "input", "activation", "gathered", "gradient"]


@dataclass(frozen=True, slots=True)
class ShardedTensor:
    """A tensor as an op graph's operations see it.

    Parameters
    ----------
    layout : its name, dimensions, what splits them, and the axes of partial sums.
    role : weights and caches live in HBM for the whole run; inputs are given; activations
        are made on the way, and gathered weights too, in HBM. An optimizer's states live for the whole run like
        weights; gradients of weights are made on the way, in HBM.
    repeat : the repeat of which every iteration has one of its own (a layer's weights), "" for none.
    rows : leading dimensions that count rows (tokens); the others are a row's features.
    held : of a cache, the positions that it holds for each request in the end, where that is not all of its length.
    """

    layout: TensorLayout
    dtype: str
    role: Role
    repeat: str = ""
    rows: int = 1
    held: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        return self.layout.name

    @property
    def dim_names(self) -> tuple[str, ...]:
        return self.layout.dim_names

    def completed(self, axis: str) -> ShardedTensor:
        """The same tensor without partial sums over ``axis``."""
        return replace(self, layout=self.layout.with_partial(a for a in self.layout.partial if a != axis))

    def __str__(self) -> str:
        return str(self.layout)
