"""Optimizers: what each keeps of a weight, in which formats, and its step on values.

Each keeps a master copy in fp32 of a weight in a narrower format (Micikevicius et al. 2017), unless ``master`` is
False: then the weight itself is moved. Operations are vector operations an element, assumed one a primitive.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np


class Optimizer(Protocol):
    """Settings of an optimizer."""

    @property
    def operations(self) -> float:
        """Vector operations an element."""

    def states(self, dtype: str) -> list[tuple[str, str]]:
        """Name and format of what is kept of a weight of format ``dtype``, besides itself."""

    def step(self, gradient: Any, *states_and_weight: Any) -> tuple[Any, ...]:
        """The new states and the new weight."""


def _master(dtype: str, wanted: bool) -> list[tuple[str, str]]:
    return [("master", "fp32")] if wanted and dtype != "fp32" else []


@dataclass(frozen=True, slots=True)
class Sgd:
    """w - rate g; with ``momentum``, v = momentum v + g and w - rate v (Polyak 1964)."""

    learning_rate: float = 1e-2
    momentum: float = 0.0
    master: bool = True

    @property
    def operations(self) -> float:
        return 4 if self.momentum else 2

    def states(self, dtype: str) -> list[tuple[str, str]]:
        return [*([("velocity", "fp32")] if self.momentum else []), *_master(dtype, self.master)]

    def step(self, gradient: Any, *given: Any) -> tuple[Any, ...]:
        states, weight = list(given[:-1]), given[-1]
        moved, kept = gradient, []
        if self.momentum:
            moved = self.momentum * states.pop(0) + gradient
            kept = [moved]
        new = (states[0] if states else weight) - self.learning_rate * moved
        return (*kept, *([new] if states else []), new)


@dataclass(frozen=True, slots=True)
class AdamW:
    """Adam with decoupled weight decay (Kingma and Ba 2014; Loshchilov and Hutter 2017), at its step ``number``."""

    learning_rate: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    weight_decay: float = 0.1
    number: int = 1
    master: bool = True

    @property
    def operations(self) -> float:
        return 14

    def states(self, dtype: str) -> list[tuple[str, str]]:
        return [("first_moment", "fp32"), ("second_moment", "fp32"), *_master(dtype, self.master)]

    def step(self, gradient: Any, *given: Any) -> tuple[Any, ...]:
        first, second, *masters, weight = given
        first = self.beta1 * first + (1 - self.beta1) * gradient
        second = self.beta2 * second + (1 - self.beta2) * gradient**2
        scaled = first / (1 - self.beta1**self.number)
        size = np.sqrt(second / (1 - self.beta2**self.number)) + self.epsilon
        old = masters[0] if masters else weight
        new = old - self.learning_rate * (scaled / size + self.weight_decay * old)
        return (first, second, *([new] if masters else []), new)


OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "adamw": AdamW,
    "adam": lambda **settings: AdamW(weight_decay=0.0, **settings),
    "sgd": Sgd,
    "momentum": lambda **settings: Sgd(**{"momentum": 0.9, **settings}),
}
"""Name -> what makes one from its settings."""
