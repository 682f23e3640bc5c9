"""Lowering of attention by blocks, with an online softmax: scores live in VMEM for the length of a block.

For each request, block of heads and block of queries, blocks of keys and values pass: scores on the matrix unit,
softmax on the vector unit (running maximum and sum, rescaling what was accumulated), weighted values on the matrix
unit. Scores have a queue of their own there, so that the next block's are computed while this one's softmax runs.

Source of the online softmax: Milakov and Gimelshein 2018; of the blocking: Dao et al. 2022 (FlashAttention).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from simcore.dtypes import bytes_of
from simcore.graph import BufferAccess, Matmul, Ref, Take, Task, TensorAccess, Transfer, Vector, WithIndices
from simcore.graph.access import Access, Region
from simcore.graph.graph import Reference
from simcore.graph.reference import Indices
from simcore.graph.work import IntArray
from simcore.lowering.attention_values import (
    AttentionValues,
    normalise,
    normalise_and_keep_sums,
    normalise_beside_sums,
    online_softmax,
)
from simcore.lowering.matmul import LOAD_QUEUE, STORE_QUEUE
from simcore.lowering.program import Program, compute_dtype, of_local_requests
from simcore.lowering.spans import Loops, Span, Stripe, spans
from simcore.opgraph.operations import Attention
from simcore.opgraph.tensor import ShardedTensor

SOURCE_SHARE, SCORE_SHARE, QUERY_SHARE = 32, 16, 32
"""A block of keys or of values, one of scores or sums, and one of queries: at most 1 / this of VMEM."""
LONGEST_BLOCK, SHORTEST_BLOCK = 512, 128
"""New positions in a block of queries or of keys: at most the first, under a window no more than it, but the second."""
ENOUGH_QUERIES = 128
"""Heads are taken in blocks where there is no room for this many queries of all of them."""
SOFTMAX_OPERATIONS = 6
"""Vector operations a score: scale, running maximum, subtract, exponential, sum, convert (assumed one each)."""
RESCALE_OPERATIONS = 2
"""Vector operations an accumulated value and block: rescale, and at the end divide."""
SCORE_BYTES = 4
SCORES_QUEUE = "mxu_scores"
KEYS, VALUES, SCORES, SUMS, QUERIES = "key blocks", "value blocks", "scores", "attention sums", "query blocks"
OUT, LOGS = "attention out", "attention sums out"


def lower_attention(program: Program, operation: Attention) -> None:
    """A chip's heads, one request, block of heads and block of queries at a time."""
    AttentionLowering(program, operation).emit()


class AttentionLowering:
    """Sizes, loops, regions and tasks of one attention."""

    def __init__(self, program: Program, operation: Attention) -> None:
        self.program, self.cls, self.name = program, program.cls, operation.name
        sizes, mesh = program.ops.sizes, program.ops.mesh
        self.requests, self.new, heads, self.k_dim = operation.q.layout.local_shape(sizes, mesh)
        cached = of_local_requests(operation.name, operation.cached, self.requests)
        self.operation = operation = replace(operation, cached=cached)
        self.out_dim = operation.out.layout.local_shape(sizes, mesh)[3]
        self.v_dim = self.out_dim - operation.sums
        k_shape = operation.k.layout.local_shape(sizes, mesh)
        self.kv_heads = k_shape[2] if len(k_shape) == 4 else 1
        self.group = heads // self.kv_heads
        self.latent = operation.v.name == operation.k.name
        self.kv_block, q_block, new_block, cached_block = self._choose_blocks()
        self.heads = self.kv_block * self.group
        self.q_block = q_block
        self.loops = Loops(*(f"{self.name}.{loop}" for loop in ("request", "heads", "queries", "")))
        axes = tuple((axis, mesh.axis_size((axis,))) for axis in operation.stripes)
        split = operation.q.layout.dims[1].axes
        stripe = Stripe(math.prod(size for _, size in axes), False, bool(axes) and bool(split), operation.shift)
        self.sources = spans(operation, self.new, new_block, cached_block, q_block, stripe)
        self.values = AttentionValues(
            operation, self.heads, self.kv_block, self.k_dim, self.v_dim, self.new, q_block, axes
        )
        for unit in ("hbm", "mxu", "vpu"):
            self.cls.unit(unit)
        self._pools(max(source.block for source in self.sources))

    def _choose_blocks(self) -> tuple[int, int, int, int]:
        """Key-value heads at a time; queries, new positions and cached positions in a block."""
        share, operation = self.program.tile_share, self.operation
        k_dim, v_dim = self.k_dim, self.v_dim
        longest = min(LONGEST_BLOCK, max(SHORTEST_BLOCK, operation.view.kept(LONGEST_BLOCK)))
        for kv_block in (n for n in range(self.kv_heads, 0, -1) if self.kv_heads % n == 0):
            heads = kv_block * self.group
            row = bytes_of(kv_block * max(k_dim, v_dim), operation.k.dtype)
            new_block = _within(min(share(SOURCE_SHARE) // row, longest), self.new)
            q_block = min(
                longest,
                share(SCORE_SHARE) // (heads * new_block * SCORE_BYTES),
                share(SCORE_SHARE) // (heads * (v_dim + 2) * SCORE_BYTES),
                share(QUERY_SHARE) // bytes_of(heads * max(k_dim, v_dim), operation.q.dtype),
            )
            q_block = _within(q_block, self.new)
            if q_block >= min(self.new, ENOUGH_QUERIES):
                break
        if operation.k_cache is not None:
            row = bytes_of(kv_block * max(k_dim, v_dim), operation.k_cache.dtype)
        cached_block = min(share(SOURCE_SHARE) // row, share(SCORE_SHARE) // (heads * q_block * SCORE_BYTES))
        return kv_block, q_block, new_block, cached_block

    def _pools(self, widest: int) -> None:
        program, operation = self.program, self.operation
        widths = [(KEYS, self.k_dim)] if self.latent else [(KEYS, self.k_dim), (VALUES, self.v_dim)]
        for pool, width in widths:
            tensors = {t.dtype for source in self.sources for t in (source.k, source.v)}
            program.pool(pool, max(bytes_of(widest * self.kv_block * width, dtype) for dtype in tensors))
        program.pool(SCORES, self.heads * self.q_block * widest * SCORE_BYTES)
        program.pool(SUMS, self.heads * self.q_block * (self.v_dim + 2) * SCORE_BYTES)
        if not program.is_resident(operation.q):
            program.pool(QUERIES, bytes_of(self.q_block * self.heads * self.k_dim, operation.q.dtype))
        if not program.is_resident(operation.out):
            program.pool(OUT, bytes_of(self.q_block * self.heads * self.out_dim, operation.out.dtype))

    # -- loops and regions ------------------------------------------------------------------------------------

    def _task(self, what: str) -> str:
        return f"{self.name}.{what}"

    def _loops(self, source: Span) -> Loops:
        return Loops(self.loops.request, self.loops.heads, self.loops.queries, f"{self.name}.{source.label}")

    def _q_sizes(self) -> IntArray:
        """Queries of each block, to broadcast over the loops of queries and of source blocks."""
        begins = np.arange(-(-self.new // self.q_block), dtype=np.int64) * self.q_block
        return (np.minimum(begins + self.q_block, self.new) - begins)[:, None]

    def _q_rows(self, width: int) -> Any:
        """The region of a block of queries, or of what attention gives for it, with heads of ``width``."""

        loops = self.loops

        def region(i: Indices, _: Indices) -> Region:
            begin, first = int(i[loops.queries]) * self.q_block, int(i[loops.request]) * self.new
            column = int(i[loops.heads]) * self.heads * width
            rows = slice(first + begin, first + min(begin + self.q_block, self.new))
            return (rows, slice(column, column + self.heads * width))

        return region

    def _kv_regions(self, source: Span, tensor: ShardedTensor, width: int) -> list[Any]:
        ops, loops = self.program.ops, self.loops
        length = tensor.layout.local_shape(ops.sizes, ops.mesh)[1]

        def columns(i: Indices) -> slice:
            first = int(i[loops.heads]) * self.kv_block * width
            return slice(first, first + self.kv_block * width)

        return list(source.regions(self._loops(source), length, columns, lambda i: self.program.lead(tensor, i)))

    # -- tasks ------------------------------------------------------------------------------------------------

    def emit(self) -> None:
        operation, program, cls = self.operation, self.program, self.cls
        with self._nest(
            (self.loops.request, self.requests),
            (self.loops.heads, self.kv_heads // self.kv_block),
            (self.loops.queries, -(-self.new // self.q_block)),
        ):
            opened = cls.task(
                self._task("open"),
                kind="sync",
                takes=[Take(SUMS, freed_by=[Ref(self._task("finish"))])],
                writes=[BufferAccess(SUMS)],
                function=WithIndices(self.values.empty_sums),
            )
            if not program.is_resident(operation.q):
                self._load_queries()
            for source in self.sources:
                with cls.loop(self._loops(source).block, source.count):
                    self._blocks(source)
            stores = not program.is_resident(operation.out)
            rows = TensorAccess(operation.out.name, self._q_rows(self.out_dim))
            elements = self._q_sizes()[:, 0] * self.heads * self.out_dim
            takes = [Take(OUT, freed_by=[Ref(self._task("store"))])] if stores else []
            made: list[Access] = [BufferAccess(OUT) if stores else rows]
            function = normalise_and_keep_sums if operation.sums else normalise
            log = operation.log
            if log is not None:
                log_stored, log_rows = not program.is_resident(log), TensorAccess(log.name, self._q_rows(1))
                if log_stored:
                    pool = program.pool(LOGS, self.q_block * self.heads * SCORE_BYTES)
                    takes.append(Take(pool, freed_by=[Ref(self._task("store log"))]))
                made.append(BufferAccess(LOGS) if log_stored else log_rows)
                function = normalise_beside_sums
            finish = cls.task(
                self._task("finish"),
                unit="vpu",
                work=Vector(elements, elements * (SCORE_BYTES + bytes_of(1, operation.out.dtype))),
                after=[
                    opened,
                    *(Ref(self._task(f"values {source.label}"), outside="ignore") for source in self.sources),
                    *program.after_readers(operation.out),
                    *(program.after_readers(log) if log is not None else ()),
                ],
                takes=takes,
                reads=[BufferAccess(SUMS, opened.ref())],
                writes=made,
                function=function,
            )
            ends = [finish]
            if stores:
                ends = [self._store_out(finish, elements, rows)]
            if log is not None and log_stored:
                ends.append(self._store_log(finish, log, log_rows))
        cls.task(self._task("end"), after=[Ref(end.name) for end in ends], kind="sync")

    @contextmanager
    def _nest(self, *loops: tuple[str, int]) -> Iterator[None]:
        with ExitStack() as stack:
            for name, count in loops:
                stack.enter_context(self.cls.loop(name, count))
            yield

    def _store_out(self, finish: Task, elements: IntArray, rows: TensorAccess) -> Task:
        """Store what attention gives for a block of queries."""
        out = self.operation.out
        return self.cls.task(
            self._task("store"),
            unit="hbm",
            queue=STORE_QUEUE,
            work=Transfer(bytes_of_each(elements, out.dtype)),
            kind="hbm_store",
            moves=out.name,
            after=[finish, *self.program.after_readers(out)],
            reads=[BufferAccess(OUT, finish.ref())],
            writes=[rows],
            function=same,
        )

    def _store_log(self, finish: Task, log: ShardedTensor, rows: TensorAccess) -> Task:
        """Store the logarithms of a block's sums of weights."""
        return self.cls.task(
            self._task("store log"),
            unit="hbm",
            queue=STORE_QUEUE,
            work=Transfer(bytes_of_each(self._q_sizes()[:, 0] * self.heads, log.dtype)),
            kind="hbm_store",
            moves=log.name,
            after=[finish, *self.program.after_readers(log)],
            reads=[BufferAccess(LOGS, finish.ref())],
            writes=[rows],
            function=same,
        )

    def _load_queries(self) -> None:
        q = self.operation.q
        readers = [Ref(self._task(f"scores {source.label}"), outside="ignore") for source in self.sources]
        self.cls.task(
            self._task("load q"),
            unit="hbm",
            queue=LOAD_QUEUE,
            work=Transfer(bytes_of_each(self._q_sizes()[:, 0] * self.heads * self.k_dim, q.dtype)),
            kind="hbm_load",
            moves=q.name,
            after=self.program.after(q),
            takes=[Take(QUERIES, freed_by=readers)],
            reads=[TensorAccess(q.name, self._q_rows(self.k_dim))],
            writes=[BufferAccess(QUERIES)],
            function=same,
        )

    def _keys_or_values(self, source: Span, letter: str, readers: list[str]) -> tuple[list[Access], list[Reference]]:
        """How a block of keys ("k") or values is read, and what for: a load into a buffer, unless it is in VMEM."""
        tensor, pool = (source.k, KEYS) if letter == "k" else (source.v, VALUES)
        width = self.k_dim if letter == "k" else self.v_dim
        regions = self._kv_regions(source, tensor, width)
        accesses: list[Access] = [TensorAccess(tensor.name, region) for region in regions]
        if self.program.is_resident(tensor):
            return accesses, list(self.program.after(tensor))
        load = self.cls.task(
            self._task(f"load {letter} {source.label}"),
            unit="hbm",
            queue=LOAD_QUEUE,
            work=Transfer(bytes_of_each(source.sizes() * self.kv_block * width, tensor.dtype)),
            kind="hbm_load",
            moves=tensor.name,
            after=self.program.after(tensor),
            takes=[Take(pool, freed_by=[Ref(self._task(f"{reader} {source.label}")) for reader in readers])],
            reads=accesses,
            writes=[BufferAccess(pool)],
            function=_joined,
            when=source.guard(self._loops(source)),
        )
        return [BufferAccess(pool, load.ref())], [load]

    def _blocks(self, source: Span) -> None:
        operation, program, cls, label = self.operation, self.program, self.cls, source.label
        loops, dtype = self._loops(source), compute_dtype(operation.q.dtype, source.k.dtype)
        when = source.guard(loops)
        keys, k_wait = self._keys_or_values(source, "k", ["scores", "values"] if self.latent else ["scores"])
        values, v_wait = (keys, k_wait) if self.latent else self._keys_or_values(source, "v", ["values"])
        if program.is_resident(operation.q):
            queries: Access = TensorAccess(operation.q.name, self._q_rows(self.k_dim))
            q_wait: list[Reference] = list(program.after(operation.q))
        else:
            queries, q_wait = BufferAccess(QUERIES, Ref(self._task("load q"))), [Ref(self._task("load q"))]
        s, t = source.sizes(), self._q_sizes()
        scores = cls.task(
            self._task(f"scores {label}"),
            unit="mxu",
            queue=SCORES_QUEUE,
            work=Matmul(self.group * t, self.k_dim, s, dtype, batch=self.kv_block),
            after=[*q_wait, *k_wait],
            takes=[Take(SCORES, freed_by=[Ref(self._task(f"values {label}"))])],
            reads=[queries, *keys],
            writes=[BufferAccess(SCORES)],
            function=WithIndices(self.values.scores(source, loops)),
            when=when,
        )
        score_elements, kept = self.heads * t * s, t * self.heads * self.v_dim
        sums = BufferAccess(SUMS, Ref(self._task("open")), self.values.sums_region(loops))
        softmax = cls.task(
            self._task(f"softmax {label}"),
            unit="vpu",
            work=Vector(
                score_elements * SOFTMAX_OPERATIONS + kept * RESCALE_OPERATIONS,
                2 * SCORE_BYTES * (score_elements + kept),
            ),
            after=[scores, Ref(self._task("open")), *self._values_before(source)],
            reads=[BufferAccess(SCORES, scores.ref()), sums],
            writes=[BufferAccess(SCORES, scores.ref()), sums],
            function=online_softmax,
            when=when,
        )
        cls.task(
            self._task(f"values {label}"),
            unit="mxu",
            work=Matmul(self.group * t, s, self.v_dim, dtype, batch=self.kv_block),
            after=[softmax, *v_wait],
            reads=[BufferAccess(SCORES, scores.ref()), sums, *values],
            writes=[sums],
            function=self.values.add_values,
            when=when,
        )

    def _values_before(self, source: Span) -> list[Reference]:
        """The values of the block before, which the next softmax rescales."""
        before: list[Reference] = [
            Ref(self._task(f"values {source.label}"), at={self._loops(source).block: -1}, outside="ignore")
        ]
        number = self.sources.index(source)
        if number:
            earlier = self.sources[number - 1]
            loops = self._loops(earlier)
            before.append(
                Ref(self._task(f"values {earlier.label}"), at={loops.block: earlier.last(loops)}, outside="ignore")
            )
        return before


def _joined(*parts: Any) -> Any:
    """The rows of a block, which may come in two parts, without the leading dimensions of their array."""
    return np.concatenate([part.reshape(-1, part.shape[-1]) for part in parts])


def same(rows: Any) -> Any:
    """What a load or store does to values."""
    return rows


def bytes_of_each(elements: IntArray, dtype: str) -> IntArray:
    """Bytes of each number of elements."""
    return np.array([bytes_of(int(count), dtype) for count in elements.ravel()], dtype=np.int64).reshape(elements.shape)


def _within(most: int, size: int) -> int:
    """The largest power of two up to ``most``, or ``size`` itself if that is less; at least 1."""
    most = max(most, 1)
    return size if size <= most else 1 << (most.bit_length() - 1)
