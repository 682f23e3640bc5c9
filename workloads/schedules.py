"""Pipeline schedules: the order in which a stage takes the forward and backward passes of its microbatches.

A stage starts what it has in this order and no other, so what a schedule holds in memory and how long stages wait for
each other follow from it. With p stages that are alike, m microbatches and transfers that take no time, the bubble is
(p - 1)/(m + p - 1) of the whole under gpipe and 1f1b, which differ in what they hold. Interleaved, a stage has v chunks
of layers, the layers of the stages by turns, and the bubble is (p - 1)/(v m + p - 1); as much more is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple


class Pass(NamedTuple):
    """A forward or backward pass of a microbatch through a chunk of a stage's layers."""

    forward: bool
    microbatch: int
    chunk: int = 0


def gpipe(stage: int, stages: int, microbatches: int, chunks: int = 1) -> Iterator[Pass]:
    """All forward passes, then all backward passes: holds all microbatches. Source: Huang et al. 2019."""
    for number in range(microbatches):
        yield Pass(True, number)
    for number in range(microbatches):
        yield Pass(False, number)


def one_forward_one_backward(stage: int, stages: int, microbatches: int, chunks: int = 1) -> Iterator[Pass]:
    """As many forward passes as stages follow, then by turns a forward and a backward one.

    Stage s of p holds min(m, p - s) microbatches. Source: Narayanan et al. 2019 (PipeDream-Flush).
    """
    yield from _by_turns(
        min(microbatches, stages - 1 - stage),
        [Pass(True, number) for number in range(microbatches)],
        [Pass(False, number) for number in range(microbatches)],
    )


def interleaved(stage: int, stages: int, microbatches: int, chunks: int) -> Iterator[Pass]:
    """1F1B over chunks: as many microbatches as there are stages through each chunk by turns.

    ``microbatches`` is a multiple of ``stages``. Source: Narayanan et al. 2021, section 2.2.
    """
    forward = [
        Pass(True, first + number, chunk)
        for first in range(0, microbatches, stages)
        for chunk in range(chunks)
        for number in range(stages)
    ]
    backward = [Pass(False, one.microbatch, chunks - 1 - one.chunk) for one in forward]
    yield from _by_turns(min(len(forward), 2 * (stages - 1 - stage) + (chunks - 1) * stages), forward, backward)


def _by_turns(ahead: int, forward: list[Pass], backward: list[Pass]) -> Iterator[Pass]:
    """``ahead`` forward passes, then one of each as long as there are."""
    yield from forward[:ahead]
    for number, one in enumerate(backward):
        yield from forward[ahead + number : ahead + number + 1]
        yield one


SCHEDULES: dict[str, Callable[[int, int, int, int], Iterator[Pass]]] = {
    "1f1b": one_forward_one_backward,
    "gpipe": gpipe,
    "interleaved": interleaved,
}
"""Name -> passes of a stage (stage, stages, microbatches, chunks)."""
DEFAULT_CHUNKS = 2
CHUNKED = ("interleaved",)
"""Schedules under which a stage has several chunks of layers."""


def closed_form_bubble(schedule: str, stages: int, microbatches: int, chunks: int = 1) -> float:
    """The share of the time in which a stage waits, with stages alike and transfers that take no time."""
    parts = chunks if schedule in CHUNKED else 1
    return (stages - 1) / (parts * microbatches + stages - 1)
