"""A tiled matmul as tasks: loads of A and B tiles, products that accumulate in VMEM, stores of C.

The tasks are written once in the three loops; where an operand is loaded, and whether it stays for the next pass, is
the tiling's (`simcore.lowering.tiling`). Loads, stores, and re-reads of partial sums are queues of their own (a DMA
engine has several), which share the one HBM channel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from simcore.chips import Chip
from simcore.dtypes import bytes_of
from simcore.errors import GraphError
from simcore.graph import BufferAccess, EntityClass, Matmul, Ref, Take, Task, TaskGraph, TensorAccess, Transfer
from simcore.graph.access import Access, Region
from simcore.graph.graph import Reference
from simcore.graph.reference import Indices
from simcore.graph.work import NOTHING, IntArray
from simcore.lowering.tiling import DIMS, OPERANDS, PARTIAL, MatmulShape, Operand, Tiling, check_fits

LOAD_QUEUE, STORE_QUEUE, PARTIAL_QUEUE = "hbm_load", "hbm_store", "hbm_partial_load"
Lead = Callable[[Indices], Region]


@dataclass(frozen=True, slots=True)
class Placement:
    """Where an operand's array is.

    Parameters
    ----------
    tensor : the declared array, 2-D, or with leading dimensions that ``lead`` indexes (the layer).
    resident : it is in VMEM and moves nothing.
    pool : a declared pool for its tiles; None makes one for this matmul alone.
    after : what its loads (or, resident, the products) wait for; for C, what its stores wait for.
    moves : its name in the bytes by tensor, by default the tensor's.
    transposed : the array of B is [n, k].
    """

    tensor: str
    resident: bool = False
    pool: str | None = None
    after: Sequence[Reference] = ()
    lead: Lead | None = None
    moves: str = ""
    transposed: bool = False


def matmul_graph(shape: MatmulShape, tiling: Tiling, chip: Chip, name: str = "matmul") -> TaskGraph:
    """One chip that multiplies A and B, all three arrays in HBM.

    Raises `GraphError` if the tiles do not fit the chip's VMEM.
    """
    check_fits(shape, tiling, chip.vmem_capacity_bytes)
    graph = TaskGraph(name)
    core = graph.entity_class("chip")
    for operand in OPERANDS:
        core.tensor(
            operand.upper(),
            bytes=shape.bytes(operand),
            shape=tuple(shape.size(dim) for dim in DIMS[operand]),
            persistent=operand != "c",
        )
    tile_matmul(core, name, shape, tiling)
    return graph


def tile_matmul(
    cls: EntityClass,
    name: str,
    shape: MatmulShape,
    tiling: Tiling,
    placements: Mapping[Operand, Placement] | None = None,
) -> Task:
    """Append the tasks of C = A B to a class's program; returns the zero-work task that completes when C is there.

    Without ``placements`` the arrays are "A", "B" and "C" in HBM. Raises `GraphError` where partial sums of a resident
    C would have to leave VMEM.
    """
    given = placements or {}
    places = {operand: given.get(operand, Placement(operand.upper())) for operand in OPERANDS}
    if places["c"].resident and tiling.spills(shape):
        raise GraphError(f"{name}: C stays in VMEM, so its loop order {tiling.order!r} needs k innermost")
    return _Emitter(cls, name, shape, tiling, places).emit()


@dataclass
class _Emitter:
    """Emits one matmul's tasks into its three loops."""

    cls: EntityClass
    name: str
    shape: MatmulShape
    tiling: Tiling
    places: Mapping[Operand, Placement]
    pools: dict[Operand, str] = field(default_factory=dict)

    def emit(self) -> Task:
        self.cls.unit("hbm")
        self.cls.unit("mxu")
        for operand in OPERANDS:
            place = self.places[operand]
            if place.pool is not None:
                self.pools[operand] = place.pool
            elif operand == "c" or not place.resident:
                self.pools[operand] = self.cls.pool(
                    f"{self.name}.{operand.upper()} tiles",
                    memory="vmem",
                    buffers=self.tiling.room(operand),
                    buffer_bytes=self.tiling.tile_bytes(self.shape, operand),
                )
        self._nest(0)
        return self.cls.task(f"{self.name}.end", after=[Ref(self._task("store"))], kind="sync")

    def _nest(self, level: int) -> None:
        dim = self.tiling.order[level]
        with self.cls.loop(self._loop(dim), self.tiling.count(self.shape, dim)):
            for operand in ("a", "b"):
                if self.tiling.level(operand) == level and not self.places[operand].resident:
                    self._load(operand)
            if self.tiling.level("c") == level:
                self._open()
            if level == 2:
                self._multiply()
            else:
                self._nest(level + 1)
            if self.tiling.level("c") == level:
                self._store()

    def _task(self, what: str) -> str:
        return f"{self.name}.{what}"

    def _loop(self, dim: str) -> str:
        return f"{self.name}.{dim}"

    # -- loops and passes -------------------------------------------------------------------------------------

    def _pass_loop(self, operand: Operand) -> tuple[str, int]:
        """The loop that the operand does not depend on, and its count."""
        dim = self.tiling.order[self.tiling.pass_level(operand)]
        return self._loop(dim), self.tiling.count(self.shape, dim)

    def _from_first_pass(self, operand: Operand, task: str) -> Ref:
        """From within a later pass: the task of the first one, if the operand stays; else of the same pass."""
        if not self.tiling.kept(self.shape, operand):
            return Ref(self._task(task))
        loop, _ = self._pass_loop(operand)
        return Ref(self._task(task), at={loop: lambda i, _: 0 * i[loop]})

    def _in_last_pass(self, operand: Operand, task: str) -> Ref:
        """From within the first pass: the task of the last one, if the operand stays; else of the same pass."""
        if not self.tiling.kept(self.shape, operand):
            return Ref(self._task(task))
        loop, count = self._pass_loop(operand)
        return Ref(self._task(task), at={loop: count - 1})

    def _is_pass(self, operand: Operand, number: int) -> Callable[[Indices, Indices], Any]:
        loop, _ = self._pass_loop(operand)
        return lambda i, _: i[loop] == number

    # -- amounts and regions ----------------------------------------------------------------------------------

    def _sides(self, dim: str, loops: str) -> IntArray:
        """Sizes of the tiles along ``dim``, to broadcast over ``loops`` and whatever encloses them."""
        size, tile = self.shape.size(dim), self.tiling.tile(dim)
        begins = np.arange(self.tiling.count(self.shape, dim), dtype=np.int64) * tile
        sides = np.minimum(begins + tile, size) - begins
        return sides.reshape([-1 if loop == dim else 1 for loop in loops])

    def _bytes(self, operand: Operand, dtype: str) -> IntArray:
        loops = self.tiling.order[: self.tiling.level(operand) + 1]
        rows, columns = (self._sides(dim, loops) for dim in DIMS[operand])
        elements = rows * columns
        different, inverse = np.unique(elements, return_inverse=True)
        sizes = np.array([bytes_of(int(count), dtype) for count in different], dtype=np.int64)
        return sizes[inverse].reshape(elements.shape)

    def _access(self, operand: Operand, tensor: str = "") -> TensorAccess:
        place = self.places[operand]

        def region(i: Indices, _: Indices) -> Region:
            slices = []
            for dim in reversed(DIMS[operand]) if place.transposed else DIMS[operand]:
                begin = int(i[self._loop(dim)]) * self.tiling.tile(dim)
                slices.append(slice(begin, min(begin + self.tiling.tile(dim), self.shape.size(dim))))
            lead = place.lead(i) if place.lead is not None and not tensor else ()
            return (*lead, *slices)

        return TensorAccess(tensor or place.tensor, region)

    def _moves(self, operand: Operand) -> str:
        return self.places[operand].moves or self.places[operand].tensor

    # -- tasks ------------------------------------------------------------------------------------------------

    def _load(self, operand: Operand) -> None:
        self.cls.task(
            self._task(f"load {operand.upper()}"),
            unit="hbm",
            queue=LOAD_QUEUE,
            work=Transfer(self._bytes(operand, self.shape.stored_dtype(operand))),
            kind="hbm_load",
            moves=self._moves(operand),
            after=self.places[operand].after,
            takes=[Take(self.pools[operand], freed_by=[self._in_last_pass(operand, "multiply")])],
            reads=[self._access(operand)],
            writes=[BufferAccess(self.pools[operand])],
            function=_transposed_tile if self.places[operand].transposed else _tile,
            when=self._is_pass(operand, 0) if self.tiling.kept(self.shape, operand) else None,
        )

    def _open(self) -> None:
        """Take an accumulator, set to zero; where partial sums were spilled, read them back into it."""
        pool, spilled = self.pools["c"], self.tiling.spills(self.shape) > 0
        tile = tuple(self.tiling.tile(dim) for dim in DIMS["c"])  # a ragged tile uses a corner of it
        freed_by = [self._in_last_pass("c", "store")]
        if spilled:
            freed_by = [Ref(self._task(task), outside="ignore") for task in ("store", "spill")]
        self.cls.task(
            self._task("open"),
            kind="sync",
            takes=[Take(pool, freed_by=freed_by)],
            writes=[BufferAccess(pool)],
            function=lambda: np.zeros(tile),
            when=self._is_pass("c", 0) if self.tiling.kept(self.shape, "c") else None,
        )
        if not spilled:
            return
        loop, _ = self._pass_loop("c")
        self.cls.tensor(
            self._task("partial sums"),
            bytes=bytes_of(self.shape.m * self.shape.n, PARTIAL),
            shape=(self.shape.m, self.shape.n),
        )
        self.cls.task(
            self._task("load partial"),
            unit="hbm",
            queue=PARTIAL_QUEUE,
            work=Transfer(self._bytes("c", PARTIAL)),
            kind="hbm_load",
            moves=f"{self._moves('c')} partial sums",
            after=[Ref(self._task("open")), Ref(self._task("spill"), at={loop: -1})],
            reads=[self._access("c", self._task("partial sums"))],
            writes=[BufferAccess(pool, Ref(self._task("open")), self._corner)],
            function=_tile,
            when=lambda i, _: i[loop] > 0,
        )

    def _corner(self, i: Indices, _: Indices) -> Region:
        """The part of an accumulator that a tile of C covers."""
        sides = []
        for dim in DIMS["c"]:
            begin = int(i[self._loop(dim)]) * self.tiling.tile(dim)
            sides.append(slice(0, min(self.tiling.tile(dim), self.shape.size(dim) - begin)))
        return tuple(sides)

    def _accumulator(self) -> BufferAccess:
        return BufferAccess(self.pools["c"], self._from_first_pass("c", "open"), self._corner)

    def _multiply(self) -> None:
        order = self.tiling.order
        after: list[Reference] = []
        reads: list[Access] = []
        for operand in ("a", "b"):
            place = self.places[operand]
            if place.resident:
                after += place.after
                reads.append(self._access(operand))
            else:
                load = self._from_first_pass(operand, f"load {operand.upper()}")
                after.append(load)
                reads.append(BufferAccess(self.pools[operand], load))
        after.append(self._from_first_pass("c", "open"))
        if self.tiling.spills(self.shape):
            after.append(Ref(self._task("load partial"), outside="ignore"))
        m, k, n = (self._sides(dim, order) for dim in "mkn")
        self.cls.task(
            self._task("multiply"),
            unit="mxu",
            work=Matmul(m, k, n, self.shape.dtype),
            after=after,
            reads=[*reads, self._accumulator()],
            writes=[self._accumulator()],
            function=_multiply_add,
        )

    def _store(self) -> None:
        place = self.places["c"]
        loop, count = self._pass_loop("c")
        inside = self.tiling.pass_level("c") > self.tiling.level("c")
        # With k innermost the last of its products completes the tile: the MXU works in order.
        products = Ref(self._task("multiply"), at={loop: -1} if inside else {})
        kept, spilled = self.tiling.kept(self.shape, "c"), self.tiling.spills(self.shape) > 0
        if spilled:
            self.cls.task(
                self._task("spill"),
                unit="hbm",
                queue=STORE_QUEUE,
                work=Transfer(self._bytes("c", PARTIAL)),
                kind="hbm_store",
                moves=f"{self._moves('c')} partial sums",
                after=[products],
                reads=[self._accumulator()],
                writes=[self._access("c", self._task("partial sums"))],
                function=_tile,
                when=lambda i, _: i[loop] < count - 1,
            )
        self.cls.task(
            self._task("store"),
            unit=None if place.resident else "hbm",
            queue=None if place.resident else STORE_QUEUE,
            work=NOTHING if place.resident else Transfer(self._bytes("c", self.shape.stored_dtype("c"))),
            kind="sync" if place.resident else "hbm_store",
            moves=self._moves("c"),
            after=[products, *place.after],
            reads=[self._accumulator()],
            writes=[self._access("c")],
            function=_tile,
            when=(lambda i, _: i[loop] == count - 1) if kept or spilled else None,
        )


def _tile(tile: Any) -> Any:
    """A tile as it is, without the leading dimensions of its array."""
    return tile.reshape(tile.shape[-2:])


def _transposed_tile(tile: Any) -> Any:
    return _tile(tile).T


def _multiply_add(a: Any, b: Any, accumulator: Any) -> Any:
    return accumulator + _tile(a) @ _tile(b)
