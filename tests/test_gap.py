"""Bounds are never beaten, and the gap to the best of them is taken apart without a rest."""

from __future__ import annotations

from random import Random

import pytest

import simcore
from simcore.bounds import bounds, bounds_of, flat_of
from simcore.chips import load_chip
from simcore.errors import DeadlockError, GraphError
from simcore.gap import Gap, Part, gap, gap_of
from simcore.graph import Fixed, Ref, Take, TaskGraph, Transfer
from simcore.hardware import Hardware
from simcore.running import run, simulate
from simcore.scenario import scenario_names
from tests.random_graphs import flat_of as random_flat
from tests.random_graphs import random_graph
from tests.test_sensitivity import loaded_graph

SMALL = {
    "decode_step": {"model": "tiny", "context": 128, "ring": 2},
    "prefill": {"model": "tiny", "context": 128},
    "training_step": {"model": "tiny", "context": 128, "batch": 4, "plan": "fsdp=2"},
    "remat": {"model": "tiny", "context": 64, "batch": 4, "plan": "fsdp=2"},
    "pipeline": {"model": "tiny", "context": 64, "batch": 4, "plan": "pipeline=2", "microbatches": 4},
}


@pytest.mark.parametrize("ideal", [False, True])
@pytest.mark.parametrize("name", scenario_names())
def test_on_every_scenario_the_parts_add_up_to_the_gap(name, ideal):
    result = simcore.run_scenario(name, ideal=ideal, parameters=SMALL.get(name))
    found = gap_of(result)
    assert found.makespan_ps == result.timeline.makespan_ps
    assert found.bound_ps == bounds_of(result).best_ps > 0
    assert found.bound_ps + sum(part.ps for part in found.parts) == found.makespan_ps
    assert all(part.ps > 0 for part in found.parts)


@pytest.mark.parametrize("seed", range(40))
def test_on_random_graphs_the_parts_add_up_to_the_gap(seed):
    rng = Random(seed)
    for graph, ideal in ((random_graph(rng), True), (loaded_graph(rng), False)):
        hardware = Hardware(load_chip("v5e"), ideal)
        flat = random_flat(graph, ideal)
        try:
            timeline = simulate(flat)
        except DeadlockError:
            continue
        limits = bounds(timeline, flat, hardware)
        assert max([limits.dependencies_ps, *limits.resources_ps.values()]) <= timeline.makespan_ps
        found = gap(timeline, flat, hardware, limits)
        assert found.bound_ps + sum(part.ps for part in found.parts) == timeline.makespan_ps
        assert all(part.ps > 0 for part in found.parts)


def stream(tiles: int, load: str, compute: str, buffers: int = 2) -> TaskGraph:
    graph = TaskGraph("stream")
    chip = graph.entity_class("chip")
    chip.unit("hbm"), chip.unit("mxu")
    chip.pool("p", memory="vmem", buffers=buffers, buffer_bytes=8)
    with chip.loop("tile", tiles):
        tile = chip.task("load", unit="hbm", work=Fixed.of(load), takes=[Take("p", ["multiply"])])
        chip.task("multiply", unit="mxu", work=Fixed.of(compute), after=[tile])
    return graph


def test_a_pipeline_bound_by_loads_ends_with_one_computation():
    found = gap_of(run(stream(8, "50 us", "25 us")))
    assert (found.bound_by, found.bound_ps, found.by_name()) == ("hbm", 400_000_000, {"pipeline drain": 25_000_000})


def test_a_pipeline_bound_by_computation_begins_with_one_load():
    found = gap_of(run(stream(8, "25 us", "50 us")))
    assert (found.bound_by, found.by_name()) == ("mxu", {"pipeline fill": 25_000_000})


def test_with_one_buffer_the_loads_wait_for_every_computation():
    found = gap_of(run(stream(8, "50 us", "25 us", buffers=1)))
    assert found.by_name() == {"waiting for MXU": 7 * 25_000_000, "pipeline drain": 25_000_000}


def test_independent_tasks_are_bound_by_the_longest_alone():
    found = bounds_of(run(stream(8, "50 us", "25 us")))
    assert found.dependencies_ps == 75_000_000
    assert found.all_ps() == {"hbm": 400_000_000, "mxu": 200_000_000, "dependencies": 75_000_000}


def test_a_chain_over_two_units_is_bound_by_its_dependencies():
    graph = TaskGraph("chain")
    chip = graph.entity_class("chip")
    chip.unit("hbm"), chip.unit("mxu")
    with chip.loop("step", 4):
        load = chip.task(
            "load", unit="hbm", work=Fixed.of("2 us"), after=[Ref("multiply", at={"step": -1}, outside="ignore")]
        )
        chip.task("multiply", unit="mxu", work=Fixed.of("3 us"), after=[load])
    found = gap_of(run(graph))
    assert (found.bound_by, found.bound_ps, found.parts) == ("dependencies", 20_000_000, ())
    assert found.sentence() == "simulated is 1.00 x the bound (dependencies): nothing is lost"


def test_what_a_chain_stands_in_line_for_is_named():
    graph = TaskGraph("in line")
    chip = graph.entity_class("chip")
    chip.unit("hbm"), chip.unit("mxu")
    chip.task("other", unit="hbm", queue="other", work=Fixed.of("1 us"))
    load = chip.task("load", unit="hbm", work=Fixed.of("5 us"))
    chip.task("multiply", unit="mxu", work=Fixed.of("5 us"), after=[load])
    found = gap_of(run(graph))
    assert (found.bound_by, found.bound_ps) == ("dependencies", 10_000_000)
    assert found.parts == (Part("queueing for HBM", "hbm", "load", 1_000_000),)


def test_a_lag_after_a_start_counts_into_the_chain():
    graph = TaskGraph("lag")
    chip = graph.entity_class("chip")
    chip.unit("hbm"), chip.unit("mxu")
    chip.task("load", unit="hbm", work=Fixed.of("1 us"))
    chip.task("multiply", unit="mxu", work=Fixed.of("2 us"), after=[Ref("load", event="start", lag_ps=4_000_000)])
    assert gap_of(run(graph)) == Gap(6_000_000, 6_000_000, "dependencies", ())


def test_the_costs_of_a_calibrated_channel_are_told_apart():
    graph = TaskGraph("loads")
    chip = graph.entity_class("chip")
    chip.unit("hbm")
    with chip.loop("tile", 10):
        chip.task("load", unit="hbm", work=Transfer(8_100_000))
    chip_used = load_chip("v5e").replace(
        hbm_bandwidth_bytes_per_s=8.1e11, dma_issue_cost_s="0.2us", hbm_latency_s="0.5us", efficiency=0.9
    )
    found = gap_of(run(graph, chip=chip_used))
    assert found.bound_ps == 100_000_000
    assert found.by_name() == {
        "efficiency of HBM": 10 * (11_111_111 - 10_000_000),
        "issue costs": 10 * 200_000,
        "pipeline drain": 500_000,
    }


def test_communication_in_front_of_the_bounding_unit_is_named_by_its_operation():
    graph = TaskGraph("exposed")
    chip = graph.entity_class("chip")
    chip.unit("mxu"), chip.unit("ici_x+")
    chip.task("first", unit="mxu", work=Fixed.of("5 us"))
    with chip.operation("all_gather"):
        send = chip.task("send", unit="ici_x+", work=Fixed.of("2 us"), latency_ps=1_000_000, after=["first"])
    chip.task("last", unit="mxu", work=Fixed.of("30 us"), after=[send])
    graph.classes["chip"].task("aside", unit="mxu", work=Fixed.of("10 us"))
    found = gap_of(run(graph))
    assert found.bound_by == "mxu"
    assert found.by_name() == {"exposed all_gather": 2_000_000, "latency": 1_000_000}
    assert found.sentence() == "simulated is 1.07 x the bound (MXU); of the 6.7 %: 4.5 exposed all_gather, 2.2 latency"


@pytest.mark.parametrize("seed", range(20))
def test_the_shares_of_the_sentence_add_up_to_the_whole(seed):
    rng = Random(seed)
    parts = tuple(
        Part(f"part {n}", "hbm", "", rng.randint(1, 10 ** rng.randint(1, 8))) for n in range(rng.randint(1, 7))
    )
    bound = 10**8
    text = Gap(bound + sum(p.ps for p in parts), bound, "hbm", parts).sentence()
    whole = float(text.partition("of the ")[2].partition(" %")[0])
    shares = [float(item.split()[0]) for item in text.partition("%: ")[2].split(", ")]
    assert sum(shares) == pytest.approx(whole, abs=1e-9)


def test_a_timeline_of_another_graph_is_refused():
    import dataclasses

    one, other = run(stream(2, "1 us", "1 us")), run(stream(3, "1 us", "1 us"))
    with pytest.raises(GraphError, match="not one of its graph"):
        flat_of(dataclasses.replace(one, graph=other.graph))


def test_nothing_to_do_has_no_gap():
    graph = TaskGraph("nothing")
    graph.entity_class("chip")
    assert gap_of(run(graph)) == Gap(0, 0, "none", ())
