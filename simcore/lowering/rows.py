"""Lowering of operations that go row by row: elementwise work, lookups, copies of rows.

Tensors in VMEM are worked on where they are, all rows at once. Rows that are in HBM are streamed in blocks: load,
work, store, through pools of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from simcore.dtypes import bytes_of
from simcore.graph import BufferAccess, Ref, Take, Task, TensorAccess, Transfer, Vector, WithIndices
from simcore.graph.access import Access, Region, RegionFunction
from simcore.graph.graph import Reference
from simcore.graph.reference import Indices
from simcore.graph.work import IntArray
from simcore.lowering.matmul import LOAD_QUEUE, STORE_QUEUE
from simcore.lowering.program import ROWS_SHARE, VECTORS, Program, local_bytes
from simcore.opgraph.operations import Elementwise, Lookup, TakeLast
from simcore.opgraph.tensor import ShardedTensor

ROWS_IN, ROWS_OUT = "row tiles in", "row tiles out"


class RowBlocks:
    """Rows in blocks: a loop ``name`` over them, ragged at the end; one block where nothing is streamed."""

    def __init__(self, program: Program, name: str, rows: int, row_bytes: int, streamed: bool) -> None:
        most = max(program.tile_share(ROWS_SHARE) // max(row_bytes, 1), 1)
        self.rows, self.loop = rows, f"{name}.rows"
        self.block = min(rows, most) if streamed else rows
        self.count = -(-rows // self.block)

    def sizes(self) -> IntArray:
        """Rows of each block."""
        begins = np.arange(self.count, dtype=np.int64) * self.block
        return np.minimum(begins + self.block, self.rows) - begins

    def region(self, columns: int) -> RegionFunction:
        def region(i: Indices, _: Indices) -> Region:
            begin = int(i[self.loop]) * self.block
            return (slice(begin, min(begin + self.block, self.rows)), slice(0, columns))

        return region


def lower_elementwise(program: Program, operation: Elementwise) -> None:
    """One task on the vector unit for each block of rows, and the loads and stores of tensors that are in HBM."""
    cls, name, out = program.cls, operation.name, operation.out
    rows, columns = program.rows_columns(out)
    row_bytes = max(bytes_of(program.rows_columns(t)[1], t.dtype) for t in (*operation.inputs, out))
    stores = not program.is_resident(out)
    streamed = stores or not all(program.is_resident(tensor) for tensor in operation.inputs)
    blocks = RowBlocks(program, name, rows, row_bytes, streamed)
    cls.unit("vpu")
    vectors = [load_vector(program, name, vector) for vector in operation.vectors]
    work_task = f"{name}.work"
    with cls.loop(blocks.loop, blocks.count):
        reads, after, moved = stream_rows(program, name, blocks, operation.inputs, work_task)
        after += [*vectors, *program.after_readers(out)]
        out_tile = blocks.sizes() * bytes_of(columns, out.dtype)
        out_pool = program.pool(ROWS_OUT, int(out_tile.max())) if stores else ""
        reads += [BufferAccess(VECTORS, vector) for vector in vectors]
        whole = TensorAccess(out.name, blocks.region(columns))
        work = cls.task(
            work_task,
            unit="vpu",
            work=Vector(operations_of(blocks.sizes() * columns, operation.operations_per_element), moved + out_tile),
            after=after,
            takes=[Take(out_pool, freed_by=[Ref(f"{name}.store")])] if stores else [],
            reads=reads,
            writes=[BufferAccess(out_pool) if stores else whole],
            function=_of_part(program, operation),
        )
        last = work
        if stores:
            last = store_rows(program, name, work, out_pool, out, whole, out_tile)
    cls.task(f"{name}.end", after=[Ref(last.name)], kind="sync")


def stream_rows(
    program: Program, name: str, blocks: RowBlocks, tensors: Sequence[ShardedTensor], reader: str
) -> tuple[list[Access], list[Reference], IntArray]:
    """How ``reader`` reads a block of rows of each tensor, what it waits for, and the bytes; loads those in HBM."""
    cls = program.cls
    reads: list[Access] = []
    after: list[Reference] = []
    moved: IntArray = np.zeros(blocks.count, dtype=np.int64)
    buffers = max(2 * program.options.buffers, sum(not program.is_resident(tensor) for tensor in tensors))
    for number, tensor in enumerate(tensors):
        width = program.rows_columns(tensor)[1]
        tile = blocks.sizes() * bytes_of(width, tensor.dtype)
        moved = moved + tile
        if program.is_resident(tensor):
            reads.append(TensorAccess(tensor.name, blocks.region(width)))
            after += program.after(tensor)
            continue
        cls.unit("hbm")
        pool = program.pool(ROWS_IN, int(tile.max()), buffers=buffers)
        load = cls.task(
            f"{name}.load {number}",
            unit="hbm",
            queue=LOAD_QUEUE,
            work=Transfer(tile),
            kind="hbm_load",
            moves=tensor.name,
            after=program.after(tensor),
            takes=[Take(pool, freed_by=[Ref(reader)])],
            reads=[TensorAccess(tensor.name, blocks.region(width))],
            writes=[BufferAccess(pool)],
            function=_same,
        )
        after.append(load)
        reads.append(BufferAccess(pool, load.ref()))
    return reads, after, moved


def _of_part(program: Program, operation: Elementwise) -> Callable[..., Any] | WithIndices:
    """The function, told the chip's number along the axes that it asks for."""
    axes, mesh = operation.part_of, program.ops.mesh
    if axes is None:
        return operation.function

    def function(_: Indices, c: Indices, *rows: Any) -> Any:
        where = tuple(int(c[axis]) for axis in mesh.names)
        return operation.function(mesh.position(where, axes), *rows)

    return WithIndices(function)


def operations_of(elements: IntArray, per_element: float) -> IntArray:
    rounded: IntArray = np.ceil(elements * per_element).astype(np.int64)
    return rounded


def load_vector(program: Program, name: str, vector: ShardedTensor) -> Ref:
    """Load a weight of one row, such as a norm's scale."""
    cls, size = program.cls, local_bytes(program.ops, vector)
    columns = math.prod(program.rows_columns(vector))
    pool = program.pool(VECTORS, size)
    cls.unit("hbm")

    def region(i: Indices, _: Indices) -> Region:
        return (*program.lead(vector, i), slice(0, columns))

    load = cls.task(
        f"{name}.load {vector.name}",
        unit="hbm",
        queue=LOAD_QUEUE,
        work=Transfer(size),
        kind="hbm_load",
        moves=vector.name,
        after=program.after(vector),
        takes=[Take(pool, freed_by=[Ref(f"{name}.work")])],
        reads=[TensorAccess(vector.name, region)],
        writes=[BufferAccess(pool)],
        function=_flat,
    )
    return Ref(load.name)


def lower_lookup(program: Program, operation: Lookup) -> None:
    """Gather the tokens' rows from HBM.

    A table that is split over its rows holds each token's row on one chip only: on average each chip reads 1 / ways
    of them, which is what is counted.
    """
    mesh, axes = program.ops.mesh, operation.table.layout.dims[0].axes
    rows, columns = program.rows_columns(operation.out)
    held = program.ops.sizes[operation.table.dim_names[0]] // mesh.axis_size(axes)

    def rows_of(_: Indices, coordinates: Indices, table: Any, tokens: Any) -> Any:
        where = tuple(int(coordinates[axis]) for axis in mesh.names)
        index = np.asarray(tokens).reshape(-1).astype(int) - mesh.position(where, axes) * held
        here = (index >= 0) & (index < held)
        return np.where(here[:, None], table[np.where(here, index, 0)], 0.0)

    row_bytes = bytes_of(columns, operation.table.dtype)
    blocks = RowBlocks(program, operation.name, rows, row_bytes, not program.is_resident(operation.out))
    ways = mesh.axis_size(axes)
    copy_rows(
        program,
        operation.name,
        blocks,
        sources=[operation.table, operation.tokens],
        reads=[TensorAccess(operation.table.name), TensorAccess(operation.tokens.name, blocks.region(1))],
        out=operation.out,
        function=WithIndices(rows_of),
        load_bytes=-(-blocks.sizes() // ways) * row_bytes,
        moves=f"{operation.table.name} rows",
    )


def lower_take_last(program: Program, operation: TakeLast) -> None:
    """Copy the last position's row of every request; within VMEM that takes no time."""
    rows, columns = program.rows_columns(operation.out)
    positions = program.rows_columns(operation.source)[0] // rows

    def last(source: Any) -> Any:
        return source[positions - 1 :: positions]

    row_bytes = bytes_of(columns, operation.out.dtype)
    blocks = RowBlocks(program, operation.name, rows, row_bytes, streamed=False)
    copy_rows(
        program,
        operation.name,
        blocks,
        sources=[operation.source],
        reads=[TensorAccess(operation.source.name)],
        out=operation.out,
        function=last,
        load_bytes=blocks.sizes() * row_bytes * (not program.is_resident(operation.source)),
        moves=operation.source.name,
    )


def copy_rows(
    program: Program,
    name: str,
    blocks: RowBlocks,
    *,
    sources: list[ShardedTensor],
    reads: list[Access],
    out: ShardedTensor,
    function: Callable[..., Any] | WithIndices,
    load_bytes: IntArray,
    moves: str,
    vector_bytes: IntArray | None = None,
) -> None:
    """Rows from HBM into VMEM, and on into HBM where ``out`` is there.

    Where nothing is loaded, the vector unit moves ``vector_bytes``, or if there are none the copy takes no time.
    """
    cls = program.cls
    cls.unit("hbm")
    task: dict[str, Any] = {"unit": "hbm", "queue": LOAD_QUEUE, "work": Transfer(load_bytes), "kind": "hbm_load"}
    if not load_bytes.any():
        task = {"kind": "sync"}
        if vector_bytes is not None:
            task = {"unit": cls.unit("vpu"), "work": Vector(0 * vector_bytes, vector_bytes)}
    after = [*program.after(*sources), *program.after_readers(out)]
    stores = not program.is_resident(out)
    _, columns = program.rows_columns(out)
    size = blocks.sizes() * bytes_of(columns, out.dtype)
    rows = TensorAccess(out.name, blocks.region(columns))
    pool = program.pool(ROWS_OUT, int(size.max())) if stores else ""
    with cls.loop(blocks.loop, blocks.count):
        last = cls.task(
            f"{name}.load",
            **task,
            moves=moves,
            after=after,
            takes=[Take(pool, freed_by=[Ref(f"{name}.store")])] if stores else [],
            reads=reads,
            writes=[BufferAccess(pool) if stores else rows],
            function=function,
        )
        if stores:
            last = store_rows(program, name, last, pool, out, rows, size)
    cls.task(f"{name}.end", after=[Ref(last.name)], kind="sync")


def store_rows(
    program: Program, name: str, made: Task, pool: str, out: ShardedTensor, rows: TensorAccess, size: IntArray
) -> Task:
    """Store a block of rows that ``made`` wrote into a buffer of ``pool``."""
    return program.cls.task(
        f"{name}.store",
        unit="hbm",
        queue=STORE_QUEUE,
        work=Transfer(size),
        kind="hbm_store",
        moves=out.name,
        after=[made, *program.after_readers(out)],
        reads=[BufferAccess(pool, made.ref())],
        writes=[rows],
        function=_same,
    )


def _same(rows: Any) -> Any:
    return rows


def _flat(vector: Any) -> Any:
    return vector.reshape(math.prod(vector.shape))
