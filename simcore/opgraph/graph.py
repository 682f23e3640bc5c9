"""The op graph: operations on sharded tensors, written once, with repetition kept as repetition.

    graph = OpGraph("mlp", mesh=Mesh.of(X=4), sizes={"B": 8, "D": 512, "F": 2048})
    x = graph.input("x[B, D]")
    with graph.repeat("layer", 3):
        h = graph.einsum("up", x, graph.weight("w_up[D, F_X]"))        # h[B, F_X]
        y = graph.einsum("down", h, graph.weight("w_down[F_X, D]"))    # y[B, D]{U_X}: partial sums
        graph.add("residual", x, graph.all_reduce(y, "X"), into=x)

Every step checks the layouts (`simcore.layout.rules`): a breach is an error that names the tensor and the mend.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from simcore.errors import GraphError, LayoutError
from simcore.layout import Mesh, TensorLayout, parse_tensor, rules
from simcore.opgraph.operations import (
    Append,
    Attention,
    Causal,
    Collective,
    Einsum,
    Elementwise,
    Function,
    Lookup,
    Operation,
    TakeLast,
)
from simcore.opgraph.tensor import Role, ShardedTensor


@dataclass(frozen=True, slots=True)
class Repeat:
    """A body that is repeated ``count`` times; what it updates in place is carried from one to the next."""

    name: str
    count: int
    body: list[Operation]


@dataclass
class OpGraph:
    """Operations in program order.

    Parameters
    ----------
    mesh : the devices; every one runs the same program on its own shards.
    sizes : dimension -> global size.
    dtype : of tensors that name none.
    """

    name: str
    mesh: Mesh
    sizes: Mapping[str, int]
    dtype: str = "bf16"
    tensors: dict[str, ShardedTensor] = field(default_factory=dict)
    body: list[Operation | Repeat] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _repeat: Repeat | None = None
    _names: set[str] = field(default_factory=set)

    # -- tensors ----------------------------------------------------------------------------------------------

    def input(self, spec: str, *, dtype: str = "", rows: int = 1) -> ShardedTensor:
        """A given tensor, ``"tokens[B, T]"``."""
        return self._declare(spec, "input", dtype, rows)

    def weight(self, spec: str, *, dtype: str = "") -> ShardedTensor:
        """A weight, in HBM; declared inside a repeat there is one for each iteration."""
        return self._declare(spec, "weight", dtype, 1)

    def cache(self, spec: str, *, dtype: str = "") -> ShardedTensor:
        """A cache that outlives the run, in HBM; declared inside a repeat there is one for each iteration."""
        return self._declare(spec, "cache", dtype, 2)

    def _declare(self, spec: str, role: Role, dtype: str, rows: int) -> ShardedTensor:
        layout = parse_tensor(spec)
        if layout.name in self.tensors:
            raise GraphError(f"tensor {layout.name!r} is already declared")
        per_iteration = self._repeat.name if self._repeat is not None and role in ("weight", "cache") else ""
        return self._keep(ShardedTensor(layout, dtype or self.dtype, role, per_iteration, rows))

    def _keep(self, tensor: ShardedTensor) -> ShardedTensor:
        tensor.layout.check_mesh(self.mesh)
        tensor.layout.local_shape(self.sizes, self.mesh)
        self.tensors[tensor.name] = tensor
        return tensor

    def _made(self, layout: TensorLayout, like: ShardedTensor, rows: int | None = None) -> ShardedTensor:
        if layout.name in self.tensors:
            raise GraphError(f"tensor {layout.name!r} is already declared: give the operation another name")
        return self._keep(ShardedTensor(layout, like.dtype, "activation", "", like.rows if rows is None else rows))

    # -- structure --------------------------------------------------------------------------------------------

    @contextmanager
    def repeat(self, name: str, count: int) -> Iterator[None]:
        """The operations made inside are repeated."""
        if self._repeat is not None:
            raise GraphError(f"repeat {name!r} inside repeat {self._repeat.name!r}: repeats do not nest")
        if count < 1:
            raise GraphError(f"repeat {name!r}: {count} times; it must be 1 or more")
        self._repeat = Repeat(name, count, [])
        self.body.append(self._repeat)
        try:
            yield
        finally:
            self._repeat = None

    def _append(self, operation: Operation) -> None:
        if operation.name in self._names:
            raise GraphError(f"operation {operation.name!r} is already there: give each its own name")
        self._names.add(operation.name)
        (self._repeat.body if self._repeat is not None else self.body).append(operation)

    # -- operations -------------------------------------------------------------------------------------------

    def einsum(
        self, name: str, left: ShardedTensor, right: ShardedTensor, out_dims: Sequence[str] | None = None
    ) -> ShardedTensor:
        """``left · right`` over the dimensions that they share (and ``out_dims`` does not keep)."""
        parts = rules.contraction(left.layout, right.layout, out_dims)
        layout = rules.matmul(left.layout, right.layout, out_dims, name=name)
        wanted = (*parts.left_only, *parts.contracted)
        if parts.batch or left.dim_names != wanted or layout.dim_names != (*parts.left_only, *parts.right_only):
            raise LayoutError(
                f"{name}: {left} · {right} must contract the last dimensions of {left.name}, keep their order, and "
                "share no others"
            )
        if right.dim_names not in (
            (*parts.contracted, *parts.right_only),
            (*parts.right_only, *parts.contracted),
        ):
            raise LayoutError(
                f"{name}: the dimensions of {right} must be the contracted ones {parts.contracted} in the order of "
                f"{left.name}, before or after the others"
            )
        out = self._made(layout, left, rows=len(parts.left_only))
        self._append(Einsum(name, left, right, out, parts))
        return out

    def elementwise(
        self,
        name: str,
        inputs: Sequence[ShardedTensor],
        function: Function,
        *,
        operations_per_element: float,
        vectors: Sequence[ShardedTensor] = (),
        along: Sequence[str] = (),
        linear: bool = False,
        into: ShardedTensor | None = None,
    ) -> ShardedTensor:
        """``function(*inputs, *vectors)`` on the vector unit; see `Elementwise`.

        The result is laid out as the first input. ``along`` are dimensions that must be whole on each device (a
        norm's); unless ``linear``, partial sums are refused. ``into`` writes over a tensor in place.
        """
        first = inputs[0]
        for tensor in inputs if not linear else ():
            rules.nonlinear(tensor.layout, name, along=[dim for dim in along if dim in tensor.dim_names])
        out = into if into is not None else self._made(replace(first.layout, name=name), first)
        self._append(Elementwise(name, tuple(inputs), tuple(vectors), out, operations_per_element, function))
        return out

    def add(
        self, name: str, left: ShardedTensor, right: ShardedTensor, *, into: ShardedTensor | None = None
    ) -> ShardedTensor:
        """``left + right``, laid out alike."""
        rules.add(left.layout, right.layout)
        return self.elementwise(name, [left, right], _add, operations_per_element=1, linear=True, into=into)

    def lookup(self, name: str, table: ShardedTensor, tokens: ShardedTensor) -> ShardedTensor:
        """Rows of ``table`` [V, D]; a table split over V gives partial sums over those axes."""
        rows, *features = table.layout.dims
        layout = TensorLayout(name, (*tokens.layout.dims, *features), rows.axes)
        out = self._made(layout, table, rows=len(tokens.layout.dims))
        self._append(Lookup(name, table, tokens, out))
        return out

    def take_last(self, name: str, source: ShardedTensor, dim: str, last: str) -> ShardedTensor:
        """The last index of ``dim``, which becomes the dimension ``last`` of size 1."""
        if self.sizes.get(last) != 1:
            raise LayoutError(f"{name}: dimension {last} must have size 1")
        if source.dim_names.index(dim) != source.rows - 1:
            raise LayoutError(f"{name}: {dim} must be the last row dimension of {source}")
        dims = tuple(replace(d, name=last) if d.name == dim else d for d in source.layout.dims)
        out = self._made(replace(source.layout, name=name, dims=dims), source)
        self._append(TakeLast(name, source, out))
        return out

    def append(self, name: str, source: ShardedTensor, cache: ShardedTensor, at: int) -> None:
        """Write new positions into a cache."""
        self._append(Append(name, source, cache, at))

    def attention(
        self,
        name: str,
        q: ShardedTensor,
        k: ShardedTensor,
        v: ShardedTensor,
        *,
        k_cache: ShardedTensor | None = None,
        v_cache: ShardedTensor | None = None,
        cached: int = 0,
        causal: Causal = "full",
        scale: float = 1.0,
    ) -> ShardedTensor:
        """Attention of the new positions to the cached ones and to each other; see `Attention`."""
        for tensor in (q, k, v):
            rules.nonlinear(tensor.layout, name)
        n, kv = (self.sizes[tensor.dim_names[-2]] for tensor in (q, k))
        if n % kv:
            raise LayoutError(f"{name}: {n} query heads do not share {kv} key-value heads evenly")
        if q.layout.dims[-2].axes != k.layout.dims[-2].axes:
            raise LayoutError(f"{name}: the heads of {q} and {k} must be split alike")
        if cached and (k_cache is None or v_cache is None):
            raise GraphError(f"{name}: {cached} cached positions, but no caches")
        out = self._made(replace(q.layout, name=name), q)
        self._append(Attention(name, q, k, v, k_cache, v_cache, out, cached, causal, scale))
        return out

    def all_reduce(self, tensor: ShardedTensor, axis: str) -> ShardedTensor:
        """Sum the partial sums of ``tensor`` over ``axis``, in place."""
        rules.all_reduce(tensor.layout, axis)
        self._append(Collective(f"{tensor.name}_all_reduce", "all_reduce", tensor, axis))
        done = tensor.completed(axis)
        self.tensors[tensor.name] = done
        return done

    # -- reading ----------------------------------------------------------------------------------------------

    def local_rows_columns(self, tensor: ShardedTensor) -> tuple[int, int]:
        """Rows and features of each device's shard as a matrix."""
        shape = tensor.layout.local_shape(self.sizes, self.mesh)
        return math.prod(shape[: tensor.rows]), math.prod(shape[tensor.rows :])


def _add(left: object, right: object) -> object:
    return left + right  # type: ignore[operator]
