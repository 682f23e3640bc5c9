"""A training step from end to end: forward, loss, backward, the sums of gradients, and the optimizer.

``--plan fsdp=64,tensor=8`` says how the model is spread over chips, ``--remat`` what the backward pass finds kept and
what it computes once more. MFU counts the FLOPs that the model needs (forward once, backward twice that), HFU those
that are executed.
"""

from __future__ import annotations

from dataclasses import dataclass

from scenarios._training import Training, lowered, rates
from simcore.chips import Chip
from simcore.quantities import format_bytes, format_count, format_flops
from simcore.scenario import Simulation, run_script
from workloads.catalogue import load_model
from workloads.training_account import held_bytes, needed_of

EXAMPLE = "--model tiny --context 256 --batch 8 --plan fsdp=4"
DEFAULT_CHIP = "v5p"


@dataclass(frozen=True)
class Parameters(Training):
    pass


def build(p: Parameters, chip: Chip) -> Simulation:
    config = load_model(p.model)
    graph, stages = lowered(p, chip, config)
    needed = needed_of(config, batch=p.batch, context=p.context)
    held = held_bytes(stages[0])
    parts = ", ".join(f"{what} {format_bytes(size, binary=True)}" for what, size in held.items())
    tokens = p.batch * p.context
    return Simulation(
        graph,
        extra={"tokens": tokens, "parameters": needed.parameters, "held_bytes": held},
        notes=(
            f"{config.name}: {format_count(needed.parameters)} parameters, {format_count(tokens)} tokens, "
            f"{format_flops(needed.flops)} that the model needs; remat {p.remat}, {p.optimizer}",
            f"{'a chip of the first stage' if len(stages) > 1 else 'each chip'} holds, with what is kept of a "
            f"microbatch, {parts}",
        ),
        derive=lambda result: rates(result, needed, tokens, config.dtype),
    )


if __name__ == "__main__":
    raise SystemExit(run_script(__file__))
