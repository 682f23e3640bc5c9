"""Lowering of writes into a cache: the new positions of each request, in blocks."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from simcore.dtypes import bytes_of
from simcore.errors import GraphError
from simcore.graph import BufferAccess, Ref, Take, TensorAccess, Transfer, WithIndices
from simcore.graph.access import Access, Region, RegionFunction
from simcore.graph.reference import Indices
from simcore.graph.work import IntArray
from simcore.lowering.matmul import LOAD_QUEUE, STORE_QUEUE
from simcore.lowering.program import Program, of_local_requests
from simcore.lowering.rows import ROWS_OUT, RowBlocks
from simcore.lowering.spans import ring_slices
from simcore.opgraph.operations import Append


def lower_append(program: Program, operation: Append) -> None:
    """Store the new positions into the cache, request by request; from HBM they are loaded first.

    A cache that is shorter than the new positions keeps the last of them.
    """
    _Lowering(program, operation).emit()


class _Lowering:
    def __init__(self, program: Program, operation: Append) -> None:
        self.program, self.name = program, operation.name
        rows, self.columns = program.rows_columns(operation.source)
        self.requests, self.length = operation.cache.layout.local_shape(program.ops.sizes, program.ops.mesh)[:2]
        self.operation = replace(operation, at=of_local_requests(self.name, operation.at, self.requests))
        self.new = rows // self.requests
        self.kept = min(self.new, self.length)
        mesh = program.ops.mesh
        self.stripes = [(axis, mesh.axis_size((axis,))) for axis in operation.stripes]
        self.n = math.prod(size for _, size in self.stripes)
        if self.n > 1 and self.new > 1 and any(self.operation.at):
            raise GraphError(f"{self.name}: positions that are dealt out are appended one by one, or to empty caches")
        streamed = not program.is_resident(operation.source)
        row_bytes = bytes_of(self.columns, operation.source.dtype)
        self.blocks = RowBlocks(program, self.name, self.kept, row_bytes, streamed)
        self.request = f"{self.name}.request"
        self.streamed = streamed

    def _bytes(self, dtype: str) -> IntArray:
        return self.blocks.sizes() * bytes_of(self.columns, dtype)

    def _part(self, i: Indices) -> tuple[int, int]:
        """First and number of a block's rows among the new positions."""
        begin = int(i[self.blocks.loop]) * self.blocks.block
        return self.new - self.kept + begin, min(self.blocks.block, self.kept - begin)

    def _mine(self, i: Indices, _: Indices) -> Region:
        first, count = self._part(i)
        row = int(i[self.request]) * self.new + first
        return (slice(row, row + count), slice(0, self.columns))

    def _slots(self, i: Indices, c: Indices) -> tuple[slice, slice]:
        first, count = self._part(i)
        at, mine = self.operation.at[int(i[self.request])], 0
        for axis, size in self.stripes:
            mine = mine * size + int(c[axis])
        # The first place whose position is not before the new one.
        place = -(-(at - mine) // self.n) if at > mine else 0
        return ring_slices(place + first, count, self.length)

    def _there(self, number: int) -> RegionFunction:
        def region(i: Indices, c: Indices) -> Region:
            request = int(i[self.request])
            lead = self.program.lead(self.operation.cache, i)
            return (*lead, slice(request, request + 1), self._slots(i, c)[number], slice(0, self.columns))

        return region

    def _cut(self, i: Indices, c: Indices, rows: Any) -> Any:
        """The rows up to the end of the cache, and those that go on at its start."""
        rows = np.asarray(rows).reshape(-1, self.columns)
        first, _second = self._slots(i, c)
        cut = first.stop - first.start
        return rows[:cut], rows[cut:]

    def emit(self) -> None:
        program, cls, name = self.program, self.program.cls, self.name
        source, cache = self.operation.source, self.operation.cache
        cls.unit("hbm")
        two = -(-max(self.operation.at) // self.n) + self.new > self.length
        with cls.loop(self.request, self.requests), cls.loop(self.blocks.loop, self.blocks.count):
            reads: list[Access] = [TensorAccess(source.name, self._mine)]
            after = program.after(source)
            if self.streamed:
                size = self._bytes(source.dtype)
                pool = program.pool(ROWS_OUT, int(size.max()))
                load = cls.task(
                    f"{name}.load",
                    unit="hbm",
                    queue=LOAD_QUEUE,
                    work=Transfer(size),
                    kind="hbm_load",
                    moves=source.name,
                    after=after,
                    takes=[Take(pool, freed_by=[Ref(f"{name}.store")])],
                    reads=reads,
                    writes=[BufferAccess(pool)],
                    function=_same,
                )
                reads, after = [BufferAccess(pool, load.ref())], [load]
            store = cls.task(
                f"{name}.store",
                unit="hbm",
                queue=STORE_QUEUE,
                work=Transfer(self._bytes(cache.dtype)),
                kind="hbm_store",
                moves=cache.name,
                after=[*after, *program.after_readers(cache)],
                reads=reads,
                writes=[TensorAccess(cache.name, self._there(number)) for number in range(1 + two)],
                function=WithIndices(self._cut) if two else _same,
            )
        cls.task(f"{name}.end", after=[Ref(store.name)], kind="sync")


def _same(rows: Any) -> Any:
    return rows
