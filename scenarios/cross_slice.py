"""An AllReduce over several slices: inside each by the ICI, across them by the data-centre network.

The hierarchical way adds up inside each slice first, so that only a chip's shard of what its slice has added crosses
the network, and gathers inside again. The flat way sends whole arrays across. The chips of a host share its network
card evenly. ``--plot`` draws both over the bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from simcore.chips import Chip
from simcore.collectives import RingTensor
from simcore.collectives.auto import collective
from simcore.collectives.mixed import in_turn
from simcore.errors import ScenarioError
from simcore.graph import TaskGraph
from simcore.quantities import format_bytes, format_seconds
from simcore.result import RunResult
from simcore.scenario import Bytes, Simulation, param, run_script
from topologies import tpu_slice

EXAMPLE = "--slices 4 --slice 4x4 --bytes 64MiB --plot cross_slice.png"
ELEMENT_BYTES = 2
NETWORK = "dcn_share"


@dataclass(frozen=True)
class Parameters:
    slices: int = param(2, help="slices that are joined", minimum=1, maximum=1024)
    slice: str = param("4x4", help="shape of each")
    bytes: Bytes = param(2**26, help="the array that every chip has a partial sum of, V", minimum=1, maximum=2**45)
    way: Literal["hierarchical", "flat"] = param("hierarchical", help="shards across the network, or whole arrays")


def graph_of(p: Parameters, chip: Chip) -> TaskGraph:
    """The AllReduce of one array."""
    topology = tpu_slice.build(chip, p.slice)
    inside = [axis for axis in topology.axes if axis.size > 1]
    n = p.slices * math.prod(axis.size for axis in inside)
    elements = p.bytes // ELEMENT_BYTES
    if p.bytes % (n * ELEMENT_BYTES):
        fits = max(round(p.bytes / (n * ELEMENT_BYTES)), 1) * n * ELEMENT_BYTES
        raise ScenarioError(f"--bytes {p.bytes} does not cut into {n} equal shards: {fits} would")
    graph = TaskGraph("cross_slice", notes=list(topology.notes))
    mesh = {"slice": p.slices, **{axis.name: axis.size for axis in inside}}
    wraps = {"slice": True, **{axis.name: axis.wraps for axis in inside}}
    cls = graph.entity_class("chip", mesh=mesh, wraps=wraps)
    cls.tensor("array", bytes=p.bytes, shape=(elements,), persistent=True)
    names = tuple(axis.name for axis in inside)
    if p.way == "hierarchical":
        shard = RingTensor("array", p.bytes // n, ELEMENT_BYTES, memory="hbm")
        networks = {"slice": NETWORK, **dict.fromkeys(names, "ici")}
        in_turn("AllReduce", cls, "all_reduce", ("slice", *names), shard, networks=networks)
        return graph
    after = []
    if names:
        within = RingTensor("array", p.bytes * p.slices // n, ELEMENT_BYTES, memory="hbm")
        after = [collective(cls, "inside", "AllReduce", names, within, chip=chip)]
    whole = RingTensor("array", p.bytes // p.slices, ELEMENT_BYTES, memory="hbm")
    collective(cls, "across", "AllReduce", "slice", whole, chip=chip, network=NETWORK, algorithm="ring", after=after)
    return graph


def build(p: Parameters, chip: Chip) -> Simulation:
    graph = graph_of(p, chip)
    chips = math.prod(int(part) for part in p.slice.lower().split("x"))
    share = float(chip.require("dcn_bandwidth_bytes_per_s_per_host")) / chip.chips_per_host
    crossing = 2 * (p.slices - 1) / p.slices * p.bytes / (chips if p.way == "hierarchical" else 1)
    note = (
        f"{p.slices} slices of {chips} chips; each chip sends {format_bytes(crossing)} across, at "
        f"{share / 1e9:.3g} GB/s of its host's card: {format_seconds(crossing / share)} at least"
    )
    extra = {"crossing_bytes_per_chip": crossing, "network_bound_s": crossing / share}
    return Simulation(graph, extra=extra, notes=(note,))


def plot(result: RunResult, path: Path) -> None:
    """Both ways over the bytes."""
    from simcore.running import run
    from simcore.views.lines_plot import Curve, Panel, draw_lines

    p = Parameters(**dict(result.parameters))
    chips = p.slices * math.prod(int(part) for part in p.slice.lower().split("x"))
    unit = chips * ELEMENT_BYTES
    sizes = [-(-(2**14) * 4**power // unit) * unit for power in range(8)]
    curves = []
    for way in ("flat", "hierarchical"):
        times = [
            run(graph_of(replace(p, bytes=size, way=way), result.chip), chip=result.chip, ideal=result.ideal).time_s
            for size in sizes
        ]
        curves.append(Curve(way, sizes, times))
    factor = curves[0].y[-1] / curves[1].y[-1]
    draw_lines(
        path,
        [Panel(curves, "time of an AllReduce", format_seconds)],
        title=(
            f"AllReduce over {p.slices} slices of {p.slice} {result.chip.name}: adding up inside first is "
            f"{factor:.1f} x as fast for {format_bytes(sizes[-1])}"
        ),
        x_label="V, the array of every chip",
        x_format=format_bytes,
    )


if __name__ == "__main__":
    raise SystemExit(run_script(__file__))
