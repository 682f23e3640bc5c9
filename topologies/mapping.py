"""Laying a logical mesh on a topology: which physical axes, and so which links, each logical axis uses.

Logical names are labels. What a collective costs follows from the physical axes behind a logical one, so that renaming
a mesh changes nothing.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from simcore.layout import Mesh
from topologies.topology import Axis, Link, Topology, TopologyError


@dataclass(frozen=True)
class AxisMapping:
    """Logical axis -> physical axes, the first the major.

    Raises `TopologyError` if the mesh does not fill the topology, an axis is unknown or used twice, or sizes differ.
    """

    topology: Topology
    mesh: Mesh
    physical: Mapping[str, tuple[str, ...]]

    def __post_init__(self) -> None:
        self.mesh.check(self.physical)
        used = [axis for axes in self.physical.values() for axis in axes]
        for axis in used:
            self.topology.axis(axis)
            if used.count(axis) > 1:
                raise TopologyError(f"physical axis {axis} is used twice: each carries one logical axis")
        for name, size in self.mesh.axes:
            axes = self.physical.get(name, ())
            product = math.prod(self.topology.axis(axis).size for axis in axes)
            if product != size:
                shown = " x ".join(f"{axis}={self.topology.axis(axis).size}" for axis in axes) or "no axis"
                raise TopologyError(
                    f"logical axis {name} has {size} devices, but it is laid on {shown}, which has {product}"
                )
        chips = len(self.topology.chips)
        if self.mesh.size != chips:
            raise TopologyError(f"the mesh {self.mesh} has {self.mesh.size} devices, {self.topology.name} has {chips}")

    def axes_of(self, logical: str) -> tuple[Axis, ...]:
        """The physical axes behind a logical one."""
        self.mesh.check((logical,))
        return tuple(self.topology.axis(axis) for axis in self.physical.get(logical, ()))

    def closes(self, logical: str) -> bool:
        """Whether a collective on the axis has wrapped rings: every physical axis of more than one chip wraps."""
        return all(axis.wraps or axis.size == 1 for axis in self.axes_of(logical))

    def links_of(self, logical: str) -> tuple[Link, ...]:
        """The physical links that a collective on the axis uses."""
        return tuple(link for axis in self.axes_of(logical) for link in self.topology.links_on(axis.name))

    def coordinates(self, logical: Mapping[str, int]) -> tuple[int, ...]:
        """The chip of a device, as physical coordinates."""
        at = {}
        for name, index in logical.items():
            rest = index
            for axis in reversed(self.axes_of(name)):
                rest, at[axis.name] = divmod(rest, axis.size)
        return tuple(at.get(axis.name, 0) for axis in self.topology.axes)

    def __str__(self) -> str:
        return ",".join(f"{name}={''.join(self.physical.get(name, ()))}" for name in self.mesh.names)


def parse_mapping(text: str, mesh: Mesh, topology: Topology) -> AxisMapping:
    """Read ``"X=x,Y=yz"``. Raises `TopologyError`."""
    physical = {}
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\w+)\s*=\s*([a-z]*)\s*", part)
        if match is None:
            raise TopologyError(
                f"cannot read {part.strip()!r} in {text!r}: expected LOGICAL=physical, such as X=x,Y=yz"
            )
        if match[1] in physical:
            raise TopologyError(f"logical axis {match[1]} is given twice in {text!r}")
        physical[match[1]] = tuple(match[2])
    return AxisMapping(topology, mesh, physical)


def default_mapping(mesh: Mesh, topology: Topology) -> AxisMapping:
    """A mapping that fits, with as many closed rings as there can be, and physical axes in their order.

    Raises `TopologyError` if no assignment of whole physical axes fits the mesh.
    """
    chips = len(topology.chips)
    if mesh.size != chips:
        raise TopologyError(f"the mesh {mesh} has {mesh.size} devices, {topology.name} has {chips}")
    axes = [axis for axis in topology.axes if axis.size > 1]
    best: tuple[tuple[int, tuple[int, ...]], dict[str, tuple[str, ...]]] | None = None
    for owners in itertools.product(range(len(mesh.names)), repeat=len(axes)):
        physical: dict[str, tuple[str, ...]] = dict.fromkeys(mesh.names, ())
        for axis, owner in zip(axes, owners, strict=True):
            name = mesh.names[owner]
            physical[name] = (*physical[name], axis.name)
        sizes = {name: math.prod(topology.axis(axis).size for axis in physical[name]) for name in mesh.names}
        if all(sizes[name] == size for name, size in mesh.axes):
            closed = sum(all(topology.axis(axis).wraps for axis in physical[name]) for name in mesh.names)
            rank = (-closed, owners)
            if best is None or rank < best[0]:
                best = rank, physical
    if best is None:
        shown = " x ".join(f"{axis.name}={axis.size}" for axis in topology.axes)
        raise TopologyError(
            f"the mesh {mesh} does not lie on whole axes of {topology.name} ({shown}): choose sizes that are products "
            "of whole axes"
        )
    return AxisMapping(topology, mesh, best[1])
