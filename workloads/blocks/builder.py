"""What a block is built with: the graph, the model, the step; how tensors are named, stored and laid out.

Blocks name dimensions and nothing else; which mesh axes split them, and with it every collective, follows from the
plan's rules: a matmul's operands are brought to layouts that meet, partial sums are added up where what follows is not
linear, and what a block gives is laid out as the residual that it is added to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from simcore.layout import Dim, TensorLayout, parse_tensor
from simcore.opgraph import Groups, OpGraph, ShardedTensor, View
from simcore.opgraph.reshard import reshard
from workloads.blocks import functions
from workloads.config import ModelConfig
from workloads.layers import LayerKind
from workloads.rules import Rules
from workloads.step import Step


@dataclass(frozen=True, slots=True)
class Builder:
    """Adds operations of one layer to ``g``; ``label`` tells its names from those of layers of other kinds."""

    g: OpGraph
    config: ModelConfig
    step: Step
    rules: Rules
    positions: ShardedTensor
    kind: LayerKind = LayerKind("full", False)
    label: str = ""
    groups: Groups | None = None
    piece: str = ""
    """ends the names of all but weights: the microbatch, where there are several"""
    _moved: dict[tuple[str, TensorLayout], ShardedTensor] = field(default_factory=dict, compare=False)
    """what has been laid out anew, for others that want the same"""

    def named(self, name: str) -> str:
        """A name, or a tensor with its dimensions, of this layer and piece: ``q`` as ``q_moe_m1``."""
        return _ended(name, self.label, self.piece)

    # -- weights ----------------------------------------------------------------------------------------------

    def weight(self, spec: str, part: str = "linear") -> ShardedTensor:
        """A matrix of a part of the model ("linear", "experts" or "other"), stored as the step and the plan have it."""
        layout = self.rules.weight(_ended(spec, self.label))
        return self._stored(layout, self.step.weight_dtype(self.config, part))

    def vector(self, spec: str, like: ShardedTensor | None = None) -> ShardedTensor:
        """A bias or a norm's scale, stored in the model's own format; split as it is in ``like``, if given."""
        layout = self.rules.stationary(parse_tensor(_ended(spec, self.label)))
        if like is not None:
            layout = replace(layout, dims=tuple(like.layout.dim(dim) for dim in layout.dim_names))
        return self._stored(layout, self.config.dtype)

    def _stored(self, layout: TensorLayout, dtype: str) -> ShardedTensor:
        """The weight, which another piece may have declared."""
        known = self.g.tensors.get(layout.name)
        return known if known is not None else self.g.weight(str(layout), dtype=dtype)

    def gathered(self, weight: ShardedTensor, rows: int) -> ShardedTensor:
        """A weight as a matmul sees it, a matrix of its first ``rows`` dimensions: gathered over the fsdp axes."""
        axes = tuple(axis for axis in weight.layout.axes if axis in self.rules.placed.of("fsdp"))
        return self.g.all_gather(weight, axes, rows=rows) if axes else weight

    # -- layouts ----------------------------------------------------------------------------------------------

    def laid_out(self, x: ShardedTensor, layout: TensorLayout) -> ShardedTensor:
        """``x`` in another layout, by the collectives that move the fewest bytes; once for all that want it so."""
        key = (x.name, replace(layout, name=x.name))
        if x.layout == key[1]:
            return x
        if key not in self._moved:
            moved = reshard(self.g, x, layout)
            if moved.name == x.name:  # in place: there is nothing to remember
                return moved
            self._moved[key] = moved
        return self._moved[key]

    def residual(self, x: ShardedTensor) -> ShardedTensor:
        """``x`` laid out as the residual."""
        return self.laid_out(x, self.rules.residual(x.layout))

    def heads(self, x: ShardedTensor) -> ShardedTensor:
        """``x`` laid out as attention's operands."""
        return self.laid_out(x, self.rules.heads(x.layout))

    def complete(self, x: ShardedTensor) -> ShardedTensor:
        """The complete values of partial sums; what is complete stays as it is."""
        return self.laid_out(x, self.rules.complete(x.layout)) if x.layout.partial else x

    def whole(self, x: ShardedTensor, dim: str) -> ShardedTensor:
        """``x`` with all of a dimension on each chip."""
        return self.laid_out(x, x.layout.with_axes(dim, ()))

    def meeting(self, left: ShardedTensor, right: TensorLayout) -> ShardedTensor:
        """``left`` as a product with ``right``, which stays, needs it: split alike where summed, else apart."""
        dims = []
        for dim in left.layout.dims:
            if dim.name in right.dim_names:
                dims.append(right.dim(dim.name))
            else:
                dims.append(Dim(dim.name, tuple(axis for axis in dim.axes if axis not in right.axes)))
        return self.laid_out(left, TensorLayout(left.name, tuple(dims)))

    # -- operations -------------------------------------------------------------------------------------------

    def einsum(
        self, name: str, left: ShardedTensor, weight: str, *, bias: str = "", part: str = "linear"
    ) -> ShardedTensor:
        """``left`` times a weight given as ``w_q[D, N, H]``, plus a bias where one is given as ``b_q[N, H]``."""
        return self.product(self.named(name), left, self.weight(weight, part), bias=bias)

    def product(self, name: str, left: ShardedTensor, weight: ShardedTensor, *, bias: str = "") -> ShardedTensor:
        """``left`` times ``weight``, which may give partial sums."""
        shared = [dim in left.dim_names for dim in weight.dim_names]
        right = self.gathered(weight, rows=sum(shared) if shared[0] else len(shared) - sum(shared))
        vector = self.vector(bias) if bias else None
        return self.g.einsum(name, self.meeting(left, right.layout), right, bias=vector)

    def batched_einsum(self, name: str, left: ShardedTensor, weight: str) -> ShardedTensor:
        """A product for each head, with a weight given as ``w_k_up[N, Hn, C]``."""
        return self.g.batched_einsum(self.named(name), left, self.gathered(self.weight(weight), rows=2))

    def elementwise(
        self,
        name: str,
        inputs: list[ShardedTensor],
        function: functions.Function,
        operations: float,
        *,
        linear: bool = False,
        into: ShardedTensor | None = None,
        features: str = "",
        vectors: list[ShardedTensor] | None = None,
        along: list[str] | None = None,
        partial: tuple[str, ...] = (),
    ) -> ShardedTensor:
        """``function`` of tensors and vectors, of complete values unless it is linear; see `OpGraph.elementwise`."""
        given = inputs if linear else [self.complete(x) for x in inputs]
        if self.step.training:
            into = None  # the backward pass reads what would be written over
        if into is not None and not linear:
            into = given[inputs.index(into)]
        if features:
            split = self.rules.complete(parse_tensor(f"x[{features}]"))
            features = ", ".join(map(str, split.dims))
        return self.g.elementwise(
            self.named(name),
            given,
            function,
            operations_per_element=operations,
            vectors=vectors or [],
            along=along or [],
            linear=linear,
            into=into,
            features=features,
            partial=partial,
        )

    def norm(self, name: str, x: ShardedTensor, dim: str = "D") -> ShardedTensor:
        """The model's norm of ``x`` along its last dimension; where that is split, sums of it are added up first."""
        layernorm = self.config.norm == "layernorm"
        vectors = [self.vector(f"{name}_scale[{dim}]", like=x)]
        if self.config.norm_bias:
            vectors.append(self.vector(f"{name}_bias[{dim}]", like=x))
        operations = functions.LAYERNORM_OPERATIONS if layernorm else functions.RMSNORM_OPERATIONS
        if x.layout.dim(dim).axes:
            return self._split_norm(name, x, dim, vectors, layernorm)
        function = functions.LAYER_NORM if layernorm else functions.RMS_NORM
        return self.elementwise(name, [x], function, operations, vectors=vectors, along=[dim])

    def _split_norm(
        self, name: str, x: ShardedTensor, dim: str, vectors: list[ShardedTensor], layernorm: bool
    ) -> ShardedTensor:
        width = self.g.sizes[dim]

        def added(what: str, function: Callable[[Any], Any], operations: int) -> ShardedTensor:
            parts = self.g.reduce_features(
                self.named(f"{name}_{what}"), x, function, "J", operations_per_element=operations
            )
            return self.laid_out(parts, parts.layout.with_partial(()))

        squares = added("squares", lambda rows: (rows * rows).sum(axis=-1, keepdims=True), 2)
        if not layernorm:
            return self.elementwise(
                name,
                [x, squares],
                lambda rows, total, scale: rows / np.sqrt(total / width + functions.NORM_EPSILON) * scale,
                functions.RMSNORM_OPERATIONS - 2,
                vectors=vectors,
            )
        sums = added("sums", lambda rows: rows.sum(axis=-1, keepdims=True), 1)

        def centred(rows: Any, total: Any, summed: Any, scale: Any, bias: Any = 0.0) -> Any:
            mean = summed / width
            return (rows - mean) / np.sqrt(total / width - mean**2 + functions.NORM_EPSILON) * scale + bias

        operations = functions.LAYERNORM_OPERATIONS - 3
        return self.elementwise(name, [x, squares, sums], centred, operations, vectors=vectors)

    @property
    def view(self) -> View:
        """Which positions the layer's attention sees."""
        return self.kind.view(self.config)

    def append(self, name: str, source: ShardedTensor, cache: ShardedTensor) -> None:
        """Write the new positions into a cache."""
        at, stripes = self.step.cached, self.rules.placed.of("context")
        self.g.append(self.named(name), source, cache, at, stripes=stripes)

    def cache(self, name: str, dims: str) -> ShardedTensor:
        """A cache [B, S, ..], as long as the layer can see."""
        length = {"full": "S", "sliding": "Sw", "chunked": "Sc"}[self.kind.attention]
        held = [self.view.kept(cached + self.step.new) for cached in self.step.cached]
        layout = self.rules.cache(self.named(f"{name}[B, {length}, {dims}]"))
        per_group = len(held) // self.rules.ways(layout.dims[0].axes)
        chips = self.step.plan.context
        mine = [-(-positions // chips) for positions in held[:per_group]]
        return self.g.cache(str(layout), dtype=self.step.cache_dtype(self.config), held=mine)


def _ended(name: str, *ends: str) -> str:
    """``w_q[D, N, H]`` as ``w_q_moe[D, N, H]``."""
    head, bracket, dims = name.partition("[")
    return "_".join(filter(None, (head, *ends))) + bracket + dims
