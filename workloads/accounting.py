"""What one step of a model holds and reads, by closed forms: the figures that a simulation is held against."""

from __future__ import annotations

from dataclasses import dataclass

from simcore.dtypes import bytes_of
from workloads.config import ModelConfig
from workloads.parameters import count_parameters, kv_elements_per_token, matmul_flops_per_token


@dataclass(frozen=True, slots=True)
class StepAccount:
    """Totals over all chips; norms and biases are vectors and counted apart from the matrices.

    ``weight_bytes`` are the matrices', a tied table once. ``kv_cache_bytes`` is the cache after the step,
    ``kv_read_bytes`` what the step finds in it.
    """

    parameters: int
    weight_bytes: int
    norm_bytes: int
    kv_cache_bytes: int
    kv_read_bytes: int

    @property
    def weights_and_kv_bytes(self) -> int:
        return self.weight_bytes + self.kv_cache_bytes

    @property
    def read_bytes(self) -> int:
        """Weights once and the history of keys and values once: what a decode step has to read from HBM."""
        return self.weight_bytes + self.kv_read_bytes


def account(config: ModelConfig, *, batch: int, cached: int, new: int) -> StepAccount:
    """The account of ``new`` positions for each of ``batch`` requests that have ``cached`` in their caches.

    Source: How To Scale Your Model, "All About Transformer Inference" (weights once, K and V of B S positions once).
    """
    count = count_parameters(config)
    per_token = kv_elements_per_token(config)
    return StepAccount(
        parameters=count.total_without_norms,
        weight_bytes=bytes_of(count.total_without_norms, config.dtype),
        norm_bytes=bytes_of(count.norms + count.biases, config.dtype),
        kv_cache_bytes=bytes_of(batch * (cached + new) * per_token, config.dtype),
        kv_read_bytes=bytes_of(batch * cached * per_token, config.dtype),
    )


def decode_flops(config: ModelConfig, *, batch: int, context: int) -> int:
    """Matmul FLOPs of one decode step: every weight for every request, attention to the cached and the new position."""
    return batch * matmul_flops_per_token(config, context + 1)
