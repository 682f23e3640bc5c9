"""One decode step of a model: a new token for every request, on one chip or under any plan on many.

Weights and the cached keys and values stream from HBM through VMEM in double-buffered tiles; activations stay in VMEM.
On a ring the heads, the feed-forward columns and the vocabulary are split, and each layer ends its two blocks with an
AllReduce over the links. With few requests the step takes as long as HBM needs to be read once; a larger ring reads
less a chip, until the latency of the AllReduces eats the gain. ``--plan`` has other ways to split the model.
"""

from __future__ import annotations

from dataclasses import dataclass

from scenarios._serving import Serving, chip_bounds, held_figures, lowered, rate_figures, step_options
from simcore.chips import Chip
from simcore.scenario import Simulation, param, run_script
from workloads.accounting import account
from workloads.catalogue import load_model

EXAMPLE = "--ring 4 --gantt decode_step.png"


@dataclass(frozen=True)
class Parameters(Serving):
    model: str = param("example-6b", help="a model's name, or the path of a config.json")
    batch: int = param(4, help="requests, one new token each", minimum=1, maximum=100_000)
    context: int = param(8192, help="cached positions of each request", minimum=0, maximum=10_000_000)


def build(p: Parameters, chip: Chip) -> Simulation:
    config, options = load_model(p.model), step_options(p)
    graph, stages = lowered(p, chip, config, "decode")
    held = account(config, batch=p.batch, cached=p.context, new=1, **options)
    dtype = p.activation_dtype or config.dtype
    holds, first = held_figures(config, held)
    bounds, second = chip_bounds(stages, chip, dtype)
    needed = held.layer_flops + held.attention_needed_flops + held.vocabulary_flops
    return Simulation(
        graph,
        extra=holds | bounds,
        notes=(first, second),
        derive=lambda result: rate_figures(
            result, tokens=p.batch, model_flops=needed, needed_bytes=held.read_bytes, dtype=dtype,
            price=p.price_per_chip_hour,
        ),
    )  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(run_script(__file__))
