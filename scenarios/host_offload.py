"""Layers whose weights live in the host's memory and come over PCIe while others compute.

Each chip has room for a few layers (``--buffers``); a layer's weights come from the host as soon as a buffer is free,
and its matmul runs when they are there. The chips that share a PCIe link are served in turn. With two buffers or more
the time is that of the slower of PCIe and compute, and the first layer's transfer, which nothing hides.
"""

from __future__ import annotations

from dataclasses import dataclass

from simcore.chips import Chip
from simcore.collectives.hosts import chips_and_hosts
from simcore.errors import ScenarioError
from simcore.graph import Matmul, Ref, Take, TaskGraph, Transfer
from simcore.quantities import format_bytes, format_seconds
from simcore.scenario import Simulation, param, run_script

EXAMPLE = "--layers 16 --tokens 8192 --gantt host_offload.png"
ELEMENT_BYTES = 2


@dataclass(frozen=True)
class Parameters:
    layers: int = param(16, help="layers whose weights come from the host", minimum=1, maximum=10_000)
    width: int = param(4096, help="of a layer's square matrix", minimum=1, maximum=1_000_000)
    tokens: int = param(8192, help="rows that each chip multiplies", minimum=1, maximum=100_000_000)
    chips: int = param(4, help="chips of the host", minimum=1, maximum=64)
    chips_per_link: int = param(1, help="chips that share a PCIe link, a divisor of the chips", minimum=1, maximum=64)
    buffers: int = param(2, help="layers that a chip has room for", minimum=1, maximum=1000)


def build(p: Parameters, chip: Chip) -> Simulation:
    if p.chips % p.chips_per_link:
        raise ScenarioError(f"--chips-per-link {p.chips_per_link} is no divisor of --chips {p.chips}")
    size = p.width * p.width * ELEMENT_BYTES
    graph = TaskGraph("host_offload")
    hosts = chips_and_hosts(graph, {"x": p.chips}, (p.chips,))
    own, host = hosts.chips, hosts.cls
    own.unit("mxu")
    own.pool("layers in HBM", memory="hbm", buffers=p.buffers, buffer_bytes=size)
    copies = [f"copy{number}" for number in range(p.chips)]
    with own.loop("layer", p.layers, layers=1):
        own.task("room", kind="sync", takes=[Take("layers in HBM", freed_by=["multiply"])])
        own.task(
            "multiply",
            unit="mxu",
            work=Matmul(p.tokens, p.width, p.width, "bf16"),
            # Of the host's copies the one that is for this chip.
            after=["room", *(Ref(copy, on=hosts.of_chip(j), outside="ignore") for j, copy in enumerate(copies))],
        )
    with host.loop("layer", p.layers, layers=1):
        for number, offset in enumerate(hosts.offsets):
            host.task(
                copies[number],
                unit=host.unit(f"pcie_{number // p.chips_per_link}", kind="pcie"),
                work=Transfer(size),
                moves="weights",
                after=[Ref("room", on=offset)],
            )
    rate = float(chip.require("pcie_bandwidth_bytes_per_s"))
    pcie_s = p.layers * p.chips_per_link * size / rate
    compute_s = p.layers * 2 * p.tokens * p.width**2 / chip.peak("bf16")
    what = "PCIe" if pcie_s > compute_s else "compute"
    note = (
        f"a layer's {format_bytes(size)}, {p.chips_per_link} chips a link: PCIe {format_seconds(pcie_s)}, compute "
        f"{format_seconds(compute_s)} in all: bound by {what}"
    )
    enough = rate * 2 * p.width**2 / (chip.peak("bf16") * size)
    tokens = p.chips_per_link / enough if enough else 0.0
    extra = {"pcie_bound_s": pcie_s, "compute_bound_s": compute_s, "tokens_that_hide_pcie": tokens}
    return Simulation(graph, extra=extra, notes=(note, f"{tokens:.0f} tokens a chip or more hide the transfers"))


if __name__ == "__main__":
    raise SystemExit(run_script(__file__))
