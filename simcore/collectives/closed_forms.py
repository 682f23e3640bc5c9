"""Closed forms of pipelines and ring collectives in integer picoseconds.

Each is evaluated with the durations of its tasks rounded to picoseconds, as the simulation rounds them: in the ideal
model the simulated makespan equals it exactly. n devices, V bytes of the full array, one-way link bandwidth b, hop
latency l. Source: How To Scale Your Model, "Sharded Matrices and How to Multiply Them"; the finite-n forms are derived
from the schedules.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

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


def line_ps(n: int, shard_bytes: int, bandwidth_bytes_per_s: float, latency_ps: int, chunks: int = 1) -> int:
    """AllGather or ReduceScatter on a line of n: (n - 1)(V/(n b) + l), as on a one-way ring.

    The last link carries the n - 1 shards of the others to its end; the first chip's shard comes there over n - 1 hops,
    behind the others, each of which is one hop ahead of the next. A ReduceScatter is the same backwards. With k chunks
    a shard, as `ring_chunked_one_way_ps`.
    """
    return ring_chunked_one_way_ps(n, shard_bytes, chunks, bandwidth_bytes_per_s, latency_ps)


def torus_ps(
    n: int,
    axes: int,
    shard_bytes: int,
    bandwidth_bytes_per_s: float,
    latency_ps: int,
    *,
    both: bool = False,
    element_bytes: int = 1,
) -> int:
    """AllGather or ReduceScatter over D equal axes of n that wrap around, the shards n^D of V/n^D bytes each.

    Part d of D is gathered along one axis after the other, in phase p in steps of n^p V/(n^D D) bytes, while the other
    parts use the other axes. One way (n - 1) steps a phase, summed over p = 0 .. D - 1:
    (1 - n^-D) V/(D b) + D (n - 1) l. Both ways each phase is a ring that goes both ways:
    (1 - n^-D) V/(2 D b) + D floor(n/2) l, an even ring's antipodal block being halved, shard by shard.

    Exact where D divides the shard's elements; of uneven parts the first is the smallest and the times differ.
    """
    part, time = shard_bytes // axes, 0
    for phase in range(axes):
        shards = n**phase
        if both:
            whole, hops = (n - 1) // 2, n // 2
            time += whole * duration_ps(shards * part, bandwidth_bytes_per_s) + hops * latency_ps
            if n % 2 == 0:
                half = -(-(part // element_bytes) // 2) * element_bytes
                time += duration_ps(shards * half, bandwidth_bytes_per_s)
        else:
            time += (n - 1) * (duration_ps(shards * part, bandwidth_bytes_per_s) + latency_ps)
    return time


def torus_bound_ps(
    sizes: Sequence[int],
    wraps: Sequence[bool],
    array_bytes: int,
    bandwidth_bytes_per_s: float,
    *,
    both: bool = False,
) -> int:
    """What an AllGather or ReduceScatter over axes of any sizes can't be faster than.

    A chip takes in (or gives away) all but its own shard over all its links: (1 - 1/N) V over as many as the chip with
    the fewest has: one an axis, or both ways two where it wraps around. A line's end has one.
    """
    devices = math.prod(sizes)
    links = sum((2 if both and wrap else 1) for size, wrap in zip(sizes, wraps, strict=True) if size > 1)
    moved = array_bytes - array_bytes // devices
    return duration_ps(moved, links * bandwidth_bytes_per_s) if links else 0


def all_to_all_one_way_ps(n: int, block_bytes: int, bandwidth_bytes_per_s: float, latency_ps: int) -> int:
    """AllToAll on a one-way ring, blocks of V/n^2 bytes: (n - 1) V/(2 n b) + (n - 1) l.

    In step i each chip sends on the n - 1 - i blocks that have not come to their end: sum over m = 1 .. n - 1 of
    m V/(n^2 b) + l. Half of an AllGather's bytes, exactly.
    """
    return _messages_ps(n - 1, block_bytes, 0, bandwidth_bytes_per_s, latency_ps)


def all_to_all_both_ways_ps(
    n: int, block_bytes: int, bandwidth_bytes_per_s: float, latency_ps: int, element_bytes: int = 1
) -> int:
    """AllToAll on a ring that goes both ways, blocks of V/n^2 bytes.

    Odd n, h = (n - 1)/2: messages of h, h - 1, .. 1 blocks, (1 - 1/n^2) V/(8 b) + h l. Even n, h = n/2: the block for
    the antipode is halved between the directions, messages of h - 1/2, .. 1/2 blocks, V/(8 b) + h l.
    Over an AllGather both ways, without latency: n/(4 (n - 1)) for even n, (n + 1)/(4 n) for odd; a quarter for large
    n.
    """
    if n % 2:
        return _messages_ps(n // 2, block_bytes, 0, bandwidth_bytes_per_s, latency_ps)
    less = block_bytes // element_bytes // 2 * element_bytes
    return _messages_ps(n // 2, block_bytes, less, bandwidth_bytes_per_s, latency_ps)


def _messages_ps(steps: int, block_bytes: int, less: int, bandwidth_bytes_per_s: float, latency_ps: int) -> int:
    """Messages of ``steps`` blocks, one block less each, every one of them ``less`` bytes short."""
    return sum(duration_ps(m * block_bytes - less, bandwidth_bytes_per_s) + latency_ps for m in range(1, steps + 1))


def all_to_all_line_ps(n: int, block_bytes: int, bandwidth_bytes_per_s: float, latency_ps: int) -> int:
    """AllToAll on a line, blocks of V/n^2 bytes: the slowest link's.

    The link behind which there are k chips carries k (n - k) blocks in either direction, without a pause once the
    first of the furthest chip's could have come k - 1 hops: max over k of k (n - k) V/(n^2 b) + k l. The middle's is
    V/(4 b) + n/2 l for even n, twice a ring's.
    """
    block = duration_ps(block_bytes, bandwidth_bytes_per_s)
    return max((k * (n - k) * block + k * latency_ps for k in range(1, n)), default=0)


def all_to_all_torus_ps(
    n: int,
    axes: int,
    block_bytes: int,
    bandwidth_bytes_per_s: float,
    latency_ps: int,
    *,
    both: bool = False,
    element_bytes: int = 1,
) -> int:
    """AllToAll over D equal axes of n that wrap around, blocks of V/n^2D bytes:
    both ways, even n, V/(8 n^(D-1) b) + D n/2 l.

    In each of D phases a chip's bundle for another on an axis has 1/D of n^(D-1) blocks. This is as fast as the links
    across the middle allow: a quarter of V goes over 2 n^(D-1) of them in each direction. Exact where D divides the
    block's elements.
    """
    blocks = n ** (axes - 1)
    bundle = blocks * (block_bytes // axes)
    if both:
        unit = blocks * element_bytes  # a bundle is halved block by block
        return axes * all_to_all_both_ways_ps(n, bundle, bandwidth_bytes_per_s, latency_ps, unit)
    return axes * all_to_all_one_way_ps(n, bundle, bandwidth_bytes_per_s, latency_ps)


def permute_ps(hops: int, array_bytes: int, bandwidth_bytes_per_s: float, latency_ps: int, chunks: int = 1) -> int:
    """CollectivePermute over ``hops`` hops one way, k equal chunks: (hops - 1) max(t, t/k + l) + t + l, t = V/b.

    Every link carries the arrays of as many chips as there are hops; V is what one chip sends.
    """
    return ring_chunked_one_way_ps(hops + 1, array_bytes, chunks, bandwidth_bytes_per_s, latency_ps)


def permute_both_ways_ps(
    n: int, shift: int, array_bytes: int, bandwidth_bytes_per_s: float, latency_ps: int, element_bytes: int = 1
) -> int:
    """CollectivePermute by ``shift`` round a ring both ways at once: k (n - k)/n V/b + max(k, n - k) l.

    Of each array (n - k)/n goes the k hops forwards and k/n the n - k hops backwards, so that all links carry as much;
    to whole elements, of which the forward share is rounded down.
    """
    forward = shift % n
    if forward == 0:
        return 0
    elements = array_bytes // element_bytes
    first = elements * (n - forward) // n * element_bytes
    return max(
        permute_ps(forward, first, bandwidth_bytes_per_s, latency_ps) if first else 0,
        permute_ps(n - forward, array_bytes - first, bandwidth_bytes_per_s, latency_ps),
    )


def broadcast_ps(hops: int, array_bytes: int, bandwidth_bytes_per_s: float, latency_ps: int, chunks: int = 1) -> int:
    """Broadcast or Reduce along a chain of ``hops`` hops in k equal chunks: (k - 1) V/(k b) + hops (V/(k b) + l).

    Each chunk is sent on while the next comes in. On a ring of n: one way V and n - 1 hops; both ways in halves, V/2
    and n - 1 hops; both ways in arms, V and floor(n/2) hops. On a line, V and the longer of the root's two arms.
    """
    if hops == 0:
        return 0
    piece = duration_ps(array_bytes // chunks, bandwidth_bytes_per_s)
    return (chunks - 1) * piece + hops * (piece + latency_ps)


def host_ps(
    chips_per_link: int, shard_bytes: int, bandwidth_bytes_per_s: float, latency_ps: int, chunks: int = 1
) -> int:
    """Scatter from or Gather to a host over PCIe links of L chips each, in k equal chunks: L shard/b + l."""
    if shard_bytes == 0:
        return 0
    return chips_per_link * chunks * duration_ps(shard_bytes // chunks, bandwidth_bytes_per_s) + latency_ps


def across_ps(
    slices: int,
    shard_bytes: int,
    bandwidth_bytes_per_s: float,
    latency_ps: int,
    *,
    steps: int | None = None,
    chips_per_host: int = 1,
) -> int:
    """AllReduce of each chip's shard among M slices through network cards of m chips each, p = shard/(M b):
    (2 (M - 1) - 1) max(m p, p + l) + m p + l.

    A one-way ring of 2 (M - 1) steps (``steps``; M - 1 for a ReduceScatter or an AllGather alone). The m chips of a
    host take turns at its card, so that one chip's piece is in flight while the others' are sent.
    """
    steps = 2 * (slices - 1) if steps is None else steps
    if steps == 0:
        return 0
    piece = duration_ps(shard_bytes // slices, bandwidth_bytes_per_s)
    together = chips_per_host * piece
    return (steps - 1) * max(together, piece + latency_ps) + together + latency_ps


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
