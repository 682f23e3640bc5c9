"""The critical path fills the makespan without a gap, and says by what."""

from __future__ import annotations

from random import Random

import pytest

import simcore
from simcore.critical import critical_path, critical_rows
from simcore.errors import DeadlockError
from simcore.graph import Fixed, Take, TaskGraph
from simcore.running import run, simulate
from simcore.timeline import Timeline
from tests.random_graphs import flat_of, random_graph

SCENARIOS = ("double_buffering", "ring_allgather", "tile_reuse", "two_layer_mlp", "roofline")


def unbroken(timeline: Timeline) -> bool:
    edges = [(s.start_ps, s.end_ps) for s in critical_path(timeline).stretches]
    ends = [0, *(end for _, end in edges)]
    return [start for start, _ in edges] == ends[:-1] and ends[-1] == timeline.makespan_ps


@pytest.mark.parametrize("seed", range(60))
def test_on_random_graphs_the_path_fills_the_makespan(seed):
    try:
        timeline = simulate(flat_of(random_graph(Random(seed))))
    except DeadlockError:
        return
    assert unbroken(timeline)


@pytest.mark.parametrize("ideal", [False, True])
@pytest.mark.parametrize("name", SCENARIOS)
def test_every_way_of_adding_it_up_gives_the_makespan(name, ideal):
    timeline = simcore.run_scenario(name, ideal=ideal).timeline
    path = critical_path(timeline)
    assert unbroken(timeline)
    for by in (path.by_resource(), path.by_kind(), path.by_operation(), path.by_layer()):
        assert sum(by.values()) == path.total_ps == timeline.makespan_ps
    assert sum(row["duration_ps"] for row in path.table()) == timeline.makespan_ps


def test_layers_of_a_model_take_what_lies_between_them():
    result = simcore.run_scenario("decode_step", parameters={"model": "tiny", "context": 64})
    by_layer = critical_path(result.timeline).by_layer()
    assert set(by_layer) == {-1, 0, 1}
    assert min(by_layer.values()) > 0


def test_waiting_for_a_unit_is_on_the_path_as_the_service_of_the_one_before():
    graph = TaskGraph("two on one")
    chip = graph.entity_class("chip")
    chip.unit("hbm")
    chip.task("long", unit="hbm", queue="a", work=Fixed.of("5 us"))
    chip.task("short", unit="hbm", queue="b", work=Fixed.of("1 us"))
    path = critical_path(run(graph).timeline)
    assert path.by_operation() == {"long": 5_000_000, "short": 1_000_000}
    assert path.rows.tolist() == [0, 1]


def test_waiting_for_a_buffer_is_on_the_path_as_the_work_of_its_holder():
    graph = TaskGraph("one buffer")
    chip = graph.entity_class("chip")
    chip.unit("hbm"), chip.unit("mxu")
    chip.pool("p", memory="vmem", buffers=1, buffer_bytes=8)
    with chip.loop("tile", 3):
        load = chip.task("load", unit="hbm", work=Fixed.of("2 us"), takes=[Take("p", ["multiply"])])
        chip.task("multiply", unit="mxu", work=Fixed.of("3 us"), after=[load])
    assert critical_path(run(graph).timeline).by_resource() == {"mxu": 9_000_000, "hbm": 6_000_000}


def test_a_flight_after_the_service_is_latency():
    graph = TaskGraph("a hop")
    chip = graph.entity_class("chip")
    chip.unit("ici_x+")
    chip.task("send", unit="ici_x+", work=Fixed.of("2 us"), latency_ps=700_000)
    assert critical_path(run(graph).timeline).by_resource() == {"ici": 2_000_000, "ici latency": 700_000}


def test_a_run_of_nothing_has_no_path():
    graph = TaskGraph("nothing")
    graph.entity_class("chip")
    timeline = run(graph).timeline
    assert critical_path(timeline).total_ps == 0
    assert len(critical_rows(timeline)) == 0
