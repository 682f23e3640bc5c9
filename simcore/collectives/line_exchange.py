"""AllToAll along a line, bundle by bundle.

Those for the furthest chip go first, of these the chip's own first and then those from further and further back, in the
order in which they come in. So they queue in order wherever they wait.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from simcore.collectives.exchange import Exchange
from simcore.collectives.legs import Wires, links
from simcore.collectives.moving import Mover
from simcore.collectives.ways import Way
from simcore.graph import ALL, Ref, TensorAccess
from simcore.graph.access import WithIndices
from simcore.graph.reference import Indices


def line_bundles(
    mover: Mover, name: str, way: Way, what: Exchange, begin: str, ready: str, wires: Wires = links
) -> list[Ref]:
    """The exchange in one direction along a line; returns all that is sent and received.

    ``begin`` and ``ready`` as in `simcore.collectives.ring_exchange.ring_messages`.
    """
    cls, tensor, n, axis = mover.cls, mover.tensor, way.n, way.axis
    group, hop = f"{name}.group{way.suffix}", f"{name}.hop{way.suffix}"
    # What comes in waits while this chip's own bundles go: with room for two local arrays no sender ever waits.
    slots = 2 * n if n > 2 else 0
    bundle = what.pieces * what.size
    lead = tuple(slice(0, size) for size in tensor.lead)
    transit = cls.tensor(
        f"{name}.transit{way.suffix}",
        memory=tensor.memory,
        bytes=slots * bundle * tensor.element_bytes,
        shape=(*tensor.lead, slots * bundle),
    )

    def behind(c: Indices) -> Any:
        """Chips that are behind this one in the direction."""
        return np.asarray(c[axis]) if way.sign > 0 else n - 1 - np.asarray(c[axis])

    def last_group(c: Indices) -> Any:
        """Groups that go beyond this chip."""
        return n - 1 - behind(c)

    def exists(i: Indices, c: Indices) -> Any:
        here = behind(c)
        return (here >= 0) & (here < n) & (i[hop] <= here) & (i[group] < last_group(c))

    def arrival(i: Indices, c: Indices) -> Any:
        """Number of this bundle among all that the next chip gets, in their order."""
        return i[group] * (behind(c) + 1) + i[hop]

    def waited_for(what: int) -> Callable[[Indices, Indices], Any]:
        """Group (0) or hop (1) of the next chip's task that sends on what lay in the slot that this bundle needs."""

        def at(i: Indices, c: Indices) -> Any:
            earlier = arrival(i, c) - slots
            chips = behind(c) + 1
            found = earlier // chips if what == 0 else earlier % chips + 1
            return np.where((earlier >= 0) & (slots > 0), found, -1)

        return at

    def waits_in(slot: int, there: bool) -> tuple[slice, ...]:
        base = slot % max(slots, 1) * bundle
        return (*lead, slice(base, base + (bundle if there else 0)))

    def waiting(i: Indices, c: Indices) -> tuple[slice, ...]:
        return waits_in(int(i[group] * behind(c) + i[hop] - 1), i[hop] > 0)

    def ends_next(i: Indices, c: Indices) -> bool:
        return bool(i[group] == last_group(c) - 1)

    def goes_on(i: Indices, c: Indices) -> tuple[slice, ...]:
        return waits_in(int(arrival(i, c)), not ends_next(i, c))

    sources = what.places(
        what.source,
        lambda i, c: n - 1 - i[group] if way.sign > 0 else i[group],
        lambda i, c: (what.first, what.last if i[hop] == 0 else what.first),
    )
    delivered = what.places(
        what.target,
        lambda i, c: way.beyond(c[axis], -i[hop]),
        lambda i, c: (what.first, what.last if ends_next(i, c) else what.first),
        way.on,
    )

    def split(i: Indices, c: Indices, *parts: Any) -> Any:
        return tuple(what.split(np.concatenate(parts, axis=-1), what.size if ends_next(i, c) else 0))

    send = f"{name}.send{way.suffix}"
    before = mover.sent(send, way.on)
    with cls.loop(group, n - 1), cls.loop(hop, n - 1):
        sent = mover.send(
            send,
            wires(way),
            way.on,
            bytes=bundle * tensor.element_bytes,
            after=[
                Ref(begin),
                Ref(ready, on=way.on),
                *before.arrived({hop: -1}, "ignore"),
                *before.left({group: waited_for(0), hop: waited_for(1)}, "ignore", way.on),
            ],
            reads=[*sources, TensorAccess(transit, waiting)],
            writes=[
                *delivered,
                TensorAccess(transit, goes_on, on=way.on),
            ],
            function=WithIndices(split),
            when=exists,
        )
    at = {group: ALL, hop: ALL}
    return [*sent.arrived(at, "ignore"), *sent.left(at, "ignore")]
