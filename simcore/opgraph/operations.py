"""The operations of an op graph: what is computed from which sharded tensors, without hardware.

Each says what it reads and writes; how it becomes tasks is in `simcore.lowering`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from simcore.layout.rules import Contraction
from simcore.layout.steps import CollectiveKind
from simcore.opgraph.backward_operations import AttentionGradient, Keep, OuterProduct, RowSum, ScatterAdd, Update
from simcore.opgraph.derivative import Gradient
from simcore.opgraph.groups import Groups
from simcore.opgraph.tensor import ShardedTensor

Function: TypeAlias = Callable[..., Any]
Causal = Literal["full", "skip"]
Kernel = Literal["flash", "naive"]


@dataclass(frozen=True, slots=True)
class Einsum:
    """``out = left · right + bias`` over the dimensions that both have and ``out`` does not.

    ``bias`` has the dimensions of ``right`` alone. Where ``out`` holds partial sums, the first chip adds it.
    """

    name: str
    left: ShardedTensor
    right: ShardedTensor
    out: ShardedTensor
    parts: Contraction
    bias: ShardedTensor | None = None

    @property
    def reads(self) -> tuple[ShardedTensor, ...]:
        return (self.left, self.right) if self.bias is None else (self.left, self.right, self.bias)

    @property
    def right_is_transposed(self) -> bool:
        """Whether the contracted dimensions are the last ones of ``right`` (a tied embedding), not the first."""
        names = self.right.dim_names
        return names[len(names) - len(self.parts.contracted) :] == self.parts.contracted and bool(self.parts.right_only)


@dataclass(frozen=True, slots=True)
class BatchedEinsum:
    """``out[.., N, C] = left[.., N, P] · right[N, P, C]``: a product for each index of N, which all three have."""

    name: str
    left: ShardedTensor
    right: ShardedTensor
    out: ShardedTensor

    @property
    def reads(self) -> tuple[ShardedTensor, ...]:
        return self.left, self.right


@dataclass(frozen=True, slots=True)
class GroupedEinsum:
    """``out = left · right[group] + bias[group]``: each group of rows meets its own matrix of the stack ``right``.

    ``right`` is [E, contracted.., others..], ``bias`` [E, others..]; matrices without a group are not read.
    """

    name: str
    left: ShardedTensor
    right: ShardedTensor
    out: ShardedTensor
    groups: Groups
    bias: ShardedTensor | None = None

    @property
    def reads(self) -> tuple[ShardedTensor, ...]:
        return (self.left, self.right) if self.bias is None else (self.left, self.right, self.bias)


@dataclass(frozen=True, slots=True)
class Dispatch:
    """``out`` = the rows of ``source`` sorted by group, as ``routing`` [rows.., E] sends them (weights, 0 for none)."""

    name: str
    source: ShardedTensor
    routing: ShardedTensor
    out: ShardedTensor
    groups: Groups

    @property
    def reads(self) -> tuple[ShardedTensor, ...]:
        return self.source, self.routing


@dataclass(frozen=True, slots=True)
class Combine:
    """``out`` = for each row the sum of its rows in ``source``, sorted by group, with the weights of ``routing``.

    ``of_each`` is how many rows of ``source`` a row of ``out`` has (on average, where some are left out).
    """

    name: str
    source: ShardedTensor
    routing: ShardedTensor
    out: ShardedTensor
    groups: Groups
    of_each: int

    @property
    def reads(self) -> tuple[ShardedTensor, ...]:
        return self.source, self.routing


@dataclass(frozen=True, slots=True)
class Elementwise:
    """``out = function(*inputs, *vectors)`` on the vector unit, row by row.

    ``function`` gets arrays [rows, features] and, for each of ``vectors`` (weights such as a norm's scale), one of
    [features]. ``operations_per_element`` counts vector operations for each element of ``out``. ``gradients`` are its
    derivatives to inputs and vectors, where they are known. ``part_of``, where given, are mesh axes: the function gets,
    before all else, the number of the chip along them.
    """

    name: str
    inputs: tuple[ShardedTensor, ...]
    vectors: tuple[ShardedTensor, ...]
    out: ShardedTensor
    operations_per_element: float
    function: Function
    gradients: tuple[Gradient | None, ...] = ()
    part_of: tuple[str, ...] | None = None

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
    """Write ``source``, the new positions' keys or values, into ``cache``: request r's from position ``at[r]`` on.

    Position p lies at p modulo the length of the cache, so that a cache as long as a window keeps what it shows. Of
    positions that are dealt out over the chips of the axes ``stripes`` (see `Attention`), a chip writes a single new
    one of another to the first place that it has not filled yet, where its own next position will be.
    """

    name: str
    source: ShardedTensor
    cache: ShardedTensor
    at: tuple[int, ...]
    stripes: tuple[str, ...] = ()

    @property
    def reads(self) -> tuple[ShardedTensor, ...]:
        return (self.source,)

    @property
    def out(self) -> ShardedTensor:
        return self.cache


@dataclass(frozen=True, slots=True)
class View:
    """Which positions a query sees besides being causal: of the last ``window``, or of its own ``chunk`` alone."""

    window: int | None = None
    chunk: int | None = None

    def first(self, position: Any) -> Any:
        """The first position that a query at ``position`` (integer or array) sees."""
        if self.window is not None:
            return np.maximum(position - self.window + 1, 0)
        if self.chunk is not None:
            return position // self.chunk * self.chunk
        return position * 0

    def kept(self, positions: int) -> int:
        """Positions of a cache that are of use to later ones, of ``positions`` in all."""
        most = self.window if self.window is not None else self.chunk
        return positions if most is None else min(positions, most)


@dataclass(frozen=True, slots=True)
class Attention:
    """``out = softmax(q kᵀ · scale) v`` by blocks with an online softmax, so that scores never leave VMEM.

    Queries [B, T, N, H] attend to ``cached[r]`` positions of request r in ``k_cache`` and ``v_cache`` [B, S, K, H] and
    to the new positions' keys and values [B, T, K, H], of which N/K query heads share each head; values may have
    a width of their own. Keys without a head dimension, [B, T, C], are shared by all heads, and where ``v`` is ``k``
    its first features are the values (a latent cache). Among new positions attention is causal; ``causal`` says
    whether the kernel computes the whole rectangle ("full") or skips blocks that no query sees ("skip"). The "naive"
    kernel, for comparison, computes whole rectangles and sends all scores through HBM.

    Positions may be dealt out over the chips of the mesh axes ``stripes``: of n chips, chip c has the positions p with
    p mod n = c, of the cache and, where queries are split too, of the new ones; the keys are then those of the chip
    ``shift`` before it. With ``sums`` the result keeps, beside each head's values, the logarithm of its sum of weights,
    from which what several attentions give can be put together (-inf where nothing was seen). ``log`` [B, T, N] is
    another result, for the backward pass: those logarithms alone.
    """

    name: str
    q: ShardedTensor
    k: ShardedTensor
    v: ShardedTensor
    k_cache: ShardedTensor | None
    v_cache: ShardedTensor | None
    out: ShardedTensor
    cached: tuple[int, ...]
    causal: Causal
    scale: float
    view: View = View()
    kernel: Kernel = "flash"
    stripes: tuple[str, ...] = ()
    shift: int = 0
    sums: bool = False
    log: ShardedTensor | None = None

    @property
    def reads(self) -> tuple[ShardedTensor, ...]:
        caches = (self.k_cache, self.v_cache) if any(self.cached) else ()
        found = {t.name: t for t in (self.q, self.k, self.v, *caches) if t is not None}
        return tuple(found.values())


@dataclass(frozen=True, slots=True)
class Collective:
    """``source`` laid out as ``out``: what the devices along ``axes`` exchange, or for a Slice each keeps of its own.

    ``dim`` is the dimension gathered, scattered or sliced, or the one that an AllToAll takes ``axes`` from to put them
    on ``to_dim``. An AllReduce is done in place; a ReduceScatter leaves nothing of use in ``source``. A Permute gives
    each device's tensor to the next one along the axis.
    """

    name: str
    kind: CollectiveKind | Literal["Permute"]
    source: ShardedTensor
    out: ShardedTensor
    axes: tuple[str, ...]
    dim: str = ""
    to_dim: str = ""

    @property
    def reads(self) -> tuple[ShardedTensor, ...]:
        return (self.source,)


@dataclass(frozen=True, slots=True)
class Send:
    """``source`` goes to the stage ``step`` further along ``axis``, into its tensor ``to``."""

    name: str
    source: ShardedTensor
    axis: str
    to: str
    step: int = 1

    @property
    def reads(self) -> tuple[ShardedTensor, ...]:
        return (self.source,)

    @property
    def out(self) -> ShardedTensor:
        return self.source


@dataclass(frozen=True, slots=True)
class Receive:
    """``out`` is what the stage ``step`` before along ``axis`` sends by its operation ``sent``."""

    name: str
    out: ShardedTensor
    axis: str
    sent: str
    step: int = 1

    @property
    def reads(self) -> tuple[ShardedTensor, ...]:
        return ()


Operation: TypeAlias = (
    Einsum
    | BatchedEinsum
    | GroupedEinsum
    | Dispatch
    | Combine
    | Elementwise
    | Lookup
    | TakeLast
    | Append
    | Attention
    | Collective
    | Send
    | Receive
    | Keep
    | OuterProduct
    | RowSum
    | ScatterAdd
    | AttentionGradient
    | Update
)


def written(operation: Operation) -> tuple[ShardedTensor, ...]:
    """The tensors that an operation writes to: its result, and what it works on in place."""
    if isinstance(operation, Collective) and operation.kind == "ReduceScatter":
        return operation.out, operation.source
    if isinstance(operation, Send):
        return ()
    if isinstance(operation, Attention) and operation.log is not None:
        return operation.out, operation.log
    if isinstance(operation, AttentionGradient):
        return operation.to_q, operation.to_k, operation.to_v
    if isinstance(operation, Update):
        return *operation.states, operation.weight
    return (operation.out,)
