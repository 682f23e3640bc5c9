"""What distinguishes the model families of Hugging Face config files: one entry of `FAMILIES` for each model_type.

A new family is a new entry here, and nothing else. An entry says what the class of that model_type fixes
(gated MLP, norms, which switches turn biases on), what it assumes where a file is silent, and which rule
gives the attention of each layer and the experts. Figures and defaults are those of the classes of
`transformers` 5.24.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from simcore.errors import ModelConfigError
from workloads.config import LayerAttention, MoeConfig, Norm, QkNorm
from workloads.hf_keys import Keys

Pattern: TypeAlias = tuple[LayerAttention, ...]


class Switch(NamedTuple):
    """A yes or no: by ``key`` of the file where there is one, else always ``default``."""

    key: str | None
    default: bool


NEVER = Switch(None, False)
ALWAYS = Switch(None, True)
ATTENTION_BIAS = Switch("attention_bias", False)


# --- which positions a layer sees, where the file has no layer_types


def _where(kind: LayerAttention, layers: Iterable[bool]) -> Pattern:
    return tuple([kind if marked else "full" for marked in layers])


def full(keys: Keys, n_layers: int) -> Pattern:
    """Every layer sees everything."""
    return _where("full", [True] * n_layers)


def window_everywhere(keys: Keys, n_layers: int) -> Pattern:
    """Every layer slides if there is a window (mistral)."""
    return _where("sliding", [_window(keys)] * n_layers)


def window_if_used(keys: Keys, n_layers: int) -> Pattern:
    """Every layer slides if use_sliding_window says so (qwen3_moe)."""
    return _where("sliding", [_window_used(keys)] * n_layers)


def window_from_layer(keys: Keys, n_layers: int) -> Pattern:
    """With use_sliding_window, layers from max_window_layers on slide (qwen2, qwen3)."""
    if not _window_used(keys):
        return full(keys, n_layers)
    first = keys.integer("max_window_layers", 28, least=0)
    return _where("sliding", (i >= first for i in range(n_layers)))


def window_on_even_until(keys: Keys, n_layers: int) -> Pattern:
    """With use_sliding_window, even layers below max_window_layers slide (qwen2_moe)."""
    if not _window_used(keys):
        return full(keys, n_layers)
    end = keys.integer("max_window_layers", 28, least=0)
    return _where("sliding", (i % 2 == 0 and i < end for i in range(n_layers)))


def window_on_even(keys: Keys, n_layers: int) -> Pattern:
    """Layers 0, 2, ... slide (gemma2, gpt_oss)."""
    if not _window(keys):
        return full(keys, n_layers)
    return _where("sliding", (i % 2 == 0 for i in range(n_layers)))


def full_every(period: int) -> Callable[[Keys, int], Pattern]:
    """Every ``period``-th layer is full, the others slide; sliding_window_pattern overrides it (gemma3)."""

    def pattern(keys: Keys, n_layers: int) -> Pattern:
        if not _window(keys):
            return full(keys, n_layers)
        every = keys.integer("sliding_window_pattern", period, because=f"every {period}th layer is full")
        return _where("sliding", ((i + 1) % every > 0 for i in range(n_layers)))

    return pattern


def chunks_where_rope(keys: Keys, n_layers: int) -> Pattern:
    """Layers with rotary positions see their chunk, the others everything (llama4)."""
    if keys.optional_integer("attention_chunk") is None:
        return full(keys, n_layers)
    with_rope = keys.integers("no_rope_layers")  # 1: the layer *has* rotary positions
    if with_rope:
        if len(with_rope) != n_layers:
            raise ModelConfigError(f"{keys.where}: no_rope_layers has {len(with_rope)} entries for {n_layers} layers")
        return _where("chunked", (rope != 0 for rope in with_rope))
    every = keys.integer("no_rope_layer_interval", 4, because="every 4th layer is full")
    return _where("chunked", ((i + 1) % every > 0 for i in range(n_layers)))


def _window(keys: Keys) -> bool:
    entry = keys.find("sliding_window")
    if entry is None:
        return keys.defaults.get("sliding_window") is not None
    return bool(entry[1])


def _window_used(keys: Keys) -> bool:
    return (
        keys.values.get("use_sliding_window") is not None and keys.flag("use_sliding_window", False) and _window(keys)
    )


# --- experts


def dense(keys: Keys, n_layers: int) -> MoeConfig | None:
    """No experts; a file that has them all the same is refused."""
    entry = keys.find("n_experts")
    if entry is not None and entry[1]:
        raise ModelConfigError(f"{keys.where}: {entry[0]} is set, but {keys.family} models have no experts")
    return None


def experts_everywhere(router_bias: bool) -> Callable[[Keys, int], MoeConfig | None]:
    """All layers have experts, of width intermediate_size (mixtral, gpt_oss)."""

    def experts(keys: Keys, n_layers: int) -> MoeConfig | None:
        width = keys.integer("d_ff")
        return _moe(keys, tuple(range(n_layers)), width, router_bias=router_bias)

    return experts


def experts_by_step(keys: Keys, n_layers: int) -> MoeConfig | None:
    """Layer i has experts if (i + 1) % decoder_sparse_step == 0 and it is not in mlp_only_layers (qwen)."""
    step = keys.integer("decoder_sparse_step", 1)
    without = set(keys.integers("mlp_only_layers") or ())
    layers = tuple(i for i in range(n_layers) if (i + 1) % step == 0 and i not in without)
    shared = 0
    if keys.family == "qwen2_moe":
        shared = keys.integer("shared_d_ff", least=0)
    return _moe(keys, layers, keys.integer("d_ff_expert"), shared_d_ff=shared, shared_gate=shared > 0)


def experts_after_first(keys: Keys, n_layers: int) -> MoeConfig | None:
    """Layers from first_k_dense_replace on have experts, every moe_layer_freq-th of them (deepseek)."""
    if not _has_experts(keys):
        return None
    first = keys.integer("first_k_dense_replace", least=0)
    every = keys.integer("moe_layer_freq", 1)
    layers = tuple(i for i in range(first, n_layers) if i % every == 0)
    width = keys.integer("d_ff_expert")
    shared = keys.integer("n_shared_experts", 0, least=0)
    return _moe(keys, layers, width, shared_d_ff=shared * width)


def experts_interleaved(keys: Keys, n_layers: int) -> MoeConfig | None:
    """moe_layers, or every interleave_moe_layer_step-th layer; always one shared expert (llama4)."""
    given = keys.integers("moe_layers")
    if given is None:
        step = keys.integer("interleave_moe_layer_step", 1)
        given = list(range(step - 1, n_layers, step))
    width = keys.integer("d_ff")
    return _moe(keys, tuple(sorted(set(given))), width, shared_d_ff=width)


def _has_experts(keys: Keys) -> bool:
    entry = keys.find("n_experts")
    return entry is not None and bool(entry[1])


def _moe(keys: Keys, layers: tuple[int, ...], width: int, **more: Any) -> MoeConfig | None:
    entry = keys.find("n_experts")
    if not layers or (entry is not None and not entry[1]):
        return None  # null or 0 experts: a dense model of this family
    return MoeConfig(
        n_experts=keys.integer("n_experts"),
        top_k=keys.integer("top_k"),
        d_ff_expert=width,
        layers=layers,
        n_groups=keys.optional_integer("n_groups"),
        top_k_groups=keys.optional_integer("top_k_groups"),
        **more,
    )


# --- what only one family does


def nothing_more(keys: Keys) -> dict[str, Any]:
    """No figures beyond the common ones."""
    return {}


def opt_details(keys: Keys) -> dict[str, Any]:
    """OPT's narrower embedding is refused; its final norm is there only where norms come first."""
    narrow = keys.optional_integer("word_embed_proj_dim")
    width = keys.integer("d_model")
    if narrow is not None and narrow != width:
        raise ModelConfigError(
            f"{keys.where}: word_embed_proj_dim {narrow} differs from hidden_size {width}: "
            "a projected embedding is not modelled"
        )
    first = keys.values.get("do_layer_norm_before") is not False
    return {"final_norm": first and keys.values.get("_remove_final_layer_norm") is not True}


def falcon_details(keys: Keys) -> dict[str, Any]:
    """Falcon: one key-value head in the old architecture with multi_query, and its one or two norms."""
    new = keys.flag("new_decoder_architecture", False)
    parallel = keys.flag("parallel_attn", True)
    details: dict[str, Any] = {"parallel_block": parallel, "norms_per_layer": 2}
    if new:
        if keys.optional_integer("num_ln_in_parallel_attn") == 1 and parallel:
            details["norms_per_layer"] = 1
        return details
    if parallel:
        details["norms_per_layer"] = 1
    details["n_kv_heads"] = 1 if keys.flag("multi_query", True) else keys.integer("n_heads")
    return details


def parallel_residual(keys: Keys) -> dict[str, Any]:
    """Attention and MLP side by side unless use_parallel_residual is false (gpt_neox)."""
    return {"parallel_block": keys.flag("use_parallel_residual", True)}


def cohere_details(keys: Keys) -> dict[str, Any]:
    """Command R: norms of queries and keys by use_qk_norm."""
    return {"qk_norm": "whole" if keys.flag("use_qk_norm", False) else None}


def llama4_details(keys: Keys) -> dict[str, Any]:
    """Llama 4: the norms of queries and keys have no weights; dense layers have a width of their own."""
    return {
        "qk_norm": "weightless" if keys.flag("use_qk_norm", True) else None,
        "d_ff": keys.integer("d_ff_dense"),
    }


def glm4_moe_details(keys: Keys) -> dict[str, Any]:
    """GLM-4.5: norms of queries and keys by use_qk_norm."""
    return {"qk_norm": "per_head" if keys.flag("use_qk_norm", False) else None}


@dataclass(frozen=True, slots=True)
class Family:
    """What a model_type fixes, and what it assumes where a file is silent (``defaults``, by figure)."""

    gated_mlp: bool = True
    activation: str = "silu"
    norm: Norm = "rmsnorm"
    norm_bias: bool = False
    norms_per_layer: int = 2
    qk_norm: QkNorm | None = None
    parallel_block: bool = False
    tied_embeddings: bool = False
    qkv_bias: Switch = NEVER
    attention_output_bias: Switch = NEVER
    mlp_bias: Switch = NEVER
    learned_positions_beyond: int | None = None
    """Rows of the learned position table beyond max_positions; None: no such table."""
    d_ff_over_d_model: int | None = None
    """d_ff / d_model where the file gives no d_ff."""
    latent_cache: bool = False
    """Whether kv_lora_rank is looked for, and means a latent cache."""
    attention: Callable[[Keys, int], Pattern] = full
    window_needs_use: bool = False
    """Whether a window counts only with use_sliding_window true, whatever layer_types says."""
    experts: Callable[[Keys, int], MoeConfig | None] = dense
    details: Callable[[Keys], dict[str, Any]] = nothing_more
    defaults: Mapping[str, Any] = field(default_factory=dict)


LLAMA = Family(qkv_bias=ATTENTION_BIAS, attention_output_bias=ATTENTION_BIAS, mlp_bias=Switch("mlp_bias", False))
QWEN3 = Family(
    qkv_bias=ATTENTION_BIAS,
    attention_output_bias=ATTENTION_BIAS,
    qk_norm="per_head",
    attention=window_from_layer,
    window_needs_use=True,
    defaults={"head_dim": 128},
)
QWEN3_MOE = Family(
    qkv_bias=ATTENTION_BIAS,
    attention_output_bias=ATTENTION_BIAS,
    qk_norm="per_head",
    attention=window_if_used,
    window_needs_use=True,
    experts=experts_by_step,
    defaults={"head_dim": 128},
)
DEEPSEEK = Family(
    qkv_bias=ATTENTION_BIAS,
    attention_output_bias=ATTENTION_BIAS,
    latent_cache=True,
    experts=experts_after_first,
)

FAMILIES: dict[str, Family] = {
    "llama": LLAMA,
    "mistral": Family(attention=window_everywhere, defaults={"n_kv_heads": 8, "sliding_window": 4096}),
    "mixtral": Family(
        attention=window_everywhere, experts=experts_everywhere(router_bias=False), defaults={"n_kv_heads": 8}
    ),
    "qwen2": Family(qkv_bias=ALWAYS, attention=window_from_layer, window_needs_use=True),
    "qwen2_moe": Family(
        qkv_bias=Switch("qkv_bias", True),
        attention=window_on_even_until,
        window_needs_use=True,
        experts=experts_by_step,
    ),
    "qwen3": QWEN3,
    "qwen3_vl_text": QWEN3,
    "qwen3_moe": QWEN3_MOE,
    "qwen3_vl_moe_text": QWEN3_MOE,
    "gemma": Family(
        activation="gelu_pytorch_tanh",
        tied_embeddings=True,
        qkv_bias=ATTENTION_BIAS,
        attention_output_bias=ATTENTION_BIAS,
        defaults={"head_dim": 256, "vocabulary_size": 256000},
    ),
    "gemma2": Family(
        activation="gelu_pytorch_tanh",
        tied_embeddings=True,
        norms_per_layer=4,
        qkv_bias=ATTENTION_BIAS,
        attention_output_bias=ATTENTION_BIAS,
        attention=window_on_even,
        defaults={
            "head_dim": 256,
            "n_heads": 8,
            "n_kv_heads": 4,
            "vocabulary_size": 256000,
            "sliding_window": 4096,
        },
    ),
    "gemma3_text": Family(
        activation="gelu_pytorch_tanh",
        tied_embeddings=True,
        norms_per_layer=4,
        qk_norm="per_head",
        qkv_bias=ATTENTION_BIAS,
        attention_output_bias=ATTENTION_BIAS,
        attention=full_every(6),
        defaults={
            "head_dim": 256,
            "n_heads": 8,
            "n_kv_heads": 4,
            "vocabulary_size": 262208,
            "sliding_window": 4096,
            "max_positions": 131072,
        },
    ),
    "deepseek_v2": DEEPSEEK,
    "deepseek_v3": DEEPSEEK,
    "kimi_k2": DEEPSEEK,
    "glm4_moe": Family(
        qkv_bias=ATTENTION_BIAS,
        experts=experts_after_first,
        details=glm4_moe_details,
        defaults={"n_kv_heads": 8},
    ),
    "gpt_oss": Family(
        qkv_bias=Switch("attention_bias", True),
        attention_output_bias=Switch("attention_bias", True),
        mlp_bias=ALWAYS,
        attention=window_on_even,
        experts=experts_everywhere(router_bias=True),
        defaults={"head_dim": 64, "n_kv_heads": 8, "sliding_window": 128},
    ),
    "llama4_text": Family(
        qkv_bias=ATTENTION_BIAS,
        attention_output_bias=ATTENTION_BIAS,
        attention=chunks_where_rope,
        experts=experts_interleaved,
        details=llama4_details,
        defaults={
            "n_heads": 40,
            "n_kv_heads": 8,
            "head_dim": 128,
            "vocabulary_size": 202048,
            "n_experts": 16,
            "top_k": 1,
            "d_ff_dense": 16384,
            "attention_chunk": 8192,
        },
    ),
    "gpt2": Family(
        gated_mlp=False,
        activation="gelu_new",
        norm="layernorm",
        norm_bias=True,
        tied_embeddings=True,
        qkv_bias=ALWAYS,
        attention_output_bias=ALWAYS,
        mlp_bias=ALWAYS,
        learned_positions_beyond=0,
        d_ff_over_d_model=4,
    ),
    "opt": Family(
        gated_mlp=False,
        activation="relu",
        norm="layernorm",
        norm_bias=True,
        tied_embeddings=True,
        qkv_bias=Switch("enable_bias", True),
        attention_output_bias=Switch("enable_bias", True),
        mlp_bias=Switch("enable_bias", True),
        learned_positions_beyond=2,
        details=opt_details,
    ),
    "gpt_neox": Family(
        gated_mlp=False,
        activation="gelu",
        norm="layernorm",
        norm_bias=True,
        qkv_bias=Switch("attention_bias", True),
        attention_output_bias=Switch("attention_bias", True),
        mlp_bias=ALWAYS,
        details=parallel_residual,
    ),
    "falcon": Family(
        gated_mlp=False,
        activation="gelu",
        norm="layernorm",
        norm_bias=True,
        tied_embeddings=True,
        qkv_bias=Switch("bias", False),
        attention_output_bias=Switch("bias", False),
        mlp_bias=Switch("bias", False),
        d_ff_over_d_model=4,
        details=falcon_details,
    ),
    "starcoder2": Family(
        gated_mlp=False,
        activation="gelu_pytorch_tanh",
        norm="layernorm",
        norm_bias=True,
        tied_embeddings=True,
        qkv_bias=Switch("use_bias", True),
        attention_output_bias=Switch("use_bias", True),
        mlp_bias=Switch("use_bias", True),
        attention=window_everywhere,
        defaults={"n_kv_heads": 2},
    ),
    "olmo2": Family(qkv_bias=ATTENTION_BIAS, attention_output_bias=ATTENTION_BIAS, qk_norm="whole"),
    "phi3": Family(attention=window_everywhere),
    "cohere": Family(
        norm="layernorm",
        norms_per_layer=1,
        parallel_block=True,
        tied_embeddings=True,
        qkv_bias=ATTENTION_BIAS,
        attention_output_bias=ATTENTION_BIAS,
        details=cohere_details,
    ),
    "cohere2": Family(
        norm="layernorm",
        norms_per_layer=1,
        parallel_block=True,
        tied_embeddings=True,
        qkv_bias=ATTENTION_BIAS,
        attention_output_bias=ATTENTION_BIAS,
        attention=full_every(4),
        defaults={"sliding_window": 4096},
    ),
}
"""model_type -> family."""

WRAPPERS: dict[str, str] = {
    "gemma3": "gemma3_text",
    "llama4": "llama4_text",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
    "kimi_k25": "kimi_k2",
    "mistral3": "mistral",
    "llava": "llama",
}
"""model_type of a multimodal file -> model_type of its text_config, where that doesn't say."""

REFUSED: dict[str, str] = {
    "gemma4": "its layers share keys and values and differ in head size",
    "gemma4_text": "its layers share keys and values and differ in head size",
    "gemma3n": "its layers share keys and values and differ in width",
    "gemma3n_text": "its layers share keys and values and differ in width",
    "deepseek_v32": "its sparse attention has an index of its own",
    "deepseek_v4": "its attention compresses the cache differently from layer to layer",
    "glm_moe_dsa": "its sparse attention has an index of its own",
    "qwen3_next": "it has linear-attention layers",
    "qwen3_5": "it has linear-attention layers",
    "qwen3_5_text": "it has linear-attention layers",
    "qwen3_5_moe": "it has linear-attention layers",
    "qwen3_5_moe_text": "it has linear-attention layers",
    "kimi_k3": "it has linear-attention layers",
    "kimi_linear": "it has linear-attention layers",
    "mamba": "it has state-space layers",
    "mamba2": "it has state-space layers",
    "jamba": "it has state-space layers",
    "nemotron_h": "it has state-space layers",
    "t5": "it is an encoder and a decoder",
    "bert": "it is an encoder",
}
"""model_type -> why it can't be read: refused, not guessed."""
