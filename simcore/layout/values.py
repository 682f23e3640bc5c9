"""Arrays cut into every device's shard by a layout, and put together again: the ground truth of moved values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simcore.errors import LayoutError
from simcore.layout.layout import TensorLayout
from simcore.layout.mesh import Mesh

Array = NDArray[Any]
Shards = dict[tuple[int, ...], Array]


def shard(array: Array, layout: TensorLayout, mesh: Mesh, *, seed: int = 0, pad: bool = False) -> Shards:
    """Every device's local array, by its coordinates. Shape of each: ``layout.local_shape``.

    A value that is partial over axes of n devices in all becomes n random parts that sum to it, the same for
    the same ``seed``. Integers sum exactly; floats to rounding. A NaN stays a NaN. With ``pad`` a dimension
    that does not divide is filled up with zeros at the end. Raises `LayoutError` where the array's rank is not
    the layout's or a dimension does not divide.
    """
    sizes = _sizes(array, layout)
    local = layout.local_shape(sizes, mesh, pad=pad)
    parts = _partial_sums(array, mesh.axis_size(layout.partial), np.random.default_rng(seed))
    shards: Shards = {}
    for coordinates in mesh.coordinates():
        slices = layout.shard_slices(coordinates, sizes, mesh, pad=pad)
        piece = np.zeros(local, dtype=array.dtype)
        covered = tuple(slice(0, part.stop - part.start) for part in slices)
        piece[covered] = parts[mesh.position(coordinates, layout.partial)][slices]
        shards[coordinates] = piece
    return shards


def unshard(
    shards: Mapping[tuple[int, ...], Array],
    layout: TensorLayout,
    mesh: Mesh,
    sizes: Mapping[str, int] | None = None,
    *,
    rtol: float = 1e-9,
) -> Array:
    """The global array: shards put in their places, partial sums added.

    ``sizes`` are needed only where shards are padded; without them each dimension is its local length times its
    axes. Replicas must agree to ``rtol`` of the largest value (they may have summed in another order), and a NaN
    agrees only with a NaN, which stays one. Raises `LayoutError` for a missing shard, a wrong shape, or replicas
    that differ.
    """
    layout.check_mesh(mesh)
    devices = list(mesh.coordinates())
    _check_devices(shards, devices, layout, mesh)
    first = np.asarray(shards[devices[0]])
    if sizes is None:
        if first.ndim != len(layout.dims):
            raise LayoutError(f"{layout}: the shards have {first.ndim} dimensions, not {len(layout.dims)}")
        sizes = {
            dim.name: length * mesh.axis_size(dim.axes) for dim, length in zip(layout.dims, first.shape, strict=True)
        }
    local = layout.local_shape(sizes, mesh, pad=True)
    whole = np.zeros(layout.global_shape(sizes), dtype=first.dtype)
    for coordinates, replicas in _replicas(layout, mesh).items():
        values = np.asarray(shards[coordinates])
        for other in replicas:
            if np.shape(shards[other]) != local:
                raise LayoutError(
                    f"{layout}: the shard of device {other} has shape {np.shape(shards[other])}, should be {local}"
                )
            _check_replicas(layout, coordinates, values, other, np.asarray(shards[other]), rtol)
        slices = layout.shard_slices(coordinates, sizes, mesh, pad=True)
        covered = tuple(slice(0, part.stop - part.start) for part in slices)
        whole[slices] += values[covered]
    return whole


def _sizes(array: Array, layout: TensorLayout) -> dict[str, int]:
    if array.ndim != len(layout.dims):
        raise LayoutError(f"{layout} has {len(layout.dims)} dimensions, the array {array.ndim} (shape {array.shape})")
    return dict(zip(layout.dim_names, array.shape, strict=True))


def _partial_sums(array: Array, parts: int, random: np.random.Generator) -> list[Array]:
    """``parts`` random arrays that sum to ``array``, of its dtype."""
    if parts > 1 and array.dtype.kind not in "iufc":
        raise LayoutError(f"values of dtype {array.dtype} cannot be split into sums: use numbers")
    pieces = []
    for _ in range(parts - 1):
        if array.dtype.kind in "iu":
            pieces.append(random.integers(0, 100, array.shape).astype(array.dtype))
        else:
            pieces.append(random.uniform(-1, 1, array.shape).astype(array.dtype))
    last = array.copy()
    for piece in pieces:
        last = last - piece
    return [*pieces, last]


def _replicas(layout: TensorLayout, mesh: Mesh) -> dict[tuple[int, ...], list[tuple[int, ...]]]:
    """For the first device of each different shard: all devices that should hold the same values, itself too."""
    groups: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    used = [name in layout.used_axes for name in mesh.names]
    for coordinates in mesh.coordinates():
        owner = tuple(index if use else 0 for index, use in zip(coordinates, used, strict=True))
        groups.setdefault(owner, []).append(coordinates)
    return groups


def _check_devices(
    shards: Mapping[tuple[int, ...], Array], devices: list[tuple[int, ...]], layout: TensorLayout, mesh: Mesh
) -> None:
    missing = [device for device in devices if device not in shards]
    if missing:
        raise LayoutError(f"{layout}: device {missing[0]} has no shard ({len(missing)} of {mesh.size} missing)")
    if len(shards) > len(devices):
        extra = next(device for device in shards if device not in set(devices))
        raise LayoutError(f"{layout}: there is a shard for {extra}, which is no device of the mesh {mesh}")


def _check_replicas(
    layout: TensorLayout,
    owner: tuple[int, ...],
    values: Array,
    other: tuple[int, ...],
    copy: Array,
    rtol: float,
) -> None:
    if np.array_equal(values, copy, equal_nan=values.dtype.kind in "fc"):
        return
    finite = np.abs(values[np.isfinite(values)])
    scale = float(finite.max()) if finite.size else 0.0
    same = np.isclose(values, copy, rtol=0, atol=rtol * scale, equal_nan=True)
    if same.all():
        return
    where = tuple(int(i) for i in np.argwhere(~same)[0])
    raise LayoutError(
        f"{layout}: devices {owner} and {other} should hold the same values, but differ in {int((~same).sum())} of "
        f"{math.prod(values.shape)}: {values[where]} and {copy[where]} at local index {where}"
    )
