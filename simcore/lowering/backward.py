"""Lowering of what only a backward pass and an optimizer have, but for attention's derivative.

Gradients of weights are made in HBM: products of activations are tiled matmuls whose contracted dimension is the rows,
sums over rows stay in VMEM until all blocks have passed, and an optimizer's step streams a weight, its gradient and its
states once.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from simcore.dtypes import bytes_of
from simcore.graph import BufferAccess, Ref, Take, TensorAccess, Transfer, Vector, WithIndices
from simcore.graph.access import Access, Region
from simcore.graph.graph import Reference
from simcore.graph.reference import Indices
from simcore.lowering.einsum import A_SHARE, B_SHARE, C_SHARE, POOLS
from simcore.lowering.matmul import LOAD_QUEUE, STORE_QUEUE, tile_matmul
from simcore.lowering.placement import Placement
from simcore.lowering.program import Program, compute_dtype
from simcore.lowering.rows import RowBlocks, copy_rows, load_vector, operations_of, stream_rows
from simcore.lowering.tiling import MatmulShape, Operand, choose_tiling
from simcore.opgraph.backward_operations import Keep, OuterProduct, RowSum, ScatterAdd, Update
from simcore.opgraph.tensor import ShardedTensor

ROW_SUMS, UPDATES = "row sums", "update tiles"


def lower_keep(program: Program, operation: Keep) -> None:
    """Copy rows as they are now; from VMEM that is a store."""
    source, out = operation.source, operation.out
    rows, columns = program.rows_columns(out)
    row_bytes = bytes_of(columns, out.dtype)
    resident = program.is_resident(source)
    blocks = RowBlocks(program, operation.name, rows, row_bytes, not (resident and program.is_resident(out)))
    size = blocks.sizes() * row_bytes
    copy_rows(
        program,
        operation.name,
        blocks,
        sources=[source],
        reads=[TensorAccess(source.name, blocks.region(columns))],
        out=out,
        function=_same,
        load_bytes=size * (not resident),
        moves=source.name,
        vector_bytes=2 * size if resident and program.is_resident(out) else None,
    )


def lower_outer_product(program: Program, operation: OuterProduct) -> None:
    """A tiled matmul of the left operand, turned, with the right one."""
    left, right, out = operation.left, operation.right, operation.out
    rows, m = program.rows_columns(left)
    _, n = program.rows_columns(right)
    dtype = compute_dtype(left.dtype, right.dtype)
    shape = MatmulShape(m, rows, n, dtype, a_dtype=left.dtype, b_dtype=right.dtype, c_dtype=out.dtype)
    shares: dict[Operand, int] = {"a": A_SHARE, "b": B_SHARE, "c": C_SHARE}
    operands: dict[Operand, ShardedTensor] = {"a": left, "b": right, "c": out}
    resident = [operand for operand, tensor in operands.items() if program.is_resident(tensor)]
    limits = {operand: program.tile_share(share) for operand, share in shares.items()}
    for operand in resident:
        if operand != "c":
            del limits[operand]
    asked = (shape, tuple(resident), "outer")
    if asked not in program.tilings:
        program.tilings[asked] = choose_tiling(
            shape,
            program.chip,
            buffers=program.options.buffers,
            resident=resident,
            tile_limit_bytes=limits,
            keep=False,
        )
    tiling = program.tilings[asked]
    pools = {
        operand: program.pool(POOLS[operand], tiling.tile_bytes(shape, operand))
        for operand in operands
        if operand == "c" or operand not in resident
    }
    placements = {
        operand: Placement(
            tensor.name,
            operand in resident,
            pools.get(operand),
            after=program.after_readers(out) if operand == "c" else program.after(tensor),
            transposed=operand == "a",
        )
        for operand, tensor in operands.items()
    }
    tile_matmul(program.cls, operation.name, shape, tiling, placements)


def lower_row_sum(program: Program, operation: RowSum) -> None:
    """Blocks of rows pass; their sum is in a buffer until it is stored."""
    cls, name, out = program.cls, operation.name, operation.out
    rows, _ = program.rows_columns(operation.inputs[0])
    elements = math.prod(out.layout.local_shape(program.ops.sizes, program.ops.mesh))
    widths = [bytes_of(program.rows_columns(tensor)[1], tensor.dtype) for tensor in operation.inputs]
    streamed = not all(program.is_resident(tensor) for tensor in operation.inputs)
    blocks = RowBlocks(program, name, rows, max(widths), streamed)
    pool = program.pool(ROW_SUMS, bytes_of(elements, "fp32"))
    for unit in ("vpu", "hbm"):
        cls.unit(unit)
    opened = cls.task(
        f"{name}.open",
        kind="sync",
        takes=[Take(pool, freed_by=[Ref(f"{name}.store")])],
        writes=[BufferAccess(pool)],
        function=lambda: np.zeros(elements),
    )
    vectors = [load_vector(program, name, vector) for vector in operation.vectors]
    inputs = len(operation.inputs)

    def add(*given: Any) -> Any:
        *arguments, total = given
        made = operation.function(*arguments[:inputs], *arguments[inputs:])
        return total + np.asarray(made).reshape(-1, elements).sum(axis=0)

    with cls.loop(blocks.loop, blocks.count):
        reads, after, moved = stream_rows(program, name, blocks, operation.inputs, f"{name}.work")
        reads += [BufferAccess("vectors", vector) for vector in vectors]
        total = BufferAccess(pool, opened.ref())
        work = cls.task(
            f"{name}.work",
            unit="vpu",
            work=Vector(operations_of(blocks.sizes() * elements, operation.operations_per_element), moved),
            after=[*after, *vectors, opened],
            reads=[*reads, total],
            writes=[total],
            function=add,
        )
    store = cls.task(
        f"{name}.store",
        unit="hbm",
        queue=STORE_QUEUE,
        work=Transfer(bytes_of(elements, out.dtype)),
        kind="hbm_store",
        moves=out.name,
        after=[Ref(work.name), *program.after_readers(out)],
        reads=[BufferAccess(pool, Ref(opened.name))],
        writes=[TensorAccess(out.name, lambda i, c: (slice(0, elements),), view=(elements,))],
        function=_same,
    )
    cls.task(f"{name}.end", after=[store], kind="sync")


def lower_scatter_add(program: Program, operation: ScatterAdd) -> None:
    """The table is cleared; then each row is added to its token's, which is read and written in HBM.

    Of a table that is split over its rows each chip has on average 1 / ways of the tokens, which is what is counted.
    """
    cls, name, out, source, tokens = program.cls, operation.name, operation.out, operation.source, operation.tokens
    mesh, axes = program.ops.mesh, out.layout.dims[0].axes
    rows, columns = program.rows_columns(source)
    held, _ = program.rows_columns(out)
    ways = mesh.axis_size(axes)
    blocks = RowBlocks(program, name, rows, bytes_of(columns, source.dtype), not program.is_resident(source))
    table = TensorAccess(out.name)
    cls.unit("hbm")
    clear = cls.task(
        f"{name}.clear",
        unit="hbm",
        queue=STORE_QUEUE,
        work=Transfer(bytes_of(held * columns, out.dtype)),
        kind="hbm_store",
        moves=out.name,
        after=[*program.after_readers(out), *program.after(source)],
        writes=[table],
        function=lambda: np.zeros((held, columns)),
    )

    def add(_: Indices, c: Indices, back: Any, numbers: Any, total: Any) -> Any:
        where = tuple(int(c[axis]) for axis in mesh.names)
        index = np.asarray(numbers).reshape(-1).astype(int) - mesh.position(where, axes) * held
        here = (index >= 0) & (index < held)
        total = total.copy()
        np.add.at(total, index[here], back[here])
        return total

    with cls.loop(blocks.loop, blocks.count):
        reads, after, _ = stream_rows(program, name, blocks, [source], f"{name}.add")
        last = cls.task(
            f"{name}.add",
            unit="hbm",
            queue=STORE_QUEUE,
            work=Transfer(2 * -(-blocks.sizes() // ways) * bytes_of(columns, out.dtype)),
            kind="hbm_store",
            moves=out.name,
            after=[*after, *program.after(tokens), clear, Ref(f"{name}.add", at={blocks.loop: -1}, outside="ignore")],
            reads=[*reads, TensorAccess(tokens.name, blocks.region(1)), table],
            writes=[table],
            function=WithIndices(add),
        )
    cls.task(f"{name}.end", after=[Ref(last.name)], kind="sync")


def lower_update(program: Program, operation: Update) -> None:
    """Elements in blocks: gradient, states and weight are loaded, changed, and all but the gradient stored."""
    cls, name = program.cls, operation.name
    changed = (*operation.states, operation.weight)
    tensors = (operation.gradient, *changed)
    elements = math.prod(operation.weight.layout.local_shape(program.ops.sizes, program.ops.mesh))
    # All that an update reads at once takes what other streams of rows do with four.
    blocks = RowBlocks(program, name, elements, len(tensors), streamed=True)
    widest = max(bytes_of(blocks.block, tensor.dtype) for tensor in tensors)
    pool = program.pool(UPDATES, widest, buffers=program.options.buffers * len(tensors))
    for unit in ("vpu", "hbm"):
        cls.unit(unit)

    def access(tensor: ShardedTensor) -> TensorAccess:
        count = program.repeats[tensor.repeat] if tensor.repeat else 0

        def region(i: Indices, _: Indices) -> Region:
            begin = int(i[blocks.loop]) * blocks.block
            return (*program.lead(tensor, i), slice(begin, min(begin + blocks.block, elements)))

        return TensorAccess(tensor.name, region, view=(count, elements) if count else (elements,))

    def bytes_in(tensor: ShardedTensor) -> Any:
        return np.array([bytes_of(int(size), tensor.dtype) for size in blocks.sizes()], dtype=np.int64)

    with cls.loop(blocks.loop, blocks.count):
        loads = [
            cls.task(
                f"{name}.load {tensor.name}",
                unit="hbm",
                queue=LOAD_QUEUE,
                work=Transfer(bytes_in(tensor)),
                kind="hbm_load",
                moves=tensor.name,
                after=program.after(tensor),
                takes=[Take(pool, freed_by=[Ref(f"{name}.store {tensor.name}" if number else f"{name}.work")])],
                reads=[access(tensor)],
                writes=[BufferAccess(pool)],
                function=lambda part: part.reshape(-1),
            )
            for number, tensor in enumerate(tensors)
        ]
        buffers: list[Access] = [BufferAccess(pool, load.ref()) for load in loads]
        after: list[Reference] = [*loads]
        extra: list[Access] = []
        for tensor in operation.extra:
            extra.append(TensorAccess(tensor.name))
            after += program.after(tensor)
        inputs = len(tensors)

        def step(*given: Any) -> Any:
            return operation.function(*given[:inputs], *given[inputs:])

        work = cls.task(
            f"{name}.work",
            unit="vpu",
            work=Vector(
                operations_of(blocks.sizes(), operation.operations_per_element),
                sum(bytes_in(tensor) for tensor in (*tensors, *changed)),
            ),
            after=after,
            reads=[*buffers, *extra],
            writes=buffers[1:],
            function=step,
        )
        stores: list[Reference] = [
            cls.task(
                f"{name}.store {tensor.name}",
                unit="hbm",
                queue=STORE_QUEUE,
                work=Transfer(bytes_in(tensor)),
                kind="hbm_store",
                moves=tensor.name,
                after=[work, *program.after_readers(tensor)],
                reads=[buffer],
                writes=[access(tensor)],
                function=_same,
            )
            for tensor, buffer in zip(changed, buffers[1:], strict=True)
        ]
    cls.task(f"{name}.end", after=[Ref(store.name) for store in stores], kind="sync")  # type: ignore[union-attr]


def _same(rows: Any) -> Any:
    return rows


__all__ = ["lower_keep", "lower_outer_product", "lower_row_sum", "lower_scatter_add", "lower_update"]
