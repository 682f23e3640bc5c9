"""Steps that only a backward pass and an optimizer have, checked and put at the end of an op graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from simcore.errors import LayoutError
from simcore.layout import TensorLayout, parse_tensor, rules
from simcore.opgraph.backward_operations import AttentionGradient, Keep, OuterProduct, RowSum, ScatterAdd, Update
from simcore.opgraph.graph import OpGraph
from simcore.opgraph.operations import Attention
from simcore.opgraph.tensor import ShardedTensor


def keep(g: OpGraph, name: str, source: ShardedTensor) -> ShardedTensor:
    """A copy of ``source`` as it is now, for the backward pass; ``source`` may be written over."""
    out = g._made(replace(source.layout, name=name), source)
    g._append(Keep(name, source, out))
    return out


def _row_axes(tensor: ShardedTensor) -> tuple[str, ...]:
    return tuple(axis for dim in tensor.layout.dims[: tensor.rows] for axis in dim.axes)


def outer_product(
    g: OpGraph, name: str, left: ShardedTensor, right: ShardedTensor, *, rows: int, dtype: str
) -> ShardedTensor:
    """The sum over rows of ``left``'s features times ``right``'s: partial sums over what splits the rows.

    ``rows`` are the leading dimensions of the result that are a matrix's rows. Raises `LayoutError` for operands whose
    rows are not split alike.
    """
    for tensor in (left, right):
        rules.nonlinear(tensor.layout, name)
    if left.layout.dims[: left.rows] != right.layout.dims[: right.rows]:
        raise LayoutError(f"{name}: the rows of {left} and {right} must be split alike")
    dims = (*left.layout.dims[left.rows :], *right.layout.dims[right.rows :])
    layout = TensorLayout(name, dims, _row_axes(left))
    out = g._keep(ShardedTensor(layout, dtype, "gradient", "", rows))
    g._append(OuterProduct(name, left, right, out))
    return out


def row_sum(
    g: OpGraph,
    name: str,
    inputs: Sequence[ShardedTensor],
    function: Callable[..., Any],
    like: ShardedTensor,
    *,
    vectors: Sequence[ShardedTensor] = (),
    operations_per_element: float = 1,
    dtype: str,
) -> ShardedTensor:
    """The sum over the inputs' rows of ``function``, a vector like ``like``: partial sums over what splits the rows."""
    for tensor in inputs:
        rules.nonlinear(tensor.layout, name)
    layout = TensorLayout(name, like.layout.dims, _row_axes(inputs[0]))
    out = g._keep(ShardedTensor(layout, dtype, "gradient", "", 0))
    g._append(RowSum(name, tuple(inputs), tuple(vectors), out, operations_per_element, function))
    return out


def square_sum(g: OpGraph, name: str, tensor: ShardedTensor, dim: str) -> ShardedTensor:
    """The sum of a gradient's squares, ``[dim]`` of size 1: partial sums over all of the mesh.

    Chips that have the same part each give as much less of it. Raises `LayoutError` for partial sums.
    """
    rules.nonlinear(tensor.layout, name)
    split = tensor.layout.axes
    copies = g.mesh.size // g.mesh.axis_size(split)
    layout = TensorLayout(name, parse_tensor(f"{name}[{dim}]").dims, g.mesh.names if g.mesh.size > 1 else ())
    out = g._keep(ShardedTensor(layout, "fp32", "gradient", "", 0))
    width = g.local_rows_columns(tensor)[1]
    g._append(RowSum(name, (tensor,), (), out, 2 * width, lambda part: (part**2).sum(axis=-1, keepdims=True) / copies))
    return out


def scatter_add(
    g: OpGraph, name: str, source: ShardedTensor, tokens: ShardedTensor, table: ShardedTensor, *, dtype: str
) -> ShardedTensor:
    """The rows of ``source`` added up by token, split over the vocabulary as ``table`` is."""
    rules.nonlinear(source.layout, name)
    dims = (table.layout.dims[0], *source.layout.dims[source.rows :])
    out = g._keep(ShardedTensor(TensorLayout(name, dims, _row_axes(source)), dtype, "gradient", "", 1))
    g._append(ScatterAdd(name, source, tokens, out))
    return out


def attention_gradient(
    g: OpGraph,
    name: str,
    attention: Attention,
    *,
    q: ShardedTensor,
    k: ShardedTensor,
    v: ShardedTensor,
    stats: ShardedTensor,
    back: ShardedTensor,
) -> tuple[ShardedTensor, ShardedTensor, ShardedTensor]:
    """What goes back to queries, keys and values, laid out as they are; see `AttentionGradient`."""
    for tensor in (q, k, v, stats, back):
        rules.nonlinear(tensor.layout, name)
    made = [
        g._made(replace(tensor.layout, name=f"{name}_{letter}"), tensor)
        for letter, tensor in (("q", q), ("k", k), ("v", v))
    ]
    g._append(AttentionGradient(name, attention, q, k, v, stats, back, *made))
    return made[0], made[1], made[2]


def update(
    g: OpGraph,
    name: str,
    gradient: ShardedTensor,
    states: Sequence[ShardedTensor],
    weight: ShardedTensor,
    function: Callable[..., Any],
    *,
    operations_per_element: float,
    extra: Sequence[ShardedTensor] = (),
) -> None:
    """An optimizer's step on each device's shard; all must be laid out as the weight. See `Update`."""
    for tensor in (gradient, *states):
        if tensor.layout.dims != weight.layout.dims or tensor.layout.partial:
            raise LayoutError(f"{name}: {tensor} must be laid out as {weight}")
    g._append(Update(name, gradient, tuple(states), weight, operations_per_element, function, tuple(extra)))
