"""Functions on rows that know their derivatives, from which the backward pass of elementwise work is derived."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Gradient:
    """The derivative to one argument of a function of rows.

    Parameters
    ----------
    function : from the arguments named in ``uses``, in their order, and last what comes back for the result [rows,
        features], to what goes back to the argument [rows, its features]; of a vector, the rows whose sum goes back.
    operations : vector operations an element of what goes back.
    uses : numbers of the arguments that are read, inputs first and vectors after them; what is not in it need not be
        kept for the backward pass.
    """

    function: Callable[..., Any]
    operations: float
    uses: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Differentiable:
    """``function`` and, for each argument, its derivative; None for one that has none (positions, token numbers)."""

    function: Callable[..., Any]
    gradients: tuple[Gradient | None, ...]

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)


def same(back: Any) -> Any:
    """What comes back goes on unchanged, as through a sum."""
    return back


SAME = Gradient(same, 0)
