"""A TPU slice with its hosts: each host's chips hang on it by PCIe and share its network card.

PCIe's figure is a chip's own link; what the chips of a host share is its network card (DCN).
"""

from __future__ import annotations

from collections.abc import Sequence

from simcore.chips import Chip
from topologies import tpu_slice
from topologies.topology import Link, Node, Topology, TopologyError, figure, parse_shape


def build(chip: Chip, shape: str | Sequence[int] = "4x4") -> Topology:
    """A slice of ``shape``, its chips in blocks of the chip's host shape.

    Raises `TopologyError` if the slice is not made of whole hosts.
    """
    sizes = parse_shape(shape)
    base = tpu_slice.build(chip, sizes)
    block = chip.require("host_shape")
    if any(size % side for size, side in zip(sizes, block, strict=True)):
        # A slice may lie across a host's block the other way round.
        block = tuple(reversed(block))
    if any(size % side for size, side in zip(sizes, block, strict=True)):
        raise TopologyError(
            f"a slice of {'x'.join(map(str, sizes))} is not made of whole hosts of "
            f"{'x'.join(map(str, chip.require('host_shape')))} {chip.name} chips"
        )
    bandwidth = figure(chip.pcie_bandwidth_bytes_per_s, "PCIe bandwidth", chip.name)
    hosts: list[Node] = []
    links: list[Link] = []
    for node in base.chips:
        host = ("host", tuple(at // side for at, side in zip(node[1], block, strict=True)))
        if host not in hosts:
            hosts.append(host)
        for source, target in ((node, host), (host, node)):
            links.append(Link(source, target, "pcie", bandwidth, chip.pcie_latency_s))
    return Topology(
        f"{base.name} with {len(hosts)} hosts",
        base.axes,
        (*base.links, *links),
        (*base.nodes, *sorted(hosts)),
        base.notes,
    )
