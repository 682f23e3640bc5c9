"""An AllToAll round a ring against the AllGather of the same array: a quarter of its time, for large rings.

Each of n chips has a block for each other, V/n² of an array of V bytes, which goes n/4 hops on average where both
directions are used, and is 1/n of what an AllGather's step moves. ``--plot`` draws the exact factor over the ring's
size, which comes near a quarter from above or below.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from simcore.chips import Chip
from simcore.collectives import RingTensor
from simcore.collectives.auto import collective
from simcore.collectives.closed_forms import (
    all_to_all_both_ways_ps,
    all_to_all_one_way_ps,
    ring_both_ways_ps,
    ring_one_way_ps,
)
from simcore.errors import ScenarioError
from simcore.graph import TaskGraph
from simcore.quantities import PS_PER_S, format_bytes, format_seconds, parse_ps
from simcore.result import RunResult
from simcore.scenario import Bytes, Simulation, param, run_script

EXAMPLE = "--ring 16 --bytes 64MiB --ideal --plot all_to_all.png"
ELEMENT_BYTES = 2


@dataclass(frozen=True)
class Parameters:
    ring: int = param(16, help="chips of the ring", minimum=1, maximum=1024)
    bytes: Bytes = param(2**26, help="the full array over all chips, V", minimum=1, maximum=2**45)
    direction: Literal["one_way", "both"] = param("both", help="link directions that are used")


def build(p: Parameters, chip: Chip) -> Simulation:
    unit = p.ring * p.ring * ELEMENT_BYTES
    if p.bytes % unit:
        nearest = max(round(p.bytes / unit), 1) * unit
        raise ScenarioError(f"--bytes {p.bytes} does not cut into {p.ring}² equal blocks: {nearest} would")
    block, local = p.bytes // p.ring**2, p.bytes // p.ring
    graph = TaskGraph("all_to_all")
    cls = graph.entity_class("chip", mesh={"x": p.ring})
    for name in ("array", "out"):
        cls.tensor(name, bytes=local, shape=(local // ELEMENT_BYTES,), persistent=True)
    tensor = RingTensor("array", block, ELEMENT_BYTES)
    collective(cls, "all_to_all", "AllToAll", "x", tensor, chip=chip, direction=p.direction, out="out")
    closed, gather = closed_forms(p, chip)
    factor = closed / gather if gather else 0.0
    extra = {"block_bytes": block, "closed_form_s": closed, "all_gather_s": gather, "factor": factor}
    note = (
        f"blocks of {format_bytes(block)}: {format_seconds(closed)}, {factor:.4g} of the {format_seconds(gather)} of "
        "an AllGather of the same array"
    )
    return Simulation(graph, extra=extra, notes=(note,))


def closed_forms(p: Parameters, chip: Chip) -> tuple[float, float]:
    """Seconds of the AllToAll and of the AllGather."""
    rate = float(chip.require("ici_link_bandwidth_bytes_per_s"))
    latency = parse_ps(float(chip.require("ici_hop_latency_s")))
    block, shard = p.bytes // p.ring**2, p.bytes // p.ring
    if p.direction == "both":
        exchange = all_to_all_both_ways_ps(p.ring, block, rate, latency, ELEMENT_BYTES)
        return exchange / PS_PER_S, ring_both_ways_ps(p.ring, shard, rate, latency, ELEMENT_BYTES) / PS_PER_S
    exchange = all_to_all_one_way_ps(p.ring, block, rate, latency)
    return exchange / PS_PER_S, ring_one_way_ps(p.ring, shard, rate, latency) / PS_PER_S


def plot(result: RunResult, path: Path) -> None:
    """The factor between the two, simulated, over the ring's size."""
    from simcore.running import run
    from simcore.views.lines_plot import Curve, Panel, draw_lines

    p = Parameters(**dict(result.parameters))
    rings = [2**power for power in range(1, 8) if 2**power <= max(p.ring, 16)]
    curves = []
    for direction, limit in (("both", 1 / 4), ("one_way", 1 / 2)):
        factors = []
        for ring in rings:
            size = max(p.bytes // (2 * ring**2), 1) * 2 * ring**2
            at = Parameters(ring, size, direction)  # type: ignore[arg-type]
            built = build(at, result.chip)
            time_s = run(built.graph, chip=result.chip, ideal=True).time_s
            factors.append(time_s / float(built.extra["all_gather_s"]))
        name = direction.replace("_", " ")
        curves.append(Curve(f"ring, {name}", rings, factors))
        curves.append(Curve(f"its limit, {limit:g}", rings, [limit] * len(rings), dashed=True, colour=len(curves) - 1))
    draw_lines(
        path,
        [Panel(curves, "time of an AllToAll over that of an AllGather", lambda value: f"{value:.3g}", log_y=False)],
        title=f"AllToAll of {format_bytes(p.bytes)} on rings of {result.chip.name}: a quarter of an AllGather",
        x_label="chips of the ring",
    )


if __name__ == "__main__":
    raise SystemExit(run_script(__file__))
