"""What the scenarios of inference share: flags of the plan and the formats, where the plan lies, and rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from simcore.chips import Chip
from simcore.errors import ScenarioError
from simcore.graph import TaskGraph
from simcore.lowering import LoweringOptions
from simcore.opgraph import OpGraph
from simcore.opgraph.account import account_graph
from simcore.quantities import format_bytes, format_count, format_flops, format_seconds
from simcore.rates import Rates
from simcore.result import RunResult
from simcore.scenario import param
from workloads.accounting import StepAccount
from workloads.config import ModelConfig
from workloads.experts import ExpertLoad
from workloads.placing import place
from workloads.plan import PlacedPlan, Plan
from workloads.stages import lowered_step

GIB = 2**30


@dataclass(frozen=True)
class Serving:
    """Flags that every scenario of inference has; those of the first three lines have defaults of their own there."""

    model: str = param("example-6b", help="a model's name, or the path of a config.json")
    batch: int = param(4, help="requests", minimum=1, maximum=100_000)
    context: int = param(8192, help="positions of each request", minimum=0, maximum=10_000_000)
    ring: int = param(1, help="chips that the model is split over: short for --plan tensor=N", minimum=1, maximum=4096)
    plan: str | None = param(None, help="ways of each kind, e.g. data=2,tensor=8; see docs/plans.md")
    slice: str | None = param(
        None, help="the slice that the plan lies on, e.g. 4x4, or a number of GPUs; else rings are assumed"
    )
    slices: int = param(1, help="that many slices, joined by the hosts' network", minimum=1, maximum=1024)
    map: str | None = param(None, help="which kind on which axes of the slice, e.g. tensor=xy; chosen where not given")
    microbatches: int | None = param(None, help="parts of the requests for a pipeline's stages; as many as stages")
    weights_dtype: str | None = param(None, help="format of the matrices, e.g. int8, int4; the model's where not given")
    kv_dtype: str | None = param(
        None, help="format of the cache, e.g. int8, fp8; that of the activations where not given"
    )
    activation_dtype: str | None = param(None, help="format of activations and products; the model's where not given")
    kernel: Literal["flash", "naive"] = param("flash", help="attention in VMEM, or with all scores through HBM")
    imbalance: float = param(1.0, help="rows of the fullest expert over the mean of all", minimum=1)
    capacity_factor: float | None = param(None, help="room of each expert over the mean; none drops no token", above=0)
    buffers: int = param(2, help="buffers of each kind of tile", minimum=1, maximum=64)
    collectives: Literal["auto", "ring"] = param("auto", help="the fastest; or rings, nothing in one shot")
    direction: Literal["one_way", "both"] = param("both", help="directions of a ring's links that are used")
    price_per_chip_hour: float | None = param(None, help="of a chip, in your currency: gives the cost", minimum=0)


def placed(p: Serving, chip: Chip) -> PlacedPlan:
    """The plan of the flags on the slice of the flags."""
    plan = Plan.parse(p.plan) if p.plan else Plan(tensor=p.ring)
    if p.plan and p.ring != 1 and plan.tensor != p.ring:
        raise ScenarioError(f"--ring {p.ring} and --plan {p.plan}: give one of them (a ring of n is tensor=n)")
    return place(plan, chip, p.slice or "", slices=p.slices, mapping=p.map or "")


def lowered(p: Serving, chip: Chip, config: ModelConfig, mode: str, **asked: Any) -> tuple[TaskGraph, list[OpGraph]]:
    """The step of the flags as tasks, and the op graphs that they are made from: one for each pipeline stage."""
    where = placed(p, chip)
    check_effect(p, config)
    return lowered_step(
        config, mode, chip, plan=where, options=lowering(p, where), microbatches=p.microbatches or 0, batch=p.batch,
        context=p.context, **step_options(p), **asked,
    )  # fmt: skip


def check_effect(p: Serving, config: ModelConfig) -> None:
    """Raise `ScenarioError` for a flag that nothing would use."""
    plan = Plan.parse(p.plan) if p.plan else Plan(tensor=p.ring)
    idle = {
        "--imbalance": p.imbalance != 1 and config.moe is None and f"{config.name} has no experts",
        "--capacity-factor": p.capacity_factor is not None and config.moe is None and f"{config.name} has no experts",
        "--microbatches": p.microbatches is not None and plan.pipeline == 1 and "the plan has no pipeline",
        "--map": p.map is not None and p.slice is None and "there is no --slice to lay the plan on",
    }
    for flag, why in idle.items():
        if why:
            raise ScenarioError(f"{flag} has no effect: {why}; leave it out")


def step_options(p: Serving) -> dict[str, Any]:
    """Options of `workloads.transformer.model_step`."""
    return {
        "weights_dtype": p.weights_dtype or "",
        "kv_dtype": p.kv_dtype or "",
        "activation_dtype": p.activation_dtype or "",
        "kernel": p.kernel,
        "experts": ExpertLoad(p.imbalance, p.capacity_factor),
    }


def lowering(p: Serving, where: PlacedPlan) -> LoweringOptions:
    """How the flags want it lowered."""
    return LoweringOptions(
        buffers=p.buffers,
        ring_direction=p.direction,
        algorithm=p.collectives,
        lines=where.lines,
        networks=where.networks,
    )


def held_figures(config: ModelConfig, held: StepAccount) -> tuple[dict[str, Any], str]:
    """What the model and its cache hold, over all chips once, as figures and as a line."""
    figures = {
        "model_parameters": held.parameters,
        "weight_bytes": held.weight_bytes,
        "norm_bytes": held.norm_bytes,
        "kv_cache_bytes": held.kv_cache_bytes,
        "weights_and_kv_gib": held.weights_and_kv_bytes / GIB,
    }
    line = (
        f"{config.name}: weights {format_bytes(held.weight_bytes, binary=True)} + KV cache "
        f"{format_bytes(held.kv_cache_bytes, binary=True)} = {held.weights_and_kv_bytes / GIB:.3f} GiB "
        f"(norm weights, {format_bytes(held.norm_bytes)}, besides)"
    )
    return figures, line


def chip_bounds(graphs: Sequence[OpGraph], chip: Chip, dtype: str) -> tuple[dict[str, Any], str]:
    """What chips must read and compute, and how long that takes the busiest at least, from the graphs' own account."""
    done = [account_graph(ops) for ops in graphs]
    size = graphs[0].mesh.size
    read = sum(d.total_read_bytes for d in done) * size
    flops = sum(d.total_flops for d in done) * size
    memory_s = max(d.total_read_bytes for d in done) / chip.hbm_bandwidth_bytes_per_s
    compute_s = max(d.total_flops for d in done) / chip.peak(dtype)
    line = (
        f"a step reads {read / 1e9:.3f} GB of weights and cache and computes {format_flops(flops)}: memory bound "
        f"{format_seconds(memory_s)}, compute bound {format_seconds(compute_s)} a chip"
    )
    return {"read_bytes": read, "memory_bound_s": memory_s, "compute_bound_s": compute_s}, line


def rate_figures(
    result: RunResult, *, tokens: int, model_flops: int, needed_bytes: int, dtype: str, price: float | None
) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """The standard rates of a step as figures and as a line."""
    rates = Rates.of(
        time_s=result.time_s,
        chips=result.chips,
        tokens=tokens,
        model_flops=model_flops,
        needed_bytes=needed_bytes,
        peak_flops_per_s=result.chip.peak(dtype),
        hbm_bandwidth_bytes_per_s=result.chip.hbm_bandwidth_bytes_per_s,
        price_per_chip_hour=price,
    )
    words = (
        f"{format_count(round(rates.tokens_per_s))} tokens/s ({rates.tokens_per_s_per_chip:.4g} a chip), "
        f"MFU {rates.mfu:.1%} (matmuls and attention that the model needs), MBU {rates.mbu:.1%}"
    )
    if rates.cost_per_million_tokens is not None:
        words += f", {rates.cost_per_million_tokens:.4g} a million tokens"
    return rates.to_json(), (words,)
