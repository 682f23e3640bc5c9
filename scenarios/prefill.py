"""The prefill of a batch of prompts: all positions at once, caches filled, logits of the last position.

Matmuls are large and compute-bound; attention grows with the square of the context. ``--causal skip`` leaves out the
blocks of scores above the diagonal, as a flash kernel does; ``--causal full`` computes the whole rectangle.
``--cached`` positions make it a chunk of a longer prompt.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from scenarios._serving import Serving, chip_bounds, held_figures, lowered, rate_figures, step_options
from simcore.chips import Chip
from simcore.scenario import Simulation, param, run_script
from workloads.accounting import account
from workloads.catalogue import load_model

EXAMPLE = "--context 1024 --ring 4"


@dataclass(frozen=True)
class Parameters(Serving):
    model: str = param("example-6b", help="a model's name, or the path of a config.json")
    batch: int = param(1, help="prompts", minimum=1, maximum=10_000)
    context: int = param(2048, help="new positions of each prompt", minimum=1, maximum=1_000_000)
    cached: int = param(0, help="positions of each prompt that are cached already", minimum=0, maximum=10_000_000)
    causal: Literal["full", "skip"] = param("skip", help="compute all score blocks, or skip those above the diagonal")


def build(p: Parameters, chip: Chip) -> Simulation:
    config, options = load_model(p.model), step_options(p)
    graph, stages = lowered(p, chip, config, "prefill", cached=p.cached, causal=p.causal)
    held = account(config, batch=p.batch, cached=p.cached, new=p.context, **options)
    dtype = p.activation_dtype or config.dtype
    holds, first = held_figures(config, held)
    bounds, second = chip_bounds(stages, chip, dtype)
    needed = held.layer_flops + held.attention_needed_flops + held.vocabulary_flops
    how = "skips score blocks above the diagonal" if p.causal == "skip" else "computes the full rectangle of scores"
    tokens = p.batch * p.context
    return Simulation(
        graph,
        extra=holds | bounds | {"tokens": tokens},
        notes=(first, f"{p.batch} x {p.context} positions; attention {how}", second),
        derive=lambda result: rate_figures(
            result, tokens=tokens, model_flops=needed, needed_bytes=held.read_bytes, dtype=dtype,
            price=p.price_per_chip_hour,
        ),
    )  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(run_script(__file__))
