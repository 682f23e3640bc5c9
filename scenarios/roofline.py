"""A tiled matmul under the roofline: what its intensity allows, and what the tiles reach.

C = A B with A [m, k] and B [k, n] in HBM. Moving each array once gives the intensity

    2 m k n / (bytes of A, B and C)    FLOPs per byte

and the roof min(peak, intensity x HBM bandwidth). The simulated matmul stays below it by the first load and the last
store, which nothing hides; the more tiles, the closer. ``--plot`` draws the roof and the matmuls of 1, 2, 4, ... m
rows with one buffer and with as many as asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from simcore.chips import Chip
from simcore.lowering import MatmulShape, Tiling, choose_tiling, matmul_graph
from simcore.quantities import format_flops_per_s
from simcore.result import RunResult
from simcore.scenario import Simulation, param, run_script

EXAMPLE = "--m 4096 --ideal --plot roofline.png"
ORDERS = Literal[
    "auto", "output_stationary", "weight_stationary", "input_stationary", "mnk", "mkn", "nmk", "nkm", "kmn", "knm"
]


@dataclass(frozen=True)
class Parameters:
    m: int = param(1024, help="rows of A and C", minimum=1, maximum=10_000_000)
    k: int = param(1024, help="columns of A, rows of B", minimum=1, maximum=10_000_000)
    n: int = param(1024, help="columns of B and C", minimum=1, maximum=10_000_000)
    dtype: str = param("bf16", help="of all three arrays: one that the chip has a peak for")
    order: ORDERS = param("auto", help="loop order: what stays in VMEM, or the loops, outermost first")
    tile_m: int | None = param(None, help="tile side; chosen where not given", minimum=1)
    tile_k: int | None = param(None, help="tile side; chosen where not given", minimum=1)
    tile_n: int | None = param(None, help="tile side; chosen where not given", minimum=1)
    buffers: int = param(2, help="buffers of each operand", minimum=1, maximum=1000)


def build(p: Parameters, chip: Chip) -> Simulation:
    peak = chip.peak(p.dtype)
    shape = MatmulShape(p.m, p.k, p.n, p.dtype)
    tiling = choose_tiling(shape, chip, order=p.order, tile=(p.tile_m, p.tile_k, p.tile_n), buffers=p.buffers)
    roof = min(peak, shape.intensity_flops_per_byte * chip.hbm_bandwidth_bytes_per_s)
    extra = {
        "intensity_flops_per_byte": shape.intensity_flops_per_byte,
        "ridge_flops_per_byte": chip.ridge_flops_per_byte(p.dtype),
        "roof_flops_per_s": roof,
        "tiled_intensity_flops_per_byte": shape.flops / tiling.traffic_bytes(shape),
        "order": tiling.order,
        "tile": [min(tiling.tile(dim), shape.size(dim)) for dim in "mkn"],
    }
    sides = " x ".join(str(min(tiling.tile(dim), shape.size(dim))) for dim in "mkn")
    notes = (
        f"intensity {shape.intensity_flops_per_byte:.1f} FLOPs/byte, ridge {chip.ridge_flops_per_byte(p.dtype):.1f}: "
        f"the roof is {format_flops_per_s(roof)}",
        f"tiles of {sides} (m x k x n), loops {' > '.join(tiling.order)} from outside: {tiling.tiles(shape)} products",
    )
    return Simulation(matmul_graph(shape, tiling, chip, "matmul"), extra=extra, notes=notes)


def plot(result: RunResult, path: Path) -> None:
    """Roof and simulated matmuls, log-log."""
    from simcore.running import run
    from simcore.views.roofline_plot import Point, Series, draw_roofline

    p = Parameters(**dict(result.parameters))
    rows = [2**power for power in range(p.m.bit_length()) if 2**power < p.m] + [p.m]
    series = []
    for buffers in dict.fromkeys((1, p.buffers)):
        points = []
        for m in rows:
            shape = MatmulShape(m, p.k, p.n, p.dtype)
            tiling: Tiling = choose_tiling(
                shape, result.chip, order=p.order, tile=(p.tile_m, p.tile_k, p.tile_n), buffers=buffers
            )
            simulated = run(matmul_graph(shape, tiling, result.chip), chip=result.chip, ideal=result.ideal)
            points.append(Point(shape.intensity_flops_per_byte, shape.flops / simulated.time_s, f"m={m}"))
        series.append(Series(f"{buffers} buffer{'s' * (buffers > 1)}", points))
    draw_roofline(path, result.chip, p.dtype, series, title=f"matmul m x {p.k} x {p.n}, {p.dtype}", ideal=result.ideal)


if __name__ == "__main__":
    raise SystemExit(run_script(__file__))
