"""Births and deaths of an op graph's tensors, in program order: what each device holds at each operation.

No simulation: a tensor is born at the operation that first writes it and dies after the last one that touches it; what
an operation writes over in place stays the tensor that it was. What a repeat carries from one iteration to the next
lives through all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from simcore.dtypes import bytes_of
from simcore.opgraph.graph import OpGraph, Repeat
from simcore.opgraph.operations import Operation, written
from simcore.opgraph.tensor import ShardedTensor

LASTING = ("weight", "cache", "state")


@dataclass(frozen=True, slots=True)
class Placed:
    """An operation and the repeat it stands in, if any."""

    operation: Operation
    repeat: Repeat | None


def placed_operations(ops: OpGraph) -> list[Placed]:
    """The operations in program order, those of repeats once."""
    order: list[Placed] = []
    for node in ops.body:
        if isinstance(node, Repeat):
            order += [Placed(operation, node) for operation in node.body]
        else:
            order.append(Placed(node, None))
    return order


def lives(ops: OpGraph) -> dict[str, tuple[int, int]]:
    """For each activation, gathered weight and input the first and last position in the program at which it lives."""
    order = placed_operations(ops)
    bodies: dict[str, list[int]] = {}
    touched: dict[str, list[int]] = {}
    for at, placed in enumerate(order):
        if placed.repeat is not None:
            bodies.setdefault(placed.repeat.name, []).append(at)
        for tensor in (*placed.operation.reads, *written(placed.operation)):
            if tensor.role not in LASTING:
                touched.setdefault(tensor.name, []).append(at)
    found = {}
    for name, positions in touched.items():
        first, last = min(positions), max(positions)
        if ops.tensors[name].role == "input":
            first, last = 0, len(order) - 1
        inside = {placed.repeat.name for at in positions if (placed := order[at]).repeat is not None}
        outside = any(order[at].repeat is None for at in positions)
        for repeat in inside if outside or len(inside) > 1 else ():  # carried from one iteration to the next
            first, last = min(first, bodies[repeat][0]), max(last, bodies[repeat][-1])
        found[name] = (first, last)
    return found


def arrays(ops: OpGraph) -> dict[str, tuple[str, ...]]:
    """Tensors of which every iteration of a stack's repeats has its own, as it is made in one and read in another: with
    the repeats that touch it, the one that makes it first."""
    made: dict[str, list[Repeat | None]] = {}
    touched: dict[str, list[Repeat | None]] = {}
    for placed in placed_operations(ops):
        for tensor in written(placed.operation):
            made.setdefault(tensor.name, []).append(placed.repeat)
        for tensor in (*placed.operation.reads, *written(placed.operation)):
            if tensor.role not in (*LASTING, "input"):
                touched.setdefault(tensor.name, []).append(placed.repeat)
    found = {}
    for name, where in touched.items():
        repeats = [repeat for repeat in where if repeat is not None]
        names = tuple(dict.fromkeys(repeat.name for repeat in repeats))
        alike = len({repeat.stack for repeat in repeats}) == 1
        if len(names) > 1 and alike and len(repeats) == len(where) and None not in made.get(name, [None]):
            found[name] = names
    return found


def local_bytes(ops: OpGraph, tensor: ShardedTensor) -> int:
    """Bytes of each device's shard, of one iteration where each has its own."""
    rows, columns = ops.local_rows_columns(tensor)
    return bytes_of(rows * columns, tensor.dtype)


def lasting_bytes(ops: OpGraph) -> dict[str, dict[str, int]]:
    """Role ("weight", "cache") -> tensor -> bytes of each device, all iterations together."""
    counts = {node.stack: node.count for node in ops.body if isinstance(node, Repeat)}
    found: dict[str, dict[str, int]] = {role: {} for role in LASTING}
    for tensor in ops.tensors.values():
        if tensor.role in LASTING:
            size = local_bytes(ops, tensor)
            if tensor.held:
                local = tensor.layout.local_shape(ops.sizes, ops.mesh)
                size = size // (local[0] * local[1]) * sum(tensor.held)
            found[tensor.role][tensor.name] = size * counts.get(tensor.repeat, 1)
    return found


@dataclass(frozen=True, slots=True)
class Moment:
    """What is alive while an operation runs, lasting tensors apart: tensor -> bytes."""

    operation: str
    alive: Mapping[str, int]

    @property
    def total_bytes(self) -> int:
        return sum(self.alive.values())


def gathered_bytes(ops: OpGraph, layers: int) -> int:
    """Bytes of each device for gathered weights: of so many layers at once of the repeat that has most, and those
    outside repeats, which may be fetched while the last layers work."""
    in_repeats, outside = [0], 0
    for node in ops.body:
        operations = node.body if isinstance(node, Repeat) else [node]
        made = {op.out.name: op.out for op in operations if op.out.role == "gathered"}
        size = sum(local_bytes(ops, tensor) for tensor in made.values())
        if isinstance(node, Repeat):
            in_repeats.append(min(layers, node.count) * size)
        else:
            outside = max(outside, size)
    return max(in_repeats) + outside


def moments(ops: OpGraph, leave_out: Collection[str] = ()) -> list[Moment]:
    """Each operation in program order with what is alive; without the tensors in ``leave_out``, such as VMEM's.

    Of what each iteration of a repeat makes for another repeat, or takes of it, one more or less is alive from one to
    the next: such an operation is there in its first iteration and in its last, between which the sum grows or shrinks
    evenly.
    """
    order, alive, own = placed_operations(ops), lives(ops), arrays(ops)
    counts = {node.name: node.count for node in ops.body if isinstance(node, Repeat)}
    sizes = {name: local_bytes(ops, ops.tensors[name]) for name in alive if name not in leave_out}

    def held(name: str, repeat: Repeat | None, iteration: int) -> int:
        if name not in own:
            return sizes[name]
        made_in, count = own[name][0], counts[own[name][0]]
        if repeat is None or repeat.name not in own[name]:
            return count * sizes[name]
        if repeat.name == made_in:
            return (iteration + 1) * sizes[name]
        return (count - iteration if repeat.name == own[name][-1] else count) * sizes[name]

    found = []
    for at, placed in enumerate(order):
        here = [name for name in sizes if alive[name][0] <= at <= alive[name][1]]
        last = placed.repeat.count - 1 if placed.repeat is not None and any(name in own for name in here) else 0
        for iteration in (0, last) if last else (0,):
            kept = {name: held(name, placed.repeat, iteration) for name in here}
            found.append(Moment(placed.operation.name, kept))
    return found


def peak(ops: OpGraph, leave_out: Collection[str] = ()) -> Moment:
    """The moment at which most is alive; the first of equals."""
    return max(moments(ops, leave_out), key=lambda moment: moment.total_bytes, default=Moment("", {}))
