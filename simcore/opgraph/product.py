"""From the plan of a sharded product to an op graph: its collectives and its local matmul, in the plan's order.

The left operand is an input and the right one a weight in HBM. The order in which a product writes a tensor's
dimensions is a matter of notation: where a matmul needs another one in memory, the graph's tensors have that.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from simcore.errors import LayoutError
from simcore.layout import Dim, MatmulPlan, TensorLayout
from simcore.layout.rules import Contraction, contraction
from simcore.layout.steps import CollectiveStep, gathers_in_turn
from simcore.opgraph.graph import OpGraph
from simcore.opgraph.tensor import ShardedTensor

UNIT = "One"
"""A dimension of size 1, which a batched product gets for the columns that its right operand lacks."""


def product_graph(plan: MatmulPlan, name: str = "") -> OpGraph:
    """The steps of ``plan`` as operations; a gather of several dimensions becomes one for each.

    The operands have the product's names, the result is what the last operation leaves (see `result_of`). Mesh axes of
    one device split nothing and are left out of the layouts.

    Raises `LayoutError` for a product of which the lowering knows no form: batched over several dimensions at once.
    """
    form = _Form.of(plan)
    several = frozenset(axis for axis, size in plan.mesh.axes if size > 1)
    graph = OpGraph(name or str(plan.product), plan.mesh, form.sizes(plan), dtype=plan.dtype)
    left = graph.input(str(_over(several, form.left(plan.product.left))), rows=len(form.parts.left_only))
    right = graph.weight(str(_over(several, form.right(plan.product.right))))
    right = graph.tensors[right.name] = replace(right, rows=form.right_rows)
    held = {left.name: left, right.name: right}
    out = plan.product.out.name
    for step in plan.steps:
        if isinstance(step, CollectiveStep):
            held[step.tensor] = _collective(graph, step, held[step.tensor], several)
            continue
        operands = held[left.name], held[right.name]
        if form.parts.batch:
            held[out] = graph.batched_einsum(out, *operands)
        else:
            held[out] = graph.einsum(out, *operands)
    return graph


def result_of(graph: OpGraph) -> ShardedTensor:
    """What the last operation of a product's graph leaves: the product."""
    last = graph.body[-1]
    return last.out  # type: ignore[union-attr]


def _collective(graph: OpGraph, step: CollectiveStep, tensor: ShardedTensor, several: frozenset[str]) -> ShardedTensor:
    axes = tuple(axis for axis in step.axes if axis in several)
    if not axes:
        return tensor
    match step.kind:
        case "AllGather":
            for each in gathers_in_turn(step):
                gathered = tuple(axis for axis in each.axes if axis in several)
                tensor = graph.all_gather(tensor, gathered) if gathered else tensor
            return tensor
        case "ReduceScatter":
            return graph.reduce_scatter(tensor, axes, str(step.dim))
        case "AllReduce":
            return graph.all_reduce(tensor, axes)
        case "AllToAll":
            return graph.all_to_all(tensor, axes, str(step.dim), str(step.to_dim))
        case "Slice":
            return graph.keep_shard(tensor, axes, str(step.dim))


def _over(axes: frozenset[str], layout: TensorLayout) -> TensorLayout:
    """``layout`` with no other than these mesh axes."""
    dims = tuple(replace(dim, axes=tuple(axis for axis in dim.axes if axis in axes)) for dim in layout.dims)
    return TensorLayout(layout.name, dims, tuple(axis for axis in layout.partial if axis in axes))


@dataclass(frozen=True, slots=True)
class _Form:
    """The order that the dimensions have in memory: rows, batch, contracted · batch, contracted, columns."""

    parts: Contraction
    transposed: bool

    @classmethod
    def of(cls, plan: MatmulPlan) -> _Form:
        product = plan.product
        parts = contraction(product.left, product.right, product.out.dim_names)
        if parts.batch:
            groups = {"batch": parts.batch, "contracted": parts.contracted, "right-hand": parts.right_only}
            for what, dims in groups.items():
                if len(dims) > 1:
                    raise LayoutError(
                        f"{product}: a batched product is simulated with one {what} dimension, and here are "
                        f"{len(dims)} ({', '.join(dims)}): write them as one"
                    )
            if not parts.contracted:
                raise LayoutError(f"{product}: a batched product is simulated with a contracted dimension: add one")
        turned = (*parts.right_only, *parts.contracted)
        return cls(parts, not parts.batch and bool(parts.right_only) and product.right.dim_names == turned)

    @property
    def right_rows(self) -> int:
        """Leading dimensions of the right operand that are rows of its matrix."""
        if self.parts.batch:
            return 2
        return len(self.parts.right_only if self.transposed else self.parts.contracted)

    def sizes(self, plan: MatmulPlan) -> dict[str, int]:
        extra = {UNIT: 1} if self._lacks_columns else {}
        return {**plan.sizes, **extra}

    @property
    def _lacks_columns(self) -> bool:
        return bool(self.parts.batch) and not self.parts.right_only

    def left(self, layout: TensorLayout) -> TensorLayout:
        return _ordered(layout, (*self.parts.left_only, *self.parts.batch, *self.parts.contracted))

    def right(self, layout: TensorLayout) -> TensorLayout:
        parts = self.parts
        inner = (parts.right_only, parts.contracted) if self.transposed else (parts.contracted, parts.right_only)
        ordered = _ordered(layout, (*parts.batch, *inner[0], *inner[1]))
        return replace(ordered, dims=(*ordered.dims, Dim(UNIT))) if self._lacks_columns else ordered


def _ordered(layout: TensorLayout, names: tuple[str, ...]) -> TensorLayout:
    return replace(layout, dims=tuple(layout.dim(name) for name in names))
