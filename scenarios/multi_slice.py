"""Data parallelism over slices: what crossing the data-centre network costs a training step.

Each slice trains on a batch of its own under the same plan; over slices the gradients are summed by the hosts' network
cards, a chip's part of them by its share of its host's. Beside each number of slices is what of its time is exposed,
and the closed form of the batch a slice below which summing takes longer than the backward pass,

    (n - 1)/n x peak of a chip / its share of the network   tokens a slice of n slices

for a plan that splits the gradients over all of a slice's chips (fsdp, tensor); data inside of a slice takes as many
times more. ``--plot`` draws the timelines on one axis. Source: How To Scale Your Model, "Training", DCN.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from scenarios._training import Training, lowered, some_layers
from simcore.chips import Chip
from simcore.errors import ScenarioError
from simcore.exposure import exposed_communication_s
from simcore.quantities import format_count, format_seconds
from simcore.result import RunResult
from simcore.running import run as simulate
from simcore.scenario import param, run_script
from workloads.catalogue import load_model
from workloads.plan import Plan

EXAMPLE = "--model tiny --slice 2x2x1 --plan fsdp=4 --batch 8 --context 256 --plot multi_slice.png"
DEFAULT_CHIP = "v5p"


@dataclass(frozen=True)
class Parameters:
    model: str = param("example-6b", help="a model's name, or the path of a config.json")
    layers: int = param(2, help="layers that are simulated, the model's first", minimum=1)
    slices: tuple[int, ...] = param((1, 2, 4), help="numbers of slices, each simulated", minimum=1, maximum=1024)
    slice: str = param("4x4x4", help="shape of each slice")
    plan: str = param("fsdp=64", help="ways of each kind inside of a slice")
    batch: int = param(64, help="sequences of each slice", minimum=1, maximum=1_000_000)
    context: int = param(2048, help="tokens of each sequence", minimum=1, maximum=1_000_000)
    remat: Literal["none", "full", "matmuls"] = param("full", help="computed once more in the backward pass")
    gradient_dtype: str | None = param(None, help="format in which gradients are summed; as the activations")


def run(p: Parameters, chip: Chip, ideal: bool, engine: str) -> RunResult:
    runs = _all(p, chip, ideal, engine)
    alone = _throughput(p, 1, runs[1]) if 1 in runs else None
    figures = {count: _figures(p, chip, count, result, alone) for count, result in runs.items()}
    last = runs[p.slices[-1]]
    return replace(last, extra={"slices": figures}, notes=(*last.notes, *(_line(*one) for one in figures.items())))


def _throughput(p: Parameters, count: int, result: RunResult) -> float:
    return p.batch * p.context * count / result.time_s


def _figures(p: Parameters, chip: Chip, count: int, result: RunResult, alone: float | None) -> dict[str, Any]:
    tokens = _throughput(p, count, result)
    waited = {cause: seconds for cause, seconds in result.exposed_s.items() if cause.startswith("dcn")}
    figures: dict[str, Any] = {
        "time_s": result.time_s,
        "tokens_per_s": tokens,
        "exposed_share": exposed_communication_s(result.exposed_s) / result.time_s,
        "exposed_network_share": sum(waited.values()) / result.time_s,
    }
    if alone is not None:
        figures["efficiency"] = tokens / count / alone
    if count > 1:
        figures["critical_tokens_per_slice"] = critical_tokens(p, chip, count)
    return figures


def critical_tokens(p: Parameters, chip: Chip, count: int) -> float:
    """Tokens a slice below which the sum over slices takes longer than the backward pass; the closed form above."""
    assert chip.dcn_bandwidth_bytes_per_s_per_host is not None
    share = chip.dcn_bandwidth_bytes_per_s_per_host / chip.chips_per_host
    return (count - 1) / count * chip.peak(load_model(p.model).dtype) / share * Plan.parse(p.plan).data


def _line(count: int, one: dict[str, Any]) -> str:
    parts = [f"{count} slice{'s' * (count > 1)}: {format_seconds(one['time_s'])}"]
    parts.append(f"{format_count(round(one['tokens_per_s']))} tokens/s")
    if "efficiency" in one:
        parts.append(f"{one['efficiency']:.1%} of one slice's rate a slice")
    parts.append(f"exposed {one['exposed_share']:.1%}, of it the slices' network {one['exposed_network_share']:.1%}")
    if "critical_tokens_per_slice" in one:
        parts.append(f"bound by it below {format_count(round(one['critical_tokens_per_slice']))} tokens a slice")
    return ", ".join(parts)


def plot(result: RunResult, path: Path) -> None:
    """The timelines below each other on one axis."""
    from simcore.views.gantt_panels import draw_gantts

    p = Parameters(**{**dict(result.parameters), "slices": tuple(result.parameters["slices"])})
    runs = _all(p, result.chip, result.ideal, result.engine)
    figures = result.extra["slices"]
    title = "; ".join(f"{n} slice{'s' * (n > 1)} {format_seconds(one['time_s'])}" for n, one in figures.items())
    draw_gantts([(f"{n} slice{'s' * (n > 1)}", one) for n, one in runs.items()], path, f"a step on {title}")


def _all(p: Parameters, chip: Chip, ideal: bool, engine: str) -> dict[int, RunResult]:
    inside = Plan.parse(p.plan)
    if chip.dcn_bandwidth_bytes_per_s_per_host is None or chip.gpus_per_nvlink_domain is not None:
        raise ScenarioError(f"slices are of TPUs: chip {chip.name} is none; see training_step with data in its plan")
    if inside.pipeline > 1:
        raise ScenarioError(f"--plan {p.plan}: a pipeline over slices is a plan of training_step: --slices 2")
    if list(p.slices) != sorted(set(p.slices)):
        raise ScenarioError(f"--slices {','.join(map(str, p.slices))}: each once and ascending, such as 1,2,4")
    config, runs = some_layers(load_model(p.model), p.layers), {}
    for count in p.slices:
        asked = Training(
            model=p.model, batch=p.batch * count, context=p.context, slice=p.slice, slices=count, remat=p.remat,
            plan=str(replace(inside, data=inside.data * count)), gradient_dtype=p.gradient_dtype,
        )  # fmt: skip
        graph, _ = lowered(asked, chip, config)
        runs[count] = simulate(graph, chip=chip, ideal=ideal, engine=engine, scenario="multi_slice")
    return runs


if __name__ == "__main__":
    raise SystemExit(run_script(__file__))
