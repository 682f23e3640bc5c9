"""Scenario `two_layer_mlp`: each way to split the two weights computes the same, and what it moves is its formula."""

import math

import numpy as np
import pytest

from simcore.chips import load_chip
from simcore.errors import SimcoreError
from simcore.graph.races import check_races
from simcore.graph.unroll import unroll
from simcore.graph.values import execute
from simcore.hardware import Hardware
from simcore.layout.values import shard, unshard
from simcore.lowering import LoweringOptions, lower
from simcore.quantities import format_seconds
from simcore.scenario import load_scenario, run_scenario

SCENARIO = load_scenario("two_layer_mlp")
LAYOUTS = ["column_row", "column_column", "row_row", "row_column"]
MOVED = {"column_row": (0, 2), "column_column": (1, 1), "row_row": (1, 2), "row_column": (2, 1)}
"""Layout -> how many times B F and B D elements a ring moves, where y is whole on every chip."""


def simulate(ideal=True, chip=None, **parameters):
    return run_scenario("two_layer_mlp", ideal=ideal, chip=chip, parameters=parameters)


@pytest.mark.parametrize("lines", [(), ("X",)], ids=["ring", "line"])
@pytest.mark.parametrize("y", ["whole", "split"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_computes_the_same_two_layers(layout, y, lines):
    sizes = {"B": 3, "D": 8, "F": 12}
    p = SCENARIO.parameters({"batch": 3, "d_model": 8, "d_ff": 12, "chips": 4, "y": y})
    ops = SCENARIO.module.mlp(p, layout)
    chip = load_chip("v5e")
    graph = lower(ops, chip, LoweringOptions(lines=frozenset(lines)))
    flat = unroll(graph, Hardware(chip))
    check_races(flat)
    rng = np.random.default_rng(2)
    arrays, inputs = {}, {}
    for name in ("x", "w_in", "w_out"):
        held = ops.tensors[name].layout
        arrays[name] = rng.normal(size=held.global_shape(sizes))
        pieces = shard(arrays[name], held, ops.mesh)
        shape = graph.classes["chip"].tensors[name].shape
        inputs |= {(at, name): pieces[where].reshape(shape) for at, where in enumerate(ops.mesh.coordinates())}
    h = arrays["x"] @ arrays["w_in"]
    expected = SCENARIO.module.gelu(h) @ arrays["w_out"]
    result = ops.body[-1].out
    assert result.layout.dims[1].axes == (() if y == "whole" else ("X",))
    local = result.layout.local_shape(sizes, ops.mesh)
    for seed in range(2):
        storage = execute(flat, inputs, seed=seed)
        pieces = {where: storage[at, result.name].reshape(local) for at, where in enumerate(ops.mesh.coordinates())}
        np.testing.assert_allclose(unshard(pieces, result.layout, ops.mesh), expected, rtol=1e-9)


def test_the_activation_is_the_usual_one():
    """x Phi(x), to the accuracy of the tanh form."""
    x = np.linspace(-4, 4, 33)
    phi = np.array([(1 + math.erf(value / math.sqrt(2))) / 2 for value in x])
    np.testing.assert_allclose(SCENARIO.module.gelu(x), x * phi, atol=1e-3)


@pytest.mark.parametrize("y", ["whole", "split"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_bytes_that_a_layout_moves_are_those_of_its_formula(layout, y):
    b, d, f, n = 512, 1024, 4096, 8  # smaller ones go in one shot
    result = simulate(batch=b, d_model=d, d_ff=f, chips=n, layout=layout, y=y)
    hidden, model = MOVED[layout]
    elements = hidden * b * f + (model - (y == "split")) * b * d
    assert result.extra["layout_moved_bytes"] == result.bytes["ici"] == 2 * elements * (n - 1)


def test_flops_and_weights_of_a_chip_are_the_same_in_all():
    results = [simulate(batch=256, layout=layout) for layout in LAYOUTS]
    assert {result.flops for result in results} == {4 * 256 * 8192 * 32768}
    weights = 2 * 8192 * 32768
    for result in results:
        read = result.bytes_by_tensor["hbm_read"]
        assert read["w_in"] == read["w_out"] == weights


def test_columns_then_rows_saves_the_gather_of_the_hidden_layer():
    """On a ring of 16 v5e: 2 B D to move instead of B F + B D, which are (1 + F/D) / 2 = 2.5 times as much."""
    result = simulate()
    extra = result.extra
    assert result.time_s == extra["layout_time_s"] < extra["against_time_s"]
    assert extra["against_moved_bytes"] / extra["layout_moved_bytes"] == 2.5
    saved = 15 / 16 * 2 * 1024 * (32768 - 8192) / 90e9  # the hops are as many: 8 + 8 of either
    assert extra["against_time_s"] - extra["layout_time_s"] == pytest.approx(saved, rel=0.02)


def test_a_split_result_costs_half_an_all_reduce():
    whole, split = (simulate(y=y).extra["layout_time_s"] for y in ("whole", "split"))
    one = 15 / 16 * 2 * 1024 * 8192 / 90e9 + 8e-6
    assert whole - split == pytest.approx(one, rel=0.02)


def test_a_hidden_layer_as_narrow_as_the_model_leaves_nothing_to_save():
    """F = D: an AllReduce of y moves what the two gathers do."""
    extra = simulate(d_ff=8192).extra
    assert extra["against_moved_bytes"] == extra["layout_moved_bytes"]
    assert extra["against_time_s"] == pytest.approx(extra["layout_time_s"], rel=0.05)


def test_a_line_takes_about_twice_the_communication():
    ring, line = (simulate(line=line).extra["layout_exposed_communication_s"] for line in (False, True))
    assert line / ring == pytest.approx(2, rel=0.05)


def test_one_chip_communicates_nothing():
    result = simulate(chips=1, batch=64)
    assert result.extra["layout_moved_bytes"] == result.extra["against_moved_bytes"] == 0
    assert result.extra["layout_time_s"] == result.extra["against_time_s"]


def test_the_finding_names_both_layouts_with_their_times():
    note = simulate().notes[-1]
    assert note == (
        "column_row 722.3 us with 503.3 MB over the links, column_column 1.249 ms with 1.258 GB over the links: "
        "1.73 x the time"
    )


@pytest.mark.parametrize("line", [False, True], ids=["ring", "line"])
def test_the_picture_has_both_timelines_under_the_finding(tmp_path, line):
    result = simulate(line=line, chips=4, batch=256)
    path = tmp_path / "two_layer_mlp.svg"
    SCENARIO.plot(result, path)
    drawn = path.read_text(encoding="utf-8")
    assert result.notes[-1] in drawn
    for name, layout in (("layout", "column_row"), ("against", "column_column")):
        assert f"{layout}, {format_seconds(result.extra[f'{name}_time_s'])}: chip" in drawn
    assert ("left out" in drawn) is line


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"chips": 3}, "--d-model 8192 does not divide over 3 chips"),
        ({"d_ff": 1000}, "--d-ff 1000 does not divide over 16 chips"),
        ({"layout": "columns_rows"}, "column_row"),
        ({"dtype": "fp8"}, "no fp8 matmul rate"),
        ({"y": "some"}, "whole"),
    ],
)
def test_what_cannot_be_is_said(parameters, message):
    with pytest.raises(SimcoreError, match=message):
        simulate(**parameters)
