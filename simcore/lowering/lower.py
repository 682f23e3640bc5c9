"""From an op graph to the task graph of one class of chips, all of which run the same program on their own shards."""

from __future__ import annotations

from dataclasses import replace

from simcore.chips import Chip
from simcore.collectives import RingTensor, all_reduce
from simcore.dtypes import bytes_of
from simcore.graph import Fixed, TaskGraph
from simcore.lowering.attention import lower_attention
from simcore.lowering.einsum import lower_einsum
from simcore.lowering.program import LAUNCH, LoweringOptions, Program, choose_resident, placed_operations
from simcore.lowering.rows import lower_append, lower_elementwise, lower_lookup, lower_take_last
from simcore.opgraph.graph import OpGraph, Repeat
from simcore.opgraph.operations import (
    Append,
    Attention,
    Collective,
    Einsum,
    Elementwise,
    Lookup,
    Operation,
    TakeLast,
)
from simcore.opgraph.tensor import ShardedTensor
from simcore.quantities import format_bytes, parse_ps


def lower(ops: OpGraph, chip: Chip, options: LoweringOptions | None = None) -> TaskGraph:
    """The tasks of ``ops`` on ``chip``, on every device of its mesh.

    Raises `GraphError` where tiles do not fit the chip's VMEM, `LayoutError` where shards do not divide.
    """
    tasks = TaskGraph(ops.name, notes=list(ops.notes))
    cls = tasks.entity_class("chip", mesh=dict(ops.mesh.axes))
    order = placed_operations(ops)
    resident = choose_resident(ops, chip)
    program = Program(ops, chip, options or LoweringOptions(), tasks, cls, order, resident)
    _declare_tensors(program)
    _note_streamed(program)
    if chip.launch_cost_s:
        cls.task(LAUNCH, work=Fixed(parse_ps(chip.launch_cost_s)), kind="launch", overhead=True)
    position = 0
    for node in ops.body:
        if isinstance(node, Repeat):
            with cls.loop(node.name, node.count):
                for operation in node.body:
                    program.position = position
                    _lower_one(program, operation)
                    position += 1
        else:
            program.position = position
            _lower_one(program, node)
            position += 1
    return tasks


def _lower_one(program: Program, operation: Operation) -> None:
    with program.cls.operation(operation.name):
        match operation:
            case Einsum():
                lower_einsum(program, operation)
            case Elementwise():
                lower_elementwise(program, operation)
            case Attention():
                lower_attention(program, operation)
            case Lookup():
                lower_lookup(program, operation)
            case TakeLast():
                lower_take_last(program, operation)
            case Append():
                lower_append(program, operation)
            case Collective():
                _lower_collective(program, operation)


def _lower_collective(program: Program, operation: Collective) -> None:
    """A ring over the axis, in place; an axis of one device needs none."""
    tensor, axis, cls = operation.tensor, operation.axis, program.cls
    n = program.ops.mesh.axis_size((axis,))
    after = [*program.after(tensor), *program.after_readers(tensor)]
    if n > 1:
        rows, _ = program.rows_columns(tensor)
        column_bytes = bytes_of(rows, tensor.dtype)
        shard = RingTensor(tensor.name, _padded_columns(program, tensor) // n * column_bytes, column_bytes, (rows,))
        after = [all_reduce(cls, operation.name, axis, shard, direction=program.options.ring_direction, after=after)]
    cls.task(f"{operation.name}.end", after=after, kind="sync")


def _padded_columns(program: Program, tensor: ShardedTensor) -> int:
    """Features of a tensor, rounded up so that every ring that works on it has equal shards."""
    _, columns = program.rows_columns(tensor)
    ways = [
        program.ops.mesh.axis_size((placed.operation.axis,))
        for placed in program.order
        if isinstance(placed.operation, Collective) and placed.operation.tensor.name == tensor.name
    ]
    for n in ways:
        columns = -(-columns // n) * n
    return columns


def _declare_tensors(program: Program) -> None:
    ops, cls = program.ops, program.cls
    matrices = _weight_rows(program)
    repeats = {node.name: node.count for node in ops.body if isinstance(node, Repeat)}
    written_in: dict[str, set[str]] = {}
    for placed in program.order:
        written_in.setdefault(placed.operation.out.name, set()).add(placed.repeat.name if placed.repeat else "")
    for tensor in ops.tensors.values():
        if tensor.role == "weight":
            tensor = replace(tensor, rows=matrices.get(tensor.name, len(tensor.dim_names) - 1))
        rows, columns = program.rows_columns(tensor)
        columns = _padded_columns(program, tensor)
        shape: tuple[int, ...] = (rows, columns)
        if tensor.role == "cache":
            local = tensor.layout.local_shape(ops.sizes, ops.mesh)
            shape = (local[0], local[1], columns)
        elif tensor.role == "weight" and len(tensor.dim_names) == 1:
            shape = (columns,)
        size = bytes_of(rows * columns, tensor.dtype)
        if tensor.repeat:
            shape, size = (repeats[tensor.repeat], *shape), repeats[tensor.repeat] * size
        inside = written_in.get(tensor.name, set())
        made_anew = tensor.role == "activation" and len(inside) == 1 and "" not in inside
        cls.tensor(
            tensor.name,
            bytes=size,
            memory="vmem" if program.is_resident(tensor) else "hbm",
            shape=shape,
            persistent=tensor.role != "activation",
            scope=tuple(inside) if made_anew else (),
        )


def _weight_rows(program: Program) -> dict[str, int]:
    """Leading dimensions of each einsum's right operand that are the rows of its matrix."""
    return {
        operation.right.name: len(
            operation.parts.right_only if operation.right_is_transposed else operation.parts.contracted
        )
        for operation in (placed.operation for placed in program.order)
        if isinstance(operation, Einsum)
    }


def _note_streamed(program: Program) -> None:
    streamed = [
        tensor
        for tensor in program.ops.tensors.values()
        if tensor.role == "activation" and not program.is_resident(tensor)
    ]
    if streamed:
        room = program.chip.vmem_capacity_bytes
        program.tasks.notes.append(
            f"{len(streamed)} activations do not fit in VMEM ({format_bytes(room, binary=True)}) together and move "
            f"through HBM: {', '.join(tensor.name for tensor in streamed)}"
        )
