"""How few tokens a chip each plan can do with: the batch swept, and where communication takes longer than the MXU.

Of a training step's layers the links' busiest direction is held against the MXU, in the forward and in the backward
pass, each apart; where the greater of the two ratios is above 1 the plan is communication-bound, whatever is
overlapped. In the ideal model data and fsdp over n chips in a ring turn at (n - 1)/n x peak / bandwidth of the ring's
two directions (2550 tokens a chip on v5p for many chips), half of that on two axes, and a little earlier, as attention
computes without weights; tensor's ratio does not depend on the batch, but on d_ff. What the step exposes is beside it:
that depends on prefetch too. The vocabulary, which few layers do not outweigh, is left out of the ratio. ``--plot``
draws both over the batch. Source: How To Scale Your Model, "Training".
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np

from scenarios._training import Training, lowered, some_layers
from simcore.chips import Chip
from simcore.errors import ScenarioError
from simcore.exposure import exposed_communication_s
from simcore.quantities import format_count
from simcore.result import RunResult
from simcore.running import run as simulate
from simcore.scenario import param, run_script
from workloads.catalogue import load_model
from workloads.plan import Plan

EXAMPLE = "--model tiny --context 256 --plans data=4;fsdp=4;tensor=2 --tokens 256,1024,4096 --plot parallelism.png"
DEFAULT_CHIP = "v5p"
LINKS = ("ici", "nvlink", "network", "dcn", "dcn_share")
PASSES = {"forward": ("forward",), "backward": ("backward", "recompute")}


@dataclass(frozen=True)
class Parameters:
    model: str = param("llama3-8b", help="a model's name, or the path of a config.json")
    layers: int = param(2, help="layers that are simulated; their ratios do not depend on how many", minimum=1)
    plans: str = param("data=16;fsdp=16;fsdp=8,tensor=4;tensor=8", help="plans, with semicolons between them")
    tokens: tuple[int, ...] = param((512, 1024, 2048, 4096, 8192), help="tokens a chip, ascending", minimum=1)
    context: int = param(512, help="tokens of each sequence", minimum=1, maximum=1_000_000)
    remat: Literal["none", "full", "matmuls"] = param("none", help="computed once more in the backward pass")
    slice: str | None = param(None, help="the slice that each plan lies on, e.g. 4x4; else rings are assumed")
    prefetch_layers: int = param(1, help="layers ahead that weights are gathered", minimum=0, maximum=1000)


def run(p: Parameters, chip: Chip, ideal: bool, engine: str) -> RunResult:
    if list(p.tokens) != sorted(set(p.tokens)):
        raise ScenarioError(f"--tokens {','.join(map(str, p.tokens))}: each once and ascending, such as 512,1024")
    config, found, last = some_layers(load_model(p.model), p.layers), {}, None
    for plan in _plans(p):
        points = []
        for tokens in p.tokens:
            graph, _ = lowered(_asked(p, plan, tokens), chip, config)
            last = simulate(graph, chip=chip, ideal=ideal, engine=engine, scenario="parallelism")
            points.append({"tokens_per_chip": tokens, **_figures(last)})
        found[str(plan)] = {"points": points, "turns_at_tokens_per_chip": _turn(points)}
    assert last is not None
    return replace(last, extra={"plans": found}, notes=(*last.notes, *(_line(*one) for one in found.items())))


def _plans(p: Parameters) -> list[Plan]:
    plans = [Plan.parse(text) for text in filter(None, (text.strip() for text in p.plans.split(";")))]
    for plan in plans:
        if plan.pipeline > 1:
            raise ScenarioError(f"--plans {plan}: a pipeline has stages that differ: see the scenario pipeline")
        if plan.chips == 1:
            raise ScenarioError("--plans: one chip does not communicate")
    if not plans or len({str(plan) for plan in plans}) < len(plans):
        raise ScenarioError(f"--plans {p.plans!r}: plans that differ are meant, such as data=16;fsdp=16")
    return plans


def _asked(p: Parameters, plan: Plan, tokens: int) -> Training:
    total = tokens * plan.chips
    if total % (p.context * plan.groups):
        raise ScenarioError(
            f"--tokens {tokens} a chip of plan {plan}: {format_count(total // plan.groups)} tokens of each of "
            f"{plan.groups} groups are no whole sequences of {p.context}"
        )
    return Training(
        model=p.model, batch=total // p.context, context=p.context, plan=str(plan), remat=p.remat, slice=p.slice,
        prefetch_layers=p.prefetch_layers,
    )  # fmt: skip


def _figures(result: RunResult) -> dict[str, Any]:
    """Busy time of the links over the MXU's in the layers' passes, and what the step exposes."""
    t = result.timeline
    phase = np.array([result.graph.phases.get(name, "") for name in t.operation_names])[t.operation]
    served = t.end_ps - t.start_ps
    ratios = {}
    for name, phases in PASSES.items():
        here = (t.layer >= 0) & (t.entity == 0) & np.isin(phase, phases)
        busy: dict[str, int] = {}
        for number, lane in enumerate(t.lanes):
            kind = "links" if lane.kind in LINKS else lane.kind
            busy[kind] = max(busy.get(kind, 0), int(served[here & (t.lane == number)].sum()))
        ratios[name] = busy.get("links", 0) / busy["mxu"]
    return {
        "time_s": result.time_s,
        "links_over_mxu": ratios,
        "links_over_mxu_worst": max(ratios.values()),
        "exposed_share": exposed_communication_s(result.exposed_s) / result.time_s,
    }


def _turn(points: list[dict[str, Any]]) -> float | None:
    """Tokens a chip at which the worse ratio is 1, on a straight line between neighbours, both logarithmic."""
    for one, other in pairwise(points):
        high, low = one["links_over_mxu_worst"], other["links_over_mxu_worst"]
        if high > 1 >= low:
            way = math.log(high) / math.log(high / low)
            return float(one["tokens_per_chip"] * (other["tokens_per_chip"] / one["tokens_per_chip"]) ** way)
    return None


def _line(name: str, found: dict[str, Any]) -> str:
    points, turn = found["points"], found["turns_at_tokens_per_chip"]
    ratios = ", ".join(f"{one['links_over_mxu_worst']:.2f}" for one in points)
    shares = ", ".join(f"{one['exposed_share']:.0%}" for one in points)
    if turn is not None:
        says = f"below {turn:.0f} tokens a chip"
    elif points[-1]["links_over_mxu_worst"] > 1:
        says = "at every batch here"
    else:
        says = "at no batch here"
    return f"{name}: communication-bound {says} (links / MXU {ratios}; exposed {shares})"


def plot(result: RunResult, path: Path) -> None:
    """The links' time over the MXU's, and the exposed share of the step, over the batch."""
    from simcore.views.lines_plot import Curve, Panel, draw_lines

    plans = result.extra["plans"]
    ratio, exposed = [], []
    for name, found in plans.items():
        tokens = [one["tokens_per_chip"] for one in found["points"]]
        ratio.append(Curve(name, tokens, [one["links_over_mxu_worst"] for one in found["points"]]))
        exposed.append(Curve(name, tokens, [one["exposed_share"] for one in found["points"]]))
    every = [one["tokens_per_chip"] for one in next(iter(plans.values()))["points"]]
    ratio.append(Curve("communication-bound above", every, [1.0] * len(every), dashed=True))
    turns = [
        f"{name} {found['turns_at_tokens_per_chip']:.0f}"
        for name, found in plans.items()
        if found["turns_at_tokens_per_chip"] is not None
    ]
    title = f"communication-bound below, tokens a chip: {', '.join(turns)}" if turns else "no plan turns in this range"
    draw_lines(
        path,
        [
            Panel(ratio, "links' time / MXU's, layers", lambda value: f"{value:g}"),
            Panel(exposed, "exposed communication, of the step", lambda value: f"{value:.0%}", log_y=False),
        ],
        title=f"{result.parameters['model']} on {result.chip.name}: {title}",
        x_label="tokens a chip",
        x_format=lambda value: format_count(round(value)),
    )


if __name__ == "__main__":
    raise SystemExit(run_script(__file__))
