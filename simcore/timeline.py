"""The timeline: who held what, from when to when, as columns of numpy arrays with one entry a task instance.

Instances are numbered in key order (place in the unrolled program, then class, then chip). All times are integer
picoseconds. The timeline says what happened; what it means (bounds, exposure, memory) is computed by the modules that
read it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt

PS_PER_S = 10**12
IntColumn = npt.NDArray[np.int64]

INTERFACES = {
    "hbm_load": "hbm_read",
    "hbm_store": "hbm_write",
}
"""Task kinds whose bytes are counted under another name."""

COMPUTE_UNITS = ("mxu", "vpu")


class Released(IntEnum):
    """What let a task start, the last thing it had waited for."""

    NOTHING = 0
    DEPENDENCY = 1
    QUEUE = 2
    UNIT = 3
    BUFFER = 4


@dataclass(frozen=True, slots=True)
class Entity:
    """A chip, host, switch or slice: its class and its coordinates as (axis, index) pairs.

    ``alike`` are the (axis, size) pairs along which all do the same and this one stands for them.
    """

    cls: str
    kind: str
    coordinates: tuple[tuple[str, int], ...]
    alike: tuple[tuple[str, int], ...] = ()

    @property
    def multiplicity(self) -> int:
        """How many entities this one stands for, itself included."""
        return math.prod(size for _, size in self.alike)

    def each(self) -> Iterator[tuple[int, ...]]:
        """The coordinates of all that this one stands for."""
        sizes = dict(self.alike)
        return itertools.product(*(range(sizes[axis]) if axis in sizes else (at,) for axis, at in self.coordinates))

    @property
    def label(self) -> str:
        """``chip x=3``; the bare class name for a single entity."""
        return " ".join([self.cls, *(f"{axis}={index}" for axis, index in self.coordinates)])


@dataclass(frozen=True, slots=True)
class Lane:
    """One unit of one entity."""

    entity: int
    unit: str
    kind: str


@dataclass(frozen=True, slots=True)
class SlotTable:
    """Buffers held: slot ``slot[i]`` of pool ``pool[i]`` (an index into ``pools``) from its grant to its release."""

    pools: tuple[tuple[int, str, str, int, int], ...]
    """(entity, pool name, memory, buffers, buffer_bytes)"""
    pool: IntColumn
    slot: IntColumn
    taker: IntColumn
    granted_ps: IntColumn
    released_ps: IntColumn


@dataclass(frozen=True, slots=True)
class TensorTable:
    """Lives of tensors in accounted memories, one row a tensor and entity (and iteration of its scope)."""

    names: tuple[str, ...]
    memories: tuple[str, ...]
    tensor: IntColumn
    entity: IntColumn
    memory: IntColumn
    bytes: IntColumn
    born_ps: IntColumn
    died_ps: IntColumn


def _empty() -> IntColumn:
    return np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Columns of one run.

    ``task``, ``operation``, ``kind`` and ``moves`` index the tables of names; ``lane`` indexes `lanes` (-1: no unit);
    ``entity`` indexes `entities`; ``iteration`` is the index in the innermost loop that
    repeats (-1 outside loops); ``released_by`` is
    the row of the task whose completion or release let this one start (-1: nothing did) and ``released_how`` a
    `Released`. ``ready`` <= ``granted`` <= ``start`` <= ``end`` <= ``done``.
    """

    task_names: tuple[str, ...]
    operation_names: tuple[str, ...]
    kind_names: tuple[str, ...]
    moves_names: tuple[str, ...]
    entities: tuple[Entity, ...]
    lanes: tuple[Lane, ...]
    task: IntColumn
    operation: IntColumn
    layer: IntColumn
    iteration: IntColumn
    entity: IntColumn
    lane: IntColumn
    kind: IntColumn
    moves: IntColumn
    bytes: IntColumn
    flops: IntColumn
    ready_ps: IntColumn
    granted_ps: IntColumn
    start_ps: IntColumn
    end_ps: IntColumn
    done_ps: IntColumn
    released_by: IntColumn
    released_how: IntColumn
    work_ps: IntColumn = field(default_factory=_empty)
    """what each task's bare work takes at the data sheet's rate; bounds add it up"""
    slots: SlotTable = field(default_factory=lambda: SlotTable((), _empty(), _empty(), _empty(), _empty(), _empty()))
    tensors: TensorTable = field(
        default_factory=lambda: TensorTable((), (), _empty(), _empty(), _empty(), _empty(), _empty(), _empty())
    )

    def __len__(self) -> int:
        return len(self.task)

    @property
    def makespan_ps(self) -> int:
        """From 0 to the last completion."""
        return int(self.done_ps.max()) if len(self) else 0

    @property
    def makespan_s(self) -> float:
        return self.makespan_ps / PS_PER_S

    def rows_of_lane(self, lane: int) -> IntColumn:
        """Rows served by a lane, in order of start (zero-length services before the one they precede)."""
        rows = np.flatnonzero(self.lane == lane)
        return rows[np.lexsort((rows, self.end_ps[rows], self.start_ps[rows]))]

    def rows_of_kind(self, kind: str) -> IntColumn:
        if kind not in self.kind_names:
            return _empty()
        return np.flatnonzero(self.kind == self.kind_names.index(kind))

    def bytes_by_interface(self) -> dict[str, int]:
        """Bytes moved over each interface, all entities together: ``hbm_read``, ``hbm_write``, ``ici``, ..."""
        return {interface: sum(by.values()) for interface, by in self.bytes_by_tensor().items()}

    def bytes_by_tensor(self) -> dict[str, dict[str, int]]:
        """Bytes moved over each interface, by the tensor that they belong to, all entities together."""
        if not len(self):
            return {}
        shape = len(self.lanes) + 1, len(self.kind_names), len(self.moves_names)
        keys = np.ravel_multi_index((self.lane + 1, self.kind, self.moves), shape)
        present, inverse = np.unique(keys, return_inverse=True)
        sums = np.zeros(len(present), dtype=np.int64)
        weight = np.array([entity.multiplicity for entity in self.entities], dtype=np.int64)
        np.add.at(sums, inverse, self.bytes * weight[self.entity])
        moved: dict[str, dict[str, int]] = {}
        for key, total in zip(present.tolist(), sums.tolist(), strict=True):
            if total:
                lane, kind, moves = np.unravel_index(key, shape)
                label = self.moves_names[moves] or "other"
                by = moved.setdefault(self._interface(int(lane) - 1, self.kind_names[kind]), {})
                by[label] = by.get(label, 0) + total
        return moved

    def _interface(self, lane: int, kind: str) -> str:
        """What the bytes of a task of ``kind`` on a lane go over: the lane, whatever the task is called."""
        unit = self.lanes[lane].kind if lane >= 0 else kind
        if unit == "hbm":
            return INTERFACES.get(kind, "hbm_read")
        return kind if unit == "server" else unit

    def total_flops(self) -> int:
        """FLOPs of all matmuls, all entities together (vector operations are not in it)."""
        weight = np.array([entity.multiplicity for entity in self.entities], dtype=np.int64)
        return int((self.flops * weight[self.entity]).sum()) if len(self) else 0
