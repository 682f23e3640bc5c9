"""Multi-head latent attention: a latent of each position is cached, from which all heads' keys and values follow.

    c = norm(x W_kv_down)[:C], k_rope = rotate(x W_kv_down)[C:]         cached: C + O values a position
    k_n = [c W_k_up_n, k_rope],  v_n = c W_v_up_n                       rebuilt for each head n
    q_n · k_n = (q_n W_k_up_nᵀ) · c + q_rope_n · k_rope                 absorbed: all heads attend to the latents

Where heads are split, the latents and what makes them are on every chip. Source: DeepSeek-V2, 2024.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from simcore.opgraph import ShardedTensor
from workloads.blocks.builder import Builder
from workloads.blocks.context import attend
from workloads.blocks.functions import RMSNORM_OPERATIONS, ROTARY_OPERATIONS, Function, Rotary, beside, rms_norm
from workloads.config import MlaConfig


def latent_attention(b: Builder, h: ShardedTensor) -> ShardedTensor:
    """``o[B, T, D]`` of the normed input ``h[B, T, D]``, partial sums where heads are split.

    The latents of the new positions are cached.
    """
    mla, bias = _mla(b), b.config.qkv_bias
    queries, dim = h, "D"
    if mla.q_lora_rank is not None:
        down = b.einsum("q_down", h, "w_q_down[D, Q]", bias="b_q_down[Q]" if bias else "")
        queries, dim = _rms_norm(b, "q_norm", down, "Q"), "Q"
    q_nope = b.heads(b.einsum("q_nope", queries, f"w_q_nope[{dim}, N, Hn]"))
    q_rope = b.heads(b.einsum("q_rope", queries, f"w_q_rope[{dim}, N, O]"))
    down = b.heads(b.einsum("kv_down", h, "w_kv_down[D, W]", bias="b_kv_down[W]" if bias else ""))
    scale = b.vector("kv_norm_scale[C]")
    latent = b.elementwise(
        "latent", [down, b.positions], _latent(mla), RMSNORM_OPERATIONS + ROTARY_OPERATIONS, vectors=[scale]
    )
    cache = b.cache("latent_cache", "W")
    a = _absorbed(b, q_nope, q_rope, latent, cache) if b.step.uses_absorbed() else _rebuilt(b, q_nope, q_rope, latent)
    b.append("append", latent, cache)
    return b.einsum("o", a, "w_o[N, Hv, D]", bias="b_o[D]" if b.config.attention_output_bias else "")


def _absorbed(
    b: Builder, q_nope: ShardedTensor, q_rope: ShardedTensor, latent: ShardedTensor, cache: ShardedTensor
) -> ShardedTensor:
    """Queries are taken to the latents, all heads attend to them, and the sums are taken to values."""
    mla = _mla(b)
    q_latent = b.batched_einsum("q_latent", q_nope, "w_k_up[N, Hn, C]")
    q = _with_rope(b, q_latent, q_rope, mla.kv_lora_rank, "N, W")
    scale, width = mla.qk_head_dim**-0.5, mla.kv_lora_rank
    a = attend(b, q, latent, latent, k_cache=cache, v_cache=cache, scale=scale, values="C", width=width)
    return b.batched_einsum("values", a, "w_v_up[N, C, Hv]")


def _rebuilt(b: Builder, q_nope: ShardedTensor, q_rope: ShardedTensor, latent: ShardedTensor) -> ShardedTensor:
    """Keys and values of all heads are rebuilt from the latents."""
    mla = _mla(b)
    c = b.elementwise("c", [latent], lambda rows: rows[:, : mla.kv_lora_rank], 0, features="C")
    k_nope = b.einsum("k_up", c, "w_k_up[N, Hn, C]")
    v = b.einsum("v_up", c, "w_v_up[C, N, Hv]")
    join = beside(mla.qk_nope_head_dim, mla.qk_rope_head_dim, shared=True)
    k = b.elementwise(
        "keys", [k_nope, latent], lambda nope, rows: join(nope, rows[:, mla.kv_lora_rank :]), 0, features="N, H"
    )
    q = _with_rope(b, q_nope, q_rope, mla.qk_nope_head_dim, "N, H")
    return attend(b, q, k, v, scale=mla.qk_head_dim**-0.5, values="Hv", width=mla.v_head_dim)


def _with_rope(b: Builder, q: ShardedTensor, q_rope: ShardedTensor, width: int, features: str) -> ShardedTensor:
    """Queries and their rotated part beside each other in every head."""
    rope = _mla(b).qk_rope_head_dim
    rotate, join = Rotary(rope, rope), beside(width, rope)

    def function(left: Any, right: Any, positions: Any) -> Any:
        return join(left, rotate(right, positions))

    share = rope / (width + rope)  # only the rotated part costs something
    return b.elementwise("queries", [q, q_rope, b.positions], function, ROTARY_OPERATIONS * share, features=features)


def _latent(mla: MlaConfig) -> Function:
    """The first C features normed, the others rotated."""
    c, rope = mla.kv_lora_rank, mla.qk_rope_head_dim
    rotate = Rotary(rope, rope)

    def function(rows: Any, positions: Any, scale: Any) -> Any:
        return np.concatenate([rms_norm(rows[:, :c], scale), rotate(rows[:, c:], positions)], axis=-1)

    return function


def _rms_norm(b: Builder, name: str, x: ShardedTensor, dim: str) -> ShardedTensor:
    scale = b.vector(f"{name}_scale[{dim}]")
    return b.elementwise(name, [x], rms_norm, RMSNORM_OPERATIONS, vectors=[scale], along=[dim])


def _mla(b: Builder) -> MlaConfig:
    assert b.config.mla is not None
    return b.config.mla
