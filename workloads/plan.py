"""How a model is spread over chips: so many ways of each kind of parallelism, and which mesh axes carry them.

    Plan.parse("data=2,tensor=8")        requests over 2 groups of chips, heads and columns over 8 chips each
    Plan.parse("tensor=4,tensor2=4")     weights split over both of their dimensions (2D, weight-stationary)
    Plan.parse("fsdp=16")                weights split, and gathered for each use (weight-gathered; ZeRO-3)

| kind | what it splits |
|---|---|
| data | the requests; weights are copied |
| fsdp | the requests, and the weights, which are gathered for each use |
| tensor | heads, feed-forward columns, the vocabulary; with ``sequence`` also the residual between the blocks |
| tensor2 | the weights' other dimension, so that both operands of a matmul are stationary (2D) |
| context | the positions: of the cache (flash-decoding), or of the prompt (ring attention) |
| expert | the requests, and the experts, to which tokens are sent by an AllToAll |
| pipeline | the layers, in stages that send activations on |

Source: How To Scale Your Model, "Training" and "Inference"; Pope et al. 2022 for the 2D and weight-gathered layouts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from simcore.errors import ModelConfigError, nearest

KINDS = ("data", "fsdp", "pipeline", "expert", "context", "tensor2", "tensor")
"""Kinds in the order of their axes, the outermost first: what talks most is laid on the innermost."""

SWITCHES = ("sequence",)


@dataclass(frozen=True, slots=True)
class Plan:
    """Ways of each kind; all 1 is a single chip. ``sequence`` splits the residual over the tensor axis as well."""

    data: int = 1
    fsdp: int = 1
    tensor: int = 1
    tensor2: int = 1
    context: int = 1
    expert: int = 1
    pipeline: int = 1
    sequence: bool = False

    def __post_init__(self) -> None:
        for kind in KINDS:
            ways = getattr(self, kind)
            if isinstance(ways, bool) or not isinstance(ways, int) or ways < 1:
                raise ModelConfigError(f"plan: {kind}={ways}; a whole number of ways, 1 or more, is meant")
        if self.sequence and self.tensor == 1:
            raise ModelConfigError("plan: sequence splits the residual over the tensor axis, and tensor is 1")

    @classmethod
    def parse(cls, text: str) -> Plan:
        """Read ``"fsdp=64,tensor=8,sequence"``; ``""`` is one chip. Raises `ModelConfigError`."""
        given: dict[str, int | bool] = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            match = re.fullmatch(r"([a-z0-9_]+)\s*(?:=\s*(-?\d+))?", part)
            if match is None:
                raise ModelConfigError(f"plan {text!r}: cannot read {part!r}; KIND=WAYS is meant, such as tensor=8")
            kind, ways = match[1], match[2]
            if kind not in (*KINDS, *SWITCHES):
                raise ModelConfigError(f"plan: unknown kind {kind!r}, {nearest(kind, (*KINDS, *SWITCHES))}")
            if kind in given:
                raise ModelConfigError(f"plan {text!r}: {kind} is given twice")
            if kind in SWITCHES:
                if ways not in (None, "0", "1"):
                    raise ModelConfigError(f"plan: {kind}={ways}; it is on or off: write {kind} alone")
                given[kind] = ways != "0"
            elif ways is None:
                raise ModelConfigError(f"plan: {kind} needs its ways: {kind}=8")
            else:
                given[kind] = int(ways)
        return cls(**given)  # type: ignore[arg-type]

    @property
    def chips(self) -> int:
        """Chips that the plan uses."""
        return math.prod(self.ways.values())

    @property
    def ways(self) -> dict[str, int]:
        """Kind -> ways, in the order of the axes."""
        return {kind: getattr(self, kind) for kind in KINDS}

    @property
    def groups(self) -> int:
        """Groups of chips that each have requests of their own."""
        return self.data * self.fsdp * self.expert

    @property
    def stage(self) -> Plan:
        """The plan of one pipeline stage."""
        return replace(self, pipeline=1)

    def __str__(self) -> str:
        parts = [f"{kind}={ways}" for kind, ways in self.ways.items() if ways > 1]
        return ",".join(parts + ["sequence"] * self.sequence) or "one chip"


@dataclass(frozen=True, slots=True)
class PlacedPlan:
    """A plan and the mesh axes of each of its kinds.

    Parameters
    ----------
    axes : kind -> mesh axes, the first the major; kinds of one way have none.
    sizes : mesh axis -> chips.
    lines : mesh axes that do not wrap around.
    networks : mesh axis -> "nvlink", "network" or "dcn", where it is not the ICI.
    notes : what was assumed.
    """

    plan: Plan
    axes: Mapping[str, tuple[str, ...]]
    sizes: Mapping[str, int]
    lines: frozenset[str]
    networks: Mapping[str, str]
    notes: tuple[str, ...] = ()

    @classmethod
    def unplaced(cls, plan: Plan) -> PlacedPlan:
        """A mesh axis for each kind, as if each were a ring of its own."""
        used = {kind: ways for kind, ways in plan.ways.items() if ways > 1}
        return cls(plan, {kind: (kind,) for kind in used}, used or {"tensor": 1}, frozenset(), {})

    def of(self, *kinds: str) -> tuple[str, ...]:
        """The mesh axes of kinds, in the order given."""
        return tuple(axis for kind in kinds for axis in self.axes.get(kind, ()))


__all__ = ["KINDS", "PlacedPlan", "Plan"]
assert {field.name for field in fields(Plan)} == {*KINDS, *SWITCHES}
