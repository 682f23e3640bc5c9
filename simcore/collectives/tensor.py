"""The arrays that collectives work on: shards of one size or of several, and where they lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from simcore.errors import GraphError
from simcore.graph.access import Region, RegionFunction, TensorAccess


@dataclass(frozen=True, slots=True)
class RingTensor:
    """The array that a collective works on: ``name`` on every chip, of n shards of ``shard_bytes`` each.

    The shards lie along its last dimension. ``element_bytes`` are those of one index of that dimension, along which
    shards are halved or cut into chunks; ``lead`` are the sizes of the dimensions before it. Where the array is
    declared in another shape, ``view`` is the one that is meant: shards along the first dimension of a matrix
    lie along the only one of its elements in a row. The blocks of an AllToAll may lie along a dimension of ``lead``
    instead, ``block_dimension``; ``lead`` then has the size of a block there. ``memory`` is where the
    array lies ("vmem" or "hbm"), and where what arrives to be added to it is kept: in HBM, each send also reads and
    each receive also writes HBM. ``shards`` are the shards' elements where they are not all the same, and
    ``shard_bytes`` is then the largest one's; `RingTensor.uneven` makes such an array.

    Raises `GraphError` if a shard is not a whole number of elements.
    """

    name: str
    shard_bytes: int
    element_bytes: int = 1
    lead: tuple[int, ...] = ()
    memory: str = "vmem"
    shards: tuple[int, ...] = ()
    view: tuple[int, ...] = ()
    block_dimension: int | None = None

    def __post_init__(self) -> None:
        if self.element_bytes < 1 or self.shard_bytes < 0:
            raise GraphError(
                f"tensor {self.name!r}: shards of {self.shard_bytes} bytes, elements of {self.element_bytes}; 0 or "
                "more bytes a shard and 1 or more an element are meant"
            )
        if self.shard_bytes % self.element_bytes:
            down = self.shard_elements * self.element_bytes
            raise GraphError(
                f"tensor {self.name!r}: a shard of {self.shard_bytes} bytes is no whole number of elements of "
                f"{self.element_bytes} bytes; {down} or {down + self.element_bytes} would be"
            )
        if self.memory not in ("vmem", "hbm"):
            raise GraphError(f"tensor {self.name!r}: memory {self.memory!r}; vmem or hbm is meant")
        if self.shards and (min(self.shards) < 0 or max(self.shards) != self.shard_elements):
            raise GraphError(
                f"tensor {self.name!r}: shards of {self.shards} elements with shard_bytes of {self.shard_elements} "
                "elements; shard_bytes is the largest shard's, and none is negative"
            )

    @classmethod
    def uneven(
        cls,
        name: str,
        shards: Sequence[int],
        element_bytes: int = 1,
        lead: tuple[int, ...] = (),
        memory: str = "vmem",
    ) -> RingTensor:
        """An array whose shard c has ``shards[c]`` elements."""
        return cls(name, max(shards, default=0) * element_bytes, element_bytes, lead, memory, tuple(shards))

    @property
    def shard_elements(self) -> int:
        """Elements of a shard; of the largest where they differ."""
        return self.shard_bytes // self.element_bytes

    def access(self, region: RegionFunction | None, on: Mapping[str, int] | None = None) -> TensorAccess:
        """A region of the array on this chip, or on the one ``on`` away."""
        return TensorAccess(self.name, region, on or {}, self.view)

    def block(self, number: int, first: int, last: int) -> Region:
        """Elements ``first`` to ``last`` of a block or shard, of shards all of one size."""
        outer = [slice(0, size) for size in self.lead]
        if self.block_dimension is not None:
            size = self.lead[self.block_dimension]
            outer[self.block_dimension] = slice(int(number) * size, (int(number) + 1) * size)
            return (*outer, slice(int(first), int(last)))
        base = int(number) * self.shard_elements
        return (*outer, slice(base + int(first), base + int(last)))

    def sizes(self, n: int) -> tuple[int, ...]:
        """Elements of each of ``n`` shards. Raises `GraphError` if the array was made with another number of them."""
        if not self.shards:
            return (self.shard_elements,) * n
        if len(self.shards) != n:
            raise GraphError(f"tensor {self.name!r} has {len(self.shards)} shards, the collective has {n} chips")
        return self.shards

    def require_even(self, what: str) -> None:
        """Raise `GraphError` if the shards differ in size, which ``what`` does not support."""
        if len(set(self.shards)) > 1:
            raise GraphError(
                f"tensor {self.name!r} has shards of different sizes, which only AllGather, ReduceScatter and "
                f"AllReduce along one axis take, not {what}: pad them to {self.shard_elements} elements"
            )


def even_split(elements: int, n: int) -> tuple[int, ...]:
    """The sizes of ``n`` shards of as equal a size as can be, the larger ones first.

    >>> even_split(5120, 3)
    (1707, 1707, 1706)
    """
    if n < 1:
        raise GraphError(f"{elements} elements over {n} chips; 1 or more chips are meant")
    return tuple(elements // n + (chip < elements % n) for chip in range(n))


def check_chunks(chunks: int) -> None:
    """Raise `GraphError` unless ``chunks`` is 1 or more."""
    if chunks < 1:
        raise GraphError(f"{chunks} chunks; a shard is sent in 1 or more")
