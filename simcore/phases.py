"""What each phase of a program costs: forward, backward, recompute, optimizer, and what none of them is busy in.

A chip's time is its compute, in the phase of the task that is served (of two at once, of the one that began first),
and its waits. A wait for communication between chips is "exposed communication", one for another chip's computation
"bubble"; any other, such as for HBM, is a cost of the phase that computes next. So all parts add up to the makespan,
exactly, for each chip.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from simcore.exposure import COMMUNICATION, compute_rows, waits
from simcore.timeline import PS_PER_S, Timeline

EXPOSED, BUBBLE, OTHER = "exposed communication", "bubble", "other"


def phases_ps(timeline: Timeline, entity: int, phases: Mapping[str, str]) -> dict[str, int]:
    """Phase -> picoseconds of one entity; ``phases`` says of each operation which one it is part of.

    Before the first and after the last task of an entity it waits for the others: bubble, if there are other classes
    of chips, else a cost of the phase that it begins or ends with.
    """
    found: dict[str, int] = dict.fromkeys([*dict.fromkeys(phases.values()), EXPOSED, BUBBLE], 0)
    several = len({one.cls for one in timeline.entities if one.kind == "chip"}) > 1
    rows = compute_rows(timeline, entity)
    starts, ends = timeline.start_ps[rows], timeline.end_ps[rows]
    of_operation = [phases.get(name, OTHER) for name in timeline.operation_names]
    of_row = [of_operation[number] for number in timeline.operation[rows].tolist()]
    covered = np.concatenate([starts[:1], np.maximum.accumulate(ends)[:-1]])
    for phase, own in zip(of_row, np.maximum(ends - np.maximum(starts, covered), 0).tolist(), strict=True):
        found[phase] = found.get(phase, 0) + own
    for wait in waits(timeline, entity):
        if wait.cause in COMMUNICATION:
            phase = EXPOSED
        elif wait.cause == BUBBLE or (several and wait.cause in ("fill", "drain")):
            phase = BUBBLE
        else:
            following = int(np.searchsorted(starts, wait.end_ps))
            phase = of_row[min(following, len(rows) - 1)] if len(rows) else OTHER
        found[phase] = found.get(phase, 0) + wait.end_ps - wait.start_ps
    return found


def phases_s(timeline: Timeline, phases: Mapping[str, str]) -> dict[str, float]:
    """Phase -> seconds, the mean over all chips; they add up to the makespan."""
    total: dict[str, int] = {}
    chips = 0
    for number, entity in enumerate(timeline.entities):
        if entity.kind == "chip":
            chips += entity.multiplicity
            for phase, spent in phases_ps(timeline, number, phases).items():
                total[phase] = total.get(phase, 0) + spent * entity.multiplicity
    return {phase: spent / chips / PS_PER_S for phase, spent in total.items()}
