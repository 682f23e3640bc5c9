"""Pipeline stages: layers on chips one behind the other compute what the whole model does, a microbatch at a time."""

import numpy as np
import pytest

from simcore.chips import load_chip
from simcore.engine.folding import fold
from simcore.errors import ModelConfigError
from simcore.graph.races import check_races
from simcore.graph.unroll import unroll
from simcore.graph.values import execute
from simcore.hardware import Hardware
from simcore.lowering import LoweringOptions, lower_stages
from simcore.running import run
from tests.reference_transformer import Reference
from tests.test_transformer_values import IN_VMEM, THROUGH_HBM, tiny
from tests.values import Model, cache_names, cut, in_slots
from workloads.catalogue import load_model
from workloads.placing import place
from workloads.plan import Plan
from workloads.stages import layer_ranges, lowered_step, pipeline_axis, stage_graphs
from workloads.transformer import model_step, placed_plan


def check_stages(config, chip, mode, *, plan, context, batch=4, microbatches=0, races=False):
    """Execute all stages' tasks in a random permitted order; compare the logits with the reference."""
    model, new = Model(config), 1 if mode == "decode" else context
    model.declare(model_step(config, mode, batch=batch, context=context))
    lengths = [context if mode == "decode" else 0] * batch
    rng = np.random.default_rng(3)
    tokens = rng.integers(0, config.vocabulary_size, size=(batch, new))
    before = [
        [{name: rng.normal(size=(n, *dims)) for name, dims in cache_names(config).items()} for _ in model.where]
        for n in lengths
    ]
    after = [[{name: array.copy() for name, array in layer.items()} for layer in request] for request in before]
    expected = Reference(config, model).forward(tokens, lengths, after)
    stages = stage_graphs(config, mode, plan=plan, context=context, batch=batch, microbatches=microbatches)
    parts = microbatches or len(stages)
    graph = lower_stages(stages, chip, LoweringOptions(), axis=pipeline_axis(placed_plan(plan)))
    flat = unroll(graph, Hardware(chip))
    if races:
        check_races(flat)
    each, given, inner = batch // parts, {}, stages[0].mesh.size
    for stage, (ops, (first, count)) in enumerate(zip(stages, layer_ranges(config.n_layers, len(stages)), strict=True)):
        shapes = {name: tensor.shape for name, tensor in graph.classes[f"stage {stage}"].tensors.items()}
        for tensor in ops.tensors.values():
            for chip_number in range(inner):
                entity = stage * inner + chip_number
                if tensor.role == "weight":
                    array = model.arrays[tensor.name]
                    array = array[first : first + count] if tensor.repeat else array
                elif tensor.role == "input":
                    name, part = tensor.name.split("_m")
                    rows = slice(int(part) * each, (int(part) + 1) * each)
                    positions = np.array([n + np.arange(new) for n in lengths])
                    array = {"tokens": tokens, "positions": positions}[name][rows].astype(float)
                elif tensor.role == "cache":
                    base, part = tensor.name.split("_m")
                    requests = range(int(part) * each, (int(part) + 1) * each)
                    length = ops.sizes[tensor.dim_names[1]]
                    array = np.array(
                        [
                            [in_slots(before[r][layer][base], lengths[r], length, 0) for r in requests]
                            for layer in range(first, first + count)
                        ]
                    )
                else:
                    continue
                given[entity, tensor.name] = cut(array, tensor, ops, chip_number, shapes[tensor.name])
    storage = execute(flat, given, seed=1)
    last = stages[-1]
    for part in range(parts):
        logits = last.tensors[f"logits_m{part}"]
        wanted = expected[part * each : (part + 1) * each].reshape(each, 1, -1)
        for chip_number in range(inner):
            have = storage[(len(stages) - 1) * inner + chip_number, logits.name]
            mine = cut(wanted, logits, last, chip_number, have.shape)
            np.testing.assert_allclose(have, mine, rtol=1e-7, atol=1e-9)


PLANS = ["pipeline=2", "pipeline=3,tensor=2", "pipeline=2,fsdp=2", "pipeline=2,tensor2=2"]


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("tied", [True, False])
def test_stages_compute_what_the_model_does(plan, tied):
    config = tiny(n_layers=3, tied_embeddings=tied)
    check_stages(config, IN_VMEM, "decode", plan=plan, context=5, batch=12)
    check_stages(config, IN_VMEM, "prefill", plan=plan, context=4, batch=12, microbatches=6)


@pytest.mark.parametrize("plan", PLANS)
def test_stages_through_hbm(plan):
    stages = Plan.parse(plan).pipeline
    check_stages(tiny(n_layers=stages), THROUGH_HBM, "decode", plan=plan, context=3, batch=2 * stages)


def test_more_microbatches_than_stages_and_fewer():
    for microbatches in (1, 4):
        check_stages(tiny(), IN_VMEM, "decode", plan="pipeline=2", context=5, microbatches=microbatches)


def test_no_race_between_stages():
    check_stages(tiny(), IN_VMEM, "decode", plan="pipeline=2", context=3, batch=2, races=True)
    check_stages(tiny(), THROUGH_HBM, "decode", plan="pipeline=2", context=2, batch=2, races=True)


def test_layers_that_do_not_divide_go_to_the_first_stages():
    assert layer_ranges(10, 4) == [(0, 3), (3, 3), (6, 2), (8, 2)]


def test_the_bubble_of_equal_stages_is_that_of_the_closed_form():
    """(m + p - 1) / m of the work of a stage, where transfers and what the ends do besides take next to no time."""
    config, chip = load_model("llama3-8b"), load_chip("v5p")
    one = run(
        lowered_step(config, "prefill", chip, plan=placed_plan("tensor=1"), context=2048)[0], chip=chip, ideal=True
    )
    for microbatches in (2, 6):
        graph, _ = lowered_step(
            config, "prefill", chip, plan=placed_plan("pipeline=4"), context=2048, batch=microbatches,
            microbatches=microbatches,
        )  # fmt: skip
        result = run(graph, chip=chip, ideal=True)
        closed_form = (microbatches + 3) * one.time_s / 4
        assert result.time_s == pytest.approx(closed_form, rel=0.02)
        assert result.time_s > closed_form * 0.999


def test_stages_on_a_torus_fold_to_a_chip_each():
    config, chip = load_model("tiny"), load_chip("v5p")
    where = place(Plan.parse("pipeline=2,tensor=4"), chip)
    graph, _ = lowered_step(config, "decode", chip, plan=where, context=64, batch=4)
    folded = fold(graph)
    assert [cls.count for cls in folded.graph.classes.values()] == [1, 1]
    full, one = (run(graph, chip=chip, reduce=reduce) for reduce in (False, True))
    assert (full.time_s, full.bytes, full.flops) == (one.time_s, one.bytes, one.flops)
    assert full.tasks == 4 * one.tasks


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"plan": "pipeline=3", "batch": 3}, "3 stages, and it has 2 layers"),
        ({"plan": "pipeline=2", "batch": 3}, "3 requests do not cut into 2 microbatches"),
        ({"plan": "pipeline=2", "batch": 4, "microbatches": 3}, "do not cut into 3 microbatches"),
        ({"plan": "pipeline=2", "context": [3, 4, 5, 6], "batch": 4}, "give each the same 2 lengths"),
        ({"plan": "tensor=2", "batch": 4}, "lies on no axis"),
    ],
)
def test_stages_that_cannot_be_say_why(asked, message):
    with pytest.raises(ModelConfigError, match=message):
        stage_graphs(tiny(), "decode", **{"context": 8, **asked})


def test_a_plan_with_stages_is_not_a_single_program():
    with pytest.raises(ModelConfigError, match=r"workloads\.stages"):
        model_step(tiny(), "decode", batch=4, context=8, plan="pipeline=2")
