"""AllToAll round a ring: in each step a chip sends on, as one message, what came in the step before except the bundle
that is its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from simcore.collectives.exchange import Exchange
from simcore.collectives.legs import Wires, links
from simcore.collectives.moving import Mover
from simcore.collectives.ways import Way
from simcore.graph import ALL, Ref, TensorAccess
from simcore.graph.access import Access, RegionFunction, WithIndices
from simcore.graph.reference import Indices


class _Messages:
    """What a ring's messages hold: of bundles with 1, 2, ... hops to go, the part of one chunk, one after another.

    Of an even ring that goes both ways, the bundle with the most hops has half of each piece.
    """

    def __init__(self, what: Exchange, way: Way, step: str, chunk: str, chunks: int) -> None:
        self.what, self.way, self.step, self.chunk = what, way, step, chunk
        first, last, size = what.first, what.last, what.size
        half = first - (-size // 2)  # rounded up
        furthest = ((first, half) if way.sign > 0 else (half, last)) if way.halved else (first, last)
        cuts = first + size * np.arange(chunks + 1, dtype=np.int64) // chunks
        self.edges = cuts[:-1], cuts[1:]
        self.furthest_edges = tuple(np.clip(edge, *furthest) for edge in self.edges)
        self.piece = cuts[1:] - cuts[:-1]
        self.furthest_piece = self.furthest_edges[1] - self.furthest_edges[0]
        blocks = way.steps - np.arange(way.steps, dtype=np.int64)[:, None]
        self.elements = what.pieces * (np.maximum(blocks - 1, 0) * self.piece + self.furthest_piece)
        self.width = what.pieces * max(way.steps - 1, 0)  # most pieces that go on together
        self.room = self.width * size

    def span(self, hops: int, i: Indices) -> tuple[int, int]:
        """The part of each piece with ``hops`` to go from its origin that a chunk carries."""
        first, last = self.furthest_edges if hops == self.way.steps else self.edges
        return int(first[i[self.chunk]]), int(last[i[self.chunk]])

    def from_source(self, hops: int) -> list[Access]:
        """In the first step: the bundle for the chip ``hops`` further."""
        return self.what.places(
            self.what.source,
            lambda i, c: self.way.beyond(c[self.way.axis], hops),
            lambda i, c: self.span(hops, i) if i[self.step] == 0 else (0, 0),
        )

    def in_transit(self, ahead: int) -> RegionFunction:
        """The message of the step ``ahead`` of the task's own where it waits; its two slots take turns."""

        def region(i: Indices, _: Indices) -> tuple[slice, ...]:
            step = int(i[self.step]) + ahead
            length = int(self.elements[step, i[self.chunk]]) if 0 < step < self.way.steps else 0
            base = step % 2 * self.room + int(self.edges[0][i[self.chunk]] - self.what.first) * self.width
            return (*(slice(0, size) for size in self.what.tensor.lead), slice(base, base + length))

        return region

    def delivered(self) -> list[Access]:
        """Where the receiver puts the bundle that has come to its end: its origin's place."""

        def origin(i: Indices, c: Indices) -> Any:
            return self.way.beyond(self.way.beyond(c[self.way.axis], 1), -int(i[self.step]) - 1)

        return self.what.places(self.what.target, origin, lambda i, c: self.span(int(i[self.step]) + 1, i), self.way.on)

    def split(self, i: Indices, _: Indices, *parts: Any) -> Any:
        """A message as the pieces of the bundle that has come to its end, and what goes on."""
        first, last = self.span(int(i[self.step]) + 1, i)
        return tuple(self.what.split(np.concatenate(parts, axis=-1), last - first))


def ring_messages(
    mover: Mover,
    name: str,
    ways: Sequence[Way],
    what: Exchange,
    chunks: int,
    begin: str,
    ready: str,
    wires: Wires = links,
) -> list[Ref]:
    """The exchange round a ring in the directions ``ways``; returns all that is sent and received.

    ``begin`` is this chip's task after which its bundles may be sent, ``ready`` the one after which a neighbour's
    arrays may be written.
    """
    cls, tensor = mover.cls, mover.tensor
    step, chunk = f"{name}.step", f"{name}.chunk"
    ends: list[Ref] = []
    with cls.loop(step, ways[0].steps), cls.loop(chunk, chunks):
        for way in ways:
            m = _Messages(what, way, step, chunk, chunks)
            transit = cls.tensor(
                f"{name}.transit{way.suffix}",
                memory=tensor.memory,
                bytes=2 * m.room * tensor.element_bytes,
                shape=(*tensor.lead, 2 * m.room),
            )
            send = f"{name}.send{way.suffix}"
            before = mover.sent(send, way.on)
            sources = [place for hops in range(1, way.steps + 1) for place in m.from_source(hops)]
            sent = mover.send(
                send,
                wires(way),
                way.on,
                bytes=m.elements * tensor.element_bytes,
                after=[
                    Ref(begin),
                    Ref(ready, on=way.on),
                    *before.arrived({step: -1}, "ignore"),
                    # The neighbour has sent on what lay in the slot that this message goes on from.
                    *before.left({step: -1}, "ignore", way.on),
                ],
                reads=[
                    *sources,
                    TensorAccess(transit, m.in_transit(0)),
                ],
                writes=[
                    *m.delivered(),
                    TensorAccess(transit, m.in_transit(1), on=way.on),
                ],
                function=WithIndices(m.split),
            )
            at = {step: ALL, chunk: ALL}
            outside = "error" if way.wraps else "ignore"
            ends += [*sent.arrived(at, outside), *sent.left(at, outside)]
    return ends
