"""Amounts are read exactly, printed shortly, and turned into picoseconds once."""

from fractions import Fraction

import pytest

from simcore.errors import QuantityError
from simcore.quantities import (
    duration_ps,
    format_bytes,
    format_flops_per_s,
    format_seconds,
    parse_bandwidth,
    parse_bytes,
    parse_count,
    parse_flops_per_s,
    parse_ps,
    parse_seconds,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [("64MiB", 2**26), ("8 MB", 8_000_000), ("16 GiB", 2**34), ("1e3", 1000), (12, 12), ("0", 0), ("1.5kB", 1500)],
)
def test_sizes_are_decimal_unless_written_with_an_i(text, size):
    assert parse_bytes(text) == size


def test_a_tenth_of_a_microsecond_is_exactly_100_000_ps():
    assert parse_ps("0.1us") == parse_ps(1e-7) == parse_ps("100 ns") == 100_000


def test_bandwidths_and_rates():
    assert parse_bandwidth("45GB/s") == 4.5e10
    assert parse_bandwidth("400 Gbit/s") == 5e10
    assert parse_flops_per_s("197 TFLOP/s") == 1.97e14
    assert parse_count("8Ki") == 8192


@pytest.mark.parametrize("bad", ["", "abc", "5 parsecs", "nan", "inf", "1e999", None, True, float("nan"), "--1s", []])
@pytest.mark.parametrize("parse", [parse_bytes, parse_bandwidth, parse_seconds, parse_ps, parse_count])
def test_what_is_no_quantity_is_refused_in_one_line(parse, bad):
    with pytest.raises(QuantityError) as caught:
        parse(bad)
    assert "\n" not in str(caught.value)


def test_a_unit_in_the_wrong_case_is_hinted_at():
    with pytest.raises(QuantityError, match="did you mean MB"):
        parse_bytes("8 mb")


def test_half_a_byte_is_refused():
    with pytest.raises(QuantityError, match="whole number of bytes"):
        parse_bytes("0.5B")


def test_durations_round_half_up_and_never_vanish():
    assert duration_ps(1, 2e12) == 1  # half a picosecond
    assert duration_ps(3, 2e12) == 2
    assert duration_ps(1, 1e30) == 1
    assert duration_ps(0, 1.0) == 0
    assert duration_ps(Fraction(1, 3), 1) == 333_333_333_333


def test_durations_are_exact_where_floats_are_not():
    huge = 10**20 + 1
    assert duration_ps(huge, 1e12) == huge
    with pytest.raises(QuantityError, match="positive"):
        duration_ps(1, 0)


def test_printing():
    assert format_seconds(0.0004285) == "428.5 us"
    assert format_seconds(0.99999e-3) == "1 ms"
    assert format_bytes(2**26, binary=True) == "64 MiB"
    assert format_flops_per_s(1.97e14) == "197 TFLOP/s"
