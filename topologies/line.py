"""A line of chips: a ring that is not closed."""

from __future__ import annotations

from simcore.chips import Chip
from topologies.topology import Topology, figure, grid


def build(chip: Chip, size: int = 8) -> Topology:
    """``size`` chips in a line."""
    return grid(
        f"line of {size}",
        (size,),
        (False,),
        bandwidth_bytes_per_s=figure(chip.ici_link_bandwidth_bytes_per_s, "ICI link", chip.name),
        latency_s=figure(chip.ici_hop_latency_s, "ICI latency", chip.name),
    )
