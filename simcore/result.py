"""The result of a run: the numbers a user asks for, by the names they have in ``--json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simcore.chips import Chip
from simcore.graph import TaskGraph
from simcore.timeline import Timeline

if TYPE_CHECKING:
    from simcore.views.gantt_scale import GanttOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What a simulation gave.

    Times are float seconds. Bytes and FLOPs are totals over all chips; bounds are of the busiest chip.

    Attributes
    ----------
    time_s : from 0 to the last completion.
    bounds_s : resource -> work / rate of its busiest instance, at the data sheet's rates (efficiencies 1, no issue
        costs, padding or latencies): no schedule can be faster.
    bound_s, bound_by : the largest of them and its resource.
    utilization : unit kind -> share of the makespan that its busiest instance is serving.
    exposed_s : cause -> time in which neither MXU nor VPU of the busiest chip works, attributed (see
        `simcore.exposure`): with the busy time they add up to ``time_s``.
    overlap_s : kind of unit -> time in which such a unit of the busiest chip serves while its MXU or VPU does.
    memory_peak_bytes : memory -> peak of the fullest chip.
    bytes, bytes_by_tensor : interface -> bytes, and interface -> tensor -> bytes.
    extra : figures that a scenario adds to its ``--json``.
    """

    scenario: str
    parameters: Mapping[str, Any]
    chip: Chip
    ideal: bool
    engine: str
    time_s: float
    busy_s: float
    bounds_s: Mapping[str, float]
    bound_s: float
    bound_by: str
    utilization: Mapping[str, float]
    exposed_s: Mapping[str, float]
    overlap_s: Mapping[str, float]
    memory_peak_bytes: Mapping[str, int]
    memory_capacity_bytes: Mapping[str, int]
    flops: int
    vector_operations: int
    bytes: Mapping[str, int]
    bytes_by_tensor: Mapping[str, Mapping[str, int]]
    chips: int
    tasks: int
    tasks_represented: int
    wall_s: float
    timeline: Timeline
    graph: TaskGraph
    notes: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The one object that ``--json`` prints; ``extra`` figures are beside the fixed ones."""
        fixed = {
            "scenario": self.scenario,
            "parameters": dict(self.parameters),
            "chip": self.chip.name,
            "ideal": self.ideal,
            "engine": self.engine,
            "time_s": self.time_s,
            "bound_s": self.bound_s,
            "bound_by": self.bound_by,
            "bounds_s": dict(self.bounds_s),
            "busy_s": self.busy_s,
            "utilization": dict(self.utilization),
            "exposed_s": dict(self.exposed_s),
            "overlap_s": dict(self.overlap_s),
            "memory_peak_bytes": dict(self.memory_peak_bytes),
            "memory_capacity_bytes": dict(self.memory_capacity_bytes),
            "flops": self.flops,
            "vector_operations": self.vector_operations,
            "bytes": dict(self.bytes),
            "bytes_by_tensor": {interface: dict(by) for interface, by in self.bytes_by_tensor.items()},
            "chips": self.chips,
            "tasks": self.tasks,
            "tasks_represented": self.tasks_represented,
            "wall_s": self.wall_s,
            "notes": list(self.notes),
        }
        return {**self.extra, **fixed}

    @property
    def overflowing_memories(self) -> tuple[str, ...]:
        """Accounted memories whose peak is over the chip's capacity."""
        return tuple(
            memory
            for memory, peak in self.memory_peak_bytes.items()
            if memory in self.memory_capacity_bytes and peak > self.memory_capacity_bytes[memory]
        )

    def gantt(self, path: str | Path, options: GanttOptions | None = None) -> None:
        """Draw the timeline; the suffix (.png, .svg, .pdf) chooses the format."""
        from simcore.views.gantt import draw_gantt

        draw_gantt(self, path, options)

    def frame(self, by: str = "operation", library: str = "polars") -> Any:
        """The table per "task", "operation", "layer" or "resource" as a polars or pandas frame."""
        from simcore.views.tables import frame_of

        return frame_of(self, by, library)

    def _repr_html_(self) -> str:
        """A card for notebooks."""
        from simcore.views.card import html_card

        return html_card(self)

    def report(self) -> str:
        """The result as a page of text."""
        from simcore.views.report import render_report

        return render_report(self)
