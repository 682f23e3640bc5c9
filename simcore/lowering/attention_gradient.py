"""Lowering of attention's derivative: a pass for the queries, and one for keys and values.

In the first, blocks of keys and values pass by a block of queries, whose sums are in VMEM; in the second, blocks of
queries by a block of keys. Each time the weights are computed once more from scores and the sums that were kept.
Source: Dao 2023 (FlashAttention-2); two passes as in JAX's kernels for TPUs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from simcore.dtypes import bytes_of
from simcore.errors import GraphError
from simcore.graph import BufferAccess, Matmul, Ref, Take, Task, TensorAccess, Transfer, Vector, WithIndices
from simcore.graph.access import Access, Region, RegionFunction
from simcore.graph.graph import Reference
from simcore.graph.reference import Indices
from simcore.graph.work import IntArray
from simcore.lowering.attention import (
    KEYS,
    LONGEST_BLOCK,
    OUT,
    QUERIES,
    QUERY_SHARE,
    SCORE_BYTES,
    SCORE_SHARE,
    SCORES,
    SCORES_QUEUE,
    SOURCE_SHARE,
    SUMS,
    VALUES,
    bytes_of_each,
    same,
)
from simcore.lowering.matmul import LOAD_QUEUE, STORE_QUEUE
from simcore.lowering.program import Program, compute_dtype
from simcore.opgraph.backward_operations import AttentionGradient
from simcore.opgraph.tensor import ShardedTensor

BACK, STATS, PRODUCTS = "attention back blocks", "attention stats", "score gradients"
WEIGHT_OPERATIONS = 6
"""Vector operations a score: scale, subtract, exponential, subtract, multiply, convert (assumed one each)."""


def lower_attention_gradient(program: Program, operation: AttentionGradient) -> None:
    """A chip's heads, one request and block of key-value heads at a time, in two passes."""
    lowering = _Lowering(program, operation)
    lowering.emit()


@dataclass(frozen=True, slots=True)
class _Side:
    """Blocks of positions of queries or of keys: the loop over them, their size, and the heads in a block."""

    loop: str
    block: int
    count: int
    positions: int

    def sizes(self) -> IntArray:
        begins = np.arange(self.count, dtype=np.int64) * self.block
        return np.minimum(begins + self.block, self.positions) - begins


class _Lowering:
    def __init__(self, program: Program, operation: AttentionGradient) -> None:
        self.program, self.cls, self.operation, self.name = program, program.cls, operation, operation.name
        sizes, mesh = program.ops.sizes, program.ops.mesh
        self.requests, self.new, heads, self.k_dim = operation.q.layout.local_shape(sizes, mesh)
        self.v_dim = operation.back.layout.local_shape(sizes, mesh)[3]
        k_shape = operation.k.layout.local_shape(sizes, mesh)
        if len(k_shape) != 4 or k_shape[1] != self.new:
            raise GraphError(
                f"{self.name}: attention's derivative is for keys and values with heads, as many as queries"
            )
        self.kv_heads = k_shape[2]
        self.group = heads // self.kv_heads
        self.kv_block, self.block = self._choose_block()
        self.heads = self.kv_block * self.group
        for unit in ("hbm", "mxu", "vpu"):
            self.cls.unit(unit)

    def _choose_block(self) -> tuple[int, int]:
        """Key-value heads at a time, and positions in a block."""
        share, op = self.program.tile_share, self.operation
        width = max(self.k_dim, self.v_dim)
        for kv_block in (n for n in range(self.kv_heads, 0, -1) if self.kv_heads % n == 0):
            heads, block = kv_block * self.group, min(self.new, LONGEST_BLOCK)
            while block > 1 and (
                heads * block * block * SCORE_BYTES > share(2 * SCORE_SHARE)  # of two kinds, and each twice
                or heads * block * width * SCORE_BYTES > share(SCORE_SHARE)
                or bytes_of(heads * block * width, op.q.dtype) > share(QUERY_SHARE)
                or bytes_of(kv_block * block * width, op.k.dtype) > share(SOURCE_SHARE)
            ):
                block = -(-block // 2)
            if block >= min(self.new, 128):
                return kv_block, block
        return 1, block

    # -- loops, regions and loads -----------------------------------------------------------------------------

    def _task(self, what: str) -> str:
        return f"{self.name}.{what}"

    def _side(self, which: str, label: str) -> _Side:
        return _Side(f"{self.name}.{label}.{which}", self.block, -(-self.new // self.block), self.new)

    def _rows(self, side: _Side, label: str, width: int) -> RegionFunction:
        """A block's rows, and the columns of the heads at hand, ``width`` for all of them together."""

        def region(i: Indices, _: Indices) -> Region:
            begin, first = int(i[side.loop]) * side.block, int(i[f"{self.name}.{label}.request"]) * self.new
            column = int(i[f"{self.name}.{label}.heads"]) * width
            rows = slice(first + begin, first + min(begin + side.block, self.new))
            return rows, slice(column, column + width)

        return region

    def _read(
        self, tensor: ShardedTensor, pool: str, side: _Side, label: str, width: int, readers: list[str]
    ) -> tuple[Access, list[Reference]]:
        """How a block of a tensor is read, and what for: a load into a buffer, unless it is in VMEM."""
        access = TensorAccess(tensor.name, self._rows(side, label, width))
        if self.program.is_resident(tensor):
            return access, list(self.program.after(tensor))
        self.program.pool(pool, bytes_of(self.block * width, tensor.dtype))
        load = self.cls.task(
            self._task(f"{label} load {tensor.name}"),
            unit="hbm",
            queue=LOAD_QUEUE,
            work=Transfer(bytes_of_each(side.sizes() * width, tensor.dtype)),
            kind="hbm_load",
            moves=tensor.name,
            after=self.program.after(tensor),
            takes=[Take(pool, freed_by=[Ref(self._task(f"{label} {reader}"), outside="ignore") for reader in readers])],
            reads=[access],
            writes=[BufferAccess(pool)],
            function=same,
        )
        return BufferAccess(pool, load.ref()), [load]

    @contextmanager
    def _nest(self, *loops: tuple[str, int]) -> Iterator[None]:
        with ExitStack() as stack:
            for name, count in loops:
                stack.enter_context(self.cls.loop(name, count))
            yield

    # -- tasks ------------------------------------------------------------------------------------------------

    def emit(self) -> None:
        ends = [self._pass("queries"), self._pass("keys")]
        self.cls.task(self._task("end"), after=[Ref(end) for end in ends], kind="sync")

    def _pass(self, label: str) -> str:
        """Sums of a block of ``label`` while blocks of the other side pass; returns the last task's name."""
        op, cls = self.operation, self.cls
        queries, keys = self._side("queries", label), self._side("keys", label)
        outer, inner = (queries, keys) if label == "queries" else (keys, queries)
        of_queries = label == "queries"
        wide_q, wide_v = self.heads * self.k_dim, self.heads * self.v_dim
        narrow_k, narrow_v = self.kv_block * self.k_dim, self.kv_block * self.v_dim
        q_side = [(op.q, QUERIES, wide_q), (op.back, BACK, wide_v), (op.stats, STATS, 2 * self.heads)]
        k_side = [(op.k, KEYS, narrow_k), (op.v, VALUES, narrow_v)]
        outer_reads, inner_reads = (q_side, k_side) if of_queries else (k_side, q_side)
        columns = wide_q if of_queries else narrow_k + narrow_v
        self.program.pool(SUMS, self.block * columns * SCORE_BYTES)
        for pool in (SCORES, PRODUCTS):
            self.program.pool(pool, self.heads * self.block**2 * SCORE_BYTES)
        results = [(op.to_q, wide_q)] if of_queries else [(op.to_k, narrow_k), (op.to_v, narrow_v)]
        request, heads = f"{self.name}.{label}.request", f"{self.name}.{label}.heads"
        with self._nest((request, self.requests), (heads, self.kv_heads // self.kv_block), (outer.loop, outer.count)):
            opened = cls.task(
                self._task(f"{label} open"),
                kind="sync",
                takes=[Take(SUMS, freed_by=[Ref(self._task(f"{label} finish"))])],
                writes=[BufferAccess(SUMS)],
                function=lambda: np.zeros((self.block, columns)),
            )
            # A block of the outer side is free when the last block of the inner one has passed.
            found = {t.name: self._read(t, pool, outer, label, width, ["finish"]) for t, pool, width in outer_reads}
            with cls.loop(inner.loop, inner.count):
                readers = ["scores", "products", "weights", "add"]
                found |= {t.name: self._read(t, pool, inner, label, width, readers) for t, pool, width in inner_reads}
                self._pair(label, queries, keys, found, opened, columns)
            return self._finish(label, outer, opened, columns, results)

    def _guard(self, queries: _Side, keys: _Side) -> Any:
        """Whether any query of a block sees any key of a block; None where all are computed."""
        attention = self.operation.attention
        if attention.causal == "full":
            return None

        def seen(i: Indices, _: Indices) -> Any:
            first_query, first_key = i[queries.loop] * queries.block, i[keys.loop] * keys.block
            last_query = np.minimum(first_query + queries.block, self.new) - 1
            last_key = np.minimum(first_key + keys.block, self.new) - 1
            return (first_key <= last_query) & (last_key >= attention.view.first(first_query))

        return seen

    def _pair(
        self,
        label: str,
        queries: _Side,
        keys: _Side,
        found: dict[str, tuple[Access, list[Reference]]],
        opened: Task,
        columns: int,
    ) -> None:
        op, cls, of_queries = self.operation, self.cls, label == "queries"
        dtype = compute_dtype(op.q.dtype, op.k.dtype)
        t, s = queries.sizes(), keys.sizes()
        t, s = (t[:, None], s) if of_queries else (t, s[:, None])
        when = self._guard(queries, keys)
        common: dict[str, Any] = {"when": when}
        add = Ref(self._task(f"{label} add"), outside="ignore")
        pairs = [("scores", SCORES, op.q, op.k, self.k_dim), ("products", PRODUCTS, op.back, op.v, self.v_dim)]
        made = []
        for what, pool, left, right, width in pairs:
            made.append(
                cls.task(
                    self._task(f"{label} {what}"),
                    unit="mxu",
                    queue=SCORES_QUEUE,
                    work=Matmul(self.group * t, width, s, dtype, batch=self.kv_block),
                    after=[*found[left.name][1], *found[right.name][1]],
                    takes=[Take(pool, freed_by=[add])],
                    reads=[found[left.name][0], found[right.name][0]],
                    writes=[BufferAccess(pool)],
                    function=self._products(width),
                    **common,
                )
            )
        elements = self.heads * t * s
        accesses: list[Access] = [
            BufferAccess(pool, task.ref()) for pool, task in zip((SCORES, PRODUCTS), made, strict=True)
        ]
        weights = cls.task(
            self._task(f"{label} weights"),
            unit="vpu",
            work=Vector(elements * WEIGHT_OPERATIONS, 4 * SCORE_BYTES * elements),
            after=[*made, *found[op.stats.name][1]],
            reads=[*accesses, found[op.stats.name][0]],
            writes=accesses,
            function=WithIndices(self._weights(queries, keys)),
            **common,
        )
        total = BufferAccess(SUMS, Ref(opened.name))
        if of_queries:
            work = Matmul(self.group * t, s, self.k_dim, dtype, batch=self.kv_block)
            reads = [accesses[1], found[op.k.name][0]]
            function: Any = self._to_queries
            waits = found[op.k.name][1]
        else:
            # Keys' and values' sums: two products of the same blocks, of the widths of keys and of values.
            work = Matmul(s, self.group * t, self.k_dim + self.v_dim, dtype, batch=self.kv_block)
            reads = [*accesses, found[op.q.name][0], found[op.back.name][0]]
            function = self._to_keys_and_values
            waits = [*found[op.q.name][1], *found[op.back.name][1]]
        cls.task(
            self._task(f"{label} add"),
            unit="mxu",
            work=work,
            after=[weights, *waits, opened],
            reads=[*reads, total],
            writes=[total],
            function=function,
            **common,
        )

    def _finish(
        self, label: str, outer: _Side, opened: Task, columns: int, results: list[tuple[ShardedTensor, int]]
    ) -> str:
        """Convert the sums of a block, and store them where what goes back is in HBM."""
        cls, program = self.cls, self.program
        takes, made, stores, after = [], [], [], [opened]
        waits: list[Reference] = [*after, Ref(self._task(f"{label} add"), at=self._last_inner(label), outside="ignore")]
        for number, (tensor, width) in enumerate(results):
            rows = TensorAccess(tensor.name, self._rows(outer, label, width))
            waits += program.after_readers(tensor)
            if program.is_resident(tensor):
                made.append(rows)
                continue
            pool = program.pool(OUT, bytes_of(self.block * width, tensor.dtype))
            if number:
                pool = program.pool(f"{OUT} 2", bytes_of(self.block * width, tensor.dtype))
            takes.append(Take(pool, freed_by=[Ref(self._task(f"{label} store {tensor.name}"))]))
            made.append(BufferAccess(pool))  # type: ignore[arg-type]
            stores.append((tensor, width, rows, pool))
        widths = [width for _, width in results]
        elements = outer.sizes() * columns

        def split(total: Any) -> Any:
            parts, at = [], 0
            for width in widths:
                parts.append(total[:, at : at + width])
                at += width
            return tuple(parts) if len(parts) > 1 else parts[0]

        def ragged(i: Indices, _: Indices) -> Region:
            begin = int(i[outer.loop]) * outer.block
            return slice(0, min(outer.block, self.new - begin)), slice(0, columns)

        finish = cls.task(
            self._task(f"{label} finish"),
            unit="vpu",
            work=Vector(elements, elements * (SCORE_BYTES + bytes_of(1, results[0][0].dtype))),
            after=waits,
            takes=takes,
            reads=[BufferAccess(SUMS, Ref(opened.name), ragged)],
            writes=made,
            function=split,
        )
        last = finish
        for tensor, width, rows, pool in stores:
            last = cls.task(
                self._task(f"{label} store {tensor.name}"),
                unit="hbm",
                queue=STORE_QUEUE,
                work=Transfer(bytes_of_each(outer.sizes() * width, tensor.dtype)),
                kind="hbm_store",
                moves=tensor.name,
                after=[finish, *program.after_readers(tensor)],
                reads=[BufferAccess(pool, finish.ref())],
                writes=[rows],
                function=same,
            )
        return last.name

    def _last_inner(self, label: str) -> dict[str, Any]:
        """The last block of the inner side that the block of the outer one meets."""
        queries, keys = self._side("queries", label), self._side("keys", label)
        if self.operation.attention.causal == "full" or label == "keys":
            side = keys if label == "queries" else queries
            return {side.loop: side.count - 1 if label == "queries" else self._last_query(keys, queries)}
        return {keys.loop: lambda i, _: i[queries.loop]}  # blocks are of equal size: the one on the diagonal

    def _last_query(self, keys: _Side, queries: _Side) -> Any:
        """Of queries that see a block of keys, the last block: the last of all but under a window or in chunks."""
        view = self.operation.attention.view
        if self.operation.attention.causal == "full" or (view.window is None and view.chunk is None):
            return queries.count - 1

        def last(i: Indices, _: Indices) -> Any:
            last_key = np.minimum((i[keys.loop] + 1) * keys.block, self.new) - 1
            starts = np.arange(queries.count) * queries.block
            sees = np.asarray(view.first(starts))[(None,) * np.ndim(last_key)] <= np.asarray(last_key)[..., None]
            return queries.count - 1 - np.argmax(sees[..., ::-1], axis=-1)

        return last

    # -- values -----------------------------------------------------------------------------------------------

    def _by_head(self, rows: Any, width: int) -> Any:
        """[positions, heads x width] as [heads, positions, width]; a key-value head for each of its query heads."""
        split = rows.reshape(len(rows), -1, width).transpose(1, 0, 2)
        return np.repeat(split, self.heads // len(split), axis=0)

    def _products(self, width: int) -> Any:
        def products(left: Any, right: Any) -> Any:
            made = np.full((self.heads, self.block, self.block), np.nan)
            part = self._by_head(left, width) @ self._by_head(right, width).transpose(0, 2, 1)
            made[:, : part.shape[1], : part.shape[2]] = part
            return made

        return products

    def _weights(self, queries: _Side, keys: _Side) -> Any:
        """The weights, and the derivative to the scores."""
        attention = self.operation.attention

        def weights(i: Indices, _: Indices, scores: Any, products: Any, stats: Any) -> Any:
            first_query, first_key = int(i[queries.loop]) * queries.block, int(i[keys.loop]) * keys.block
            t, s = min(queries.block, self.new - first_query), min(keys.block, self.new - first_key)
            mine, theirs = first_query + np.arange(t)[:, None], first_key + np.arange(s)
            seen = (theirs <= mine) & (theirs >= attention.view.first(mine))
            log, along = stats.reshape(t, self.heads, 2).transpose(2, 1, 0)[..., None]
            made, back = np.zeros_like(scores), np.zeros_like(products)
            exponent = np.where(seen, scores[:, :t, :s] * attention.scale - log, -np.inf)
            made[:, :t, :s] = np.exp(exponent)
            back[:, :t, :s] = made[:, :t, :s] * (products[:, :t, :s] - along) * attention.scale
            return made, back

        return weights

    def _to_queries(self, back: Any, keys: Any, total: Any) -> Any:
        made = back[:, :, : len(keys)] @ self._by_head(keys, self.k_dim)
        return total + made.transpose(1, 0, 2).reshape(self.block, -1)

    def _to_keys_and_values(self, weights: Any, back: Any, queries: Any, given: Any, total: Any) -> Any:
        t = len(queries)
        to_k = back[:, :t].transpose(0, 2, 1) @ self._by_head(queries, self.k_dim)
        to_v = weights[:, :t].transpose(0, 2, 1) @ self._by_head(given, self.v_dim)
        parts = [
            part.reshape(self.kv_block, self.group, self.block, -1)
            .sum(axis=1)
            .transpose(1, 0, 2)
            .reshape(self.block, -1)
            for part in (to_k, to_v)
        ]
        return total + np.concatenate(parts, axis=1)
