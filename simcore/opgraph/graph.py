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
from typing import Any, Literal

from simcore.errors import GraphError, LayoutError
from simcore.layout import Dim, Mesh, TensorLayout, parse_tensor, rules
from simcore.layout.mesh import axis_names
from simcore.layout.rules import Axes
from simcore.layout.steps import CollectiveKind
from simcore.opgraph.derivative import SAME, Differentiable
from simcore.opgraph.groups import Groups
from simcore.opgraph.operations import (
    Append,
    Attention,
    BatchedEinsum,
    Causal,
    Collective,
    Combine,
    Dispatch,
    Einsum,
    Elementwise,
    Function,
    GroupedEinsum,
    Kernel,
    Lookup,
    Operation,
    Receive,
    Send,
    TakeLast,
    View,
)
from simcore.opgraph.tensor import Role, ShardedTensor

MOVED: dict[CollectiveKind, str] = {
    "AllGather": "gathered",
    "ReduceScatter": "scattered",
    "AllReduce": "all_reduce",
    "AllToAll": "exchanged",
    "Slice": "sliced",
}
"""What the result of a collective is called, after its source."""


@dataclass(frozen=True, slots=True)
class Repeat:
    """A body that is repeated ``count`` times; what it updates in place is carried from one to the next.

    Where it is a model's layers, the body has ``layers`` of them, of which the first is number ``first_layer``.
    """

    name: str
    count: int
    body: list[Operation]
    first_layer: int = -1
    layers: int = 1
    stack: str = ""
    """whose weights and caches it goes through: those of all repeats of one stack are the same"""
    backwards: bool = False
    """whether it goes through them from the last to the first"""


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
    layer_in_body: dict[str, int] = field(default_factory=dict)
    """operation -> which of its repeat's layers it belongs to"""
    phases: dict[str, str] = field(default_factory=dict)
    """operation -> what it is a part of, such as "backward"; see `in_phase`"""
    _phase: str = ""
    _repeat: Repeat | None = None
    _layer: int = 0
    _names: set[str] = field(default_factory=set)

    # -- tensors ----------------------------------------------------------------------------------------------

    def input(self, spec: str, *, dtype: str = "", rows: int = 1) -> ShardedTensor:
        """A given tensor, ``"tokens[B, T]"``."""
        return self._declare(spec, "input", dtype, rows)

    def weight(self, spec: str, *, dtype: str = "") -> ShardedTensor:
        """A weight, in HBM; declared inside a repeat there is one for each iteration."""
        return self._declare(spec, "weight", dtype, 1)

    def state(self, spec: str, *, dtype: str) -> ShardedTensor:
        """What an optimizer keeps of a weight, in HBM; declared inside a repeat there is one for each iteration."""
        return self._declare(spec, "state", dtype, 1)

    def cache(self, spec: str, *, dtype: str = "", held: Sequence[int] = ()) -> ShardedTensor:
        """A cache that outlives the run, in HBM; declared inside a repeat there is one for each iteration.

        ``held`` are the positions of each request that it holds in the end; memory counts their sum.
        """
        return self._declare(spec, "cache", dtype, 2, tuple(held))

    def _declare(self, spec: str, role: Role, dtype: str, rows: int, held: tuple[int, ...] = ()) -> ShardedTensor:
        layout = parse_tensor(spec)
        if layout.name in self.tensors:
            raise GraphError(f"tensor {layout.name!r} is already declared")
        per_iteration = self._repeat.stack if self._repeat is not None and role in ("weight", "cache", "state") else ""
        return self._keep(ShardedTensor(layout, dtype or self.dtype, role, per_iteration, rows, held))

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
    def repeat(
        self,
        name: str,
        count: int,
        *,
        first_layer: int = -1,
        layers: int = 1,
        stack: str = "",
        backwards: bool = False,
    ) -> Iterator[None]:
        """The operations made inside are repeated; see `Repeat` for the layers that they are.

        Repeats of one ``stack``, by default each of its own, share the weights that were declared in the first.
        """
        if self._repeat is not None:
            raise GraphError(f"repeat {name!r} inside repeat {self._repeat.name!r}: repeats do not nest")
        if count < 1:
            raise GraphError(f"repeat {name!r}: {count} times; it must be 1 or more")
        stack = stack or name
        other = next((node for node in self.body if isinstance(node, Repeat) and node.stack == stack), None)
        if other is not None and other.count != count:
            raise GraphError(f"repeat {name!r}: {count} times, but {other.name!r} of its stack {other.count} times")
        self._repeat, self._layer = Repeat(name, count, [], first_layer, layers, stack, backwards), 0
        self.body.append(self._repeat)
        try:
            yield
        finally:
            self._repeat = None

    def next_layer(self) -> None:
        """What follows in the body belongs to its next layer."""
        self._layer += 1

    @contextmanager
    def in_phase(self, phase: str) -> Iterator[None]:
        """The operations made inside are a part of ``phase``, by which reports add up their time."""
        before, self._phase = self._phase, phase
        try:
            yield
        finally:
            self._phase = before

    def _append(self, operation: Operation) -> None:
        if operation.name in self._names:
            raise GraphError(f"operation {operation.name!r} is already there: give each its own name")
        self._names.add(operation.name)
        if self._phase:
            self.phases[operation.name] = self._phase
        if self._repeat is not None:
            self.layer_in_body[operation.name] = self._layer
        (self._repeat.body if self._repeat is not None else self.body).append(operation)

    # -- operations -------------------------------------------------------------------------------------------

    def einsum(
        self,
        name: str,
        left: ShardedTensor,
        right: ShardedTensor,
        out_dims: Sequence[str] | None = None,
        *,
        bias: ShardedTensor | None = None,
    ) -> ShardedTensor:
        """``left · right + bias`` over the dimensions that they share (and ``out_dims`` does not keep)."""
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
        _check_bias(name, bias, tuple(layout.dim(dim) for dim in parts.right_only))
        out = self._made(layout, left, rows=len(parts.left_only))
        self._append(Einsum(name, left, right, out, parts, bias))
        return out

    def batched_einsum(self, name: str, left: ShardedTensor, right: ShardedTensor) -> ShardedTensor:
        """``left[.., N, P] · right[N, P, C]`` for each index of N; see `BatchedEinsum`."""
        batch, contracted, kept = right.dim_names
        if left.dim_names[-2:] != (batch, contracted) or left.rows != len(left.dim_names) - 2:
            raise LayoutError(f"{name}: the features of {left} must be the first dimensions of {right}")
        out_dims = (*left.dim_names[: left.rows], batch, kept)
        out = self._made(rules.matmul(left.layout, right.layout, out_dims, name=name), left)
        self._append(BatchedEinsum(name, left, right, out))
        return out

    def grouped_einsum(
        self,
        name: str,
        left: ShardedTensor,
        right: ShardedTensor,
        groups: Groups,
        *,
        bias: ShardedTensor | None = None,
    ) -> ShardedTensor:
        """``left[R, ..] · right[E, ..]``, each group of rows with its own of E matrices; see `GroupedEinsum`.

        Groups are those of a device's own rows, and meet the matrices that it has: where E is split, rows must be too.
        """
        stack, *rest = right.layout.dims
        rows_over = {axis for dim in left.layout.dims[: left.rows] for axis in dim.axes}
        if not set(stack.axes) <= rows_over:
            raise LayoutError(
                f"{name}: {right} splits {stack.name} over {', '.join(stack.axes)}, and the rows of {left} are not: "
                "send them there first, by an AllToAll"
            )
        matrix = replace(right.layout, dims=tuple(rest))
        layout = rules.matmul(left.layout, matrix, name=name)
        others = tuple(dim for dim in rest if dim.name not in left.dim_names)
        _check_bias(name, bias, (stack, *others))
        self._check_groups(name, left, groups)
        out = self._made(layout, left)
        self._append(GroupedEinsum(name, left, right, out, groups, bias))
        return out

    def dispatch(
        self, name: str, source: ShardedTensor, routing: ShardedTensor, groups: Groups, rows: str
    ) -> ShardedTensor:
        """The rows of ``source`` sorted by group, as the new dimensions ``rows`` (``"R"``, ``"E, R_data"``).

        See `Dispatch`. Groups are those of a device's own rows, which differ along the axes that split ``rows``.
        """
        rules.nonlinear(routing.layout, name)
        features = source.layout.dims[source.rows :]
        made = parse_tensor(f"{name}[{rows}]").dims
        layout = TensorLayout(name, (*made, *features), source.layout.partial)
        out = self._made(layout, source, rows=len(made))
        self._check_groups(name, out, groups)
        self._append(Dispatch(name, source, routing, out, groups))
        return out

    def combine(
        self, name: str, source: ShardedTensor, routing: ShardedTensor, groups: Groups, of_each: int
    ) -> ShardedTensor:
        """The rows of ``source``, sorted by group, added up where ``routing`` has them from; see `Combine`."""
        rules.nonlinear(routing.layout, name)
        dims = (*routing.layout.dims[: routing.rows], *source.layout.dims[source.rows :])
        out = self._made(TensorLayout(name, dims, source.layout.partial), source, rows=routing.rows)
        self._append(Combine(name, source, routing, out, groups, of_each))
        return out

    def _check_groups(self, name: str, rows: ShardedTensor, groups: Groups) -> None:
        local, _ = self.local_rows_columns(rows)
        if local != groups.total:
            raise LayoutError(f"{name}: a device has {local} rows of {rows}, its groups {groups.total}")

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
        features: str = "",
        partial: Axes = (),
        part_of: tuple[str, ...] | None = None,
        dtype: str = "",
    ) -> ShardedTensor:
        """``function(*inputs, *vectors)`` on the vector unit; see `Elementwise`.

        The result is laid out as the first input, or has other ``features`` (``"N_X, H"``) in its rows. ``along`` are
        dimensions that must be whole on each device (a norm's); unless ``linear``, partial sums are refused. ``into``
        writes over a tensor in place. ``partial`` are axes over which the function makes parts of a sum.
        """
        first = inputs[0]
        for tensor in inputs if not linear else ():
            rules.nonlinear(tensor.layout, name, along=[dim for dim in along if dim in tensor.dim_names])
        layout = replace(first.layout, name=name)
        if features:
            made = parse_tensor(f"{name}[{features}]")
            layout = replace(layout, dims=(*layout.dims[: first.rows], *made.dims))
        if partial:
            layout = layout.with_partial((*layout.partial, *axis_names(partial)))
        like = replace(first, dtype=dtype) if dtype else first
        out = into if into is not None else self._made(layout, like)
        given = len(inputs) + len(vectors)  # a function may have arguments that are left out
        known = function.gradients[:given] if isinstance(function, Differentiable) else ()
        self._append(
            Elementwise(name, tuple(inputs), tuple(vectors), out, operations_per_element, function, known, part_of)
        )
        return out

    def reduce_features(
        self, name: str, source: ShardedTensor, function: Function, dim: str, *, operations_per_element: float
    ) -> ShardedTensor:
        """``function`` of each row's features, such as their sum, as the dimension ``dim`` of size 1.

        Features that are split give partial sums. ``operations_per_element`` counts those of ``source``.
        """
        rules.nonlinear(source.layout, name)
        if self.sizes.get(dim) != 1:
            raise LayoutError(f"{name}: dimension {dim} must have size 1")
        split = tuple(axis for feature in source.layout.dims[source.rows :] for axis in feature.axes)
        out = self._made(TensorLayout(name, (*source.layout.dims[: source.rows], Dim(dim)), split), source)
        _, features = self.local_rows_columns(source)
        self._append(Elementwise(name, (source,), (), out, operations_per_element * features, function))
        return out

    def add(
        self, name: str, left: ShardedTensor, right: ShardedTensor, *, into: ShardedTensor | None = None
    ) -> ShardedTensor:
        """``left + right``, laid out alike."""
        rules.add(left.layout, right.layout)
        return self.elementwise(name, [left, right], ADD, operations_per_element=1, linear=True, into=into)

    def lookup(self, name: str, table: ShardedTensor, tokens: ShardedTensor) -> ShardedTensor:
        """Rows of ``table`` [V, D], in the graph's format; a table split over V gives partial sums over those axes."""
        rows, *features = table.layout.dims
        layout = TensorLayout(name, (*tokens.layout.dims, *features), rows.axes)
        out = self._made(layout, replace(table, dtype=self.dtype), rows=len(tokens.layout.dims))
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

    def append(
        self,
        name: str,
        source: ShardedTensor,
        cache: ShardedTensor,
        at: Sequence[int],
        *,
        stripes: tuple[str, ...] = (),
    ) -> None:
        """Write new positions into a cache, request r's from ``at[r]`` on; see `Append`."""
        self._append(Append(name, source, cache, tuple(at), stripes))

    def attention(
        self,
        name: str,
        q: ShardedTensor,
        k: ShardedTensor,
        v: ShardedTensor,
        *,
        k_cache: ShardedTensor | None = None,
        v_cache: ShardedTensor | None = None,
        cached: Sequence[int] = (),
        causal: Causal = "full",
        scale: float = 1.0,
        view: View | None = None,
        values: str = "",
        kernel: Kernel = "flash",
        stripes: tuple[str, ...] = (),
        shift: int = 0,
        sums: str = "",
        log: str = "",
    ) -> ShardedTensor:
        """Attention of the new positions to the cached ones and to each other; see `Attention`.

        ``values`` names the dimension of a head's values where that is not the last one of ``v``. ``sums`` are the
        features of each head where the sums of weights are kept: ``"Hs"``, of one more than the values, and where each
        chip sees other positions of the same queries one for the chips, ``"Hs, Cx_context"``. ``log`` names a tensor
        [B, T, N] for their logarithms alone, which a backward pass needs.
        """
        for tensor in (q, k, v):
            rules.nonlinear(tensor.layout, name)
        heads = q.layout.dims[-2]
        if len(k.dim_names) == len(q.dim_names):
            n, kv = (self.sizes[tensor.dim_names[-2]] for tensor in (q, k))
            if n % kv:
                raise LayoutError(f"{name}: {n} query heads do not share {kv} key-value heads evenly")
            if heads.axes != k.layout.dims[-2].axes:
                raise LayoutError(f"{name}: the heads of {q} and {k} must be split alike")
        if any(cached) and (k_cache is None or v_cache is None):
            raise GraphError(f"{name}: {max(cached)} cached positions, but no caches")
        requests = self.sizes[q.dim_names[0]]
        lengths = tuple(cached) or (0,) * requests
        if len(lengths) != requests:
            raise GraphError(f"{name}: cached lengths of {len(lengths)} requests, and there are {requests}")
        width: tuple[Dim, ...] = (Dim(values) if values else v.layout.dims[-1],)
        if sums:
            width = parse_tensor(f"{name}[{sums}]").dims
        if kernel == "naive" and (stripes or sums):
            raise GraphError(f"{name}: naive attention has all positions of its requests: use the flash kernel")
        dims = (*q.layout.dims[:-1], *width)
        out = self._made(replace(q.layout, name=name, dims=dims), q)
        seen = view or View()
        kept = None
        if log:
            kept = self._made(replace(q.layout, name=log, dims=q.layout.dims[:-1]), replace(q, dtype="fp32"))
        self._append(
            Attention(
                name, q, k, v, k_cache, v_cache, out, lengths, causal, scale, seen, kernel, stripes, shift, bool(sums),
                kept,
            )
        )  # fmt: skip
        return out

    def permute(self, tensor: ShardedTensor, axis: str) -> ShardedTensor:
        """Each device's ``tensor`` on the next one along ``axis``, round to the first."""
        out, number = f"{tensor.name}_next", 1
        while out in self.tensors:
            number += 1
            out = f"{tensor.name}_next{number}"
        moved = self._made(replace(tensor.layout, name=out), tensor)
        self._collective("Permute", tensor, moved, axis)
        return moved

    def all_reduce(self, tensor: ShardedTensor, axes: Axes) -> ShardedTensor:
        """Sum the partial sums of ``tensor`` over ``axes``, in place."""
        done = replace(tensor, layout=rules.all_reduce(tensor.layout, axes))
        self._collective("AllReduce", tensor, done, axes)
        self.tensors[tensor.name] = done
        return done

    def all_gather(self, tensor: ShardedTensor, axes: Axes, *, rows: int | None = None) -> ShardedTensor:
        """``tensor`` with all of the dimension that ``axes``, the last of its subscript, split.

        A weight is gathered into a buffer in HBM, for a matmul to stream it from there as a matrix of ``rows``.
        """
        dim = tensor.layout.dim_of(axis_names(axes)[0])
        layout = rules.all_gather(tensor.layout, axes, dim.name if dim is not None else None)
        assert dim is not None
        return self._moved("AllGather", tensor, layout, axes, dim.name, rows=rows)

    def reduce_scatter(self, tensor: ShardedTensor, axes: Axes, dim: str) -> ShardedTensor:
        """The sum of the partial sums over ``axes``, of which each device keeps its part along ``dim``."""
        layout = rules.reduce_scatter(tensor.layout, axes, dim)
        return self._moved("ReduceScatter", tensor, layout, axes, dim)

    def all_to_all(self, tensor: ShardedTensor, axes: Axes, from_dim: str, to_dim: str) -> ShardedTensor:
        """``tensor`` with ``axes`` splitting ``to_dim`` instead of ``from_dim``."""
        layout = rules.all_to_all(tensor.layout, axes, from_dim, to_dim)
        return self._moved("AllToAll", tensor, layout, axes, from_dim, to_dim)

    def keep_shard(self, tensor: ShardedTensor, axes: Axes, dim: str) -> ShardedTensor:
        """Each device's part along ``dim`` of a tensor that all along ``axes`` have: nothing moves."""
        return self._moved("Slice", tensor, rules.shard(tensor.layout, axes, dim), axes, dim)

    def _moved(
        self,
        kind: CollectiveKind,
        tensor: ShardedTensor,
        layout: TensorLayout,
        axes: Axes,
        dim: str,
        to_dim: str = "",
        rows: int | None = None,
    ) -> ShardedTensor:
        name, number = f"{tensor.name}_{MOVED[kind]}", 1
        while name in self.tensors:
            number += 1
            name = f"{tensor.name}_{MOVED[kind]}{number}"
        role: Role = "gathered" if tensor.role in ("weight", "gathered") else "activation"
        if tensor.role == "gradient":
            role = "gradient"
        out = replace(tensor, layout=replace(layout, name=name), role=role, repeat="")
        out = self._keep(out if rows is None else replace(out, rows=rows))
        self._collective(kind, tensor, out, axes, dim, to_dim)
        return out

    def send(self, name: str, source: ShardedTensor, axis: str, to: str, *, step: int = 1) -> None:
        """Send ``source`` to the next stage along ``axis`` (``step`` -1: to the one before), into its tensor ``to``."""
        rules.nonlinear(source.layout, name)
        self._append(Send(name, source, axis, to, step))

    def receive(
        self, spec: str, *, sent: str, axis: str, rows: int = 2, dtype: str = "", step: int = 1
    ) -> ShardedTensor:
        """What the stage before (``step`` -1: after) sends by its operation ``sent``, as ``"x[B, T, D]"``."""
        layout = parse_tensor(spec)
        out = self._keep(ShardedTensor(layout, dtype or self.dtype, "activation", "", rows))
        self._append(Receive(f"{out.name}_received", out, axis, sent, step))
        return out

    def _collective(
        self,
        kind: CollectiveKind | Literal["Permute"],
        source: ShardedTensor,
        out: ShardedTensor,
        axes: Axes,
        dim: str = "",
        to_dim: str = "",
    ) -> None:
        name = base = out.name if out.name != source.name else f"{out.name}_all_reduce"
        number = 1
        while name in self._names:
            number += 1
            name = f"{base}{number}"
        self._append(Collective(name, kind, source, out, axis_names(axes), dim, to_dim))

    # -- reading ----------------------------------------------------------------------------------------------

    def local_rows_columns(self, tensor: ShardedTensor) -> tuple[int, int]:
        """Rows and features of each device's shard as a matrix."""
        shape = tensor.layout.local_shape(self.sizes, self.mesh)
        return math.prod(shape[: tensor.rows]), math.prod(shape[tensor.rows :])


def _check_bias(name: str, bias: ShardedTensor | None, dims: tuple[Dim, ...]) -> None:
    """A bias must have the dimensions of the matrix that the output keeps, split alike."""
    if bias is not None and bias.layout.dims != dims:
        raise LayoutError(f"{name}: the bias {bias} must have the dimensions {', '.join(map(str, dims))}")


def _add(left: Any, right: Any) -> Any:
    return left + right


ADD = Differentiable(_add, (SAME, SAME))
