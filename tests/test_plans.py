"""Plans: however a model is spread over chips, its tasks compute what plain numpy does."""

import pytest

from simcore.errors import SimcoreError
from tests.test_blocks_attention import FAMILIES, SLIDING
from tests.test_blocks_latent import deepseek
from tests.test_blocks_moe import MIXTRAL, SHARED
from tests.test_transformer_values import IN_VMEM, THROUGH_HBM, tiny
from tests.values import check_step
from workloads.config import MoeConfig
from workloads.experts import ExpertLoad
from workloads.plan import Plan
from workloads.transformer import model_step

LATENT = "latent"
PLANS = [
    "data=2",
    "fsdp=2",
    "tensor2=2",
    "tensor=2,sequence",
    "tensor=2,tensor2=2",
    "data=2,tensor=2",
    "fsdp=2,tensor=2",
    "data=2,fsdp=2,tensor=2,sequence",
]


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("sizes", [{"mode": "decode", "context": 9}, {"mode": "prefill", "context": 6}], ids=str)
@pytest.mark.parametrize("chip", [IN_VMEM, THROUGH_HBM], ids=["VMEM", "HBM"])
def test_a_step_of_a_llama(plan, sizes, chip):
    check_step(tiny(), chip, batch=4, plan=plan, seeds=1, races=False, **sizes)


@pytest.mark.parametrize("plan", ["fsdp=2,tensor2=2", "data=2,tensor=2,sequence"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_of_each_family(family, plan):
    config = tiny(**FAMILIES[family])
    check_step(config, IN_VMEM, "decode", context=9, batch=4, plan=plan, seeds=1, races=False)
    check_step(config, IN_VMEM, "prefill", context=4, cached=3, batch=2, plan=plan, seeds=1, races=False)


@pytest.mark.parametrize("plan", ["fsdp=2,tensor2=2", "data=2,tensor=2,sequence"])
def test_latent_attention(plan):
    config = deepseek(n_layers=1, moe=None)
    check_step(config, IN_VMEM, "decode", context=9, batch=4, plan=plan, seeds=1, races=False)
    check_step(config, THROUGH_HBM, "prefill", context=4, batch=2, plan=plan, seeds=1, races=False)


@pytest.mark.parametrize("plan", ["tensor=2,tensor2=2", "tensor=2,sequence"])
def test_experts_split_over_both_of_their_dimensions(plan):
    check_step(tiny(moe=MIXTRAL), IN_VMEM, "decode", context=9, batch=4, plan=plan, seeds=1, races=False)


ROOM_FOR_ALL = 3.0
"""A capacity of 6 / 2 times the mean: room for every token at every expert."""


@pytest.mark.parametrize(
    "plan", ["data=2", "fsdp=2,tensor=2", "expert=2", "expert=3,tensor=2", "data=2,expert=2", "expert=2,tensor2=2"]
)
def test_tokens_are_sent_to_the_chips_that_have_their_experts_and_come_back(plan):
    shared = {"batch": 12, "plan": plan, "factor": ROOM_FOR_ALL, "seeds": 1, "races": False}
    check_step(tiny(moe=MIXTRAL), IN_VMEM, "decode", context=5, **shared)
    check_step(tiny(moe=MIXTRAL), IN_VMEM, "prefill", context=3, **shared)


@pytest.mark.parametrize("plan", ["fsdp=2,tensor=2", "expert=2", "expert=2,tensor2=2"])
def test_tokens_are_sent_through_hbm(plan):
    config = tiny(moe=MIXTRAL)
    shared = {"batch": 4, "plan": plan, "factor": ROOM_FOR_ALL, "seeds": 1, "races": False}
    check_step(config, THROUGH_HBM, "decode", context=3, **shared)


def test_experts_with_shared_ones_biases_and_latents_on_chips_of_their_own():
    config = tiny(moe=SHARED, mlp_bias=True, **SLIDING)
    check_step(
        config, IN_VMEM, "decode", context=9, batch=4, plan="expert=2", factor=ROOM_FOR_ALL, seeds=1, races=False
    )
    check_step(
        deepseek(), IN_VMEM, "decode", context=6, batch=4, plan="expert=2,tensor=2", factor=ROOM_FOR_ALL, seeds=1,
        races=False,
    )  # fmt: skip


def test_sending_tokens_has_no_race():
    config = tiny(moe=MIXTRAL)
    check_step(config, IN_VMEM, "decode", context=2, batch=2, plan="expert=2", factor=ROOM_FOR_ALL, seeds=1)


def test_expected_rows_of_experts_on_chips_of_their_own_are_those_of_the_tokens():
    moe = MoeConfig(64, 4, 8, layers=(0,))
    config = tiny(moe=moe, n_layers=1)
    ops = model_step(config, "decode", batch=64, context=8, plan="expert=8")
    einsum = next(o for node in ops.body if hasattr(node, "body") for o in node.body if o.name == "expert_up")
    assert einsum.groups.total == 64 * 4 // 8
    assert len(einsum.groups.rows[0]) == round(8 * (1 - (1 - 4 / 64) ** 64))
    skewed = model_step(config, "decode", batch=64, context=8, plan="expert=8", experts=ExpertLoad(imbalance=4.0))
    assert skewed.sizes["Rz"] > ops.sizes["Rz"] == 64 * 4 // 8


@pytest.mark.parametrize(
    ("plan", "moe", "message"),
    [
        ("expert=4", MIXTRAL, "6 experts do not divide over expert = 4"),
        ("expert=2", None, "has no experts to split over expert = 2"),
    ],
)
def test_experts_that_cannot_be_split_say_why(plan, moe, message):
    with pytest.raises(SimcoreError, match=message):
        model_step(tiny(moe=moe), "decode", batch=4, context=9, plan=plan)


@pytest.mark.parametrize("plan", ["fsdp=2", "tensor2=2", "tensor=2,sequence"])
def test_no_plan_has_a_race(plan):
    check_step(tiny(n_layers=1), IN_VMEM, "decode", context=5, batch=2, plan=plan, seeds=1)
    check_step(tiny(n_layers=1), THROUGH_HBM, "prefill", context=4, batch=2, plan=plan, seeds=1)


def test_groups_of_chips_may_have_requests_of_different_lengths_if_all_have_the_same():
    check_step(tiny(), IN_VMEM, "decode", context=[9, 3, 9, 3], batch=4, plan="data=2", seeds=1, races=False)


@pytest.mark.parametrize(
    ("plan", "sizes", "message"),
    [
        ("data=3", {}, "4 requests do not divide over data x fsdp x expert = 3: a multiple of 3 would"),
        ("tensor=3", {}, "do not divide over a ring of 3; rings of 1, 2, 4 do"),
        ("tensor2=5", {}, "16 model width do not divide over tensor2 = 5"),
        ("data=2", {"context": [9, 3, 9, 4]}, "give each the same 2 lengths"),
        ("tensor=0", {}, "tensor=0; a whole number of ways, 1 or more"),
        ("tensr=2", {}, "unknown kind 'tensr', did you mean tensor, tensor2?"),
        ("tensor", {}, "tensor needs its ways: tensor=8"),
        ("tensor=2,tensor=2", {}, "tensor is given twice"),
        ("tensor:2", {}, "cannot read 'tensor:2'; KIND=WAYS is meant"),
        ("sequence", {}, "sequence splits the residual over the tensor axis, and tensor is 1"),
    ],
)
def test_a_plan_that_cannot_be_says_why(plan, sizes, message):
    with pytest.raises(SimcoreError) as error:
        model_step(tiny(), "decode", batch=4, plan=plan, **{"context": 9, **sizes})
    assert message in str(error.value)


def test_the_ways_multiply_to_the_chips():
    plan = Plan.parse("data=2, fsdp=4,tensor=8,sequence")
    assert plan.chips == 64
    assert str(plan) == "data=2,fsdp=4,tensor=8,sequence"
    assert str(Plan()) == "one chip"
