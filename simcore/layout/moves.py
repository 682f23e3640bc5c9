"""Every collective that a layout permits next, with its cost: the edges of the planner's search."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from simcore.dtypes import bytes_of
from simcore.errors import LayoutError
from simcore.layout import rules
from simcore.layout.layout import TensorLayout
from simcore.layout.mesh import Mesh
from simcore.layout.steps import CollectiveKind, CollectiveStep, Step


@dataclass(frozen=True, slots=True)
class Move:
    """A step and its cost."""

    step: CollectiveStep
    seconds: float


class Moves:
    """The moves from a layout, each made and costed once. Layouts that the sizes do not divide are left out."""

    def __init__(
        self,
        sizes: Mapping[str, int],
        mesh: Mesh,
        dtype: str,
        cost: Callable[[Step], float],
        slice_axes: tuple[str, ...],
        kinds: Collection[CollectiveKind],
    ) -> None:
        self.sizes, self.dtype, self.cost = sizes, dtype, cost
        self.slice_axes, self.kinds = slice_axes, kinds
        self._axis_sizes = dict(mesh.axes)
        self._bytes: dict[TensorLayout, int | None] = {}
        self._known: dict[TensorLayout, tuple[Move, ...]] = {}

    def of(self, layout: TensorLayout) -> tuple[Move, ...]:
        """The moves from ``layout``. Raises `LayoutError` where the cost is negative or not a number."""
        if layout not in self._known:
            self._known[layout] = tuple(Move(step, step_seconds(step, self.cost)) for step in self._steps(layout))
        return self._known[layout]

    def _steps(self, layout: TensorLayout) -> Iterator[CollectiveStep]:
        yield from self._gathers(layout)
        for dim in layout.dims:
            for start in range(len(dim.axes)):
                for to_dim in layout.dim_names:
                    if to_dim != dim.name:
                        after = rules.all_to_all(layout, dim.axes[start:], dim.name, to_dim)
                        yield from self._step("AllToAll", dim.axes[start:], layout, after, dim.name, to_dim)
        for axis in self.slice_axes:
            if axis not in layout.used_axes:
                for dim in layout.dims:
                    yield from self._step("Slice", (axis,), layout, rules.shard(layout, (axis,), dim.name), dim.name)
        for count in range(1, len(layout.partial) + 1):
            for axes in itertools.combinations(layout.partial, count):
                yield from self._step("AllReduce", axes, layout, rules.all_reduce(layout, axes))
            for axes in itertools.permutations(layout.partial, count):
                for dim in layout.dims:
                    after = rules.reduce_scatter(layout, axes, dim.name)
                    yield from self._step("ReduceScatter", axes, layout, after, dim.name)

    def _gathers(self, layout: TensorLayout) -> Iterator[CollectiveStep]:
        """Of each dimension none or some of its inner axes, all gathered at once."""
        choices = [[dim.axes[start:] for start in range(len(dim.axes) + 1)] for dim in layout.dims]
        for chosen in itertools.product(*choices):
            axes = tuple(itertools.chain(*chosen))
            if axes:
                dims = [dim.name for dim, taken in zip(layout.dims, chosen, strict=True) if taken]
                after = rules.all_gather(layout, axes)
                yield from self._step("AllGather", axes, layout, after, dims[0] if len(dims) == 1 else None)

    def _step(
        self,
        kind: CollectiveKind,
        axes: tuple[str, ...],
        before: TensorLayout,
        after: TensorLayout,
        dim: str | None = None,
        to_dim: str | None = None,
    ) -> Iterator[CollectiveStep]:
        local, local_after = self._local_bytes(before), self._local_bytes(after)
        if kind not in self.kinds or local is None or local_after is None:
            return
        axis_sizes = tuple(self._axis_sizes[axis] for axis in axes)
        full = {"AllGather": local_after, "AllToAll": local * math.prod(axis_sizes)}.get(kind, local)
        yield CollectiveStep(kind, before.name, axes, axis_sizes, dim, before, after, local, full, to_dim)

    def _local_bytes(self, layout: TensorLayout) -> int | None:
        """Bytes of one device's shard, None where a dimension does not divide."""
        if layout not in self._bytes:
            elements: int | None = 1
            for dim in layout.dims:
                ways = math.prod(self._axis_sizes[axis] for axis in dim.axes)
                if elements is None or self.sizes[dim.name] % ways:
                    elements = None
                else:
                    elements *= self.sizes[dim.name] // ways
            self._bytes[layout] = None if elements is None else bytes_of(elements, self.dtype)
        return self._bytes[layout]


def step_seconds(step: Step, cost: Callable[[Step], float]) -> float:
    """``cost(step)``, checked: a search for the cheapest needs costs of at least 0."""
    seconds = cost(step)
    if not 0 <= seconds < math.inf:
        raise LayoutError(f"the cost of {step} is {seconds!r}: it must be at least 0 s and finite")
    return seconds
