"""Ring collectives over ring size and bytes: where the latency of hops ends to count and bandwidth begins.

One point is simulated, with its closed form beside it (see `scenarios/ring_allgather.py` for the forms). ``--plot``
sweeps bytes for several rings, one way and both: flat where (n - 1) hops are all that counts, and rising with V where
the link's bandwidth is. The two meet at V = n b l, which is drawn for each ring.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from scenarios import ring_allgather
from simcore.chips import Chip
from simcore.quantities import format_bytes, format_seconds
from simcore.result import RunResult
from simcore.scenario import Simulation, param, run_script

EXAMPLE = "--ring 16 --bytes 1MiB --direction both --plot ring_collectives.png"
SMALLEST, POINTS = 2**10, 11


@dataclass(frozen=True)
class Parameters(ring_allgather.Parameters):
    rings: tuple[int, ...] = param((4, 16, 64), help="ring sizes that --plot draws")


def chip_for(p: Parameters, chip: Chip) -> Chip:
    return ring_allgather.chip_for(p, chip)


def build(p: Parameters, chip: Chip) -> Simulation:
    built = ring_allgather.build(p, chip)
    crossover = crossover_bytes(p.ring, chip)
    regime = "latency" if p.bytes < crossover else "bandwidth"
    note = f"hops and bandwidth count alike at V = n b l = {format_bytes(crossover)}: {regime}-bound"
    extra = {**built.extra, "crossover_bytes": crossover, "regime": regime}
    return dataclasses.replace(built, extra=extra, notes=(*built.notes, note))


def crossover_bytes(ring: int, chip: Chip) -> float:
    """The array of which a shard takes as long as a hop: n b l."""
    bandwidth = float(chip.require("ici_link_bandwidth_bytes_per_s"))
    return ring * bandwidth * float(chip.require("ici_hop_latency_s"))


def plot(result: RunResult, path: Path) -> None:
    """Time over bytes for each ring, one way (dashed) and both."""
    from simcore.running import run
    from simcore.views.lines_plot import Curve, Panel, draw_lines

    p = Parameters(**{**result.parameters, "rings": tuple(result.parameters["rings"])})
    curves = []
    for number, ring in enumerate(p.rings):
        unit = ring * ring_allgather.ELEMENT_BYTES
        sizes = [-(-SMALLEST * 4**power // unit) * unit for power in range(POINTS)]
        for direction in ("both", "one_way"):
            times = []
            for size in sizes:
                at = dataclasses.replace(p, ring=ring, bytes=size, direction=direction, chunks=1)
                simulation = ring_allgather.build(at, result.chip)
                times.append(run(simulation.graph, chip=result.chip, ideal=result.ideal).time_s)
            name = f"ring of {ring}, {direction.replace('_', ' ')}"
            curves.append(Curve(name, sizes, times, dashed=direction == "one_way", colour=number))
    marks = [(crossover_bytes(ring, result.chip), f"n b l, ring of {ring}") for ring in p.rings]
    draw_lines(
        path,
        [Panel(curves, f"time of an {p.collective.replace('_', ' ')}", format_seconds)],
        title=(
            f"{p.collective.replace('_', ' ')} on rings of {result.chip.name}: hops count below V = n b l, bytes above"
        ),
        x_label="V, the full array",
        x_format=format_bytes,
        marks=marks,
    )


if __name__ == "__main__":
    raise SystemExit(run_script(__file__))
