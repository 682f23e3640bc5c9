"""A graph executed on numpy values gives the same in every permitted order, or is caught."""

from __future__ import annotations

import numpy as np
import pytest

from simcore.errors import DeadlockError, GraphError
from simcore.graph import BufferAccess, Fixed, Ref, Take, TaskGraph, TensorAccess
from simcore.graph.races import check_races
from simcore.graph.values import execute
from simcore.running import simulate
from tests.random_graphs import flat_of

SEEDS = range(12)


def rows(i, c):
    return (slice(2 * i["tile"], 2 * i["tile"] + 2), slice(0, 3))


def tiled_matmul(tiles=4, buffers=2, freed_by=("multiply",), loads_before=True, ideal=True):
    """C = A B on one chip, A and C in tiles of two rows that pass through buffers."""
    graph = TaskGraph("matmul")
    chip = graph.entity_class("chip")
    for unit in ("hbm", "mxu"):
        chip.unit(unit)
    for name in ("A", "B", "C"):
        chip.tensor(name, bytes=8, shape=(2 * tiles, 3))
    chip.pool("in", memory="vmem", buffers=buffers, buffer_bytes=8)
    chip.pool("out", memory="vmem", buffers=buffers, buffer_bytes=8)
    with chip.loop("tile", tiles):
        load = chip.task(
            "load",
            unit="hbm",
            queue="loads",
            work=Fixed(3),
            takes=[Take("in", list(freed_by))],
            reads=[TensorAccess("A", rows)],
            writes=[BufferAccess("in")],
            function=lambda a: a,
        )
        multiply = chip.task(
            "multiply",
            unit="mxu",
            work=Fixed(5),
            after=[load] if loads_before else [],
            takes=[Take("out", ["store"])],
            reads=[BufferAccess("in", load.ref()), TensorAccess("B")],
            writes=[BufferAccess("out")],
            function=lambda a, b: a @ b,
        )
        chip.task(
            "store",
            unit="hbm",
            queue="stores",
            work=Fixed(3),
            latency_ps=2,
            after=[multiply],
            reads=[BufferAccess("out", multiply.ref())],
            writes=[TensorAccess("C", rows)],
            function=lambda c: c,
        )
    return flat_of(graph)


def operands(tiles=4):
    rng = np.random.default_rng(0)
    return {(0, "A"): rng.integers(-9, 9, (2 * tiles, 3)), (0, "B"): rng.integers(-9, 9, (3, 3))}


@pytest.mark.parametrize("buffers", [1, 2, 3])
def test_tiles_through_buffers_give_numpy_s_product_in_every_order(buffers):
    flat, inputs = tiled_matmul(buffers=buffers), operands()
    check_races(flat)
    wanted = inputs[0, "A"] @ inputs[0, "B"]
    for seed in SEEDS:
        assert np.array_equal(execute(flat, inputs, seed=seed)[0, "C"], wanted)
    assert np.array_equal(execute(flat, inputs, schedule=simulate(flat))[0, "C"], wanted)


@pytest.mark.parametrize("fault", [{"freed_by": ()}, {"loads_before": False}])
def test_a_buffer_freed_too_early_or_a_forgotten_dependency_gives_nan_or_wrong_numbers_in_some_order(fault):
    flat, inputs = tiled_matmul(buffers=1, **fault), operands()
    wanted = inputs[0, "A"] @ inputs[0, "B"]
    assert not all(np.array_equal(execute(flat, inputs, seed=seed)[0, "C"], wanted) for seed in SEEDS)


def test_the_same_seed_draws_the_same_order():
    flat, inputs = tiled_matmul(buffers=1, freed_by=()), operands()
    first, again = execute(flat, inputs, seed=3), execute(flat, inputs, seed=3)
    assert all(np.array_equal(first[key], again[key], equal_nan=True) for key in first)


def test_a_destination_is_nan_from_start_to_completion():
    graph = TaskGraph("t")
    chip = graph.entity_class("chip")
    for name in ("a", "seen"):
        chip.tensor(name, bytes=8, shape=(1,))
    chip.task("write", work=Fixed(5), writes=[TensorAccess("a")], function=lambda: np.ones(1))
    chip.task(
        "look",
        after=[Ref("write", event="start", lag_ps=1)],
        reads=[TensorAccess("a")],
        writes=[TensorAccess("seen")],
        function=lambda a: a,
    )
    flat = flat_of(graph)
    seen = execute(flat, {(0, "a"): np.zeros(1)}, schedule=simulate(flat))[0, "seen"]
    assert np.isnan(seen) or seen == 1  # the old value is gone from the start on
    assert any(np.isnan(execute(flat, {(0, "a"): np.zeros(1)}, seed=s)[0, "seen"]) for s in SEEDS)


def test_two_tasks_may_fill_parts_of_one_buffer():
    graph = TaskGraph("t")
    chip = graph.entity_class("chip")
    chip.pool("p", memory="vmem", buffers=1, buffer_bytes=32)
    chip.tensor("out", bytes=32, shape=(4,))
    take = chip.task("take", takes=[Take("p", ["use"])])
    for half in (1, 0):
        chip.task(
            f"fill{half}",
            after=[take],
            writes=[BufferAccess("p", take.ref(), lambda i, c, h=half: (slice(2 * h, 2 * h + 2),))],
            function=lambda h=half: np.array([h, h]),
        )
    chip.task(
        "use",
        after=["fill0", "fill1"],
        reads=[BufferAccess("p", take.ref())],
        writes=[TensorAccess("out")],
        function=lambda p: p,
    )
    flat = flat_of(graph)
    check_races(flat)
    for seed in SEEDS:
        assert execute(flat, {}, seed=seed)[0, "out"].tolist() == [0, 0, 1, 1]


def test_a_tensor_with_a_scope_is_another_one_in_each_iteration():
    graph = TaskGraph("t")
    chip = graph.entity_class("chip")
    chip.tensor("out", bytes=8, shape=(3,))
    with chip.loop("layer", 3):
        chip.tensor("x", bytes=8, shape=(1,), scope=["layer"])
        chip.task("make", writes=[TensorAccess("x")], function=lambda: np.ones(1))
        chip.task(
            "use",
            after=["make"],
            reads=[TensorAccess("x")],
            writes=[TensorAccess("out", lambda i, c: (slice(i["layer"], i["layer"] + 1),))],
            function=lambda x: x,
        )
    flat = flat_of(graph)
    check_races(flat)  # the layers need not wait for each other
    for seed in SEEDS:
        assert execute(flat, {}, seed=seed)[0, "out"].tolist() == [1, 1, 1]


def test_what_nobody_wrote_is_nan():
    graph = TaskGraph("t")
    chip = graph.entity_class("chip")
    for name in ("a", "b"):
        chip.tensor(name, bytes=8, shape=(2,))
    chip.task("copy", reads=[TensorAccess("a")], writes=[TensorAccess("b")], function=lambda a: a)
    assert np.isnan(execute(flat_of(graph), {})[0, "b"]).all()


def test_a_result_too_many_and_an_unknown_input_are_errors():
    graph = TaskGraph("t")
    chip = graph.entity_class("chip")
    chip.tensor("a", bytes=8, shape=(1,))
    chip.task("two", writes=[TensorAccess("a")], function=lambda: (np.ones(1), np.ones(1)))
    with pytest.raises(GraphError, match="two on chip: its function gives 2 arrays, it writes 1"):
        execute(flat_of(graph), {})
    with pytest.raises(GraphError, match="input 'b' of entity 0 is not a declared tensor"):
        execute(flat_of(graph), {(0, "b"): np.ones(1)})


def test_a_graph_that_cannot_go_on_says_so():
    graph = TaskGraph("t")
    chip = graph.entity_class("chip")
    chip.pool("p", memory="vmem", buffers=1, buffer_bytes=8)
    chip.task("a", takes=[Take("p", None)])
    chip.task("b", takes=[Take("p", None)])
    with pytest.raises(DeadlockError, match="b on chip waits"):
        execute(flat_of(graph), {})
    chip.task("c", after=["c"])
    chip.tasks["b"].takes = ()
    with pytest.raises(DeadlockError, match="no permitted order runs all"):
        execute(flat_of(graph), {})
