"""Sensitivities are what simulating again on a slightly different chip gives."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

import simcore
from simcore.chips import Chip, load_chip
from simcore.critical import critical_path
from simcore.errors import DeadlockError, GraphError
from simcore.graph import Fixed, Matmul, Ref, Take, TaskGraph, Transfer, Vector
from simcore.graph.unroll import unroll
from simcore.hardware import Hardware
from simcore.pricing import Pricer, affine, knobs
from simcore.replay import Frozen
from simcore.running import run, simulate
from simcore.sensitivity import Sensitivity, Study, sensitivities
from tests.random_graphs import flat_of, random_graph

UNITS = ("hbm", "hbm", "mxu", "vpu", "ici_x+", "ici_x-")
SIZES = (30_000, 100_000, 123_456, 700_001)


def random_work(rng: Random, unit: str):
    if unit == "mxu":
        return Matmul(rng.choice((64, 200)), 256, rng.choice((128, 1000)))
    if unit == "vpu":
        return Vector(rng.choice(SIZES) * 10, rng.choice(SIZES) * 30)
    return Transfer(rng.choice(SIZES))


def loaded_graph(rng: Random, tasks: int = 9) -> TaskGraph:
    """Transfers, matmuls and vector work of one or two chips, in several queues a unit, with buffers that run short."""
    graph = TaskGraph("loaded")
    size = rng.randint(1, 2)
    chip = graph.entity_class("chip", mesh={"x": size}, only=[(x,) for x in range(size)])
    for unit in sorted(set(UNITS)):
        chip.unit(unit)
    chip.pool("p", memory="vmem", buffers=rng.randint(1, 3), buffer_bytes=8)
    rounds = rng.randint(1, 4)
    with chip.loop("round", rounds):
        for number in range(tasks):
            unit = rng.choice(UNITS)
            known = sorted(chip.tasks)
            after = [Ref(rng.choice(known)) for _ in range(rng.randint(0, 2))] if known else []
            if known and rng.random() < 0.3:
                target = rng.choice(known)
                after.append(Ref(target, at={"round": -1}, cls="chip", outside="ignore"))
            if known and rng.random() < 0.2:
                after.append(Ref(rng.choice(known), event="start", lag_ps=rng.choice((0, 50_000))))
            if known and size > 1 and rng.random() < 0.3:
                after.append(Ref(rng.choice(known), on={"x": 1}))
            takes = []
            if rng.random() < 0.35:
                later = [f"t{number + 1}"] if number + 1 < tasks and rng.random() < 0.6 else []
                takes = [Take("p", later)]
            chip.task(
                f"t{number}",
                unit=unit,
                queue=f"{unit}.{rng.choice('ab')}",
                work=random_work(rng, unit),
                after=after,
                takes=takes,
            )
    return graph


def makespan_ps(graph: TaskGraph, chip: Chip, ideal: bool) -> int:
    return run(graph, chip=chip, ideal=ideal).timeline.makespan_ps


def figure_times(chip: Chip, one: Sensitivity, factor: float) -> Chip:
    return chip.replace(**{one.figure: one.value * factor})


def factors_within(rng: Random, one: Sensitivity) -> list[float]:
    """The ends of the claimed range, and somewhere inside on each side."""
    sides = [(one.lowest, 1.0), (1.0, one.highest)]
    return [one.lowest, one.highest, *(low + rng.random() * (high - low) for low, high in sides)]


@pytest.mark.parametrize("seed", range(40))
def test_within_their_range_sensitivities_equal_finite_differences(seed):
    rng = Random(seed)
    graph, chip, ideal = loaded_graph(rng), load_chip("v5e"), rng.random() < 0.5
    try:
        base = run(graph, chip=chip, ideal=ideal)
    except DeadlockError:
        return
    found = sensitivities(base)
    assert found
    for one in found:
        for factor in factors_within(rng, one):
            again = run(graph, chip=figure_times(chip, one, factor), ideal=ideal).timeline
            tasks = max(len(critical_path(base.timeline).rows), one.tasks)
            assert abs(again.makespan_ps - one.predicted_ps(factor)) <= tasks, (one, factor)


def test_ranges_are_claimed_far_more_often_than_not():
    sides = []
    for seed in range(40, 60):
        try:
            base = run(loaded_graph(Random(seed)), chip="v5e")
        except DeadlockError:
            continue
        sides += [side for one in sensitivities(base) for side in (one.lowest < 1, one.highest > 1)]
    assert len(sides) > 100
    assert np.mean(sides) > 0.75


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("decode_step", {"model": "tiny", "context": 128, "ring": 2}),
        ("two_layer_mlp", {}),
        ("tile_reuse", {}),
        ("ring_allgather", {}),
    ],
)
def test_a_scenario_s_own_graph_answers_as_predicted(name, parameters):
    base = simcore.run_scenario(name, parameters=parameters)
    for one in sensitivities(base):
        for factor in (one.lowest, one.highest):
            again = run(base.graph, chip=figure_times(base.chip, one, factor)).timeline
            assert abs(again.makespan_ps - one.predicted_ps(factor)) <= max(one.tasks, 1), (one, factor)


def by_figure(graph: TaskGraph, chip: Chip | str = "v5e", ideal: bool = True) -> dict[str, Sensitivity]:
    return {one.figure: one for one in sensitivities(run(graph, chip=chip, ideal=ideal))}


def one_chip(*units: str):
    graph = TaskGraph("one")
    chip = graph.entity_class("chip")
    for unit in units:
        chip.unit(unit)
    return graph, chip


def test_loads_alone_go_with_hbm_bandwidth():
    graph, chip = one_chip("hbm")
    chip.task("load", unit="hbm", work=Transfer(81_000_000))
    found = by_figure(graph)
    assert set(found) == {"hbm_bandwidth_bytes_per_s"}
    one = found["hbm_bandwidth_bytes_per_s"]
    assert one.elasticity() == pytest.approx(-1)
    assert one.derivative() == pytest.approx(-81e6 / 8.1e11**2)
    assert one.predicted_ps(2.0) == pytest.approx(50_000_000)
    assert (one.lowest, one.highest) == (0.25, 4.0)


def test_a_fixed_duration_answers_to_nothing():
    graph, chip = one_chip("hbm")
    chip.task("load", unit="hbm", work=Fixed.of("1 us"))
    assert by_figure(graph) == {}


def test_what_is_hidden_has_no_effect_until_it_comes_out():
    graph, chip = one_chip("hbm", "mxu")
    chip.task("load", unit="hbm", work=Transfer(81_000_000))
    chip.task("other", unit="mxu", work=Fixed.of("150 us"))
    one = by_figure(graph)["hbm_bandwidth_bytes_per_s"]
    assert one.elasticity(True) == one.elasticity(False) == 0
    assert one.highest == 4.0
    assert 1 / 1.5 <= one.lowest < 1 / 1.5 + 0.02


def test_at_a_tie_of_two_paths_both_sides_are_given():
    graph, chip = one_chip("hbm", "mxu")
    chip.task("load", unit="hbm", work=Transfer(81_000_000))
    chip.task("other", unit="mxu", work=Fixed.of("100 us"))
    one = by_figure(graph)["hbm_bandwidth_bytes_per_s"]
    assert one.tie
    assert one.elasticity(up=True) == 0
    assert one.elasticity(up=False) == pytest.approx(-1)
    assert one.predicted_ps(2.0) == 100_000_000
    assert one.predicted_ps(0.5) == pytest.approx(200_000_000)
    assert (one.lowest, one.highest) == (0.25, 4.0)


def test_vector_work_bound_by_memory_and_operations_alike_answers_on_one_side():
    chip = load_chip("v5e").replace(vpu_flops_per_s=1e12, vmem_bandwidth_bytes_per_s=2e12)
    graph, core = one_chip("vpu")
    core.task("add", unit="vpu", work=Vector(10_000_000, 20_000_000))
    for figure in ("vpu_flops_per_s", "vmem_bandwidth_bytes_per_s"):
        one = by_figure(graph, chip)[figure]
        assert one.elasticity(up=True) == 0
        assert one.elasticity(up=False) == pytest.approx(-1)


def test_a_hop_counts_as_often_as_it_is_waited_for():
    result = simcore.run_scenario("ring_allgather", parameters={"ring": 8, "direction": "one_way"}, ideal=True)
    hop = next(one for one in sensitivities(result) if one.figure == "ici_hop_latency_s")
    assert hop.tasks == 7
    assert hop.derivative() == pytest.approx(7)


def test_the_launch_is_a_cost_like_others():
    base = simcore.run_scenario("decode_step", parameters={"model": "tiny"}, figures={"launch_cost": "3 us"})
    launch = next(one for one in sensitivities(base) if one.figure == "launch_cost_s")
    assert launch.derivative() == pytest.approx(1)
    again = simcore.run_scenario("decode_step", parameters={"model": "tiny"}, figures={"launch_cost": "4 us"})
    assert again.timeline.makespan_ps == pytest.approx(launch.predicted_ps(4 / 3), abs=1)


def test_requests_that_tie_by_chance_make_no_claim_on_the_side_where_they_would_swap():
    graph, chip = one_chip("hbm", "mxu", "vpu")
    chip.task("first", unit="mxu", work=Fixed.of("100 us"))
    chip.task("second", unit="hbm", queue="a", work=Transfer(81_000_000))
    chip.task("long", unit="vpu", queue="b", work=Fixed.of("30 us"), after=["second"])
    chip.task("short", unit="vpu", queue="c", work=Fixed.of("10 us"), after=["first"])
    chip.task("last", unit="mxu", work=Fixed.of("500 us"), after=["short"])
    one = by_figure(graph)["hbm_bandwidth_bytes_per_s"]
    assert one.lowest == 1  # slower, "short" would come first
    assert one.highest > 1


@pytest.mark.parametrize("seed", range(50))
def test_a_frozen_order_replays_its_own_run(seed):
    flat = flat_of(random_graph(Random(seed)))
    try:
        frozen = Frozen(flat, simulate(flat))
    except (DeadlockError, GraphError):
        return
    found = frozen.makespans(flat.duration_ps[:, None], flat.latency_ps[:, None])
    assert found.tolist() == [frozen.timeline.makespan_ps]


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("ideal", [False, True])
def test_prices_are_those_of_unrolling_again(seed, ideal):
    graph, chip = loaded_graph(Random(seed)), load_chip("v5e")
    pricer = Pricer(unroll(graph, Hardware(chip, ideal)))
    for knob in knobs(chip):
        other = Hardware(knob.at(chip, 1.7), ideal)
        cost, flat = pricer(other), unroll(graph, other)
        assert cost.duration_ps.tolist() == flat.duration_ps.tolist()
        assert cost.latency_ps.tolist() == flat.latency_ps.tolist()
        parts = affine(pricer, Hardware(chip, ideal), knob)
        if parts is not None:
            assert np.abs(parts[0].at(1.7) - cost.duration_ps).max() <= 1.001
            assert np.abs(parts[1].at(1.7) - cost.latency_ps).max() <= 1.001


def test_the_frozen_order_foresees_another_chip_as_long_as_the_order_stays():
    base = simcore.run_scenario("decode_step", parameters={"model": "tiny", "context": 128})
    chip = base.chip.replace(hbm_bandwidth="1.5x", ici_latency="0.5x")
    assert Study(base).predicted_ps(chip) == run(base.graph, chip=chip).timeline.makespan_ps


def test_a_run_of_nothing_answers_to_nothing():
    graph, _ = one_chip("hbm")
    assert by_figure(graph) == {}
