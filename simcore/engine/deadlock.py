"""Why a simulation can't go on: who waits for what, and who holds what."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from simcore.engine.simpy_engine import SimpyEngine

MOST_LINES = 6


def explain_deadlock(run: SimpyEngine) -> str:
    """The message about a run whose events are over while tasks wait; those that others wait for come first."""
    flat = run.flat
    waiting = [i for i in range(len(flat)) if run.done_ps[i] < 0]
    # What waits for a buffer or a unit is nearer to the cause than what waits for its completion.
    waiting.sort(key=lambda i: (not (i in run.waiting_for_buffer or i in run.requests), i))
    lines = [f"  {flat.label(i)} waits for {_reason(run, i)}" for i in waiting[:MOST_LINES]]
    if len(waiting) > MOST_LINES:
        lines.append(f"  ... and {len(waiting) - MOST_LINES} more")
    head = f"the simulation of {flat.graph.name!r} can't go on: {len(waiting)} of {len(flat)} tasks wait"
    return "\n".join([head, *lines])


def _reason(run: SimpyEngine, i: int) -> str:
    if i in run.waiting_for_buffer:
        return " and ".join(filter(None, dict.fromkeys(_buffer_reason(run, i, take) for take in run.takes[i])))
    if i in run.requests:
        entity, unit = run.flat.units[run.unit[i]]
        return f"unit {unit!r} of entity {entity}, which something outside the graph holds"
    return _dependency_reason(run, i)


def _buffer_reason(run: SimpyEngine, i: int, take: int) -> str:
    flat, pool = run.flat, run.take_pool[take]
    name, order = flat.pools[pool].pool.name, flat.pools[pool].takes
    ahead = order[run.next_take[pool]]
    if run.take_instance[ahead] != i:
        return f"its turn in pool {name!r}, which is that of {flat.label(run.take_instance[ahead])}"
    if len(run.free_slots[pool]) >= sum(run.take_pool[other] == pool for other in run.takes[i]):
        return ""
    holders = []
    for held in order[: run.next_take[pool]]:
        if run.take_released_ps[held] >= 0:
            continue
        holder = flat.label(run.take_instance[held])
        if run.take_waits[held] < 0:
            holders.append(f"{holder} to the end of the run")
            continue
        rows = np.repeat(np.arange(len(flat)), np.diff(flat.take_frees.start))
        readers = rows[flat.take_frees.values == held].tolist()
        missing = [flat.label(reader) for reader in readers if run.done_ps[reader] < 0]
        holders.append(f"{holder} until {', '.join(missing[:3])} is done")
    more = f" and {len(holders) - 4} others" if len(holders) > 4 else ""
    return f"a buffer of pool {name!r}, held by {'; '.join(holders[:4]) or 'nobody'}{more}"


def _dependency_reason(run: SimpyEngine, i: int) -> str:
    flat = run.flat
    rows = np.repeat(np.arange(len(flat)), np.diff(flat.dependents.start))
    starting = np.repeat(np.arange(len(flat)), np.diff(flat.start_dependents.start))
    reasons = [flat.label(j) for j in rows[flat.dependents.values == i].tolist() if run.done_ps[j] < 0]
    reasons += [
        f"the start of {flat.label(j)}"
        for j in starting[flat.start_dependents.values == i].tolist()
        if run.start_ps[j] < 0
    ]
    before = np.flatnonzero(flat.queue_next == i).tolist()
    reasons += [f"the start of {flat.label(j)}, which is before it in its queue" for j in before if run.start_ps[j] < 0]
    reasons = list(dict.fromkeys(reasons))
    more = f" and {len(reasons) - 3} more" if len(reasons) > 3 else ""
    return " and ".join(reasons[:3]) + more
