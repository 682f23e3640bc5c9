"""What one step of a model holds, reads and computes, by closed forms: the figures a simulation is held against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from simcore.dtypes import bytes_of
from simcore.opgraph import View
from workloads.config import ModelConfig
from workloads.experts import expert_groups
from workloads.layers import LayerKind
from workloads.parameters import LayerParameters, count_parameters, kv_elements_per_token_per_layer
from workloads.plan import PlacedPlan, Plan
from workloads.step import Step, lengths


@dataclass(frozen=True, slots=True)
class StepAccount:
    """Totals over all chips; norms and biases are vectors and counted apart from the matrices.

    Parameters
    ----------
    parameters : of all matrices, a tied table once.
    weight_bytes : of all matrices as they are stored, once.
    weight_read_bytes : of the matrices that the step reads, with each chip's copies: no experts that no token uses, and
        no tables that are only looked up.
    norm_bytes : of norms and biases.
    kv_cache_bytes, kv_read_bytes, kv_written_bytes : the cache after the step (no more than each layer can see), what
        the step finds in it and sees, and what it adds; with each chip's copies.
    layer_flops : of the layers' matrices, what chips repeat counted each time.
    attention_flops : of scores and values in whole rectangles.
    attention_needed_flops : of scores and values of those pairs of positions alone that see each other.
    vocabulary_flops : of the logits.
    """

    parameters: int
    weight_bytes: int
    weight_read_bytes: int
    norm_bytes: int
    kv_cache_bytes: int
    kv_read_bytes: int
    kv_written_bytes: int
    layer_flops: int
    attention_flops: int
    attention_needed_flops: int
    vocabulary_flops: int

    @property
    def weights_and_kv_bytes(self) -> int:
        """What memory holds besides norms, biases and activations."""
        return self.weight_bytes + self.kv_cache_bytes

    @property
    def read_bytes(self) -> int:
        """Weights once and the history of keys and values once: what a decode step has to read from HBM."""
        return self.weight_read_bytes + self.kv_read_bytes

    @property
    def flops(self) -> int:
        """Matmul FLOPs, attention in whole rectangles."""
        return self.layer_flops + self.attention_flops + self.vocabulary_flops


def account(
    config: ModelConfig,
    *,
    cached: int | Sequence[int],
    new: int,
    batch: int | None = None,
    ring: int = 1,
    **options: Any,
) -> StepAccount:
    """The account of ``new`` positions for each of ``batch`` requests that have ``cached`` in their caches.

    ``options`` are those of `workloads.transformer.model_step`. Source: How To Scale Your Model, "All About Transformer
    Inference" (weights once, K and V of all cached positions once).
    """
    placed = PlacedPlan.unplaced(Plan(tensor=ring))
    return account_step(config, Step(lengths(batch, cached), new, placed, **options))


def account_step(config: ModelConfig, step: Step) -> StepAccount:
    """The account of a step that is given whole."""
    count = count_parameters(config)
    kinds = [LayerKind(config.attention_pattern[i], config.is_moe_layer(i)) for i in range(config.n_layers)]
    other = step.weight_dtype(config, "other")
    tables = count.embedding + count.positions
    head = count.lm_head or count.embedding
    stored = bytes_of(tables + count.lm_head, other)
    read = bytes_of(head, other)
    layer_flops = 0
    for number, (kind, layer) in enumerate(zip(kinds, count.layers, strict=True)):
        stored += _layer_bytes(config, step, layer, layer.experts)
        hit = _experts_hit(config, step, number) if kind.moe else 0
        expert = layer.experts // config.moe.n_experts if config.moe is not None and kind.moe else 0
        read += _layer_bytes(config, step, layer, hit * expert)
        copies = _copied_parameters(config, step, kind)
        read += sum(bytes_of(size, step.weight_dtype(config, part)) for part, size in copies.items())
        per_token = layer.attention + layer.mlp + layer.router + layer.shared_experts + sum(copies.values())
        layer_flops += 2 * (step.tokens * per_token + step.expert_rows(config) * expert)
    return StepAccount(
        parameters=count.total_without_norms,
        weight_bytes=stored,
        weight_read_bytes=read,
        norm_bytes=bytes_of(count.norms + count.biases, config.dtype),
        **_cache(config, step, kinds),
        layer_flops=layer_flops,
        **_attention(config, step, kinds),
        vocabulary_flops=2 * step.batch * count.vocabulary_matmul,
    )


def _layer_bytes(config: ModelConfig, step: Step, layer: LayerParameters, experts: int) -> int:
    """Bytes of a layer's matrices with ``experts`` parameters of experts."""
    linear = layer.attention + layer.mlp + layer.shared_experts
    parts = {"linear": linear, "experts": experts, "other": layer.router}
    return sum(bytes_of(size, step.weight_dtype(config, part)) for part, size in parts.items())


def _experts_hit(config: ModelConfig, step: Step, layer: int) -> int:
    moe = config.moe
    assert moe is not None
    rows, _ = expert_groups(moe, step.tokens, step.experts, [moe.layers.index(layer)]).at(0)
    return sum(count > 0 for count in rows)


def _copied_parameters(config: ModelConfig, step: Step, kind: LayerKind) -> dict[str, int]:
    """Parameters of a layer that chips hold besides the first copy of each, by part."""
    d, others = config.d_model, step.ring - 1
    copied = {"linear": 0, "other": 0}
    if config.mla is not None:
        mla = config.mla
        copied["linear"] = others * d * (mla.kv_lora_rank + mla.qk_rope_head_dim + (mla.q_lora_rank or 0))
    else:
        copied["linear"] = 2 * d * config.head_dim * (step.kv_heads(config) - config.n_kv_heads)
    if kind.moe and config.moe is not None:
        copied["other"] = others * d * (config.moe.n_experts + config.moe.shared_gate)
    return copied


def _views(config: ModelConfig, kinds: list[LayerKind]) -> list[tuple[View, int]]:
    """Each kind of view and the number of layers that have it."""
    attentions = [kind.attention for kind in kinds]
    return [(LayerKind(name, False).view(config), attentions.count(name)) for name in sorted(set(attentions))]


def _cache(config: ModelConfig, step: Step, kinds: list[LayerKind]) -> dict[str, int]:
    copies = step.ring if config.mla is not None else step.kv_heads(config) // config.n_kv_heads
    row = kv_elements_per_token_per_layer(config) * copies
    held = seen = written = 0
    for view, layers in _views(config, kinds):
        for cached in step.cached:
            held += layers * view.kept(cached + step.new)
            seen += layers * (cached - int(view.first(cached)))
            written += layers * view.kept(step.new)
    dtype = step.cache_dtype(config)
    return {
        "kv_cache_bytes": bytes_of(held * row, dtype),
        "kv_read_bytes": bytes_of(seen * row, dtype),
        "kv_written_bytes": bytes_of(written * row, dtype),
    }


def _attention(config: ModelConfig, step: Step, kinds: list[LayerKind]) -> dict[str, int]:
    """2 N (width of keys + width of values) for each pair of a query and a position; absorbed, both are latents."""
    width = config.head_dim + config.v_head_dim
    if config.mla is not None and step.uses_absorbed():
        width = 2 * config.mla.kv_lora_rank + config.mla.qk_rope_head_dim
    rectangle = needed = 0
    for view, layers in _views(config, kinds):
        for cached in step.cached:
            rectangle += layers * step.new * (cached - int(view.first(cached)) + step.new)
            positions = cached + np.arange(step.new)
            needed += layers * int((positions - view.first(positions) + 1).sum())
    each = 2 * config.n_heads * width
    return {"attention_flops": each * rectangle, "attention_needed_flops": each * needed}


def decode_flops(config: ModelConfig, *, batch: int | None = None, context: int | Sequence[int]) -> int:
    """Matmul FLOPs of one decode step: every weight for every request, attention to the cached and the new position."""
    return account(config, batch=batch, cached=context, new=1).flops
