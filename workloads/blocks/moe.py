"""Mixture of experts: each token passes k of E feed-forward blocks, and what is shared by all.

    r = top_k(softmax(h W_router)),  y = sum over the chosen e of r_e mlp_e(h) + mlp_shared(h)

Rows are sorted by expert and each expert's matrices meet its own rows, so experts that no token uses are not read.
Tensor parallelism splits every expert's columns; the router is on every chip. Source: Shazeer et al. 2017; the sorted
rows: Gale et al. 2022 (MegaBlocks).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from simcore.layout import parse_tensor
from simcore.opgraph import Groups, ShardedTensor
from workloads.blocks.builder import Builder
from workloads.blocks.functions import activation, softmax_top_k, times
from workloads.blocks.mlp import mlp
from workloads.config import MoeConfig
from workloads.experts import received_groups, sent_groups

ROUTING_OPERATIONS = 6
"""Vector operations a router's logit: softmax, and what is left of it; besides 2 for each expert that is picked."""


def experts(b: Builder, h: ShardedTensor) -> ShardedTensor:
    """``y[B, T, D]``, partial sums where columns are split, of the normed input ``h[B, T, D]``."""
    config, g = _moe(b), b.g
    groups = b.groups
    assert groups is not None
    h = b.meeting(h, b.rules.stationary(parse_tensor("w[D, Fe]")))
    bias = "b_router[E]" if config.router_bias else ""
    logits = b.einsum("router", h, "w_router[D, E]", bias=bias, part="other")
    operations = ROUTING_OPERATIONS + 2 * config.top_k
    routing = b.elementwise("routing", [logits], softmax_top_k(config.top_k), operations, along=["E"])
    rules = b.rules
    axes = rules.placed.of("expert")
    if not axes:
        rows = g.dispatch(b.named("dispatch"), h, routing, groups, rules.rows("R"))
        y = g.combine(b.named("combine"), _mlp_of_experts(b, rows, groups), routing, groups, config.top_k)
    else:
        y = _sent_to_experts(b, h, routing, axes)
    if config.shared_d_ff:
        y = g.add(b.named("with_shared"), y, _shared(b, h))
    return y


def _sent_to_experts(b: Builder, h: ShardedTensor, routing: ShardedTensor, axes: tuple[str, ...]) -> ShardedTensor:
    """Rows go to the chips that have their experts, by an AllToAll, and come back by another.

    With a capacity each chip sends the same room for each expert; else as many rows to each chip as the fullest gets.
    Source: Lepikhin et al. 2020 (GShard).
    """
    config, g, load = _moe(b), b.g, b.step.experts
    tokens, ways = b.step.tokens_per_chip, b.step.plan.expert
    to, each = ("E", "Rc") if load.capacity_factor is not None else ("Ez", "Rz")
    groups = sent_groups(config, tokens, ways, load)
    sent = g.dispatch(b.named("sent"), h, routing, groups, f"{to}, {b.rules.rows(each)}")
    received = g.all_to_all(sent, axes, each, to)
    z = _mlp_of_experts(b, received, received_groups(config, tokens, ways, load))
    back = g.all_to_all(z, axes, to, each)
    return g.combine(b.named("combine"), back, routing, groups, config.top_k)


def _mlp_of_experts(b: Builder, rows: ShardedTensor, groups: Groups) -> ShardedTensor:
    """The feed-forward block with each group's own matrices; see `workloads.blocks.mlp`."""
    function, operations = activation(b.config.activation)

    def matmul(name: str, left: ShardedTensor, weight: str, bias: str) -> ShardedTensor:
        vector = b.vector(bias) if b.config.mlp_bias else None
        stack = b.gathered(b.weight(weight, "experts"), rows=2)
        return b.g.grouped_einsum(b.named(name), left, stack, groups, bias=vector)

    up = matmul("expert_up", rows, "w_expert_up[E, D, Fe]", "b_expert_up[E, Fe]")
    if b.config.gated_mlp:
        gate = matmul("expert_gate", rows, "w_expert_gate[E, D, Fe]", "b_expert_gate[E, Fe]")
        z = b.elementwise("expert_gated", [gate, up], times(function), operations + 1, into=gate)
    else:
        z = b.elementwise("expert_activation", [up], function, operations, into=up)
    return matmul("expert_down", z, "w_expert_down[E, Fe, D]", "b_expert_down[E, D]")


def _shared(b: Builder, h: ShardedTensor) -> ShardedTensor:
    """What every token passes, where the model has it with a gate of its own."""
    y = mlp(b, h, name="shared_", width="Fs")
    if not _moe(b).shared_gate:
        return y
    gate = b.einsum("shared_weight", h, "w_shared_weight[D, J]", part="other")
    # Linear in the partial sums; the gate is complete.
    return b.elementwise("shared_scaled", [y, gate], _times_sigmoid, 2, linear=True, into=y)


def _times_sigmoid(y: Any, gate: Any) -> Any:
    return y / (1 + np.exp(-gate))


def _moe(b: Builder) -> MoeConfig:
    assert b.config.moe is not None
    return b.config.moe
