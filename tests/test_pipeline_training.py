"""Pipeline schedules while training: their order, what they hold, and their bubble."""

import dataclasses
import functools

import numpy as np
import pytest

from simcore.chips import load_chip
from simcore.phases import phases_ps
from simcore.running import run
from workloads.catalogue import load_model
from workloads.schedules import SCHEDULES
from workloads.stages import pipeline_axis
from workloads.training import TrainingOptions, lowered_training
from workloads.transformer import placed_plan

CONFIG = load_model("tiny")
FREE = load_chip("v5p").replace(
    ici_hop_latency_s=0, ici_link_bandwidth_bytes_per_s=1e15, hbm_bandwidth_bytes_per_s=1e15
)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize(("stages", "microbatches"), [(1, 1), (2, 1), (4, 8), (4, 2), (3, 3)])
def test_every_schedule_has_each_pass_once_and_forward_before_backward(name, stages, microbatches):
    for stage in range(stages):
        passes = list(SCHEDULES[name](stage, stages, microbatches))
        assert len(passes) == len(set(passes)) == 2 * microbatches
        for number in range(microbatches):
            assert passes.index((True, number)) < passes.index((False, number))


def held(name, stage, stages, microbatches):
    alive = most = 0
    for forward, _ in SCHEDULES[name](stage, stages, microbatches):
        alive += 1 if forward else -1
        most = max(most, alive)
    return most


def test_1f1b_holds_as_many_microbatches_as_stages_follow_and_gpipe_all():
    assert [held("1f1b", stage, 4, 8) for stage in range(4)] == [4, 3, 2, 1]
    assert [held("gpipe", stage, 4, 8) for stage in range(4)] == [8, 8, 8, 8]


@functools.cache
def simulated(schedule, microbatches, stages=4, layers=4):
    """On a chip whose links and HBM take no time."""
    config = dataclasses.replace(
        CONFIG,
        n_layers=layers,
        attention_pattern=CONFIG.attention_pattern[:1] * layers,
        tied_embeddings=False,
        vocabulary_size=16,
    )
    options = TrainingOptions(remat="full", microbatches=microbatches, schedule=schedule, optimizer="sgd")
    graph, _ = lowered_training(
        config, FREE, plan=placed_plan(f"pipeline={stages}"), batch=microbatches,
        context=64, options=options,
    )  # fmt: skip
    return run(graph, chip=FREE, ideal=True)


@pytest.mark.parametrize(("schedule", "most"), [("1f1b", [4, 3, 2, 1]), ("gpipe", [8, 8, 8, 8])])
def test_the_microbatches_alive_at_once_in_the_simulation(schedule, most):
    t = simulated(schedule, 8).timeline
    kept = [number for number, name in enumerate(t.tensors.names) if name.startswith("layer_input")]
    for stage in range(4):
        mine = np.isin(t.tensors.tensor, kept) & (t.tensors.entity == stage)
        births, deaths = t.tensors.born_ps[mine], t.tensors.died_ps[mine]
        alive = max(int(((births <= at) & (deaths > at)).sum()) for at in births)
        assert alive == most[stage]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_bubble_is_that_of_the_closed_form(schedule):
    """m microbatches on p stages take (m + p - 1) times what one takes on a stage, and what the ends do besides."""
    times = {count: simulated(schedule, count).time_s for count in (4, 8)}
    each = (times[8] - times[4]) / 4
    assert times[8] == pytest.approx((8 + 4 - 1) * each, rel=0.05)
    result = simulated(schedule, 8)
    for stage in range(4):
        parts = phases_ps(result.timeline, stage, result.graph.phases)
        assert sum(parts.values()) == result.timeline.makespan_ps
        assert parts["bubble"] / sum(parts.values()) == pytest.approx(3 / 11, rel=0.15)


def test_forward_and_backward_alternate_on_the_last_stage():
    t = simulated("1f1b", 8).timeline
    mine = t.entity == 3
    order = []
    for row in np.flatnonzero(mine)[np.argsort(t.start_ps[mine], kind="stable")]:
        name = t.operation_names[t.operation[row]]
        if name.startswith(("q_m", "d_w_q")) and t.kind_names[t.kind[row]] == "matmul":
            order.append("F" if name.startswith("q_m") else "B")
    assert "".join(order).replace("FF", "F").replace("BB", "B").startswith("FBFBFBFB")


def test_stages_lie_on_one_axis():
    assert pipeline_axis(placed_plan("pipeline=4,data=2")) == "pipeline"
