"""One decode step of a model: a new token for every request, on one chip or tensor-parallel over a ring.

Weights and the cached keys and values stream from HBM through VMEM in double-buffered tiles; activations stay in VMEM.
On a ring the heads, the feed-forward columns and the vocabulary are split, and each layer ends its two blocks with an
AllReduce over the links. With few requests the step takes as long as HBM needs to be read once; a larger ring reads
less a chip, until the latency of the AllReduces eats the gain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from simcore.chips import Chip
from simcore.lowering import LoweringOptions, lower
from simcore.quantities import format_bytes, format_flops, format_seconds
from simcore.scenario import Simulation, param, run_script
from workloads.accounting import account
from workloads.catalogue import load_model
from workloads.transformer import decode_step

EXAMPLE = "--ring 4 --gantt decode_step.png"
GIB = 2**30


@dataclass(frozen=True)
class Parameters:
    model: str = param("example-6b", help="a model's name, or the path of a config.json")
    batch: int = param(4, help="requests, one new token each", minimum=1, maximum=100_000)
    context: int = param(8192, help="cached positions of each request", minimum=0, maximum=10_000_000)
    ring: int = param(1, help="chips that the model is split over", minimum=1, maximum=4096)
    buffers: int = param(2, help="buffers of each kind of tile", minimum=1, maximum=64)
    collectives: Literal["auto", "ring"] = param("auto", help="auto: the fastest; ring: never a whole array in one shot")
    direction: Literal["one_way", "both"] = param("both", help="directions of the ring's links that are used")


def build(p: Parameters, chip: Chip) -> Simulation:
    config = load_model(p.model)
    ops = decode_step(config, batch=p.batch, context=p.context, ring=p.ring)
    graph = lower(ops, chip, LoweringOptions(buffers=p.buffers, ring_direction=p.direction, algorithm=p.collectives))
    held = account(config, batch=p.batch, cached=p.context, new=1)
    # On a ring some parts may be copied to every chip, and are read and computed there.
    done = account(config, batch=p.batch, cached=p.context, new=1, ring=p.ring)
    memory_s = done.read_bytes / p.ring / chip.hbm_bandwidth_bytes_per_s
    compute_s = done.flops / p.ring / chip.peak(config.dtype)
    extra = {
        "model_parameters": held.parameters,
        "weight_bytes": held.weight_bytes,
        "norm_bytes": held.norm_bytes,
        "kv_cache_bytes": held.kv_cache_bytes,
        "weights_and_kv_gib": held.weights_and_kv_bytes / GIB,
        "read_bytes": done.read_bytes,
        "memory_bound_s": memory_s,
        "compute_bound_s": compute_s,
    }
    notes = (
        f"{config.name}: weights {format_bytes(held.weight_bytes, binary=True)} + KV cache "
        f"{format_bytes(held.kv_cache_bytes, binary=True)} = {held.weights_and_kv_bytes / GIB:.3f} GiB "
        f"(norm weights, {format_bytes(held.norm_bytes)}, besides)",
        f"a step reads {done.read_bytes / 1e9:.3f} GB of weights and cache and computes {format_flops(done.flops)}: "
        f"memory bound {format_seconds(memory_s)}, compute bound {format_seconds(compute_s)} a chip",
    )
    return Simulation(graph, extra=extra, notes=notes)


if __name__ == "__main__":
    raise SystemExit(run_script(__file__))
