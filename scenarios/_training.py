"""What the scenarios of training share: flags, the step as tasks, and utilisations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from simcore.chips import Chip
from simcore.errors import ScenarioError
from simcore.graph import TaskGraph
from simcore.lowering import LoweringOptions
from simcore.opgraph import OpGraph
from simcore.phases import BUBBLE, EXPOSED, OTHER, phases_s
from simcore.quantities import format_count, format_flops
from simcore.result import RunResult
from simcore.scenario import param
from workloads.config import ModelConfig
from workloads.placing import place
from workloads.plan import Plan
from workloads.schedules import CHUNKED
from workloads.training import TrainingOptions, lowered_training
from workloads.training_account import Needed


@dataclass(frozen=True)
class Training:
    """Flags that every scenario of training has; those of the first lines have defaults of their own there."""

    model: str = param("example-6b", help="a model's name, or the path of a config.json")
    batch: int = param(16, help="sequences", minimum=1, maximum=1_000_000)
    context: int = param(2048, help="tokens of each sequence", minimum=1, maximum=1_000_000)
    plan: str = param("fsdp=16", help="ways of each kind, e.g. fsdp=64,tensor=8,sequence or pipeline=4,data=2")
    remat: Literal["none", "full", "matmuls"] = param(
        "full", help="computed once more in the backward pass: nothing, each layer, or all but its matmuls"
    )
    microbatches: int | None = param(None, help="parts of the sequences, one after the other; as many as stages")
    schedule: Literal["1f1b", "gpipe", "interleaved"] = param("1f1b", help="order of a pipeline stage's passes")
    chunks: int | None = param(None, help="runs of layers of each stage, interleaved; else 2", minimum=2, maximum=1000)
    slice: str | None = param(None, help="the slice that the plan lies on, e.g. 4x4x4; else rings are assumed")
    slices: int = param(1, help="that many slices, joined by the hosts' network", minimum=1, maximum=1024)
    map: str | None = param(None, help="which kind on which axes of the slice, e.g. tensor=xy; chosen where not given")
    optimizer: Literal["adamw", "adam", "sgd", "momentum"] = param("adamw", help="which states and which step")
    clip_norm: float | None = param(None, help="scale gradients down to this norm of them all together", above=0)
    master_weights: bool = param(True, help="fp32 copies of the weights, which the optimizer moves")
    gradient_dtype: str | None = param(
        None, help="format of weights' gradients; that of the activations where not given"
    )
    prefetch_layers: int = param(1, help="layers ahead that weights are gathered", minimum=0, maximum=1000)
    collectives: Literal["auto", "ring"] = param("auto", help="the fastest; or rings, nothing in one shot")
    direction: Literal["one_way", "both"] = param("both", help="directions of a ring's links that are used")


def lowered(p: Training, chip: Chip, config: ModelConfig) -> tuple[TaskGraph, list[OpGraph]]:
    """The step of the flags as tasks, and the op graphs that they are made from: one for each pipeline stage."""
    plan = Plan.parse(p.plan)
    idle = {
        "--schedule": p.schedule != "1f1b" and plan.pipeline == 1 and "the plan has no pipeline",
        "--chunks": p.chunks is not None and p.schedule not in CHUNKED and f"--schedule {p.schedule} has none",
        "--map": p.map is not None and p.slice is None and "there is no --slice to lay the plan on",
    }
    for flag, why in idle.items():
        if why:
            raise ScenarioError(f"{flag} has no effect: {why}; leave it out")
    where = place(plan, chip, p.slice or "", slices=p.slices, mapping=p.map or "")
    options = TrainingOptions(
        remat=p.remat,
        optimizer=p.optimizer,
        gradient_dtype=p.gradient_dtype or "",
        microbatches=p.microbatches or 0,
        schedule=p.schedule,
        chunks=p.chunks or 0,
        clip_norm=p.clip_norm or 0.0,
        settings={} if p.master_weights else {"master": False},
    )
    lowering = LoweringOptions(
        ring_direction=p.direction,
        algorithm=p.collectives,
        prefetch_layers=p.prefetch_layers,
        lines=where.lines,
        networks=where.networks,
    )
    return lowered_training(
        config, chip, plan=where, lowering=lowering, batch=p.batch, context=p.context, options=options
    )


def some_layers(config: ModelConfig, layers: int) -> ModelConfig:
    """The model with its first ``layers`` alone; raises `ScenarioError` if it has fewer."""
    if layers > config.n_layers:
        raise ScenarioError(f"--layers {layers}: {config.name} has {config.n_layers}")
    return replace(config, n_layers=layers, attention_pattern=config.attention_pattern[:layers])


PHASES = ("forward", "recompute", "backward", "optimizer", EXPOSED, BUBBLE)


def shares(result: RunResult) -> dict[str, float]:
    """The share of the step's time that each phase, exposed communication and the bubble take, over all chips."""
    spent = phases_s(result.timeline, result.graph.phases)
    return {phase: spent[phase] / result.time_s for phase in (*PHASES, OTHER) if spent.get(phase)}


def rates(result: RunResult, needed: Needed, tokens: int, dtype: str) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """Utilisations of the step under each convention, and shares of its phases, as figures and as lines."""
    could = result.time_s * result.chips * result.chip.peak(dtype)
    figures: dict[str, Any] = {
        "tokens_per_s": tokens / result.time_s,
        "flops_per_s_per_chip": needed.flops / result.time_s / result.chips,
        "mfu": needed.flops / could,
        "mfu_full_attention": needed.flops_full_attention / could,
        "hfu": result.flops / could,
        "shares": shares(result),
    }
    line = (
        f"{format_count(round(figures['tokens_per_s']))} tokens/s, {format_flops(figures['flops_per_s_per_chip'])}/s a "
        f"chip, MFU {figures['mfu']:.1%} (attention's triangle; its square: {figures['mfu_full_attention']:.1%}), "
        f"HFU {figures['hfu']:.1%} of what is executed"
    )
    parts = ", ".join(f"{phase} {share:.1%}" for phase, share in figures["shares"].items())
    return figures, (line, f"of the chips' time {parts}")
