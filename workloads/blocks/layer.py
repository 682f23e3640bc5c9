"""A layer: attention and feed-forward, one after the other or side by side, with their norms and residuals."""

from __future__ import annotations

from simcore.opgraph import ShardedTensor
from simcore.opgraph.backward_steps import keep
from workloads.blocks.attention import attention
from workloads.blocks.builder import Builder
from workloads.blocks.latent import latent_attention
from workloads.blocks.mlp import mlp
from workloads.blocks.moe import experts


def layer(b: Builder, x: ShardedTensor) -> None:
    """Adds the layer's blocks to ``x[B, T, D]`` in place."""
    attend = attention if b.config.mla is None else latent_attention
    feed_forward = experts if b.kind.moe else mlp
    if b.step.training:
        keep(b.g, b.named("layer_input"), x)
    if b.config.parallel_block:
        h = b.norm("attention_norm", x)
        o = attend(b, h)
        y = feed_forward(b, h if b.config.norms_per_layer == 1 else b.norm("mlp_norm", x))
        both = b.residual(b.g.add(b.named("both_blocks"), o, y))
        b.g.add(b.named("residual"), x, both, into=x)
        return
    carried, between = x, x
    for block, name in ((attend, "attention"), (feed_forward, "mlp")):
        y = b.residual(block(b, b.norm(f"{name}_norm", between)))
        if b.config.norms_per_layer == 4:
            y = b.norm(f"{name}_post_norm", y)
        if b.step.training and name == "mlp":
            b.g.add(b.named("mlp_residual"), between, y, into=carried)
        else:
            between = b.g.add(b.named(f"{name}_residual"), between, y, into=None if b.step.training else carried)
