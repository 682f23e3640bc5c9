"""Lowering of einsums: tiled matmuls whose right operand streams from HBM; also batched ones and groups of rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from simcore.dtypes import bytes_of
from simcore.graph import BufferAccess, Matmul, Ref, Take, TensorAccess, Transfer
from simcore.graph.access import Access, Region
from simcore.graph.graph import Reference
from simcore.graph.reference import Indices
from simcore.graph.work import IntArray
from simcore.lowering.matmul import LOAD_QUEUE, STORE_QUEUE, tile_matmul
from simcore.lowering.placement import Bias, Lead, Placement, RowGroups
from simcore.lowering.program import VECTORS, Program, compute_dtype
from simcore.lowering.tiling import MatmulShape, Operand, Tiling, choose_tiling
from simcore.opgraph.operations import BatchedEinsum, Einsum, GroupedEinsum
from simcore.opgraph.tensor import ShardedTensor

A_SHARE, B_SHARE, C_SHARE = 16, 16, 16
"""A tile of inputs, of weights, an accumulator: at most 1 / this of VMEM each, so that two of each take 3 / 8 of it."""
POOLS: dict[Operand, str] = {"a": "input tiles", "b": "weight tiles", "c": "accumulators"}


def lower_einsum(program: Program, operation: Einsum) -> None:
    """Rows of the left operand times the right one; tiles are chosen for the chip."""
    left, right, out = operation.left, operation.right, operation.out
    m, k = program.rows_columns(left)
    _, n = program.rows_columns(out)
    shape = _shape(m, k, n, left, right, out)
    tiling, placements = _place(program, shape, left, right, out, lambda i: program.lead(right, i))
    if operation.right_is_transposed:
        b = placements["b"]
        placements["b"] = Placement(b.tensor, pool=b.pool, after=b.after, lead=b.lead, transposed=True)
    bias = _bias(program, operation.bias, out, lambda i: ())
    tile_matmul(program.cls, operation.name, shape, tiling, placements, bias=bias)


def lower_grouped_einsum(program: Program, operation: GroupedEinsum) -> None:
    """Each group's rows times its own matrix: only the matrices of groups that have rows are read."""
    left, right, out = operation.left, operation.right, operation.out
    _, k = program.rows_columns(left)
    _, n = program.rows_columns(out)
    rows, members = operation.groups.row_table(), operation.groups.member_table()
    groups = RowGroups(f"{operation.name}.group", rows, program.repeat_name)

    def member(i: Indices) -> Region:
        at = int(groups.of(members, i))
        return (slice(at, at + 1),)

    shape = _shape(int(rows.max()), k, n, left, right, out)
    tiling, placements = _place(program, shape, left, right, out, lambda i: (*program.lead(right, i), *member(i)))
    tile_matmul(
        program.cls,
        operation.name,
        shape,
        tiling,
        placements,
        bias=_bias(program, operation.bias, out, member),
        groups=groups,
    )


def _shape(m: int, k: int, n: int, left: ShardedTensor, right: ShardedTensor, out: ShardedTensor) -> MatmulShape:
    dtype = compute_dtype(left.dtype, right.dtype)
    return MatmulShape(m, k, n, dtype, a_dtype=left.dtype, b_dtype=right.dtype, c_dtype=out.dtype)


def _place(
    program: Program, shape: MatmulShape, left: ShardedTensor, right: ShardedTensor, out: ShardedTensor, lead: Lead
) -> tuple[Tiling, dict[Operand, Placement]]:
    """The tiling that suits the chip and where the operands are, and the pools that their tiles share with others."""
    resident: list[Operand] = []
    if program.is_resident(left):
        resident.append("a")
    if program.is_resident(out):
        resident.append("c")
    limits: dict[Operand, int] = {
        "a": program.tile_share(A_SHARE),
        "b": program.tile_share(B_SHARE),
        "c": program.tile_share(C_SHARE),
    }
    if "a" in resident:
        del limits["a"]
    asked = (shape, tuple(resident))
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
        for operand in POOLS
        if operand == "c" or operand not in resident
    }
    return tiling, {
        "a": Placement(left.name, "a" in resident, pools.get("a"), after=program.after(left)),
        "b": Placement(right.name, pool=pools["b"], after=program.after(right), lead=lead),
        "c": Placement(out.name, "c" in resident, pools["c"], after=program.after_readers(out)),
    }


def _bias(program: Program, bias: ShardedTensor | None, out: ShardedTensor, member: Lead) -> Bias | None:
    """The bias of ``out``; of partial sums only the first chip along their axes adds it."""
    if bias is None:
        return None
    _, columns = program.rows_columns(out)
    partial = out.layout.partial
    return Bias(
        bias.name,
        bias.dtype,
        program.pool(VECTORS, bytes_of(columns, bias.dtype)),
        after=program.after(bias),
        lead=lambda i: (*program.lead(bias, i), *member(i)),
        counts=(lambda c: all(c[axis] == 0 for axis in partial)) if partial else None,
    )


def lower_batched_einsum(program: Program, operation: BatchedEinsum) -> None:
    """One product for each index of the batch (a head), several at a time; the right operand is read once."""
    _Batched(program, operation).emit()


class _Batched:
    """Blocks of the batch, and of rows within: the matrices of a block stay while the rows pass."""

    def __init__(self, program: Program, operation: BatchedEinsum) -> None:
        self.program, self.operation, self.name = program, operation, operation.name
        self.rows, _ = program.rows_columns(operation.left)
        self.batch, self.k, self.n = operation.right.layout.local_shape(program.ops.sizes, program.ops.mesh)
        self.matrix_bytes = bytes_of(self.k * self.n, operation.right.dtype)
        self.block = _blocks(self.batch, program.tile_share(B_SHARE) // self.matrix_bytes)
        wide = max(self.k, self.n) * self.block
        self.row_block = min(self.rows, max(program.tile_share(A_SHARE) // bytes_of(wide, "fp32"), 1))

    def _sizes(self, size: int, block: int) -> IntArray:
        begins = np.arange(-(-size // block), dtype=np.int64) * block
        return np.minimum(begins + block, size) - begins

    def _rows_of(self, i: Indices, width: int) -> Region:
        begin, first = int(i[f"{self.name}.rows"]) * self.row_block, int(i[f"{self.name}.batch"]) * self.block
        last = min(first + self.block, self.batch)
        return (slice(begin, min(begin + self.row_block, self.rows)), slice(first * width, last * width))

    def _matrices(self, i: Indices, _: Indices) -> Region:
        first = int(i[f"{self.name}.batch"]) * self.block
        some = slice(first, min(first + self.block, self.batch))
        return (*self.program.lead(self.operation.right, i), some, slice(0, self.k), slice(0, self.n))

    def emit(self) -> None:
        program, cls, name = self.program, self.program.cls, self.name
        left, right, out = self.operation.left, self.operation.right, self.operation.out
        batches, rows = self._sizes(self.batch, self.block), self._sizes(self.rows, self.row_block)
        cls.unit("hbm")
        cls.unit("mxu")
        weights = program.pool(POOLS["b"], self.block * self.matrix_bytes)
        moved = batches[:, None] * rows
        with cls.loop(f"{name}.batch", len(batches)):
            load = cls.task(
                f"{name}.load B",
                unit="hbm",
                queue=LOAD_QUEUE,
                work=Transfer(batches * self.matrix_bytes),
                kind="hbm_load",
                moves=right.name,
                after=program.after(right),
                takes=[Take(weights, freed_by=[Ref(f"{name}.multiply")])],
                reads=[TensorAccess(right.name, self._matrices)],
                writes=[BufferAccess(weights)],
                function=lambda matrices: matrices.reshape(-1, self.k, self.n),
            )
            with cls.loop(f"{name}.rows", len(rows)):
                after: list[Reference] = [load]
                own: Access = TensorAccess(left.name, lambda i, _: self._rows_of(i, self.k))
                if not program.is_resident(left):
                    inputs = program.pool(POOLS["a"], bytes_of(int(moved.max()) * self.k, left.dtype))
                    load_rows = cls.task(
                        f"{name}.load A",
                        unit="hbm",
                        queue=LOAD_QUEUE,
                        work=Transfer(_bytes(moved * self.k, left.dtype)),
                        kind="hbm_load",
                        moves=left.name,
                        after=program.after(left),
                        takes=[Take(inputs, freed_by=[Ref(f"{name}.multiply")])],
                        reads=[own],
                        writes=[BufferAccess(inputs)],
                        function=_same,
                    )
                    own = BufferAccess(inputs, load_rows.ref())
                    after.append(load_rows)
                else:
                    after += program.after(left)
                made: Access = TensorAccess(out.name, lambda i, _: self._rows_of(i, self.n))
                stores = not program.is_resident(out)
                outputs = program.pool(POOLS["c"], bytes_of(int(moved.max()) * self.n, "fp32")) if stores else ""
                multiply = cls.task(
                    f"{name}.multiply",
                    unit="mxu",
                    work=Matmul(rows, self.k, self.n, compute_dtype(left.dtype, right.dtype), batch=batches[:, None]),
                    after=after if stores else [*after, *program.after_readers(out)],
                    takes=[Take(outputs, freed_by=[Ref(f"{name}.store")])] if stores else [],
                    reads=[own, BufferAccess(weights, load.ref())],
                    writes=[BufferAccess(outputs) if stores else made],
                    function=self._product,
                )
                last = multiply
                if stores:
                    last = cls.task(
                        f"{name}.store",
                        unit="hbm",
                        queue=STORE_QUEUE,
                        work=Transfer(_bytes(moved * self.n, out.dtype)),
                        kind="hbm_store",
                        moves=out.name,
                        after=[multiply, *program.after_readers(out)],
                        reads=[BufferAccess(outputs, multiply.ref())],
                        writes=[made],
                        function=_same,
                    )
        cls.task(f"{name}.end", after=[Ref(last.name)], kind="sync")

    def _product(self, rows: Any, matrices: Any) -> Any:
        split = rows.reshape(len(rows), -1, self.k).transpose(1, 0, 2)
        return (split @ matrices).transpose(1, 0, 2).reshape(len(rows), -1)


def _blocks(size: int, most: int) -> int:
    """The largest divisor of ``size`` up to ``most``; at least 1."""
    return next(block for block in range(max(min(most, size), 1), 0, -1) if size % block == 0)


def _bytes(elements: IntArray, dtype: str) -> IntArray:
    return np.array([bytes_of(int(count), dtype) for count in elements.ravel()], dtype=np.int64).reshape(elements.shape)


def _same(rows: Any) -> Any:
    return rows
