"""Lowering of attention in three passes, for comparison: all scores are written to HBM, read for the softmax, written
as weights, and read again for the weighted values.

The matrix unit does what it does in whole rectangles by blocks (`simcore.lowering.attention`); HBM moves four times the
scores, so that the traffic grows with new positions times source positions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from simcore.dtypes import bytes_of
from simcore.errors import GraphError
from simcore.graph import BufferAccess, Matmul, Ref, Take, TensorAccess, Transfer, Vector, WithIndices
from simcore.graph.access import Access, Region, RegionFunction
from simcore.graph.graph import Reference
from simcore.graph.reference import Indices
from simcore.graph.work import IntArray
from simcore.lowering.attention import (
    OUT,
    QUERIES,
    SCORE_BYTES,
    SCORE_SHARE,
    SCORES,
    SOFTMAX_OPERATIONS,
    SUMS,
    VALUES,
    AttentionLowering,
    bytes_of_each,
    same,
)
from simcore.lowering.matmul import LOAD_QUEUE, STORE_QUEUE
from simcore.lowering.program import Program, compute_dtype
from simcore.lowering.spans import Loops, Span
from simcore.opgraph.operations import Attention


def lower_naive_attention(program: Program, operation: Attention) -> None:
    """Scores, softmax and weighted values one after another, each over HBM. Requests must be of equal length."""
    if len(set(operation.cached)) > 1:
        raise GraphError(f"{operation.name}: naive attention is for requests of equal length")
    _Naive(program, operation).emit()


class _Naive(AttentionLowering):
    def __init__(self, program: Program, operation: Attention) -> None:
        super().__init__(program, operation)
        self.part = ""
        self.total = sum(int(source.positions[0]) for source in self.sources)
        self.dtype = operation.q.dtype
        self.table = f"{self.name}.scores"
        rows = self.requests * self.group * self.kv_heads
        self.cls.tensor(
            self.table, bytes=bytes_of(rows * self.new * self.total, self.dtype), shape=(rows, self.new, self.total)
        )
        row = self.heads * self.total * SCORE_BYTES
        self.softmax_rows = min(max(program.tile_share(SCORE_SHARE) // row, 1), self.new)
        program.pool(SCORES, row * self.softmax_rows)
        widest = max(source.block for source in self.sources)
        dtypes = {source.v.dtype for source in self.sources}
        program.pool(VALUES, max(bytes_of(widest * self.kv_block * self.v_dim, dtype) for dtype in dtypes))

    def _named_loops(self, part: str) -> None:
        """Every pass has loops of its own."""
        self.part = part
        self.loops = Loops(*(f"{self.name}.{part} {loop}" for loop in ("request", "heads", "queries", "")))

    def _loops(self, source: Span) -> Loops:
        at = self.loops
        return Loops(at.request, at.heads, at.queries, f"{self.name}.{self.part} {source.label}")

    def _columns(self, source: Span) -> int:
        """Where a source's positions begin among all that are seen."""
        return 0 if source is self.sources[0] else int(self.sources[0].positions[0])

    def _region(self, queries: int, columns: Any) -> RegionFunction:
        """Rows of the table for a block of ``queries`` of the block of heads, and the given columns."""

        loops, blocks = self.loops, self.kv_heads // self.kv_block

        def region(i: Indices, _: Indices) -> Region:
            first = (int(i[loops.request]) * blocks + int(i[loops.heads])) * self.heads
            begin = int(i[loops.queries]) * queries
            rows = slice(begin, min(begin + queries, self.new))
            return (slice(first, first + self.heads), rows, columns(i))

        return region

    def _block_region(self, source: Span) -> RegionFunction:
        block, start = self._loops(source).block, self._columns(source)

        def columns(i: Indices) -> slice:
            begin = int(i[block]) * source.block
            return slice(start + begin, start + min(begin + source.block, int(source.positions[0])))

        return self._region(self.q_block, columns)

    # -- passes -----------------------------------------------------------------------------------------------

    def emit(self) -> None:
        self._named_loops("scores")
        with self._blocks_of(self.q_block):
            if not self.program.is_resident(self.operation.q):
                self._load_queries()
            for source in self.sources:
                with self.cls.loop(self._loops(source).block, source.count):
                    self._score(source)
        stores = [Ref(self._task(f"store scores {source.label}")) for source in self.sources]
        self.cls.task(self._task("all scores"), after=stores, kind="sync")
        self._named_loops("softmax")
        with self._blocks_of(self.softmax_rows):
            self._softmax()
        self.cls.task(self._task("all weights"), after=[Ref(self._task("store weights"))], kind="sync")
        self._named_loops("values")
        with self._blocks_of(self.q_block):
            last = self._weigh()
        self.cls.task(self._task("end"), after=[Ref(last)], kind="sync")

    def _blocks_of(self, queries: int) -> Any:
        return self._nest(
            (self.loops.request, self.requests),
            (self.loops.heads, self.kv_heads // self.kv_block),
            (self.loops.queries, -(-self.new // queries)),
        )

    def _score(self, source: Span) -> None:
        operation, program, cls, label = self.operation, self.program, self.cls, source.label
        keys, k_wait = self._keys_or_values(source, "k", ["scores"])
        if program.is_resident(operation.q):
            queries: Access = TensorAccess(operation.q.name, self._q_rows(self.k_dim))
            q_wait: list[Reference] = list(program.after(operation.q))
        else:
            queries, q_wait = BufferAccess(QUERIES, Ref(self._task("load q"))), [Ref(self._task("load q"))]
        s, t = source.sizes(), self._q_sizes()
        scores = cls.task(
            self._task(f"scores {label}"),
            unit="mxu",
            work=Matmul(
                self.group * t, self.k_dim, s, compute_dtype(operation.q.dtype, source.k.dtype), batch=self.kv_block
            ),
            after=[*q_wait, *k_wait],
            takes=[Take(SCORES, freed_by=[Ref(self._task(f"store scores {label}"))])],
            reads=[queries, *keys],
            writes=[BufferAccess(SCORES)],
            function=WithIndices(self.values.scores(source, self._loops(source))),
        )
        cls.task(
            self._task(f"store scores {label}"),
            unit="hbm",
            queue=STORE_QUEUE,
            work=Transfer(bytes_of_each(self.heads * t * s, self.dtype)),
            kind="hbm_store",
            moves=self.table,
            after=[scores],
            reads=[BufferAccess(SCORES, scores.ref())],
            writes=[TensorAccess(self.table, self._block_region(source))],
            function=same,
        )

    def _softmax(self) -> None:
        cls = self.cls
        begins = np.arange(-(-self.new // self.softmax_rows), dtype=np.int64) * self.softmax_rows
        elements: IntArray = (np.minimum(begins + self.softmax_rows, self.new) - begins) * self.heads * self.total
        table = TensorAccess(self.table, self._region(self.softmax_rows, lambda i: slice(0, self.total)))
        moved = Transfer(bytes_of_each(elements, self.dtype))
        load = cls.task(
            self._task("load scores"),
            unit="hbm",
            queue=LOAD_QUEUE,
            work=moved,
            kind="hbm_load",
            moves=self.table,
            after=[Ref(self._task("all scores"))],
            takes=[Take(SCORES, freed_by=[Ref(self._task("store weights"))])],
            reads=[table],
            writes=[BufferAccess(SCORES)],
            function=same,
        )
        softmax = cls.task(
            self._task("softmax"),
            unit="vpu",
            work=Vector(elements * SOFTMAX_OPERATIONS, 2 * SCORE_BYTES * elements),
            after=[load],
            reads=[BufferAccess(SCORES, load.ref())],
            writes=[BufferAccess(SCORES, load.ref())],
            function=_softmax,
        )
        cls.task(
            self._task("store weights"),
            unit="hbm",
            queue=STORE_QUEUE,
            work=moved,
            kind="hbm_store",
            moves=self.table,
            after=[softmax],
            reads=[BufferAccess(SCORES, load.ref())],
            writes=[table],
            function=same,
        )

    def _weigh(self) -> str:
        """Weighted values, accumulated block by block; returns the task that completes a block of queries."""
        operation, program, cls = self.operation, self.program, self.cls
        opened = cls.task(
            self._task("open"),
            kind="sync",
            after=[Ref(self._task("all weights"))],
            takes=[Take(SUMS, freed_by=[Ref(self._task("finish"))])],
            writes=[BufferAccess(SUMS)],
            function=WithIndices(lambda i, c: np.zeros([part.stop for part in self._sums(i, c)])),
        )
        sums = BufferAccess(SUMS, opened.ref(), self._sums)
        t = self._q_sizes()
        for source in self.sources:
            label, s = source.label, source.sizes()
            with cls.loop(self._loops(source).block, source.count):
                load = cls.task(
                    self._task(f"load weights {label}"),
                    unit="hbm",
                    queue=LOAD_QUEUE,
                    work=Transfer(bytes_of_each(self.heads * t * s, self.dtype)),
                    kind="hbm_load",
                    moves=self.table,
                    after=[opened],
                    takes=[Take(SCORES, freed_by=[Ref(self._task(f"values {label}"))])],
                    reads=[TensorAccess(self.table, self._block_region(source))],
                    writes=[BufferAccess(SCORES)],
                    function=same,
                )
                values, v_wait = self._keys_or_values(source, "v", ["values"])
                cls.task(
                    self._task(f"values {label}"),
                    unit="mxu",
                    work=Matmul(
                        self.group * t,
                        s,
                        self.v_dim,
                        compute_dtype(operation.q.dtype, source.v.dtype),
                        batch=self.kv_block,
                    ),
                    after=[load, *v_wait],
                    reads=[BufferAccess(SCORES, load.ref()), sums, *values],
                    writes=[sums],
                    function=self.values.add_rows,
                )
        stores = not program.is_resident(operation.out)
        rows = TensorAccess(operation.out.name, self._q_rows(self.v_dim))
        elements = t[:, 0] * self.heads * self.v_dim
        finish = cls.task(
            self._task("finish"),
            unit="vpu",
            work=Vector(elements, elements * (SCORE_BYTES + bytes_of(1, operation.out.dtype))),
            after=[
                *(Ref(self._task(f"values {source.label}")) for source in self.sources),
                *program.after_readers(operation.out),
            ],
            takes=[Take(OUT, freed_by=[Ref(self._task("store"))])] if stores else [],
            reads=[sums],
            writes=[BufferAccess(OUT) if stores else rows],
            function=lambda found: found.transpose(1, 0, 2).reshape(found.shape[1], -1),
        )
        return self._store_out(finish, elements, rows).name if stores else finish.name

    def _sums(self, i: Indices, _: Indices) -> Region:
        begin = int(i[self.loops.queries]) * self.q_block
        return (slice(0, self.heads), slice(0, min(self.q_block, self.new - begin)), slice(0, self.v_dim))


def _softmax(scores: Any) -> Any:
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)
