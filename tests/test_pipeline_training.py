"""Pipeline schedules while training: their order, what they hold, and their bubble."""

import dataclasses
import functools
import itertools

import numpy as np
import pytest

from simcore.chips import load_chip
from simcore.phases import phases_ps
from simcore.running import run
from workloads.catalogue import load_model
from workloads.schedules import CHUNKED, SCHEDULES, closed_form_bubble
from workloads.stages import pipeline_axis
from workloads.training import TrainingOptions, lowered_training
from workloads.transformer import placed_plan

CONFIG = load_model("tiny")
FREE = load_chip("v5p").replace(
    ici_hop_latency_s=0, ici_link_bandwidth_bytes_per_s=1e15, hbm_bandwidth_bytes_per_s=1e15
)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize(("stages", "microbatches"), [(1, 1), (2, 2), (4, 8), (4, 4), (3, 3)])
@pytest.mark.parametrize("chunks", [1, 2, 3])
def test_every_schedule_has_each_pass_once_and_forward_before_backward(name, stages, microbatches, chunks):
    chunks = chunks if name in CHUNKED else 1
    for stage in range(stages):
        passes = list(SCHEDULES[name](stage, stages, microbatches, chunks))
        assert len(passes) == len(set(passes)) == 2 * microbatches * chunks
        for number, chunk in itertools.product(range(microbatches), range(chunks)):
            assert passes.index((True, number, chunk)) < passes.index((False, number, chunk))


@pytest.mark.parametrize(("stages", "microbatches", "chunks"), [(2, 2, 2), (4, 8, 2), (4, 4, 3), (3, 6, 1)])
def test_interleaved_passes_never_wait_for_each_other_in_a_circle_and_have_the_closed_forms_bubble(
    stages, microbatches, chunks
):
    """Passes of one tick forward and two backward, each as soon as its stage and what it needs are there."""
    orders = [list(SCHEDULES["interleaved"](stage, stages, microbatches, chunks)) for stage in range(stages)]
    last, done, free, at = stages * chunks - 1, {}, [0] * stages, [0] * stages
    while any(at[stage] < len(orders[stage]) for stage in range(stages)):
        moved = False
        for stage in range(stages):
            if at[stage] == len(orders[stage]):
                continue
            forward, number, chunk = one = orders[stage][at[stage]]
            place = chunk * stages + stage
            if forward:
                need = None if place == 0 else (True, number, place - 1)
            else:
                need = (True, number, last) if place == last else (False, number, place + 1)
            if need is not None and need not in done:
                continue
            start = max(free[stage], done.get(need, 0))
            free[stage] = done[one.forward, number, place] = start + (1 if forward else 2)
            at[stage], moved = at[stage] + 1, True
        assert moved
    whole = max(free)
    bubble = closed_form_bubble("interleaved", stages, microbatches, chunks)
    assert 1 - 3 * microbatches * chunks / whole == pytest.approx(bubble, rel=1e-12)


def held(name, stage, stages, microbatches):
    alive = most = 0
    for forward, _, _ in SCHEDULES[name](stage, stages, microbatches, 1):
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


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
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


def test_interleaving_divides_the_bubble_by_the_chunks():
    result = simulated("interleaved", 8, stages=2, layers=4)
    whole = result.timeline.makespan_ps
    bubbles = [phases_ps(result.timeline, stage, result.graph.phases)["bubble"] / whole for stage in range(2)]
    assert bubbles[1] == pytest.approx(closed_form_bubble("interleaved", 2, 8, 2), rel=0.05)
    assert 1 / 17 < bubbles[0] < 1 / 11  # the first stage waits for the loss too, which the last alone has
    assert result.time_s < simulated("1f1b", 8, stages=2, layers=4).time_s


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
