"""A layer: attention and feed-forward, one after the other or side by side, with their norms and residuals."""

from __future__ import annotations

from simcore.opgraph import ShardedTensor
from workloads.blocks.attention import attention
from workloads.blocks.builder import Builder
from workloads.blocks.latent import latent_attention
from workloads.blocks.mlp import mlp
from workloads.blocks.moe import experts


def layer(b: Builder, x: ShardedTensor) -> None:
    """Adds the layer's blocks to ``x[B, T, D]`` in place."""
    attend = attention if b.config.mla is None else latent_attention
    feed_forward = experts if b.kind.moe else mlp
    if b.config.parallel_block:
        h = b.norm("attention_norm", x)
        o = attend(b, h)
        y = feed_forward(b, h if b.config.norms_per_layer == 1 else b.norm("mlp_norm", x))
        both = b.residual(b.g.add(b.named("both_blocks"), o, y))
        b.g.add(b.named("residual"), x, both, into=x)
        return
    for block, name in ((attend, "attention"), (feed_forward, "mlp")):
        y = b.residual(block(b, b.norm(f"{name}_norm", x)))
        if b.config.norms_per_layer == 4:
            y = b.norm(f"{name}_post_norm", y)
        b.g.add(b.named(f"{name}_residual"), x, y, into=x)
