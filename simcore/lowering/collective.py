"""Lowering of collectives on sharded tensors: how shards lie in each device's array, and which network they use."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from simcore.collectives import RingTensor
from simcore.collectives.auto import choices, collective
from simcore.collectives.mixed import in_turn
from simcore.collectives.tensor import even_split
from simcore.dtypes import bytes_of, dtype_bits
from simcore.errors import GraphError
from simcore.graph import TaskGraph, TensorAccess, Transfer, Vector
from simcore.graph.access import Access, Region
from simcore.graph.graph import Reference
from simcore.graph.reference import Indices
from simcore.lowering.program import Program
from simcore.opgraph.operations import Collective
from simcore.opgraph.tensor import ShardedTensor


def lower_collective(program: Program, operation: Collective) -> None:
    """One exchange over all the axes at once; axes of one device take no part."""
    _Lowered(program, operation).emit()


class _Lowered:
    def __init__(self, program: Program, operation: Collective) -> None:
        self.program, self.operation, self.name = program, operation, operation.name
        self.cls = program.cls
        sizes = dict(program.ops.mesh.axes)
        self.axes = tuple(axis for axis in operation.axes if sizes[axis] > 1)
        self.n = math.prod(sizes[axis] for axis in self.axes)
        self.grid = [(axis, sizes[axis]) for axis in self.axes]
        both = (operation.source, operation.out)
        self.memory = "vmem" if all(program.is_resident(tensor) for tensor in both) else "hbm"

    def emit(self) -> None:
        source, out = self.operation.source, self.operation.out
        kind = self.operation.kind
        after = [*self.program.after(source), *self.program.after_readers(out)]
        if out.role == "gathered":
            after += self.program.gather_gate()
        if kind in ("AllReduce", "ReduceScatter"):
            after += self.program.after_readers(source)
        match kind:
            case "AllGather":
                array = self._along(out, self.operation.dim, self._local(source))
                after = self._exchange("AllGather", array, self._copy(array, source, after, into=True))
            case "ReduceScatter":
                array = self._along(source, self.operation.dim, self._local(out))
                after = self._copy(array, out, self._exchange("ReduceScatter", array, after), into=False)
            case "Slice":
                array = self._along(source, self.operation.dim, self._local(out))
                after = self._copy(array, out, after, into=False)
            case "AllReduce":
                for axes in self._in_turn(source):
                    after = self._exchange("AllReduce", self._whole(source, axes), after, axes)
            case "AllToAll":
                after = self._all_to_all(after)
            case "Permute":
                moved = [self._whole_array(tensor) for tensor in (source, out)]
                after = self._exchange("CollectivePermute", moved[0], after, out=moved[1])
        self.cls.task(f"{self.name}.end", after=after, kind="sync")

    # -- how shards lie ---------------------------------------------------------------------------------------

    def _local(self, tensor: ShardedTensor) -> tuple[int, ...]:
        return tensor.layout.local_shape(self.program.ops.sizes, self.program.ops.mesh)

    def _ring(
        self, tensor: ShardedTensor, lead: tuple[int, ...], elements: int, view: tuple[int, ...], **more: Any
    ) -> RingTensor:
        rows = math.prod(lead)
        if rows * dtype_bits(tensor.dtype) % 8:
            raise GraphError(
                f"{self.name}: {rows} elements of {tensor.dtype} side by side are no whole number of bytes: a "
                "collective needs a format of 8 bits or more here"
            )
        size = bytes_of(rows, tensor.dtype)
        return RingTensor(tensor.name, elements * size, size, lead, self.memory, view=view, **more)

    def _along(self, whole: ShardedTensor, dim: str, shard: tuple[int, ...]) -> RingTensor:
        """``whole`` as n shards along ``dim``, which with all behind it is one row of elements."""
        at = whole.dim_names.index(dim)
        before, elements = math.prod(shard[:at]), math.prod(shard[at:])
        return self._ring(whole, (before,), elements, (before, self.n * elements))

    def _whole(self, tensor: ShardedTensor, axes: Sequence[str]) -> RingTensor:
        """A tensor as shards of its elements in a row, of as equal a size as can be."""
        elements = math.prod(self._local(tensor))
        n = math.prod(size for axis, size in self.grid if axis in axes)
        shards = even_split(elements, n)
        more = {"shards": shards} if shards[0] != shards[-1] else {}
        return self._ring(tensor, (), shards[0], (elements,), **more)

    def _whole_array(self, tensor: ShardedTensor) -> RingTensor:
        elements = math.prod(self._local(tensor))
        return self._ring(tensor, (), elements, (elements,))

    def _in_turn(self, tensor: ShardedTensor) -> list[tuple[str, ...]]:
        """All axes at once, or one after the other where the elements do not divide over them."""
        elements = math.prod(self._local(tensor))
        if self.n == 1:
            return []
        return [self.axes] if elements % self.n == 0 else [(axis,) for axis in self.axes]

    def _number(self, c: Indices) -> int:
        number = 0
        for axis, size in self.grid:
            number = number * size + int(c[axis])
        return number

    # -- tasks ------------------------------------------------------------------------------------------------

    def _exchange(
        self, kind: str, array: RingTensor, after: Sequence[Reference], axes: Sequence[str] = (), **more: Any
    ) -> list[Reference]:
        if self.n == 1:
            return list(after)
        axes = axes or self.axes
        options, notes = self.program.options, TaskGraph("notes")
        networks = {axis: options.network(axis) for axis in axes}
        asked = (self.cls, f"{self.name}.{'.'.join(axes)}", kind, axes, array)
        if len(axes) > 1 and set(networks.values()) != {"ici"}:
            made: dict[str, Any] = {"networks": networks, "direction": options.ring_direction}
            over = ", ".join(f"{axis}={dict(self.grid)[axis]} ({network})" for axis, network in networks.items())
            self.program.note_collective(f"{kind} over {over}: rings, one axis after the other, the slowest least")
            return [in_turn(kind, *asked[:2], axes, array, after=after, **made)]
        network = next(iter(networks.values()))
        more |= {"chip": self.program.chip, "network": network, "direction": options.ring_direction}
        algorithm = "auto"
        if options.algorithm == "ring":
            algorithm = next(one.name for one in choices(*asked, **more) if not one.name.startswith("one shot"))
        end = collective(*asked, algorithm=algorithm, graph=notes, after=after, **more)
        self.program.note_collective(notes.notes[0].partition(": ")[2])
        return [end]

    def _all_to_all(self, after: Sequence[Reference]) -> list[Reference]:
        """Blocks lie along ``to_dim`` in the source and along ``dim`` in the output."""
        source, out = self.operation.source, self.operation.out
        start, to = (source.dim_names.index(dim) for dim in (self.operation.dim, self.operation.to_dim))
        if self.n == 1:
            return self._keep(after)
        block = [min(a, b) for a, b in zip(self._local(source), self._local(out), strict=True)]
        first, last = min(start, to), max(start, to)
        before, outer, middle = math.prod(block[:first]), block[first], math.prod(block[first + 1 : last])
        elements, lead = math.prod(block[last:]), (before, outer, middle)
        inner_view = (before, outer, middle, self.n * elements)
        outer_view = (before, self.n * outer, middle, elements)
        along_last = self._ring(source, lead, elements, inner_view)
        views = {True: {"view": inner_view}, False: {"view": outer_view, "block_dimension": 1}}
        made = [
            RingTensor(tensor.name, along_last.shard_bytes, along_last.element_bytes, lead, self.memory, **more)  # type: ignore[arg-type]
            for tensor, more in ((source, views[to == last]), (out, views[start == last]))
        ]
        return self._exchange("AllToAll", made[0], after, out=made[1])

    def _copy(
        self, array: RingTensor, shard: ShardedTensor, after: Sequence[Reference], *, into: bool
    ) -> list[Reference]:
        """The chip's own shard, from ``shard`` into its place in ``array`` or the other way round: HBM's or the vector
        unit's work, which the ideal model leaves out."""
        elements, lead = array.shard_elements, array.lead

        def mine(i: Indices, c: Indices) -> Region:
            return array.block(self._number(c), 0, elements)

        alone = self._access(shard, (*lead, elements))
        place: Access = array.access(mine)
        size = array.shard_bytes
        in_hbm = self.memory == "hbm"
        unit = self.cls.unit("hbm" if in_hbm else "vpu")
        shape = (*lead, elements)
        copy = self.cls.task(
            f"{self.name}.{'place' if into else 'keep'}",
            unit=unit,
            work=Transfer(2 * size) if in_hbm else Vector(operations=0, bytes=2 * size),
            queue=f"{self.name}.copy" if in_hbm else None,
            kind="hbm_store" if in_hbm else "vector",
            moves=shard.name,
            after=after,
            reads=[alone if into else place],
            writes=[place if into else alone],
            function=lambda own: own.reshape(shape),
            overhead=True,
        )
        return [copy]

    def _keep(self, after: Sequence[Reference]) -> list[Reference]:
        source, out = self.operation.source, self.operation.out
        elements = math.prod(self._local(source))
        array = self._ring(source, (1,), elements, (1, elements))
        return self._copy(array, out, after, into=False)

    def _access(self, tensor: ShardedTensor, shape: tuple[int, ...]) -> TensorAccess:
        """All of a tensor in ``shape``; of one that every iteration has of its own, this one's."""
        whole = tuple(slice(0, size) for size in shape)
        if not tensor.repeat:
            return TensorAccess(tensor.name, lambda i, c: whole, view=shape)
        count = self.program.repeats[tensor.repeat]
        return TensorAccess(tensor.name, lambda i, c: (*self.program.lead(tensor, i), *whole), view=(count, *shape))
