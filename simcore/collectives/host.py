"""Scatter from hosts to their chips and Gather back, over PCIe.

Each host has its own array, a block for each of its chips in their order. A PCIe link (or root) serves
``chips_per_link`` chips one after the other, chunk by chunk in turn; it has the chip's ``pcie_bandwidth_bytes_per_s``
either way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from simcore.collectives.hosts import Hosts
from simcore.collectives.moving import Mover
from simcore.collectives.tensor import RingTensor, check_chunks
from simcore.errors import GraphError
from simcore.graph import ALL, Ref, Task, TensorAccess, Transfer
from simcore.graph.graph import Reference
from simcore.graph.reference import Indices


def scatter(
    hosts: Hosts,
    name: str,
    tensor: RingTensor,
    host_array: str,
    *,
    chips_per_link: int = 1,
    chunks: int = 1,
    after: Sequence[Reference] = (),
    host_after: Sequence[Reference] = (),
) -> Task:
    """Copy block j of each host's ``host_array`` to ``tensor``, of ``shard_bytes``, on the host's chip j.

    ``after`` are tasks of a chip, ``host_after`` of a host, that come first. Time over links of L chips:
    L shard/b + l, see `closed_forms.host_ps`. Returns the chip's task that completes when it has its block.
    """
    return _over_pcie(hosts, name, tensor, host_array, "out", chips_per_link, chunks, after, host_after)


def gather(
    hosts: Hosts,
    name: str,
    tensor: RingTensor,
    host_array: str,
    *,
    chips_per_link: int = 1,
    chunks: int = 1,
    after: Sequence[Reference] = (),
    host_after: Sequence[Reference] = (),
) -> Task:
    """Copy ``tensor``, of ``shard_bytes``, on the host's chip j to block j of the host's ``host_array``.

    Returns the host's task that completes when it has all blocks; the time is that of `scatter`.
    """
    return _over_pcie(hosts, name, tensor, host_array, "in", chips_per_link, chunks, after, host_after)


def _over_pcie(
    hosts: Hosts,
    name: str,
    tensor: RingTensor,
    host_array: str,
    direction: str,
    chips_per_link: int,
    chunks: int,
    after: Sequence[Reference],
    host_after: Sequence[Reference],
) -> Task:
    """``direction`` is "out" of the host or "in"."""
    tensor.require_even("a host's Gather or Scatter")
    check_chunks(chunks)
    if chips_per_link < 1 or hosts.chips_per_host % chips_per_link:
        raise GraphError(f"{chips_per_link} chips a PCIe link do not fill a host of {hosts.chips_per_host} chips")
    if host_array not in hosts.cls.tensors:
        raise GraphError(f"class {hosts.cls.name!r} has no tensor {host_array!r}: declare the hosts' array first")
    begin = hosts.chips.task(f"{name}.begin", after=after, kind="sync")
    host_begin = hosts.cls.task(f"{name}.begin", after=host_after, kind="sync")
    cuts = tensor.shard_elements * np.arange(chunks + 1, dtype=np.int64) // chunks
    chunk, out = f"{name}.chunk", direction == "out"

    def block(number: int) -> Any:
        def region(i: Indices, _: Indices) -> tuple[slice, ...]:
            return tensor.block(number, int(cuts[i[chunk]]), int(cuts[i[chunk] + 1]))

        return region

    names = [f"{name}.copy{j}" for j in range(hosts.chips_per_host)]
    amounts = (cuts[1:] - cuts[:-1]) * tensor.element_bytes
    with hosts.cls.loop(chunk, chunks):
        for j, offset in enumerate(hosts.offsets):
            here, there = TensorAccess(host_array, block(j)), tensor.access(block(0), on=offset)
            hosts.cls.task(
                names[j],
                unit=hosts.cls.unit(f"pcie_{j // chips_per_link}_{direction}", kind="pcie"),
                work=Transfer(amounts),
                moves=tensor.name,
                after=[host_begin, Ref(begin.name, on=offset)],
                reads=[here if out else there],
                writes=[there if out else here],
                function=lambda array: array,
            )

    def from_chip(**which: Any) -> list[Ref]:
        """A chip's references to its own copy: of the host's copies the one that there is."""
        return [
            Ref(copy, on=hosts.of_chip(j), outside="ignore", **which)  # the host is found by one offset only
            for j, copy in enumerate(names)
        ]

    mover = Mover(hosts.chips, tensor)
    at_hbm: list[str] = []
    if mover.in_hbm:
        with hosts.chips.loop(chunk, chunks):
            mover.hbm(f"{name}.hbm", amounts, "hbm_store" if out else "hbm_load", from_chip(event="start"))
        at_hbm.append(f"{name}.hbm")
    end = hosts.chips.task(
        f"{name}.end",
        after=[begin, *from_chip(at={chunk: ALL}), *(Ref(hbm, at={chunk: ALL}) for hbm in at_hbm)],
        kind="sync",
    )
    host_end = hosts.cls.task(
        f"{name}.end",
        after=[host_begin, *names, *(Ref(hbm, on=offset) for hbm in at_hbm for offset in hosts.offsets)],
        kind="sync",
    )
    return end if out else host_end
