"""Tiles loaded while others are computed: how many tiles, and how many buffers, hide the loads?

A load of ``--load`` and a computation of ``--compute`` are cut into q tiles. One queue loads, one computes, and a tile
lives in one of ``--buffers`` buffers from its load to the end of its computation. With a = load/q + issue cost and
c = compute/q, the time is

    q (a + c)                     with one buffer: load, compute, load, compute, ...
    q max(a, c) + min(a, c)       with two or more: the shorter of the two is hidden, but for one tile

so more tiles hide more, until what each costs to issue eats the gain. Every duration is rounded to picoseconds.
The arrays that are moved are small stand-ins (8 numbers a tile): what a load takes is said, not derived from bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from simcore.chips import Chip
from simcore.graph import BufferAccess, Fixed, Ref, Take, TaskGraph, TensorAccess
from simcore.quantities import parse_ps
from simcore.scenario import Seconds, Simulation, param, run_script
from simcore.timeline import PS_PER_S

EXAMPLE = "--tiles 16 --issue-cost 1us --ideal"
NUMBERS = 8
TILE_BYTES = NUMBERS * np.dtype(np.float32).itemsize


@dataclass(frozen=True)
class Parameters:
    load: Seconds = param(0.4e-3, help="time of all the loads together", minimum=0, maximum=3600)
    compute: Seconds = param(0.2e-3, help="time of all the computation", minimum=0, maximum=3600)
    tiles: int = param(8, help="tiles that both are cut into", minimum=1, maximum=1_000_000)
    buffers: int = param(2, help="buffers that tiles are loaded into", minimum=1, maximum=1_000_000)
    issue_cost: Seconds = param(0.0, help="what it costs to issue a load, each", minimum=0, maximum=1)


def build(p: Parameters, chip: Chip) -> Simulation:
    load_ps, compute_ps = _share_ps(p.load, p.tiles), _share_ps(p.compute, p.tiles)
    issue_ps = parse_ps(p.issue_cost)
    graph = TaskGraph("double buffering")
    core = graph.entity_class("chip")
    core.unit("hbm")
    core.unit("mxu")
    core.pool("tiles", memory="vmem", buffers=p.buffers, buffer_bytes=TILE_BYTES)
    for name in ("input", "output"):
        core.tensor(name, bytes=p.tiles * TILE_BYTES, shape=(p.tiles * NUMBERS,), persistent=name == "input")
    with core.loop("tile", p.tiles):
        load = core.task(
            "load",
            unit="hbm",
            work=Fixed(load_ps),
            kind="hbm_load",
            issue_ps=issue_ps,
            latency_ps=0,
            takes=[Take("tiles", freed_by=["compute"])],
            reads=[TensorAccess("input", _tile)],
            writes=[BufferAccess("tiles")],
            function=lambda values: values,
        )
        core.task(
            "compute",
            unit="mxu",
            work=Fixed(compute_ps),
            issue_ps=0,
            latency_ps=0,
            after=[load],
            reads=[BufferAccess("tiles", taker=Ref("load"))],
            writes=[TensorAccess("output", _tile)],
            function=lambda values: values * values,
        )
    closed_ps = closed_form_ps(p.tiles, load_ps + issue_ps, compute_ps, p.buffers)
    return Simulation(graph, extra={"closed_form_s": closed_ps / PS_PER_S})


def closed_form_ps(tiles: int, load_ps: int, compute_ps: int, buffers: int) -> int:
    """The time of ``tiles`` tiles that load and compute for so long each."""
    if buffers == 1:
        return tiles * (load_ps + compute_ps)
    return tiles * max(load_ps, compute_ps) + min(load_ps, compute_ps)


def _share_ps(total_s: float, tiles: int) -> int:
    """A tile's share, rounded half up, and never nothing of something."""
    total_ps = parse_ps(total_s)
    return max((2 * total_ps + tiles) // (2 * tiles), 1 if total_ps else 0)


def _tile(iteration: Any, coordinates: Any) -> tuple[slice, ...]:
    begin = int(iteration["tile"]) * NUMBERS
    return (slice(begin, begin + NUMBERS),)


if __name__ == "__main__":
    raise SystemExit(run_script(__file__))
