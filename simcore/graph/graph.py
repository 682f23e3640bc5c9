"""The task graph: what each class of entities does, as tasks on units, written once a class and with its loops kept.

Build one with `TaskGraph`:

>>> from simcore.graph import Fixed, TaskGraph, Take
>>> graph = TaskGraph("double buffering")
>>> chip = graph.entity_class("chip")
>>> chip.unit("hbm"), chip.unit("mxu")
('hbm', 'mxu')
>>> chip.pool("tiles", memory="vmem", buffers=2, buffer_bytes=1024)
'tiles'
>>> with chip.loop("tile", 8):
...     load = chip.task("load", unit="hbm", work=Fixed.of("50 us"), takes=[Take("tiles", freed_by=["compute"])])
...     compute = chip.task("compute", unit="mxu", work=Fixed.of("25 us"), after=[load])
>>> graph.task_count()
16
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from simcore.errors import GraphError, nearest
from simcore.graph.access import Access
from simcore.graph.reference import At, Indices, Ref
from simcore.graph.work import NOTHING, Work

UNIT_KINDS = ("hbm", "mxu", "vpu", "ici", "pcie", "dcn", "dcn_share", "nvlink", "network", "server")
"""Kinds that a chip gives a rate to; a "server" serves fixed work only."""

Guard: TypeAlias = Callable[[Indices, Indices], Any]
Values: TypeAlias = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Unit:
    """One server of an entity: it serves one task at a time, first come, first served."""

    name: str
    kind: str


@dataclass(frozen=True, slots=True)
class Pool:
    """``buffers`` buffers of ``buffer_bytes`` each in the blocking memory ``memory``; granted in program order."""

    name: str
    memory: str
    buffers: int
    buffer_bytes: int


@dataclass(frozen=True, slots=True)
class Tensor:
    """An array in an accounted memory of every entity of a class: ``shape`` and ``bytes`` are of one entity's part.

    A persistent tensor (weights, a cache) lives for the whole run; any other is born at the start of the first task
    that writes it and dies at the completion of the last that touches it. With ``scope``, the loops it is declared in,
    there is one for each of their iterations; of a tensor with one such loop, ``also`` are further loops that go
    through the same ones: (name, whether the last comes first).
    """

    name: str
    memory: str
    bytes: int
    shape: tuple[int, ...] = ()
    persistent: bool = False
    scope: tuple[str, ...] = ()
    also: tuple[tuple[str, bool], ...] = ()

    def scope_of(self, at: Mapping[str, Any], counts: Mapping[str, int]) -> Any:
        """Which of the arrays iterations ``at`` (numbers, or arrays of them) of loops mean; None where they say none.

        ``counts`` are those of all loops.
        """
        if all(name in at for name in self.scope):
            found: Any = 0
            for name in self.scope:
                found = found * counts[name] + at[name]
            return found
        for name, backwards in self.also:
            if name in at:
                return counts[name] - 1 - at[name] if backwards else at[name]
        return None


@dataclass(frozen=True, slots=True)
class Take:
    """A buffer of ``pool``, freed when the taker and all the tasks in ``freed_by`` have completed.

    ``freed_by=None`` holds the buffer to the end of the run.
    """

    pool: str
    freed_by: Sequence[Reference] | None


@dataclass(eq=False, slots=True)
class Loop:
    """A repetition of ``count`` times; its name is unique within the class.

    ``layers`` is how many layers of a model one iteration goes through, negative where from the last to the first; 0
    where the loop is over something else.
    """

    name: str
    count: int
    body: list[Loop | Task] = field(default_factory=list)
    layers: int = 0


@dataclass(eq=False, slots=True)
class Task:
    """A task template; see `EntityClass.task`."""

    name: str
    cls: str
    loops: tuple[Loop, ...]
    queue: str | None
    unit: str | None
    work: Work
    kind: str
    operation: str
    layer: int
    moves: str
    issue_ps: int | None
    latency_ps: int | None
    after: tuple[Ref, ...]
    takes: tuple[tuple[str, tuple[Ref, ...] | None], ...]
    reads: tuple[Access, ...]
    writes: tuple[Access, ...]
    function: Values | None
    when: Guard | None
    overhead: bool

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(loop.count for loop in self.loops)

    def ref(self, *, on: Mapping[str, int] | None = None, outside: Any = "error", **at: At) -> Ref:
        """A reference to this task's completion: ``load.ref(tile=-1, outside="ignore")``."""
        return Ref(self.name, at=at, on=on or {}, cls=None if on else self.cls, outside=outside)


Reference: TypeAlias = Ref | Task | str


def _as_ref(reference: Reference) -> Ref:
    if isinstance(reference, Task):
        return reference.ref()
    return Ref(reference) if isinstance(reference, str) else reference


@dataclass(eq=False)
class EntityClass:
    """Entities (chips, hosts, switches, slices) that do the same: their coordinates, units, pools and program.

    ``coordinates`` is an integer array [entities, axes]; ``wraps`` says for each axis whether a chip offset past the
    end comes in again at the other.
    """

    name: str
    kind: str
    axes: tuple[str, ...]
    sizes: tuple[int, ...]
    wraps: tuple[bool, ...]
    coordinates: npt.NDArray[np.int64]
    units: dict[str, Unit] = field(default_factory=dict)
    pools: dict[str, Pool] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    tasks: dict[str, Task] = field(default_factory=dict)
    loops: dict[str, Loop] = field(default_factory=dict)
    body: list[Loop | Task] = field(default_factory=list)
    _stack: list[Loop] = field(default_factory=list)
    _operation: list[tuple[str, int]] = field(default_factory=list)

    @property
    def count(self) -> int:
        return len(self.coordinates)

    def unit(self, name: str, kind: str | None = None) -> str:
        """Declare a unit; its kind is by default its name up to the first ``_`` (``ici_x+`` is of kind ``ici``).

        Declaring the same unit again is harmless. Returns the name.
        """
        kind = kind or name.split("_")[0]
        if kind not in UNIT_KINDS:
            raise GraphError(f"unit {name!r}: unknown kind {kind!r}, {nearest(kind, UNIT_KINDS)}")
        unit = Unit(name, kind)
        if self.units.setdefault(name, unit) != unit:
            raise GraphError(f"unit {name!r} of class {self.name!r} is already declared with another kind")
        return name

    def pool(self, name: str, *, memory: str, buffers: int, buffer_bytes: int) -> str:
        """Declare a pool of equal buffers; returns its name."""
        if buffers < 1 or buffer_bytes < 0:
            raise GraphError(
                f"pool {name!r}: needs at least 1 buffer of 0 or more bytes, not {buffers} of {buffer_bytes}"
            )
        if name in self.pools:
            raise GraphError(f"pool {name!r} of class {self.name!r} is already declared")
        self.pools[name] = Pool(name, memory, buffers, buffer_bytes)
        return name

    def tensor(
        self,
        name: str,
        *,
        bytes: int,
        memory: str = "hbm",
        shape: tuple[int, ...] = (),
        persistent: bool = False,
        scope: Sequence[str] = (),
        also: Sequence[tuple[str, bool]] = (),
    ) -> str:
        """Declare an array in an accounted memory; returns its name. See `Tensor`."""
        if name in self.tensors:
            raise GraphError(f"tensor {name!r} of class {self.name!r} is already declared")
        if bytes < 0:
            raise GraphError(f"tensor {name!r}: {bytes} bytes; a size is 0 or more")
        self.tensors[name] = Tensor(name, memory, bytes, shape, persistent, tuple(scope), tuple(also))
        return name

    @contextmanager
    def loop(self, name: str, count: int, *, layers: int = 0) -> Iterator[Loop]:
        """The tasks made inside repeat ``count`` times; ``layers`` as in `Loop`."""
        if not isinstance(count, int | np.integer) or count < 0:
            raise GraphError(f"loop {name!r}: {count} iterations; a count is a whole number, 0 or more")
        if name in self.loops:
            raise GraphError(f"loop {name!r} of class {self.name!r} is already used; give each loop its own name")
        loop = Loop(name, int(count), layers=layers)
        self.loops[name] = loop
        self._append(loop)
        self._stack.append(loop)
        try:
            yield loop
        finally:
            self._stack.pop()

    @contextmanager
    def operation(self, name: str, layer: int = -1) -> Iterator[None]:
        """The tasks made inside belong to the operation ``name`` (and to ``layer``, if no loop "layer" says it)."""
        self._operation.append((name, layer))
        try:
            yield
        finally:
            self._operation.pop()

    def task(
        self,
        name: str,
        *,
        unit: str | None = None,
        queue: str | None = None,
        work: Work = NOTHING,
        kind: str = "",
        moves: str = "",
        issue_ps: int | None = None,
        latency_ps: int | None = None,
        after: Sequence[Reference] = (),
        takes: Sequence[Take] = (),
        reads: Sequence[Access] = (),
        writes: Sequence[Access] = (),
        function: Values | None = None,
        when: Guard | None = None,
        overhead: bool = False,
    ) -> Task:
        """Append a task to the program.

        Parameters
        ----------
        unit : the server it occupies while served; None occupies nothing.
        queue : its in-order queue, by default the unit's name; a task of neither starts as soon as it may.
        work : amounts; the unit turns them into service time.
        kind : what the pictures and sums call it: "matmul", "vector", "hbm_load", "hbm_store", "ici", "pcie", "dcn"
            or a word of your own; by default from the unit's kind.
        moves : the tensor whose bytes it moves, for the bytes by tensor.
        issue_ps, latency_ps : cost of issuing, added to the service, and flight time after it; None takes the unit's.
        after : tasks it waits for.
        takes : buffers it needs before it asks for its unit.
        reads, writes, function : accesses and what is done on values: ``function(*reads) -> tuple of arrays``, one for
            each write (a single array for a single write).
        when : guard ``(iterations, coordinates) -> bool``; where false there is no such task.
        overhead : work that the ideal model does without (a collective's reduction on the VPU): there it takes no unit
            and no time.

        Raises `GraphError` on a duplicate name or an undeclared unit or pool.
        """
        if name in self.tasks:
            raise GraphError(f"task {name!r} of class {self.name!r} is already declared")
        if unit is not None and unit not in self.units:
            raise GraphError(f"task {name!r}: unknown unit {unit!r}, {nearest(unit, self.units)}")
        for what, references in [("after", after), *(("freed_by", take.freed_by) for take in takes)]:
            if isinstance(references, str | Ref | Task):
                raise GraphError(f"task {name!r}: {what} is a list of references, not one of them")
        for take in takes:
            if take.pool not in self.pools:
                raise GraphError(f"task {name!r}: unknown pool {take.pool!r}, {nearest(take.pool, self.pools)}")
        operation, layer = self._operation[-1] if self._operation else (name, -1)
        task = Task(
            name=name,
            cls=self.name,
            loops=tuple(self._stack),
            queue=queue if queue is not None else unit,
            unit=unit,
            work=work,
            kind=kind or default_kind(self.units[unit].kind if unit else "wait"),
            operation=operation,
            layer=layer,
            moves=moves,
            issue_ps=issue_ps,
            latency_ps=latency_ps,
            after=tuple(_as_ref(reference) for reference in after),
            takes=tuple(
                (take.pool, None if take.freed_by is None else tuple(_as_ref(r) for r in take.freed_by))
                for take in takes
            ),
            reads=tuple(reads),
            writes=tuple(writes),
            function=function,
            when=when,
            overhead=overhead,
        )
        self.tasks[name] = task
        self._append(task)
        return task

    def _append(self, node: Loop | Task) -> None:
        (self._stack[-1].body if self._stack else self.body).append(node)


def default_kind(unit_kind: str) -> str:
    """What the tasks of a kind of unit are called unless they say it: ``matmul`` for the MXU's."""
    return {"mxu": "matmul", "vpu": "vector", "hbm": "hbm_load", "dcn_share": "dcn"}.get(unit_kind, unit_kind)


@dataclass(eq=False)
class TaskGraph:
    """Classes of entities and their programs. Memories' capacities are the chip's, checked when it is known."""

    name: str
    classes: dict[str, EntityClass] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    phases: dict[str, str] = field(default_factory=dict)
    """operation -> what it is a part of, such as "backward"; see `simcore.phases`"""

    def entity_class(
        self,
        name: str,
        *,
        kind: str = "chip",
        mesh: Mapping[str, int] | None = None,
        wraps: bool | Mapping[str, bool] = True,
        only: Sequence[Sequence[int]] | None = None,
    ) -> EntityClass:
        """Declare a class of entities: all the coordinates of ``mesh`` (axis -> size), or those listed in ``only``.

        Classes over the same axes share one space of coordinates, so that a chip offset may lead from one class into
        another; no two classes may own the same coordinates.
        """
        mesh = dict(mesh or {})
        if name in self.classes:
            raise GraphError(f"class {name!r} is already declared")
        for axis, size in mesh.items():
            if size < 1:
                raise GraphError(f"class {name!r}: axis {axis!r} of {size}; a size is 1 or more")
        axes, sizes = tuple(mesh), tuple(mesh.values())
        for axis in () if isinstance(wraps, bool) else wraps:
            if axis not in mesh:
                raise GraphError(f"class {name!r}: wraps names an unknown axis {axis!r}, {nearest(axis, mesh)}")
        wrap = tuple(wraps if isinstance(wraps, bool) else wraps.get(axis, True) for axis in axes)
        if only is not None:
            coordinates = np.array(only, dtype=np.int64).reshape(-1, len(axes))
            if ((coordinates < 0) | (coordinates >= np.array(sizes, dtype=np.int64))).any():
                raise GraphError(f"class {name!r}: coordinates outside the mesh {mesh}")
            if len({tuple(at) for at in coordinates.tolist()}) < len(coordinates):
                raise GraphError(f"class {name!r}: coordinates are listed twice")
        else:
            coordinates = np.stack(
                [axis.ravel() for axis in np.indices(sizes)] or [np.zeros(1, dtype=np.int64)], axis=-1
            ).astype(np.int64)[:, : len(axes)]
        for other in self.classes.values():
            if axes and other.axes == axes:
                if other.sizes != sizes or other.wraps != wrap:
                    raise GraphError(f"classes {other.name!r} and {name!r} give the axes {axes} other sizes or wraps")
                if set(map(tuple, other.coordinates.tolist())) & set(map(tuple, coordinates.tolist())):
                    raise GraphError(f"classes {other.name!r} and {name!r} own the same coordinates")
        made = EntityClass(name, kind, axes, sizes, wrap, coordinates)
        self.classes[name] = made
        return made

    def task_count(self) -> int:
        """Tasks in the unrolled graph, guards not applied."""
        return sum(math.prod(task.counts) * cls.count for cls in self.classes.values() for task in cls.tasks.values())
