"""Which elements the steps of a collective carry: of one shard or of a block of them, halved, cut in parts or chunks.

The shards of a collective over several axes are numbered row-major over these axes: with x and y, shard x n_y + y.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from simcore.collectives.tensor import RingTensor
from simcore.collectives.ways import Index, Way
from simcore.graph.access import RegionFunction
from simcore.graph.flat import IntArray
from simcore.graph.reference import Indices


@dataclass(frozen=True)
class Leg:
    """A collective's way along one axis: what moves there, and in which directions.

    ``grid`` are the axes of the collective with their sizes; a step along ``axis`` carries all shards with one index
    there, every index along the axes in ``free`` and the chip's own along the rest. Of each shard it is part
    ``part[0]`` of ``part[1]``. ``chunks`` are the pieces in which it is sent.
    """

    grid: Mapping[str, int]
    axis: str
    ways: Sequence[Way]
    free: tuple[str, ...] = ()
    part: tuple[int, int] = (0, 1)
    chunks: int = 1

    @property
    def steps(self) -> int:
        return max(way.steps for way in self.ways)


@dataclass
class Blocks:
    """The pieces of shards of ``size`` elements that each (step, chunk) of one direction of a leg carries.

    ``halved_step`` is the step in which a direction whose antipodal shard is halved carries its half.
    """

    tensor: RingTensor
    leg: Leg
    way: Way
    size: int
    step: str
    chunk: str
    halved_step: int
    first: IntArray = field(init=False)
    last: IntArray = field(init=False)

    def __post_init__(self) -> None:
        leg, way = self.leg, self.way
        number, of = leg.part
        begin, end = self.size * number // of, self.size * (number + 1) // of
        first = np.full(way.steps, begin, dtype=np.int64)
        last = np.full(way.steps, end, dtype=np.int64)
        if way.halved and way.steps:
            half = begin - (begin - end) // 2  # rounded up
            if way.sign > 0:
                last[self.halved_step] = half
            else:
                first[self.halved_step] = half
        cuts = np.arange(leg.chunks + 1, dtype=np.int64)
        # A half is cut where the whole part is, so that each chunk holds nothing that came with another.
        edges = np.clip(begin + (end - begin) * cuts // leg.chunks, first[:, None], last[:, None])
        self.first, self.last = edges[:, :-1], edges[:, 1:]
        starts = np.cumsum([0, *self.tensor.sizes(int(np.prod(list(leg.grid.values()))))])
        self._starts: list[int] = starts.tolist()
        self._begin, largest = begin, self.tensor.shard_elements
        self._room = largest * (number + 1) // of - largest * number // of
        self._lead = tuple(slice(0, size) for size in self.tensor.lead)
        self._combinations = list(itertools.product(*(range(leg.grid[axis]) for axis in leg.free)))

    @property
    def elements(self) -> IntArray:
        """Elements of each (step, chunk), of the last dimension."""
        return (self.last - self.first) * len(self._combinations)

    @property
    def bytes(self) -> IntArray:
        return self.elements * self.tensor.element_bytes

    @property
    def room(self) -> int:
        """Elements of an inbox's slot: of a block of the largest shards' parts."""
        return self._room * len(self._combinations)

    def of_array(self, index: Index) -> list[RegionFunction]:
        """Where the block with ``index`` along the axis lies in the array, one region for each of its shards."""

        def made(combination: tuple[int, ...]) -> RegionFunction:
            def region(i: Indices, c: Indices) -> tuple[slice, ...]:
                at = {**c, **dict(zip(self.leg.free, combination, strict=True)), self.leg.axis: index(i, c)}
                shard = 0
                for axis, size in self.leg.grid.items():
                    shard = shard * size + int(at[axis])
                return self._slices(i, self._starts[shard])

            return region

        return [made(combination) for combination in self._combinations]

    def of_inbox(self, slot: Index) -> list[RegionFunction]:
        """Where the block lies in an inbox whose slots hold a block each."""

        def made(number: int) -> RegionFunction:
            def region(i: Indices, c: Indices) -> tuple[slice, ...]:
                return self._slices(i, int(slot(i, c)) * self.room + number * self._room - self._begin)

            return region

        return [made(number) for number in range(len(self._combinations))]

    def _slices(self, i: Indices, base: int) -> tuple[slice, ...]:
        where = i[self.step], i[self.chunk]
        return (*self._lead, slice(base + int(self.first[where]), base + int(self.last[where])))


def distinct_sizes(tensor: RingTensor, n: int) -> list[int]:
    """The different sizes of shards, the largest first; each has transfers of its own, as work can't vary by chip."""
    return sorted(set(tensor.sizes(n)), reverse=True)
