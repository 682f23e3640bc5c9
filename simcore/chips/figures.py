"""The figures that a chip file may hold: their names, kinds, ranges, and how they are read from numbers or texts.

Every figure has its unit in its name. A text is a quantity ("819 GB/s", "16 GiB", "1 us") or, where there is a chip
to derive from, a factor ("2x").
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from simcore.errors import ChipError, QuantityError
from simcore.quantities import parse_bandwidth, parse_bytes, parse_count, parse_flops_per_s, parse_seconds

_FACTOR = re.compile(r"\s*(\d+\.?\d*|\.\d+)\s*x\s*")


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure: how it is read, whether 0 is allowed, and whether a chip must have it."""

    read: Callable[[Any], Any]
    zero: bool = False
    required: bool = False
    most: float | None = None


def _plain(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise QuantityError(f"{value!r} is no number")
    try:
        return float(value)
    except ValueError:
        raise QuantityError(f"{value!r} is no number") from None


def _shape(value: Any) -> tuple[int, ...]:
    parts = value.split("x") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or not 1 <= len(parts) <= 3:
        raise QuantityError(f"{value!r} is no shape: write it like [4, 4, 4]")
    shape = tuple(parse_count(part) for part in parts)
    if min(shape) < 1:
        raise QuantityError(f"{value!r}: every side of a shape is 1 or more")
    return shape


FIGURES: dict[str, Figure] = {
    "hbm_capacity_bytes": Figure(parse_bytes, required=True),
    "hbm_bandwidth_bytes_per_s": Figure(parse_bandwidth, required=True),
    "vmem_capacity_bytes": Figure(parse_bytes, required=True),
    "vmem_bandwidth_bytes_per_s": Figure(parse_bandwidth, required=True),
    "vpu_flops_per_s": Figure(parse_flops_per_s, required=True),
    "mxu_side": Figure(parse_count, required=True),
    "mxu_count": Figure(parse_count),
    "mxu_sublanes": Figure(parse_count, required=True),
    "clock_hz": Figure(_plain, required=True),
    "cores_per_chip": Figure(parse_count),
    "ici_link_bandwidth_bytes_per_s": Figure(parse_bandwidth),
    "ici_hop_latency_s": Figure(parse_seconds, zero=True),
    "torus_dimensions": Figure(parse_count),
    "pod_shape": Figure(_shape),
    "host_shape": Figure(_shape),
    "nvlink_bandwidth_bytes_per_s": Figure(parse_bandwidth),
    "nvlink_latency_s": Figure(parse_seconds, zero=True),
    "gpus_per_nvlink_domain": Figure(parse_count),
    "network_bandwidth_bytes_per_s_per_gpu": Figure(parse_bandwidth),
    "network_latency_s": Figure(parse_seconds, zero=True),
    "l2_capacity_bytes": Figure(parse_bytes),
    "pcie_bandwidth_bytes_per_s": Figure(parse_bandwidth),
    "pcie_latency_s": Figure(parse_seconds, zero=True),
    "dcn_bandwidth_bytes_per_s_per_host": Figure(parse_bandwidth),
    "dcn_latency_s": Figure(parse_seconds, zero=True),
    "host_dram_bytes": Figure(parse_bytes),
    "hbm_latency_s": Figure(parse_seconds, zero=True),
    "dma_issue_cost_s": Figure(parse_seconds, zero=True),
    "launch_cost_s": Figure(parse_seconds, zero=True),
}
"""Plain figures by name."""

TABLES: dict[str, tuple[Figure, tuple[str, ...]]] = {
    "peak_flops_per_s": (
        Figure(parse_flops_per_s, required=True),
        ("fp32", "bf16", "fp16", "fp8", "int8", "int4", "fp4"),
    ),
    "efficiency": (
        Figure(_plain, most=1.0),
        ("hbm", "mxu", "vpu", "vmem", "ici", "pcie", "dcn", "nvlink", "network"),
    ),
}
"""Figures that are tables: peak rates by dtype, and sustained over peak by unit."""

ALIASES = {
    "hbm_capacity": "hbm_capacity_bytes",
    "hbm_bandwidth": "hbm_bandwidth_bytes_per_s",
    "hbm_latency": "hbm_latency_s",
    "vmem_capacity": "vmem_capacity_bytes",
    "vmem_bandwidth": "vmem_bandwidth_bytes_per_s",
    "vpu_flops": "vpu_flops_per_s",
    "ici_bandwidth": "ici_link_bandwidth_bytes_per_s",
    "ici_latency": "ici_hop_latency_s",
    "nvlink_bandwidth": "nvlink_bandwidth_bytes_per_s",
    "pcie_bandwidth": "pcie_bandwidth_bytes_per_s",
    "dcn_bandwidth": "dcn_bandwidth_bytes_per_s_per_host",
    "dcn_latency": "dcn_latency_s",
    "dma_issue_cost": "dma_issue_cost_s",
    "issue_cost": "dma_issue_cost_s",
    "launch_cost": "launch_cost_s",
    "flops": "peak_flops_per_s",
    "peak_flops": "peak_flops_per_s",
}
"""Short names that ``--set`` and `Chip.replace` also take."""


def read_figure(where: str, key: str, figure: Figure, value: Any, base: Any = None) -> Any:
    """The value of a figure from a number, a quantity, or a factor of ``base``.

    Raises `ChipError` that names ``where`` and the key.
    """
    factor = _FACTOR.fullmatch(value) if isinstance(value, str) else None
    if factor:
        if base is None:
            raise ChipError(f"{where}: {key} = {value!r} is a factor, but there is no figure that it multiplies")
        if isinstance(base, tuple):
            raise ChipError(f"{where}: {key} is a shape and cannot be multiplied")
        scaled = base * float(factor[1])
        value = round(scaled) if isinstance(base, int) else scaled
    try:
        read = figure.read(value)
    except QuantityError as error:
        raise ChipError(f"{where}: {key}: {error}") from None
    if not isinstance(read, tuple):
        least = "0 or more" if figure.zero else "positive"
        if read < 0 or (read == 0 and not figure.zero) or read != read or read == float("inf"):
            raise ChipError(f"{where}: {key} is {value!r}; it must be {least}")
        if figure.most is not None and read > figure.most:
            raise ChipError(f"{where}: {key} is {value!r}; it must be at most {figure.most:g}")
    return read
