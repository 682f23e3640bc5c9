"""What to keep for the backward pass: policies side by side, time against memory.

Each policy's training step is simulated. Keeping everything takes the most memory and computes nothing twice; keeping
each layer's input alone (full) computes nearly a third of the matmuls once more; in between, what matmuls and attention
give is kept and the cheap rest computed once more. ``--plot`` draws the three timelines on one axis.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from scenarios._training import Training, lowered
from simcore.chips import Chip
from simcore.quantities import format_bytes, format_seconds
from simcore.result import RunResult
from simcore.running import run as simulate
from simcore.scenario import param, run_script
from workloads.catalogue import load_model
from workloads.training import REMATS

EXAMPLE = "--model tiny --context 256 --batch 8 --plan fsdp=4 --plot remat.png"
DEFAULT_CHIP = "v5p"


@dataclass(frozen=True)
class Parameters(Training):
    model: str = param("example-6b", help="a model's name, or the path of a config.json")
    batch: int = param(16, help="sequences", minimum=1, maximum=1_000_000)
    context: int = param(1024, help="tokens of each sequence", minimum=1, maximum=1_000_000)


def run(p: Parameters, chip: Chip, ideal: bool, engine: str) -> RunResult:
    runs = _all(p, chip, ideal, engine)
    figures = {
        policy: {"time_s": result.time_s, "hbm_peak_bytes": result.memory_peak_bytes["hbm"], "flops": result.flops}
        for policy, result in runs.items()
    }
    return dataclasses.replace(runs[p.remat], extra={"policies": figures}, notes=(finding(runs),))


def finding(runs: dict[str, RunResult]) -> str:
    """Time and the peak of HBM under each policy."""
    parts = [
        f"{policy} {format_seconds(result.time_s)} with {format_bytes(result.memory_peak_bytes['hbm'], binary=True)}"
        for policy, result in runs.items()
    ]
    return f"remat: {', '.join(parts)} of HBM at its peak"


def plot(result: RunResult, path: Path) -> None:
    """The timelines below each other on one axis."""
    from simcore.views.gantt_panels import draw_gantts

    p = Parameters(**dict(result.parameters))
    runs = _all(p, result.chip, result.ideal, result.engine)
    draw_gantts([(f"remat {policy}", one) for policy, one in runs.items()], path, finding(runs))


def _all(p: Parameters, chip: Chip, ideal: bool, engine: str) -> dict[str, RunResult]:
    config, runs = load_model(p.model), {}
    for policy in REMATS:
        asked = dataclasses.replace(p, remat=policy)  # type: ignore[arg-type]
        graph, _ = lowered(asked, chip, config)
        runs[policy] = simulate(graph, chip=chip, ideal=ideal, engine=engine, scenario="remat")
    return runs


if __name__ == "__main__":
    raise SystemExit(run_script(__file__))
