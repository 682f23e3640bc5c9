"""Closed forms of collectives on a full-bandwidth switch, in integer picoseconds.

b is the one-way bandwidth of a chip's port, l the latency through the switch, V the full array, n the chips; each form
is evaluated with the durations of its tasks rounded to picoseconds. The ring's is `closed_forms.ring_one_way_ps`.
Source: How To Scale Your Model, "How to Think About GPUs"; the finite-n forms are derived from the schedules.
"""

from __future__ import annotations

from simcore.quantities import duration_ps


def direct_ps(n: int, block_bytes: int, bandwidth_bytes_per_s: float, latency_ps: int) -> int:
    """One shot: n - 1 blocks through the port one after the other, each in flight while the next is sent:
    (n - 1) block/b + l.

    AllGather and ReduceScatter send shards of V/n, an AllToAll blocks of V/n^2, an AllReduce whole arrays of V.
    """
    return (n - 1) * duration_ps(block_bytes, bandwidth_bytes_per_s) + latency_ps if n > 1 else 0


def halving_doubling_ps(n: int, shard_bytes: int, bandwidth_bytes_per_s: float, latency_ps: int) -> int:
    """AllGather or ReduceScatter, n a power of two: stages of 1, 2, .. n/2 shards, (n - 1) V/(n b) + log2 n l."""
    stages = n.bit_length() - 1
    return sum(duration_ps(shard_bytes << stage, bandwidth_bytes_per_s) + latency_ps for stage in range(stages))


def tree_broadcast_ps(n: int, array_bytes: int, bandwidth_bytes_per_s: float, latency_ps: int) -> int:
    """Binomial tree: log2 n (V/b + l) for n a power of two.

    Chip c gets the array in the round of its highest bit, from the chip without it, which sends one array a round from
    the round after it got its own: it has waited highest bit + 1 transfers and as many flights as c has bits set. The
    last chip of n decides.
    """
    whole = duration_ps(array_bytes, bandwidth_bytes_per_s)
    return max((c.bit_length() * whole + c.bit_count() * latency_ps for c in range(n)), default=0)


def tree_reduce_ps(n: int, array_bytes: int, bandwidth_bytes_per_s: float, latency_ps: int) -> int:
    """Binomial tree backwards, one array at a time: the root takes in ceil(log2 n) of them, each (V/b + l)."""
    return (n - 1).bit_length() * (duration_ps(array_bytes, bandwidth_bytes_per_s) + latency_ps) if n > 1 else 0


def in_network_ps(n: int, array_bytes: int, bandwidth_bytes_per_s: float, latency_ps: int) -> int:
    """AllReduce in the switch: up and down at the same time, V/b + l."""
    return duration_ps(array_bytes, bandwidth_bytes_per_s) + latency_ps if n > 1 else 0
