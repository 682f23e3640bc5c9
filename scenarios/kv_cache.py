"""A decode step under four kinds of attention: how large the cache is, and what reading it costs.

Every query head with keys and values of its own (mha), groups of heads that share them (gqa), all heads one (mqa), or a
latent from which all are rebuilt (mla). The rest of the model stays as it is. While the cache is short the step takes
as long as the weights need to be read; ``--plot`` draws time and cache over the context, and shows where the cache
takes over.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from scenarios._serving import Serving, chip_bounds, held_figures, lowered, rate_figures, step_options
from simcore.chips import Chip
from simcore.quantities import format_bytes, format_seconds
from simcore.result import RunResult
from simcore.scenario import Simulation, param, run_script
from workloads.accounting import account
from workloads.catalogue import load_model
from workloads.config import MlaConfig, ModelConfig
from workloads.parameters import kv_bytes_per_token

EXAMPLE = "--kind mqa --context 16384 --plot kv_cache.png"
KINDS = ("mha", "gqa", "mqa", "mla")
SHORTEST = 1024


@dataclass(frozen=True)
class Parameters(Serving):
    batch: int = param(4, help="requests, one new token each", minimum=1, maximum=100_000)
    context: int = param(8192, help="cached positions of each request", minimum=1, maximum=10_000_000)
    kind: Literal["mha", "gqa", "mqa", "mla"] = param("gqa", help="what the cache holds")
    groups: int = param(8, help="key-value heads of gqa", minimum=1, maximum=1024)
    latent: int = param(512, help="width of mla's latent", minimum=1, maximum=65536)


def variant(p: Parameters, kind: str) -> ModelConfig:
    """The model with another kind of attention."""
    config = load_model(p.model)
    if kind == "mla":
        width = config.head_dim
        mla = MlaConfig(None, p.latent, width, width // 2, width)
        return dataclasses.replace(
            config, name=f"{config.name} with mla", mla=mla, n_kv_heads=config.n_heads, head_dim=mla.qk_head_dim
        )
    heads = {"mha": config.n_heads, "gqa": p.groups, "mqa": 1}[kind]
    return dataclasses.replace(config, name=f"{config.name} with {kind}", n_kv_heads=heads, mla=None)


def build(p: Parameters, chip: Chip) -> Simulation:
    config, options = variant(p, p.kind), step_options(p)
    graph, stages = lowered(p, chip, config, "decode")
    held = account(config, batch=p.batch, cached=p.context, new=1, **options)
    dtype = p.activation_dtype or config.dtype
    holds, first = held_figures(config, held)
    bounds, second = chip_bounds(stages, chip, dtype)
    per_token = float(kv_bytes_per_token(config, p.kv_dtype or dtype))
    needed = held.layer_flops + held.attention_needed_flops + held.vocabulary_flops
    return Simulation(
        graph,
        extra=holds | bounds | {"kv_bytes_per_token": per_token},
        notes=(f"{p.kind}: {format_bytes(per_token, binary=True)} of cache a token", first, second),
        derive=lambda result: rate_figures(
            result, tokens=p.batch, model_flops=needed, needed_bytes=held.read_bytes, dtype=dtype,
            price=p.price_per_chip_hour,
        ),
    )  # fmt: skip


def plot(result: RunResult, path: Path) -> None:
    """Time of a step and bytes of the cache over the context, for each kind."""
    from simcore.running import run
    from simcore.views.lines_plot import Curve, Panel, draw_lines

    p = Parameters(**dict(result.parameters))
    contexts = [SHORTEST * 2**power for power in range(12) if SHORTEST * 2**power <= max(p.context, 2 * SHORTEST)]
    times, held = [], []
    for kind in KINDS:
        config = variant(p, kind)
        runs, caches = [], []
        for context in contexts:
            at = dataclasses.replace(p, context=context)
            graph, _ = lowered(at, result.chip, config, "decode")
            runs.append(run(graph, chip=result.chip, ideal=result.ideal).time_s)
            options = step_options(p)
            caches.append(float(account(config, batch=p.batch, cached=context, new=1, **options).kv_cache_bytes))
        times.append(Curve(kind, contexts, runs))
        held.append(Curve(kind, contexts, caches))
    factor = times[0].y[-1] / min(curve.y[-1] for curve in times)
    draw_lines(
        path,
        [
            Panel(times, "time of a decode step", format_seconds),
            Panel(held, "cache of all requests", format_bytes),
        ],
        title=(
            f"{p.model}, {p.batch} requests on {result.chip.name}: at {contexts[-1]} positions a head of its own for "
            f"every query costs {factor:.1f} x the fastest"
        ),
        x_label="cached positions of each request",
    )


if __name__ == "__main__":
    raise SystemExit(run_script(__file__))
