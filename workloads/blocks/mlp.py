"""The feed-forward block: plain, f(x W_up) W_down, or gated, (f(x W_gate) * x W_up) W_down (Shazeer 2020).

Split over the columns of the first matrices and the rows of the last, nothing moves between them.
"""

from __future__ import annotations

from simcore.opgraph import ShardedTensor
from workloads.blocks.builder import Builder
from workloads.blocks.functions import activation, times


def mlp(b: Builder, h: ShardedTensor, *, name: str = "", width: str = "F") -> ShardedTensor:
    """``y[B, T, D]`` of the normed input ``h[B, T, D]``, partial sums where columns are split.

    ``name`` goes before the names of weights and steps.
    """
    function, operations = activation(b.config.activation)
    up_bias, gate_bias, down_bias = (
        (f"b_{name}up[{width}]", f"b_{name}gate[{width}]", f"b_{name}down[D]") if b.config.mlp_bias else ("", "", "")
    )
    if b.config.gated_mlp:
        gate = b.einsum(f"{name}gate", h, f"w_{name}gate[D, {width}]", bias=gate_bias)
        up = b.einsum(f"{name}up", h, f"w_{name}up[D, {width}]", bias=up_bias)
        z = b.elementwise(f"{name}gated", [gate, up], times(function), operations + 1, into=gate)
    else:
        up = b.einsum(f"{name}up", h, f"w_{name}up[D, {width}]", bias=up_bias)
        z = b.elementwise(f"{name}activation", [up], function, operations, into=up)
    return b.einsum(f"{name}down", z, f"w_{name}down[{width}, D]", bias=down_bias)
