"""What a model amounts to: parameters by part, bytes, FLOPs per token, cache per token, and what was assumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from simcore.quantities import format_bytes, format_count, format_flops
from workloads.config import ModelConfig
from workloads.parameters import (
    count_parameters,
    kv_bytes_per_token,
    kv_cache_bytes,
    matmul_flops_per_token,
    weight_bytes,
)


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """Figures of one model at one context length; FLOPs are the forward pass's matmuls (2 a multiply-add)."""

    config: ModelConfig
    context: int
    parameters: int
    active_parameters: int
    by_part: Mapping[str, int]
    weight_bytes: int
    flops_per_token: int
    attention_flops_per_token: int
    kv_bytes_per_token: float
    kv_cache_bytes: float
    kv_dtype: str

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "model": self.config.name,
            "model_type": self.config.model_type,
            "context": self.context,
            "parameters": self.parameters,
            "active_parameters": self.active_parameters,
            "parameters_by_part": dict(self.by_part),
            "weight_bytes": self.weight_bytes,
            "flops_per_token": self.flops_per_token,
            "attention_flops_per_token": self.attention_flops_per_token,
            "kv_bytes_per_token": self.kv_bytes_per_token,
            "kv_cache_bytes": self.kv_cache_bytes,
            "kv_dtype": self.kv_dtype,
            "assumptions": list(self.config.assumptions),
        }

    def text(self) -> str:
        """A page for people."""
        c = self.config
        heads = "MLA" if c.mla else f"{c.n_kv_heads} key-value heads"
        lines = [
            f"{c.name} ({c.model_type}): {format_count(self.parameters)} parameters"
            + (f", {format_count(self.active_parameters)} active a token" if self.is_sparse else ""),
            f"  {c.n_layers} layers, d_model {c.d_model}, {c.n_heads} heads of {c.head_dim}, {heads}, "
            f"d_ff {c.moe.d_ff_expert if c.moe else c.d_ff}"
            + (f", {c.moe.n_experts} experts, {c.moe.top_k} a token" if c.moe else "")
            + f", vocabulary {c.vocabulary_size}{', tied' if c.tied_embeddings else ''}",
            "",
            "parameters",
            *(
                f"  {part.replace('_', ' '):<16}{size:>18,}  {100 * size / self.parameters:5.1f} %"
                for part, size in self.by_part.items()
            ),
            f"  {'total':<16}{self.parameters:>18,}",
            "",
            f"weights                 {format_bytes(self.weight_bytes)} "
            f"({format_bytes(self.weight_bytes, binary=True)}, "
            f"{c.quantized_dtype + ' and ' if c.quantized_dtype else ''}{c.dtype})",
            f"FLOPs a token           {format_flops(self.flops_per_token)}, and "
            f"{format_flops(self.attention_flops_per_token)} of attention at {self.context} positions",
            f"KV cache a token        {format_bytes(self.kv_bytes_per_token, binary=True)} ({self.kv_dtype})",
            f"KV cache of a sequence  {format_bytes(self.kv_cache_bytes, binary=True)} at {self.context} positions"
            + (" (windows counted)" if c.has_window else ""),
        ]
        if c.assumptions:
            lines += ["", "assumed", *(f"  {sentence}" for sentence in c.assumptions)]
        return "\n".join(lines)

    @property
    def is_sparse(self) -> bool:
        """Whether a token uses only some of the parameters."""
        return self.active_parameters != self.parameters


def model_summary(config: ModelConfig, context: int = 8192, kv_dtype: str = "bf16") -> ModelSummary:
    """The summary of ``config`` for sequences of ``context`` positions."""
    count = count_parameters(config)
    plain = matmul_flops_per_token(config, 0)
    return ModelSummary(
        config=config,
        context=context,
        parameters=count.total,
        active_parameters=count.active,
        by_part=count.by_part(),
        weight_bytes=weight_bytes(config),
        flops_per_token=plain,
        attention_flops_per_token=matmul_flops_per_token(config, context) - plain,
        kv_bytes_per_token=float(kv_bytes_per_token(config, kv_dtype)),
        kv_cache_bytes=float(kv_cache_bytes(config, context, kv_dtype)),
        kv_dtype=kv_dtype,
    )
