"""Plans: however a model is spread over chips, its tasks compute what plain numpy does."""

import pytest

from simcore.errors import SimcoreError
from tests.test_blocks_attention import FAMILIES
from tests.test_blocks_latent import deepseek
from tests.test_blocks_moe import MIXTRAL
from tests.test_transformer_values import IN_VMEM, THROUGH_HBM, tiny
from tests.values import check_step
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
