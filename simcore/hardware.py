"""What a unit of work costs on a chip: unit models that turn amounts into integer picoseconds.

`unit_model(chip, kind, ideal)` gives the model of a unit's kind. The ideal model is the scaling book's arithmetic:
efficiencies 1, no padding, no fill or drain, no issue cost; bandwidths and hop latency stay. The default is the
calibrated chip, with every factor taken from the chip's file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from simcore.chips import Chip
from simcore.errors import GraphError
from simcore.graph.work import Amount, Fixed, IntArray, Matmul, Transfer, Vector, Work
from simcore.quantities import duration_ps


@dataclass(frozen=True, slots=True)
class UnitModel:
    """The service of one kind of unit.

    ``issue_ps`` is added to each transfer's service; ``latency_ps`` follows a transfer, occupying nothing.
    """

    kind: str
    issue_ps: int = 0
    latency_ps: int = 0

    def service_ps(self, work: Work) -> Amount:
        """Time on the unit, without issue cost; an array for amounts that are arrays."""
        if isinstance(work, Fixed):
            return work.ps
        raise GraphError(f"a unit of kind {self.kind!r} can't serve {type(work).__name__}; it serves {self.serves}")

    @property
    def serves(self) -> str:
        return "Fixed"


@dataclass(frozen=True, slots=True)
class Channel(UnitModel):
    """HBM, a link direction, PCIe, DCN, a port to a switch or a network: bytes over a bandwidth (one-way)."""

    bandwidth_bytes_per_s: float = 0.0

    def service_ps(self, work: Work) -> Amount:
        if isinstance(work, Transfer):
            return _elementwise(lambda moved: duration_ps(moved, self.bandwidth_bytes_per_s), work.bytes)
        return UnitModel.service_ps(self, work)

    @property
    def serves(self) -> str:
        return "Transfer or Fixed"


@dataclass(frozen=True, slots=True)
class MatrixUnit(UnitModel):
    """The chip's systolic arrays together.

    k and n are padded to the array's ``side`` and m to ``sublanes``; each matmul besides pays once for filling and
    draining the array, 2 x side cycles. With ``side`` 0 (ideal) there is neither.

    Source: How To Scale Your Model, "How to Think About TPUs" (MXU of 128 x 128, 8 rows a pass, padding to the side).
    """

    peak_flops_per_s: Mapping[str, float] = field(default_factory=dict)
    chip_name: str = ""
    side: int = 0
    sublanes: int = 1
    fill_drain_ps: int = 0

    def _rate(self, dtype: str) -> float:
        if dtype not in self.peak_flops_per_s:
            raise GraphError(
                f"chip {self.chip_name} has no {dtype} matmul rate; it has {', '.join(sorted(self.peak_flops_per_s))}"
            )
        return self.peak_flops_per_s[dtype]

    def service_ps(self, work: Work) -> Amount:
        if not isinstance(work, Matmul):
            return UnitModel.service_ps(self, work)
        rate = self._rate(work.dtype)
        if self.side == 0:
            return _elementwise(lambda flops: duration_ps(flops, rate), work.flops)
        padded = (
            2
            * _round_up(work.m, self.sublanes)
            * _round_up(work.k, self.side)
            * _round_up(work.n, self.side)
            * work.batch
        )
        return _elementwise(lambda flops: duration_ps(flops, rate) + (self.fill_drain_ps if flops else 0), padded)

    @property
    def serves(self) -> str:
        return "Matmul or Fixed"


@dataclass(frozen=True, slots=True)
class VectorUnit(UnitModel):
    """The vector unit: operations over its rate, or VMEM traffic over VMEM's bandwidth, whichever is slower."""

    operations_per_s: float = 0.0
    vmem_bandwidth_bytes_per_s: float = 0.0

    def service_ps(self, work: Work) -> Amount:
        if not isinstance(work, Vector):
            return UnitModel.service_ps(self, work)
        computing = _elementwise(lambda count: duration_ps(count, self.operations_per_s), work.operations)
        moving = _elementwise(lambda moved: duration_ps(moved, self.vmem_bandwidth_bytes_per_s), work.bytes)
        if isinstance(computing, int) and isinstance(moving, int):
            return max(computing, moving)
        return np.maximum(computing, moving)

    @property
    def serves(self) -> str:
        return "Vector or Fixed"


def _round_up(amount: Amount, multiple: int) -> Amount:
    return -(-amount // multiple) * multiple


def _elementwise(function: Callable[[int], int], amount: Amount) -> Amount:
    """Exact integer arithmetic on each different amount once."""
    if isinstance(amount, np.ndarray):
        different, inverse = np.unique(amount, return_inverse=True)
        values: IntArray = np.array([function(int(value)) for value in different], dtype=np.int64)
        return values[inverse].reshape(amount.shape)
    return function(int(amount))


def _ps(seconds: float) -> int:
    return duration_ps(Fraction(seconds), 1.0)


def unit_model(chip: Chip, kind: str, ideal: bool = False) -> UnitModel:
    """The model of a unit of ``kind`` on ``chip``.

    Raises `ChipError` if the chip lacks such an interface.
    """

    def efficiency(name: str) -> float:
        return 1.0 if ideal else chip.efficiency.get(name, 1.0)

    def channel(bandwidth: float, latency_s: float, issue_s: float = 0.0) -> Channel:
        return Channel(
            kind,
            issue_ps=0 if ideal else _ps(issue_s),
            latency_ps=_ps(latency_s),
            bandwidth_bytes_per_s=bandwidth * efficiency(kind.removesuffix("_share")),
        )

    if kind == "hbm":
        return channel(chip.hbm_bandwidth_bytes_per_s, 0.0 if ideal else chip.hbm_latency_s, chip.dma_issue_cost_s)
    if kind == "ici":
        return channel(float(chip.require("ici_link_bandwidth_bytes_per_s")), float(chip.require("ici_hop_latency_s")))
    if kind == "pcie":
        return channel(float(chip.require("pcie_bandwidth_bytes_per_s")), chip.pcie_latency_s)
    if kind == "dcn":
        return channel(float(chip.require("dcn_bandwidth_bytes_per_s_per_host")), chip.dcn_latency_s)
    if kind == "dcn_share":  # of the host's network card, which its chips share evenly
        rate = float(chip.require("dcn_bandwidth_bytes_per_s_per_host")) / chip.chips_per_host
        return channel(rate, chip.dcn_latency_s)
    if kind == "nvlink":
        return channel(float(chip.require("nvlink_bandwidth_bytes_per_s")), float(chip.require("nvlink_latency_s")))
    if kind == "network":
        return channel(
            float(chip.require("network_bandwidth_bytes_per_s_per_gpu")), float(chip.require("network_latency_s"))
        )
    if kind == "mxu":
        return MatrixUnit(
            kind,
            peak_flops_per_s={dtype: peak * efficiency(kind) for dtype, peak in chip.peak_flops_per_s.items()},
            chip_name=chip.name,
            side=0 if ideal else chip.mxu_side,
            sublanes=chip.mxu_sublanes,
            fill_drain_ps=0 if ideal else _ps(2 * chip.mxu_side / chip.clock_hz),
        )
    if kind == "vpu":
        return VectorUnit(
            kind,
            operations_per_s=chip.vpu_flops_per_s * efficiency(kind),
            vmem_bandwidth_bytes_per_s=chip.vmem_bandwidth_bytes_per_s * efficiency("vmem"),
        )
    return UnitModel(kind)


@dataclass(frozen=True)
class Hardware:
    """A chip as the engines see it: the model of every kind of unit, calibrated or ideal."""

    chip: Chip
    ideal: bool = False
    _models: dict[tuple[str, bool], UnitModel] = field(default_factory=dict, compare=False, repr=False)

    def _model(self, kind: str, ideal: bool) -> UnitModel:
        if (kind, ideal) not in self._models:
            self._models[kind, ideal] = unit_model(self.chip, kind, ideal)
        return self._models[kind, ideal]

    def model(self, kind: str) -> UnitModel:
        """What serves the tasks."""
        return self._model(kind, self.ideal)

    def bound_model(self, kind: str) -> UnitModel:
        """What lower bounds count with: work over the data sheet's rate, whatever the run's own model adds."""
        return self._model(kind, True)


def memory_capacities(chip: Chip) -> dict[str, int]:
    """Memory name -> capacity of one chip's memory; memories without a figure (host DRAM) are not bounded."""
    return {"vmem": chip.vmem_capacity_bytes, "hbm": chip.hbm_capacity_bytes}
