"""What an AllToAll moves along one axis, and where it lies at either end.

An AllToAll over several axes goes along one after the other. Along one of them, a chip's blocks are numbered row-major:
those for each index along the axes before it, along it, and along the axes behind it. So what goes to one chip of the
axis, a *bundle*, is a piece of each of several blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from simcore.collectives.moving import Mover
from simcore.collectives.tensor import RingTensor
from simcore.collectives.ways import Index
from simcore.errors import GraphError
from simcore.graph import EntityClass, Ref
from simcore.graph.access import Access, RegionFunction
from simcore.graph.reference import Indices


def output_of(cls: EntityClass, tensor: RingTensor, out: str | RingTensor) -> RingTensor:
    """Where what arrives is put. Raise `GraphError` unless ``out`` is another tensor of the class."""
    target = out if isinstance(out, RingTensor) else replace(tensor, name=out)
    if target.name not in cls.tensors:
        raise GraphError(f"class {cls.name!r} has no tensor {target.name!r} for what arrives: declare it first")
    if target.name == tensor.name:
        raise GraphError(f"what arrives can't overwrite {target.name!r} while it is sent: give another tensor for it")
    if (target.lead, target.shard_bytes) != (tensor.lead, tensor.shard_bytes):
        raise GraphError(f"blocks of {target.name!r} must be as large as those of {tensor.name!r}")
    return target


@dataclass(frozen=True)
class Exchange:
    """Bundles from the array ``source`` to the array ``target`` along ``axis`` of ``n`` chips.

    ``before`` and ``behind`` are the products of the sizes of the collective's other axes; of each block, elements
    ``first`` to ``last`` are moved.
    """

    source: RingTensor
    target: RingTensor
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

    @property
    def tensor(self) -> RingTensor:
        """What is moved, as it lies at its source."""
        return self.source

    def places(
        self, array: RingTensor, bundle: Index, span: Index, on: Mapping[str, int] | None = None
    ) -> list[Access]:
        """Where the pieces of a bundle lie in either array: ``span`` gives their first and last elements."""

        def made(piece: int) -> RegionFunction:
            outer, inner = divmod(piece, self.behind)

            def region(i: Indices, c: Indices) -> tuple[slice, ...]:
                block = (outer * self.n + int(bundle(i, c))) * self.behind + inner
                return array.block(block, *span(i, c))

            return region

        return [array.access(made(piece), on) for piece in range(self.pieces)]

    def split(self, bundle: Any, width: int) -> list[Any]:
        """A bundle of pieces of ``width`` elements each as its pieces, and what comes behind it."""
        cuts = [bundle[..., piece * width : (piece + 1) * width] for piece in range(self.pieces)]
        return [*cuts, bundle[..., self.pieces * width :]]

    def keep_own(self, mover: Mover, name: str, after: Sequence[Ref]) -> list[Ref]:
        """The chip's own bundle, which stays: copied on the VPU, which the ideal model leaves out."""

        def own(array: RingTensor) -> list[Access]:
            return self.places(array, lambda i, c: c[self.axis], lambda i, c: (self.first, self.last))

        return mover.add(
            f"{name}.keep",
            elements=self.size * self.pieces,
            operands=1,
            after=after,
            reads=own(self.source),
            writes=own(self.target),
            function=lambda *pieces: pieces,
        ).refs()
