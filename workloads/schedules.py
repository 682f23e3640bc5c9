"""Pipeline schedules: the order in which a stage takes the forward and backward passes of its microbatches.

A stage starts what it has in this order and no other, so what a schedule holds in memory and how long stages wait for
each other follow from it. With stages that are alike, p of them, m microbatches and transfers that take no time, the
bubble is (p - 1)/(m + p - 1) of the whole for both; they differ in what they hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

Pass: TypeAlias = tuple[bool, int]
"""Whether it is a forward pass, and the microbatch."""


def gpipe(stage: int, stages: int, microbatches: int) -> Iterator[Pass]:
    """All forward passes, then all backward passes: holds all microbatches. Source: Huang et al. 2019."""
    for number in range(microbatches):
        yield True, number
    for number in range(microbatches):
        yield False, number


def one_forward_one_backward(stage: int, stages: int, microbatches: int) -> Iterator[Pass]:
    """As many forward passes as stages follow, then by turns a forward and a backward one.

    Stage s of p holds min(m, p - s) microbatches. Source: Narayanan et al. 2019 (PipeDream-Flush).
    """
    ahead = min(microbatches, stages - 1 - stage)
    for number in range(ahead):
        yield True, number
    for number in range(microbatches):
        if ahead + number < microbatches:
            yield True, ahead + number
        yield False, number


SCHEDULES: dict[str, Callable[[int, int, int], Iterator[Pass]]] = {"1f1b": one_forward_one_backward, "gpipe": gpipe}
"""Name -> passes of a stage (stage, stages, microbatches)."""
