"""From templates to instances: their places in the program, and which instances each reference stands for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from simcore.errors import GraphError, nearest
from simcore.graph.flat import BoolArray, IntArray
from simcore.graph.graph import EntityClass, Loop, Task, TaskGraph
from simcore.graph.reference import ALL, Ref
from simcore.graph.work import Amount

LARGEST_CODE = 2**62


class Template:
    """A task's instances before they are put in key order."""

    def __init__(self, task: Task, cls: EntityClass, first_entity: int) -> None:
        self.task, self.cls, self.first_entity = task, cls, first_entity
        self.shape = (*task.counts, cls.count)
        self.size = math.prod(self.shape)
        grids = np.ogrid[tuple(slice(0, n) for n in self.shape)]
        self.iterations: dict[str, IntArray] = {loop.name: grid for loop, grid in zip(task.loops, grids, strict=False)}
        entity_shape = (1,) * len(task.loops) + (cls.count,)
        self.coordinates: dict[str, IntArray] = {
            axis: cls.coordinates[:, i].reshape(entity_shape) for i, axis in enumerate(cls.axes)
        }
        self.exists: BoolArray = np.ones(self.shape, dtype=bool)
        if task.when is not None:
            try:
                self.exists = np.broadcast_to(
                    np.asarray(task.when(self.iterations, self.coordinates), dtype=bool), self.shape
                )
            except ValueError as error:
                raise GraphError(
                    f"task {task.name!r}: its guard must work on arrays of iterations and coordinates, with & and | "
                    f"for `and` and `or` ({error})"
                ) from None
        self.base = 0

    def per_instance(self, amount: Amount) -> IntArray:
        """An amount over the loops, repeated for the entities."""
        array = np.asarray(amount)
        if array.dtype.kind not in "iu" and (array != np.floor(array)).any():
            raise GraphError(f"task {self.task.name!r}: amounts and durations are whole numbers, not {amount}")
        array = array.astype(np.int64)
        try:
            over_loops = np.broadcast_to(array, self.shape[:-1])
        except ValueError:
            raise GraphError(
                f"task {self.task.name!r}: amounts of shape {array.shape} do not fit its loops {self.task.counts}"
            ) from None
        return np.broadcast_to(over_loops[..., None], self.shape).reshape(-1)


def _program(body: Sequence[Loop | Task], above: tuple[int, ...] = ()) -> Iterator[tuple[Task, tuple[int, ...]]]:
    """Every task with its positions: in the outermost body, in the loop there, and so on down to its own."""
    for position, node in enumerate(body):
        if isinstance(node, Task):
            yield node, (*above, position)
        else:
            yield from _program(node.body, (*above, position))


def program_places(graph: TaskGraph, templates: Sequence[Template]) -> list[IntArray]:
    """Each instance's place in the unrolled program of its class, as columns to be compared from the first on.

    A place reads (position in the body, iteration, position in the loop's body, iteration, ..., position) and is
    compared so between classes too: what two classes do in one iteration of their loops stays together, however many
    tasks each has. As many of these numbers as fit are packed into one 64-bit column.
    """
    positions = {(cls.name, task.name): at for cls in graph.classes.values() for task, at in _program(cls.body)}
    depth = max((len(at) for at in positions.values()), default=0)
    bodies = [1 + max((at[d] + 1 for at in positions.values() if len(at) > d), default=0) for d in range(depth)]
    loops = [
        max((t.task.loops[d].count for t in templates if len(t.task.loops) > d), default=1) or 1 for d in range(depth)
    ]
    radices = [radix for pair in zip(bodies, loops, strict=True) for radix in pair]
    columns: list[list[IntArray]] = []
    room = 0
    codes: list[IntArray] = []
    for number, radix in enumerate(radices):
        if room * radix >= LARGEST_CODE or not room:
            codes, room = [np.zeros((), dtype=np.int64)] * len(templates), 1
            columns.append(codes)
        room *= radix
        for row, t in enumerate(templates):
            at, level = positions[t.cls.name, t.task.name], number // 2
            digit: IntArray | int = 0  # past its end a place sorts first: its own level's position has decided
            if number % 2 == 0 and level < len(at):
                digit = at[level] + 1
            elif number % 2 and level < len(t.task.loops):
                digit = t.iterations[t.task.loops[level].name]
            codes[row] = np.asarray(codes[row] * radix + digit)
    return [
        np.concatenate([np.broadcast_to(code, t.shape).reshape(-1) for code, t in zip(column, templates, strict=True)])
        for column in columns
    ]


class Resolver:
    """Numbers the entities and the instances of a graph, and follows references between them."""

    def __init__(self, graph: TaskGraph) -> None:
        self.graph = graph
        self.templates: list[Template] = []
        self.by_name: dict[tuple[str, str], Template] = {}
        self.entities: list[tuple[EntityClass, int]] = []
        self.first_entity: dict[str, int] = {}
        for cls in graph.classes.values():
            self.first_entity[cls.name] = len(self.entities)
            self.entities += [(cls, index) for index in range(cls.count)]
            for task in cls.tasks.values():
                made = Template(task, cls, self.first_entity[cls.name])
                self.templates.append(made)
                self.by_name[cls.name, task.name] = made
        base = 0
        for made in self.templates:
            made.base = base
            base += made.size
        self.size = base
        self._owners: dict[tuple[str, ...], IntArray] = {}

    def owners(self, axes: tuple[str, ...], sizes: tuple[int, ...]) -> IntArray:
        """Entity number at each coordinate of the space of ``axes``, -1 where no class owns it."""
        if axes not in self._owners:
            owner = np.full(sizes, -1, dtype=np.int64)
            for cls in self.graph.classes.values():
                if cls.axes == axes:
                    owner[tuple(cls.coordinates.T)] = self.first_entity[cls.name] + np.arange(cls.count)
            self._owners[axes] = owner
        return self._owners[axes]

    def target_entities(self, source: Template, ref: Ref) -> IntArray:
        """For each entity of the source's class the entity that ``ref`` leads to, -1 outside."""
        targets = self._target_entities(source, ref)
        if ref.cls is None:
            return targets
        first = self.first_entity[ref.cls]
        of_class = (targets >= first) & (targets < first + self.graph.classes[ref.cls].count)
        filtered: IntArray = np.where(of_class, targets, -1)
        return filtered

    def _target_entities(self, source: Template, ref: Ref) -> IntArray:
        cls = source.cls
        if ref.cls is not None:
            self._class(source, ref, ref.cls)
        if ref.onto is None and not ref.on:
            if ref.cls is None or ref.cls == cls.name:
                return self.first_entity[cls.name] + np.arange(cls.count)
            target = self._class(source, ref, ref.cls)
            if target.axes == cls.axes and target.axes:
                same: IntArray = self.owners(cls.axes, cls.sizes)[tuple(cls.coordinates.T)]
                return same
            if target.count == 1:
                return np.full(cls.count, self.first_entity[target.name])
            raise GraphError(
                f"task {source.task.name!r}: its reference to {ref.task!r} of class {ref.cls!r} must say which of the "
                f"{target.count} entities it means, with `on` or `onto`"
            )
        coordinates = {axis: cls.coordinates[:, i] for i, axis in enumerate(cls.axes)}
        axes, sizes, wraps = cls.axes, cls.sizes, cls.wraps
        if ref.onto is not None:
            coordinates = {axis: np.asarray(c) for axis, c in ref.onto(coordinates).items()}
            if ref.cls is not None:
                target = self._class(source, ref, ref.cls)
                axes, sizes, wraps = target.axes, target.sizes, target.wraps
            if set(coordinates) != set(axes):
                raise GraphError(
                    f"task {source.task.name!r}: its reference to {ref.task!r} gives coordinates "
                    f"{sorted(coordinates)}, the target has {sorted(axes)}"
                )
        for axis in ref.on:
            if axis not in axes:
                raise GraphError(
                    f"task {source.task.name!r}: its reference to {ref.task!r} uses an unknown axis {axis!r}, "
                    f"{nearest(axis, axes)}"
                )
        inside = np.ones(cls.count, dtype=bool)
        final = []
        for axis, size, wrap in zip(axes, sizes, wraps, strict=True):
            moved = np.broadcast_to(coordinates[axis], (cls.count,)) + ref.on.get(axis, 0)
            if wrap:
                moved = moved % size
            inside &= (moved >= 0) & (moved < size)
            final.append(np.clip(moved, 0, size - 1))
        if not axes:
            raise GraphError(f"task {source.task.name!r}: class {cls.name!r} has no mesh axes to offset along")
        owner = self.owners(axes, sizes)[tuple(final)]
        led_to: IntArray = np.where(inside, owner, -1)
        return led_to

    def _class(self, source: Template, ref: Ref, name: str) -> EntityClass:
        if name not in self.graph.classes:
            raise GraphError(
                f"task {source.task.name!r}: reference to an unknown class {name!r}, "
                f"{nearest(name, self.graph.classes)}"
            )
        return self.graph.classes[name]

    def resolve(self, source: Template, ref: Ref) -> tuple[IntArray, IntArray]:
        """All (source, target) pairs of pre-order numbers that ``ref`` stands for."""
        targets = self.target_entities(source, ref)
        self._check_name(source, ref)
        pairs: list[tuple[IntArray, IntArray]] = []
        numbers = {name: number for number, name in enumerate(self.graph.classes)}
        class_of = np.array([numbers[self.entities[e][0].name] if e >= 0 else -1 for e in targets.tolist()])
        missing: BoolArray = np.zeros(source.shape, dtype=bool) | (targets < 0)
        for name, number in numbers.items():
            here = class_of == number
            if not here.any():
                continue
            target = self.by_name.get((name, ref.task))
            if target is None:
                missing = missing | here
                continue
            rows, found, not_found = self._pairs(source, ref, target, targets, here)
            pairs.append((rows, found))
            missing = missing | not_found
        missing = missing & source.exists
        if ref.outside == "error" and missing.any():
            where = np.argwhere(missing)[0].tolist()
            names_of = [loop.name for loop in source.task.loops]
            at = ", ".join(f"{name}={index}" for name, index in zip(names_of, where, strict=False)) or "its only run"
            raise GraphError(
                f"task {source.task.name!r}: its reference to {ref.task!r} falls outside at {at}, entity {where[-1]}; "
                'say outside="ignore" if that is no dependency'
            )
        if not pairs:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        return np.concatenate([p[0] for p in pairs]), np.concatenate([p[1] for p in pairs])

    def _check_name(self, source: Template, ref: Ref) -> None:
        """A misspelt task is an error, also where a reference may fall outside."""
        if ref.cls is not None:
            possible = [ref.cls]
        elif ref.on or ref.onto is not None:
            possible = [cls.name for cls in self.graph.classes.values() if cls.axes == source.cls.axes]
        else:
            possible = [source.cls.name]
        if not any((name, ref.task) in self.by_name for name in possible):
            known = {task for name in possible for task in self.graph.classes[name].tasks}
            raise GraphError(
                f"task {source.task.name!r}: reference to an unknown task {ref.task!r}, {nearest(ref.task, known)}"
            )

    def _pairs(
        self, source: Template, ref: Ref, target: Template, targets: IntArray, here: BoolArray
    ) -> tuple[IntArray, IntArray, BoolArray]:
        shared = {loop.name for loop in source.task.loops} & {loop.name for loop in target.task.loops}
        loops = target.task.loops
        for name in ref.at:
            if name not in {loop.name for loop in loops}:
                raise GraphError(
                    f"task {source.task.name!r}: its reference to {ref.task!r} names the loop {name!r}, which is not "
                    f"around it, {nearest(name, (loop.name for loop in loops))}"
                )
        wide = [loop for loop in loops if ref.at.get(loop.name, 0 if loop.name in shared else ALL) is ALL]
        shape = (*source.shape, *(loop.count for loop in wide))
        extra = len(wide)

        def widen(array: npt.NDArray[np.int64] | int) -> IntArray:
            array = np.asarray(array, dtype=np.int64)
            return array.reshape(array.shape + (1,) * extra) if array.ndim else array

        valid: BoolArray = np.broadcast_to(widen(source.exists.astype(np.int64)).astype(bool), shape)
        valid = valid & np.broadcast_to(here.reshape((-1,) + (1,) * extra), shape)
        flat = np.zeros(shape, dtype=np.int64)
        for loop in loops:
            at = ref.at.get(loop.name, 0 if loop.name in shared else ALL)
            if at is ALL:
                position = len(source.shape) + wide.index(loop)
                index = np.arange(loop.count).reshape(
                    tuple(-1 if axis == position else 1 for axis in range(len(shape)))
                )
            elif callable(at):
                index = widen(at(source.iterations, source.coordinates))
            elif isinstance(at, int | np.integer):
                if loop.name in shared:
                    index = widen(source.iterations[loop.name] + at)
                else:
                    index = np.asarray(int(at) if at >= 0 else loop.count + int(at), dtype=np.int64)
            else:
                raise GraphError(
                    f"task {source.task.name!r}: its reference to {ref.task!r} has {at!r} for the loop {loop.name!r}; "
                    "an integer, ALL or a function is meant"
                )
            valid = valid & (index >= 0) & (index < loop.count)
            flat = flat * loop.count + np.clip(index, 0, max(loop.count - 1, 0))
        local = np.where(here, targets - target.first_entity, 0).reshape((-1,) + (1,) * extra)
        flat = flat * target.cls.count + local
        if target.size:
            valid = valid & target.exists.reshape(-1)[flat]
        else:
            valid = valid & False
        rows = np.broadcast_to(widen(np.arange(source.size, dtype=np.int64).reshape(source.shape)), shape)
        found = valid.any(axis=tuple(range(len(source.shape), len(shape)))) if extra else valid
        empty_loop = any(loop.count == 0 for loop in wide)
        missing = np.broadcast_to(here, source.shape) & ~found
        if empty_loop:
            missing = np.zeros_like(missing)
        return rows[valid] + source.base, flat[valid] + target.base, missing
