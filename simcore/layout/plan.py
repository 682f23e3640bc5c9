"""One way to compute a sharded product: its steps, their times, and the same in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from simcore.layout.mesh import Mesh
from simcore.layout.notation import Product
from simcore.layout.steps import CollectiveStep, LocalMatmul, Step
from simcore.quantities import format_bytes, format_flops, format_seconds


@dataclass(frozen=True)
class MatmulPlan:
    """Collectives on the operands, one local matmul, collectives on the output; ``seconds`` has one entry a step."""

    product: Product
    sizes: Mapping[str, int]
    mesh: Mesh
    dtype: str
    steps: tuple[Step, ...]
    seconds: tuple[float, ...]

    @property
    def local_matmul(self) -> LocalMatmul:
        """The one step that computes."""
        return next(step for step in self.steps if isinstance(step, LocalMatmul))

    @property
    def collectives(self) -> tuple[CollectiveStep, ...]:
        """The steps that move data, in order; slices, which move none, are not among them."""
        return tuple(step for step in self.steps if isinstance(step, CollectiveStep) and step.kind != "Slice")

    @property
    def communication_s(self) -> float:
        """Seconds of all collectives, one after the other."""
        pairs = zip(self.steps, self.seconds, strict=True)
        return sum(seconds for step, seconds in pairs if isinstance(step, CollectiveStep))

    @property
    def compute_s(self) -> float:
        """Seconds of the local matmul."""
        pairs = zip(self.steps, self.seconds, strict=True)
        return sum(seconds for step, seconds in pairs if isinstance(step, LocalMatmul))

    @property
    def time_s(self) -> float:
        """Seconds with nothing overlapped: the sum."""
        return self.communication_s + self.compute_s

    @property
    def overlapped_s(self) -> float:
        """Seconds with communication and compute overlapped perfectly: the longer of the two."""
        return max(self.communication_s, self.compute_s)

    @property
    def summary(self) -> str:
        """The plan in a line: ``AllGather_Y B, matmul, ReduceScatter_X C``."""
        words = []
        for step in self.steps:
            if isinstance(step, LocalMatmul):
                words.append("matmul")
            else:
                words.append(f"{step.title} {step.tensor}")
        return ", ".join(words)

    def describe(self) -> str:
        """The plan for people: one line a step with its layouts, bytes or FLOPs, and time; then the totals."""
        lines = []
        for number, (step, seconds) in enumerate(zip(self.steps, self.seconds, strict=True), start=1):
            if isinstance(step, LocalMatmul):
                batch = f"{step.batch} x " if step.batch != 1 else ""
                amount = f"{batch}[{step.m} x {step.k}] · [{step.k} x {step.n}], {format_flops(step.flops)} a device"
            elif step.kind == "Slice":
                amount = "nothing moves"
            else:
                amount = f"V = {format_bytes(step.full_bytes)}"
            lines.append(f"{number}. {step}: {amount}, {format_seconds(seconds)}")
        lines.append(
            f"communication {format_seconds(self.communication_s)}, compute {format_seconds(self.compute_s)}: "
            f"{format_seconds(self.time_s)} one after the other, {format_seconds(self.overlapped_s)} if overlapped"
        )
        return "\n".join(lines)
