"""Weights or inputs outside: what is read again when room is short, and which loop order is faster.

A matmul of ``--groups`` groups of input rows with a weight matrix that is cut into ``--tiles`` tiles by columns. VMEM
has room for ``--room`` weight tiles.

    inputs_outer   each group of inputs stays while all weight tiles pass: without room for all of them, the weights
                   are read again for every group
    weights_outer  each weight tile stays while all groups pass: weights are read once, but the inputs are read again
                   for every weight tile, unless ``--input-room`` holds them all

Both move the output once. Which one is faster is the simulation's answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from simcore.chips import Chip
from simcore.dtypes import bytes_of
from simcore.errors import ScenarioError
from simcore.lowering import MatmulShape, Tiling, matmul_graph
from simcore.quantities import format_bytes
from simcore.scenario import Bytes, Simulation, param, run_script

EXAMPLE = "--order weights_outer --ideal"
LONGEST_K = 2048
DTYPE = "bf16"


@dataclass(frozen=True)
class Parameters:
    order: Literal["inputs_outer", "weights_outer"] = param("inputs_outer", help="which of the two stays outside")
    weights: Bytes = param(8_000_000, help="the weight matrix, in bf16", minimum=1, maximum=2**40)
    tiles: int = param(2, help="tiles that the weights are cut into", minimum=1, maximum=100_000)
    room: int = param(1, help="weight tiles that VMEM has room for", minimum=1, maximum=100_000)
    groups: int = param(4, help="groups of input rows", minimum=1, maximum=100_000)
    rows: int = param(512, help="rows of a group", minimum=1, maximum=1_000_000)
    input_room: int = param(2, help="input groups that VMEM has room for", minimum=1, maximum=100_000)


def build(p: Parameters, chip: Chip) -> Simulation:
    k, n = weight_matrix(p.weights, p.tiles)
    shape = MatmulShape(m=p.groups * p.rows, k=k, n=n, dtype=DTYPE)
    tiling = Tiling(
        order="mnk" if p.order == "inputs_outer" else "nmk",
        tile_m=p.rows,
        tile_k=k,
        tile_n=n // p.tiles,
        room_a=p.input_room,
        room_b=p.room,
        room_c=2,
    )
    graph = matmul_graph(shape, tiling, chip, "tile_reuse")
    weights, inputs = (shape.bytes(operand) * tiling.reads(shape, operand) for operand in ("b", "a"))
    extra = {
        "weight_read_bytes": weights,
        "input_read_bytes": inputs,
        "weight_reads": tiling.reads(shape, "b"),
        "input_reads": tiling.reads(shape, "a"),
    }
    note = (
        f"A [{shape.m}, {k}] times B [{k}, {n}]: the weights are read {_times(tiling.reads(shape, 'b'))} "
        f"({format_bytes(weights)}), the inputs {_times(tiling.reads(shape, 'a'))} ({format_bytes(inputs)})"
    )
    return Simulation(graph, extra=extra, notes=(note,))


def weight_matrix(weights_bytes: int, tiles: int) -> tuple[int, int]:
    """Rows k (at most 2048, as many as divide) and columns n of a weight matrix that cuts into equal tiles."""
    size = bytes_of(1, DTYPE) * tiles
    if weights_bytes % size:
        nearest = max(round(weights_bytes / size), 1) * size
        raise ScenarioError(
            f"weights of {weights_bytes} bytes do not cut into {tiles} equal tiles of {DTYPE}: {nearest} bytes would"
        )
    a_tile = weights_bytes // size
    k = next(k for k in range(min(LONGEST_K, a_tile), 0, -1) if a_tile % k == 0)
    return k, a_tile // k * tiles


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


if __name__ == "__main__":
    raise SystemExit(run_script(__file__))
