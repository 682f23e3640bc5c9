"""A training step from end to end: forward, loss, backward, the sums of gradients, and the optimizer.

``--plan fsdp=64,tensor=8`` says how the model is spread over chips, ``--remat`` what the backward pass finds kept and
what it computes once more. MFU counts the FLOPs that the model needs (forward once, backward twice that), HFU those
that are executed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from simcore.chips import Chip
from simcore.errors import ScenarioError
from simcore.lowering import LoweringOptions
from simcore.quantities import format_bytes, format_count, format_flops
from simcore.result import RunResult
from simcore.scenario import Simulation, param, run_script
from workloads.catalogue import load_model
from workloads.placing import place
from workloads.plan import Plan
from workloads.training import TrainingOptions, lowered_training
from workloads.training_account import Needed, held_bytes, needed_of

EXAMPLE = "--model tiny --context 256 --batch 8 --plan fsdp=4"
DEFAULT_CHIP = "v5p"


@dataclass(frozen=True)
class Parameters:
    model: str = param("example-6b", help="a model's name, or the path of a config.json")
    batch: int = param(16, help="sequences", minimum=1, maximum=1_000_000)
    context: int = param(2048, help="tokens of each sequence", minimum=1, maximum=1_000_000)
    plan: str = param("fsdp=16", help="ways of data, fsdp and tensor, e.g. fsdp=64,tensor=8,sequence")
    slice: str | None = param(None, help="the slice that the plan lies on, e.g. 4x4x4; else rings are assumed")
    slices: int = param(1, help="that many slices, joined by the hosts' network", minimum=1, maximum=1024)
    map: str | None = param(None, help="which kind on which axes of the slice, e.g. tensor=xy; chosen where not given")
    remat: Literal["none", "full", "matmuls"] = param(
        "full", help="computed once more in the backward pass: nothing, each layer, or all but its matmuls"
    )
    optimizer: Literal["adamw", "adam", "sgd", "momentum"] = param("adamw", help="which states and which step")
    microbatches: int | None = param(None, help="parts of the sequences, one after the other; as many as stages")
    schedule: Literal["1f1b", "gpipe"] = param("1f1b", help="order of a pipeline stage's passes")
    gradient_dtype: str | None = param(
        None, help="format of weights' gradients; that of the activations where not given"
    )
    prefetch_layers: int = param(1, help="layers ahead that weights are gathered", minimum=0, maximum=1000)
    collectives: Literal["auto", "ring"] = param("auto", help="the fastest; or rings, nothing in one shot")
    direction: Literal["one_way", "both"] = param("both", help="directions of a ring's links that are used")


def build(p: Parameters, chip: Chip) -> Simulation:
    config = load_model(p.model)
    plan = Plan.parse(p.plan)
    if p.schedule != "1f1b" and plan.pipeline == 1:
        raise ScenarioError(f"--schedule {p.schedule} has no effect: the plan has no pipeline; leave it out")
    where = place(plan, chip, p.slice or "", slices=p.slices, mapping=p.map or "")
    options = TrainingOptions(
        remat=p.remat, optimizer=p.optimizer, gradient_dtype=p.gradient_dtype or "", microbatches=p.microbatches or 0,
        schedule=p.schedule,
    )  # fmt: skip
    lowering = LoweringOptions(
        ring_direction=p.direction, algorithm=p.collectives, prefetch_layers=p.prefetch_layers, lines=where.lines,
        networks=where.networks,
    )  # fmt: skip
    graph, stages = lowered_training(
        config, chip, plan=where, lowering=lowering, batch=p.batch, context=p.context, options=options
    )
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
        derive=lambda result: _rates(result, needed, tokens, config.dtype),
    )


def _rates(result: RunResult, needed: Needed, tokens: int, dtype: str) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """Utilisations of the step, under each convention."""
    could = result.time_s * result.chips * result.chip.peak(dtype)
    figures = {
        "tokens_per_s": tokens / result.time_s,
        "flops_per_s_per_chip": needed.flops / result.time_s / result.chips,
        "mfu": needed.flops / could,
        "mfu_full_attention": needed.flops_full_attention / could,
        "hfu": result.flops / could,
    }
    line = (
        f"{format_count(round(figures['tokens_per_s']))} tokens/s, {format_flops(figures['flops_per_s_per_chip'])}/s a "
        f"chip, MFU {figures['mfu']:.1%} (attention's triangle; its square: {figures['mfu_full_attention']:.1%}), "
        f"HFU {figures['hfu']:.1%} of what is executed"
    )
    return figures, (line,)


if __name__ == "__main__":
    raise SystemExit(run_script(__file__))
