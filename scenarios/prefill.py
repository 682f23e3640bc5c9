"""One prefill of a model: all positions of every prompt at once, caches filled, logits of the last position.

The same layers as in ``decode_step``, but with thousands of rows: the matmuls are compute-bound, activations that do
not fit in VMEM move through HBM, and attention runs by blocks with an online softmax, so that scores never leave VMEM.
``--causal skip`` leaves out the blocks above the diagonal, as kernels do; ``full`` computes the whole rectangle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from simcore.chips import Chip
from simcore.lowering import LoweringOptions, lower
from simcore.scenario import Simulation, param, run_script
from workloads.accounting import account
from workloads.catalogue import load_model
from workloads.transformer import prefill

EXAMPLE = "--context 1024 --ring 4"
GIB = 2**30


@dataclass(frozen=True)
class Parameters:
    model: str = param("example-6b", help="a model's name, or the path of a config.json")
    batch: int = param(1, help="prompts", minimum=1, maximum=10_000)
    context: int = param(2048, help="positions of each prompt", minimum=1, maximum=1_000_000)
    ring: int = param(1, help="chips that the model is split over", minimum=1, maximum=4096)
    causal: Literal["full", "skip"] = param("skip", help="compute all score blocks, or skip those above the diagonal")
    buffers: int = param(2, help="buffers of each kind of tile", minimum=1, maximum=64)
    direction: Literal["one_way", "both"] = param("both", help="directions of the ring's links that are used")


def build(p: Parameters, chip: Chip) -> Simulation:
    config = load_model(p.model)
    ops = prefill(config, batch=p.batch, context=p.context, ring=p.ring, causal=p.causal)
    graph = lower(ops, chip, LoweringOptions(buffers=p.buffers, ring_direction=p.direction))
    held = account(config, batch=p.batch, cached=0, new=p.context)
    extra = {
        "model_parameters": held.parameters,
        "weight_bytes": held.weight_bytes,
        "kv_cache_bytes": held.kv_cache_bytes,
        "weights_and_kv_gib": held.weights_and_kv_bytes / GIB,
        "tokens": p.batch * p.context,
    }
    how = "skips score blocks above the diagonal" if p.causal == "skip" else "computes the full rectangle of scores"
    notes = (f"{config.name}: {p.batch} x {p.context} positions; attention {how}",)
    return Simulation(graph, extra=extra, notes=notes)


if __name__ == "__main__":
    raise SystemExit(run_script(__file__))
