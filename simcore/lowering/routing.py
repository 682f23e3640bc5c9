"""Lowering of the way to groups of rows and back: rows sorted by group, and added up again with weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from simcore.dtypes import bytes_of
from simcore.graph import BufferAccess, Ref, Take, TensorAccess, Transfer, Vector, WithIndices
from simcore.graph.access import Access
from simcore.graph.graph import Reference
from simcore.graph.reference import Indices
from simcore.lowering.matmul import LOAD_QUEUE
from simcore.lowering.program import Program
from simcore.lowering.rows import ROWS_IN, ROWS_OUT, RowBlocks, copy_rows, store_rows
from simcore.opgraph.operations import Combine, Dispatch

COMBINE_OPERATIONS = 2
"""Vector operations a row that is added up and feature: times its weight, plus what was there."""


def lower_dispatch(program: Program, operation: Dispatch) -> None:
    """Gather the rows of each group; within VMEM the vector unit copies them, from HBM they are loaded."""
    source, out, groups = operation.source, operation.out, operation.groups
    rows, columns = program.rows_columns(out)
    row_bytes = bytes_of(columns, source.dtype)
    in_vmem = program.is_resident(source)
    blocks = RowBlocks(program, operation.name, rows, row_bytes, not (in_vmem and program.is_resident(out)))

    def gather(i: Indices, _: Indices, table: Any, routing: Any) -> Any:
        begin = int(i[blocks.loop]) * blocks.block
        at = groups.sources(routing, program_iteration(i))[begin : begin + blocks.block]
        return np.where(at[:, None] >= 0, table[np.maximum(at, 0)], 0.0)

    program_iteration = _iteration_of(program)
    size = blocks.sizes() * row_bytes
    copy_rows(
        program,
        operation.name,
        blocks,
        sources=[source, operation.routing],
        reads=[TensorAccess(source.name), TensorAccess(operation.routing.name)],
        out=out,
        function=WithIndices(gather),
        load_bytes=size * (not in_vmem),
        moves=source.name,
        vector_bytes=2 * size * in_vmem,
    )


def lower_combine(program: Program, operation: Combine) -> None:
    """For each block of rows, the rows of the groups that belong to it, times their weights, added up."""
    cls, name, source, out = program.cls, operation.name, operation.source, operation.out
    groups, each = operation.groups, operation.of_each
    rows, columns = program.rows_columns(out)
    in_vmem, stores = program.is_resident(source), not program.is_resident(out)
    row_bytes = bytes_of(columns, source.dtype)
    blocks = RowBlocks(program, name, rows, row_bytes * each, stores or not in_vmem)
    iteration = _iteration_of(program)

    def belonging(i: Indices, table: Any, routing: Any) -> tuple[Any, Any, Any]:
        """Rows of the block, the weights and the values of what is added to them."""
        at, members = groups.sources(routing, iteration(i)), groups.targets(iteration(i))
        begin = int(i[blocks.loop]) * blocks.block
        mine = np.flatnonzero((at >= begin) & (at < begin + blocks.block))
        return at[mine] - begin, routing[at[mine], members[mine]], mine if table is None else table[mine]

    def load(i: Indices, _: Indices, table: Any, routing: Any) -> Any:
        return belonging(i, table, routing)[2]

    def add_up(i: Indices, _: Indices, values: Any, routing: Any) -> Any:
        to, weights, found = belonging(i, values if in_vmem else None, routing)
        block = min(blocks.block, rows - int(i[blocks.loop]) * blocks.block)
        summed = np.zeros((block, columns))
        np.add.at(summed, to, weights[:, None] * (found if in_vmem else values))
        return summed

    cls.unit("vpu")
    size = blocks.sizes() * row_bytes
    out_size = blocks.sizes() * bytes_of(columns, out.dtype)
    routing = TensorAccess(operation.routing.name)
    with cls.loop(blocks.loop, blocks.count):
        after: list[Reference] = [*program.after(source, operation.routing), *program.after_readers(out)]
        rows_in: Access = TensorAccess(source.name)
        if not in_vmem:
            cls.unit("hbm")
            pool = program.pool(ROWS_IN, int(size.max()) * each, buffers=2 * program.options.buffers)
            loaded = cls.task(
                f"{name}.load",
                unit="hbm",
                queue=LOAD_QUEUE,
                work=Transfer(size * each),
                kind="hbm_load",
                moves=source.name,
                after=program.after(source, operation.routing),
                takes=[Take(pool, freed_by=[Ref(f"{name}.work")])],
                reads=[rows_in, routing],
                writes=[BufferAccess(pool)],
                function=WithIndices(load),
            )
            rows_in = BufferAccess(pool, loaded.ref())
            after.append(loaded)
        out_pool = program.pool(ROWS_OUT, int(out_size.max())) if stores else ""
        whole = TensorAccess(out.name, blocks.region(columns))
        last = work = cls.task(
            f"{name}.work",
            unit="vpu",
            work=Vector(blocks.sizes() * columns * each * COMBINE_OPERATIONS, size * each + out_size),
            after=after,
            takes=[Take(out_pool, freed_by=[Ref(f"{name}.store")])] if stores else [],
            reads=[rows_in, routing],
            writes=[BufferAccess(out_pool) if stores else whole],
            function=WithIndices(add_up),
        )
        if stores:
            last = store_rows(program, name, work, out_pool, out, whole, out_size)
    cls.task(f"{name}.end", after=[Ref(last.name)], kind="sync")


def _iteration_of(program: Program) -> Any:
    """The iteration of the repeat around the operation at hand, for use when its tasks are executed."""
    repeat = program.repeat_name
    return lambda i: int(i[repeat]) if repeat else 0
