"""The simpy engine beside bare SimPy: ``python -m benchmarks.engine``.

Two graphs: tiles, double-buffered (load, compute and store of each, with buffers), and an AllGather on a ring of chips
(a transfer of each chip and step, that depends on the neighbour's). Beside each the same number of bare SimPy cycles of
request, timeout and release, on as many resources, in the cheapest idiom that there is: callbacks on one slotted object
a task. The runs alternate in one process and medians are compared, so that a slow moment of the machine meets both.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import simpy
from rich.console import Console
from rich.table import Table

from simcore.chips import load_chip
from simcore.collectives import RingTensor, all_gather
from simcore.engine.simpy_engine import SimpyEngine
from simcore.graph import Fixed, Take, TaskGraph
from simcore.graph.flat import FlatGraph
from simcore.graph.unroll import unroll
from simcore.hardware import Hardware

AIM = 2.5


class BareTask:
    """One cycle of request, timeout and release; its end starts the next cycle of its resource."""

    __slots__ = ("duration", "env", "left", "request", "resource")

    def __init__(self, env: simpy.Environment, resource: simpy.Resource, duration: int, left: int) -> None:
        self.env, self.resource, self.duration, self.left = env, resource, duration, left
        self.request = resource.request()
        self.request.callbacks.append(self.granted)

    def granted(self, _: simpy.Event) -> None:
        self.env.timeout(self.duration).callbacks.append(self.served)

    def served(self, _: simpy.Event) -> None:
        self.resource.release(self.request)
        if self.left:
            BareTask(self.env, self.resource, self.duration, self.left - 1)


def bare_cycles(tasks: int, resources: int) -> None:
    """Run ``tasks`` bare cycles over ``resources`` resources."""
    env = simpy.Environment()
    share, more = divmod(tasks, resources)
    for number in range(resources):
        BareTask(env, simpy.Resource(env), 100 + number, share + (number < more) - 1)
    env.run()


def tiles(count: int) -> TaskGraph:
    """``count`` tiles: load, compute, store, each of two buffers in and two out."""
    graph = TaskGraph("tiles")
    chip = graph.entity_class("chip")
    for unit in ("hbm", "mxu"):
        chip.unit(unit)
    for pool in ("in", "out"):
        chip.pool(pool, memory="vmem", buffers=2, buffer_bytes=1024)
    with chip.loop("tile", count):
        load = chip.task("load", unit="hbm", queue="loads", work=Fixed(300), takes=[Take("in", ["compute"])])
        compute = chip.task("compute", unit="mxu", work=Fixed(500), after=[load], takes=[Take("out", ["store"])])
        chip.task("store", unit="hbm", queue="stores", work=Fixed(100), after=[compute])
    return graph


def ring(chips: int, gathers: int) -> TaskGraph:
    """``gathers`` AllGathers after each other on a ring of ``chips``."""
    graph = TaskGraph("ring")
    chip = graph.entity_class("chip", mesh={"x": chips})
    for number in range(gathers):
        chip.tensor(f"t{number}", bytes=chips * 64, shape=(chips * 64,))
        after = [f"g{number - 1}.end"] if number else []
        all_gather(chip, f"g{number}", "x", RingTensor(f"t{number}", 64), after=after)
    return graph


def play(flat: FlatGraph) -> None:
    """Run the engine on a flat graph, to the schedule's columns."""
    env = simpy.Environment(initial_time=0)
    run = SimpyEngine(flat, env, [simpy.Resource(env) for _ in flat.units])
    env.run()
    run.schedule()


def seconds(function: Callable[..., Any], *arguments: Any) -> float:
    """Wall time of one call, with garbage collected before and not during it."""
    gc.collect()
    gc.disable()
    began = time.perf_counter()
    function(*arguments)
    took = time.perf_counter() - began
    gc.enable()
    return took


def peak_bytes(function: Callable[..., Any], *arguments: Any) -> int:
    """Peak of what Python allocates during one call, by tracemalloc (it sees numpy's arrays too)."""
    gc.collect()
    tracemalloc.start()
    function(*arguments)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=60_000, help="tasks of each graph, about (default %(default)s)")
    parser.add_argument("--repeats", type=int, default=5, help="alternating runs, of which the median counts")
    options = parser.parse_args()
    hardware = Hardware(load_chip("v5e"), ideal=True)
    graphs = {
        "tiles, two buffers": tiles(max(1, options.tasks // 3)),
        "ring of 64 chips": ring(64, max(1, options.tasks // (64 * 65))),
    }
    columns = ("graph", "tasks", "engine tasks/s", "bare cycles/s", "us/task", "ratio", "bytes/task", "unroll us/task")
    table = Table(*columns, title=f"simpy engine beside bare SimPy, medians of {options.repeats}")
    worst = 0.0
    for name, graph in graphs.items():
        flat = unroll(graph, hardware)
        n, busy_units = len(flat), len(set(flat.unit.tolist()) - {-1})
        engine, bare = [], []
        for _ in range(options.repeats):
            engine.append(seconds(play, flat))
            bare.append(seconds(bare_cycles, n, busy_units))
        engine_s, bare_s = statistics.median(engine), statistics.median(bare)
        worst = max(worst, engine_s / bare_s)
        table.add_row(
            name,
            f"{n:,}",
            f"{n / engine_s:,.0f}",
            f"{n / bare_s:,.0f}",
            f"{engine_s / n * 1e6:.2f}",
            f"{engine_s / bare_s:.2f}",
            f"{peak_bytes(play, flat) / n:,.0f}",
            f"{seconds(unroll, graph, hardware) / n * 1e6:.2f}",
        )
    console = Console(width=120)
    console.print(table)
    console.print(f"largest ratio {worst:.2f}, aim {AIM}: {'reached' if worst <= AIM else 'missed'}")
    console.print("memory: tracemalloc's peak during the engine's run, the flat graph itself not counted")


if __name__ == "__main__":
    main()
