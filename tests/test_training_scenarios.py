"""The scenarios of training: what they say of time, memory and bubbles."""

import pytest

from simcore.errors import ScenarioError
from simcore.exposure import exposed_communication_s
from simcore.scenario import run_scenario

SMALL = {"model": "tiny", "context": 128, "batch": 4}


def test_remat_trades_time_for_memory():
    found = run_scenario("remat", parameters={**SMALL, "plan": "fsdp=2"}).to_json()["policies"]
    held = [found[policy]["hbm_peak_bytes"] for policy in ("none", "matmuls", "full")]
    assert held == sorted(held, reverse=True)
    flops = [found[policy]["flops"] for policy in ("none", "matmuls", "full")]
    assert flops[0] == flops[1] < flops[2]


def test_1f1b_holds_less_than_gpipe_in_about_the_same_time():
    asked = {**SMALL, "batch": 8, "plan": "pipeline=2", "microbatches": 8}
    found = run_scenario("pipeline", parameters=asked).to_json()["schedules"]
    assert found["1f1b"]["hbm_peak_bytes"] < found["gpipe"]["hbm_peak_bytes"]
    assert found["1f1b"]["time_s"] == pytest.approx(found["gpipe"]["time_s"], rel=0.1)
    assert found["gpipe"]["closed_form_bubble"] == 1 / 9
    assert 0 < found["gpipe"]["bubble_share"] < 1 / 2


def test_the_shares_of_a_step_make_up_its_time():
    result = run_scenario("training_step", parameters={**SMALL, "plan": "fsdp=2"})
    shares = result.extra["shares"]
    assert list(shares) == ["forward", "recompute", "backward", "optimizer", "exposed communication"]
    assert sum(shares.values()) == pytest.approx(1, rel=1e-12)
    waited = exposed_communication_s(result.exposed_s) / result.time_s
    assert shares["exposed communication"] == pytest.approx(waited, rel=1e-12)
    kept = run_scenario("training_step", parameters={**SMALL, "plan": "data=1", "remat": "none"}).extra["shares"]
    assert list(kept) == ["forward", "backward", "optimizer"]


@pytest.mark.parametrize(
    ("name", "asked", "message"),
    [
        ("pipeline", {"plan": "data=2"}, "has no pipeline"),
        ("training_step", {"schedule": "gpipe", "plan": "data=2"}, "--schedule gpipe has no effect|--schedule has no"),
        ("training_step", {"map": "fsdp=x"}, "--map has no effect"),
    ],
)
def test_flags_without_effect_are_refused(name, asked, message):
    with pytest.raises(ScenarioError, match=message):
        run_scenario(name, parameters={**SMALL, **asked})
