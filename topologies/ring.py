"""A ring of chips, each joined to two neighbours by ICI links."""

from __future__ import annotations

from simcore.chips import Chip
from topologies.topology import Topology, figure, grid


def build(chip: Chip, size: int = 8) -> Topology:
    """``size`` chips in a ring."""
    return grid(
        f"ring of {size}",
        (size,),
        (True,),
        bandwidth_bytes_per_s=figure(chip.ici_link_bandwidth_bytes_per_s, "ICI link", chip.name),
        latency_s=figure(chip.ici_hop_latency_s, "ICI latency", chip.name),
    )
