"""The work a task asks of its unit: bytes, a matmul, vector operations, or a fixed duration.

A work item carries amounts only. How long it takes is the unit's answer (see `simcore.hardware`), so one graph runs on
any chip. An amount is an integer, or a numpy array that broadcasts against the counts of the loops around the task,
outermost first: `Transfer(np.array([512, 512, 100]))` in a loop of 3 has a short last transfer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from simcore.quantities import parse_ps

IntArray: TypeAlias = npt.NDArray[np.int64]
Amount: TypeAlias = int | IntArray


@dataclass(frozen=True, slots=True)
class Transfer:
    """Moving ``bytes`` over a channel: HBM, a link direction, PCIe, DCN."""

    bytes: Amount


@dataclass(frozen=True, slots=True)
class Matmul:
    """``batch`` independent products [m, k] x [k, n] in ``dtype``: 2 m k n FLOPs each (a multiply-add is 2)."""

    m: Amount
    k: Amount
    n: Amount
    dtype: str = "bf16"
    batch: Amount = 1

    @property
    def flops(self) -> Amount:
        return 2 * self.m * self.k * self.n * self.batch


@dataclass(frozen=True, slots=True)
class Vector:
    """``operations`` elementwise operations, moving ``bytes`` to and from VMEM: the slower of the two counts."""

    operations: Amount
    bytes: Amount = 0


@dataclass(frozen=True, slots=True)
class Fixed:
    """A duration that does not depend on the chip, in picoseconds. `Fixed.of("50 us")` reads a quantity."""

    ps: Amount

    @classmethod
    def of(cls, duration: str | float) -> Fixed:
        """The fixed work of a quantity: a string with a unit, or seconds."""
        return cls(parse_ps(duration))


Work: TypeAlias = Transfer | Matmul | Vector | Fixed
NOTHING = Fixed(0)


def moved_bytes(work: Work) -> Amount:
    """Bytes that the work moves over its channel (VMEM traffic of vector work is not an interface)."""
    return work.bytes if isinstance(work, Transfer) else 0


def matmul_flops(work: Work) -> Amount:
    """FLOPs of the work on the matrix unit."""
    return work.flops if isinstance(work, Matmul) else 0


def vector_operations(work: Work) -> Amount:
    """Operations of the work on the vector unit."""
    return work.operations if isinstance(work, Vector) else 0
