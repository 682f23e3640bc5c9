"""Training: the derived backward pass gives the plain model's gradients, under every plan and policy."""

import dataclasses

import numpy as np
import pytest

from simcore.errors import ModelConfigError
from tests.test_blocks_attention import FAMILIES
from tests.test_transformer_values import IN_VMEM, THROUGH_HBM, tiny
from tests.training import RATE, Trained
from workloads.optimizers import AdamW
from workloads.training import REMATS, training_step

SMALL = {"batch": 2, "context": 4}
PLANS = [
    "data=2",
    "fsdp=2",
    "tensor=2",
    "tensor=2,sequence",
    "data=2,tensor=2",
    "fsdp=2,tensor=2,sequence",
]


@pytest.fixture(scope="module")
def alone():
    return Trained(tiny(), IN_VMEM)


@pytest.fixture(scope="module")
def small():
    return Trained(tiny(), IN_VMEM, **SMALL)


def same_step(step, other):
    np.testing.assert_allclose(step.loss, other.loss, rtol=1e-9)
    for name, gradient in other.gradients.items():
        np.testing.assert_allclose(step.gradients[name], gradient, rtol=1e-6, atol=1e-10, err_msg=name)


def test_gradients_of_a_llama_are_differences_of_the_plain_loss(alone):
    alone.check_gradients()


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_of_each_family(family):
    config = tiny(**FAMILIES[family])
    if config.qk_norm == "whole":
        with pytest.raises(ModelConfigError, match="a norm over all heads"):
            Trained(config, IN_VMEM, **SMALL)
        return
    Trained(config, IN_VMEM, **SMALL).check_gradients(directions=1)


@pytest.mark.parametrize("remat", REMATS)
def test_no_access_races_another(remat, small):
    same_step(Trained(tiny(), IN_VMEM, plan="fsdp=2", remat=remat, races=True, **SMALL), small)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("remat", REMATS)
def test_every_plan_and_policy_gives_the_same_step(plan, remat, alone):
    same_step(Trained(tiny(), IN_VMEM, plan=plan, remat=remat, seed=3), alone)


@pytest.mark.parametrize(
    ("plan", "remat", "more"),
    [
        (None, "none", {"microbatches": 2}),
        ("data=2", "none", {"microbatches": 2}),
        ("fsdp=2", "full", {"microbatches": 2}),
        ("tensor=2,sequence", "matmuls", {"microbatches": 2}),
        ("pipeline=2", "none", {"microbatches": 4}),
        ("pipeline=2", "full", {"schedule": "gpipe"}),
        ("pipeline=2,fsdp=2", "none", {}),
        ("pipeline=2,tensor=2,sequence", "matmuls", {}),
    ],
)
def test_microbatches_and_stages_give_the_same_step(plan, remat, more, alone):
    same_step(Trained(tiny(), IN_VMEM, plan=plan, remat=remat, seed=3, **more), alone)


@pytest.mark.parametrize(("plan", "remat"), [("pipeline=2", "none"), ("pipeline=2,fsdp=2", "full")])
def test_interleaved_chunks_give_the_same_step(plan, remat):
    config = dataclasses.replace(tiny(), n_layers=4, attention_pattern=tiny().attention_pattern[:1] * 4)
    more = {"microbatches": 2, "schedule": "interleaved", "races": plan == "pipeline=2"}
    same_step(Trained(config, IN_VMEM, plan=plan, remat=remat, seed=3, **more), Trained(config, IN_VMEM))


def test_no_race_between_stages_and_microbatches(small):
    same_step(Trained(tiny(), IN_VMEM, plan="pipeline=2", races=True, **SMALL), small)


@pytest.mark.parametrize(("plan", "remat"), [(None, "none"), ("fsdp=2", "full"), ("tensor=2,sequence", "matmuls")])
def test_activations_in_hbm_give_the_same_step(plan, remat, small):
    same_step(Trained(tiny(), THROUGH_HBM, plan=plan, remat=remat, seed=3, **SMALL), small)


@pytest.mark.parametrize("plan", [None, "data=2,tensor=2", "fsdp=2,tensor=2", "pipeline=2", "pipeline=2,tensor=2"])
def test_gradients_are_clipped_to_a_norm_of_all_of_them(plan, small):
    norm = np.sqrt(sum((gradient**2).sum() for gradient in small.gradients.values()))
    for clip, scale in ((norm / 4, 1 / 4), (2 * norm, 1)):
        step = Trained(tiny(), IN_VMEM, plan=plan, seed=3, clip_norm=clip, races=plan == "pipeline=2", **SMALL)
        for name, gradient in step.gradients.items():
            np.testing.assert_allclose(gradient, scale * small.gradients[name], rtol=1e-6, atol=1e-9, err_msg=name)


def test_without_master_weights_the_weights_themselves_move(small):
    step = Trained(tiny(), IN_VMEM, plan="fsdp=2", settings={"learning_rate": RATE, "master": False}, **SMALL)
    assert not [name for name, tensor in step.stages[0].tensors.items() if tensor.role == "state"]
    same_step(step, small)


def test_adam_moves_weights_as_its_equations_say(small):
    step = Trained(tiny(), IN_VMEM, optimizer="adamw", plan="fsdp=2", **SMALL)
    adam = AdamW()
    for name, gradient in small.gradients.items():
        old = step.before[name]
        first, second = (1 - adam.beta1) * gradient, (1 - adam.beta2) * gradient**2
        move = first / (1 - adam.beta1) / (np.sqrt(second / (1 - adam.beta2)) + adam.epsilon)
        expected = old - adam.learning_rate * (move + adam.weight_decay * old)
        np.testing.assert_allclose(step.after[name], expected, rtol=1e-7, atol=1e-9, err_msg=name)


@pytest.mark.parametrize(
    ("plan", "changes", "message"),
    [
        ("context=2", {}, "training is modelled for data, fsdp, tensor, sequence and pipeline, not context"),
        ("tensor=4", {}, "use tensor = 2 or a divisor of it"),
        ("data=3", {}, "do not divide over"),
        ("pipeline=2", {}, "training_stages"),
    ],
)
def test_what_is_not_modelled_is_said(plan, changes, message):
    with pytest.raises(ModelConfigError, match=message):
        training_step(tiny(**changes), batch=4, context=4, plan=plan)
