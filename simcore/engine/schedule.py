"""What an engine gives back: when each instance was ready, granted, served and done, and what released it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Schedule:
    """Columns over instances (key order) and over takes; picoseconds, rows of instances, slots from 0."""

    ready_ps: IntArray
    granted_ps: IntArray
    start_ps: IntArray
    end_ps: IntArray
    done_ps: IntArray
    released_by: IntArray
    released_how: IntArray
    take_slot: IntArray
    take_granted_ps: IntArray
    take_released_ps: IntArray
    """-1: held to the end of the run"""
