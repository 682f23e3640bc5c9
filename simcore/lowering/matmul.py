"""A tiled matmul as tasks: loads of A and B tiles, products that accumulate in VMEM, stores of C.

The tasks are written once in the three loops; where an operand is loaded, and whether it stays for the next pass, is
the tiling's (`simcore.lowering.tiling`). Loads, stores, and re-reads of partial sums are queues of their own (a DMA
engine has several), which share the one HBM channel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from simcore.chips import Chip
from simcore.dtypes import bytes_of
from simcore.errors import GraphError
from simcore.graph import (
    BufferAccess,
    EntityClass,
    Matmul,
    Ref,
    Take,
    Task,
    TaskGraph,
    TensorAccess,
    Transfer,
    WithIndices,
)
from simcore.graph.access import Access, Region
from simcore.graph.graph import Guard, Reference
from simcore.graph.reference import Indices
from simcore.graph.work import NOTHING, IntArray
from simcore.lowering.placement import Bias, Placement, RowGroups
from simcore.lowering.tiling import DIMS, OPERANDS, PARTIAL, MatmulShape, Operand, Tiling, check_fits

LOAD_QUEUE, STORE_QUEUE, PARTIAL_QUEUE = "hbm_load", "hbm_store", "hbm_partial_load"


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
    *,
    bias: Bias | None = None,
    groups: RowGroups | None = None,
) -> Task:
    """Append the tasks of C = A B to a class's program; returns the zero-work task that completes when C is there.

    Without ``placements`` the arrays are "A", "B" and "C" in HBM. With ``groups`` the shape's m is that of the largest,
    and B's ``lead`` gives the matrix of a group. Raises `GraphError` where partial sums of a resident C, or of groups,
    would have to leave VMEM.
    """
    given = placements or {}
    places = {operand: given.get(operand, Placement(operand.upper())) for operand in OPERANDS}
    if (places["c"].resident or groups is not None) and tiling.spills(shape):
        raise GraphError(f"{name}: C stays in VMEM, so its loop order {tiling.order!r} needs k innermost")
    return _Emitter(cls, name, shape, tiling, places, bias, groups).emit()


@dataclass
class _Emitter:
    """Emits one matmul's tasks into its three loops."""

    cls: EntityClass
    name: str
    shape: MatmulShape
    tiling: Tiling
    places: Mapping[Operand, Placement]
    bias: Bias | None = None
    groups: RowGroups | None = None
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
        if self.groups is not None:
            with self.cls.loop(self.groups.loop, self.groups.rows.shape[1]):
                self._load_bias()
                self._nest(0)
        else:
            self._load_bias()
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
        groups = self.groups
        if groups is not None and loop == self._loop("m"):
            last = -(-groups.rows // self.tiling.tile_m) - 1
            return Ref(self._task(task), at={loop: lambda i, _: groups.of(last, i)})
        return Ref(self._task(task), at={loop: count - 1})

    def _exists(self, level: int, when: Guard | None = None) -> Guard | None:
        """The guard ``when``, and that the group has the tile of rows (or any, outside their loop)."""
        groups, m = self.groups, self._loop("m")
        if groups is None or (groups.rows.min() > 0 and self.tiling.count(self.shape, "m") == 1):
            return when
        inside = self.tiling.order.index("m") <= level

        def exists(i: Indices, c: Indices) -> Any:
            begin = i[m] * self.tiling.tile_m if inside else 0
            has = groups.of(groups.rows, i) > begin
            return has if when is None else has & when(i, c)

        return exists

    def _is_pass(self, operand: Operand, number: int) -> Callable[[Indices, Indices], Any]:
        loop, _ = self._pass_loop(operand)
        return lambda i, _: i[loop] == number

    # -- amounts and regions ----------------------------------------------------------------------------------

    def _sides(self, dim: str, loops: str) -> IntArray:
        """Sizes of the tiles along ``dim``, to broadcast over ``loops`` and whatever encloses them."""
        size, tile = self.shape.size(dim), self.tiling.tile(dim)
        begins = np.arange(self.tiling.count(self.shape, dim), dtype=np.int64) * tile
        sides = np.minimum(begins + tile, size) - begins
        shape = [-1 if loop == dim else 1 for loop in loops]
        if self.groups is None or dim != "m":
            return sides.reshape(shape)
        ragged: IntArray = np.clip(self.groups.rows[..., None] - begins, 0, tile).reshape(
            *self.groups.rows.shape, *shape
        )
        return ragged if len(ragged) > 1 else ragged.reshape(ragged.shape[1:])

    def _range(self, dim: str, i: Indices) -> tuple[int, int]:
        """Where the tile at hand begins, within its group, and how long it is."""
        begin, size = int(i[self._loop(dim)]) * self.tiling.tile(dim), self.shape.size(dim)
        if self.groups is not None and dim == "m":
            size = int(self.groups.of(self.groups.rows, i))
        return begin, min(self.tiling.tile(dim), size - begin)

    def _bytes(self, operand: Operand, dtype: str) -> IntArray:
        loops = self.tiling.order[: self.tiling.level(operand) + 1]
        rows, columns = (self._sides(dim, loops) for dim in DIMS[operand])
        elements = rows * columns
        different, inverse = np.unique(elements, return_inverse=True)
        sizes = np.array([bytes_of(int(count), dtype) for count in different], dtype=np.int64)
        return sizes[inverse].reshape(elements.shape)

    def _access(self, operand: Operand, tensor: str = "") -> TensorAccess:
        place = self.places[operand]
        starts = self.groups.starts() if self.groups is not None else np.zeros((1, 1), dtype=np.int64)

        def region(i: Indices, _: Indices) -> Region:
            slices = []
            for dim in reversed(DIMS[operand]) if place.transposed else DIMS[operand]:
                begin, length = self._range(dim, i)
                if self.groups is not None and dim == "m":
                    begin += int(self.groups.of(starts, i))
                slices.append(slice(begin, begin + length))
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
            when=self._exists(
                self.tiling.level(operand),
                self._is_pass(operand, 0) if self.tiling.kept(self.shape, operand) else None,
            ),
        )

    def _load_bias(self) -> None:
        """Load the whole bias, which stays until the last accumulator has started from it."""
        bias = self.bias
        if bias is None:
            return
        elements = self.shape.n

        def region(i: Indices, _: Indices) -> Region:
            return (*(bias.lead(i) if bias.lead is not None else ()), slice(0, elements))

        self.cls.task(
            self._task("load bias"),
            unit="hbm",
            queue=LOAD_QUEUE,
            work=Transfer(bytes_of(elements, bias.dtype)),
            kind="hbm_load",
            moves=bias.tensor,
            after=bias.after,
            takes=[Take(bias.pool, freed_by=[Ref(self._task("open"))])],
            reads=[TensorAccess(bias.tensor, region)],
            writes=[BufferAccess(bias.pool)],
            function=lambda vector: vector.reshape(-1),
            when=self._exists(-1),
        )

    def _started(self, bias: Bias) -> WithIndices:
        """An accumulator that starts from the bias, on the chips where it counts."""

        def start(i: Indices, c: Indices, vector: Any) -> Any:
            tile = np.zeros(tuple(self.tiling.tile(dim) for dim in DIMS["c"]))
            if bias.counts is None or bias.counts(c):
                tile[:, : len(vector)] = vector
            return tile

        return WithIndices(start)

    def _open(self) -> None:
        """Take an accumulator, set to zero; where partial sums were spilled, read them back into it."""
        pool, spilled = self.pools["c"], self.tiling.spills(self.shape) > 0
        tile = tuple(self.tiling.tile(dim) for dim in DIMS["c"])  # a ragged tile uses a corner of it
        freed_by = [self._in_last_pass("c", "store")]
        if spilled:
            freed_by = [Ref(self._task(task), outside="ignore") for task in ("store", "spill")]
        reads: list[Access] = []
        if self.bias is not None:
            load = Ref(self._task("load bias"))
            reads.append(
                BufferAccess(self.bias.pool, load, lambda i, _: (slice(*np.cumsum(self._range("n", i)).tolist()),))
            )
        self.cls.task(
            self._task("open"),
            kind="sync",
            after=[Ref(self._task("load bias"))] if reads else [],
            takes=[Take(pool, freed_by=freed_by)],
            reads=reads,
            writes=[BufferAccess(pool)],
            function=self._started(self.bias) if self.bias is not None else lambda: np.zeros(tile),
            when=self._exists(
                self.tiling.level("c"), self._is_pass("c", 0) if self.tiling.kept(self.shape, "c") else None
            ),
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
        return tuple(slice(0, self._range(dim, i)[1]) for dim in DIMS["c"])

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
        turned = self.places["a"].transposed and self.places["a"].resident  # else its loads turn it
        self.cls.task(
            self._task("multiply"),
            unit="mxu",
            work=Matmul(m, k, n, self.shape.dtype),
            after=after,
            reads=[*reads, self._accumulator()],
            writes=[self._accumulator()],
            function=_multiply_add_turned if turned else _multiply_add,
            when=self._exists(2),
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
            when=self._exists(self.tiling.level("c"), self._is_pass("c", count - 1) if kept or spilled else None),
        )


def _tile(tile: Any) -> Any:
    """A tile as it is, without the leading dimensions of its array."""
    return tile.reshape(tile.shape[-2:])


def _transposed_tile(tile: Any) -> Any:
    return _tile(tile).T


def _multiply_add_turned(a: Any, b: Any, accumulator: Any) -> Any:
    return _multiply_add(_transposed_tile(a), b, accumulator)


def _multiply_add(a: Any, b: Any, accumulator: Any) -> Any:
    return accumulator + _tile(a) @ _tile(b)
