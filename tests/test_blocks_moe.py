"""Mixtures of experts: a real router's rows meet their experts; how many experts are read is as the formula has it."""

import numpy as np
import pytest

from simcore.errors import ModelConfigError
from tests.test_blocks_attention import SLIDING
from tests.test_transformer_values import IN_VMEM, THROUGH_HBM, tiny
from tests.values import check_step
from workloads.config import MoeConfig
from workloads.experts import ExpertLoad, capacity, expected_distinct_experts, expert_groups, hit_probabilities

MIXTRAL = MoeConfig(n_experts=6, top_k=2, d_ff_expert=8, layers=(0, 1))
SHARED = MoeConfig(n_experts=6, top_k=2, d_ff_expert=8, layers=(1, 2, 3, 4), shared_d_ff=8, shared_gate=True)


@pytest.mark.parametrize(("chip", "ring"), [(IN_VMEM, 1), (IN_VMEM, 2), (THROUGH_HBM, 2)])
@pytest.mark.parametrize(("mode", "context"), [("decode", [9, 3]), ("prefill", 5)])
def test_every_token_meets_its_experts(chip, ring, mode, context):
    check_step(tiny(moe=MIXTRAL), chip, mode, context=context, ring=ring, seeds=1)


def test_a_plain_mlp_as_expert():
    check_step(tiny(moe=MIXTRAL, gated_mlp=False, activation="relu"), IN_VMEM, "decode", context=[9, 3], ring=2)


@pytest.mark.parametrize("factor", [0.4, 1.0, 3.0])
def test_experts_that_are_full_leave_tokens_out(factor):
    check_step(tiny(moe=MIXTRAL), IN_VMEM, "prefill", context=5, factor=factor, ring=2, seeds=1)


def test_experts_with_biases_shared_ones_and_a_first_dense_layer_under_windows():
    config = tiny(moe=SHARED, mlp_bias=True, **SLIDING)
    check_step(config, IN_VMEM, "decode", context=[9, 3], ring=2)
    biased = tiny(moe=MoeConfig(6, 2, 8, layers=(0, 1), router_bias=True), mlp_bias=True, qkv_bias=True)
    check_step(biased, THROUGH_HBM, "decode", context=[9, 3], ring=2, seeds=1)


BIG = MoeConfig(n_experts=64, top_k=6, d_ff_expert=8, layers=(0,))


@pytest.mark.parametrize("tokens", [1, 4, 16, 1000])
def test_distinct_experts_are_as_many_as_random_choices_hit_on_average(tokens):
    rng = np.random.default_rng(1)
    hits = [len(np.unique(rng.random((tokens, 64)).argsort(axis=1)[:, :6])) for _ in range(200)]
    expected = expected_distinct_experts(BIG, tokens)
    assert expected == pytest.approx(64 * (1 - (1 - 6 / 64) ** tokens))
    assert expected == pytest.approx(np.mean(hits), rel=0.02)


@pytest.mark.parametrize("imbalance", [1.0, 1.5, 4.0, 10.0])
def test_the_most_popular_expert_has_the_imbalance_and_no_row_is_lost(imbalance):
    p = hit_probabilities(BIG, imbalance)
    assert sum(p) == pytest.approx(6)
    assert p[0] == pytest.approx(imbalance * 6 / 64)
    assert p == sorted(p, reverse=True)
    assert max(p) <= 1 + 1e-9
    for tokens in (1, 7, 500):
        rows, members = expert_groups(BIG, tokens, ExpertLoad(imbalance), [0]).at(0)
        assert sum(rows) == 6 * tokens
        assert len(set(members)) == len(rows) == max(round(expected_distinct_experts(BIG, tokens, imbalance)), 6)
        assert all(1 <= count <= tokens for count in rows)
    rows, _ = expert_groups(BIG, 10_000, ExpertLoad(imbalance), [0]).at(0)
    assert max(rows) / (60_000 / 64) == pytest.approx(imbalance, rel=0.01)


def test_an_imbalance_hits_fewer_experts():
    assert expected_distinct_experts(BIG, 16, 5.0) < expected_distinct_experts(BIG, 16)


def test_a_capacity_gives_every_expert_the_same_room():
    assert capacity(BIG, 64, 1.25) == 8  # 1.25 * 64 * 6 / 64 = 7.5
    rows, members = expert_groups(BIG, 64, ExpertLoad(capacity_factor=1.25), [0]).at(0)
    assert rows == (8,) * 64
    assert members == tuple(range(64))


@pytest.mark.parametrize(
    ("load", "message"),
    [
        ({"imbalance": 0.5}, "1 or more"),
        ({"imbalance": float("nan")}, "1 or more"),
        ({"capacity_factor": -1.0}, "more than 0"),
        ({"capacity_factor": 0.0}, "more than 0"),
    ],
)
def test_impossible_loads_are_refused(load, message):
    with pytest.raises(ModelConfigError, match=message):
        ExpertLoad(**load)


def test_an_imbalance_beyond_one_expert_for_all_tokens_is_refused():
    with pytest.raises(ModelConfigError, match=r"gets at most 10\.6667 times the mean"):
        hit_probabilities(BIG, 11)


def test_rows_that_do_not_add_up_are_refused():
    with pytest.raises(ModelConfigError, match="add up to 4 tokens x 6"):
        expert_groups(BIG, 4, ExpertLoad(rows=((1,) * 64,)), [0])
