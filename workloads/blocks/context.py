"""Attention whose positions are dealt out over chips (context parallelism): chip c of n has the positions p mod n = c.

Of a prompt, queries stay and keys and values go round the ring, a chip attending to each chip's in turn while the next
come in; what the rounds give is put together by the logarithms of their sums of weights. As every chip has one position
in n, causal work is the same for all. Source: Liu et al. 2023 (ring attention), Brandon et al. 2023 (striped).

While decoding, each chip attends to its own part of the cache, and what they give is added up over the chips, weighted
by their shares of the sum of weights. Source: Dao et al. 2023 (flash-decoding), spread over chips.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from simcore.opgraph import ShardedTensor
from workloads.blocks.builder import Builder

MERGE_OPERATIONS = 6
"""Vector operations an element where two parts are put together: two weights, rescale, add (assumed)."""


def attend(
    b: Builder,
    q: ShardedTensor,
    k: ShardedTensor,
    v: ShardedTensor,
    *,
    scale: float,
    k_cache: ShardedTensor | None = None,
    v_cache: ShardedTensor | None = None,
    values: str = "",
    width: int,
) -> ShardedTensor:
    """What attention gives under the plan, [B, T, N, values]; ``width`` is that of a head's values."""
    step, name, axes = b.step, b.named("attention"), b.rules.placed.of("context")
    shared: dict[str, Any] = {"causal": step.causal, "scale": scale, "view": b.view, "kernel": step.kernel}
    caches: dict[str, Any] = {"k_cache": k_cache, "v_cache": v_cache, "cached": step.cached}
    if not axes and step.training:
        return b.g.attention(name, q, k, v, values=values, log=b.named("attention_log"), **caches, **shared)
    if not axes:
        return b.g.attention(name, q, k, v, values=values, **caches, **shared)
    out = f"N, {values or v.dim_names[-1]}"
    if step.new > 1:
        return _round(b, name, q, k, v, axes[0], out, width, shared)
    parts = b.g.attention(
        f"{name}_part", q, k, v, values=values, stripes=axes, sums=f"Hs, {_split('Cx', axes)}", **caches, **shared
    )
    logs = b.elementwise("attention_logs", [parts], _logs(width), 0, features="N, Cx")
    every = b.whole(logs, "Cx")
    weighted = b.elementwise(
        "attention", [parts, every], _weighted(width), MERGE_OPERATIONS, features=out, partial=axes
    )
    return b.laid_out(weighted, weighted.layout.with_partial(()))


def _split(dim: str, axes: tuple[str, ...]) -> str:
    return f"{dim}_{{{','.join(axes)}}}"


def _round(
    b: Builder, name: str, q: ShardedTensor, k: ShardedTensor, v: ShardedTensor, axis: str, out: str, width: int,
    shared: dict[str, Any],
) -> ShardedTensor:  # fmt: skip
    n = b.rules.placed.sizes[axis]
    merged: ShardedTensor | None = None
    for shift in range(n):
        part = b.g.attention(f"{name}_round{shift}", q, k, v, stripes=(axis,), shift=shift, sums="Hs", **shared)
        if shift < n - 1:
            same = k.name == v.name
            k = b.g.permute(k, axis)
            v = k if same else b.g.permute(v, axis)
        if merged is None:
            merged = part
        else:
            merged = b.elementwise(
                f"attention_merged{shift}", [merged, part], _merge(width), MERGE_OPERATIONS, into=merged
            )
    assert merged is not None
    return b.elementwise("attention", [merged], _values(width), 0, features=out)


def _heads(rows: Any, width: int) -> Any:
    return np.asarray(rows).reshape(len(rows), -1, width + 1)


def _values(width: int) -> Callable[[Any], Any]:
    return lambda rows: _heads(rows, width)[..., :-1].reshape(len(rows), -1)


def _logs(width: int) -> Callable[[Any], Any]:
    return lambda rows: _heads(rows, width)[..., -1]


def _merge(width: int) -> Callable[[Any, Any], Any]:
    """Two parts of one attention as one, each with its logarithm of the sum of weights."""

    def merge(left: Any, right: Any) -> Any:
        one, other = _heads(left, width), _heads(right, width)
        log = np.logaddexp(one[..., -1:], other[..., -1:])
        safe = np.where(np.isneginf(log), 0.0, log)
        values = sum(part[..., :-1] * np.exp(part[..., -1:] - safe) for part in (one, other))
        return np.concatenate([values, log], axis=-1).reshape(len(left), -1)

    return merge


def _weighted(width: int) -> Callable[[Any, Any], Any]:
    """A chip's values times its share of the sum of weights, of which ``every`` has the logarithms of all chips."""

    def weighted(rows: Any, every: Any) -> Any:
        own = _heads(rows, width)
        logs = np.asarray(every).reshape(*own.shape[:2], -1)
        total = np.logaddexp.reduce(logs, axis=-1)[..., None]
        return (own[..., :-1] * np.exp(own[..., -1:] - total)).reshape(len(rows), -1)

    return weighted
