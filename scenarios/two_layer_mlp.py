"""Two layers designed together: W_in split by columns and W_out by rows, against layouts that gather in between.

x[B, D] · W_in, an activation, · W_out on n chips along one axis X, each weight split by columns or by rows:

    column_row       h[B, F_X] is what W_out[F_X, D] needs: one AllReduce of y              2 B D
    column_column    h[B, F_X] is gathered for W_out[F, D_X], and y[B, D_X] after it        B F + B D
    row_row          partial sums of h are scattered, h[B, F_X] · W_out[F_X, D] reduced     B F + 2 B D
    row_column       partial sums of h are reduced, h[B, F] · W_out[F, D_X] gathered        2 B F + B D

On the right the elements that a ring moves, but for its (n - 1)/n. With ``--y split`` y stays y[B, D_X], and each
has B D fewer. FLOPs and weight bytes of a chip are the same in all. ``--plot`` draws both timelines on one axis.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from simcore.chips import Chip
from simcore.errors import ScenarioError
from simcore.exposure import exposed_communication_s
from simcore.layout import Mesh
from simcore.lowering import LoweringOptions
from simcore.opgraph import OpGraph
from simcore.quantities import format_bytes, format_seconds
from simcore.result import RunResult
from simcore.running import run as simulate
from simcore.scenario import param, run_script

EXAMPLE = "--chips 16 --batch 1024 --plot two_layer_mlp.png"
LAYOUTS = Literal["column_row", "column_column", "row_row", "row_column"]
GELU_OPERATIONS = 8
"""Vector operations of a tanh-approximated GELU, counted per element."""


@dataclass(frozen=True)
class Parameters:
    batch: int = param(1024, help="rows of x, B", minimum=1, maximum=10_000_000)
    d_model: int = param(8192, help="columns of x and y, D", minimum=1, maximum=1_000_000)
    d_ff: int = param(32768, help="columns of h, F", minimum=1, maximum=1_000_000)
    chips: int = param(16, help="chips along X (on v5e an axis of 16 wraps around)", minimum=1, maximum=1024)
    layout: LAYOUTS = param("column_row", help="how W_in and W_out are split")
    against: LAYOUTS = param("column_column", help="the layout that it is compared with")
    y: Literal["whole", "split"] = param("whole", help="y on every chip, or its columns split over X")
    line: bool = param(False, help="the axis does not wrap around")
    dtype: str = param("bf16", help="of all arrays")


def mlp(p: Parameters, layout: str) -> OpGraph:
    """The two layers with their weights split as ``layout`` says."""
    w_in, w_out = layout.split("_")
    g = OpGraph(layout, Mesh.of(X=p.chips), {"B": p.batch, "D": p.d_model, "F": p.d_ff}, dtype=p.dtype)
    x = g.input("x[B, D]")
    if w_in == "column":
        h = g.einsum("h", x, g.weight("w_in[D, F_X]"))
    else:
        h = g.einsum("h", g.keep_shard(x, "X", "D"), g.weight("w_in[D_X, F]"))
        h = g.reduce_scatter(h, "X", "F") if w_out == "row" else g.all_reduce(h, "X")
    a = g.elementwise("gelu", [h], gelu, operations_per_element=GELU_OPERATIONS)
    if w_out == "row":
        y = g.einsum("y", a, g.weight("w_out[F_X, D]"))
        _ = g.all_reduce(y, "X") if p.y == "whole" else g.reduce_scatter(y, "X", "D")
    else:
        whole = g.all_gather(a, "X") if w_in == "column" else a
        y = g.einsum("y", whole, g.weight("w_out[F, D_X]"))
        _ = g.all_gather(y, "X") if p.y == "whole" else y
    return g


def gelu(h: Any) -> Any:
    return h / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (h + 0.044715 * h**3)))


def run(p: Parameters, chip: Chip, ideal: bool, engine: str) -> RunResult:
    for name, size in (("d_model", p.d_model), ("d_ff", p.d_ff)):
        if size % p.chips:
            flag = "--" + name.replace("_", "-")
            raise ScenarioError(f"{flag} {size} does not divide over {p.chips} chips: make it a multiple of them")
    result, other = (_simulated(p, layout, chip, ideal, engine) for layout in (p.layout, p.against))
    extra: dict[str, float] = {}
    for name, one in (("layout", result), ("against", other)):
        extra[f"{name}_time_s"] = one.time_s
        extra[f"{name}_moved_bytes"] = one.bytes.get("ici", 0)
        extra[f"{name}_exposed_communication_s"] = exposed_communication_s(one.exposed_s)
    return dataclasses.replace(result, extra=extra, notes=(*result.notes, finding(p, extra)))


def plot(result: RunResult, path: Path) -> None:
    """The two timelines, one above the other on one time axis, with a line where the shorter one ends."""
    p = Parameters(**dict(result.parameters))
    other = _simulated(p, p.against, result.chip, result.ideal, result.engine)
    from simcore.views.gantt_panels import draw_gantts

    draw_gantts([(p.layout, result), (p.against, other)], path, finding(p, dict(result.extra)))


def finding(p: Parameters, extra: dict[str, float]) -> str:
    """Both layouts in a line: times, and bytes over the links."""
    parts = []
    for name, layout in (("layout", p.layout), ("against", p.against)):
        time_s, moved = extra[f"{name}_time_s"], extra[f"{name}_moved_bytes"]
        parts.append(f"{layout} {format_seconds(time_s)} with {format_bytes(moved)} over the links")
    ratio = extra["against_time_s"] / extra["layout_time_s"]
    return f"{', '.join(parts)}: {ratio:.2f} x the time"


def _simulated(p: Parameters, layout: str, chip: Chip, ideal: bool, engine: str) -> RunResult:
    options = LoweringOptions(lines=frozenset("X") if p.line else frozenset())
    return simulate(mlp(p, layout), chip=chip, ideal=ideal, engine=engine, scenario=layout, lowering=options)


if __name__ == "__main__":
    raise SystemExit(run_script(__file__))
