"""``--slice`` and ``--map``: on which physical axes a mesh lies, and so which of its axes are rings and which lines.

A logical axis on several physical ones is replaced by them, the first the major, because a collective uses the links of
each.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from simcore.chips import Chip
from simcore.errors import ScenarioError
from simcore.layout import Mesh, Product, TensorLayout

if TYPE_CHECKING:
    from topologies.mapping import AxisMapping

SWITCH = "nvlink"


@dataclass(frozen=True)
class Placing:
    """A mesh on a chip's network.

    Parameters
    ----------
    mesh : its axes of more than one device, each on one physical axis.
    axes : logical axis -> the axes of ``mesh`` that it is.
    lines : axes of ``mesh`` that do not wrap around.
    network : "ici" or "nvlink".
    slice : the slice's shape as written, "" on a switch.
    notes : what was assumed, and what is odd about it.
    """

    mesh: Mesh
    axes: Mapping[str, tuple[str, ...]]
    lines: frozenset[str]
    network: str
    slice: str
    notes: tuple[str, ...]

    def product(self, product: Product) -> Product:
        """``product`` over the axes of ``mesh``."""
        return Product(*(self._layout(layout) for layout in (product.left, product.right, product.out)))

    def _layout(self, layout: TensorLayout) -> TensorLayout:
        dims = tuple(replace(dim, axes=self._expanded(dim.axes)) for dim in layout.dims)
        return TensorLayout(layout.name, dims, self._expanded(layout.partial))

    def _expanded(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(part for axis in axes for part in self.axes.get(axis, (axis,)))


def place(mesh: Mesh, chip: Chip, shape: str | None, mapping: str | None) -> Placing:
    """Lay ``mesh`` on a slice of ``chip``: the one given, or one with an axis for each of the mesh's.

    Raises `ScenarioError` where there is none, `TopologyError` for a mesh that does not fill or fit the slice.
    """
    if chip.torus_dimensions is None:
        return _on_switch(mesh, chip, shape, mapping)
    from topologies.mapping import default_mapping, parse_mapping
    from topologies.topology import parse_shape
    from topologies.tpu_slice import build

    assumed = shape is None
    sizes = parse_shape(shape) if shape is not None else _assumed_shape(mesh, chip, mapping)
    topology = build(chip, sizes)
    found = parse_mapping(mapping, mesh, topology) if mapping else default_mapping(mesh, topology)
    written = "x".join(map(str, sizes))
    where = f"{chip.name} slice {written}{' (assumed; --slice says another)' if assumed else ''}: {_described(found)}"
    return _expanded(mesh, found, written, (where, *topology.notes))


def _assumed_shape(mesh: Mesh, chip: Chip, mapping: str | None) -> tuple[int, ...]:
    """A physical axis for each logical one of more than one chip, in order or as ``mapping`` names them."""
    dimensions = int(chip.torus_dimensions or 0)
    used = [(name, size) for name, size in mesh.axes if size > 1]
    if len(used) > dimensions:
        raise ScenarioError(
            f"the mesh {mesh} has {len(used)} axes of more than one chip, a slice of {chip.name} has {dimensions}: "
            "use fewer axes, or a chip whose slices have more"
        )
    if mapping is None:
        return (*(size for _, size in used), *[1] * (dimensions - len(used)))
    sizes = dict.fromkeys("xyz"[:dimensions], 1)
    given = dict(re.findall(r"(\w+)\s*=\s*([a-z]*)", mapping))
    for name, size in used:
        axis = given.get(name, "")
        if axis not in sizes:
            raise ScenarioError(
                f"--map {mapping}: without --slice it must put {name} on one of {', '.join(sizes)}; for several axes "
                f"give the slice too, e.g. --slice {'x'.join(['4'] * dimensions)}"
            )
        sizes[axis] = size
    return tuple(sizes.values())


def _expanded(mesh: Mesh, found: AxisMapping, shape: str, notes: tuple[str, ...]) -> Placing:
    parts: dict[str, tuple[str, ...]] = {}
    sizes: dict[str, int] = {}
    lines = set()
    for name, _ in mesh.axes:
        physical = [axis for axis in found.axes_of(name) if axis.size > 1]
        taken = {*mesh.names, *sizes}
        own = [axis.name if axis.name not in taken else f"{name.lower()}_{axis.name}" for axis in physical]
        parts[name] = tuple(own) if len(own) > 1 else (name,) * len(own)
        for part, axis in zip(parts[name], physical, strict=True):
            sizes[part] = axis.size
            if not axis.wraps:
                lines.add(part)
    return _placing(mesh, sizes, parts, frozenset(lines), "ici", shape, notes)


def _placing(
    mesh: Mesh,
    sizes: Mapping[str, int],
    parts: Mapping[str, tuple[str, ...]],
    lines: frozenset[str],
    network: str,
    shape: str,
    notes: tuple[str, ...],
) -> Placing:
    """Axes of one device split nothing and are left out; of a mesh of one device the first stays as its only one."""
    ones = [name for name, size in mesh.axes if size == 1]
    if ones:
        verb = "have one device and split" if len(ones) > 1 else "has one device and splits"
        notes = (*notes, f"{', '.join(ones)} {verb} nothing")
    return Placing(Mesh.of(sizes or {mesh.names[0]: 1}), parts, lines, network, shape, notes)


def _described(found: AxisMapping) -> str:
    parts = []
    for name in found.mesh.names:
        physical = [axis for axis in found.axes_of(name) if axis.size > 1]
        if physical:
            kinds = [f"{axis.name} (a {'ring' if axis.wraps else 'line'} of {axis.size})" for axis in physical]
            parts.append(f"{name} on {' and '.join(kinds)}")
    return ", ".join(parts) or "one chip"


def _on_switch(mesh: Mesh, chip: Chip, shape: str | None, mapping: str | None) -> Placing:
    for flag, value in (("--slice", shape), ("--map", mapping)):
        if value is not None:
            raise ScenarioError(f"{flag} {value}: {chip.name} has no slices, its chips are on a switch: leave it out")
    domain = chip.gpus_per_nvlink_domain or 1
    used = [name for name, size in mesh.axes if size > 1]
    if math.prod(mesh.shape) > domain:
        raise ScenarioError(
            f"the mesh {mesh} has {mesh.size} devices, an NVLink domain of {chip.name} {domain}: use at most those"
        )
    if len(used) > 1:
        raise ScenarioError(
            f"the mesh {mesh} has {len(used)} axes on the switch of {chip.name}: collectives there are simulated over "
            f"one axis, such as {used[0]}={mesh.size}"
        )
    note = f"{mesh.size} of the {domain} {chip.name} of one NVLink domain, on its switch"
    parts = {name: (name,) * (size > 1) for name, size in mesh.axes}
    return _placing(mesh, {name: mesh.axis_size((name,)) for name in used}, parts, frozenset(), SWITCH, "", (note,))
