"""The chain of tasks that ends with the last completion: each was let start by the one before it."""

from __future__ import annotations

import numpy as np

from simcore.timeline import IntColumn, Timeline


def critical_rows(timeline: Timeline) -> IntColumn:
    """Rows of the critical path in order of time, by following ``released_by`` back from the last completion."""
    if not len(timeline):
        return np.zeros(0, dtype=np.int64)
    row = int(np.flatnonzero(timeline.done_ps == timeline.done_ps.max())[-1])
    path = []
    while row >= 0:
        path.append(row)
        row = int(timeline.released_by[row])
    return np.array(path[::-1], dtype=np.int64)
