"""A decoder-only Transformer as an op graph: one decode step, or one prefill, on one chip or tensor-parallel.

Dimensions: B requests, T new positions of each, D model, N query heads, K key-value heads, H head, F feed-forward,
V vocabulary, S positions of the cache. Over the mesh axis X (Megatron's tensor parallelism) heads, the feed-forward
dimension and the vocabulary are split, so that each block ends in partial sums and an AllReduce.

Source of the block: Touvron et al. 2023 (Llama); of the split: Shoeybi et al. 2019, and How To Scale Your Model,
"All the Transformer Math You Need to Know". Vector operations per element are assumed counts, one a primitive.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from simcore.errors import ModelConfigError
from simcore.layout import Mesh
from simcore.opgraph import OpGraph, ShardedTensor
from simcore.opgraph.operations import Causal
from workloads.config import ModelConfig

ROPE_BASE = 10_000.0
NORM_EPSILON = 1e-6
RMSNORM_OPERATIONS, ROTARY_OPERATIONS, GATE_OPERATIONS = 4, 3, 5
AXIS = "X"


def decode_step(config: ModelConfig, *, batch: int, context: int, ring: int = 1) -> OpGraph:
    """One new token for each of ``batch`` requests that have ``context`` positions in their caches.

    Raises `ModelConfigError` for a model that is not Llama-like, or sizes that do not divide over ``ring`` chips.
    """
    return _model(config, batch=batch, new=1, cached=context, ring=ring, causal="full", name="decode_step")


def prefill(config: ModelConfig, *, batch: int, context: int, ring: int = 1, causal: Causal = "skip") -> OpGraph:
    """``context`` new positions for each of ``batch`` requests, caches filled, logits of the last position only.

    ``causal``: whether attention computes the "full" rectangle or may "skip" blocks above the diagonal.
    """
    return _model(config, batch=batch, new=context, cached=0, ring=ring, causal=causal, name="prefill")


def _model(config: ModelConfig, *, batch: int, new: int, cached: int, ring: int, causal: Causal, name: str) -> OpGraph:
    check_llama_like(config)
    check_ring(config, ring)
    if batch < 1 or new < 1 or cached < 0:
        raise ModelConfigError(
            f"batch {batch}, new positions {new}, cached {cached}: batch and positions are 1 or more"
        )
    sizes = {
        "B": batch,
        "T": new,
        "T'": 1,
        "D": config.d_model,
        "N": config.n_heads,
        "K": config.n_kv_heads,
        "H": config.head_dim,
        "F": config.d_ff,
        "V": config.vocabulary_size,
        "S": cached + new,
    }
    g = OpGraph(name, Mesh.of({AXIS: ring}), sizes, dtype=config.dtype)
    tokens = g.input("tokens[B, T]", dtype="int32", rows=2)
    positions = g.input("positions[B, T]", dtype="int32", rows=2)
    embedding = g.weight("embedding[V_X, D]")
    x = g.all_reduce(g.lookup("x", embedding, tokens), AXIS)
    with g.repeat("layer", config.n_layers):
        h = _norm(g, "attention_norm", x)
        q = _rotary(g, "q_rotary", g.einsum("q", h, g.weight("w_q[D, N_X, H]")), positions, config.head_dim)
        k = _rotary(g, "k_rotary", g.einsum("k", h, g.weight("w_k[D, K_X, H]")), positions, config.head_dim)
        v = g.einsum("v", h, g.weight("w_v[D, K_X, H]"))
        k_cache, v_cache = g.cache("k_cache[B, S, K_X, H]"), g.cache("v_cache[B, S, K_X, H]")
        a = g.attention(
            "attention", q, k, v, k_cache=k_cache, v_cache=v_cache, cached=cached, causal=causal,
            scale=config.head_dim**-0.5,
        )  # fmt: skip
        g.append("append_k", k, k_cache, at=cached)
        g.append("append_v", v, v_cache, at=cached)
        o = g.all_reduce(g.einsum("o", a, g.weight("w_o[N_X, H, D]")), AXIS)
        g.add("attention_residual", x, o, into=x)
        h = _norm(g, "mlp_norm", x)
        gate, up = g.einsum("gate", h, g.weight("w_gate[D, F_X]")), g.einsum("up", h, g.weight("w_up[D, F_X]"))
        z = g.elementwise("silu_times", [gate, up], _silu_times, operations_per_element=GATE_OPERATIONS)
        y = g.all_reduce(g.einsum("down", z, g.weight("w_down[F_X, D]")), AXIS)
        g.add("mlp_residual", x, y, into=x)
    last = x if new == 1 else g.take_last("last", x, "T", "T'")
    head = embedding if config.tied_embeddings else g.weight("lm_head[D, V_X]")
    g.einsum("logits", _norm(g, "final_norm", last), head)
    return g


def _norm(g: OpGraph, name: str, x: ShardedTensor) -> ShardedTensor:
    scale = g.weight(f"{name}_scale[D]")
    return g.elementwise(name, [x], _rms_norm, vectors=[scale], along=["D"], operations_per_element=RMSNORM_OPERATIONS)


def _rotary(g: OpGraph, name: str, x: ShardedTensor, positions: ShardedTensor, head_dim: int) -> ShardedTensor:
    return g.elementwise(name, [x, positions], _rotate(head_dim), operations_per_element=ROTARY_OPERATIONS)


def _rms_norm(x: Any, scale: Any) -> Any:
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + NORM_EPSILON) * scale


def _silu_times(gate: Any, up: Any) -> Any:
    return gate / (1 + np.exp(-gate)) * up


def _rotate(head_dim: int) -> Callable[[Any, Any], Any]:
    """Rotary embedding of rows of heads [rows, heads x head_dim] at positions [rows, 1] (Su et al. 2021)."""
    half = head_dim // 2
    frequencies = ROPE_BASE ** (-np.arange(half) / half)

    def rotate(x: Any, positions: Any) -> Any:
        angles = positions.reshape(-1, 1, 1) * frequencies
        heads = x.reshape(len(x), -1, head_dim)
        first, second = heads[..., :half], heads[..., half : 2 * half]
        cosine, sine = np.cos(angles), np.sin(angles)
        rotated = [first * cosine - second * sine, second * cosine + first * sine, heads[..., 2 * half :]]
        return np.concatenate(rotated, axis=-1).reshape(x.shape)

    return rotate


def check_llama_like(config: ModelConfig) -> None:
    """Raise `ModelConfigError` for what this lowering does not model, rather than leave it out in silence."""
    unlike = {
        "experts": config.moe is not None,
        "a latent cache (MLA)": config.mla is not None,
        "sliding or chunked attention": config.has_window,
        "a plain MLP": not config.gated_mlp,
        "LayerNorm": config.norm != "rmsnorm",
        "learned positions": config.learned_positions > 0,
        "biases": config.qkv_bias or config.attention_output_bias or config.mlp_bias or config.lm_head_bias,
        "norms of queries and keys": config.qk_norm is not None,
        "parallel blocks": config.parallel_block,
        "more than two norms a block": config.norms_per_layer != 2,
        "no final norm": not config.final_norm,
    }
    found = [what for what, has in unlike.items() if has]
    if found:
        raise ModelConfigError(
            f"model {config.name} has {', '.join(found)}: so far only Llama-like models can be simulated "
            "(RMSNorm, rotary positions, grouped-query attention, gated MLP, no biases)"
        )


def check_ring(config: ModelConfig, ring: int) -> None:
    """Raise `ModelConfigError` if the model does not divide over ``ring`` chips, naming what would."""
    if ring < 1:
        raise ModelConfigError(f"a ring of {ring} chips: 1 or more is meant")
    for what, size in (
        ("query heads", config.n_heads),
        ("key-value heads", config.n_kv_heads),
        ("feed-forward columns", config.d_ff),
        ("vocabulary rows", config.vocabulary_size),
    ):
        if size % ring:
            fitting = [n for n in range(1, min(size, 1024) + 1) if all(s % n == 0 for s in _split_sizes(config))]
            raise ModelConfigError(
                f"model {config.name}: {size} {what} do not divide over a ring of {ring}; "
                f"rings of {', '.join(map(str, fitting))} do"
            )


def _split_sizes(config: ModelConfig) -> tuple[int, ...]:
    return config.n_heads, config.n_kv_heads, config.d_ff, config.vocabulary_size
