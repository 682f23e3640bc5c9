"""A collective over one or several axes of a real slice, all of whose links are used at once.

The array is cut in as many parts as there are axes; each part goes along them in another order, so that every axis
always has work. Equal axes that wrap around reach the bandwidth bound; axes of different sizes, and lines, do not
quite. Which axes wrap is the slice's: on v5e only an axis of 16, on v5p all axes of whole cubes. ``--plot`` draws the
slice with what went over each link.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from simcore.chips import Chip
from simcore.collectives import RingTensor
from simcore.collectives.auto import collective
from simcore.errors import ScenarioError, nearest
from simcore.graph import TaskGraph
from simcore.quantities import format_bytes, format_seconds
from simcore.result import RunResult
from simcore.scenario import Bytes, Simulation, param, run_script
from topologies import Topology, tpu_slice

EXAMPLE = "--slice 4x4x4 --axes xyz --chip v5p --plot multi_axis.png"
DEFAULT_CHIP = "v5p"
KINDS = {"all_gather": "AllGather", "reduce_scatter": "ReduceScatter", "all_reduce": "AllReduce"}
ELEMENT_BYTES = 2


@dataclass(frozen=True)
class Parameters:
    slice: str = param("4x4x4", help="shape of the slice, such as 8x16 on v5e")
    axes: str = param("xyz", help="the axes that the collective goes over, such as x or xy")
    bytes: Bytes = param(3 * 2**24, help="the full array of each group, V", minimum=1, maximum=2**45)
    collective: Literal["all_gather", "reduce_scatter", "all_reduce"] = param("all_gather", help="what is done")
    direction: Literal["one_way", "both"] = param("both", help="link directions that are used")


def topology_of(p: Parameters, chip: Chip) -> Topology:
    """The slice."""
    return tpu_slice.build(chip, p.slice)


def build(p: Parameters, chip: Chip) -> Simulation:
    topology = topology_of(p, chip)
    names = [axis.name for axis in topology.axes]
    for name in p.axes:
        if name not in names:
            raise ScenarioError(f"--axes {p.axes}: the slice has no axis {name!r}: {nearest(name, names)}")
    if not p.axes or len(set(p.axes)) < len(p.axes):
        raise ScenarioError(f"--axes {p.axes or repr('')}: name one or more axes, each once, such as {''.join(names)}")
    sizes = [topology.axis(name).size for name in p.axes]
    n = math.prod(sizes)
    unit = n * ELEMENT_BYTES
    if p.bytes % unit:
        fits = max(round(p.bytes / unit), 1) * unit
        raise ScenarioError(f"--bytes {p.bytes} does not cut into {n} equal shards: {fits} would")
    graph = TaskGraph("multi_axis", notes=list(topology.notes))
    mesh = {axis.name: axis.size for axis in topology.axes}
    wraps = {axis.name: axis.wraps or axis.size == 1 for axis in topology.axes}
    cls = graph.entity_class("chip", mesh=mesh, wraps=wraps)
    cls.tensor("array", bytes=p.bytes, shape=(p.bytes // ELEMENT_BYTES,), persistent=True)
    tensor = RingTensor("array", p.bytes // n, ELEMENT_BYTES)
    collective(
        cls, p.collective, KINDS[p.collective], tuple(p.axes), tensor, chip=chip, graph=graph, direction=p.direction
    )
    bound = bound_s(p, chip, topology)
    lines = [name for name in p.axes if not wraps[name]]
    note = f"{n} chips, shards of {format_bytes(p.bytes // n)}, bandwidth bound {format_seconds(bound)}"
    if lines:
        note += f"; {', '.join(lines)} {'do' if len(lines) > 1 else 'does'} not wrap around: lines"
    return Simulation(
        graph,
        extra={"chips_in_group": n, "shard_bytes": p.bytes // n, "bandwidth_bound_s": bound, "lines": lines},
        notes=(note,),
        derive=lambda result: (
            {"over_bandwidth_bound": result.time_s / bound if bound else 0.0},
            (f"{result.time_s / bound:.3f} x the bandwidth bound",) if bound else (),
        ),
    )


def bound_s(p: Parameters, chip: Chip, topology: Topology) -> float:
    """(N - 1)/N V over all links of the axes at once; the chip at the end of a line has one link of it."""
    rate = float(chip.require("ici_link_bandwidth_bytes_per_s"))
    axes = [topology.axis(name) for name in p.axes if topology.axis(name).size > 1]
    if not axes:
        return 0.0
    n = math.prod(axis.size for axis in axes)
    links = sum(2 if axis.wraps and p.direction == "both" else 1 for axis in axes)
    phases = 2 if p.collective == "all_reduce" else 1
    return phases * (n - 1) / n * p.bytes / (rate * links)


def plot(result: RunResult, path: Path) -> None:
    """The slice with the bytes that went over each link."""
    from simcore.views.topology_plot import draw_topology, traffic_of

    p = Parameters(**dict(result.parameters))
    draw_topology(topology_of(p, result.chip), path, traffic_of(result))


if __name__ == "__main__":
    raise SystemExit(run_script(__file__))
