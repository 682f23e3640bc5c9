"""Attention with key-value heads: every query head its own (MHA), groups sharing one (GQA), or all (MQA).

Source: Vaswani et al. 2017; Ainslie et al. 2023
(GQA).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from simcore.opgraph import ShardedTensor
from workloads.blocks.builder import Builder
from workloads.blocks.context import attend
from workloads.blocks.functions import (
    NORM_EPSILON,
    RMSNORM_OPERATIONS,
    ROTARY_OPERATIONS,
    Rotary,
    norm_of_heads,
)


def attention(b: Builder, h: ShardedTensor) -> ShardedTensor:
    """``o[B, T, D]`` of the normed input ``h[B, T, D]``, partial sums where heads are split.

    Keys and values of the new positions are cached, but not while training.
    """
    config = b.config
    bias = config.qkv_bias
    q = b.einsum("q", h, "w_q[D, N, H]", bias="b_q[N, H]" if bias else "")
    k = b.einsum("k", h, "w_k[D, K, H]", bias="b_k[K, H]" if bias else "")
    v = b.einsum("v", h, "w_v[D, K, H]", bias="b_v[K, H]" if bias else "")
    q, k, v = b.heads(q), b.heads(k), b.heads(v)
    q, k = _normed(b, "q", q, "N"), _normed(b, "k", k, "K")
    if not config.learned_positions:
        q, k = _rotated(b, "q", q), _rotated(b, "k", k)
    scale, width = config.head_dim**-0.5, config.head_dim
    if b.step.training:
        a = attend(b, q, k, v, scale=scale, width=width)
        return b.einsum("o", a, "w_o[N, H, D]", bias="b_o[D]" if config.attention_output_bias else "")
    k_cache, v_cache = b.cache("k_cache", "K, H"), b.cache("v_cache", "K, H")
    a = attend(b, q, k, v, k_cache=k_cache, v_cache=v_cache, scale=scale, width=width)
    b.append("append_k", k, k_cache)
    b.append("append_v", v, v_cache)
    return b.einsum("o", a, "w_o[N, H, D]", bias="b_o[D]" if config.attention_output_bias else "")


def _rotated(b: Builder, name: str, x: ShardedTensor) -> ShardedTensor:
    rotary = Rotary(b.config.head_dim, b.config.head_dim).differentiable()
    return b.elementwise(f"{name}_rotary", [x, b.positions], rotary, ROTARY_OPERATIONS)


def _normed(b: Builder, name: str, x: ShardedTensor, heads: str) -> ShardedTensor:
    """The norm of queries or keys: of each head, with or without a scale, or of all heads together."""
    if b.config.qk_norm is None:
        return x
    if b.config.qk_norm == "whole":
        return _norm_of_all_heads(b, name, x, heads)
    vectors = [b.vector(f"{name}_norm_scale[H]")] if b.config.qk_norm == "per_head" else []
    norm = norm_of_heads(b.config.head_dim, scaled=bool(vectors))
    return b.elementwise(f"{name}_norm", [x], norm, RMSNORM_OPERATIONS, vectors=vectors, along=["H"])


def _norm_of_all_heads(b: Builder, name: str, x: ShardedTensor, heads: str) -> ShardedTensor:
    """RMSNorm over heads that are split: each chip's sum of squares, added up over the chips, then the scaling.

    Copies of a head, where chips share one, add to the sum as they do to the width.
    """
    width = b.g.sizes[heads] * b.config.head_dim
    squares = b.g.reduce_features(b.named(f"{name}_squares"), x, _sum_of_squares, "J", operations_per_element=2)
    squares = b.laid_out(squares, squares.layout.with_partial(()))
    scale = b.vector(f"{name}_norm_scale[{heads}, H]")
    return b.elementwise(
        f"{name}_norm",
        [x, squares],
        lambda rows, total, weight: rows / np.sqrt(total / width + NORM_EPSILON) * weight,
        RMSNORM_OPERATIONS - 2,
        vectors=[scale],
    )


def _sum_of_squares(rows: Any) -> Any:
    return (rows * rows).sum(axis=-1, keepdims=True)
