"""What a decoder-only Transformer is, for time and memory: sizes, layer pattern, experts, biases.

`ModelConfig` is a frozen, validated value and nothing more. Reading files is in `workloads.hf` and
`workloads.catalogue`; counting is in `workloads.parameters`.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, TypeAlias, get_args

from simcore import dtypes
from simcore.errors import ModelConfigError, nearest

LayerAttention: TypeAlias = Literal["full", "sliding", "chunked"]
Norm: TypeAlias = Literal["rmsnorm", "layernorm"]
QkNorm: TypeAlias = Literal["per_head", "whole", "weightless"]

MAX_LAYERS = 10_000
MAX_SIZE = 10**9


def dtype_bits(dtype: str) -> Fraction | int:
    """Bits of one stored value of ``dtype``, block scales included. Raises `ModelConfigError` for an unknown name.

    >>> dtype_bits("bf16")
    16
    """
    try:
        return dtypes.dtype_bits(dtype)
    except dtypes.DtypeError as error:
        raise ModelConfigError(str(error)) from None


@dataclass(frozen=True, slots=True)
class MlaConfig:
    """Multi-head latent attention: keys and values are rebuilt from a latent of ``kv_lora_rank`` a token.

    ``q_lora_rank`` None means that queries are projected directly. The cache holds ``kv_lora_rank +
    qk_rope_head_dim`` values a token and layer, whatever the number of heads.
    """

    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int

    def __post_init__(self) -> None:
        if self.q_lora_rank is not None:
            _size("mla.q_lora_rank", self.q_lora_rank)
        for field in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"):
            _size(f"mla.{field}", getattr(self, field))

    @property
    def qk_head_dim(self) -> int:
        """Width of one head's query and key."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim


@dataclass(frozen=True, slots=True)
class MoeConfig:
    """Mixture of experts: a token uses ``top_k`` of ``n_experts``, each of width ``d_ff_expert``.

    ``shared_d_ff`` is the total width of what every token passes through besides (0: nothing),
    ``shared_gate`` a [d_model, 1] gate on it. ``layers`` are the indices of the layers with experts; the
    others are dense.
    """

    n_experts: int
    top_k: int
    d_ff_expert: int
    layers: tuple[int, ...]
    shared_d_ff: int = 0
    shared_gate: bool = False
    router_bias: bool = False
    n_groups: int | None = None
    top_k_groups: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", tuple(self.layers))
        for field in ("n_experts", "top_k", "d_ff_expert"):
            _size(f"moe.{field}", getattr(self, field))
        _size("moe.shared_d_ff", self.shared_d_ff, least=0)
        if self.top_k > self.n_experts:
            raise ModelConfigError(
                f"moe.top_k {self.top_k} is more than moe.n_experts {self.n_experts}: "
                "a token cannot use more experts than there are"
            )
        if not self.layers:
            raise ModelConfigError("moe.layers is empty: leave moe out for a dense model")
        if list(self.layers) != sorted(set(self.layers)):
            raise ModelConfigError("moe.layers must be layer indices in ascending order, each once")
        if self.shared_gate and not self.shared_d_ff:
            raise ModelConfigError("moe.shared_gate needs shared experts: give moe.shared_d_ff")
        for field in ("n_groups", "top_k_groups"):
            if getattr(self, field) is not None:
                _size(f"moe.{field}", getattr(self, field))
        if self.n_groups is not None and self.n_experts % self.n_groups:
            raise ModelConfigError(f"moe.n_experts {self.n_experts} does not divide into moe.n_groups {self.n_groups}")
        if self.top_k_groups is not None and self.top_k_groups > (self.n_groups or 1):
            raise ModelConfigError(
                f"moe.top_k_groups {self.top_k_groups} is more than moe.n_groups {self.n_groups or 1}"
            )


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder-only Transformer. Sizes count elements; ``assumptions`` says which figures were filled in.

    ``head_dim`` is a figure of its own and need not be d_model / n_heads. Under ``mla`` it is the width of
    one head's query and key, and ``n_kv_heads`` equals ``n_heads``. ``attention_pattern`` has one entry a
    layer: ``full``, ``sliding`` (the last ``sliding_window`` positions) or ``chunked`` (positions of the same
    chunk of ``attention_chunk``); left empty it is all full. ``learned_positions`` is the number of rows of a
    learned position table, 0 without one. ``norms_per_layer`` counts the norms of width d_model in a block.

    Raises `ModelConfigError` for anything that cannot be a model.
    """

    name: str
    model_type: str
    n_layers: int
    d_model: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    d_ff: int
    vocabulary_size: int
    tied_embeddings: bool = False
    gated_mlp: bool = True
    activation: str = "silu"
    norm: Norm = "rmsnorm"
    max_positions: int | None = None
    attention_pattern: tuple[LayerAttention, ...] = ()
    sliding_window: int | None = None
    attention_chunk: int | None = None
    learned_positions: int = 0
    mla: MlaConfig | None = None
    moe: MoeConfig | None = None
    qkv_bias: bool = False
    attention_output_bias: bool = False
    mlp_bias: bool = False
    lm_head_bias: bool = False
    qk_norm: QkNorm | None = None
    norms_per_layer: int = 2
    norm_bias: bool = False
    final_norm: bool = True
    parallel_block: bool = False
    dtype: str = "bf16"
    quantized_dtype: str | None = None
    quantized_parts: Literal["linear", "experts"] = "linear"
    source: str = ""
    assumptions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _size("n_layers", self.n_layers, most=MAX_LAYERS)
        for field in ("d_model", "n_heads", "n_kv_heads", "head_dim", "d_ff", "vocabulary_size"):
            _size(field, getattr(self, field))
        for field in ("max_positions", "sliding_window", "attention_chunk"):
            if getattr(self, field) is not None:
                _size(field, getattr(self, field))
        for field in ("learned_positions", "norms_per_layer"):
            _size(field, getattr(self, field), least=0)
        for field in _FLAGS:
            if not isinstance(getattr(self, field), bool):
                raise ModelConfigError(f"{field} must be true or false, got {getattr(self, field)!r}")
        _one_of("norm", self.norm, get_args(Norm))
        if self.qk_norm is not None:
            _one_of("qk_norm", self.qk_norm, get_args(QkNorm))
        _one_of("quantized_parts", self.quantized_parts, ("linear", "experts"))
        dtype_bits(self.dtype)
        if self.quantized_dtype is not None:
            dtype_bits(self.quantized_dtype)
        if self.n_heads % self.n_kv_heads:
            raise ModelConfigError(
                f"n_heads {self.n_heads} is not a multiple of n_kv_heads {self.n_kv_heads}: "
                "each key-value head serves the same number of query heads"
            )
        self._check_pattern()
        if self.mla is not None:
            if self.n_kv_heads != self.n_heads or self.head_dim != self.mla.qk_head_dim:
                raise ModelConfigError(
                    f"with mla, n_kv_heads must be n_heads ({self.n_heads}) and head_dim must be "
                    f"qk_nope_head_dim + qk_rope_head_dim ({self.mla.qk_head_dim})"
                )
            if self.qk_norm is not None:
                raise ModelConfigError("qk_norm and mla do not go together: the latents of mla have norms of their own")
        for layer in self.moe.layers if self.moe is not None else ():
            if not 0 <= layer < self.n_layers:
                raise ModelConfigError(f"moe.layers names layer {layer}, but the layers are 0 to {self.n_layers - 1}")
        if self.quantized_parts == "experts" and self.moe is None:
            raise ModelConfigError('quantized_parts is "experts", but the model has none')

    def _check_pattern(self) -> None:
        pattern = tuple(self.attention_pattern) or ("full",) * self.n_layers
        object.__setattr__(self, "attention_pattern", pattern)
        object.__setattr__(self, "assumptions", tuple(self.assumptions))
        if len(pattern) != self.n_layers:
            raise ModelConfigError(
                f"attention_pattern has {len(pattern)} entries for {self.n_layers} layers: give one a layer"
            )
        for kind in set(pattern):
            _one_of("attention_pattern", kind, get_args(LayerAttention))
        if "sliding" in pattern and self.sliding_window is None:
            raise ModelConfigError("the model has sliding layers but no sliding_window: give the window's length")
        if "chunked" in pattern and self.attention_chunk is None:
            raise ModelConfigError("the model has chunked layers but no attention_chunk: give the chunk's length")

    @property
    def group_size(self) -> int:
        """Query heads that share one key-value head."""
        return self.n_heads // self.n_kv_heads

    @property
    def v_head_dim(self) -> int:
        """Width of one head's value."""
        return self.head_dim if self.mla is None else self.mla.v_head_dim

    @property
    def has_window(self) -> bool:
        """Whether some layer sees less than the whole context."""
        return any(kind != "full" for kind in self.attention_pattern)

    def is_moe_layer(self, layer: int) -> bool:
        """Whether ``layer`` has experts in place of a dense MLP."""
        return self.moe is not None and layer in self.moe.layers

    def attention_span(self, layer: int, context: int) -> int:
        """Positions that a token at the end of ``context`` (itself included) can see in ``layer``, at most.

        A chunk may have just begun; its full length is what is counted.
        """
        kind = self.attention_pattern[layer]
        if kind == "sliding" and self.sliding_window is not None:
            return min(context, self.sliding_window)
        if kind == "chunked" and self.attention_chunk is not None:
            return min(context, self.attention_chunk)
        return context


_FLAGS = (
    "tied_embeddings",
    "gated_mlp",
    "qkv_bias",
    "attention_output_bias",
    "mlp_bias",
    "lm_head_bias",
    "norm_bias",
    "final_norm",
    "parallel_block",
)


def _size(field: str, value: object, least: int = 1, most: int = MAX_SIZE) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ModelConfigError(f"{field} must be a whole number, got {value!r}")
    if not least <= value <= most:
        raise ModelConfigError(f"{field} must be between {least} and {most:,}, got {value}")


def _one_of(field: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ModelConfigError(f"{field} {value!r} is not known: {nearest(str(value), known)}")
