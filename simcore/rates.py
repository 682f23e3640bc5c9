"""The standard rates of a step: tokens a second, utilisations, cost.

- MFU, model FLOPs utilisation: FLOPs that the model needs (its matmuls, and attention over the pairs of positions that
  see each other: causal attention counts half of the square) over what all chips could do in the time. What is computed
  besides (whole rectangles, recomputation, padding) does not count. Source: Chowdhery et al. 2022 (PaLM), appendix B.
- MBU, memory bandwidth utilisation: bytes that have to be read (weights once, the cache once) over what all chips' HBM
  could give in the time. Source: the LLM inference notes of Databricks, 2023.
- cost: chips x time x the price of a chip for an hour, which the user gives.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from simcore.errors import ScenarioError

SECONDS_PER_HOUR = 3600


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates of one step on all its chips; ``cost_per_million_tokens`` is None without a price."""

    tokens_per_s: float
    tokens_per_s_per_chip: float
    mfu: float
    mbu: float
    cost_per_million_tokens: float | None

    @classmethod
    def of(
        cls,
        *,
        time_s: float,
        chips: int,
        tokens: int,
        model_flops: int,
        needed_bytes: int,
        peak_flops_per_s: float,
        hbm_bandwidth_bytes_per_s: float,
        price_per_chip_hour: float | None = None,
    ) -> Rates:
        """Rates of ``tokens`` in ``time_s`` on ``chips`` of the peak and bandwidth given; zero time gives zeros.

        Raises `ScenarioError` for a price that is negative or no number.
        """
        if price_per_chip_hour is not None and not 0 <= price_per_chip_hour < math.inf:
            raise ScenarioError(f"a price of {price_per_chip_hour} a chip-hour: 0 or more is meant")
        if not time_s:
            return cls(0.0, 0.0, 0.0, 0.0, None)
        per_s = tokens / time_s
        cost = None
        if price_per_chip_hour is not None:
            cost = price_per_chip_hour * chips / SECONDS_PER_HOUR / per_s * 1e6
        return cls(
            tokens_per_s=per_s,
            tokens_per_s_per_chip=per_s / chips,
            mfu=model_flops / (time_s * chips * peak_flops_per_s),
            mbu=needed_bytes / (time_s * chips * hbm_bandwidth_bytes_per_s),
            cost_per_million_tokens=cost,
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values; no cost where there is no price."""
        return {name: value for name, value in asdict(self).items() if value is not None}
