"""Which storage each access of each instance touches: a region of a tensor on an entity, or a taken buffer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from simcore.errors import GraphError
from simcore.graph.access import Access, BufferAccess, Region, TensorAccess
from simcore.graph.flat import FlatGraph
from simcore.graph.graph import Task


@dataclass(frozen=True, slots=True)
class Place:
    """Storage of one access: a tensor's region on an entity (``take`` is -1), or the buffer of a take.

    ``scope`` is the iteration, among all those of the loops that a tensor is declared in, whose array is meant;
    ``view`` the shape in which ``region`` sees it, where that is not its own.
    """

    entity: int
    tensor: str
    take: int
    region: Region | None
    scope: int = 0
    view: tuple[int, ...] = ()


class AccessTable:
    """Resolves the accesses of a flat graph's instances."""

    def __init__(self, flat: FlatGraph) -> None:
        self.flat = flat
        self._takers: dict[tuple[str, str, int, bool], dict[int, int]] = {}

    def reads(self, instance: int) -> list[Place]:
        task = self._task(instance)
        return [self._place(instance, task, n, access, False) for n, access in enumerate(task.reads)]

    def writes(self, instance: int) -> list[Place]:
        task = self._task(instance)
        return [self._place(instance, task, n, access, True) for n, access in enumerate(task.writes)]

    def accesses(self, instance: int) -> Iterator[tuple[Place, bool]]:
        """(place, is a write) of every access."""
        yield from ((place, False) for place in self.reads(instance))
        yield from ((place, True) for place in self.writes(instance))

    def _task(self, instance: int) -> Task:
        return self.flat.templates[int(self.flat.template[instance])]

    def _place(self, instance: int, task: Task, number: int, access: Access, write: bool) -> Place:
        flat = self.flat
        region = (
            access.region(flat.indices(instance), flat.coordinates(instance)) if access.region is not None else None
        )
        if isinstance(access, TensorAccess):
            entity = flat.neighbour(int(flat.entity[instance]), access.on)
            if entity < 0:
                raise GraphError(f"{flat.label(instance)} accesses {access.tensor!r} of a chip outside the mesh")
            if access.tensor not in flat.entities[entity][0].tensors:
                raise GraphError(f"{flat.label(instance)} accesses the undeclared tensor {access.tensor!r}")
            scope = self._scope(instance, entity, access.tensor)
            return Place(entity, access.tensor, -1, region, scope, access.view)
        taker = instance
        if access.taker is not None:
            key = (task.cls, task.name, number, write)
            if key not in self._takers:
                rows, targets = flat.resolve(task, access.taker)
                self._takers[key] = dict(zip(rows.tolist(), targets.tolist(), strict=True))
            if instance not in self._takers[key]:
                raise GraphError(f"{flat.label(instance)} accesses a buffer of {access.pool!r} that nothing took")
            taker = self._takers[key][instance]
        return Place(int(flat.entity[taker]), access.pool, self._take(taker, access), region)

    def _scope(self, instance: int, entity: int, tensor: str) -> int:
        cls = self.flat.entities[entity][0]
        declared = cls.tensors[tensor]
        if not declared.scope:
            return 0
        counts = {name: loop.count for name, loop in cls.loops.items()}
        scope = declared.scope_of(self.flat.indices(instance), counts)
        if scope is None:
            raise GraphError(
                f"{self.flat.label(instance)} accesses {tensor!r}, of which there is one for each iteration of "
                f"{', '.join(map(repr, declared.scope))}, from outside that loop"
            )
        return int(scope)

    def _take(self, taker: int, access: BufferAccess) -> int:
        for take in self.flat.takes.row(taker).tolist():
            if self.flat.pools[int(self.flat.take_pool[take])].pool.name == access.pool:
                return int(take)
        raise GraphError(f"{self.flat.label(taker)} takes no buffer of pool {access.pool!r}")


def overlap(a: Place, b: Place) -> bool:
    """Whether two places in one array may have an element in common; seen in different shapes they always may."""
    if a.region is None or b.region is None or a.view != b.view:
        return True
    return all(max(x.start, y.start) < min(x.stop, y.stop) for x, y in zip(a.region, b.region, strict=True))
