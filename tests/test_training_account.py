"""What a training step executes, moves and holds, against closed forms."""

import numpy as np
import pytest

from simcore.chips import load_chip
from simcore.graph.unroll import unroll
from simcore.hardware import Hardware
from simcore.lowering import lower
from simcore.opgraph.liveness import lasting_bytes
from simcore.running import simulate
from simcore.scenario import run_scenario
from tests.test_transformer_values import tiny
from workloads.training import TrainingOptions, training_step
from workloads.training_account import held_bytes, needed_of

CHIP = load_chip("v5p")
CONFIG = tiny(n_layers=3, d_model=64, n_heads=4, n_kv_heads=4, head_dim=16, d_ff=128)
BATCH, CONTEXT = 4, 32


def timeline_of(ops):
    return simulate(unroll(lower(ops, CHIP), Hardware(CHIP, ideal=True)))


def matmul_flops(remat, plan=None):
    """FLOPs of all matmuls but attention's, over all chips, from the tasks."""
    ops = training_step(CONFIG, batch=BATCH, context=CONTEXT, plan=plan, options=TrainingOptions(remat=remat))
    timeline = timeline_of(ops)
    attention = {"attention", "attention_again", "d_attention"}
    numbers = [number for number, name in enumerate(timeline.operation_names) if name not in attention]
    return int(timeline.flops[np.isin(timeline.operation, numbers)].sum())


def test_backward_takes_twice_the_matmuls_of_forward():
    needed = needed_of(CONFIG, batch=BATCH, context=CONTEXT)
    parameters = needed.parameters - CONFIG.vocabulary_size * CONFIG.d_model  # a table that is only looked up
    assert needed.matmul_flops == 6 * parameters * BATCH * CONTEXT
    assert matmul_flops("none") == needed.matmul_flops


def test_full_remat_turns_three_units_of_the_layers_matmuls_into_four():
    """But for the last matmul of a layer: no rule reads what it gives, so it is not computed once more."""
    needed = needed_of(CONFIG, batch=BATCH, context=CONTEXT)
    vocabulary = 6 * CONFIG.vocabulary_size * CONFIG.d_model * BATCH * CONTEXT
    layers = needed.matmul_flops - vocabulary
    last = 2 * BATCH * CONTEXT * CONFIG.d_ff * CONFIG.d_model * CONFIG.n_layers
    assert matmul_flops("full") - vocabulary == layers * 4 // 3 - last


def test_keeping_what_matmuls_give_computes_none_of_them_again():
    assert matmul_flops("matmuls") == matmul_flops("none")


@pytest.mark.parametrize("plan", ["data=2", "fsdp=2", "tensor=2"])
def test_plans_share_the_work(plan):
    ops = training_step(CONFIG, batch=BATCH, context=CONTEXT, plan=plan)
    alone = training_step(CONFIG, batch=BATCH, context=CONTEXT)
    assert timeline_of(ops).flops.sum() == timeline_of(alone).flops.sum()


def test_adam_holds_three_copies_in_fp32_of_a_bf16_weight():
    ops = training_step(CONFIG, batch=BATCH, context=CONTEXT)
    lasting = lasting_bytes(ops)
    assert sum(lasting["state"].values()) == 6 * sum(lasting["weight"].values())


def test_full_remat_keeps_the_layers_inputs_alone():
    ops = training_step(CONFIG, batch=BATCH, context=CONTEXT, options=TrainingOptions(remat="full"))
    held = held_bytes(ops)
    assert held["layers' inputs"] == CONFIG.n_layers * 2 * BATCH * CONTEXT * CONFIG.d_model
    assert held["other activations of layers"] == 0
    more = held_bytes(training_step(CONFIG, batch=BATCH, context=CONTEXT))
    assert more["other activations of layers"] > 10 * held["layers' inputs"]


def test_memory_of_kept_activations_rises_over_forward_and_falls_over_backward():
    parameters = {"model": "tiny", "batch": 4, "context": 128, "plan": "fsdp=2", "remat": "full"}
    result = run_scenario("training_step", parameters=parameters)
    lives = result.timeline.tensors
    mine = (lives.tensor == lives.names.index("layer_input")) & (lives.entity == 0)
    births, deaths = lives.born_ps[mine], lives.died_ps[mine]
    assert len(births) == 2  # one a layer
    first, last = births.argmin(), births.argmax()
    assert births[first] < births[last] < deaths[last] < deaths[first]


def test_rates_of_a_step():
    parameters = {"model": "tiny", "batch": 4, "context": 128, "plan": "fsdp=2"}
    result = run_scenario("training_step", parameters=parameters).to_json()
    assert 0 < result["mfu"] < result["hfu"] < 1
    assert result["tokens_per_s"] == pytest.approx(4 * 128 / result["time_s"])


def test_layers_come_back_from_the_last_to_the_first():
    ops = training_step(CONFIG, batch=BATCH, context=CONTEXT)
    t = timeline_of(ops)
    mine = np.flatnonzero((t.operation == t.operation_names.index("d_w_q")) & (t.flops > 0))
    layers = t.layer[mine[np.argsort(t.start_ps[mine], kind="stable")]]
    assert list(dict.fromkeys(layers.tolist())) == [2, 1, 0]
