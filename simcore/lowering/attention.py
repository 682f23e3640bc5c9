"""Lowering of attention by blocks, with an online softmax: scores live in VMEM for the length of a block.

For each request and block of queries, blocks of keys and values pass: scores on the matrix unit, softmax on the vector
unit (running maximum and sum, rescaling what was accumulated), weighted values on the matrix unit. Scores have a queue
of their own on the matrix unit, so that the next block's scores are computed while this one's softmax runs.

Source of the online softmax: Milakov and Gimelshein 2018; of the blocking: Dao et al. 2022 (FlashAttention).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from simcore.dtypes import bytes_of
from simcore.graph import BufferAccess, Matmul, Ref, Take, TensorAccess, Transfer, Vector, WithIndices
from simcore.graph.access import Access, Region
from simcore.graph.graph import Reference
from simcore.graph.reference import Indices
from simcore.graph.work import IntArray
from simcore.lowering.matmul import LOAD_QUEUE, STORE_QUEUE
from simcore.lowering.program import Program
from simcore.opgraph.operations import Attention
from simcore.opgraph.tensor import ShardedTensor

SOURCE_SHARE, SCORE_SHARE = 32, 16
"""A block of keys or of values, and one of scores: at most 1 / this of VMEM."""
LONGEST_NEW_BLOCK = 512
SOFTMAX_OPERATIONS = 6
"""Vector operations a score: scale, running maximum, subtract, exponential, sum, convert (assumed one each)."""
RESCALE_OPERATIONS = 2
"""Vector operations an accumulated value and block: rescale, and at the end divide."""
SCORE_BYTES = 4
SCORES_QUEUE = "mxu_scores"
KEYS, VALUES, SCORES, SUMS, QUERIES = "key blocks", "value blocks", "scores", "attention sums", "query blocks"


@dataclass(frozen=True, slots=True)
class _Sources:
    """A range of source positions that blocks go over: those in a cache, or the new ones."""

    label: str
    k: ShardedTensor
    v: ShardedTensor
    positions: int
    block: int
    cached: bool

    @property
    def count(self) -> int:
        return -(-self.positions // self.block)

    def sizes(self) -> IntArray:
        begins = np.arange(self.count, dtype=np.int64) * self.block
        return np.minimum(begins + self.block, self.positions) - begins


def lower_attention(program: Program, operation: Attention) -> None:
    """All heads of a chip together, one request and one block of queries at a time."""
    _Lowering(program, operation).emit()


class _Lowering:
    def __init__(self, program: Program, operation: Attention) -> None:
        self.program, self.operation, self.cls = program, operation, program.cls
        self.name = operation.name
        sizes, mesh = program.ops.sizes, program.ops.mesh
        self.requests, self.new, self.heads, self.head_dim = operation.q.layout.local_shape(sizes, mesh)
        self.kv_heads = operation.k.layout.local_shape(sizes, mesh)[2]
        self.group = self.heads // self.kv_heads
        self.columns, self.kv_columns = self.heads * self.head_dim, self.kv_heads * self.head_dim
        limit, source_limit = program.tile_share(SCORE_SHARE), program.tile_share(SOURCE_SHARE)
        kv_row = bytes_of(self.kv_columns, operation.k.dtype)
        new_block = _within(min(source_limit // kv_row, LONGEST_NEW_BLOCK), self.new)
        self.q_block = _within(limit // (self.heads * new_block * SCORE_BYTES), self.new)
        self.sources = []
        if operation.cached and operation.k_cache is not None and operation.v_cache is not None:
            block = min(source_limit // kv_row, limit // (self.heads * self.q_block * SCORE_BYTES))
            self.sources.append(
                _Sources(
                    "cached",
                    operation.k_cache,
                    operation.v_cache,
                    operation.cached,
                    _even(operation.cached, block),
                    True,
                )
            )
        self.sources.append(_Sources("new", operation.k, operation.v, self.new, new_block, False))
        for unit in ("hbm", "mxu", "vpu"):
            self.cls.unit(unit)
        widest = max(source.block for source in self.sources)
        self._pools(widest, kv_row)

    def _pools(self, widest: int, kv_row: int) -> None:
        program = self.program
        program.pool(KEYS, widest * kv_row)
        program.pool(VALUES, widest * kv_row)
        program.pool(SCORES, self.heads * self.q_block * widest * SCORE_BYTES)
        program.pool(SUMS, self.heads * self.q_block * (self.head_dim + 2) * SCORE_BYTES)
        if not program.is_resident(self.operation.q):
            program.pool(QUERIES, self.q_block * bytes_of(self.columns, self.operation.q.dtype))

    # -- loops and regions ------------------------------------------------------------------------------------

    def _task(self, what: str) -> str:
        return f"{self.name}.{what}"

    @property
    def _request(self) -> str:
        return f"{self.name}.request"

    @property
    def _queries(self) -> str:
        return f"{self.name}.queries"

    def _block(self, source: _Sources) -> str:
        return f"{self.name}.{source.label}"

    def _q_sizes(self) -> IntArray:
        """Queries of each block, to broadcast over the loops of queries and of source blocks."""
        begins = np.arange(-(-self.new // self.q_block), dtype=np.int64) * self.q_block
        return (np.minimum(begins + self.q_block, self.new) - begins)[:, None]

    def _q_rows(self, i: Indices, _: Indices) -> Region:
        begin = int(i[self._queries]) * self.q_block
        first = int(i[self._request]) * self.new
        return (slice(first + begin, first + min(begin + self.q_block, self.new)), slice(0, self.columns))

    def _source_region(self, source: _Sources, tensor: ShardedTensor) -> Callable[[Indices, Indices], Region]:
        loop, block, columns = self._block(source), source.block, self.kv_columns

        def region(i: Indices, _: Indices) -> Region:
            begin, request = int(i[loop]) * block, int(i[self._request])
            end = min(begin + block, source.positions)
            if source.cached:
                lead = self.program.lead(tensor, i)
                return (*lead, slice(request, request + 1), slice(begin, end), slice(0, columns))
            return (slice(request * self.new + begin, request * self.new + end), slice(0, columns))

        return region

    def _needed(self, source: _Sources) -> Callable[[Indices, Indices], Any] | None:
        """Blocks that some query of the block may see; None where all are computed."""
        if source.cached or self.operation.causal == "full":
            return None
        loop, queries, block, q_block = self._block(source), self._queries, source.block, self.q_block
        return lambda i, _: np.asarray(i[loop]) * block < (np.asarray(i[queries]) + 1) * q_block

    # -- tasks ------------------------------------------------------------------------------------------------

    def emit(self) -> None:
        operation, program, cls = self.operation, self.program, self.cls
        with cls.loop(self._request, self.requests), cls.loop(self._queries, -(-self.new // self.q_block)):
            opened = cls.task(
                self._task("open"),
                kind="sync",
                takes=[Take(SUMS, freed_by=[Ref(self._task("finish"))])],
                writes=[BufferAccess(SUMS)],
                function=WithIndices(self._empty_sums),
            )
            if not program.is_resident(operation.q):
                self._load_queries()
            for source in self.sources:
                with cls.loop(self._block(source), source.count):
                    self._blocks(source)
            last = self.sources[-1]
            finish_after: list[Reference] = [opened, *program.after_readers(operation.out)]
            finish_after.append(Ref(self._task(f"values {last.label}"), outside="ignore"))
            stores = not program.is_resident(operation.out)
            rows = TensorAccess(operation.out.name, self._q_rows)
            elements = self._q_sizes()[:, 0] * self.columns
            finish = cls.task(
                self._task("finish"),
                unit="vpu",
                work=Vector(elements, elements * (SCORE_BYTES + bytes_of(1, operation.out.dtype))),
                after=finish_after,
                takes=[Take(self._out_pool(), freed_by=[Ref(self._task("store"))])] if stores else [],
                reads=[BufferAccess(SUMS, opened.ref())],
                writes=[BufferAccess(self._out_pool()) if stores else rows],
                function=_normalise,
            )
            end = finish
            if stores:
                end = cls.task(
                    self._task("store"),
                    unit="hbm",
                    queue=STORE_QUEUE,
                    work=Transfer(self._q_sizes()[:, 0] * bytes_of(self.columns, operation.out.dtype)),
                    kind="hbm_store",
                    moves=operation.out.name,
                    after=[finish, *program.after_readers(operation.out)],
                    reads=[BufferAccess(self._out_pool(), finish.ref())],
                    writes=[rows],
                    function=_same,
                )
        cls.task(self._task("end"), after=[Ref(end.name)], kind="sync")

    def _out_pool(self) -> str:
        return self.program.pool("attention out", self.q_block * bytes_of(self.columns, self.operation.out.dtype))

    def _load_queries(self) -> None:
        q = self.operation.q
        readers = [Ref(self._task(f"scores {source.label}"), outside="ignore") for source in self.sources]
        self.cls.task(
            self._task("load q"),
            unit="hbm",
            queue=LOAD_QUEUE,
            work=Transfer(self._q_sizes()[:, 0] * bytes_of(self.columns, q.dtype)),
            kind="hbm_load",
            moves=q.name,
            after=self.program.after(q),
            takes=[Take(QUERIES, freed_by=readers)],
            reads=[TensorAccess(q.name, self._q_rows)],
            writes=[BufferAccess(QUERIES)],
            function=_same,
        )

    def _blocks(self, source: _Sources) -> None:
        operation, program, cls, label = self.operation, self.program, self.cls, source.label
        when = self._needed(source)
        accesses: dict[str, Access] = {}
        waits: dict[str, list[Reference]] = {}
        for letter, tensor, pool, reader in (("k", source.k, KEYS, "scores"), ("v", source.v, VALUES, "values")):
            region = self._source_region(source, tensor)
            if program.is_resident(tensor):
                accesses[letter] = TensorAccess(tensor.name, region)
                waits[letter] = program.after(tensor)
                continue
            load = cls.task(
                self._task(f"load {letter} {label}"),
                unit="hbm",
                queue=LOAD_QUEUE,
                work=Transfer(source.sizes() * bytes_of(self.kv_columns, tensor.dtype)),
                kind="hbm_load",
                moves=tensor.name,
                after=program.after(tensor),
                takes=[Take(pool, freed_by=[Ref(self._task(f"{reader} {label}"))])],
                reads=[TensorAccess(tensor.name, region)],
                writes=[BufferAccess(pool)],
                function=self._rows,
                when=when,
            )
            accesses[letter] = BufferAccess(pool, load.ref())
            waits[letter] = [load]
        if program.is_resident(operation.q):
            queries: Access = TensorAccess(operation.q.name, self._q_rows)
            q_wait: list[Reference] = list(program.after(operation.q))
        else:
            queries, q_wait = BufferAccess(QUERIES, Ref(self._task("load q"))), [Ref(self._task("load q"))]
        s, t = source.sizes(), self._q_sizes()
        scores = cls.task(
            self._task(f"scores {label}"),
            unit="mxu",
            queue=SCORES_QUEUE,
            work=Matmul(self.group * t, self.head_dim, s, operation.q.dtype, batch=self.kv_heads),
            after=[*q_wait, *waits["k"]],
            takes=[Take(SCORES, freed_by=[Ref(self._task(f"values {label}"))])],
            reads=[queries, accesses["k"]],
            writes=[BufferAccess(SCORES)],
            function=WithIndices(self._scores(source)),
            when=when,
        )
        score_elements, kept = self.heads * t * s, t * self.columns
        sums = BufferAccess(SUMS, Ref(self._task("open")), self._sums_region)
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
            function=_online_softmax,
            when=when,
        )
        cls.task(
            self._task(f"values {label}"),
            unit="mxu",
            work=Matmul(self.group * t, s, self.head_dim, operation.q.dtype, batch=self.kv_heads),
            after=[softmax, *waits["v"]],
            reads=[BufferAccess(SCORES, scores.ref()), accesses["v"], sums],
            writes=[sums],
            function=self._add_values,
            when=when,
        )

    def _values_before(self, source: _Sources) -> list[Reference]:
        """The values of the block before, which the next softmax rescales."""
        before: list[Reference] = [
            Ref(self._task(f"values {source.label}"), at={self._block(source): -1}, outside="ignore")
        ]
        number = self.sources.index(source)
        if number:
            earlier = self.sources[number - 1]
            before.append(Ref(self._task(f"values {earlier.label}"), at={self._block(earlier): -1}))
        return before

    # -- values -----------------------------------------------------------------------------------------------

    def _sums_region(self, i: Indices, _: Indices) -> Region:
        begin = int(i[self._queries]) * self.q_block
        rows = min(begin + self.q_block, self.new) - begin
        return (slice(0, self.heads), slice(0, rows), slice(0, self.head_dim + 2))

    def _empty_sums(self, i: Indices, c: Indices) -> Any:
        """[heads, queries, head_dim + 2]: weighted values, running maximum, running sum."""
        sums = np.zeros([part.stop for part in self._sums_region(i, c)])
        sums[..., -2] = -np.inf
        return sums

    def _rows(self, rows: Any) -> Any:
        return rows.reshape(-1, self.kv_columns)

    def _by_head(self, rows: Any) -> Any:
        """[positions, kv heads x head_dim] as [heads, positions, head_dim]."""
        split = rows.reshape(-1, self.kv_heads, self.head_dim).transpose(1, 0, 2)
        return np.repeat(split, self.group, axis=0)

    def _scores(self, source: _Sources) -> Callable[..., Any]:
        def scores(i: Indices, _: Indices, q: Any, k: Any) -> Any:
            queries = q.reshape(-1, self.heads, self.head_dim).transpose(1, 0, 2)
            product = queries @ self._by_head(k).transpose(0, 2, 1) * self.operation.scale
            if not source.cached:
                rows = int(i[self._queries]) * self.q_block + np.arange(product.shape[1])
                columns = int(i[self._block(source)]) * source.block + np.arange(product.shape[2])
                product = np.where(columns[None, None, :] <= rows[None, :, None], product, -np.inf)
            return product

        return scores

    def _add_values(self, weights: Any, v: Any, sums: Any) -> Any:
        added = sums.copy()
        added[..., : self.head_dim] += weights @ self._by_head(v)
        return added


def _online_softmax(scores: Any, sums: Any) -> tuple[Any, Any]:
    """Weights of this block at the new running maximum, and the sums rescaled to it."""
    old = sums[..., -2]
    highest = np.maximum(old, scores.max(axis=-1))
    # A row that has seen nothing yet (all masked) keeps its weight of nothing.
    safe = np.where(np.isneginf(highest), 0.0, highest)
    weights = np.exp(scores - safe[..., None])
    factor = np.exp(np.where(np.isneginf(old), -np.inf, old - safe))
    values = sums[..., :-2] * factor[..., None]
    total = sums[..., -1] * factor + weights.sum(axis=-1)
    return weights, np.concatenate([values, highest[..., None], total[..., None]], axis=-1)


def _normalise(sums: Any) -> Any:
    out = sums[..., :-2] / sums[..., -1:]
    heads, queries, head_dim = out.shape
    return out.transpose(1, 0, 2).reshape(queries, heads * head_dim)


def _same(rows: Any) -> Any:
    return rows


def _within(most: int, size: int) -> int:
    """The largest power of two up to ``most``, or ``size`` itself if that is less; at least 1."""
    most = max(most, 1)
    return size if size <= most else 1 << (most.bit_length() - 1)


def _even(size: int, most: int) -> int:
    """Equal blocks of at most ``most``."""
    count = -(-size // max(most, 1))
    return -(-size // count)
