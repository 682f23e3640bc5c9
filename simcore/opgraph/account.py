"""What one device computes and reads in an op graph: from its operations and layouts alone, nothing lowered.

What is read is what must be read from HBM: every matrix that a matmul streams, once for each use, the experts that
have rows, and what attention finds in its caches; activations are not in it, as they may stay on the chip. FLOPs are
those of matmuls; attention's are of whole rectangles, or with ``causal="skip"`` of the pairs that see each other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from simcore.dtypes import bytes_of
from simcore.layout.steps import CollectiveStep
from simcore.opgraph.graph import OpGraph, Repeat
from simcore.opgraph.operations import (
    Attention,
    BatchedEinsum,
    Collective,
    Einsum,
    GroupedEinsum,
    Operation,
)
from simcore.opgraph.reshard import received_bytes
from simcore.opgraph.tensor import ShardedTensor


@dataclass
class GraphAccount:
    """Totals of one device.

    ``flops`` by kind of operation ("matmul", "attention"), ``read_bytes`` by part ("weights", "gathered", "cache"),
    ``received_bytes`` by kind of collective.
    """

    flops: dict[str, int] = field(default_factory=dict)
    read_bytes: dict[str, int] = field(default_factory=dict)
    received_bytes: dict[str, int] = field(default_factory=dict)

    @property
    def total_flops(self) -> int:
        return sum(self.flops.values())

    @property
    def total_read_bytes(self) -> int:
        return sum(self.read_bytes.values())

    def _add(self, table: dict[str, int], key: str, amount: int) -> None:
        table[key] = table.get(key, 0) + amount


def account_graph(ops: OpGraph) -> GraphAccount:
    """The account of a device of ``ops``."""
    found = GraphAccount()
    for node in ops.body:
        if not isinstance(node, Repeat):
            _count(ops, node, found, 1, 0)
            continue
        for operation in node.body:
            if isinstance(operation, GroupedEinsum) and len(operation.groups.rows) > 1:
                for iteration in range(node.count):
                    _count(ops, operation, found, 1, iteration)
            else:
                _count(ops, operation, found, node.count, 0)
    return found


def _local(ops: OpGraph, tensor: ShardedTensor) -> int:
    return math.prod(tensor.layout.local_shape(ops.sizes, ops.mesh))


def _count(ops: OpGraph, operation: Operation, found: GraphAccount, times: int, iteration: int) -> None:
    match operation:
        case Einsum() | BatchedEinsum():
            contracted = ops.local_rows_columns(operation.left)[1]
            if isinstance(operation, BatchedEinsum):
                contracted //= operation.right.layout.local_shape(ops.sizes, ops.mesh)[0]
            flops = 2 * _local(ops, operation.out) * contracted
            _matmul(ops, operation.right, flops, _local(ops, operation.right), found, times)
        case GroupedEinsum():
            rows, _ = operation.groups.at(iteration)
            k, n = ops.local_rows_columns(operation.left)[1], ops.local_rows_columns(operation.out)[1]
            hit = sum(count > 0 for count in rows)
            _matmul(ops, operation.right, 2 * sum(rows) * k * n, hit * k * n, found, times)
        case Attention():
            _attention(ops, operation, found, times)
        case Collective():
            shapes = [_local(ops, tensor) for tensor in (operation.source, operation.out)]
            before, after = (bytes_of(shape, operation.source.dtype) for shape in shapes)
            sizes = tuple(ops.mesh.axis_size((axis,)) for axis in operation.axes)
            kind = operation.kind
            if kind == "Permute":
                found._add(found.received_bytes, kind, times * before)
                return
            step = CollectiveStep(
                kind, operation.out.name, operation.axes, sizes, operation.dim or None,
                operation.source.layout, operation.out.layout, before, after, operation.to_dim or None,
            )  # fmt: skip
            found._add(found.received_bytes, kind, times * int(received_bytes(step)))
        case _:
            pass


def _matmul(ops: OpGraph, right: ShardedTensor, flops: int, read: int, found: GraphAccount, times: int) -> None:
    found._add(found.flops, "matmul", times * flops)
    part = "gathered" if right.role == "gathered" else "weights"
    found._add(found.read_bytes, part, times * bytes_of(read, right.dtype))


def _attention(ops: OpGraph, operation: Attention, found: GraphAccount, times: int) -> None:
    requests, new, heads, k_dim = operation.q.layout.local_shape(ops.sizes, ops.mesh)
    v_dim = operation.out.layout.local_shape(ops.sizes, ops.mesh)[3]
    cached = operation.cached[:requests]
    # Of positions that are dealt out a chip has one in n, rounded up.
    n = ops.mesh.axis_size(operation.stripes)
    pairs = seen = 0
    for length in cached:
        first = int(operation.view.first(length)) // n
        length = -(-length // n)
        seen += length - first
        if operation.causal == "skip" and operation.kernel == "flash":
            positions = length + np.arange(new)
            pairs += int((positions - operation.view.first(positions) + 1).sum())
        else:
            pairs += new * (length - first + new)
    found._add(found.flops, "attention", times * 2 * heads * (k_dim + v_dim) * pairs)
    caches = {t.name: t for t in (operation.k_cache, operation.v_cache) if t is not None}
    for cache in caches.values():
        shape = cache.layout.local_shape(ops.sizes, ops.mesh)
        found._add(found.read_bytes, "cache", times * bytes_of(seen * math.prod(shape[2:]), cache.dtype))
