"""The elementwise functions of Transformers on numpy values, their derivatives, and what each costs on a vector unit.

Costs are vector operations an element, assumed: one a primitive (an exponential counts as one).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from simcore.errors import ModelConfigError, nearest
from simcore.opgraph.derivative import Differentiable, Gradient, same

Function: TypeAlias = Callable[..., Any]

ROPE_BASE = 10_000.0
NORM_EPSILON = 1e-6
RMSNORM_OPERATIONS, LAYERNORM_OPERATIONS, ROTARY_OPERATIONS = 4, 6, 3

_erf = np.vectorize(math.erf, otypes=[float])


def silu(x: Any) -> Any:
    """x sigmoid(x)."""
    return x / (1 + np.exp(-x))


def gelu(x: Any) -> Any:
    """x Phi(x), exactly (Hendrycks and Gimpel 2016)."""
    return x * 0.5 * (1 + _erf(x / math.sqrt(2)))


def gelu_tanh(x: Any) -> Any:
    """The approximation of gelu by tanh."""
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def relu(x: Any) -> Any:
    """max(x, 0)."""
    return np.maximum(x, 0)


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _silu_slope(x: Any) -> Any:
    return _sigmoid(x) * (1 + x * (1 - _sigmoid(x)))


def _gelu_slope(x: Any) -> Any:
    return 0.5 * (1 + _erf(x / math.sqrt(2))) + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def _gelu_tanh_slope(x: Any) -> Any:
    root = math.sqrt(2 / math.pi)
    tanh = np.tanh(root * (x + 0.044715 * x**3))
    return 0.5 * (1 + tanh) + 0.5 * x * (1 - tanh**2) * root * (1 + 3 * 0.044715 * x**2)


def _relu_slope(x: Any) -> Any:
    return (x > 0) * 1.0


def _with_slope(function: Function, slope: Function, operations: int) -> tuple[Differentiable, int]:
    """A function of one argument; its slope costs about what it does, and one multiplication more."""
    back = Gradient(lambda x, back: slope(x) * back, operations + 1, (0,))
    return Differentiable(function, (back,)), operations


_SILU, _GELU_TANH = _with_slope(silu, _silu_slope, 4), _with_slope(gelu_tanh, _gelu_tanh_slope, 8)
ACTIVATIONS: dict[str, tuple[Differentiable, int]] = {
    "silu": _SILU,
    "swish": _SILU,
    "gelu": _with_slope(gelu, _gelu_slope, 8),
    "gelu_new": _GELU_TANH,
    "gelu_fast": _GELU_TANH,
    "gelu_pytorch_tanh": _GELU_TANH,
    "relu": _with_slope(relu, _relu_slope, 1),
}
"""Name -> (function, vector operations an element)."""


def activation(name: str) -> tuple[Differentiable, int]:
    """Function and operations an element of an activation. Raises `ModelConfigError` for one that is not modelled."""
    if name not in ACTIVATIONS:
        raise ModelConfigError(f"activation {name!r} is not modelled: {nearest(name, ACTIVATIONS)}")
    return ACTIVATIONS[name]


def times(function: Differentiable) -> Differentiable:
    """``function(gate) * up``."""
    slope = function.gradients[0]
    assert slope is not None
    to_gate = Gradient(lambda gate, up, back: slope.function(gate, up * back), slope.operations + 1, (0, 1))
    to_up = Gradient(lambda gate, back: function(gate) * back, slope.operations, (0,))
    return Differentiable(lambda gate, up: function(gate) * up, (to_gate, to_up))


def rms_norm(x: Any, scale: Any = 1.0) -> Any:
    """x / sqrt(mean(x²)) * scale along the last dimension (Zhang and Sennrich 2019)."""
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + NORM_EPSILON) * scale


def layer_norm(x: Any, scale: Any = 1.0, bias: Any = 0.0) -> Any:
    """(x - mean(x)) / sqrt(var(x)) * scale + bias along the last dimension (Ba et al. 2016)."""
    centred = x - x.mean(axis=-1, keepdims=True)
    return rms_norm(centred) * scale + bias


def _rms_norm_back(x: Any, scale: Any, back: Any) -> Any:
    length = np.sqrt((x * x).mean(axis=-1, keepdims=True) + NORM_EPSILON)
    normed, back = x / length, back * scale
    return (back - normed * (normed * back).mean(axis=-1, keepdims=True)) / length


def _layer_norm_back(x: Any, scale: Any, back: Any) -> Any:
    made = _rms_norm_back(x - x.mean(axis=-1, keepdims=True), scale, back)
    return made - made.mean(axis=-1, keepdims=True)


def _of_heads(function: Function, width: int) -> Function:
    """A function of rows, on each head of ``width`` in the first and the last argument."""

    def each(x: Any, *rest: Any) -> Any:
        *vectors, back = rest
        heads = [rows.reshape(len(x), -1, width) for rows in (x, back)]
        return function(heads[0], *vectors, heads[1]).reshape(x.shape)

    return each


def _to_scale(x: Any, back: Any) -> Any:
    return rms_norm(x) * back


RMS_NORM = Differentiable(
    rms_norm, (Gradient(_rms_norm_back, 8, (0, 1)), Gradient(_to_scale, RMSNORM_OPERATIONS, (0,)))
)
LAYER_NORM = Differentiable(
    layer_norm,
    (
        Gradient(_layer_norm_back, 11, (0, 1)),
        Gradient(lambda x, back: layer_norm(x) * back, LAYERNORM_OPERATIONS, (0,)),
        Gradient(same, 0),
    ),
)


def norm_of_heads(width: int, *, scaled: bool = True) -> Differentiable:
    """RMSNorm of each head of ``width`` in rows of heads, with or without a scale that all heads share."""

    def norm(x: Any, scale: Any = 1.0) -> Any:
        return rms_norm(x.reshape(len(x), -1, width), scale).reshape(x.shape)

    if not scaled:
        back = _of_heads(lambda x, back: _rms_norm_back(x, 1.0, back), width)
        return Differentiable(norm, (Gradient(back, 8, (0,)),))
    to_x = Gradient(_of_heads(_rms_norm_back, width), 8, (0, 1))
    return Differentiable(norm, (to_x, Gradient(_of_heads(_to_scale, width), RMSNORM_OPERATIONS, (0,))))


@dataclass(frozen=True, slots=True)
class Rotary:
    """Rotary embedding of the last ``width`` features of each head of ``head_dim`` (Su et al. 2021).

    Called with rows [rows, heads x head_dim] and positions [rows, 1].
    """

    head_dim: int
    width: int

    def __call__(self, x: Any, positions: Any) -> Any:
        half = self.width // 2
        angles = np.asarray(positions).reshape(-1, 1, 1) * ROPE_BASE ** (-np.arange(half) / half)
        heads = x.reshape(len(x), -1, self.head_dim)
        start = self.head_dim - self.width
        first, second = heads[..., start : start + half], heads[..., start + half : start + 2 * half]
        cosine, sine = np.cos(angles), np.sin(angles)
        rotated = [
            heads[..., :start],
            first * cosine - second * sine,
            second * cosine + first * sine,
            heads[..., start + 2 * half :],
        ]
        return np.concatenate(rotated, axis=-1).reshape(x.shape)

    def differentiable(self) -> Differentiable:
        """With its derivative, the rotation back."""
        back = Gradient(lambda positions, back: self(back, -np.asarray(positions)), ROTARY_OPERATIONS, (1,))
        return Differentiable(self, (back, None))


def beside(left_width: int, right_width: int, *, shared: bool = False) -> Function:
    """The features of two tensors beside each other in every head; ``shared``: the right one has a single head."""

    def join(left: Any, right: Any) -> Any:
        heads = left.reshape(len(left), -1, left_width)
        other = np.asarray(right).reshape(len(left), 1 if shared else -1, right_width)
        other = np.broadcast_to(other, (*heads.shape[:2], right_width))
        return np.concatenate([heads, other], axis=-1).reshape(len(left), -1)

    return join


def softmax_top_k(k: int) -> Function:
    """Of each row the softmax over its ``k`` largest, 0 elsewhere; equal ones are taken from the left."""

    def route(logits: Any) -> Any:
        chosen = np.argsort(-logits, axis=-1, kind="stable")[:, :k]
        best = np.take_along_axis(logits, chosen, axis=-1)
        weights = np.exp(best - best.max(axis=-1, keepdims=True))
        routing = np.zeros_like(logits)
        np.put_along_axis(routing, chosen, weights / weights.sum(axis=-1, keepdims=True), axis=-1)
        return routing

    return route
