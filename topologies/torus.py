"""A 2D or 3D torus of chips: every axis wraps around."""

from __future__ import annotations

from collections.abc import Sequence

from simcore.chips import Chip
from topologies.topology import Topology, figure, grid, parse_shape


def build(chip: Chip, shape: str | Sequence[int] = "4x4") -> Topology:
    """Chips on a grid of ``shape``, wrapped along every axis."""
    sizes = parse_shape(shape)
    return grid(
        f"torus {'x'.join(map(str, sizes))}",
        sizes,
        [True] * len(sizes),
        bandwidth_bytes_per_s=figure(chip.ici_link_bandwidth_bytes_per_s, "ICI link", chip.name),
        latency_s=figure(chip.ici_hop_latency_s, "ICI latency", chip.name),
    )
