"""Reading and printing amounts: bytes, bandwidths, times, FLOPs; and the one place where work becomes picoseconds.

Prefixes are decimal unless written with an i (``64MiB``); times and bytes are read exactly, so that ``0.1us`` is
100,000 ps and nothing else.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from numbers import Rational

from simcore.errors import QuantityError

PS_PER_S = 10**12

_NUMBER = re.compile(r"\s*([+-]?(?:\d[\d_,]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(.*?)\s*")
_DECIMAL = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
_TIME = {
    "ps": Fraction(1, 10**12),
    "ns": Fraction(1, 10**9),
    "us": Fraction(1, 10**6),
    "µs": Fraction(1, 10**6),
    "μs": Fraction(1, 10**6),
    "ms": Fraction(1, 10**3),
    "s": Fraction(1),
    "sec": Fraction(1),
    "min": Fraction(60),
    "h": Fraction(3600),
}
_BYTE_UNITS = {
    **{prefix + "B": Fraction(factor) for prefix, factor in {**_DECIMAL, **_BINARY}.items()},
    "bytes": Fraction(1),
    "byte": Fraction(1),
    "": Fraction(1),
}
_COUNTS = {prefix: Fraction(factor) for prefix, factor in {**_DECIMAL, **_BINARY}.items()}
MOST = 10**24
"""Larger amounts are typing errors."""


def _quantity(value: object, what: str, units: dict[str, Fraction], example: str) -> Fraction:
    """The exact amount that a number or a text with a unit stands for."""
    wrong = f"{value!r} is no {what}: write it like {example}"
    if isinstance(value, bool) or value is None:
        raise QuantityError(wrong)
    if isinstance(value, str):
        found = _NUMBER.fullmatch(value)
        if not found:
            raise QuantityError(wrong)
        number, unit = found[1].replace("_", "").replace(",", ""), found[2]
        if unit not in units:
            alike = [known for known in units if known.lower() == unit.lower()]
            hint = f"; did you mean {alike[0]}?" if alike else ""
            raise QuantityError(f"{wrong}{hint}")
        try:
            amount = Decimal(number)
        except InvalidOperation:
            raise QuantityError(wrong) from None
        if not amount.is_finite() or abs(amount.adjusted()) > 40:
            raise QuantityError(f"{value!r} is out of any {what}'s range: write it like {example}")
        exact = Fraction(amount) * units[unit]
    elif isinstance(value, Rational):
        exact = Fraction(value)
    else:
        try:
            number_value = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            raise QuantityError(wrong) from None
        if not math.isfinite(number_value):
            raise QuantityError(wrong)
        # A float's shortest decimal is what was meant: 0.1 is a tenth.
        exact = Fraction(repr(number_value))
    if abs(exact) > MOST:
        raise QuantityError(f"{value!r} is too large for a {what}")
    return exact


def parse_bytes(value: object) -> int:
    """A whole number of bytes.

    >>> parse_bytes("64MiB"), parse_bytes("8 MB"), parse_bytes(1.5e9)
    (67108864, 8000000, 1500000000)
    """
    exact = _quantity(value, "size in bytes", _BYTE_UNITS, "64MiB or 8MB")
    if exact.denominator != 1:
        raise QuantityError(f"{value!r} is no whole number of bytes")
    return int(exact)


def parse_bandwidth(value: object) -> float:
    """Bytes per second.

    >>> parse_bandwidth("819 GB/s")
    819000000000.0
    """
    units = {f"{unit}/s": factor for unit, factor in _BYTE_UNITS.items() if unit} | {"": Fraction(1)}
    units |= {f"{prefix}bit/s": Fraction(factor, 8) for prefix, factor in _DECIMAL.items()}
    return float(_quantity(value, "bandwidth", units, "45GB/s"))


def _seconds(value: object) -> Fraction:
    return _quantity(value, "time", {**_TIME, "": Fraction(1)}, "0.4ms or 1us")


def parse_seconds(value: object) -> float:
    """Seconds; a bare number is in seconds.

    >>> parse_seconds("1 us")
    1e-06
    """
    return float(_seconds(value))


def parse_ps(value: object) -> int:
    """A time in whole picoseconds, exactly, rounded half up.

    >>> parse_ps("0.4ms"), parse_ps(1e-6), parse_ps("1us")
    (400000000, 1000000, 1000000)
    """
    return math.floor(_seconds(value) * PS_PER_S + Fraction(1, 2))


def parse_flops_per_s(value: object) -> float:
    """FLOPs (or operations) per second.

    >>> parse_flops_per_s("197 TFLOP/s")
    197000000000000.0
    """
    names = ("FLOP/s", "FLOPs/s", "FLOPS", "flops", "OP/s", "OPs/s", "OPS")
    units = {f"{prefix}{name}": Fraction(factor) for prefix, factor in _DECIMAL.items() for name in names} | {
        "": Fraction(1)
    }
    return float(_quantity(value, "compute rate", units, "197TFLOP/s"))


def parse_count(value: object) -> int:
    """A whole number, with a prefix if wanted.

    >>> parse_count("8k"), parse_count("8Ki")
    (8000, 8192)
    """
    exact = _quantity(value, "whole number", _COUNTS, "8192 or 8k")
    if exact.denominator != 1:
        raise QuantityError(f"{value!r} is no whole number")
    return int(exact)


def duration_ps(amount: int | float | Fraction, rate_per_s: int | float | Fraction) -> int:
    """What ``amount`` of work takes at ``rate_per_s``: picoseconds, rounded half up, at least 1 for non-zero work.

    Exact whatever the sizes: rates are taken as the decimal number that was written.

    >>> duration_ps(3, 2e12), duration_ps(0, 1.0), duration_ps(1, 1e30)
    (2, 0, 1)
    """
    if amount == 0:
        return 0
    numerator, denominator = _ratio(amount)
    per, of = _ratio(rate_per_s)
    if per <= 0:
        raise QuantityError(f"a rate of {rate_per_s} per second: it must be positive")
    top, bottom = numerator * of * PS_PER_S, denominator * per
    return max(1, (2 * top + bottom) // (2 * bottom))


def _ratio(value: int | float | Fraction) -> tuple[int, int]:
    if isinstance(value, int):
        return value, 1
    exact = Fraction(repr(float(value))) if isinstance(value, float) else value
    return exact.numerator, exact.denominator


def _significant(value: float, digits: int = 4) -> str:
    """``value`` with that many significant digits and no more zeros than they need."""
    text = f"{value:.{digits}g}"
    if "e" in text:
        text = f"{value:.0f}"
    return text


def _scaled(value: float, steps: list[tuple[float, str]]) -> str:
    """``value`` in the largest unit of which there is one (the rounded value decides: 999.99 us is 1 ms)."""
    for factor, unit in steps:
        if abs(float(f"{value:.4g}")) >= factor:
            return f"{_significant(value / factor)} {unit}"
    factor, unit = steps[-1]
    return f"{_significant(value / factor)} {unit}"


def format_seconds(seconds: float) -> str:
    """
    >>> format_seconds(0.0004285), format_seconds(0), format_seconds(2.5)
    ('428.5 us', '0 s', '2.5 s')
    """
    if seconds == 0:
        return "0 s"
    return _scaled(seconds, [(1, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"), (1e-12, "ps")])


def format_bytes(count: float, binary: bool = False) -> str:
    """
    >>> format_bytes(8_000_000), format_bytes(2**26, binary=True), format_bytes(0)
    ('8 MB', '64 MiB', '0 B')
    """
    if binary:
        steps = [(2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B")]
    else:
        steps = [(1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")]
    return _scaled(count, steps)


def format_bandwidth(bytes_per_s: float) -> str:
    """
    >>> format_bandwidth(8.19e11)
    '819 GB/s'
    """
    return f"{format_bytes(bytes_per_s)}/s"


def _format_large(count: float, unit: str) -> str:
    return _scaled(
        count, [(1e18, f"E{unit}"), (1e15, f"P{unit}"), (1e12, f"T{unit}"), (1e9, f"G{unit}"), (1e6, f"M{unit}"),
                (1e3, f"k{unit}"), (1.0, unit)]
    )  # fmt: skip


def format_flops(count: float) -> str:
    """
    >>> format_flops(63_596_134_400)
    '63.6 GFLOPs'
    """
    return _format_large(count, "FLOPs")


def format_flops_per_s(rate: float) -> str:
    """
    >>> format_flops_per_s(1.97e14)
    '197 TFLOP/s'
    """
    return _format_large(rate, "FLOP/s")


def format_count(count: float) -> str:
    """
    >>> format_count(7_402_635_264)
    '7.403 G'
    """
    return _format_large(count, "").strip()
