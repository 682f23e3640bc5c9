"""A tensor's layout over a mesh: which indices each device covers, and whether its values are complete.

The two are separate facts. ``dims`` says which mesh axes split each dimension (coverage); ``partial`` says over
which axes the values are sums still to be added (completeness). What operations do to layouts is in
`simcore.layout.rules`; the notation is read by `simcore.layout.notation`. Source of the notation: How To Scale
Your Model, "Sharded Matrices and How to Multiply Them".
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from simcore.dtypes import bytes_of
from simcore.errors import LayoutError, nearest
from simcore.layout.mesh import Mesh, axis_names

DIM_PATTERN = r"[A-Z][a-z0-9]*'*|[a-z][a-z0-9]*'*"
NAME_PATTERN = r"[^\W\d_]\w*'*"
_DIM = re.compile(DIM_PATTERN)
_NAME = re.compile(NAME_PATTERN)


def format_axes(axes: Iterable[str]) -> str:
    """Axes as a message names them: ``X``, ``XY``, ``X,data``."""
    axes = tuple(axes)
    return ("" if all(len(axis) == 1 and axis.isupper() for axis in axes) else ",").join(axes)


def format_subscript(axes: tuple[str, ...]) -> str:
    """Axes as a subscript: nothing, ``_X``, ``_{XY}``, ``_data``, ``_{X,data}``."""
    if not axes:
        return ""
    return f"_{axes[0]}" if len(axes) == 1 else f"_{{{format_axes(axes)}}}"


@dataclass(frozen=True, slots=True)
class Dim:
    """One dimension and the mesh axes that split it, the first the major; no axes: every device has all of it."""

    name: str
    axes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not _DIM.fullmatch(self.name):
            raise LayoutError(f"{self.name!r} is no name for a dimension: use a capital letter (I) or a word (heads)")
        object.__setattr__(self, "axes", axis_names(self.axes) if self.axes else ())

    def __str__(self) -> str:
        return self.name + format_subscript(self.axes)


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """A named tensor's dimensions, each with the mesh axes that split it, and the axes of its partial sums.

    ``partial`` is a set kept in sorted order. Raises `LayoutError` for a dimension or mesh axis used twice.

    >>> layout = TensorLayout("A", (Dim("I", ("X",)), Dim("J", ("Y", "Z"))), ("W",))
    >>> str(layout), layout.axes, layout.is_complete
    ('A[I_X, J_{YZ}]{U_W}', ('X', 'Y', 'Z'), False)
    """

    name: str
    dims: tuple[Dim, ...]
    partial: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise LayoutError(f"{self.name!r} is no name for a tensor: use letters and digits, such as W_in")
        object.__setattr__(self, "dims", tuple(self.dims))
        object.__setattr__(self, "partial", tuple(sorted(axis_names(self.partial))) if self.partial else ())
        names = self.dim_names
        repeated = next((name for name in names if names.count(name) > 1), None)
        if repeated is not None:
            raise LayoutError(f"{self}: dimension {repeated} appears twice: give each dimension its own name")
        check_axes_once(self)

    def __str__(self) -> str:
        partial = f"{{U{format_subscript(self.partial)}}}" if self.partial else ""
        return f"{self.name}[{', '.join(map(str, self.dims))}]{partial}"

    @property
    def dim_names(self) -> tuple[str, ...]:
        """The dimensions' names in order."""
        return tuple(dim.name for dim in self.dims)

    @property
    def axes(self) -> tuple[str, ...]:
        """The mesh axes that split dimensions, in order of appearance; partial sums' axes are not among them."""
        return tuple(axis for dim in self.dims for axis in dim.axes)

    @property
    def used_axes(self) -> tuple[str, ...]:
        """The mesh axes that split dimensions and those of partial sums: devices along the others are replicas."""
        return self.axes + self.partial

    @property
    def is_complete(self) -> bool:
        """Whether the values are complete: nothing is left to be summed. Says nothing of which indices."""
        return not self.partial

    @property
    def is_whole(self) -> bool:
        """Whether every device covers all indices. Says nothing of the values' completeness."""
        return not self.axes

    def dim(self, name: str) -> Dim:
        """The dimension called ``name``. Raises `LayoutError` if there is none."""
        for dim in self.dims:
            if dim.name == name:
                return dim
        raise LayoutError(f"{self} has no dimension {name}: {nearest(name, self.dim_names)}")

    def dim_of(self, axis: str) -> Dim | None:
        """The dimension that ``axis`` splits, None where it splits none."""
        return next((dim for dim in self.dims if axis in dim.axes), None)

    def with_axes(self, dim: str, axes: tuple[str, ...]) -> TensorLayout:
        """The same tensor with dimension ``dim`` split over ``axes`` instead."""
        self.dim(dim)
        return replace(self, dims=tuple(Dim(d.name, axes) if d.name == dim else d for d in self.dims))

    def with_partial(self, partial: Iterable[str]) -> TensorLayout:
        """The same tensor with partial sums over ``partial`` instead."""
        return replace(self, partial=tuple(partial))

    def check_mesh(self, mesh: Mesh) -> None:
        """Raise `LayoutError` naming the first axis of the layout that ``mesh`` does not have."""
        for axis in self.used_axes:
            if axis not in mesh.names:
                raise LayoutError(f"{self}: the mesh {mesh} has no axis {axis}: {nearest(axis, mesh.names)}")

    def global_shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The unsharded shape. Raises `LayoutError` for a dimension without a size or with an impossible one."""
        shape = []
        for dim in self.dims:
            if dim.name not in sizes:
                raise LayoutError(f"{self}: no size for dimension {dim.name}: {nearest(dim.name, sizes)}")
            size = sizes[dim.name]
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise LayoutError(f"{self}: the size of {dim.name} must be a whole number of at least 1, got {size!r}")
            shape.append(size)
        return tuple(shape)

    def local_shape(self, sizes: Mapping[str, int], mesh: Mesh, *, pad: bool = False) -> tuple[int, ...]:
        """The shape of every device's shard; with ``pad`` a dimension that does not divide is rounded up.

        Raises `LayoutError` for an axis that the mesh lacks and, unless ``pad``, for a dimension that its axes
        do not divide: the message says what padding would cost.
        """
        self.check_mesh(mesh)
        shape = self.global_shape(sizes)
        ways = [mesh.axis_size(dim.axes) for dim in self.dims]
        local = tuple(-(-size // n) for size, n in zip(shape, ways, strict=True))
        if not pad:
            for dim, size, n in zip(self.dims, shape, ways, strict=True):
                if size % n:
                    elements = math.prod(shape)
                    added = math.prod(length * n for length, n in zip(local, ways, strict=True)) - elements
                    raise LayoutError(
                        f"{self}: {dim.name} = {size} does not divide over {format_axes(dim.axes)} ({n} ways): make "
                        f"it a multiple of {n}, or pad it to {-(-size // n) * n}; padding the tensor would add "
                        f"{added:,} elements ({100 * added / elements:.3g} %)"
                    )
        return local

    def bytes_per_device(self, sizes: Mapping[str, int], mesh: Mesh, dtype: str, *, pad: bool = False) -> int:
        """Bytes of one device's shard, rounded up to a whole byte."""
        return bytes_of(math.prod(self.local_shape(sizes, mesh, pad=pad)), dtype)

    def total_bytes(self, sizes: Mapping[str, int], mesh: Mesh, dtype: str, *, pad: bool = False) -> int:
        """Bytes over all devices of the mesh, every replica counted."""
        return self.bytes_per_device(sizes, mesh, dtype, pad=pad) * mesh.size

    def replication(self, mesh: Mesh) -> int:
        """How many devices hold the same shard with the same values: the product of the axes not used.

        Devices along an axis of partial sums cover the same indices with different values: no replicas.
        """
        self.check_mesh(mesh)
        return math.prod(size for name, size in mesh.axes if name not in self.used_axes)

    def shard_slices(
        self, coordinates: tuple[int, ...], sizes: Mapping[str, int], mesh: Mesh, *, pad: bool = False
    ) -> tuple[slice, ...]:
        """The global indices that the device at ``coordinates`` covers, one slice a dimension.

        Of ``I_{XY}`` X is the major: device (x, y) has block x |Y| + y. With ``pad`` the last shards are cut
        off at the array's end, and may be empty.
        """
        local = self.local_shape(sizes, mesh, pad=pad)
        check_coordinates(coordinates, mesh)
        slices = []
        for dim, size, length in zip(self.dims, self.global_shape(sizes), local, strict=True):
            start = min(mesh.position(coordinates, dim.axes) * length, size)
            slices.append(slice(start, min(start + length, size)))
        return tuple(slices)


def check_axes_once(layout: TensorLayout) -> None:
    """Raise `LayoutError` if one mesh axis is used twice: on two dimensions, or on one and for partial sums."""
    seen: dict[str, str] = {}
    for dim in layout.dims:
        for axis in dim.axes:
            if axis in seen:
                raise LayoutError(
                    f"{layout}: mesh axis {axis} splits both {seen[axis]} and {dim.name}: an axis can split one "
                    "dimension of a tensor only; use another axis or leave one of them whole"
                )
            seen[axis] = dim.name
    for axis in layout.partial:
        if axis in seen:
            raise LayoutError(
                f"{layout}: mesh axis {axis} splits {seen[axis]} and carries partial sums too: devices along "
                "an axis hold either parts or sums; use another axis for one of them"
            )


def check_coordinates(coordinates: tuple[int, ...], mesh: Mesh) -> None:
    """Raise `LayoutError` if no device of ``mesh`` has these coordinates."""
    fits = len(coordinates) == len(mesh.shape) and all(
        0 <= index < size for index, size in zip(coordinates, mesh.shape, strict=True)
    )
    if not fits:
        raise LayoutError(f"the mesh {mesh} has no device at {coordinates!r}: give one index per axis, from 0")


def padded_sizes(layouts: Iterable[TensorLayout], sizes: Mapping[str, int], mesh: Mesh) -> dict[str, int]:
    """``sizes`` with each dimension rounded up until every one of ``layouts`` divides it."""
    padded = dict(sizes)
    ways: dict[str, int] = {}
    for layout in layouts:
        layout.check_mesh(mesh)
        layout.global_shape(sizes)
        for dim in layout.dims:
            ways[dim.name] = math.lcm(ways.get(dim.name, 1), mesh.axis_size(dim.axes))
    for name, n in ways.items():
        padded[name] = -(-sizes[name] // n) * n
    return padded
