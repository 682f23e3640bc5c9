"""GPUs on one NVSwitch: each sends and receives at its full NVLink bandwidth, to any other."""

from __future__ import annotations

from simcore.chips import Chip
from topologies.topology import Axis, Link, Node, Topology, TopologyError, figure


def build(chip: Chip, size: int = 8) -> Topology:
    """``size`` GPUs of one NVLink domain. Raises `TopologyError` for more than the domain holds."""
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise TopologyError(f"{size!r} GPUs; a whole number of at least 1 is meant")
    bandwidth = figure(chip.nvlink_bandwidth_bytes_per_s, "NVLink", chip.name)
    latency = figure(chip.nvlink_latency_s, "NVLink latency", chip.name)
    domain = chip.gpus_per_nvlink_domain or size
    if size > domain:
        raise TopologyError(f"an NVLink domain of {chip.name} has {domain} GPUs, not {size}: use fat_tree for more")
    switch: Node = ("switch", (0,))
    chips: list[Node] = [("chip", (number,)) for number in range(size)]
    links = [
        Link(source, target, "nvlink", bandwidth, latency / 2)
        for node in chips
        for source, target in ((node, switch), (switch, node))
    ]
    return Topology(f"{size} {chip.name} on a switch", (Axis("x", size, False),), tuple(links), (*chips, switch))
