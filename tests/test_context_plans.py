"""Positions dealt out over chips: ring attention over prompts, flash-decoding over caches."""

import pytest

from simcore.chips import load_chip
from simcore.errors import ModelConfigError
from simcore.lowering import lower
from simcore.running import run
from tests.test_blocks_attention import CHUNKED, SLIDING
from tests.test_blocks_latent import deepseek
from tests.test_transformer_values import IN_VMEM, THROUGH_HBM, tiny
from tests.values import check_step
from workloads.catalogue import load_model
from workloads.transformer import model_step

CHIPS = pytest.mark.parametrize("chip", [IN_VMEM, THROUGH_HBM], ids=["VMEM", "HBM"])


@CHIPS
@pytest.mark.parametrize("plan", ["context=2", "context=3,tensor=2", "data=2,context=4"])
@pytest.mark.parametrize("causal", ["full", "skip"])
def test_keys_go_round_a_ring_past_the_queries_of_a_prompt(plan, causal, chip):
    check_step(tiny(), chip, "prefill", context=12, plan=plan, causal=causal, seeds=1, races=False)


@CHIPS
@pytest.mark.parametrize("plan", ["context=2", "context=3,tensor=2", "data=2,context=4", "context=2,tensor2=2"])
@pytest.mark.parametrize("context", [8, 9, 10, 1, 0])
def test_chips_attend_to_their_parts_of_the_cache(plan, context, chip):
    check_step(tiny(), chip, "decode", context=context, plan=plan, seeds=1, races=False)


def test_requests_of_unequal_length():
    check_step(tiny(), IN_VMEM, "decode", context=[9, 2, 0, 5], batch=4, plan="context=3", seeds=1, races=False)


@pytest.mark.parametrize("pattern", [SLIDING, CHUNKED])
def test_windows(pattern):
    config = tiny(**{**pattern, "n_layers": 2, "attention_pattern": pattern["attention_pattern"][:2]})
    check_step(config, IN_VMEM, "prefill", context=12, plan="context=3", seeds=1, races=False)
    for context in (7, 11, 12):
        check_step(config, IN_VMEM, "decode", context=context, plan="context=2", seeds=1, races=False)


def test_latents():
    config = deepseek(n_layers=1, moe=None)
    check_step(config, IN_VMEM, "prefill", context=8, plan="context=2,tensor=2", seeds=1, races=False)
    check_step(config, IN_VMEM, "prefill", context=8, plan="context=2", absorbed=True, seeds=1, races=False)
    check_step(config, IN_VMEM, "decode", context=9, plan="context=2,tensor=2", seeds=1, races=False)


def test_large_scores_do_not_overflow_when_parts_are_put_together():
    for mode, context in (("decode", 9), ("prefill", 8)):
        check_step(
            tiny(n_layers=1), IN_VMEM, mode, context=context, plan="context=2", weight_scale=30.0, seeds=1, races=False
        )


def test_no_race():
    config = tiny(n_layers=1)
    check_step(config, IN_VMEM, "prefill", context=6, batch=1, plan="context=3", seeds=1)
    check_step(config, THROUGH_HBM, "decode", context=5, batch=1, plan="context=2", seeds=1)


def test_a_part_of_the_cache_is_read_by_each_chip_and_the_work_of_a_prompt_is_shared_evenly():
    config, chip = load_model("tiny"), load_chip("v5e")
    one, four = (
        run(lower(model_step(config, "decode", batch=1, context=4096, plan=plan), chip), chip=chip)
        for plan in ("", "context=4")
    )
    assert four.bytes_by_tensor["hbm_read"]["k_cache"] == one.bytes_by_tensor["hbm_read"]["k_cache"]
    prompt = run(lower(model_step(config, "prefill", context=2048, plan="context=4"), chip), chip=chip, reduce=True)
    assert prompt.tasks * 4 == prompt.tasks_represented  # all chips do the same


@pytest.mark.parametrize(
    ("mode", "sizes", "message"),
    [
        ("prefill", {"context": 9}, "9 new positions do not divide over context = 2"),
        ("prefill", {"context": 8, "cached": 4}, "only from an empty cache"),
        ("decode", {"context": 8, "kernel": "naive"}, "context needs the flash kernel"),
    ],
)
def test_what_cannot_be_dealt_out_says_why(mode, sizes, message):
    with pytest.raises(ModelConfigError, match=message):
        model_step(tiny(), mode, batch=2, plan="context=2", **sizes)
