"""Pipeline schedules side by side: what their bubbles cost, and how many microbatches they hold.

With p stages that are alike, m microbatches and transfers that take no time, (p - 1)/(m + p - 1) of the time is bubble
under GPipe and 1F1B alike; with the layers interleaved in v chunks a stage, (p - 1)/(v m + p - 1). The simulation has
real transfers and unequal ends, and says more. GPipe holds all m microbatches' activations, 1F1B no more than stages
follow. ``--plot`` draws the timelines on one axis.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scenarios._training import Training, lowered, shares
from simcore.chips import Chip
from simcore.errors import ScenarioError
from simcore.memory import peak_bytes
from simcore.phases import BUBBLE, EXPOSED
from simcore.quantities import format_bytes, format_seconds
from simcore.result import RunResult
from simcore.running import run as simulate
from simcore.scenario import param, run_script
from workloads.catalogue import load_model
from workloads.plan import Plan
from workloads.schedules import CHUNKED, DEFAULT_CHUNKS, SCHEDULES, closed_form_bubble

EXAMPLE = "--model tiny --plan pipeline=2 --microbatches 4 --batch 4 --context 128 --plot pipeline.png"
DEFAULT_CHIP = "v5p"


@dataclass(frozen=True)
class Parameters(Training):
    model: str = param("gpt2", help="a model's name, or the path of a config.json; its embedding is taken as not tied")
    batch: int = param(8, help="sequences", minimum=1, maximum=1_000_000)
    context: int = param(512, help="tokens of each sequence", minimum=1, maximum=1_000_000)
    plan: str = param("pipeline=4", help="ways of each kind, with a pipeline, e.g. pipeline=4,data=2")
    microbatches: int | None = param(8, help="parts of the sequences, one after the other; as many as stages")


def run(p: Parameters, chip: Chip, ideal: bool, engine: str) -> RunResult:
    runs = _all(p, chip, ideal, engine)
    figures = {name: _figures(result) for name, result in runs.items()}
    for name, one in figures.items():
        one["closed_form_bubble"] = _closed_form(p, name)
    notes = [finding(p, runs)]
    if len(runs) < len(SCHEDULES):
        notes.append("interleaved is left out: layers or microbatches do not divide over stages and chunks")
    return dataclasses.replace(runs[p.schedule], extra={"schedules": figures}, notes=tuple(notes))


def _closed_form(p: Parameters, schedule: str) -> float:
    stages = Plan.parse(p.plan).pipeline
    return closed_form_bubble(schedule, stages, p.microbatches or stages, p.chunks or DEFAULT_CHUNKS)


def _figures(result: RunResult) -> dict[str, Any]:
    """Time, the share of it that is bubble (over all chips), and what the fullest holds."""
    t = result.timeline
    chips = range(len(t.entities))
    parts = shares(result)
    held = max(peak_bytes(t, chip, "hbm") for chip in chips)
    return {
        "time_s": result.time_s,
        "bubble_share": parts.get(BUBBLE, 0.0),
        "exposed_share": parts.get(EXPOSED, 0.0),
        "hbm_peak_bytes": held,
    }


def finding(p: Parameters, runs: dict[str, RunResult]) -> str:
    """Time, shares of bubble and exposed communication, and memory of each schedule, beside the closed form."""
    parts = []
    for name, result in runs.items():
        figures = _figures(result)
        parts.append(
            f"{name} {format_seconds(figures['time_s'])}, bubble {figures['bubble_share']:.0%} "
            f"(equal stages: {_closed_form(p, name):.0%}), "
            f"{format_bytes(figures['hbm_peak_bytes'], binary=True)}"
        )
    return "; ".join(parts)


def plot(result: RunResult, path: Path) -> None:
    """The timelines below each other on one axis."""
    from simcore.views.gantt_panels import draw_gantts

    p = Parameters(**dict(result.parameters))
    runs = _all(p, result.chip, result.ideal, result.engine)
    draw_gantts(list(runs.items()), path, finding(p, runs))


def _interleaves(p: Parameters, layers: int) -> bool:
    stages = Plan.parse(p.plan).pipeline
    return not layers % (stages * DEFAULT_CHUNKS) and not (p.microbatches or stages) % stages


def _all(p: Parameters, chip: Chip, ideal: bool, engine: str) -> dict[str, RunResult]:
    if Plan.parse(p.plan).pipeline == 1:
        raise ScenarioError(f"--plan {p.plan} has no pipeline: write pipeline=4")
    config, runs = dataclasses.replace(load_model(p.model), tied_embeddings=False), {}
    for schedule in SCHEDULES:
        chunked = schedule in CHUNKED
        if chunked and schedule != p.schedule and p.chunks is None and not _interleaves(p, config.n_layers):
            continue
        asked = dataclasses.replace(p, schedule=schedule, chunks=p.chunks if chunked else None)  # type: ignore[arg-type]
        graph, _ = lowered(asked, chip, config)
        runs[schedule] = simulate(graph, chip=chip, ideal=ideal, engine=engine, scenario="pipeline")
    return runs


if __name__ == "__main__":
    raise SystemExit(run_script(__file__))
