"""A logical mesh of devices: named axes and their sizes.

It says how many devices there are and how they are addressed, not which wires join them: topologies do that.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from simcore.errors import LayoutError, nearest

AXIS_PATTERN = r"[A-Z]|[a-z][a-z0-9_]*"
_AXIS = re.compile(AXIS_PATTERN)


def axis_names(axes: str | Iterable[str]) -> tuple[str, ...]:
    """The mesh axes that ``axes`` names: ``"XY"`` is X then Y, ``"data"`` is one axis, commas separate.

    Raises `LayoutError` for a name that no axis can have, for one named twice, and for none at all.

    >>> axis_names("XY"), axis_names("X,data"), axis_names(("data",))
    (('X', 'Y'), ('X', 'data'), ('data',))
    """
    parts = axes.split(",") if isinstance(axes, str) else list(axes)
    names: list[str] = []
    for part in (str(part).strip() for part in parts):
        names.extend(part if part.isascii() and part.isalpha() and part.isupper() else [part])
    for name in names:
        if not _AXIS.fullmatch(name):
            raise LayoutError(
                f"{name!r} is no name for a mesh axis: use one capital letter (X) or a word in lower case (data)"
            )
    if not names:
        raise LayoutError("no mesh axis was named: name one or more, such as 'X' or 'XY'")
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise LayoutError(f"mesh axis {repeated} is named twice in {axes!r}: name each axis once")
    return tuple(names)


@dataclass(frozen=True, slots=True)
class Mesh:
    """Ordered axes with their sizes; a device's coordinates are one index per axis, the last varying fastest.

    >>> mesh = Mesh.of(X=4, Y=2)
    >>> mesh.size, mesh.axis_size("Y"), str(mesh)
    (8, 2, 'X=4,Y=2')
    """

    axes: tuple[tuple[str, int], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "axes", tuple((str(name), size) for name, size in self.axes))
        if not self.axes:
            raise LayoutError("a mesh needs at least one axis: for one device write X=1")
        for name, size in self.axes:
            if not _AXIS.fullmatch(name):
                raise LayoutError(
                    f"{name!r} is no name for a mesh axis: use one capital letter (X) or a word in lower case (data)"
                )
            if isinstance(size, bool) or not isinstance(size, int):
                raise LayoutError(f"the size of mesh axis {name} must be a whole number, got {size!r}")
            if size < 1:
                raise LayoutError(f"the size of mesh axis {name} must be at least 1, got {size}")
        names = self.names
        repeated = next((name for name in names if names.count(name) > 1), None)
        if repeated is not None:
            raise LayoutError(f"the mesh has axis {repeated} twice: give each axis its own name")

    @classmethod
    def of(cls, sizes: Mapping[str, int] | None = None, /, **axes: int) -> Mesh:
        """A mesh from keywords, from a mapping, or both: ``Mesh.of(X=4, Y=2)``."""
        return cls((*(sizes or {}).items(), *axes.items()))

    @classmethod
    def parse(cls, text: str) -> Mesh:
        """Read ``"X=4,Y=2"``. Raises `LayoutError` that shows the part it could not read."""
        axes = []
        for part in text.split(","):
            match = re.fullmatch(r"\s*([^=\s]+)\s*=\s*(-?\d+)\s*", part)
            if match is None:
                raise LayoutError(
                    f"cannot read {part.strip()!r} in the mesh {text!r}: expected AXIS=SIZE, such as X=4,Y=2"
                )
            axes.append((match[1], int(match[2])))
        return cls(tuple(axes))

    def __str__(self) -> str:
        return ",".join(f"{name}={size}" for name, size in self.axes)

    @property
    def names(self) -> tuple[str, ...]:
        """The axes' names in order."""
        return tuple(name for name, _ in self.axes)

    @property
    def shape(self) -> tuple[int, ...]:
        """The axes' sizes in order."""
        return tuple(size for _, size in self.axes)

    @property
    def size(self) -> int:
        """The number of devices."""
        return math.prod(self.shape)

    def axis_size(self, axes: str | Iterable[str]) -> int:
        """The product of the sizes of ``axes`` (``"X"``, ``"XY"``); 1 for an empty sequence.

        Raises `LayoutError` for an axis that the mesh does not have.
        """
        if not isinstance(axes, str):
            axes = tuple(axes)
            if not axes:
                return 1
        sizes = dict(self.axes)
        names = axis_names(axes)
        self.check(names)
        return math.prod(sizes[name] for name in names)

    def check(self, axes: Iterable[str]) -> None:
        """Raise `LayoutError` for the first of ``axes`` that the mesh does not have."""
        for name in axes:
            if name not in self.names:
                raise LayoutError(f"the mesh {self} has no axis {name}: {nearest(name, self.names)}")

    def coordinates(self) -> Iterator[tuple[int, ...]]:
        """Every device's coordinates in the order of the axes, the last axis varying fastest."""
        return itertools.product(*(range(size) for size in self.shape))

    def position(self, coordinates: tuple[int, ...], axes: Iterable[str]) -> int:
        """Where a device stands along ``axes`` taken together, the first the major: 0 to the product - 1."""
        where = dict(zip(self.names, coordinates, strict=True))
        index = 0
        for name in axes:
            index = index * self.axis_size((name,)) + where[name]
        return index
