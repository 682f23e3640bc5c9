"""Generating: a prefill, which gives the first token, and decode steps whose cache grows by one position each.

Not every step is simulated: their time changes slowly with the context, so the first, the last and as many between are
as straight lines need (see `workloads.generate`). The timeline shown is that of the last decode step.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from scenarios._serving import Serving, check_effect, lowering, placed, step_options
from simcore.chips import Chip
from simcore.quantities import format_count, format_seconds
from simcore.rates import SECONDS_PER_HOUR
from simcore.result import RunResult
from simcore.scenario import param, run_script
from workloads.catalogue import load_model
from workloads.generate import generate

EXAMPLE = "--context 1024 --steps 256"


@dataclass(frozen=True)
class Parameters(Serving):
    context: int = param(1024, help="positions of each prompt", minimum=1, maximum=1_000_000)
    steps: int = param(256, help="tokens that each request gets after the first", minimum=1, maximum=1_000_000)
    chunk: int | None = param(None, help="positions of each prefill step; the whole prompt where not given", minimum=1)


def run(p: Parameters, chip: Chip, ideal: bool, engine: str) -> RunResult:
    where, config = placed(p, chip), load_model(p.model)
    check_effect(p, config)
    made = generate(
        config, prompt=p.context, steps=p.steps, batch=p.batch, chip=chip, chunk=p.chunk, ideal=ideal,
        lowering=lowering(p, where), engine=engine, plan=where, **step_options(p),
    )  # fmt: skip
    last = made.last
    extra = {
        "prefill_s": made.prefill_s,
        "decode_s": made.decode_s,
        "generate_s": made.time_s,
        "time_to_first_token_s": made.prefill_s,
        "time_per_token_s": made.step_s,
        "tokens_per_s": made.decode_tokens_per_s,
        "first_step_s": made.first.time_s,
        "last_step_s": last.time_s,
    }
    note = (
        f"{p.batch} x {p.context} positions in {format_seconds(made.prefill_s)}, then {p.steps} tokens each in "
        f"{format_seconds(made.decode_s)}: {format_seconds(made.time_s)} in all; a step takes "
        f"{format_seconds(made.first.time_s)} at first and {format_seconds(last.time_s)} at last; "
        f"{format_count(round(made.decode_tokens_per_s))} tokens/s while decoding"
    )
    if p.price_per_chip_hour is not None:
        tokens = p.batch * (p.steps + 1)
        cost = p.price_per_chip_hour * last.chips * made.time_s / SECONDS_PER_HOUR
        extra["cost_per_million_tokens"] = cost / tokens * 1e6
        note += f"; {extra['cost_per_million_tokens']:.4g} a million tokens"
    return dataclasses.replace(last, extra=extra, notes=(note, *made.notes, *last.notes))


if __name__ == "__main__":
    raise SystemExit(run_script(__file__))
