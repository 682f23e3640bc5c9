"""One layer with experts: how many are hit, what reading them costs, and when it turns compute-bound.

With few tokens most of a layer's time is reading the experts that are hit: N tokens that use k of E experts hit
E (1 - (1 - k/E)^N) of them on average. More tokens read the same experts, until each has so many rows that computing
takes longer. ``--imbalance`` makes some experts more popular, ``--capacity-factor`` gives all the same room,
``--plan expert=8`` spreads them over chips, to which tokens are sent by an AllToAll. ``--plot`` draws the layer's time
over tokens with its bounds.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from scenarios._serving import Serving, chip_bounds, lowered
from simcore.chips import Chip
from simcore.errors import ScenarioError
from simcore.quantities import format_seconds
from simcore.result import RunResult
from simcore.scenario import Simulation, param, run_script
from workloads.catalogue import load_model
from workloads.config import ModelConfig
from workloads.experts import expected_distinct_experts
from workloads.stages import some_layers

EXAMPLE = "--model mixtral-8x7b --batch 64 --plot moe_layer.png"


@dataclass(frozen=True)
class Parameters(Serving):
    model: str = param("mixtral-8x7b", help="a model with experts, or the path of a config.json")
    batch: int = param(64, help="tokens: requests that are decoded", minimum=1, maximum=1_000_000)
    context: int = param(1, help="cached positions of each", minimum=0, maximum=10_000_000)


def one_layer(p: Parameters) -> ModelConfig:
    """The model with a single layer, one that has experts."""
    config = load_model(p.model)
    if config.moe is None:
        raise ScenarioError(f"--model {p.model} has no experts: try mixtral-8x7b, qwen3-30b-a3b or deepseek-v3")
    layer = some_layers(config, config.moe.layers[-1], 1)
    return dataclasses.replace(layer, name=f"a layer of {config.name}")


def build(p: Parameters, chip: Chip) -> Simulation:
    config = one_layer(p)
    moe = config.moe
    assert moe is not None
    graph, stages = lowered(p, chip, config, "decode")
    bounds, second = chip_bounds(stages, chip, p.activation_dtype or config.dtype)
    distinct = expected_distinct_experts(moe, p.batch, p.imbalance)
    rows = p.batch * moe.top_k / moe.n_experts
    extra = {"expected_distinct_experts": distinct, "rows_per_expert": rows}
    note = (
        f"{p.batch} tokens use {moe.top_k} of {moe.n_experts} experts each: {distinct:.1f} are hit on average, "
        f"{rows:.2f} rows an expert"
    )
    return Simulation(graph, extra=bounds | extra, notes=(note, second))


def plot(result: RunResult, path: Path) -> None:
    """Time of the layer over tokens, with the bounds of memory and compute; and the experts hit."""
    from simcore.running import run
    from simcore.views.lines_plot import Curve, Panel, draw_lines

    p = Parameters(**dict(result.parameters))
    config = one_layer(p)
    moe = config.moe
    assert moe is not None
    groups = p.batch & -p.batch if p.plan else 1
    counts = [2**power for power in range(groups.bit_length() - 1, max(p.batch, 2).bit_length())]
    times, memory, compute = [], [], []
    for count in counts:
        at = dataclasses.replace(p, batch=count)
        graph, stages = lowered(at, result.chip, config, "decode")
        times.append(run(graph, chip=result.chip, ideal=result.ideal).time_s)
        bounds, _ = chip_bounds(stages, result.chip, p.activation_dtype or config.dtype)
        memory.append(bounds["memory_bound_s"])
        compute.append(bounds["compute_bound_s"])
    hit = [expected_distinct_experts(moe, count, p.imbalance) for count in counts]
    turning = next((count for count, a, b in zip(counts, memory, compute, strict=True) if b > a), None)
    turn = f"compute-bound from {turning} tokens on" if turning else f"memory-bound up to {counts[-1]} tokens"
    draw_lines(
        path,
        [
            Panel(
                [
                    Curve("simulated", counts, times),
                    Curve("reading weights", counts, memory, dashed=True),
                    Curve("computing", counts, compute, dashed=True),
                ],
                "time of the layer and the vocabulary",
                format_seconds,
            ),
            Panel(
                [Curve("expected", counts, hit)], f"experts hit, of {moe.n_experts}", lambda n: f"{n:g}", log_y=False
            ),
        ],
        title=f"{config.name} on {result.chips} {result.chip.name}: {turn}",
        x_label="tokens",
    )


if __name__ == "__main__":
    raise SystemExit(run_script(__file__))
