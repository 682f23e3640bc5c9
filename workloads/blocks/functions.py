"""The elementwise functions of Transformers on numpy values, and what each costs on a vector unit.

Costs are vector operations an element, assumed: one a primitive (an exponential counts as one).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from simcore.errors import ModelConfigError, nearest

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


ACTIVATIONS: dict[str, tuple[Function, int]] = {
    "silu": (silu, 4),
    "swish": (silu, 4),
    "gelu": (gelu, 8),
    "gelu_new": (gelu_tanh, 8),
    "gelu_fast": (gelu_tanh, 8),
    "gelu_pytorch_tanh": (gelu_tanh, 8),
    "relu": (relu, 1),
}
"""Name -> (function, vector operations an element)."""


def activation(name: str) -> tuple[Function, int]:
    """Function and operations an element of an activation. Raises `ModelConfigError` for one that is not modelled."""
    if name not in ACTIVATIONS:
        raise ModelConfigError(f"activation {name!r} is not modelled: {nearest(name, ACTIVATIONS)}")
    return ACTIVATIONS[name]


def times(function: Function) -> Function:
    """``function(gate) * up``."""
    return lambda gate, up: function(gate) * up


def rms_norm(x: Any, scale: Any = 1.0) -> Any:
    """x / sqrt(mean(x²)) * scale along the last dimension (Zhang and Sennrich 2019)."""
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + NORM_EPSILON) * scale


def layer_norm(x: Any, scale: Any = 1.0, bias: Any = 0.0) -> Any:
    """(x - mean(x)) / sqrt(var(x)) * scale + bias along the last dimension (Ba et al. 2016)."""
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + NORM_EPSILON) * scale + bias


def norm_of_heads(width: int) -> Function:
    """RMSNorm of each head of ``width`` in rows of heads."""

    def norm(x: Any, scale: Any = 1.0) -> Any:
        return rms_norm(x.reshape(len(x), -1, width), scale).reshape(x.shape)

    return norm


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
