"""Kinds of faults that simulators of this kind have had in public: the right values, and no setting without effect."""

import pytest

from simcore.chips import load_chip
from simcore.errors import ModelConfigError, ScenarioError
from simcore.graph import TaskGraph, Transfer
from simcore.running import run
from simcore.scenario import run_scenario
from workloads.catalogue import load_model
from workloads.config import MoeConfig
from workloads.fits import Question, fit
from workloads.hf import read_config
from workloads.parameters import count_parameters
from workloads.plan import Plan
from workloads.step import Step


def test_a_tied_table_is_counted_once():
    config = load_model("gpt2")
    assert config.tied_embeddings
    assert count_parameters(config).total == 124_439_808
    held = fit(Question(config, "decode", 1, 8), load_chip("v5e"), Plan())
    assert held.parts["weights"] == 2 * 124_439_808


def test_gigabytes_are_not_gibibytes():
    """6,738,415,616 bf16 parameters at 819 GB/s: 16.455 ms."""
    graph = TaskGraph("read")
    chip = graph.entity_class("chip")
    chip.unit("hbm")
    chip.task("read", unit="hbm", work=Transfer(2 * 6_738_415_616))
    hbm = load_chip("v5e").replace(hbm_bandwidth_bytes_per_s="819 GB/s")
    assert run(graph, chip=hbm, ideal=True).time_s == pytest.approx(16.455e-3, rel=1e-4)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"imbalance": 2.0}, "--imbalance has no effect: example-6b has no experts"),
        ({"capacity_factor": 1.0}, "--capacity-factor has no effect"),
        ({"microbatches": 2}, "--microbatches has no effect: the plan has no pipeline"),
        ({"map": "tensor=x"}, "--map has no effect"),
    ],
)
def test_a_setting_that_nothing_uses_is_refused(parameters, message):
    with pytest.raises(ScenarioError, match=message):
        run_scenario("decode_step", parameters=parameters)


def test_impossible_models_and_steps_are_one_clear_line_each():
    with pytest.raises(ModelConfigError, match="top_k"):
        MoeConfig(4, 5, 8, layers=(0,))
    with pytest.raises(ModelConfigError, match="layers"):
        read_config({"model_type": "llama", "hidden_size": 8, "num_hidden_layers": 0, "num_attention_heads": 2,
                     "intermediate_size": 8, "vocab_size": 8})  # fmt: skip
    with pytest.raises(ModelConfigError, match="batch 0"):
        Step((), 1)
