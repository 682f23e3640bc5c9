"""Collectives on sharded tensors of an op graph: any dimension, any axes, checked by values against plain slicing."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcore.chips import load_chip
from simcore.graph.races import check_races
from simcore.graph.unroll import unroll
from simcore.graph.values import execute
from simcore.hardware import Hardware
from simcore.layout import Mesh, parse_tensor
from simcore.layout.values import shard
from simcore.lowering import LoweringOptions, lower
from simcore.opgraph import OpGraph
from simcore.opgraph.reshard import received_bytes, reshard, route

CHIP = load_chip("v5e")


def by_chip(ops, shards, name, shape):
    """A tensor's shards as inputs of its chips' tasks."""
    return {(at, name): shards[chip].reshape(shape) for at, chip in enumerate(ops.mesh.coordinates())}


def moved(text, wanted, mesh, sizes, *, rows=1, chip=CHIP, races=False, **options):
    """Reshard random values; returns the shards there should be and those there are, and the steps."""
    ops = OpGraph("reshard", Mesh.parse(mesh), sizes, dtype="fp32")
    x = ops.input(text, rows=rows)
    goal = parse_tensor(wanted)
    steps = route(ops, x, goal)
    out = reshard(ops, x, goal)
    graph = lower(ops, chip, LoweringOptions(**options))
    flat = unroll(graph, Hardware(chip))
    if races:
        check_races(flat)
    whole = np.random.default_rng(1).normal(size=x.layout.global_shape(sizes))
    tensors = graph.classes["chip"].tensors
    given_ = by_chip(ops, shard(whole, x.layout, ops.mesh), "x", tensors["x"].shape)
    expected = by_chip(ops, shard(whole, out.layout, ops.mesh), out.name, tensors[out.name].shape)
    for seed in range(2):
        storage = execute(flat, given_, seed=seed)
        for key, array in expected.items():
            np.testing.assert_allclose(storage[key], array, rtol=1e-9, atol=1e-12)
    return [step.kind for step in steps]


@pytest.mark.parametrize("lines", [(), ("X", "Y")], ids=["rings", "lines"])
@pytest.mark.parametrize(
    ("before", "after", "rows", "kinds"),
    [
        ("x[B, D_X]", "x[B, D]", 1, ["AllGather"]),
        ("x[B_X, D]", "x[B, D]", 1, ["AllGather"]),
        ("x[B, T_X, D]", "x[B, T, D]", 2, ["AllGather"]),
        ("x[B, T, N, D_X]", "x[B, T, N, D]", 2, ["AllGather"]),
        ("x[B, D_{XY}]", "x[B, D]", 1, ["AllGather"]),
        ("x[B, D_{XY}]", "x[B, D_X]", 1, ["AllGather"]),
        ("x[B_X, D_Y]", "x[B, D]", 1, ["AllGather", "AllGather"]),
        ("x[B, D]{U_X}", "x[B, D]", 1, ["AllReduce"]),
        ("x[B, D]{U_XY}", "x[B, D]", 1, ["AllReduce"]),
        ("x[B, D]{U_X}", "x[B, D_X]", 1, ["ReduceScatter"]),
        ("x[B, T, D]{U_X}", "x[B, T_X, D]", 2, ["ReduceScatter"]),
        ("x[B, D_Y]{U_X}", "x[B, D_{YX}]", 1, ["ReduceScatter"]),
        ("x[B, D]{U_XY}", "x[B, D_{XY}]", 1, ["ReduceScatter"]),
        ("x[B, D]", "x[B_X, D]", 1, ["Slice"]),
        ("x[B, D]", "x[B_X, D_Y]", 1, ["Slice", "Slice"]),
        ("x[B_X, D]", "x[B, D_X]", 1, ["AllToAll"]),
        ("x[B, D_X]", "x[B_X, D]", 1, ["AllToAll"]),
        ("x[B, T_X, N, D]", "x[B, T, N_X, D]", 2, ["AllToAll"]),
        ("x[B, T, N_X, D]", "x[B, T_X, N, D]", 2, ["AllToAll"]),
        ("x[B, T_{XY}, D]", "x[B, T, D_{XY}]", 2, ["AllToAll"]),
        ("x[B, T, N, D_{XY}]", "x[B_{XY}, T, N, D]", 2, ["AllToAll"]),
    ],
)
def test_values_are_where_the_new_layout_wants_them(before, after, rows, kinds, lines):
    sizes = {"B": 8, "D": 24, "T": 16, "N": 4}
    used = moved(before, after, "X=4,Y=2", sizes, rows=rows, lines=frozenset(lines))
    assert used == kinds


@pytest.mark.parametrize("direction", ["one_way", "both"])
@pytest.mark.parametrize("after", ["x[B, D]", "x[B, D_X]"])
def test_no_exchange_has_a_race(after, direction):
    moved("x[B, D]{U_X}", after, "X=4", {"B": 2, "D": 8}, races=True, ring_direction=direction)
    moved("x[B_X, D]", after, "X=4", {"B": 4, "D": 8}, races=True, ring_direction=direction)


def test_sums_that_do_not_divide_are_reduced_in_uneven_shards():
    assert moved("x[B, D]{U_X}", "x[B, D]", "X=4", {"B": 3, "D": 5}) == ["AllReduce"]
    assert moved("x[B, D]{U_XY}", "x[B, D]", "X=4,Y=3", {"B": 3, "D": 5}) == ["AllReduce"]


def test_arrays_too_large_for_vmem_are_exchanged_in_hbm():
    small = CHIP.replace(vmem_capacity_bytes=2**14)
    for before, after in (("x[B_X, D]", "x[B, D]"), ("x[B, D]{U_X}", "x[B_X, D]"), ("x[B_X, D]", "x[B, D_X]")):
        moved(before, after, "X=4", {"B": 64, "D": 64}, chip=small)


def test_a_step_costs_the_bytes_that_a_device_receives():
    ops = OpGraph("costs", Mesh.parse("X=4"), {"B": 8, "D": 16})
    local = 8 * 16 * 2
    for before, after, expected in (
        ("x[B_X, D]", "x[B, D]", 3 / 4 * local),
        ("y[B, D]{U_X}", "y[B, D_X]", 3 / 4 * local),
        ("z[B, D]{U_X}", "z[B, D]", 3 / 2 * local),
        ("w[B_X, D]", "w[B, D_X]", 3 / 4 * local / 4),
    ):
        (step,) = route(ops, ops.input(before), parse_tensor(after))
        assert received_bytes(step) == pytest.approx(expected, abs=1e-3)


AXES = ["", "X", "Y", "XY", "YX"]


@st.composite
def layouts(draw):
    """Two layouts of one tensor over X and Y, the first with partial sums over what is left."""
    found = []
    for _ in range(2):
        left, splits = {"X", "Y"}, []
        for _dim in "BTD":
            axes = draw(st.sampled_from([a for a in AXES if set(a) <= left]))
            left -= set(axes)
            splits.append(f"_{{{axes}}}" if axes else "")
        found.append((splits, sorted(left)))
    partial = "".join(draw(st.lists(st.sampled_from(found[0][1]), unique=True))) if found[0][1] else ""
    names = [", ".join(f"{dim}{split}" for dim, split in zip("BTD", splits, strict=True)) for splits, _ in found]
    return f"x[{names[0]}]" + (f"{{U_{{{partial}}}}}" if partial else ""), f"x[{names[1]}]"


@settings(max_examples=25, deadline=None)
@given(layouts(), st.sampled_from(["X=2,Y=2", "X=3,Y=2", "X=1,Y=4"]), st.sampled_from([1, 2]))
def test_any_layout_leads_to_any_other(pair, mesh, rows):
    moved(*pair, mesh, {"B": 12, "T": 12, "D": 12}, rows=rows)
