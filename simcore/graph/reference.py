"""References from one task to another: which task, which iteration of its loops, on which entity, and to what event.

A loop of the target that also encloses the referring task is *shared*: by default the reference means the same
iteration, and an integer is an offset from it (-1: the previous one). Any other loop of the target must be told which
iteration is meant: an integer is absolute, negative ones count from the end (-1: the last), `ALL` means every one, and
it is the default. A function gives the iteration from the referring task's iterations and coordinates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

Indices: TypeAlias = Mapping[str, Any]
"""Loop or mesh-axis name -> integer, or integer arrays that broadcast against each other."""


class _All:
    """Every iteration of a loop of the target."""

    def __repr__(self) -> str:
        return "ALL"


ALL = _All()
IterationFunction: TypeAlias = Callable[[Indices, Indices], npt.NDArray[np.int64] | int]
At: TypeAlias = int | _All | IterationFunction


@dataclass(frozen=True, slots=True)
class Ref:
    """A reference to another task.

    Parameters
    ----------
    task : name of the target.
    at : loop name -> which iteration (see the module's text).
    on : mesh axis -> chip offset; the target is the entity at these coordinates, whatever its class.
    onto : function from the referring entity's coordinates to the target's, where an offset cannot say it (a chip's
        host). Give ``cls`` as well when the target's axes have other names.
    cls : class of the target; by default the referring task's, or the one that owns the coordinates.
    event : "done", the target's completion, or "start", its start plus ``lag_ps``.
    outside : "error", or "ignore" where a reference that falls outside the loops, the line of chips or a guard is no
        dependency (a first iteration, the end of a line).
    """

    task: str
    at: Mapping[str, At] = field(default_factory=dict)
    on: Mapping[str, int] = field(default_factory=dict)
    onto: Callable[[Indices], Indices] | None = None
    cls: str | None = None
    event: Literal["done", "start"] = "done"
    lag_ps: int = 0
    outside: Literal["error", "ignore"] = "error"
