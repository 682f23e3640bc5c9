"""The report: the answer first, and parts that add up."""

import re

import pytest

from simcore.scenario import run_scenario


def report(scenario, ideal=False, chip=None, **parameters):
    return run_scenario(scenario, ideal=ideal, chip=chip, parameters=parameters).report()


def test_the_first_line_is_the_answer():
    first = report("double_buffering", ideal=True).splitlines()[0]
    assert first.startswith("double_buffering on 1 chip v5e (ideal model): 425 us")
    assert "1.06 x its 400 us" in first


def test_shares_of_busy_time_and_waits_add_up():
    text = report("decode_step", ring=4)
    part = text.partition("where the time goes")[2].partition("\n\n")[0]
    shares = [float(share) for share in re.findall(r"([\d.]+) %", part)]
    assert sum(shares[:-1]) == pytest.approx(100, abs=0.3)
    assert shares[-1] == 100
    assert "hop latency of a message" in part


def test_what_is_over_the_bound_is_explained():
    text = report("decode_step")
    assert "over the bound by" in text
    assert "overheads of HBM itself" in text


def test_the_worked_case_is_in_the_report():
    text = report("decode_step", ideal=True)
    assert "14.807 GiB" in text
    assert "reads 15.899 GB" in text
    assert "63.6 GFLOPs" in text


def test_memories_say_what_was_alive():
    text = report("decode_step", batch=16, context=16384)
    assert re.search(r"HBM .* DOES NOT FIT: k_cache", text)


@pytest.mark.parametrize("ring", [1, 8])
def test_lines_are_not_endless(ring):
    assert max(map(len, report("decode_step", ring=ring).splitlines())) <= 200
