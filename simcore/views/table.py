"""The timeline as rows: one a task instance, in key order; times in picoseconds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from simcore.result import RunResult
from simcore.timeline import Released

COLUMNS = (
    "row",
    "task",
    "iteration",
    "operation",
    "layer",
    "class",
    "chip",
    "alike",
    "unit",
    "kind",
    "moves",
    "bytes",
    "flops",
    "ready_ps",
    "granted_ps",
    "start_ps",
    "end_ps",
    "done_ps",
    "released_by",
    "released_how",
)
"""``chip`` are the coordinates ("x=3 y=0"), ``alike`` how many entities the row stands for, ``released_by`` a ``row``;
an empty cell is "none"."""


def task_rows(result: RunResult) -> Iterator[tuple[Any, ...]]:
    """The rows, in key order."""
    timeline = result.timeline
    chips = [" ".join(f"{axis}={index}" for axis, index in entity.coordinates) for entity in timeline.entities]
    how = {int(reason): reason.name.lower() for reason in Released}
    how[int(Released.NOTHING)] = ""
    numbers = zip(
        timeline.task.tolist(),
        timeline.iteration.tolist(),
        timeline.operation.tolist(),
        timeline.layer.tolist(),
        timeline.entity.tolist(),
        timeline.lane.tolist(),
        timeline.kind.tolist(),
        timeline.moves.tolist(),
        timeline.bytes.tolist(),
        timeline.flops.tolist(),
        timeline.ready_ps.tolist(),
        timeline.granted_ps.tolist(),
        timeline.start_ps.tolist(),
        timeline.end_ps.tolist(),
        timeline.done_ps.tolist(),
        timeline.released_by.tolist(),
        timeline.released_how.tolist(),
        strict=True,
    )
    for row, values in enumerate(numbers):
        task, iteration, operation, layer, entity, lane, kind, moves, *amounts, by, reason = values
        owner = timeline.entities[entity]
        yield (
            row,
            timeline.task_names[task],
            _index(iteration),
            timeline.operation_names[operation],
            _index(layer),
            owner.cls,
            chips[entity],
            owner.multiplicity,
            timeline.lanes[lane].unit if lane >= 0 else "",
            timeline.kind_names[kind],
            timeline.moves_names[moves],
            *amounts,
            _index(by),
            how[reason],
        )


def _index(value: int) -> int | str:
    return value if value >= 0 else ""
