"""Number formats: how many bits one stored value takes, and what stands for it when values are computed.

Names are the field's short ones (``bf16``, ``fp8``). Speeds are not here: a chip says how fast it multiplies a
format.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from types import MappingProxyType
from typing import Any

import numpy as np

from simcore.errors import SimcoreError, nearest

DTYPE_BITS: Mapping[str, Fraction | int] = MappingProxyType(
    {
        "fp32": 32,
        "bf16": 16,
        "fp16": 16,
        "fp8": 8,
        "int32": 32,
        "int8": 8,
        "int4": 4,
        "mxfp4": Fraction(17, 4),  # 4-bit values, one 8-bit scale for each 32 (OCP Microscaling Formats 1.0)
        "nvfp4": Fraction(9, 2),  # 4-bit values, one 8-bit scale for each 16 (NVIDIA Blackwell)
        "bool": 8,
    }
)
"""Bits that one stored value takes, block scales included."""

_NUMPY: dict[str, type[Any]] = {"fp32": np.float32, "int32": np.int32, "bool": np.bool_}


class DtypeError(SimcoreError):
    """A number format that is not known, or a number of values that cannot be stored."""


def dtype_bits(dtype: str) -> Fraction | int:
    """Bits of one stored value of ``dtype``, exactly. Raises `DtypeError` for an unknown name.

    >>> dtype_bits("bf16")
    16
    >>> dtype_bits("mxfp4")
    Fraction(17, 4)
    """
    if dtype not in DTYPE_BITS:
        raise DtypeError(f"unknown dtype {dtype!r}: {nearest(str(dtype), DTYPE_BITS)}")
    return DTYPE_BITS[dtype]


def bytes_of(elements: int, dtype: str) -> int:
    """Bytes that ``elements`` values of ``dtype`` take together, rounded up to a whole byte.

    Raises `DtypeError` for an unknown name or a negative or fractional number of values.

    >>> bytes_of(3, "int4")
    2
    """
    if isinstance(elements, bool) or not isinstance(elements, int | np.integer) or elements < 0:
        raise DtypeError(f"the number of values must be a whole number of at least 0, got {elements!r}")
    bits = dtype_bits(dtype) * int(elements)
    return int(-(-bits // 8))


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    """The numpy dtype that stands for ``dtype`` when values are computed.

    Narrow floats are computed as float64 and narrow integers as int32, a matmul's accumulator: executing
    values asks whether the right numbers were moved and added, not how a format rounds them.
    """
    bits = dtype_bits(dtype)
    if dtype in _NUMPY:
        return np.dtype(_NUMPY[dtype])
    return np.dtype(np.int32 if dtype.startswith("int") and bits < 32 else np.float64)
