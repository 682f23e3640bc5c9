"""Lowering of what pipeline stages send each other: each chip to the one at its place in the next stage."""

from __future__ import annotations

import math
from typing import Any

from simcore.collectives.moving import ici, port
from simcore.dtypes import bytes_of
from simcore.graph import Ref, TensorAccess, Transfer
from simcore.graph.graph import Reference
from simcore.lowering.program import Program
from simcore.opgraph.operations import Receive, Send
from simcore.opgraph.tensor import ShardedTensor


def lower_send(program: Program, operation: Send) -> None:
    """One transfer over the link or network of the axis; of an activation in HBM it is read there meanwhile."""
    cls, name, source, axis = program.cls, operation.name, operation.source, operation.axis
    network = program.options.network(axis)
    wire = ici(axis, "+" if operation.step > 0 else "-") if network == "ici" else port(network)
    size, elements = _local_bytes(program, source), _elements(program, source)
    whole = (slice(0, elements),)
    cls.unit(wire.out, kind=wire.kind)
    cls.task(
        f"{name}.transfer",
        unit=wire.out,
        work=Transfer(size),
        moves=source.name,
        after=program.after(source),
        reads=[TensorAccess(source.name, lambda i, c: whole, view=(elements,))],
        writes=[TensorAccess(operation.to, lambda i, c: whole, on={axis: operation.step}, view=(elements,))],
        function=_same,
    )
    after: list[Reference] = [Ref(f"{name}.transfer")]
    if not program.is_resident(source):
        cls.unit("hbm")
        after.append(
            cls.task(
                f"{name}.read",
                unit="hbm",
                queue=f"{name}.read",
                work=Transfer(size),
                kind="hbm_load",
                moves=source.name,
                after=[Ref(f"{name}.transfer", event="start")],
                overhead=True,
            )
        )
    cls.task(f"{name}.end", after=after, kind="sync")


def lower_receive(program: Program, operation: Receive) -> None:
    """Wait for what comes from the stage before; where it goes to HBM, it is written there meanwhile."""
    cls, name, out = program.cls, operation.name, operation.out
    back = {operation.axis: -operation.step}
    after: list[Reference] = [Ref(f"{operation.sent}.transfer", on=back)]
    if not program.is_resident(out):
        cls.unit("hbm")
        after.append(
            cls.task(
                f"{name}.write",
                unit="hbm",
                queue=f"{name}.write",
                work=Transfer(_local_bytes(program, out)),
                kind="hbm_store",
                moves=out.name,
                after=[Ref(f"{operation.sent}.transfer", on=back, event="start")],
                overhead=True,
            )
        )
    cls.task(f"{name}.end", after=after, kind="sync")


def _elements(program: Program, tensor: ShardedTensor) -> int:
    return math.prod(tensor.layout.local_shape(program.ops.sizes, program.ops.mesh))


def _local_bytes(program: Program, tensor: ShardedTensor) -> int:
    return bytes_of(_elements(program, tensor), tensor.dtype)


def _same(rows: Any) -> Any:
    return rows
