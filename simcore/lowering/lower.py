"""From op graphs to task graphs: a class of chips for each program, all of which run it on their own shards."""

from __future__ import annotations

import math
from collections.abc import Sequence

from simcore.chips import Chip
from simcore.dtypes import bytes_of
from simcore.graph import EntityClass, Fixed, TaskGraph
from simcore.lowering.append import lower_append
from simcore.lowering.attention import lower_attention
from simcore.lowering.attention_gradient import lower_attention_gradient
from simcore.lowering.backward import (
    lower_keep,
    lower_outer_product,
    lower_row_sum,
    lower_scatter_add,
    lower_update,
)
from simcore.lowering.collective import lower_collective
from simcore.lowering.einsum import lower_batched_einsum, lower_einsum, lower_grouped_einsum
from simcore.lowering.naive_attention import lower_naive_attention
from simcore.lowering.program import LAUNCH, LoweringOptions, Program, choose_resident, placed_operations
from simcore.lowering.routing import lower_combine, lower_dispatch
from simcore.lowering.rows import lower_elementwise, lower_lookup, lower_take_last
from simcore.lowering.stages import lower_receive, lower_send
from simcore.opgraph.backward_operations import AttentionGradient, Keep, OuterProduct, RowSum, ScatterAdd, Update
from simcore.opgraph.graph import OpGraph, Repeat
from simcore.opgraph.liveness import arrays
from simcore.opgraph.operations import (
    Append,
    Attention,
    BatchedEinsum,
    Collective,
    Combine,
    Dispatch,
    Einsum,
    Elementwise,
    GroupedEinsum,
    Lookup,
    Operation,
    Receive,
    Send,
    TakeLast,
    written,
)
from simcore.opgraph.tensor import ShardedTensor
from simcore.quantities import format_bytes, parse_ps

MOST_NAMES = 20
MADE = ("activation", "gathered", "gradient")
"""Parts of tensors that are made on the way."""


def lower(ops: OpGraph, chip: Chip, options: LoweringOptions | None = None) -> TaskGraph:
    """The tasks of ``ops`` on ``chip``, on every device of its mesh.

    Raises `GraphError` where tiles do not fit the chip's VMEM, `LayoutError` where shards do not divide.
    """
    tasks, options = TaskGraph(ops.name, notes=list(ops.notes)), options or LoweringOptions()
    cls = tasks.entity_class("chip", mesh=dict(ops.mesh.axes), wraps=_wraps(ops, options))
    tasks.notes += _lower_into(tasks, cls, ops, chip, options)
    return tasks


def lower_stages(
    stages: Sequence[OpGraph], chip: Chip, options: LoweringOptions | None = None, *, axis: str, name: str = ""
) -> TaskGraph:
    """The tasks of pipeline stages, a class of chips each, one behind the other along the mesh axis ``axis``.

    Every stage has the same mesh. Raises as `lower` does.
    """
    options = options or LoweringOptions()
    first = stages[0]
    tasks = TaskGraph(name or first.name, notes=list(first.notes))
    mesh = {axis: len(stages), **dict(first.mesh.axes)}
    wraps = {axis: axis not in options.lines, **_wraps(first, options)}
    notes: dict[str, None] = {}
    for number, ops in enumerate(stages):
        only = [(number, *coordinates) for coordinates in ops.mesh.coordinates()]
        cls = tasks.entity_class(f"stage {number}", mesh=mesh, wraps=wraps, only=only)
        notes |= dict.fromkeys(_lower_into(tasks, cls, ops, chip, options))
    tasks.notes += notes
    return tasks


def _wraps(ops: OpGraph, options: LoweringOptions) -> dict[str, bool]:
    return {axis: axis not in options.lines for axis in ops.mesh.names}


def _lower_into(tasks: TaskGraph, cls: EntityClass, ops: OpGraph, chip: Chip, options: LoweringOptions) -> list[str]:
    """Emit the program of one class; returns notes on what was chosen."""
    resident = choose_resident(ops, chip) if options.keep_activations else frozenset()
    program = Program(ops, chip, options, tasks, cls, placed_operations(ops), resident)
    tasks.phases |= ops.phases
    _declare_tensors(program)
    if chip.launch_cost_s:
        cls.task(LAUNCH, work=Fixed(parse_ps(chip.launch_cost_s)), kind="launch", overhead=True)
    position = 0
    for node in ops.body:
        if isinstance(node, Repeat):
            layers = node.layers if node.first_layer >= 0 else 0
            with cls.loop(node.name, node.count, layers=-layers if node.backwards else layers):
                for operation in node.body:
                    program.position = position
                    _lower_one(program, operation)
                    position += 1
        else:
            program.position = position
            _lower_one(program, node)
            position += 1
    return [*_streamed(program), *program.collectives]


def _lower_one(program: Program, operation: Operation) -> None:
    repeat = program.order[program.position].repeat
    layer = -1
    if repeat is not None and repeat.first_layer >= 0:
        layer = repeat.first_layer + program.ops.layer_in_body[operation.name]
        if repeat.backwards:
            layer += (repeat.count - 1) * repeat.layers
    with program.cls.operation(operation.name, layer):
        match operation:
            case Einsum():
                lower_einsum(program, operation)
            case BatchedEinsum():
                lower_batched_einsum(program, operation)
            case GroupedEinsum():
                lower_grouped_einsum(program, operation)
            case Dispatch():
                lower_dispatch(program, operation)
            case Combine():
                lower_combine(program, operation)
            case Elementwise():
                lower_elementwise(program, operation)
            case Attention():
                (lower_attention if operation.kernel == "flash" else lower_naive_attention)(program, operation)
            case Lookup():
                lower_lookup(program, operation)
            case TakeLast():
                lower_take_last(program, operation)
            case Append():
                lower_append(program, operation)
            case Collective():
                lower_collective(program, operation)
            case Send():
                lower_send(program, operation)
            case Receive():
                lower_receive(program, operation)
            case Keep():
                lower_keep(program, operation)
            case OuterProduct():
                lower_outer_product(program, operation)
            case RowSum():
                lower_row_sum(program, operation)
            case ScatterAdd():
                lower_scatter_add(program, operation)
            case AttentionGradient():
                lower_attention_gradient(program, operation)
            case Update():
                lower_update(program, operation)


def _declare_tensors(program: Program) -> None:
    ops, cls = program.ops, program.cls
    matrices = _weight_rows(program)
    repeats = program.repeats
    several = arrays(ops)
    backwards = {node.name: node.backwards for node in ops.body if isinstance(node, Repeat)}
    written_in: dict[str, set[str]] = {}
    for placed in program.order:
        for tensor in written(placed.operation):
            written_in.setdefault(tensor.name, set()).add(placed.repeat.name if placed.repeat else "")
    for tensor in ops.tensors.values():
        if tensor.role == "weight" or (tensor.role == "gathered" and tensor.name in matrices):
            shape, size = _weight_shape(program, tensor, matrices.get(tensor.name))
        else:
            rows, columns = program.rows_columns(tensor)
            shape, size = (rows, columns), bytes_of(rows * columns, tensor.dtype)
        if tensor.role == "cache":
            local = tensor.layout.local_shape(ops.sizes, ops.mesh)
            shape = (local[0], local[1], columns)
            if tensor.held:
                size = bytes_of(sum(tensor.held) * columns, tensor.dtype)
        if tensor.repeat:
            shape, size = (repeats[tensor.repeat], *shape), repeats[tensor.repeat] * size
        inside = written_in.get(tensor.name, set())
        made_anew = tensor.role in MADE and len(inside) == 1 and "" not in inside
        scope, *others = several.get(tensor.name, tuple(inside) if made_anew else ("",))
        cls.tensor(
            tensor.name,
            bytes=size,
            memory="vmem" if program.is_resident(tensor) else "hbm",
            shape=shape,
            persistent=tensor.role not in MADE,
            scope=(scope,) if scope else (),
            also=[(name, backwards[name] != backwards[scope]) for name in others],
        )


def _weight_shape(program: Program, tensor: ShardedTensor, use: tuple[int, int] | None) -> tuple[tuple[int, ...], int]:
    """Shape and bytes of a weight: a matrix, or a stack of them, as the einsum that reads it has it; else a table."""
    local = tensor.layout.local_shape(program.ops.sizes, program.ops.mesh)
    stack, rows = use if use is not None else (0, len(local) - 1)
    cut = stack + rows
    shape = (*local[:stack], math.prod(local[stack:cut]), math.prod(local[cut:]))
    return (shape if rows else (*shape[:stack], shape[-1])), bytes_of(math.prod(local), tensor.dtype)


def _weight_rows(program: Program) -> dict[str, tuple[int, int]]:
    """Weight -> leading dimensions that are a stack, and those after them that are the rows of each matrix."""
    found: dict[str, tuple[int, int]] = {}
    for operation in (placed.operation for placed in program.order):
        match operation:
            case Einsum():
                parts = operation.parts
                rows = parts.right_only if operation.right_is_transposed else parts.contracted
                found[operation.right.name] = (0, len(rows))
                if operation.bias is not None:
                    found[operation.bias.name] = (0, 0)
            case BatchedEinsum():
                found[operation.right.name] = (1, 1)
            case GroupedEinsum():
                found[operation.right.name] = (1, len(operation.left.dim_names) - operation.left.rows)
                if operation.bias is not None:
                    found[operation.bias.name] = (1, 0)
            case Elementwise():
                found.update({vector.name: (0, 0) for vector in operation.vectors})
    return found


def _streamed(program: Program) -> list[str]:
    """A note on the activations that move through HBM, if there are any."""
    streamed = [
        tensor
        for tensor in program.ops.tensors.values()
        if tensor.role == "activation" and not program.is_resident(tensor)
    ]
    if not streamed:
        return []
    room = format_bytes(program.chip.vmem_capacity_bytes, binary=True)
    names = ", ".join(tensor.name for tensor in streamed[:MOST_NAMES])
    more = f" and {len(streamed) - MOST_NAMES} others" if len(streamed) > MOST_NAMES else ""
    return [f"{len(streamed)} activations do not fit in VMEM ({room}) together and move through HBM: {names}{more}"]
