"""Folding: chips that provably do the same are simulated once.

A mesh axis can be folded where rotating all chips along it maps the program onto itself: it wraps around (or nothing
refers to a neighbour along it), every class has all its coordinates, and nothing that a task's existence or waiting
depends on looks at the coordinate. Each chip has units of its own and meets others through dependencies alone, so then
all chips along the axis have the same times, ties included (the chip comes last in the key), and a reference to a
neighbour is one to the chip itself.

Exact or not done: what cannot be shown is simulated in full, and `Folded.why` says what stood against it. Functions
that give regions and values are not looked at: they have no part in time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from simcore.graph.graph import EntityClass, Task, TaskGraph
from simcore.graph.reference import Ref


@dataclass(frozen=True, slots=True)
class Folded:
    """A graph of representatives: ``alike`` are for each class the (axis, size) pairs that are folded."""

    graph: TaskGraph
    alike: Mapping[str, tuple[tuple[str, int], ...]] = field(default_factory=dict)
    why: tuple[str, ...] = ()
    """of each axis that was not folded, what stood against it"""


def fold(graph: TaskGraph) -> Folded:
    """The graph with every axis folded that can be."""
    spaces: dict[tuple[str, ...], list[EntityClass]] = {}
    for cls in graph.classes.values():
        spaces.setdefault(cls.axes, []).append(cls)
    folded: dict[tuple[str, ...], tuple[str, ...]] = {}
    why: list[str] = []
    for axes, classes in spaces.items():
        taken = []
        for axis, size in zip(axes, classes[0].sizes, strict=True):
            reason = _against(graph, classes, axis) if size > 1 else ""
            if reason:
                why.append(f"axis {axis}: {reason}")
            elif size > 1:
                taken.append(axis)
        folded[axes] = tuple(taken)
    if not any(folded.values()):
        return Folded(graph, {}, tuple(why))
    kept = {cls.name: _without(cls, folded[cls.axes]) for cls in graph.classes.values()}
    alike = {
        name: tuple(
            (axis, size)
            for axis, size in zip(cls.axes, graph.classes[name].sizes, strict=True)
            if axis in folded[cls.axes]
        )
        for name, cls in kept.items()
    }
    return Folded(TaskGraph(graph.name, kept, graph.notes, graph.phases), alike, tuple(why))


def _without(cls: EntityClass, axes: tuple[str, ...]) -> EntityClass:
    """The representatives of a class: those at 0 along the folded axes."""
    numbers = [cls.axes.index(axis) for axis in axes]
    sizes = tuple(1 if axis in axes else size for axis, size in zip(cls.axes, cls.sizes, strict=True))
    keep = (cls.coordinates[:, numbers] == 0).all(axis=1)
    return replace(cls, sizes=sizes, coordinates=cls.coordinates[keep])


def _against(graph: TaskGraph, classes: list[EntityClass], axis: str) -> str:
    """Why the axis cannot be folded, "" if it can."""
    for cls in classes:
        number = cls.axes.index(axis)
        if not cls.wraps[number] and any(ref.on.get(axis) for task in cls.tasks.values() for ref in _references(task)):
            return "it does not wrap around"
        turned = cls.coordinates.copy()
        turned[:, number] = (turned[:, number] + 1) % cls.sizes[number]
        if set(map(tuple, turned.tolist())) != set(map(tuple, cls.coordinates.tolist())):
            return f"{cls.name} has not all of its coordinates"
    names = {cls.name for cls in classes}
    for cls in graph.classes.values():
        for task in cls.tasks.values():
            for ref in _references(task):
                if ref.onto is not None and (cls.name in names or ref.cls is None or ref.cls in names):
                    return f"task {task.name!r} refers to an entity by its coordinates"
                if cls.name not in names and ref.cls in names:
                    return f"task {task.name!r} of {cls.name} refers to one of {ref.cls}"
            if cls.name in names and (function := _looking(cls, task, axis)):
                return f"task {task.name!r} has {function} that depends on the coordinate"
    return ""


def _references(task: Task) -> Iterator[Ref]:
    yield from task.after
    for _, freed_by in task.takes:
        yield from freed_by or ()


def _looking(cls: EntityClass, task: Task, axis: str) -> str:
    """What of a task depends on the coordinate along ``axis``: a guard or the iteration of a reference; "" for none."""
    if task.when is not None and _depends(task.when, cls, task, axis):
        return "a guard"
    for ref in _references(task):
        for at in ref.at.values():
            if callable(at) and _depends(at, cls, task, axis):
                return "a reference"
    return ""


class _Watched(dict[str, Any]):
    """Coordinates that remember whether anything but other axes was looked at."""

    def __init__(self, coordinates: Mapping[str, Any], axis: str) -> None:
        super().__init__(coordinates)
        self.axis, self.looked = axis, False

    def __getitem__(self, key: str) -> Any:
        self.looked = self.looked or key == self.axis
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.looked = self.looked or key == self.axis
        return super().get(key, default)

    def __iter__(self) -> Iterator[str]:
        self.looked = True
        return super().__iter__()

    def keys(self) -> Any:
        self.looked = True
        return super().keys()

    def items(self) -> Any:
        self.looked = True
        return super().items()

    def values(self) -> Any:
        self.looked = True
        return super().values()


def _depends(function: Callable[..., Any], cls: EntityClass, task: Task, axis: str) -> bool:
    shape = (*task.counts, cls.count)
    grids = np.ogrid[tuple(slice(0, n) for n in shape)]
    iterations = {loop.name: grid for loop, grid in zip(task.loops, grids, strict=False)}
    last = (1,) * len(task.loops) + (cls.count,)
    at = {name: cls.coordinates[:, number].reshape(last) for number, name in enumerate(cls.axes)}
    watched = _Watched(at, axis)
    found = function(iterations, watched)
    if not watched.looked:
        return False
    at_zero = function(iterations, {**at, axis: np.zeros_like(at[axis])})
    return not np.array_equal(np.broadcast_to(found, shape), np.broadcast_to(at_zero, shape))
