"""The operations that only a backward pass and an optimizer need; see `simcore.opgraph.operations`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from simcore.opgraph.tensor import ShardedTensor

if TYPE_CHECKING:
    from simcore.opgraph.operations import Attention


@dataclass(frozen=True, slots=True)
class Keep:
    """``out`` = a copy of ``source``, which is written over later."""

    name: str
    source: ShardedTensor
    out: ShardedTensor

    @property
    def reads(self) -> tuple[ShardedTensor, ...]:
        return (self.source,)


@dataclass(frozen=True, slots=True)
class OuterProduct:
    """``out[c.., r..] = sum over rows of left[rows, c..] right[rows, r..]``: what goes back to a matrix."""

    name: str
    left: ShardedTensor
    right: ShardedTensor
    out: ShardedTensor

    @property
    def reads(self) -> tuple[ShardedTensor, ...]:
        return (self.left,) if self.left.name == self.right.name else (self.left, self.right)


@dataclass(frozen=True, slots=True)
class RowSum:
    """``out[features] = sum over rows of function(*inputs, *vectors)``: what goes back to a norm's scale or a bias."""

    name: str
    inputs: tuple[ShardedTensor, ...]
    vectors: tuple[ShardedTensor, ...]
    out: ShardedTensor
    operations_per_element: float
    function: Callable[..., Any]

    @property
    def reads(self) -> tuple[ShardedTensor, ...]:
        return *self.inputs, *self.vectors


@dataclass(frozen=True, slots=True)
class ScatterAdd:
    """``out[V, ..]`` = for each entry of a table the sum of the rows of ``source`` whose token it is."""

    name: str
    source: ShardedTensor
    tokens: ShardedTensor
    out: ShardedTensor

    @property
    def reads(self) -> tuple[ShardedTensor, ...]:
        return self.source, self.tokens


@dataclass(frozen=True, slots=True)
class AttentionGradient:
    """What goes back to the queries, keys and values of ``attention``, from ``back`` for what it gave.

    ``stats`` [B, T, N, 2] have of each query and head the logarithm of its sum of weights, which the forward pass kept,
    and how much of ``back`` lies along what attention gave. The weights are computed once more from them, block by
    block: in one pass for the queries, and in another for keys and values, so that sums stay small (7 products of a
    block of queries and one of keys, where 5 would do if all of a head's sums were held). Source: Dao 2023
    (FlashAttention-2), algorithm 2; the two passes are those of JAX's kernels for TPUs.
    """

    name: str
    attention: Attention
    q: ShardedTensor
    k: ShardedTensor
    v: ShardedTensor
    stats: ShardedTensor
    back: ShardedTensor
    to_q: ShardedTensor
    to_k: ShardedTensor
    to_v: ShardedTensor

    @property
    def reads(self) -> tuple[ShardedTensor, ...]:
        return self.q, self.k, self.v, self.stats, self.back

    @property
    def out(self) -> ShardedTensor:
        return self.to_q


@dataclass(frozen=True, slots=True)
class Update:
    """An optimizer's step: ``function(gradient, *states, weight)`` gives the new states and the new weight, in place.

    ``extra`` are further tensors of one number that it reads, such as the norm of all gradients.
    """

    name: str
    gradient: ShardedTensor
    states: tuple[ShardedTensor, ...]
    weight: ShardedTensor
    operations_per_element: float
    function: Callable[..., Any]
    extra: tuple[ShardedTensor, ...] = ()

    @property
    def reads(self) -> tuple[ShardedTensor, ...]:
        return self.gradient, *self.states, self.weight, *self.extra

    @property
    def out(self) -> ShardedTensor:
        return self.weight
