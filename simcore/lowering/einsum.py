"""Lowering of an einsum: a tiled matmul whose right operand streams from HBM."""

from __future__ import annotations

from simcore.lowering.matmul import Placement, tile_matmul
from simcore.lowering.program import Program
from simcore.lowering.tiling import MatmulShape, Operand, choose_tiling
from simcore.opgraph.operations import Einsum

A_SHARE, B_SHARE, C_SHARE = 16, 16, 16
"""A tile of inputs, of weights, an accumulator: at most 1 / this of VMEM each, so that two of each take 3 / 8 of it."""
POOLS: dict[Operand, str] = {"a": "input tiles", "b": "weight tiles", "c": "accumulators"}


def lower_einsum(program: Program, operation: Einsum) -> None:
    """Rows of the left operand times the right one; tiles are chosen for the chip."""
    left, right, out = operation.left, operation.right, operation.out
    m, k = program.rows_columns(left)
    _, n = program.rows_columns(out)
    shape = MatmulShape(m, k, n, left.dtype, a_dtype=left.dtype, b_dtype=right.dtype, c_dtype=out.dtype)
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
    tiling = choose_tiling(
        shape,
        program.chip,
        buffers=program.options.buffers,
        resident=resident,
        tile_limit_bytes=limits,
        keep=False,
    )
    pools = {
        operand: program.pool(POOLS[operand], tiling.tile_bytes(shape, operand))
        for operand in POOLS
        if operand == "c" or operand not in resident
    }
    tile_matmul(
        program.cls,
        operation.name,
        shape,
        tiling,
        {
            "a": Placement(left.name, "a" in resident, pools.get("a"), after=program.after(left)),
            "b": Placement(
                right.name,
                pool=pools["b"],
                after=program.after(right),
                lead=lambda i: program.lead(right, i),
                transposed=operation.right_is_transposed,
            ),
            "c": Placement(out.name, "c" in resident, pools["c"], after=program.after_readers(out)),
        },
    )
