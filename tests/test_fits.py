"""`simcore fits` and what it counts with: the same bytes as a simulation, without one."""

import dataclasses
import json

import pytest

from simcore.chips import load_chip
from simcore.cli import main
from simcore.errors import ModelConfigError
from simcore.layout import Mesh
from simcore.lowering import LoweringOptions
from simcore.opgraph import OpGraph
from simcore.opgraph.liveness import lasting_bytes, moments, peak
from simcore.running import run
from workloads.accounting import account
from workloads.catalogue import load_model
from workloads.fits import Question, best_plan, fit, largest, mends, planned, slices_of, smallest_slice
from workloads.plan import Plan
from workloads.stages import lowered_step
from workloads.transformer import model_step, placed_plan

MIB = 2**20


def test_a_product_in_place_lets_the_gated_mlp_peak_at_448_mib():
    """Residual 64 MiB, two branches of 192 MiB: 448, then 256 with one overwritten and the other freed, then 320."""
    g = OpGraph("mlp", Mesh.of(X=1), {"B": 8192, "D": 4096, "F": 12288})
    x = g.input("x[B, D]")
    gate, up = (g.einsum(name, x, g.weight(f"w_{name}[D, F]")) for name in ("gate", "up"))
    z = g.elementwise("product", [gate, up], lambda a, b: a * b, operations_per_element=1, into=gate)
    g.einsum("down", z, g.weight("w_down[F, D]"))
    held = [(moment.operation, moment.total_bytes // MIB) for moment in moments(g)]
    assert held == [("gate", 256), ("up", 448), ("product", 448), ("down", 320)]
    assert peak(g).operation == "up"
    assert sum(lasting_bytes(g)["weight"].values()) == 3 * 4096 * 12288 * 2


@pytest.mark.parametrize(
    "plan", ["tensor=1", "tensor=4", "fsdp=2,tensor=2", "tensor2=2,tensor=2", "pipeline=2,tensor=2"]
)
@pytest.mark.parametrize("mode", ["decode", "prefill"])
def test_what_it_counts_is_what_the_simulation_holds(plan, mode):
    config, chip, where = load_model("llama3-8b"), load_chip("v5e"), placed_plan(plan)
    question = Question(config, mode, 4, 512)
    held = fit(question, chip, where)
    graph, _ = lowered_step(
        config, mode, chip, plan=where, options=LoweringOptions(algorithm="ring"), batch=4, context=512
    )
    simulated = run(graph, chip=chip, ideal=True).memory_peak_bytes["hbm"]
    gathered = held.parts.get("gathered", 0)  # not all of two layers' at any one time
    assert held.total_bytes - gathered <= simulated + 2**25
    assert simulated <= 1.02 * held.total_bytes
    assert gathered or simulated == pytest.approx(held.total_bytes, rel=0.02)


def test_weights_and_cache_of_one_chip_are_the_models():
    config = load_model("llama3-8b")
    held = fit(Question(config, "decode", 3, 1000), load_chip("v5e"), Plan())
    exact = account(config, batch=3, cached=1000, new=1)
    assert held.parts["weights"] == exact.weight_bytes + exact.norm_bytes
    assert held.parts["KV cache"] == exact.kv_cache_bytes


def test_the_largest_batch_is_the_last_that_fits():
    config, chip = load_model("llama3-8b"), load_chip("v5e")
    question = Question(config, "decode", 1, 1024, {"weights_dtype": "int8"})
    most = largest(question, chip, Plan(), "batch")
    assert fit(question.with_(batch=most), chip, Plan()).fits
    assert not fit(question.with_(batch=most + 1), chip, Plan()).fits
    room = chip.hbm_capacity_bytes - fit(question, chip, Plan()).parts["weights"]
    assert most == pytest.approx(room / (1025 * 128 * 1024), abs=1)


def test_every_mend_makes_it_fit_and_the_smallest_slice_is_the_smallest():
    question, chip = Question(load_model("llama3-70b"), "decode", 64, 8192), load_chip("v5e")
    plan = planned(question, chip, "4x4", "")
    assert not fit(question, chip, plan).fits
    found = mends(question, chip, plan)
    assert len(found) > 4
    assert all(mend.fit.fits for mend in found)
    shape, held = smallest_slice(question, chip)
    assert (shape, held.fits) == ("4x8", True)
    assert not best_plan(question, chip, 16).fits


def test_slices_go_up_by_chips():
    assert slices_of(load_chip("v5e"))[:3] == ["1x1", "2x2", "2x4"]
    assert "4x4x4" in slices_of(load_chip("v5p"))
    assert slices_of(load_chip("h100"))[:4] == ["1", "2", "4", "8"]


def test_an_illegal_batch_says_so():
    with pytest.raises(ModelConfigError, match="no plan of tensor"):
        planned(Question(load_model("gpt2"), "decode", 1, 512), load_chip("h100"), "7", "")


def command(capsys, *words):
    code = main(["fits", *words])
    return code, capsys.readouterr()


def test_the_command_answers_with_an_exit_code(capsys):
    code, out = command(capsys, "llama3-70b", "--chip", "v5e", "--slice", "4x4", "--batch", "32")
    assert code == 0
    assert "fits, with" in out.out
    code, out = command(capsys, "llama3-70b", "--chip", "v5e", "--slice", "4x4", "--batch", "64", "--json")
    found = json.loads(out.out)
    assert code == 3
    assert found["fits"] is False
    assert found["left_bytes"] < 0
    assert sum(found["parts_bytes"].values()) == found["total_bytes"]
    assert found["smallest_slice"]["slice"] == "4x8"
    assert found["makes_it_fit"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "name a model"),
        (["llama3-8c"], "did you mean"),
        (["llama3-8b", "--mode", "train"], "--mode train"),
        (["llama3-8b", "--batch", "0"], "--batch 0: must be at least 1"),
        (["llama3-8b", "--slice", "4x4", "--plan", "tensor=8"], "plan tensor=8 uses 8 chips"),
        (["llama3-8b", "--weights-dtype", "int9"], "int9"),
        (["llama3-8b", "--slce", "4x4"], "--slice"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(capsys, words, message):
    code, out = command(capsys, *words)
    assert code == 2
    assert message in out.err
    assert out.err.count("\n") == 1


def test_a_step_over_the_memory_reports_what_was_alive_and_exits_with_3(capsys):
    code = main(["run", "decode_step", "--model", "llama3-8b", "--batch", "64", "--context", "8192"])
    out = capsys.readouterr()
    assert code == 3
    assert "does not fit: hbm" in out.err
    assert "k_cache" in out.out


def test_a_context_over_the_models_maximum_is_noted():
    config = dataclasses.replace(load_model("llama2-7b"), max_positions=4096)
    ops = model_step(config, "decode", batch=1, context=5000)
    assert any("5001 positions are more than the model's maximum of 4096" in note for note in ops.notes)
