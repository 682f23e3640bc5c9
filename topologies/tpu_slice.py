"""A TPU slice, wrapped only where the real one is: v5e/v6e an axis of 16, v4/v5p/v7 full cubes of 4 x 4 x 4.

Source: How To Scale Your Model, "How to Think About TPUs": on v5e and v6e only an axis of 16 wraps around; on v4 and
v5p all axes do once all of them are multiples of 4 (the optical switches join full cubes). For v3, whose pod is
32 x 32, an axis of 32 is assumed to wrap.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from simcore.chips import Chip
from topologies.topology import Topology, TopologyError, figure, grid, parse_shape

CUBE = 4
SLICES_2D = {(1, 1), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16)}
"""Slices in which v5e and v6e are offered (Google Cloud TPU documentation)."""


def wraps_of(chip: Chip, shape: Sequence[int]) -> tuple[bool, ...]:
    """Which axes of a slice wrap around."""
    if len(shape) == 3:
        cubes = all(size % CUBE == 0 for size in shape)
        return tuple(cubes for _ in shape)
    pod = chip.require("pod_shape")
    return tuple(size == max(pod) for size in shape)


def build(chip: Chip, shape: str | Sequence[int] = "4x4") -> Topology:
    """A slice of ``shape``; one that is not offered is built all the same, and noted.

    Raises `TopologyError` for a shape of the wrong number of axes, or larger than a pod.
    """
    sizes = parse_shape(shape)
    dimensions, pod = chip.require("torus_dimensions"), chip.require("pod_shape")
    written = "x".join(map(str, sizes))
    if len(sizes) != dimensions:
        raise TopologyError(
            f"a slice of {chip.name} has {dimensions} axes, {written} has {len(sizes)}: write it like "
            f"{'x'.join(['4'] * dimensions)}"
        )
    if math.prod(sizes) > math.prod(pod):
        raise TopologyError(
            f"a slice of {written} has {math.prod(sizes)} chips, a pod of {chip.name} has {math.prod(pod)} "
            f"({'x'.join(map(str, pod))})"
        )
    notes = []
    if dimensions == 2 and chip.name in ("v5e", "v6e") and tuple(sorted(sizes)) not in SLICES_2D:
        offered = ", ".join(f"{a}x{b}" for a, b in sorted(SLICES_2D))
        notes.append(f"{chip.name} is not offered as {written}: slices are {offered}")
    if dimensions == 3 and any(size > 2 and size % CUBE for size in sizes):
        notes.append(f"{chip.name} is not offered as {written}: axes are 1, 2 or multiples of {CUBE}")
    return grid(
        f"{chip.name} slice {written}",
        sizes,
        wraps_of(chip, sizes),
        bandwidth_bytes_per_s=figure(chip.ici_link_bandwidth_bytes_per_s, "ICI link", chip.name),
        latency_s=figure(chip.ici_hop_latency_s, "ICI latency", chip.name),
        notes=notes,
    )
