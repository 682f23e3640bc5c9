"""The steps that a sharded matmul is made of: collectives on one tensor, and the local matmul.

A step is a value: what moves and how much, not when or by which algorithm.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from simcore.layout.layout import TensorLayout, format_subscript
from simcore.layout.mesh import Mesh
from simcore.layout.rules import all_gather, contraction

CollectiveKind: TypeAlias = Literal["AllGather", "ReduceScatter", "AllReduce", "AllToAll", "Slice"]
COLLECTIVE_KINDS: tuple[CollectiveKind, ...] = get_args(CollectiveKind)


@dataclass(frozen=True, slots=True)
class CollectiveStep:
    """One collective on one tensor over ``axes``; a Slice keeps a part of what is there and moves nothing.

    ``dim`` is the dimension gathered, scattered or sliced, for an AllToAll the one it comes from (``to_dim`` the
    one it goes to); None for an AllReduce and for an AllGather of several dimensions at once, where ``before``
    and ``after`` say which. ``local_bytes`` are one device's before the step, ``full_bytes`` those of the whole
    array of the group that communicates (V): gathered for an AllGather, unscattered for a ReduceScatter, the
    array once for an AllReduce, all parts together for an AllToAll.
    """

    kind: CollectiveKind
    tensor: str
    axes: tuple[str, ...]
    axis_sizes: tuple[int, ...]
    dim: str | None
    before: TensorLayout
    after: TensorLayout
    local_bytes: int
    full_bytes: int
    to_dim: str | None = None

    def __str__(self) -> str:
        return f"{self.title} {self.before} -> {self.after}"

    @property
    def title(self) -> str:
        """The collective and its axes: ``AllGather_{XY}``."""
        return self.kind + format_subscript(self.axes)


@dataclass(frozen=True, slots=True)
class LocalMatmul:
    """What every device multiplies by itself: ``batch`` times m x k by k x n; ``flops`` are one device's."""

    m: int
    k: int
    n: int
    flops: int
    batch: int
    left: TensorLayout
    right: TensorLayout
    out: TensorLayout

    def __str__(self) -> str:
        return f"matmul {self.left} · {self.right} -> {self.out}"


Step: TypeAlias = CollectiveStep | LocalMatmul


def local_matmul(
    left: TensorLayout, right: TensorLayout, out: TensorLayout, sizes: Mapping[str, int], mesh: Mesh
) -> LocalMatmul:
    """The matmul of the local shapes of ``left`` and ``right``; a multiply-add is 2 FLOPs."""
    parts = contraction(left, right, out.dim_names)
    length = dict(zip(left.dim_names, left.local_shape(sizes, mesh), strict=True))
    length |= zip(right.dim_names, right.local_shape(sizes, mesh), strict=True)
    batch, m, k, n = (
        math.prod(length[dim] for dim in dims)
        for dims in (parts.batch, parts.left_only, parts.contracted, parts.right_only)
    )
    return LocalMatmul(m, k, n, 2 * batch * m * k * n, batch, left, right, out)


def gathers_in_turn(step: CollectiveStep) -> list[CollectiveStep]:
    """An AllGather of several dimensions as one AllGather of each, in the dimensions' order."""
    sizes = dict(zip(step.axes, step.axis_sizes, strict=True))
    found, before, local = [], step.before, step.local_bytes
    for dim in step.before.dims:
        axes = tuple(axis for axis in dim.axes if axis in sizes)
        if axes:
            ways = tuple(sizes[axis] for axis in axes)
            after, full = all_gather(before, axes, dim.name), local * math.prod(ways)
            found.append(CollectiveStep("AllGather", step.tensor, axes, ways, dim.name, before, after, local, full))
            before, local = after, full
    return found
