"""What a block is built with: the graph, the model, the step, and how this layer's tensors are named and stored."""

from __future__ import annotations

from dataclasses import dataclass

from simcore.opgraph import Groups, OpGraph, ShardedTensor, View
from workloads.blocks import functions
from workloads.config import ModelConfig
from workloads.layers import LayerKind
from workloads.step import AXIS, Step


@dataclass(frozen=True, slots=True)
class Builder:
    """Adds operations of one layer to ``g``; ``label`` tells its names from those of layers of other kinds."""

    g: OpGraph
    config: ModelConfig
    step: Step
    positions: ShardedTensor
    kind: LayerKind = LayerKind("full", False)
    label: str = ""
    groups: Groups | None = None

    def named(self, name: str) -> str:
        """A name, or a tensor with its dimensions, of this layer: ``w_q[D, N_X, H]`` as ``w_q_moe[D, N_X, H]``."""
        if not self.label:
            return name
        head, bracket, dims = name.partition("[")
        return f"{head}_{self.label}{bracket}{dims}"

    def weight(self, spec: str, part: str = "linear") -> ShardedTensor:
        """A matrix of a part of the model ("linear", "experts" or "other"), stored as the step has it."""
        return self.g.weight(self.named(spec), dtype=self.step.weight_dtype(self.config, part))

    def vector(self, spec: str) -> ShardedTensor:
        """A bias or a norm's scale, stored in the model's own format."""
        return self.g.weight(self.named(spec), dtype=self.config.dtype)

    def einsum(
        self, name: str, left: ShardedTensor, weight: str, *, bias: str = "", part: str = "linear"
    ) -> ShardedTensor:
        """``left`` times a weight given as ``w_q[D, N_X, H]``, plus a bias where one is given as ``b_q[N_X, H]``."""
        vector = self.vector(bias) if bias else None
        return self.g.einsum(self.named(name), left, self.weight(weight, part), bias=vector)

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
    ) -> ShardedTensor:
        """``function`` of tensors and vectors; see `OpGraph.elementwise`."""
        return self.g.elementwise(
            self.named(name),
            inputs,
            function,
            operations_per_element=operations,
            vectors=vectors or [],
            along=along or [],
            linear=linear,
            into=into,
            features=features,
        )

    def norm(self, name: str, x: ShardedTensor, dim: str = "D") -> ShardedTensor:
        """The model's norm of ``x`` along its last dimension."""
        vectors = [self.vector(f"{name}_scale[{dim}]")]
        if self.config.norm_bias:
            vectors.append(self.vector(f"{name}_bias[{dim}]"))
        function: functions.Function = functions.rms_norm
        operations = functions.RMSNORM_OPERATIONS
        if self.config.norm == "layernorm":
            function, operations = functions.layer_norm, functions.LAYERNORM_OPERATIONS
        return self.elementwise(name, [x], function, operations, vectors=vectors, along=[dim])

    def all_reduce(self, x: ShardedTensor) -> ShardedTensor:
        """The complete values of partial sums over the chips."""
        return self.g.all_reduce(x, AXIS)

    @property
    def view(self) -> View:
        """Which positions the layer's attention sees."""
        return self.kind.view(self.config)

    def cache(self, name: str, dims: str) -> ShardedTensor:
        """A cache [B, S, ..], as long as the layer can see."""
        length = {"full": "S", "sliding": "Sw", "chunked": "Sc"}[self.kind.attention]
        held = [self.view.kept(cached + self.step.new) for cached in self.step.cached]
        spec = self.named(f"{name}[B, {length}, {dims}]")
        return self.g.cache(spec, dtype=self.step.cache_dtype(self.config), held=held)
