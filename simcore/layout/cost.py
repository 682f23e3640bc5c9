"""Closed-form times of a plan's steps: what the planner ranks by unless it is given another cost.

Source: How To Scale Your Model, "Sharded Matrices and How to Multiply Them". V bytes of the group's full array,
W = 2 b both ways of an axis that wraps, b one-way link bandwidth, l hop latency, n_i the axes' sizes, N their
product.

| step | bandwidth | hops |
|---|---|---|
| AllGather, ReduceScatter, axes that wrap | V / (W axes) | sum n_i / 2 |
| the same on a line | (n - 1)/n V / b | n - 1 |
| AllReduce | twice | twice |
| AllToAll, one axis that wraps | V / (4 W) | n / 2 |
| the same on a line | V / (4 b): half of V crosses the middle, half of that each way | n - 1 |

Axes used at once add their rates. The book's time is the greater of bandwidth and latency.

On a switch, b one-way of a port and l through the switch, n devices send (n - 1)/n V one after another:
(n - 1) V / (n b) + l for a gather, an AllReduce twice that, an AllToAll a n-th.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from simcore.errors import LayoutError
from simcore.layout.mesh import Mesh
from simcore.layout.steps import CollectiveStep, LocalMatmul, Step, gathers_in_turn


@dataclass(frozen=True)
class CostModel:
    """Seconds of a step: ``cost(step)``. Axes not named in ``wraps`` wrap around.

    ``finite`` replaces the book's large-n forms by those of a ring of n: (N - 1)/N of the bandwidth term, plus
    (not or) ``floor(n_i/2)`` hops, as the simulation has them. An axis of two that wraps stands for two links.
    ``in_turn`` takes a gather of several dimensions at once as one after another, as it is lowered, instead of at
    the rates of all its axes together. ``switch`` takes the devices to be on a switch, not on axes of links.
    """

    link_bandwidth_bytes_per_s: float
    hop_latency_s: float
    peak_flops_per_s: float
    wraps: Mapping[str, bool] = field(default_factory=dict)
    finite: bool = False
    in_turn: bool = False
    switch: bool = False

    def __post_init__(self) -> None:
        for name in ("link_bandwidth_bytes_per_s", "peak_flops_per_s"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise LayoutError(f"{name} must be more than 0 and finite, got {value!r}")
        if not 0 <= self.hop_latency_s < math.inf:
            raise LayoutError(f"hop_latency_s must be at least 0 and finite, got {self.hop_latency_s!r}")

    def check_mesh(self, mesh: Mesh) -> None:
        """Raise `LayoutError` if ``wraps`` names an axis that ``mesh`` does not have."""
        mesh.check(self.wraps)

    def __call__(self, step: Step) -> float:
        """Seconds that ``step`` takes, nothing else running."""
        if isinstance(step, LocalMatmul):
            return step.flops / self.peak_flops_per_s
        if self.in_turn and step.kind == "AllGather" and step.dim is None:
            return sum(self(each) for each in gathers_in_turn(step))
        axes = [
            (size, self.wraps.get(name, True))
            for name, size in zip(step.axes, step.axis_sizes, strict=True)
            if size > 1
        ]
        if step.kind == "Slice" or not axes:
            return 0.0
        if self.switch:
            return self._on_switch_s(step, math.prod(size for size, _ in axes))
        if step.kind == "AllToAll":
            bandwidth = self._all_to_all_s(step, axes)
        else:
            bandwidth = self._gather_s(step, axes)
        latency = self.hop_latency_s * sum(self._hops(size, wraps) for size, wraps in axes)
        time = bandwidth + latency if self.finite else max(bandwidth, latency)
        return 2 * time if step.kind == "AllReduce" else time

    def _on_switch_s(self, step: CollectiveStep, n: int) -> float:
        once = (n - 1) / n * step.full_bytes / self.link_bandwidth_bytes_per_s
        once = (once / n if step.kind == "AllToAll" else once) + self.hop_latency_s
        return 2 * once if step.kind == "AllReduce" else once

    def _hops(self, size: int, wraps: bool) -> float:
        if not wraps:
            return size - 1
        return size // 2 if self.finite else size / 2

    def _gather_s(self, step: CollectiveStep, axes: list[tuple[int, bool]]) -> float:
        b = self.link_bandwidth_bytes_per_s
        if self.finite:
            devices = math.prod(size for size, _ in axes)
            moved = step.full_bytes * (devices - 1) / devices
            return moved / sum(2 * b if wraps else b for _, wraps in axes)
        return step.full_bytes / sum(2 * b if wraps else b * size / (size - 1) for size, wraps in axes)

    def _all_to_all_s(self, step: CollectiveStep, axes: list[tuple[int, bool]]) -> float:
        """The axis that is busiest: of V/n^2 from each position to each, one way over its busiest link."""
        devices = math.prod(size for size, _ in axes)
        shares = []
        for size, wraps in axes:
            pairs = size * size / 8 if wraps else size * size / 4
            if self.finite:
                pairs = size * size // 4 / (2 if wraps else 1)
            shares.append(pairs / (size * size) * size / devices)
        return step.full_bytes * max(shares) / self.link_bandwidth_bytes_per_s
