"""Generation: a prefill and then decode steps whose cache grows by one position each.

A step's time changes slowly with its context, so that not every step has to be simulated. The first and the last are,
and between two simulated ones the one in the middle; where the straight line between the two misses it by more than a
tolerance, both halves are looked at in turn. What lies between is interpolated, and the notes say how much.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from simcore.chips import Chip, load_chip
from simcore.errors import ModelConfigError
from simcore.lowering import LoweringOptions
from simcore.result import RunResult
from simcore.running import run
from workloads.config import ModelConfig
from workloads.transformer import decode_step, prefill


@dataclass(frozen=True)
class Generation:
    """What generating takes.

    Parameters
    ----------
    prefill_s : time to the first token.
    decode_s : time of all decode steps after it.
    step_times_s : context -> time of the decode steps that were simulated.
    first, last : the runs of the first and last decode step.
    """

    batch: int
    prompt: int
    steps: int
    prefill_s: float
    decode_s: float
    step_times_s: Mapping[int, float]
    prefill: RunResult
    first: RunResult
    last: RunResult
    notes: tuple[str, ...]

    @property
    def time_s(self) -> float:
        """From the prompts to the last token."""
        return self.prefill_s + self.decode_s

    @property
    def step_s(self) -> float:
        """Time of a decode step on average: the latency of a token."""
        return self.decode_s / self.steps

    @property
    def decode_tokens_per_s(self) -> float:
        """Tokens of all requests a second while decoding."""
        return self.batch * self.steps / self.decode_s


def generate(
    config: ModelConfig,
    *,
    prompt: int,
    steps: int,
    batch: int = 1,
    chip: str | Chip = "v5e",
    ring: int = 1,
    chunk: int | None = None,
    ideal: bool = False,
    tolerance: float = 0.005,
    every_step: bool = False,
    lowering: LoweringOptions | None = None,
    engine: str = "auto",
    **options: Any,
) -> Generation:
    """Prefill ``batch`` prompts of ``prompt`` positions, which gives a first token, then decode ``steps`` more.

    Parameters
    ----------
    chunk : new positions of each prefill step; None takes the whole prompt at once.
    tolerance : how far, relatively, the middle of a stretch may be from the straight line between its ends.
    every_step : simulate all steps.
    options : as of `workloads.transformer.model_step`.

    Raises `ModelConfigError` as `model_step` does.
    """
    if prompt < 1 or steps < 1:
        raise ModelConfigError(f"prompt {prompt}, steps {steps}: both are 1 or more")
    if chunk is not None and chunk < 1:
        raise ModelConfigError(f"a chunk of {chunk} positions: 1 or more is meant")
    if not 0 <= tolerance < 1:
        raise ModelConfigError(f"tolerance {tolerance}: from 0 up to 1 is meant")
    hardware = load_chip(chip)
    kept: dict[tuple[int, int], RunResult] = {}

    def simulated(new: int, cached: int, decoding: bool) -> float:
        if decoding:
            ops = decode_step(config, batch=batch, context=cached, ring=ring, **options)
        else:
            ops = prefill(config, batch=batch, context=new, cached=cached, ring=ring, **options)
        result = run(ops, chip=hardware, ideal=ideal, lowering=lowering, engine=engine)
        kept[new if not decoding else 0, cached] = result
        for old in sorted(key for key in kept if key[0] == 0)[1:-1]:
            del kept[old]
        return result.time_s

    size = min(chunk or prompt, prompt)
    whole = list(range(0, prompt - size + 1, size))
    rest = prompt - size * len(whole)
    chunk_times, chunks_s = _sum(whole, lambda cached: simulated(size, cached, False), tolerance, every_step)
    if rest:
        chunks_s += simulated(rest, prompt - rest, False)
    contexts = list(range(prompt, prompt + steps))
    times, decode_s = _sum(contexts, lambda cached: simulated(1, cached, True), tolerance, every_step)
    decoded = sorted(key for key in kept if key[0] == 0)
    notes = [_note("decode steps", len(times), steps, tolerance)]
    if len(whole) > 1:
        notes.append(_note(f"prefill chunks of {size} positions", len(chunk_times), len(whole), tolerance))
    return Generation(
        batch=batch,
        prompt=prompt,
        steps=steps,
        prefill_s=chunks_s,
        decode_s=decode_s,
        step_times_s=times,
        prefill=kept[size, 0],
        first=kept[decoded[0]],
        last=kept[decoded[-1]],
        notes=tuple(notes),
    )


def _note(what: str, simulated: int, of: int, tolerance: float) -> str:
    if simulated == of:
        return f"all {of} {what} are simulated"
    return (
        f"{simulated} of {of} {what} are simulated; between them times are interpolated, on straight lines that "
        f"miss the middle of their stretch by at most {tolerance:.2%}"
    )


def _sum(
    points: list[int], time_of: Callable[[int], float], tolerance: float, every: bool
) -> tuple[dict[int, float], float]:
    """The times that were simulated, and the sum over all points, which are evenly spaced."""
    times = {point: time_of(point) for point in (points if every else dict.fromkeys([points[0], points[-1]]))}
    stretches = [] if every else [(0, len(points) - 1)]
    while stretches:
        low, high = stretches.pop()
        if high - low < 2:
            continue
        middle = (low + high) // 2
        ends = [points[low], points[high]]
        expected = float(np.interp(points[middle], ends, [times[end] for end in ends]))
        times[points[middle]] = found = time_of(points[middle])
        if abs(found - expected) > tolerance * found:
            stretches += [(low, middle), (middle, high)]
    known = sorted(times)
    return times, float(np.interp(points, known, [times[point] for point in known]).sum())
