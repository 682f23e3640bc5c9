"""A chip to drive by hand: generator methods that occupy its units for what the work costs there, and record spans."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import simpy

from simcore.chips import Chip, load_chip
from simcore.errors import GraphError, nearest
from simcore.graph.graph import UNIT_KINDS, default_kind
from simcore.graph.work import Fixed, Matmul, Transfer, Vector, Work, matmul_flops, moved_bytes, vector_operations
from simcore.hardware import Hardware
from simcore.quantities import parse_bytes, parse_ps
from simcore.units.memory import BlockingMemory, Buffer

if TYPE_CHECKING:
    from simcore.units.together import GraphRun

Steps: TypeAlias = Generator[simpy.Event, Any, None]
"""What the methods give: to be run inside a process with ``yield from``."""


@dataclass(eq=False, slots=True)
class Span:
    """One piece of work on a unit; times in picoseconds, -1 for what has not happened yet."""

    task: str
    unit: str
    kind: str
    moves: str
    work: Work
    process: simpy.Process | None
    ready_ps: int
    start_ps: int = -1
    end_ps: int = -1
    done_ps: int = -1


class SimChip:
    """A chip of the catalogue in a SimPy environment: its units serve whoever asks, first come, first served.

    Parameters
    ----------
    env : an environment whose time is whole picoseconds.
    chip : a name from the catalogue, a path to a chip file, or a `Chip`.
    ideal : the scaling book's arithmetic instead of the calibrated chip (see `simcore.hardware`).
    name : what the timeline calls it.

    >>> import simpy
    >>> env = simpy.Environment()
    >>> chip = SimChip(env, "v5e", ideal=True)
    >>> _ = env.process(chip.load("weights", "810 MB"))
    >>> env.run()
    >>> env.now
    1000000000
    """

    def __init__(
        self, env: simpy.Environment, chip: str | Chip = "v5e", *, ideal: bool = False, name: str = "chip"
    ) -> None:
        self.env, self.name = env, name
        self.hardware = Hardware(load_chip(chip), ideal)
        self.vmem = BlockingMemory(env, "vmem", self.hardware.chip.vmem_capacity_bytes)
        self.kinds: dict[str, str] = {}
        """unit -> its kind, of the units used so far"""
        self.spans: list[Span] = []
        self.runs: list[GraphRun] = []
        """task graphs that run on this chip"""
        self._resources: dict[str, simpy.Resource] = {}

    def resource(self, unit: str, kind: str | None = None) -> simpy.Resource:
        """The server of a unit, made on first use. Its kind is by default its name up to the first ``_``.

        Raises `GraphError` for an unknown kind, `ChipError` if the chip has no such interface.
        """
        kind = kind or self.kinds.get(unit) or unit.split("_")[0]
        if kind not in UNIT_KINDS:
            raise GraphError(f"unit {unit!r}: unknown kind {kind!r}, {nearest(kind, UNIT_KINDS)}")
        if self.kinds.setdefault(unit, kind) != kind:
            raise GraphError(f"unit {unit!r} of {self.name} is of kind {self.kinds[unit]!r}, not {kind!r}")
        if unit not in self._resources:
            self.hardware.model(kind)
            self._resources[unit] = simpy.Resource(self.env, capacity=1)
        return self._resources[unit]

    def load(self, tensor: str, size_bytes: int | str) -> Steps:
        """Read ``size_bytes`` of ``tensor`` from HBM."""
        return self.serve("hbm", Transfer(parse_bytes(size_bytes)), task=f"load {tensor}", moves=tensor)

    def store(self, tensor: str, size_bytes: int | str) -> Steps:
        """Write ``size_bytes`` of ``tensor`` to HBM."""
        work = Transfer(parse_bytes(size_bytes))
        return self.serve("hbm", work, task=f"store {tensor}", kind="hbm_store", moves=tensor)

    def matmul(self, m: int, k: int, n: int, dtype: str = "bf16", *, task: str = "matmul") -> Steps:
        """Multiply [m, k] by [k, n] on the MXU: 2 m k n FLOPs."""
        return self.serve("mxu", Matmul(m, k, n, dtype), task=task)

    def vector(self, operations: int, size_bytes: int | str = 0, *, task: str = "vector") -> Steps:
        """Elementwise operations on the VPU that move ``size_bytes`` to and from VMEM."""
        return self.serve("vpu", Vector(operations, parse_bytes(size_bytes)), task=task)

    def send(self, link: str, tensor: str, size_bytes: int | str) -> Steps:
        """Send over one direction of a link, ``"x+"``; it has arrived when the generator ends."""
        return self.serve(f"ici_{link}", Transfer(parse_bytes(size_bytes)), task=f"send {tensor}", moves=tensor)

    def pcie(self, tensor: str, size_bytes: int | str) -> Steps:
        """Move ``size_bytes`` over PCIe."""
        return self.serve("pcie", Transfer(parse_bytes(size_bytes)), task=f"pcie {tensor}", moves=tensor)

    def dcn(self, tensor: str, size_bytes: int | str) -> Steps:
        """Move ``size_bytes`` over the data-centre network."""
        return self.serve("dcn", Transfer(parse_bytes(size_bytes)), task=f"dcn {tensor}", moves=tensor)

    def occupy(self, unit: str, duration: int | str, *, task: str) -> Steps:
        """Occupy a unit for a fixed duration: whole picoseconds, or a text with a unit of time."""
        ps = parse_ps(duration) if isinstance(duration, str) else duration
        return self.serve(unit, Fixed(ps), task=task)

    def reserve(self, name: str, size_bytes: int | str) -> Generator[simpy.Event, Any, Buffer]:
        """``with (yield from chip.reserve("tile", "1 MiB")):`` holds a buffer of VMEM inside the block."""
        return self.vmem.reserve(name, parse_bytes(size_bytes))

    def serve(self, unit: str, work: Work, *, task: str, kind: str = "", moves: str = "") -> Steps:
        """Wait for ``unit`` in its line, occupy it for the work's service, and wait for the latency after it.

        Raises `GraphError` for work that the unit does not serve.
        """
        resource = self.resource(unit)
        unit_kind = self.kinds[unit]
        model = self.hardware.model(unit_kind)
        moved = moved_bytes(work)
        if min(int(amount) for amount in (moved, matmul_flops(work), vector_operations(work))) < 0:
            raise GraphError(f"{task}: negative work; amounts and durations are 0 or more")
        service_ps = int(model.service_ps(work)) + (model.issue_ps if moved else 0)
        if service_ps < 0:
            raise GraphError(f"{task}: negative work; amounts and durations are 0 or more")
        span = Span(task, unit, kind or default_kind(unit_kind), moves, work, None, -1)
        return self._serve(resource, span, service_ps, model.latency_ps if moved else 0)

    def _serve(self, resource: simpy.Resource, span: Span, service_ps: int, latency_ps: int) -> Steps:
        span.process, span.ready_ps = self.env.active_process, self.now_ps
        self.spans.append(span)
        try:
            with resource.request() as request:
                yield request
                span.start_ps = self.now_ps
                yield self.env.timeout(service_ps)
                span.end_ps = self.now_ps
            if latency_ps:
                yield self.env.timeout(latency_ps)
            span.done_ps = self.now_ps
        finally:  # an interrupt cuts the work short, or the wait for it
            if span.start_ps < 0:
                self.spans.remove(span)
            elif span.done_ps < 0:
                span.done_ps = self.now_ps
                span.end_ps = span.end_ps if span.end_ps >= 0 else span.done_ps

    @property
    def now_ps(self) -> int:
        """The environment's time. Raises `GraphError` if it is no whole number of picoseconds."""
        now = self.env.now
        if now != int(now):
            raise GraphError(f"the environment's time is {now}: simcore counts whole picoseconds")
        return int(now)
