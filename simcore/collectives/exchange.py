"""What an AllToAll moves along one axis, and where it lies at either end.

An AllToAll over several axes goes along one after the other. Along one of them, a chip's blocks are numbered row-major:
those for each index along the axes before it, along it, and along the axes behind it. So what goes to one chip of the
axis, a *bundle*, is a piece of each of several blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from simcore.collectives.moving import Mover
from simcore.collectives.tensor import RingTensor
from simcore.collectives.ways import Index
from simcore.errors import GraphError
from simcore.graph import EntityClass, Ref, TensorAccess
from simcore.graph.access import RegionFunction
from simcore.graph.reference import Indices


def check_out(cls: EntityClass, tensor: RingTensor, out: str) -> None:
    """Raise `GraphError` unless ``out`` is another tensor of the class."""
    if out not in cls.tensors:
        raise GraphError(f"class {cls.name!r} has no tensor {out!r} for what arrives: declare it first")
    if out == tensor.name:
        raise GraphError(f"what arrives can't overwrite {out!r} while it is sent: give another tensor for it")


def block_region(tensor: RingTensor, block: int, first: int, last: int) -> tuple[slice, ...]:
    """Elements ``first`` to ``last`` of a block."""
    base = int(block) * tensor.shard_elements
    return (*(slice(0, size) for size in tensor.lead), slice(base + int(first), base + int(last)))


@dataclass(frozen=True)
class Exchange:
    """Bundles from the tensor ``source`` to the tensor ``target`` along ``axis`` of ``n`` chips.

    ``before`` and ``behind`` are the products of the sizes of the collective's other axes; of each block, elements
    ``first`` to ``last`` are moved.
    """

    tensor: RingTensor
    source: str
    target: str
    axis: str
    n: int
    before: int = 1
    behind: int = 1
    first: int = 0
    last: int = 0

    @property
    def pieces(self) -> int:
        """Blocks that a bundle has a piece of."""
        return self.before * self.behind

    @property
    def size(self) -> int:
        """Elements of a piece."""
        return self.last - self.first

    def places(self, bundle: Index, span: Index) -> list[RegionFunction]:
        """Where the pieces of a bundle lie in either array: ``span`` gives their first and last elements."""

        def made(piece: int) -> RegionFunction:
            outer, inner = divmod(piece, self.behind)

            def region(i: Indices, c: Indices) -> tuple[slice, ...]:
                block = (outer * self.n + int(bundle(i, c))) * self.behind + inner
                return block_region(self.tensor, block, *span(i, c))

            return region

        return [made(piece) for piece in range(self.pieces)]

    def split(self, bundle: Any, width: int) -> list[Any]:
        """A bundle of pieces of ``width`` elements each as its pieces, and what comes behind it."""
        cuts = [bundle[..., piece * width : (piece + 1) * width] for piece in range(self.pieces)]
        return [*cuts, bundle[..., self.pieces * width :]]

    def keep_own(self, mover: Mover, name: str, after: Sequence[Ref]) -> list[Ref]:
        """The chip's own bundle, which stays: copied on the VPU, which the ideal model leaves out."""
        places = self.places(lambda i, c: c[self.axis], lambda i, c: (self.first, self.last))
        return mover.add(
            f"{name}.keep",
            elements=self.size * self.pieces,
            operands=1,
            after=after,
            reads=[TensorAccess(self.source, place) for place in places],
            writes=[TensorAccess(self.target, place) for place in places],
            function=lambda *pieces: pieces,
        ).refs()
