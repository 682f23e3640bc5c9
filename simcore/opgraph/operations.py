"""The operations of an op graph: what is computed from which sharded tensors, without hardware.

Each says what it reads and writes; how it becomes tasks is in `simcore.lowering`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from simcore.layout.rules import Contraction
from simcore.opgraph.tensor import ShardedTensor

Function: TypeAlias = Callable[..., Any]
Causal = Literal["full", "skip"]


@dataclass(frozen=True, slots=True)
class Einsum:
    """``out = left · right`` over the dimensions that both have and ``out`` does not."""

    name: str
    left: ShardedTensor
    right: ShardedTensor
    out: ShardedTensor
    parts: Contraction

    @property
    def reads(self) -> tuple[ShardedTensor, ...]:
        return self.left, self.right

    @property
    def right_is_transposed(self) -> bool:
        """Whether the contracted dimensions are the last ones of ``right`` (a tied embedding), not the first."""
        names = self.right.dim_names
        return names[len(names) - len(self.parts.contracted) :] == self.parts.contracted and bool(self.parts.right_only)


@dataclass(frozen=True, slots=True)
class Elementwise:
    """``out = function(*inputs, *vectors)`` on the vector unit, row by row.

    ``function`` gets arrays [rows, features] and, for each of ``vectors`` (weights such as a norm's scale), one of
    [features]. ``operations_per_element`` counts vector operations for each element of ``out``.
    """

    name: str
    inputs: tuple[ShardedTensor, ...]
    vectors: tuple[ShardedTensor, ...]
    out: ShardedTensor
    operations_per_element: float
    function: Function

    @property
    def reads(self) -> tuple[ShardedTensor, ...]:
        return *self.inputs, *self.vectors


@dataclass(frozen=True, slots=True)
class Lookup:
    """``out`` = the rows of ``table`` that ``tokens`` name; zero for rows that another chip's part of it holds."""

    name: str
    table: ShardedTensor
    tokens: ShardedTensor
    out: ShardedTensor

    @property
    def reads(self) -> tuple[ShardedTensor, ...]:
        return self.table, self.tokens


@dataclass(frozen=True, slots=True)
class TakeLast:
    """The last of every request's positions: [B, T, D] to [B, 1, D]."""

    name: str
    source: ShardedTensor
    out: ShardedTensor

    @property
    def reads(self) -> tuple[ShardedTensor, ...]:
        return (self.source,)


@dataclass(frozen=True, slots=True)
class Append:
    """Write ``source``, the new positions' keys or values, into ``cache`` from position ``at`` on."""

    name: str
    source: ShardedTensor
    cache: ShardedTensor
    at: int

    @property
    def reads(self) -> tuple[ShardedTensor, ...]:
        return (self.source,)

    @property
    def out(self) -> ShardedTensor:
        return self.cache


@dataclass(frozen=True, slots=True)
class Attention:
    """``out = softmax(q kᵀ · scale) v`` by blocks with an online softmax, so that scores never leave VMEM.

    Queries [B, T, N, H] attend to ``cached`` positions of ``k_cache`` and ``v_cache`` [B, S, K, H] and to the new
    positions' keys and values [B, T, K, H], of which N/K query heads share each head. Among new positions attention
    is causal; ``causal`` says whether the kernel computes the whole rectangle ("full") or skips blocks above the
    diagonal ("skip").
    """

    name: str
    q: ShardedTensor
    k: ShardedTensor
    v: ShardedTensor
    k_cache: ShardedTensor | None
    v_cache: ShardedTensor | None
    out: ShardedTensor
    cached: int
    causal: Causal
    scale: float

    @property
    def reads(self) -> tuple[ShardedTensor, ...]:
        caches = (self.k_cache, self.v_cache) if self.cached else ()
        return self.q, self.k, self.v, *(cache for cache in caches if cache is not None)


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective over one mesh axis, in place: so far "all_reduce"."""

    name: str
    kind: Literal["all_reduce"]
    tensor: ShardedTensor
    axis: str

    @property
    def reads(self) -> tuple[ShardedTensor, ...]:
        return (self.tensor,)

    @property
    def out(self) -> ShardedTensor:
        return self.tensor


Operation: TypeAlias = Einsum | Elementwise | Lookup | TakeLast | Append | Attention | Collective
