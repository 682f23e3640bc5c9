"""The feed-forward block: plain, f(x W_up) W_down, or gated, (f(x W_gate) * x W_up) W_down (Shazeer 2020).

Columns of the first matrices and rows of the last are split over the chips, so that the result is partial sums.
"""

from __future__ import annotations

from simcore.opgraph import ShardedTensor
from workloads.blocks.builder import Builder
from workloads.blocks.functions import activation, times


def mlp(b: Builder, h: ShardedTensor, *, name: str = "", width: str = "F") -> ShardedTensor:
    """``y[B, T, D]{U_X}`` of the normed input ``h[B, T, D]``; ``name`` goes before the names of weights and steps."""
    function, operations = activation(b.config.activation)
    up_bias, gate_bias, down_bias = (
        (f"b_{name}up[{width}_X]", f"b_{name}gate[{width}_X]", f"b_{name}down[D]")
        if b.config.mlp_bias
        else ("", "", "")
    )
    if b.config.gated_mlp:
        gate = b.einsum(f"{name}gate", h, f"w_{name}gate[D, {width}_X]", bias=gate_bias)
        up = b.einsum(f"{name}up", h, f"w_{name}up[D, {width}_X]", bias=up_bias)
        z = b.elementwise(f"{name}gated", [gate, up], times(function), operations + 1, into=gate)
    else:
        up = b.einsum(f"{name}up", h, f"w_{name}up[D, {width}_X]", bias=up_bias)
        z = b.elementwise(f"{name}activation", [up], function, operations, into=up)
    return b.einsum(f"{name}down", z, f"w_{name}down[{width}_X, D]", bias=down_bias)
