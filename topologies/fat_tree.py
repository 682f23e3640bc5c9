"""Nodes of GPUs on NVSwitches, joined by a leaf-spine fat tree of InfiniBand or Ethernet.

Every GPU has a network card of its own on its node's leaf; leaves have uplinks to every spine. With
``oversubscription`` 1 the tree carries all that the cards send.
"""

from __future__ import annotations

from simcore.chips import Chip
from topologies.topology import Axis, Link, Node, Topology, TopologyError, figure


def build(chip: Chip, nodes: int = 4, spines: int = 2, oversubscription: float = 1.0) -> Topology:
    """``nodes`` full NVLink domains, each with a leaf; a chip's coordinates are (node, number)."""
    for what, value in (("nodes", nodes), ("spines", spines)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise TopologyError(f"{value!r} {what}; a whole number of at least 1 is meant")
    if not oversubscription >= 1:
        raise TopologyError(f"oversubscription is {oversubscription}; it must be 1 or more")
    size = int(figure(chip.gpus_per_nvlink_domain, "NVLink domain", chip.name))
    inside = figure(chip.nvlink_bandwidth_bytes_per_s, "NVLink", chip.name)
    inside_latency = figure(chip.nvlink_latency_s, "NVLink latency", chip.name)
    card = figure(chip.network_bandwidth_bytes_per_s_per_gpu, "network", chip.name)
    latency = figure(chip.network_latency_s, "network latency", chip.name) / 4
    up = size * card / spines / oversubscription
    chips: list[Node] = []
    links: list[Link] = []
    switches: list[Node] = [("spine", (spine,)) for spine in range(spines)]
    for node in range(nodes):
        nvswitch: Node = ("switch", (node,))
        leaf: Node = ("leaf", (node,))
        switches += [nvswitch, leaf]
        for number in range(size):
            gpu: Node = ("chip", (node, number))
            chips.append(gpu)
            for source, target in ((gpu, nvswitch), (nvswitch, gpu)):
                links.append(Link(source, target, "nvlink", inside, inside_latency / 2))
            for source, target in ((gpu, leaf), (leaf, gpu)):
                links.append(Link(source, target, "network", card, latency))
        for spine in range(spines):
            for source, target in ((leaf, ("spine", (spine,))), (("spine", (spine,)), leaf)):
                links.append(Link(source, target, "network", up, latency))
    return Topology(
        f"fat tree of {nodes} x {size} {chip.name}",
        (Axis("node", nodes, False), Axis("gpu", size, False)),
        tuple(links),
        (*chips, *switches),
    )
