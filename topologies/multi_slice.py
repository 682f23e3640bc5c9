"""Several TPU slices joined by the data-centre network (DCN), through their hosts.

The network between hosts is one switch without contention of its own: what limits is each host's card.
"""

from __future__ import annotations

from collections.abc import Sequence

from simcore.chips import Chip
from topologies import host
from topologies.topology import Axis, Link, Node, Topology, TopologyError, figure


def build(chip: Chip, slices: int = 2, shape: str | Sequence[int] = "4x4") -> Topology:
    """``slices`` slices of ``shape``; a chip's first coordinate is its slice."""
    if isinstance(slices, bool) or not isinstance(slices, int) or slices < 1:
        raise TopologyError(f"{slices!r} slices; a whole number of at least 1 is meant")
    one = host.build(chip, shape)
    bandwidth = figure(chip.dcn_bandwidth_bytes_per_s_per_host, "DCN bandwidth", chip.name)
    switch: Node = ("switch", (0,))
    nodes: list[Node] = []
    links: list[Link] = []
    for number in range(slices):
        move = {node: (node[0], (number, *node[1])) for node in one.nodes}
        nodes += move.values()
        links += [
            Link(move[link.source], move[link.target], link.kind, link.bandwidth_bytes_per_s, link.latency_s,
                 link.axis, link.sign, link.wrap)
            for link in one.links
        ]  # fmt: skip
        for node in move.values():
            if node[0] == "host":
                for source, target in ((node, switch), (switch, node)):
                    links.append(Link(source, target, "dcn", bandwidth, chip.dcn_latency_s / 2))
    ordered = sorted(nodes, key=lambda node: (node[0] != "chip", node))
    return Topology(
        f"{slices} x {one.name}",
        (Axis("slice", slices, False), *one.axes),
        tuple(links),
        (*ordered, switch),
        one.notes,
    )
