"""Generation: a prefill, then decode steps with a growing cache, all simulated or interpolated between a few."""

import pytest

from simcore.errors import ModelConfigError
from workloads.catalogue import load_model
from workloads.generate import _sum, generate

TINY = load_model("tiny")


def test_interpolated_steps_take_what_all_of_them_take():
    every = generate(TINY, prompt=200, steps=60, batch=2, every_step=True)
    some = generate(TINY, prompt=200, steps=60, batch=2)
    assert len(every.step_times_s) == 60
    assert len(some.step_times_s) < 60
    assert some.decode_s == pytest.approx(every.decode_s, rel=0.005)
    assert every.decode_s == pytest.approx(sum(every.step_times_s.values()))
    assert "all 60 decode steps" in every.notes[0]
    assert f"{len(some.step_times_s)} of 60 decode steps" in some.notes[0]


def test_the_cache_grows_by_a_position_a_step():
    done = generate(TINY, prompt=100, steps=11, batch=3)
    held = done.last.memory_peak_bytes["hbm"] - done.first.memory_peak_bytes["hbm"]
    assert held == 10 * 3 * 2 * 2 * 2 * 16 * 2  # steps, requests, K and V, layers, heads of 16, bytes
    assert done.time_s == done.prefill_s + done.decode_s
    assert done.decode_tokens_per_s == pytest.approx(3 / done.step_s)


def test_one_step_and_one_position():
    done = generate(TINY, prompt=1, steps=1)
    assert done.step_times_s == {1: done.first.time_s}
    assert done.first is done.last


def test_a_prompt_in_chunks_is_the_sum_of_its_chunks():
    whole = generate(TINY, prompt=256, steps=1)
    chunks = generate(TINY, prompt=256, steps=1, chunk=100)
    assert chunks.prefill_s > whole.prefill_s  # the weights are read three times
    assert chunks.prefill.time_s < chunks.prefill_s


def test_a_kink_is_found_where_the_middle_misses_the_line():
    points = list(range(100, 1101))

    def windowed(context):
        return float(min(context, 350))

    times, total = _sum(points, windowed, 0.001, False)
    assert total == pytest.approx(sum(map(windowed, points)), rel=1e-3)
    assert len(times) < 40


@pytest.mark.parametrize("bad", [{"prompt": 0}, {"steps": 0}, {"chunk": 0}, {"tolerance": -1}])
def test_impossible_requests_are_refused(bad):
    with pytest.raises(ModelConfigError):
        generate(TINY, **{"prompt": 4, "steps": 2, **bad})
