"""Counting a model: parameters by part, those one token uses, cache elements a token, FLOPs a token.

Nothing here knows a chip. A multiply-add is 2 FLOPs; "active" parameters are those that one token's forward
pass uses, the embedding table, the unembedding and the norms included, as published figures mostly have it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from simcore.errors import ModelConfigError
from workloads.config import ModelConfig, dtype_bits


@dataclass(frozen=True, slots=True)
class LayerParameters:
    """Parameters of one layer by part. ``active_experts`` is what one token uses of ``experts``."""

    attention: int
    mlp: int
    experts: int
    active_experts: int
    router: int
    shared_experts: int
    norms: int
    biases: int
    active_biases: int

    @property
    def total(self) -> int:
        """All parameters of the layer."""
        return self.matmul + self.norms + self.biases + self.experts - self.active_experts

    @property
    def matmul(self) -> int:
        """Weights of the matmuls that one token passes through: each costs it 2 FLOPs."""
        return self.attention + self.mlp + self.active_experts + self.router + self.shared_experts

    @property
    def active(self) -> int:
        """Parameters that one token uses."""
        return self.matmul + self.norms + self.active_biases

    @property
    def without_norms(self) -> int:
        """All but the norms and biases."""
        return self.total - self.norms - self.biases


@dataclass(frozen=True, slots=True)
class ParameterCount:
    """Parameters of a model by part and by layer. ``lm_head`` is 0 when tied to ``embedding``."""

    layers: tuple[LayerParameters, ...]
    embedding: int
    positions: int
    lm_head: int
    vocabulary_matmul: int
    final_norm: int
    head_bias: int

    def _sum(self, part: str) -> int:
        return sum(getattr(layer, part) for layer in self.layers)

    @property
    def attention(self) -> int:
        """Projections of queries, keys, values and outputs."""
        return self._sum("attention")

    @property
    def mlp(self) -> int:
        """Dense MLPs, of the layers that have no experts."""
        return self._sum("mlp")

    @property
    def experts(self) -> int:
        """All routed experts."""
        return self._sum("experts")

    @property
    def router(self) -> int:
        """Routers, with the gate of shared experts where there is one."""
        return self._sum("router")

    @property
    def shared_experts(self) -> int:
        """Experts that every token passes through."""
        return self._sum("shared_experts")

    @property
    def norms(self) -> int:
        """Norm weights, and norm biases where norms have them."""
        return self._sum("norms") + self.final_norm

    @property
    def biases(self) -> int:
        """Biases of the projections."""
        return self._sum("biases") + self.head_bias

    @property
    def total(self) -> int:
        """All parameters: what memory has to hold."""
        return self.embedding + self.positions + self._sum("total") + self.final_norm + self.lm_head + self.head_bias

    @property
    def total_without_norms(self) -> int:
        """All but norms and biases: the vectors, which are no matmul."""
        return self.total - self.norms - self.biases

    @property
    def active(self) -> int:
        """Parameters that one token uses, embeddings included."""
        return self.embedding + self.positions + self._sum("active") + self.final_norm + self.lm_head + self.head_bias

    @property
    def active_without_embedding(self) -> int:
        """Active parameters without tables that are only looked up (a tied table is a matmul too, and stays)."""
        looked_up = self.embedding if self.lm_head else 0
        return self.active - looked_up - self.positions

    @property
    def matmul(self) -> int:
        """Weights of the matmuls that one token passes through, the vocabulary once."""
        return self._sum("matmul") + self.vocabulary_matmul

    def by_part(self) -> dict[str, int]:
        """Parts that add up to `total`, without those that are empty."""
        parts = {
            "embedding": self.embedding,
            "positions": self.positions,
            "attention": self.attention,
            "mlp": self.mlp,
            "experts": self.experts,
            "router": self.router,
            "shared_experts": self.shared_experts,
            "norms": self.norms,
            "biases": self.biases,
            "lm_head": self.lm_head,
        }
        return {part: count for part, count in parts.items() if count}


def count_parameters(config: ModelConfig) -> ParameterCount:
    """Exact parameter count of ``config``, by part and by layer.

    Multi-token-prediction heads are not counted, nor is a vision tower. The rules of one layer (D = d_model):
    attention D H (2 N + 2 K); with a latent cache D q + q N (nope + rope) + D (c + rope) + c N (nope + v) + N
    v D; gated MLP 3 D F, plain 2 D F; experts E times that, and a router D E.
    """
    vocabulary = config.vocabulary_size * config.d_model
    dense = _layer(config, moe=False)
    sparse = _layer(config, moe=True) if config.moe is not None else dense
    return ParameterCount(
        layers=tuple(sparse if config.is_moe_layer(i) else dense for i in range(config.n_layers)),
        embedding=vocabulary,
        positions=config.learned_positions * config.d_model,
        lm_head=0 if config.tied_embeddings else vocabulary,
        vocabulary_matmul=vocabulary,
        final_norm=config.d_model * (2 if config.norm_bias else 1) if config.final_norm else 0,
        head_bias=config.vocabulary_size if config.lm_head_bias else 0,
    )


def _layer(config: ModelConfig, moe: bool) -> LayerParameters:
    d, n, k, h = config.d_model, config.n_heads, config.n_kv_heads, config.head_dim
    norms = config.norms_per_layer * d * (2 if config.norm_bias else 1)
    biases = 0
    if config.mla is not None:
        mla = config.mla
        c, rope = mla.kv_lora_rank, mla.qk_rope_head_dim
        query = d * n * h if mla.q_lora_rank is None else mla.q_lora_rank * (d + n * h)
        attention = query + d * (c + rope) + c * n * (mla.qk_nope_head_dim + mla.v_head_dim) + n * mla.v_head_dim * d
        norms += c + (mla.q_lora_rank or 0)
        if config.qkv_bias:
            # Only the down projections have a bias; a direct query projection has none.
            biases += c + rope + (mla.q_lora_rank or 0)
    else:
        attention = d * h * (2 * n + 2 * k)
        if config.qk_norm == "per_head":
            norms += 2 * h
        elif config.qk_norm == "whole":
            norms += (n + k) * h
        if config.qkv_bias:
            biases += h * (n + 2 * k)
    if config.attention_output_bias:
        biases += d
    matrices = 3 if config.gated_mlp else 2
    if not moe or config.moe is None:
        mlp_biases = _mlp_bias(config, config.d_ff) if config.mlp_bias else 0
        return LayerParameters(
            attention=attention,
            mlp=matrices * d * config.d_ff,
            experts=0,
            active_experts=0,
            router=0,
            shared_experts=0,
            norms=norms,
            biases=biases + mlp_biases,
            active_biases=biases + mlp_biases,
        )
    m = config.moe
    expert = matrices * d * m.d_ff_expert
    if config.mlp_bias and m.shared_d_ff:
        biases += _mlp_bias(config, m.shared_d_ff)
    if m.router_bias:
        biases += m.n_experts
    expert_bias = _mlp_bias(config, m.d_ff_expert) if config.mlp_bias else 0
    return LayerParameters(
        attention=attention,
        mlp=0,
        experts=m.n_experts * expert,
        active_experts=m.top_k * expert,
        router=d * m.n_experts + (d if m.shared_gate else 0),
        shared_experts=matrices * d * m.shared_d_ff,
        norms=norms,
        biases=biases + m.n_experts * expert_bias,
        active_biases=biases + m.top_k * expert_bias,
    )


def _mlp_bias(config: ModelConfig, width: int) -> int:
    return width * (2 if config.gated_mlp else 1) + config.d_model


def kv_elements_per_token(config: ModelConfig) -> int:
    """Elements that one position adds to the cache over all layers: 2 K H L, or (c + rope) L under mla."""
    return config.n_layers * kv_elements_per_token_per_layer(config)


def kv_elements_per_token_per_layer(config: ModelConfig) -> int:
    """Elements that one position adds to the cache of one layer."""
    if config.mla is not None:
        return config.mla.kv_lora_rank + config.mla.qk_rope_head_dim
    return 2 * config.n_kv_heads * config.head_dim


def kv_bytes_per_token(config: ModelConfig, kv_dtype: str = "bf16") -> float:
    """Bytes that one position adds to the cache over all layers, while no window is full."""
    return float(kv_elements_per_token(config) * dtype_bits(kv_dtype) / 8)


def kv_cache_bytes(config: ModelConfig, context: int, kv_dtype: str = "bf16", windowed: bool = True) -> float:
    """Bytes of one sequence's cache at ``context`` positions; ``windowed``: no more than a layer can see."""
    if context < 0:
        raise ModelConfigError(f"context must not be negative, got {context}")
    if windowed:
        positions = sum(config.attention_span(layer, context) for layer in range(config.n_layers))
    else:
        positions = config.n_layers * context
    return float(positions * kv_elements_per_token_per_layer(config) * dtype_bits(kv_dtype) / 8)


def attention_flops_per_token(
    config: ModelConfig, context: int, *, windowed: bool = True, absorbed: bool = False
) -> int:
    """FLOPs of scores and weighted values for one token that sees ``context`` positions, itself included.

    4 S N H a layer; S is cut to what a sliding or chunked layer can see unless ``windowed`` is off. With a
    latent cache 2 S N (qk_head_dim + v_head_dim), or ``absorbed``: the up projections are folded into query
    and output, and each head works on the latent, 2 S N (2 c + rope), as decoding kernels do.
    """
    if context < 0:
        raise ModelConfigError(f"context must not be negative, got {context}")
    width = config.head_dim + config.v_head_dim
    if config.mla is not None and absorbed:
        width = 2 * config.mla.kv_lora_rank + config.mla.qk_rope_head_dim
    spans = (config.attention_span(i, context) if windowed else context for i in range(config.n_layers))
    return 2 * config.n_heads * width * sum(spans)


def matmul_flops_per_token(
    config: ModelConfig, context: int = 0, *, windowed: bool = True, absorbed: bool = False
) -> int:
    """Forward matmul FLOPs of one token: 2 for each weight it passes, and attention over ``context``.

    The vocabulary is counted once (as a matmul; the lookup is none), experts as used, routers too.
    ``context`` 0 leaves out scores and values.
    """
    weights = 2 * count_parameters(config).matmul
    return weights + attention_flops_per_token(config, context, windowed=windowed, absorbed=absorbed)


def weight_bytes(config: ModelConfig, dtype: str | None = None) -> int:
    """Bytes of all weights: in ``dtype``, or as the model is stored (quantized parts in their own dtype)."""
    count = count_parameters(config)
    if dtype is not None or config.quantized_dtype is None:
        return _bytes(count.total, dtype or config.dtype)
    if config.quantized_parts == "experts":
        quantized = count.experts
    else:
        quantized = count.attention + count.mlp + count.experts + count.shared_experts
    return _bytes(quantized, config.quantized_dtype) + _bytes(count.total - quantized, config.dtype)


def _bytes(elements: int, dtype: str) -> int:
    return -int(-(elements * Fraction(dtype_bits(dtype)) / 8) // 1)


def weight_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every weight array of the model and its shape; experts are stacked along their first dimension.

    Written from the arrays, not from the formulas of `count_parameters`: the two check each other.
    """
    return dict(_shapes(config))


def _shapes(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    d = config.d_model
    yield "embedding", (config.vocabulary_size, d)
    if config.learned_positions:
        yield "positions", (config.learned_positions, d)
    for layer in range(config.n_layers):
        at = f"layers.{layer}"
        yield from _attention_shapes(config, at)
        for i in range(config.norms_per_layer):
            yield from _norm_shapes(f"{at}.norm_{i}", d, config.norm_bias)
        if config.moe is not None and layer in config.moe.layers:
            m = config.moe
            yield f"{at}.router", (d, m.n_experts)
            if m.router_bias:
                yield f"{at}.router.bias", (m.n_experts,)
            yield from _mlp_shapes(config, f"{at}.experts", m.d_ff_expert, (m.n_experts,))
            if m.shared_d_ff:
                yield from _mlp_shapes(config, f"{at}.shared_experts", m.shared_d_ff, ())
            if m.shared_gate:
                yield f"{at}.shared_experts.sigmoid_gate", (d, 1)
        else:
            yield from _mlp_shapes(config, f"{at}.mlp", config.d_ff, ())
    if config.final_norm:
        yield from _norm_shapes("final_norm", d, config.norm_bias)
    if not config.tied_embeddings:
        yield "lm_head", (d, config.vocabulary_size)
    if config.lm_head_bias:
        yield "lm_head.bias", (config.vocabulary_size,)


def _norm_shapes(at: str, width: int, bias: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{at}.scale", (width,)
    if bias:
        yield f"{at}.bias", (width,)


def _attention_shapes(config: ModelConfig, at: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    d, queries = config.d_model, config.n_heads * config.head_dim
    mla = config.mla
    if mla is None:
        keys = config.n_kv_heads * config.head_dim
        for part, width in (("q", queries), ("k", keys), ("v", keys)):
            yield f"{at}.{part}", (d, width)
            if config.qkv_bias:
                yield f"{at}.{part}.bias", (width,)
        if config.qk_norm in ("per_head", "whole"):
            yield f"{at}.q_norm.scale", (config.head_dim if config.qk_norm == "per_head" else queries,)
            yield f"{at}.k_norm.scale", (config.head_dim if config.qk_norm == "per_head" else keys,)
        yield f"{at}.o", (queries, d)
    else:
        latent = mla.kv_lora_rank + mla.qk_rope_head_dim
        if mla.q_lora_rank is None:
            yield f"{at}.q", (d, queries)
        else:
            yield f"{at}.q_down", (d, mla.q_lora_rank)
            yield f"{at}.q_down_norm.scale", (mla.q_lora_rank,)
            yield f"{at}.q_up", (mla.q_lora_rank, queries)
            if config.qkv_bias:
                yield f"{at}.q_down.bias", (mla.q_lora_rank,)
        yield f"{at}.kv_down", (d, latent)
        yield f"{at}.kv_down_norm.scale", (mla.kv_lora_rank,)
        if config.qkv_bias:
            yield f"{at}.kv_down.bias", (latent,)
        yield f"{at}.kv_up", (mla.kv_lora_rank, config.n_heads * (mla.qk_nope_head_dim + mla.v_head_dim))
        yield f"{at}.o", (config.n_heads * mla.v_head_dim, d)
    if config.attention_output_bias:
        yield f"{at}.o.bias", (d,)


def _mlp_shapes(
    config: ModelConfig, at: str, width: int, stack: tuple[int, ...]
) -> Iterator[tuple[str, tuple[int, ...]]]:
    d = config.d_model
    for part in ("gate", "up") if config.gated_mlp else ("up",):
        yield f"{at}.{part}", (*stack, d, width)
        if config.mlp_bias:
            yield f"{at}.{part}.bias", (*stack, width)
    yield f"{at}.down", (*stack, width, d)
    if config.mlp_bias:
        yield f"{at}.down.bias", (*stack, d)
