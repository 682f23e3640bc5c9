"""One layer's attention, flash against naive: the same FLOPs, and a fraction of the HBM traffic.

The flash kernel keeps scores in VMEM for the length of a block (online softmax with a running maximum) and reads keys
and values once for each block of queries; the naive one writes all scores to HBM, reads them for the softmax, writes
the weights and reads them again: four times B N T S values. ``--plot`` draws traffic and time of both
over the sequence length.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from simcore.chips import Chip
from simcore.dtypes import bytes_of
from simcore.graph import TaskGraph
from simcore.layout import Mesh
from simcore.lowering import LoweringOptions, lower
from simcore.opgraph import OpGraph
from simcore.quantities import format_bytes, format_seconds
from simcore.result import RunResult
from simcore.scenario import Simulation, param, run_script

EXAMPLE = "--positions 4096 --plot flash_attention.png"
SHORTEST = 256


@dataclass(frozen=True)
class Parameters:
    positions: int = param(4096, help="of the sequence: queries, and keys", minimum=1, maximum=262_144)
    batch: int = param(1, help="sequences", minimum=1, maximum=1024)
    heads: int = param(32, help="query heads", minimum=1, maximum=1024)
    kv_heads: int = param(8, help="key-value heads, a divisor of the query heads", minimum=1, maximum=1024)
    head_dim: int = param(128, help="width of a head", minimum=1, maximum=4096)
    kernel: Literal["flash", "naive"] = param("flash", help="scores in VMEM, or through HBM")
    causal: Literal["full", "skip"] = param("full", help="compute the whole rectangle, or skip what no query sees")
    dtype: str = param("bf16", help="format of all tensors")


def graph(p: Parameters, kernel: Any, positions: int, chip: Chip) -> TaskGraph:
    """Attention of one layer, queries and keys in HBM."""
    sizes = {"B": p.batch, "T": positions, "N": p.heads, "K": p.kv_heads, "H": p.head_dim}
    ops = OpGraph("flash_attention", Mesh.of(X=1), sizes, dtype=p.dtype)
    q = ops.input("q[B, T, N, H]", rows=2)
    k, v = (ops.input(f"{name}[B, T, K, H]", rows=2) for name in "kv")
    causal = p.causal if kernel == "flash" else "full"
    ops.attention("attention", q, k, v, causal=causal, scale=p.head_dim**-0.5, kernel=kernel)
    return lower(ops, chip, LoweringOptions(keep_activations=False))


def build(p: Parameters, chip: Chip) -> Simulation:
    scores = p.batch * p.heads * p.positions**2
    rows = 2 * p.batch * p.positions * (p.heads + p.kv_heads) * p.head_dim
    size = bytes_of(1, p.dtype)
    extra = {"scores": scores, "least_traffic_bytes": rows * size, "naive_score_traffic_bytes": 4 * scores * size}
    note = f"{scores:,} scores; queries, keys, values and what attention gives are {rows:,} values"
    return Simulation(graph(p, p.kernel, p.positions, chip), extra=extra, notes=(note,))


def plot(result: RunResult, path: Path) -> None:
    """Traffic and time of both kernels over the sequence length."""
    from simcore.running import run
    from simcore.views.lines_plot import Curve, Panel, draw_lines

    p = Parameters(**dict(result.parameters))
    lengths = [SHORTEST * 2**power for power in range(9) if SHORTEST * 2**power <= max(p.positions, 2 * SHORTEST)]
    traffic, times = [], []
    for kernel in ("naive", "flash"):
        runs = [run(graph(p, kernel, t, result.chip), chip=result.chip, ideal=result.ideal) for t in lengths]
        moved = [float(one.bytes.get("hbm_read", 0) + one.bytes.get("hbm_write", 0)) for one in runs]
        traffic.append(Curve(kernel, lengths, moved))
        times.append(Curve(kernel, lengths, [one.time_s for one in runs]))
    factor = times[0].y[-1] / times[1].y[-1]
    less = traffic[0].y[-1] / max(traffic[1].y[-1], 1)
    draw_lines(
        path,
        [Panel(traffic, "HBM traffic", format_bytes), Panel(times, "time", format_seconds)],
        title=(
            f"attention of {p.heads} heads on {result.chip.name}: at {lengths[-1]} positions flash moves 1/{less:.0f} "
            f"of the bytes and is {factor:.1f} x as fast"
        ),
        x_label="positions",
    )


if __name__ == "__main__":
    raise SystemExit(run_script(__file__))
