"""A step in pipeline stages: each has some of the layers and sends the residual on, a microbatch at a time.

While a stage computes one microbatch the next one computes the one before, so that with m microbatches and p stages
that are alike a step takes (m + p - 1)/m times what one stage's work takes. Weights are in each stage once; caches are
those of each microbatch's requests. Source: Huang et al. 2019 (GPipe).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from simcore.chips import Chip
from simcore.errors import ModelConfigError
from simcore.graph import TaskGraph
from simcore.layout import parse_tensor
from simcore.lowering import LoweringOptions, lower, lower_stages
from simcore.opgraph import OpGraph
from workloads.config import ModelConfig
from workloads.plan import PlacedPlan, Plan
from workloads.step import Step
from workloads.transformer import embed, empty_graph, model_step, placed_plan, predict, step_of, through_layers


def stage_graphs(
    config: ModelConfig, mode: str, *, plan: Plan | PlacedPlan | str, microbatches: int = 0, **asked: Any
) -> list[OpGraph]:
    """The op graph of each stage; arguments as of `workloads.transformer.model_step`.

    ``microbatches`` are the parts that the requests are cut in, by default as many as there are stages. Raises
    `ModelConfigError` for more stages than layers, or requests that do not divide.
    """
    placed = placed_plan(plan)
    axis, stages = pipeline_axis(placed), placed.plan.pipeline
    step = step_of(config, mode, plan=placed, **asked)
    parts = microbatches or stages
    _check(config, step, stages, parts)
    inner = replace(step, placed=without_pipeline(placed), cached=step.cached[: step.batch // parts])
    graphs = []
    for stage, (first, count) in enumerate(layer_ranges(config.n_layers, stages)):
        part = some_layers(config, first, count)
        g = empty_graph(part, inner, f"{mode} in {stages} stages")
        if stage == 0:
            g.notes.append(f"{stages} stages of {count} layers and {parts} microbatches of {inner.batch} requests")
            if parts < stages:
                g.notes.append(f"fewer microbatches ({parts}) than stages ({stages}): stages wait for each other")
        rules = inner.rules(part)
        for number in range(parts):
            piece = f"m{number}"
            if stage == 0:
                x = embed(g, part, inner, piece)
            else:
                residual = rules.residual(parse_tensor(f"x_{piece}[B, T, D]"))
                x = g.receive(str(residual), sent=f"send_{piece}", axis=axis)
            through_layers(g, part, inner, x, first=first, piece=piece)
            if stage < stages - 1:
                g.send(f"send_{piece}", x, axis, to=f"x_{piece}")
            else:
                predict(g, part, inner, x, piece)
        graphs.append(g)
    return graphs


def lowered_step(
    config: ModelConfig,
    mode: str,
    chip: Chip,
    *,
    plan: PlacedPlan,
    options: LoweringOptions | None = None,
    microbatches: int = 0,
    **asked: Any,
) -> tuple[TaskGraph, list[OpGraph]]:
    """The tasks of a step under a plan, in stages or not, and the op graphs that they are made from."""
    if plan.plan.pipeline == 1:
        ops = model_step(config, mode, plan=plan, **asked)
        return lower(ops, chip, options), [ops]
    graphs = stage_graphs(config, mode, plan=plan, microbatches=microbatches, **asked)
    return lower_stages(graphs, chip, options, axis=pipeline_axis(plan)), graphs


def pipeline_axis(placed: PlacedPlan) -> str:
    """The mesh axis that stages lie along. Raises `ModelConfigError` where there are several."""
    axes = placed.of("pipeline")
    if len(axes) != 1:
        raise ModelConfigError(
            f"plan {placed.plan}: pipeline = {placed.plan.pipeline} lies on {', '.join(axes) or 'no axis'}, and stages "
            "need one axis of 2 or more: choose ways that lie on one (map)"
        )
    return axes[0]


def without_pipeline(placed: PlacedPlan) -> PlacedPlan:
    """The plan of one stage."""
    gone = placed.of("pipeline")
    sizes = {axis: size for axis, size in placed.sizes.items() if axis not in gone}
    axes = {kind: names for kind, names in placed.axes.items() if kind != "pipeline"}
    return PlacedPlan(
        placed.plan.stage, axes, sizes or {"tensor": 1}, placed.lines - set(gone), placed.networks, placed.notes
    )


def layer_ranges(layers: int, stages: int) -> list[tuple[int, int]]:
    """First layer and number of layers of each stage; earlier ones have one more where they do not divide."""
    counts = [layers // stages + (stage < layers % stages) for stage in range(stages)]
    return [(sum(counts[:stage]), counts[stage]) for stage in range(stages)]


def some_layers(config: ModelConfig, first: int, count: int) -> ModelConfig:
    """The model with ``count`` of its layers only, from number ``first`` on."""
    moe = config.moe
    if moe is not None:
        layers = tuple(at - first for at in moe.layers if first <= at < first + count)
        moe = replace(moe, layers=layers) if layers else None
    pattern = config.attention_pattern[first : first + count]
    return replace(config, n_layers=count, attention_pattern=pattern, moe=moe)


def _check(config: ModelConfig, step: Step, stages: int, parts: int) -> None:
    if stages > config.n_layers:
        raise ModelConfigError(f"model {config.name}: {stages} stages, and it has {config.n_layers} layers")
    if parts < 1 or step.batch % parts:
        raise ModelConfigError(
            f"{step.batch} requests do not cut into {parts} microbatches: a divisor of {step.batch} would do"
        )
    each: Sequence[int] = step.cached[: step.batch // parts]
    if tuple(each) * parts != step.cached:
        raise ModelConfigError(f"{parts} microbatches: give each the same {len(each)} lengths, in the same order")


__all__ = ["layer_ranges", "lowered_step", "pipeline_axis", "some_layers", "stage_graphs", "without_pipeline"]
