"""Closed forms of pipelines and ring collectives in integer picoseconds.

Each is evaluated with the durations of its tasks rounded to picoseconds, as the simulation rounds them: in the ideal
model the simulated makespan equals it exactly. n devices, V bytes of the full array, one-way link bandwidth b, hop
latency l. Source: How To Scale Your Model, "Sharded Matrices and How to Multiply Them"; the finite-n forms are derived
from the schedules.
"""

from __future__ import annotations

from simcore.quantities import duration_ps


def ring_one_way_ps(n: int, shard_bytes: int, bandwidth_bytes_per_s: float, latency_ps: int) -> int:
    """AllGather or ReduceScatter on a one-way ring: (n - 1)(V/(n b) + l)."""
    return (n - 1) * (duration_ps(shard_bytes, bandwidth_bytes_per_s) + latency_ps)


def ring_both_ways_ps(
    n: int, shard_bytes: int, bandwidth_bytes_per_s: float, latency_ps: int, element_bytes: int = 1
) -> int:
    """AllGather or ReduceScatter both ways: (n - 1)/2 V/(n b) + ceil((n - 1)/2) l.

    An even ring's antipodal shard is halved, the larger half being ceil(elements / 2).
    """
    whole, latencies = (n - 1) // 2, n // 2
    time = whole * duration_ps(shard_bytes, bandwidth_bytes_per_s) + latencies * latency_ps
    if n % 2 == 0:
        half = -(-(shard_bytes // element_bytes) // 2) * element_bytes
        time += duration_ps(half, bandwidth_bytes_per_s)
    return time


def ring_chunked_one_way_ps(
    n: int, shard_bytes: int, chunks: int, bandwidth_bytes_per_s: float, latency_ps: int
) -> int:
    """AllGather on a one-way ring of n >= 2, k equal chunks a shard, t = V/(n b): (n-2) max(t, t/k + l) + t + l.

    With more than one chunk the next hop's first chunk starts while this hop's later ones are sent.
    """
    if n < 2:
        return 0
    piece = duration_ps(shard_bytes // chunks, bandwidth_bytes_per_s)
    whole = chunks * piece
    return (n - 2) * max(whole, piece + latency_ps) + whole + latency_ps


def pipeline_ps(tiles: int, load_ps: int, compute_ps: int, buffers: int = 2, issue_ps: int = 0) -> int:
    """Load and compute of ``tiles`` equal tiles: q max(a, c) + min(a, c), or q (a + c) with one buffer.

    ``issue_ps`` is part of each load. For a >= c and totals A, C it reads A + C/q + q o.
    """
    load_ps += issue_ps
    if tiles == 0:
        return 0
    if buffers == 1:
        return tiles * (load_ps + compute_ps)
    return tiles * max(load_ps, compute_ps) + min(load_ps, compute_ps)
