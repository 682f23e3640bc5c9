"""Occupancy of memories over time: buffers that pools have granted, and tensors from birth to death."""

from __future__ import annotations

import numpy as np

from simcore.timeline import IntColumn, Timeline


def occupancy(timeline: Timeline, entity: int, memory: str) -> tuple[IntColumn, IntColumn]:
    """Times (ps, ascending, each once) and the bytes held in the entity's ``memory`` from then on.

    What dies at an instant is gone before what is born at it. A buffer that is granted and released at one instant
    leaves no trace.
    """
    times, changes = [np.zeros(1, dtype=np.int64)], [np.zeros(1, dtype=np.int64)]
    slots = timeline.slots
    of_pool = np.array(
        [size if (owner, where) == (entity, memory) else 0 for owner, _, where, _, size in slots.pools],
        dtype=np.int64,
    )
    if len(slots.pool):
        size = of_pool[slots.pool]
        held = size > 0
        times += [slots.granted_ps[held], slots.released_ps[held]]
        changes += [size[held], -size[held]]
    tensors = timeline.tensors
    if memory in tensors.memories:
        here = (tensors.entity == entity) & (tensors.memory == tensors.memories.index(memory))
        # What lives for the whole of a run that takes no time was there all the same.
        times += [tensors.born_ps[here], np.maximum(tensors.died_ps[here], 1)]
        changes += [tensors.bytes[here], -tensors.bytes[here]]
    at, inverse = np.unique(np.concatenate(times), return_inverse=True)
    delta = np.zeros(len(at), dtype=np.int64)
    np.add.at(delta, inverse, np.concatenate(changes))
    return at, np.cumsum(delta)


def peak_bytes(timeline: Timeline, entity: int, memory: str) -> int:
    """The most that the entity's ``memory`` holds at any instant."""
    return int(occupancy(timeline, entity, memory)[1].max())


def peak_by_memory(timeline: Timeline) -> dict[str, int]:
    """Memory -> peak of the fullest entity."""
    memories = dict.fromkeys([*(memory for _, _, memory, _, _ in timeline.slots.pools), *timeline.tensors.memories])
    return {
        memory: max(peak_bytes(timeline, entity, memory) for entity in range(len(timeline.entities)))
        for memory in memories
    }


def alive_at_peak(timeline: Timeline, entity: int, memory: str) -> list[tuple[str, int]]:
    """What the entity's ``memory`` held at its peak: (tensor or pool, bytes), the largest first."""
    at, held = occupancy(timeline, entity, memory)
    instant = int(at[int(held.argmax())])
    alive: dict[str, int] = {}
    slots, tensors = timeline.slots, timeline.tensors
    for row in np.flatnonzero((slots.granted_ps <= instant) & (instant < slots.released_ps)).tolist():
        owner, name, where, _, size = slots.pools[int(slots.pool[row])]
        if (owner, where) == (entity, memory):
            alive[name] = alive.get(name, 0) + size
    if memory in tensors.memories:
        number = tensors.memories.index(memory)
        for row in np.flatnonzero(
            (tensors.entity == entity)
            & (tensors.memory == number)
            & (tensors.born_ps <= instant)
            & (instant < np.maximum(tensors.died_ps, 1))
        ).tolist():
            name = tensors.names[int(tensors.tensor[row])]
            alive[name] = alive.get(name, 0) + int(tensors.bytes[row])
    return sorted(alive.items(), key=lambda item: (-item[1], item[0]))
