"""How a matmul C[m, n] = A[m, k] B[k, n] is cut into tiles: loop order, tile shape, room; and what that costs.

Loops run over tiles of m, k and n in a chosen order, outermost first. Each operand depends on two of the three, and is
loaded at the innermost of its own loops:

- the loop that it does not depend on inside both of its own: each tile is loaded once and used by all of that loop;
- that loop outside: the tiles are wanted again on every pass. If the operand's room holds them all they stay, and are
  loaded once; else they are loaded again each time.

C is accumulated in fp32 in VMEM while k passes. With k not innermost its partial sums stay if there is room, or else
are written and read back, in fp32, on every pass of k. So reuse and re-reads come out of what fits.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from simcore.chips import Chip
from simcore.dtypes import bytes_of
from simcore.errors import GraphError, nearest
from simcore.graph.work import Matmul
from simcore.hardware import unit_model
from simcore.quantities import duration_ps, format_bytes

Operand = Literal["a", "b", "c"]
OPERANDS: tuple[Operand, ...] = ("a", "b", "c")
DIMS = {"a": "mk", "b": "kn", "c": "mn"}
ORDERS = tuple("".join(order) for order in itertools.permutations("mkn"))
STATIONARY = {
    "output_stationary": ("mnk", "nmk"),
    "weight_stationary": ("nkm", "knm"),
    "input_stationary": ("mkn", "kmn"),
}
"""What stays in VMEM while the innermost loop runs: C, B (the weights) or A (the inputs)."""
PARTIAL = "fp32"
CANDIDATES = 9
"""Sizes tried for each side of a tile."""


@dataclass(frozen=True, slots=True)
class MatmulShape:
    """C[m, n] = A[m, k] B[k, n], computed in ``dtype``; A, B and C may be stored in dtypes of their own."""

    m: int
    k: int
    n: int
    dtype: str = "bf16"
    a_dtype: str = ""
    b_dtype: str = ""
    c_dtype: str = ""

    def __post_init__(self) -> None:
        for name in "mkn":
            if getattr(self, name) < 1:
                raise GraphError(f"a matmul's {name} is {getattr(self, name)}; it must be 1 or more")

    def size(self, dim: str) -> int:
        return int(getattr(self, dim))

    def stored_dtype(self, operand: Operand) -> str:
        """What the operand is stored in: its own dtype, else the matmul's."""
        return str(getattr(self, f"{operand}_dtype")) or self.dtype

    def bytes(self, operand: Operand) -> int:
        """Bytes of the whole operand in HBM."""
        return bytes_of(math.prod(self.size(dim) for dim in DIMS[operand]), self.stored_dtype(operand))

    @property
    def flops(self) -> int:
        return 2 * self.m * self.k * self.n

    @property
    def intensity_flops_per_byte(self) -> float:
        """FLOPs per byte when every operand moves once: 2 m k n / bytes(A, B, C)."""
        return self.flops / sum(self.bytes(operand) for operand in OPERANDS)


@dataclass(frozen=True, slots=True)
class Tiling:
    """Loop ``order`` (outermost first), tile shape, and the buffers that each operand has in VMEM."""

    order: str
    tile_m: int
    tile_k: int
    tile_n: int
    room_a: int = 2
    room_b: int = 2
    room_c: int = 2

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise GraphError(f"loop order {self.order!r}: {nearest(self.order, ORDERS)}")
        for name in ("tile_m", "tile_k", "tile_n", "room_a", "room_b", "room_c"):
            if getattr(self, name) < 1:
                raise GraphError(f"{name} is {getattr(self, name)}; it must be 1 or more")

    def tile(self, dim: str) -> int:
        return int(getattr(self, f"tile_{dim}"))

    def room(self, operand: Operand) -> int:
        return int(getattr(self, f"room_{operand}"))

    def count(self, shape: MatmulShape, dim: str) -> int:
        """Tiles along a dimension, the last of them ragged where it does not divide."""
        return -(-shape.size(dim) // self.tile(dim))

    def tiles(self, shape: MatmulShape) -> int:
        """Tile products in all."""
        return math.prod(self.count(shape, dim) for dim in "mkn")

    def level(self, operand: Operand) -> int:
        """Position in the order of the innermost loop that the operand depends on."""
        return max(self.order.index(dim) for dim in DIMS[operand])

    def pass_level(self, operand: Operand) -> int:
        """Position in the order of the loop that the operand does not depend on."""
        return next(at for at, dim in enumerate(self.order) if dim not in DIMS[operand])

    def passes(self, shape: MatmulShape, operand: Operand) -> int:
        """How often its tiles are wanted again: 1 where the other loop is inside its own."""
        outer = self.pass_level(operand)
        return self.count(shape, self.order[outer]) if outer < self.level(operand) else 1

    def working_set(self, shape: MatmulShape, operand: Operand) -> int:
        """Different tiles that are wanted before the first one is wanted again; 1 where none is."""
        if self.passes(shape, operand) == 1:
            return 1
        outer = self.pass_level(operand)
        return math.prod(self.count(shape, dim) for dim in self.order[outer + 1 :])

    def kept(self, shape: MatmulShape, operand: Operand) -> bool:
        """Whether its tiles stay from one pass to the next, because the room holds all of them."""
        return self.passes(shape, operand) > 1 and self.room(operand) >= self.working_set(shape, operand)

    def reads(self, shape: MatmulShape, operand: Operand) -> int:
        """How often the whole operand is read from HBM (A and B)."""
        return 1 if self.kept(shape, operand) else self.passes(shape, operand)

    def spills(self, shape: MatmulShape) -> int:
        """How often all of C is written as fp32 partial sums and read back."""
        return 0 if self.kept(shape, "c") else self.passes(shape, "c") - 1

    def tile_bytes(self, shape: MatmulShape, operand: Operand) -> int:
        """Bytes of one buffer: a tile as stored, or of fp32 partial sums for C."""
        elements = math.prod(min(self.tile(dim), shape.size(dim)) for dim in DIMS[operand])
        return bytes_of(elements, PARTIAL if operand == "c" else shape.stored_dtype(operand))

    def vmem_bytes(self, shape: MatmulShape, resident: Sequence[Operand] = ()) -> int:
        """VMEM that the buffers take; ``resident`` operands are there already and need none."""
        return sum(
            self.room(operand) * self.tile_bytes(shape, operand)
            for operand in OPERANDS
            if operand not in resident or operand == "c"
        )

    def traffic_bytes(self, shape: MatmulShape, resident: Sequence[Operand] = ()) -> int:
        """HBM reads and writes."""
        moved = sum(
            shape.bytes(operand) * self.reads(shape, operand) for operand in ("a", "b") if operand not in resident
        )
        if "c" not in resident:
            partial = bytes_of(shape.m * shape.n, PARTIAL)
            moved += shape.bytes("c") + 2 * self.spills(shape) * partial
        return moved

    def transfers(self, shape: MatmulShape, resident: Sequence[Operand] = ()) -> int:
        """Loads and stores, each of which pays the issue cost."""
        number = 0
        for operand in OPERANDS:
            if operand not in resident:
                own = math.prod(self.count(shape, dim) for dim in DIMS[operand])
                number += own * (1 + 2 * self.spills(shape) if operand == "c" else self.reads(shape, operand))
        return number


def check_fits(shape: MatmulShape, tiling: Tiling, vmem_bytes: int, resident: Sequence[Operand] = ()) -> None:
    """Raise `GraphError` if the buffers do not fit ``vmem_bytes``."""
    need = tiling.vmem_bytes(shape, resident)
    if need > vmem_bytes:
        parts = ", ".join(
            f"{operand.upper()} {tiling.room(operand)} x {format_bytes(tiling.tile_bytes(shape, operand), binary=True)}"
            for operand in OPERANDS
            if operand not in resident or operand == "c"
        )
        raise GraphError(
            f"the tiles need {format_bytes(need, binary=True)} of VMEM and there are "
            f"{format_bytes(vmem_bytes, binary=True)} ({parts}): use smaller tiles or fewer buffers"
        )


def estimated_ps(shape: MatmulShape, tiling: Tiling, chip: Chip, resident: Sequence[Operand] = ()) -> int:
    """What a double-buffered pipeline takes about on the calibrated chip: the slower of HBM and MXU, and the first load
    and last store around it. It only ranks tilings; the simulation says what one takes."""
    hbm, mxu = unit_model(chip, "hbm"), unit_model(chip, "mxu")
    rate = chip.hbm_bandwidth_bytes_per_s * chip.efficiency.get("hbm", 1.0)
    moving = duration_ps(tiling.traffic_bytes(shape, resident), rate)
    moving += tiling.transfers(shape, resident) * hbm.issue_ps
    tile = {dim: min(tiling.tile(dim), shape.size(dim)) for dim in "mkn"}
    one = mxu.service_ps(Matmul(tile["m"], tile["k"], tile["n"], shape.dtype))
    computing = int(one) * tiling.tiles(shape)
    streamed: list[Operand] = [operand for operand in ("a", "b") if operand not in resident]
    first = sum(duration_ps(tiling.tile_bytes(shape, operand), rate) + hbm.issue_ps for operand in streamed)
    last = 0
    if "c" not in resident:
        last = duration_ps(bytes_of(tile["m"] * tile["n"], shape.stored_dtype("c")), rate) + hbm.issue_ps
    single = [operand for operand in streamed if tiling.room(operand) == 1 and tiling.tiles(shape) > 1]
    if single:
        return moving + computing
    return max(moving + int(one), first + computing + last)


def candidate_sides(size: int, multiple: int) -> list[int]:
    """Tile sides to try: the whole, and halves of it down to ``multiple``, each a multiple of it."""
    sides = {size}
    parts = 2
    while len(sides) < CANDIDATES:
        side = -(-size // (parts * multiple)) * multiple
        sides.add(min(side, size))
        if side <= multiple:
            break
        parts *= 2
    return sorted(sides)


def choose_tiling(
    shape: MatmulShape,
    chip: Chip,
    *,
    order: str = "auto",
    tile: tuple[int | None, int | None, int | None] = (None, None, None),
    buffers: int = 2,
    vmem_bytes: int | None = None,
    resident: Sequence[Operand] = (),
    tile_limit_bytes: Mapping[Operand, int] | None = None,
    keep: bool = True,
) -> Tiling:
    """The tiling with the least HBM traffic and, among those, the least `estimated_ps` on the calibrated chip.

    Parameters
    ----------
    order : "auto", a dataflow ("output_stationary", "weight_stationary", "input_stationary"), or loops outermost
        first ("mnk").
    tile : sides (m, k, n) that are given; None is chosen among multiples of the chip's array side.
    buffers : buffers of each streamed operand and accumulator; an operand that is wanted again gets the room of all
        its tiles where VMEM has it.
    vmem_bytes : what the tiles may use; the chip's whole VMEM by default.
    resident : operands that are in VMEM already.
    tile_limit_bytes : the largest tile of each operand, where it shares its buffers with others.
    keep : whether an operand may get more than ``buffers`` so as to stay.

    Raises `GraphError` if no tile fits.
    """
    if buffers < 1:
        raise GraphError(f"buffers is {buffers}; it must be 1 or more")
    for name, side in zip("mkn", tile, strict=True):
        if side is not None and side < 1:
            raise GraphError(f"the tile's {name} is {side}; it must be 1 or more")
    room = chip.vmem_capacity_bytes if vmem_bytes is None else vmem_bytes
    limits = tile_limit_bytes or {}
    known = ("auto", *STATIONARY, *ORDERS)
    if order not in known:
        raise GraphError(f"loop order {order!r}: {nearest(order, known)}")
    orders = ORDERS if order == "auto" else STATIONARY.get(order, (order,))
    sides = [
        [min(given, shape.size(dim))] if given is not None else candidate_sides(shape.size(dim), multiple)
        for dim, given, multiple in zip(
            "mkn", tile, (chip.mxu_sublanes * 16, chip.mxu_side, chip.mxu_side), strict=True
        )
    ]
    best: tuple[tuple[int, int, int], Tiling] | None = None
    smallest: Tiling | None = None
    for tile_m, tile_k, tile_n in itertools.product(*sides):
        for loops in orders:
            plain = _with_buffers(shape, Tiling(loops, tile_m, tile_k, tile_n), buffers)
            need = plain.vmem_bytes(shape, resident)
            if smallest is None or need < smallest.vmem_bytes(shape, resident):
                smallest = plain
            if need > room or any(plain.tile_bytes(shape, operand) > limit for operand, limit in limits.items()):
                continue
            for tiling in _with_kept(shape, plain, room, resident) if keep else [plain]:
                if "c" in resident and tiling.spills(shape):
                    continue
                cost = (
                    tiling.traffic_bytes(shape, resident),
                    estimated_ps(shape, tiling, chip, resident),
                    tiling.tiles(shape),
                )
                if best is None or cost < best[0]:
                    best = cost, tiling
    if best is None:
        assert smallest is not None
        check_fits(shape, smallest, room, resident)
        raise GraphError(
            f"no tiling with loop order {order!r} has tiles within the limits {dict(limits)}"
            + (" and k innermost, as a C that stays in VMEM needs" if "c" in resident else "")
        )
    return best[1]


def _with_buffers(shape: MatmulShape, tiling: Tiling, buffers: int) -> Tiling:
    """``buffers`` of each operand, but no more than it has tiles."""
    a, b, c = (min(buffers, math.prod(tiling.count(shape, dim) for dim in DIMS[operand])) for operand in OPERANDS)
    return replace(tiling, room_a=a, room_b=b, room_c=c)


def _with_kept(shape: MatmulShape, tiling: Tiling, room: int, resident: Sequence[Operand]) -> list[Tiling]:
    """The tiling, and those in which some operands keep all tiles that are wanted again, as far as they fit."""
    wanted = [
        operand
        for operand in OPERANDS
        if operand not in resident and tiling.passes(shape, operand) > 1 and not tiling.kept(shape, operand)
    ]
    found = []
    for number in range(len(wanted) + 1):
        for kept in itertools.combinations(wanted, number):
            a, b, c = (
                tiling.working_set(shape, operand) if operand in kept else tiling.room(operand) for operand in OPERANDS
            )
            grown = replace(tiling, room_a=a, room_b=b, room_c=c)
            if grown.vmem_bytes(shape, resident) <= room:
                found.append(grown)
    return found
