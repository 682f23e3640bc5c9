"""What a chip is: its data-sheet rates and capacities, and the costs that the calibrated model adds."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from simcore.chips.figures import ALIASES, FIGURES, TABLES, read_figure
from simcore.errors import ChipError, nearest


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """An accelerator chip. Bandwidths are one-way, a link's per link; figures that a chip does not have are None.

    ``vmem`` is the software-managed on-chip memory: VMEM of a TPU, the shared memories of a GPU together. The MXU and
    VPU figures are those of the whole chip. ``efficiency`` (unit kind -> sustained over peak), ``dma_issue_cost_s``,
    ``hbm_latency_s`` and ``launch_cost_s`` are what the calibrated model adds to the ideal one. ``sources`` says where
    each figure is from; assumed ones begin with "assumed".
    """

    name: str
    family: str
    hbm_capacity_bytes: int
    hbm_bandwidth_bytes_per_s: float
    vmem_capacity_bytes: int
    vmem_bandwidth_bytes_per_s: float
    peak_flops_per_s: Mapping[str, float]
    vpu_flops_per_s: float
    mxu_side: int
    mxu_sublanes: int
    clock_hz: float
    mxu_count: int | None = None
    cores_per_chip: int | None = None
    ici_link_bandwidth_bytes_per_s: float | None = None
    ici_hop_latency_s: float | None = None
    torus_dimensions: int | None = None
    pod_shape: tuple[int, ...] | None = None
    host_shape: tuple[int, ...] | None = None
    nvlink_bandwidth_bytes_per_s: float | None = None
    nvlink_latency_s: float | None = None
    gpus_per_nvlink_domain: int | None = None
    network_bandwidth_bytes_per_s_per_gpu: float | None = None
    network_latency_s: float | None = None
    l2_capacity_bytes: int | None = None
    pcie_bandwidth_bytes_per_s: float | None = None
    pcie_latency_s: float = 0.0
    dcn_bandwidth_bytes_per_s_per_host: float | None = None
    dcn_latency_s: float = 0.0
    host_dram_bytes: int | None = None
    hbm_latency_s: float = 0.0
    dma_issue_cost_s: float = 0.0
    launch_cost_s: float = 0.0
    efficiency: Mapping[str, float] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)

    def require(self, figure: str) -> Any:
        """A figure that not every chip has. Raises `ChipError` if this one does not."""
        value = getattr(self, figure)
        if value is None:
            raise ChipError(
                f"chip {self.name} has no {figure}: choose another chip, or give it in a chip file or with --set"
            )
        return value

    def peak(self, dtype: str) -> float:
        """Matmul FLOPs per second in ``dtype``. Raises `ChipError` if the chip has no such rate."""
        if dtype not in self.peak_flops_per_s:
            raise ChipError(f"chip {self.name} has no {dtype} matmul rate: {nearest(dtype, self.peak_flops_per_s)}")
        return self.peak_flops_per_s[dtype]

    def ridge_flops_per_byte(self, dtype: str = "bf16") -> float:
        """Arithmetic intensity at which HBM and matmul rate balance: peak / HBM bandwidth."""
        return self.peak(dtype) / self.hbm_bandwidth_bytes_per_s

    @property
    def chips_per_host(self) -> int:
        """Chips that share a host, its PCIe and its network card; 1 where the shape of a host is not known."""
        return math.prod(self.host_shape) if self.host_shape else self.gpus_per_nvlink_domain or 1

    def replace(self, **figures: Any) -> Chip:
        """The same chip with other figures: numbers, quantities ("1 TB/s") or factors of its own ("2x").

        Names may be short ("hbm_bandwidth", "ici_latency", "flops"), and one entry of a table is written
        ``"efficiency.hbm"`` or ``"peak_flops_per_s.bf16"`` (or ``bf16_flops``). Raises `ChipError` for an unknown
        name or an impossible value.
        """
        changes: dict[str, Any] = {}
        for given, value in figures.items():
            key = ALIASES.get(given, given)
            where = f"chip {self.name}"
            if key in FIGURES:
                changes[key] = read_figure(where, key, FIGURES[key], value, getattr(self, key))
                continue
            table, _, entry = key.partition(".")
            dtype = key.removesuffix("_per_s").removesuffix("_flops")
            if not entry and dtype in TABLES["peak_flops_per_s"][1] and dtype != key:
                table, entry = "peak_flops_per_s", dtype
            if table not in TABLES:
                raise ChipError(f"{where} has no figure {given!r}: {nearest(given, [*FIGURES, *TABLES, *ALIASES])}")
            figure, entries = TABLES[table]
            old = changes.get(table, getattr(self, table))
            if entry and entry not in entries:
                raise ChipError(f"{where}: {table} has no {entry!r}: {nearest(entry, entries)}")
            new = dict(old)
            for name in [entry] if entry else list(old):
                new[name] = read_figure(where, f"{table}.{name}", figure, value, old.get(name))
            changes[table] = new
        said = {name: f"set by the user ({value})" for name, value in figures.items()}
        name = self.name if not figures or self.name.endswith("*") else f"{self.name}*"
        return dataclasses.replace(self, **changes, name=name, sources={**self.sources, **said})
