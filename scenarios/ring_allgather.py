"""A ring AllGather, ReduceScatter or AllReduce, as the chunk transfers of every link.

``--bytes`` is V, the full array of the collective. On a one-way ring of n chips a shard goes round in n - 1 steps, both
ways in half as many:

    one way   (n - 1) (V / (n b) + l)
    both      (n - 1) / 2 V / (n b) + ceil((n - 1) / 2) l

with the one-way link bandwidth b and the hop latency l; an AllReduce is a ReduceScatter and an AllGather. Small arrays
are bound by latency, large ones by bandwidth. Times in the ideal model are these, to the picosecond.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from simcore.chips import Chip
from simcore.collectives import RingTensor, all_gather, all_reduce, reduce_scatter
from simcore.collectives.closed_forms import ring_both_ways_ps, ring_chunked_one_way_ps, ring_one_way_ps
from simcore.errors import ScenarioError
from simcore.graph import TaskGraph
from simcore.quantities import PS_PER_S, format_bytes, parse_ps
from simcore.scenario import Bandwidth, Bytes, Seconds, Simulation, param, run_script

EXAMPLE = "--ring 8 --bytes 64MiB --direction both --ideal"
COLLECTIVES = {"all_gather": all_gather, "reduce_scatter": reduce_scatter, "all_reduce": all_reduce}
ELEMENT_BYTES = 2


@dataclass(frozen=True)
class Parameters:
    ring: int = param(8, help="chips of the ring", minimum=1, maximum=4096)
    bytes: Bytes = param(2**26, help="the full array of the collective, V", minimum=1, maximum=2**45)
    direction: Literal["one_way", "both"] = param("one_way", help="link directions that are used")
    link_bandwidth: Bandwidth | None = param(None, help="of a link, one-way; none: the chip's", above=0)
    hop_latency: Seconds | None = param(None, help="of a hop; none: the chip's", minimum=0, maximum=1)
    collective: Literal["all_gather", "reduce_scatter", "all_reduce"] = param("all_gather", help="what is done")
    chunks: int = param(1, help="pieces that a shard is sent in", minimum=1, maximum=4096)


def chip_for(p: Parameters, chip: Chip) -> Chip:
    """The chip with the link that is asked for."""
    figures = {"ici_link_bandwidth_bytes_per_s": p.link_bandwidth, "ici_hop_latency_s": p.hop_latency}
    given = {name: value for name, value in figures.items() if value is not None}
    return chip.replace(**given) if given else chip


def build(p: Parameters, chip: Chip) -> Simulation:
    shard_bytes = _shard_bytes(p)
    graph = TaskGraph("ring")
    ring = graph.entity_class("chip", mesh={"x": p.ring})
    elements = p.bytes // ELEMENT_BYTES
    ring.tensor("array", bytes=p.bytes, shape=(elements,), persistent=True)
    COLLECTIVES[p.collective](
        ring,
        p.collective,
        "x",
        RingTensor("array", shard_bytes, ELEMENT_BYTES),
        direction=p.direction,
        chunks=p.chunks,
    )
    extra: dict[str, float] = {"shard_bytes": shard_bytes}
    closed = _closed_form_ps(p, chip, shard_bytes)
    if closed is not None:
        extra["closed_form_s"] = closed / PS_PER_S
    ways = "both directions" if p.direction == "both" else "one direction"
    note = f"{p.ring} chips, shards of {format_bytes(shard_bytes)}, {ways}"
    return Simulation(graph, extra=extra, notes=(note,))


def _shard_bytes(p: Parameters) -> int:
    unit = p.ring * ELEMENT_BYTES
    if p.bytes % unit:
        nearest = max(round(p.bytes / unit), 1) * unit
        raise ScenarioError(
            f"--bytes {p.bytes} does not cut into {p.ring} equal shards of {ELEMENT_BYTES}-byte elements: "
            f"{nearest} would"
        )
    return p.bytes // p.ring


def _closed_form_ps(p: Parameters, chip: Chip, shard_bytes: int) -> int | None:
    """The time in the ideal model; None for chunks that go both ways, which have no simple form."""
    bandwidth = float(chip.require("ici_link_bandwidth_bytes_per_s"))
    latency_ps = parse_ps(float(chip.require("ici_hop_latency_s")))
    phases = 2 if p.collective == "all_reduce" else 1
    if p.direction == "both":
        if p.chunks > 1:
            return None
        return phases * ring_both_ways_ps(p.ring, shard_bytes, bandwidth, latency_ps, ELEMENT_BYTES)
    if p.chunks == 1:
        return phases * ring_one_way_ps(p.ring, shard_bytes, bandwidth, latency_ps)
    if shard_bytes % (p.chunks * ELEMENT_BYTES):
        return None
    return phases * ring_chunked_one_way_ps(p.ring, shard_bytes, p.chunks, bandwidth, latency_ps)


if __name__ == "__main__":
    raise SystemExit(run_script(__file__))
