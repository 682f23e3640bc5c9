"""The rules of sharded operations, and the plan of a sharded matmul: by its choices, its times and its values."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simcore.errors import LayoutError
from simcore.layout import (
    CollectiveStep,
    CostModel,
    Dim,
    LocalMatmul,
    Mesh,
    TensorLayout,
    parse_product,
    parse_tensor,
    plan_matmul,
    rules,
)
from simcore.layout.values import shard, unshard

T = parse_tensor

# ------------------------------------------------------------------------------------------ what operations do


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (lambda: rules.all_gather(T("A[I_X, J_Y]"), "X"), "A[I, J_Y]"),
        (lambda: rules.all_gather(T("A[I_X, J_Y]"), "XY"), "A[I, J]"),
        (lambda: rules.all_gather(T("A[I_XY, J]"), "Y", "I"), "A[I_X, J]"),
        (lambda: rules.all_gather(T("A[I_XYZ, J]"), "ZY"), "A[I_X, J]"),
        (lambda: rules.all_gather(T("A[I_X]{U_Y}"), "X"), "A[I]{U_Y}"),
        (lambda: rules.reduce_scatter(T("C[I, K]{U_X}"), "X", "K"), "C[I, K_X]"),
        (lambda: rules.reduce_scatter(T("C[I_Y, K]{U_XZ}"), "X", "I"), "C[I_{YX}, K]{U_Z}"),
        (lambda: rules.reduce_scatter(T("C[I, K]{U_XZ}"), "ZX", "I"), "C[I_{ZX}, K]"),
        (lambda: rules.all_reduce(T("C[I, K]{U_XY}"), "X"), "C[I, K]{U_Y}"),
        (lambda: rules.all_to_all(T("A[I_X, J]"), "X", "I", "J"), "A[I, J_X]"),
        (lambda: rules.all_to_all(T("A[I_XY, J_Z]"), "Y", "I", "J"), "A[I_X, J_{ZY}]"),
        (lambda: rules.shard(T("A[I, J_Y]"), "X", "J"), "A[I, J_{YX}]"),
        (lambda: rules.reduce_sum(T("A[I, J_X]"), "J"), "A[I]{U_X}"),
        (lambda: rules.add(T("A[I_X]{U_Y}"), T("B[I_X]{U_Y}")), "A[I_X]{U_Y}"),
        (lambda: rules.multiply(T("A[I_X]"), T("B[I_X]{U_Y}")), "A[I_X]{U_Y}"),
        (lambda: rules.nonlinear(T("A[I_X, J]"), "softmax", along="J"), "A[I_X, J]"),
        # the four cases of a sharded product, as far as the local matmul goes
        (lambda: rules.matmul(T("A[I_X, J]"), T("B[J, K_Y]")), "C[I_X, K_Y]"),
        (lambda: rules.matmul(T("A[I, J_X]"), T("B[J_X, K]")), "C[I, K]{U_X}"),
        (lambda: rules.matmul(T("A[I_Y, J_XZ]"), T("B[J_XZ, K]")), "C[I_Y, K]{U_{XZ}}"),
        # batches, several contracted dimensions, an order of one's own, an outer product
        (lambda: rules.matmul(T("Q[B_X, T, H]"), T("K[B_X, S_Y, H]"), "BTS", name="S"), "S[B_X, T, S_Y]"),
        (lambda: rules.matmul(T("A[I, J_X, K_Y]"), T("B[K_Y, J_X, L]")), "C[I, L]{U_{XY}}"),
        (lambda: rules.matmul(T("A[I_X, J]"), T("B[J, K_Y]"), "KI"), "C[K_Y, I_X]"),
        (lambda: rules.matmul(T("a[I_X]"), T("b[K_Y]"), "IK"), "C[I_X, K_Y]"),
        # linear in a partial operand
        (lambda: rules.matmul(T("A[I, J]{U_X}"), T("B[J, K_Y]")), "C[I, K_Y]{U_X}"),
    ],
)
def test_the_layout_after_an_operation(result, expected):
    assert str(result()) == expected


@pytest.mark.parametrize(
    ("breach", "message"),
    [
        (
            lambda: rules.nonlinear(T("A[I, J]{U_X}"), "gelu"),
            "gelu on partial sums: A[I, J]{U_X} is not complete over X, and the sum of f(parts) is not f(sum): "
            "AllReduce (or ReduceScatter) A over X first",
        ),
        (
            lambda: rules.nonlinear(T("A[I, J_X]"), "softmax", along=("J",)),
            "softmax along J: A[I, J_X] splits it over X, so no device sees all of it: AllGather A over X first",
        ),
        (
            lambda: rules.add(T("A[I]{U_X}"), T("B[I]")),
            "cannot add A[I]{U_X} and B[I]: A holds partial sums over X and B is complete there, so B would be "
            "counted once per device: AllReduce A over X first",
        ),
        (
            lambda: rules.add(T("A[I]"), T("B[I]{U_Y}")),
            "cannot add A[I] and B[I]{U_Y}: B holds partial sums over Y and A is complete there, so A would be "
            "counted once per device: AllReduce B over Y first",
        ),
        (
            lambda: rules.add(T("A[I_X, J]"), T("B[I_Y, J]")),
            "cannot add A[I_X, J] and B[I_Y, J]: I is split over X in A and split over Y in B, so a device holds "
            "different indices of each: AllGather A over X and B over Y",
        ),
        (
            lambda: rules.add(T("A[I_XY]"), T("B[I_X]")),
            "cannot add A[I_{XY}] and B[I_X]: I is split over XY in A and split over X in B, so a device holds "
            "different indices of each: AllGather A over Y",
        ),
        (
            lambda: rules.add(T("A[I_X]"), T("B[I]")),
            "cannot add A[I_X] and B[I]: I is split over X in A and whole in B, so a device holds different indices "
            "of each: AllGather A over X, or split I of B over X (free)",
        ),
        (
            lambda: rules.add(T("A[I, J]"), T("B[J, I]")),
            "cannot add A[I, J] and B[J, I]: their dimensions differ: transpose or rename one to match the other",
        ),
        (
            lambda: rules.multiply(T("A[I]{U_X}"), T("B[I]{U_X}")),
            "A[I]{U_X} · B[I]{U_X}: both hold partial sums (A over X, B over X), and a product of sums is not a sum "
            "of products: AllReduce (or ReduceScatter) A over X or AllReduce (or ReduceScatter) B over X first",
        ),
        (
            lambda: rules.all_gather(T("A[I_X, J]"), "Y"),
            "AllGather of A[I_X, J] over Y: Y splits no dimension of it (split over X): the devices along Y hold the "
            "same already, leave the collective out or name an axis that splits it",
        ),
        (
            lambda: rules.all_gather(T("A[I]{U_X}"), "X"),
            "AllGather of A[I]{U_X} over X: along X it holds partial sums, not parts: AllReduce or ReduceScatter A "
            "over X instead",
        ),
        (
            lambda: rules.all_gather(T("A[I_X, J]"), "X", "J"),
            "AllGather of A[I_X, J] over X along J: X splits I: gather along I",
        ),
        (
            lambda: rules.all_gather(T("A[I_XYZ]"), "X"),
            "AllGather of A[I_{XYZ}] over X: devices along YZ, the inner of I_{XYZ}, would be left with scattered "
            "blocks of I: take YZ off first, or XYZ together",
        ),
        (
            lambda: rules.all_reduce(T("A[I_X]"), "X"),
            "AllReduce of A[I_X] over X: X splits I and carries no partial sums: AllGather A over X instead",
        ),
        (
            lambda: rules.reduce_scatter(T("A[I]"), "X", "I"),
            "ReduceScatter of A[I] over X: it holds no partial sums over X (partial over: none), and adding complete "
            "values would count them once per device: leave the ReduceScatter out",
        ),
        (
            lambda: rules.reduce_scatter(T("A[I]{U_X}"), "X", "J"),
            "A[I]{U_X} has no dimension J: known: I",
        ),
        (
            lambda: rules.all_to_all(T("A[I_X, J]"), "X", "J", "I"),
            "AllToAll of A[I_X, J] over X from J: X splits I: move it from there",
        ),
        (
            lambda: rules.all_to_all(T("A[I, J]{U_X}"), "X", "J", "I"),
            "AllToAll of A[I, J]{U_X} over X: along X it holds partial sums, not parts: AllReduce or ReduceScatter A "
            "over X instead",
        ),
        (
            lambda: rules.all_to_all(T("A[I_X]"), "X", "I", "I"),
            "AllToAll of A[I_X] from I to itself: name another dimension to split over X",
        ),
        (
            lambda: rules.all_to_all(T("A[I_XY, J]"), "X", "I", "J"),
            "AllToAll of A[I_{XY}, J] over X: devices along Y, the inner of I_{XY}, would be left with scattered "
            "blocks of I: take Y off first, or XY together",
        ),
        (
            lambda: rules.shard(T("A[I_X, J]"), "X", "J"),
            "cannot split J of A[I_X, J] over X, which splits I: AllToAll moves it from I to J",
        ),
        (
            lambda: rules.shard(T("A[I, J]{U_X}"), "X", "J"),
            "cannot split J of A[I, J]{U_X} over X: along it the devices hold different partial sums: ReduceScatter "
            "A over X into J",
        ),
        (
            lambda: rules.matmul(T("A[I, J_X]"), T("B[J, K]")),
            "A[I, J_X] · B[J, K]: the contracted dimension J is split over X in A and whole in B, so a device's "
            "indices of J differ between them, even where the local shapes agree: AllGather A over X, or split J of "
            "B over X (free)",
        ),
        (
            lambda: rules.matmul(T("A[I, J_X]"), T("B[J_Y, K]")),
            "A[I, J_X] · B[J_Y, K]: the contracted dimension J is split over X in A and split over Y in B, so a "
            "device's indices of J differ between them, even where the local shapes agree: AllGather A over X and B "
            "over Y",
        ),
        (
            lambda: rules.matmul(T("A[I, J_X]"), T("B[J, K_X]")),
            "A[I, J_X] · B[J, K_X]: the contracted dimension J is split over X in A and whole in B, so a device's "
            "indices of J differ between them, even where the local shapes agree: AllGather A over X",
        ),
        (
            lambda: rules.matmul(T("A[I_X, J]"), T("B[J, K_X]")),
            "A[I_X, J] · B[J, K_X]: mesh axis X would split both I and K of the output, so only its diagonal blocks "
            "would be made: AllGather A or B over X first",
        ),
        (
            lambda: rules.matmul(T("A[I, J]{U_X}"), T("B[J, K_X]")),
            "A[I, J]{U_X} · B[J, K_X]: mesh axis X would split K of the output and carry its partial sums too: "
            "AllReduce A or AllGather B over X first",
        ),
        (
            lambda: rules.matmul(T("A[I, J]{U_X}"), T("B[J, K]{U_Y}")),
            "A[I, J]{U_X} · B[J, K]{U_Y}: both hold partial sums (A over X, B over Y), and a product of sums is not a "
            "sum of products: AllReduce (or ReduceScatter) A over X or AllReduce (or ReduceScatter) B over Y first",
        ),
        (
            lambda: rules.matmul(T("A[B_X, I, J]"), T("D[B, J, K]"), "BIK"),
            "A[B_X, I, J] · D[B, J, K]: the batch dimension B is split over X in A and whole in D, so a device's "
            "indices of B differ between them, even where the local shapes agree: AllGather A over X, or split B of "
            "D over X (free)",
        ),
        (
            lambda: rules.matmul(T("A[I, J]"), T("B[K, L]")),
            "A[I, J] and B[K, L] share no dimension to contract: give the dimension that is summed one name in both",
        ),
        (
            lambda: rules.matmul(T("A[I, J]"), T("B[K]"), "IK"),
            "J of A[I, J] is not in the output, but B[K] has no J to contract it with: keep J in the output, or give "
            "B that dimension",
        ),
        (
            lambda: rules.matmul(T("A[I, J]"), T("B[J, K]"), "IL"),
            "the output of A[I, J] · B[J, K] has no dimension L: known: I, J, K",
        ),
    ],
)
def test_a_breach_names_the_tensor_the_axis_and_the_mend(breach, message):
    with pytest.raises(LayoutError) as error:
        breach()
    assert str(error.value) == message


@pytest.mark.parametrize(
    "mended",
    [
        lambda: rules.nonlinear(rules.all_reduce(T("A[I, J]{U_X}"), "X"), "gelu"),
        lambda: rules.nonlinear(rules.reduce_scatter(T("A[I, J]{U_X}"), "X", "J"), "gelu"),
        lambda: rules.add(T("A[I_X]"), rules.shard(T("B[I]"), "X", "I")),
        lambda: rules.matmul(T("A[I, J_X]"), rules.shard(T("B[J, K]"), "X", "J")),
        lambda: rules.matmul(rules.all_gather(T("A[I, J_X]"), "X"), T("B[J, K_X]")),
        lambda: rules.matmul(rules.all_gather(T("A[I_X, J]"), "X"), T("B[J, K_X]")),
        lambda: rules.all_gather(rules.all_gather(T("A[I_XYZ]"), "YZ"), "X"),
        lambda: rules.matmul(rules.all_reduce(T("A[I, J]{U_X}"), "X"), T("B[J, K_X]")),
    ],
)
def test_the_mend_that_a_message_proposes_is_legal(mended):
    assert mended().name in {"A", "C"}


# ------------------------------------------------------------------- collectives on values, written out plainly


def groups(mesh, axes):
    """Devices that communicate: for each setting of the other axes the devices in order along ``axes``."""
    where = [mesh.names.index(axis) for axis in axes]
    found = {}
    for at in mesh.coordinates():
        rest = tuple(0 if i in where else index for i, index in enumerate(at))
        found.setdefault(rest, []).append(at)
    return [sorted(group, key=lambda at: [at[i] for i in where]) for group in found.values()]


def concatenated(shards, mesh, axes, index):
    return {
        at: np.concatenate([shards[other] for other in group], axis=index)
        for group in groups(mesh, axes)
        for at in group
    }


def scattered(shards, mesh, axes, index):
    ways = mesh.axis_size(axes)
    return {
        at: np.split(shards[at], ways, axis=index)[place]
        for group in groups(mesh, axes)
        for place, at in enumerate(group)
    }


def summed(shards, mesh, axes):
    return {at: sum(shards[other] for other in group) for group in groups(mesh, axes) for at in group}


def perform(step, shards, mesh):
    """One collective on numpy shards, by concatenating, splitting and adding."""
    position = step.before.dim_names.index
    if step.kind == "AllGather":
        for dim in step.before.dims:
            gathered = tuple(axis for axis in dim.axes if axis in step.axes)
            if gathered:
                shards = concatenated(shards, mesh, gathered, position(dim.name))
        return shards
    if step.kind == "AllReduce":
        return summed(shards, mesh, step.axes)
    if step.kind == "ReduceScatter":
        return scattered(summed(shards, mesh, step.axes), mesh, step.axes, position(step.dim))
    if step.kind == "AllToAll":
        whole = concatenated(shards, mesh, step.axes, position(step.dim))
        return scattered(whole, mesh, step.axes, position(step.to_dim))
    assert step.kind == "Slice"
    return scattered(shards, mesh, step.axes, position(step.dim))


def einsum_of(left, right, out):
    letters = {name: chr(97 + i) for i, name in enumerate(dict.fromkeys((*left.dim_names, *right.dim_names)))}
    return "{},{}->{}".format(*("".join(letters[name] for name in layout.dim_names) for layout in (left, right, out)))


def execute(plan, arrays, perform=perform):
    """Run a plan on every device's shards; the array that the output's shards make up."""
    product, mesh = plan.product, plan.mesh
    held = {layout.name: layout for layout in (product.left, product.right)}
    shards = {name: shard(arrays[name], layout, mesh, seed=7) for name, layout in held.items()}
    for step in plan.steps:
        if isinstance(step, LocalMatmul):
            assert (step.left, step.right) == (held[product.left.name], held[product.right.name])
            formula = einsum_of(step.left, step.right, step.out)
            a, b = shards[step.left.name], shards[step.right.name]
            held[step.out.name] = step.out
            shards[step.out.name] = {at: np.einsum(formula, a[at], b[at]) for at in mesh.coordinates()}
        else:
            assert held[step.tensor] == step.before
            shards[step.tensor] = perform(step, shards[step.tensor], mesh)
            held[step.tensor] = step.after
        for name, layout in held.items():
            assert all(local.shape == layout.local_shape(plan.sizes, mesh) for local in shards[name].values())
    assert held[product.out.name] == product.out
    return unshard(shards[product.out.name], product.out, mesh)


def check_values(plan, perform=perform):
    product = plan.product
    random = np.random.default_rng(3)
    arrays = {
        layout.name: random.integers(-9, 9, layout.global_shape(plan.sizes)) for layout in (product.left, product.right)
    }
    formula = einsum_of(product.left, product.right, product.out)
    expected = np.einsum(formula, arrays[product.left.name], arrays[product.right.name])
    assert np.array_equal(execute(plan, arrays, perform), expected), plan.describe()


@st.composite
def split_over(draw, name, dims, axes, partial=False):
    """A layout of ``dims`` with any of ``axes`` splitting any of them, or carrying partial sums."""
    placed = {dim: [] for dim in dims}
    sums = []
    for axis in draw(st.permutations(axes)):
        where = draw(st.sampled_from([None, *dims, *(["sum"] if partial else [])]))
        if where is not None:
            (sums if where == "sum" else placed[where]).append(axis)
    return TensorLayout(name, tuple(Dim(dim, tuple(split)) for dim, split in placed.items()), tuple(sums))


@given(
    st.data(),
    st.sampled_from([("IJ", "JK", "IK"), ("BIJ", "BJK", "BKI"), ("IJL", "LJ", "I"), ("I", "K", "IK")]),
    st.sampled_from([(2, 2), (2, 3), (1, 4), (3, 1)]),
)
@settings(max_examples=50, deadline=None)
def test_every_plan_executed_on_shards_equals_the_unsharded_product(data, dims, shape):
    mesh = Mesh.of(dict(zip("XY", shape, strict=True)))
    partial = data.draw(st.sampled_from(["A", "B", "neither"]))
    left = data.draw(split_over("A", dims[0], "XY", partial == "A"))
    right = data.draw(split_over("B", dims[1], "XY", partial == "B"))
    out = data.draw(split_over("C", dims[2], "XY"))
    sizes = dict.fromkeys(dict.fromkeys(dims[0] + dims[1]), math.prod(shape))
    plans = plan_matmul(f"{left} · {right} -> {out}", sizes, mesh, "bf16", CostModel(1e9, 1e-6, 1e12))
    assert plans
    for one, later in itertools.pairwise(plan.time_s for plan in plans):
        assert one <= later * (1 + 1e-9)
    for plan in plans[:4]:
        check_values(plan)


@given(st.data())
@settings(max_examples=5, deadline=None)
def test_plans_on_three_axes_give_the_right_values(data):
    mesh = Mesh.of(X=2, Y=2, Z=2)
    product = " ".join(
        f"{data.draw(split_over(name, dims, 'XYZ'))}{end}"
        for name, dims, end in (("A", "IJ", " ·"), ("B", "JK", " ->"), ("C", "IK", ""))
    )
    for plan in plan_matmul(product, {"I": 8, "J": 8, "K": 8}, mesh, "bf16", CostModel(1e9, 0, 1e12), limit=3):
        check_values(plan)


@pytest.mark.parametrize(
    ("product", "skipped"),
    [
        ("A[I, J_X] · B[J_X, K] -> C[I, K]", "AllReduce"),
        ("A[I, J_X] · B[J_X, K] -> C[I_X, K]", "ReduceScatter"),
        ("A[I_X, J] · B[J, K_X] -> C[I, K_X]", "AllGather"),
    ],
)
def test_a_collective_that_moves_or_adds_nothing_is_caught_by_the_values(product, skipped):
    """What the checks above rely on: parts of the right shape with the wrong values do not pass."""

    def broken(step, shards, mesh):
        right = perform(step, shards, mesh)
        if step.kind != skipped:
            return right
        if skipped == "AllGather":  # every device has its own part again and again
            return {at: np.resize(shards[at], right[at].shape) for at in right}
        if skipped == "ReduceScatter":  # the parts are cut out, but not added
            return scattered(shards, mesh, step.axes, step.before.dim_names.index(step.dim))
        return shards

    plan = plan_matmul(product, dict.fromkeys("IJK", 4), "X=4", "bf16", FAST_CHIP)[0]
    assert skipped in plan.summary
    check_values(plan)
    with pytest.raises((LayoutError, AssertionError)):
        check_values(plan, broken)


# ----------------------------------------------------------------------------------------- the planner's choices

FAST_CHIP = CostModel(link_bandwidth_bytes_per_s=45e9, hop_latency_s=1e-6, peak_flops_per_s=1e30)
"""Compute takes no time: what moves decides."""

CUBE = {"I": 8192, "J": 8192, "K": 8192}


def best(product, sizes=None, mesh="X=4", cost=FAST_CHIP, **options):
    return plan_matmul(product, sizes or CUBE, mesh, "bf16", cost, **options)[0]


def summaries(product, sizes=None, mesh="X=4", cost=FAST_CHIP, **options):
    return [plan.summary for plan in plan_matmul(product, sizes or CUBE, mesh, "bf16", cost, **options)]


def test_case_1_nothing_moves_where_the_contracted_dimension_is_whole():
    plan = best("A[I_X, J] · B[J, K_Y] -> C[I_X, K_Y]", mesh="X=4,Y=2")
    assert plan.summary == "matmul"
    assert plan.communication_s == 0
    work = plan.local_matmul
    assert (work.m, work.k, work.n, work.flops) == (2048, 8192, 4096, 2 * 2048 * 8192 * 4096)


def test_case_2_an_operand_split_along_the_contracted_dimension_is_gathered():
    assert best("A[I, J_X] · B[J, K] -> C[I, K]").summary == "AllGather_X A, matmul"


def test_case_3_both_split_alike_multiply_first_and_then_reduce():
    assert best("A[I, J_X] · B[J_X, K] -> C[I, K]").summary == "matmul, AllReduce_X C"


def test_case_4_one_axis_on_both_free_dimensions_one_operand_is_gathered():
    assert best("A[I_X, J] · B[J, K_X] -> C[I, K_X]").summary == "AllGather_X A, matmul"
    assert best("A[I_X, J] · B[J, K_X] -> C[I_X, K]").summary == "AllGather_X B, matmul"


def test_a_wanted_output_that_is_split_takes_a_reduce_scatter_at_half_the_all_reduces_time():
    whole = best("A[I, J_X] · B[J_X, K] -> C[I, K]")
    plans = plan_matmul("A[I, J_X] · B[J_X, K] -> C[I, K_X]", CUBE, "X=4", "bf16", FAST_CHIP)
    assert plans[0].summary == "matmul, ReduceScatter_X C"
    assert plans[0].communication_s == whole.communication_s / 2
    instead = next(plan for plan in plans if plan.summary == "matmul, AllReduce_X C, Slice_X C")
    assert instead.communication_s == whole.communication_s


def test_the_smaller_operand_is_gathered():
    product = "A[I_X, J] · B[J, K_X] -> C[I, K_X]"
    small_a = {"I": 64, "J": 8192, "K": 65536}
    assert best(product, small_a).summary == "AllGather_X A, matmul"
    plan = best(product, {"I": 65536, "J": 8192, "K": 64})
    assert plan.summary == "AllGather_X B, matmul, AllToAll_X C"
    gathered = plan.collectives[0]
    assert (gathered.local_bytes, gathered.full_bytes) == (8192 * 16 * 2, 8192 * 64 * 2)


def test_a_gather_comes_before_or_after_whichever_array_is_smaller():
    product = "A[I_X, J] · B[J, K] -> C[I, K]"
    assert best(product, {"I": 8192, "J": 64, "K": 8192}).summary == "AllGather_X A, matmul"
    assert best(product, {"I": 8192, "J": 8192, "K": 64}).summary == "matmul, AllGather_X C"


def test_gathering_before_is_listed_as_the_alternative_with_its_time():
    plans = plan_matmul("A[I_X, J] · B[J, K] -> C[I, K]", CUBE | {"K": 64}, "X=4", "bf16", FAST_CHIP)
    before = next(plan for plan in plans if plan.summary == "AllGather_X A, matmul")
    assert before.communication_s == pytest.approx(8192 * 8192 * 2 / 90e9)
    assert plans[0].communication_s == pytest.approx(8192 * 64 * 2 / 90e9)


def test_slow_arithmetic_makes_it_worth_splitting_what_could_be_gathered():
    slow = CostModel(45e9, 1e-6, 1e12)
    assert best("A[I, J_X] · B[J, K] -> C[I, K]", cost=slow).local_matmul.flops == 2 * 8192**3 // 4
    assert best("A[I, J_X] · B[J, K] -> C[I, K]").local_matmul.flops == 2 * 8192**3


def test_overlapped_plans_rank_by_the_longer_of_the_two():
    cost = CostModel(45e9, 1e-6, 197e12)
    for overlap, measure in ((False, "time_s"), (True, "overlapped_s")):
        plans = plan_matmul("A[I, J_X] · B[J, K] -> C[I, K]", CUBE, "X=4", "bf16", cost, overlap=overlap)
        times = [getattr(plan, measure) for plan in plans]
        assert times == sorted(times)
        assert times[0] == min(times)


def test_an_axis_of_one_moves_for_nothing():
    plan = best("A[I_X, J] · B[J, K] -> C[I, K]", mesh="X=1")
    assert plan.time_s == plan.compute_s
    assert plan.seconds[-1] == 0 or plan.seconds[0] == 0


def test_renaming_the_mesh_changes_no_time():
    one = [p.time_s for p in plan_matmul("A[I_X, J_Y] · B[J_Y, K] -> C[I, K]", CUBE, "X=4,Y=2", "bf16", FAST_CHIP)]
    two = [p.time_s for p in plan_matmul("A[I_Q, J_P] · B[J_P, K] -> C[I, K]", CUBE, "Q=4,P=2", "bf16", FAST_CHIP)]
    assert one == two


def test_the_cost_is_pluggable():
    def hates_gathers(step):
        return 1.0 if isinstance(step, CollectiveStep) and step.kind == "AllGather" else 1e-3

    plan = best("A[I_X, J] · B[J, K] -> C[I_X, K]", cost=hates_gathers)
    assert plan.summary == "matmul"
    plan = best("A[I, J_X] · B[J, K] -> C[I, K]", cost=hates_gathers)
    assert "AllGather" not in plan.summary


def exhaustive_best(product, sizes, mesh, cost, depth):
    """The cheapest time by trying every sequence of at most ``depth`` collectives on each tensor."""
    product = parse_product(product)

    def reach(start):
        found, frontier = {start: 0.0}, [(start, 0.0)]
        for _ in range(depth):
            later = []
            for layout, spent in frontier:
                for after, kind, axes in every_step(layout, mesh):
                    before_bytes = layout.bytes_per_device(sizes, mesh, "bf16")
                    after_bytes = after.bytes_per_device(sizes, mesh, "bf16")
                    ways = tuple(mesh.axis_size(axis) for axis in axes)
                    full = {"AllGather": after_bytes, "AllToAll": before_bytes * math.prod(ways)}.get(
                        kind, before_bytes
                    )
                    step = CollectiveStep(kind, layout.name, axes, ways, None, layout, after, before_bytes, full)
                    total = spent + cost(step)
                    if total < found.get(after, math.inf):
                        found[after] = total
                        later.append((after, total))
            frontier = later
        return found

    best_time = math.inf
    for (left, a), (right, b) in itertools.product(reach(product.left).items(), reach(product.right).items()):
        try:
            out = rules.matmul(left, right, product.out.dim_names, name=product.out.name)
        except LayoutError:
            continue
        flops = 2 * math.prod(left.local_shape(sizes, mesh)) * right.local_shape(sizes, mesh)[1]
        after = reach(out).get(product.out)
        if after is not None:
            best_time = min(best_time, a + b + flops / cost.peak_flops_per_s + after)
    return best_time


def every_step(layout, mesh):
    """What the rules permit: each is tried, and what they refuse is left out."""
    subsets = [axes for n in (1, 2) for axes in itertools.permutations(mesh.names, n)]
    for axes in subsets:
        tries = [
            ("AllGather", lambda a: rules.all_gather(layout, a)),
            ("AllReduce", lambda a: rules.all_reduce(layout, a)),
        ]
        for dim in layout.dim_names:
            tries.append(("ReduceScatter", lambda a, d=dim: rules.reduce_scatter(layout, a, d)))
            tries.append(("Slice", lambda a, d=dim: rules.shard(layout, a, d)))
            for to in layout.dim_names:
                tries.append(("AllToAll", lambda a, d=dim, t=to: rules.all_to_all(layout, a, d, t)))
        for kind, rule in tries:
            try:
                yield rule(axes), kind, axes
            except LayoutError:
                continue


@pytest.mark.parametrize(
    "product",
    [
        "A[I_X, J] · B[J, K_Y] -> C[I, K]",
        "A[I_X, J_Y] · B[J_X, K_Y] -> C[I_Y, K_X]",
        "A[I, J_XY] · B[J_X, K] -> C[I_Y, K]",
    ],
)
@pytest.mark.parametrize("cost", [CostModel(45e9, 1e-6, 197e12), CostModel(45e9, 1e-6, 197e12, {"X": False}, True)])
def test_no_sequence_of_collectives_is_faster_than_the_best_plan(product, cost):
    sizes, mesh = {"I": 1024, "J": 4096, "K": 2048}, Mesh.of(X=4, Y=2)
    found = best(product, sizes, mesh, cost)
    assert found.time_s == pytest.approx(exhaustive_best(product, sizes, mesh, cost, depth=4), rel=1e-12)


def test_a_plan_describes_itself_step_by_step():
    plan = best("A[I, J_X] · B[J_X, K] -> C[I, K_X]", cost=CostModel(45e9, 1e-6, 197e12))
    assert plan.describe().splitlines() == [
        "1. matmul A[I, J_X] · B[J_X, K] -> C[I, K]{U_X}: "
        "[8192 x 2048] · [2048 x 8192], 274.9 GFLOPs a device, 1.395 ms",
        "2. ReduceScatter_X C[I, K]{U_X} -> C[I, K_X]: V = 134.2 MB, 1.491 ms",
        "communication 1.491 ms, compute 1.395 ms: 2.887 ms one after the other, 1.491 ms if overlapped",
    ]


def test_steps_may_be_restricted():
    every = summaries("A[I_X, J] · B[J, K] -> C[I, K]", CUBE, "X=4", kinds=("AllGather",))
    assert every == ["matmul, AllGather_X C", "AllGather_X A, matmul"]
    with pytest.raises(LayoutError, match="no sequence of AllReduce and one matmul"):
        best("A[I_X, J] · B[J, K] -> C[I, K]", kinds=("AllReduce",))
    with pytest.raises(LayoutError, match="unknown kind of step 'Gather': did you mean AllGather"):
        best("A[I_X, J] · B[J, K] -> C[I, K]", kinds=("Gather",))


def test_spare_axes_are_used_on_small_meshes_and_left_alone_on_meshes_of_many_axes():
    """A replica cut over Y and gathered over X and Y uses both axes' links."""
    product = "A[I_X, J] · B[J, K] -> C[I, K]"
    sizes = CUBE | {"J": 64}
    assert best(product, sizes, "X=4,Y=4").summary == "Slice_Y A, AllGather_{XY} A, matmul"
    assert best(product, sizes, "X=4,Y=4,Z=2,V=2,W=2").summary == "AllGather_X A, matmul"


def test_a_wanted_partial_output_is_what_the_matmul_leaves():
    assert best("A[I, J_X] · B[J_X, K] -> C[I, K]{U_X}").summary == "matmul"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mesh": "Y=4"}, r"A\[I_X, J\]: the mesh Y=4 has no axis X"),
        ({"sizes": {"I": 6, "J": 8, "K": 8}}, r"I = 6 does not divide over X \(4 ways\): make it a multiple of 4"),
        ({"sizes": {"I": 8, "J": 8}}, "no size for dimension K"),
        ({"sizes": {"I": 8, "J": 8, "K": 8, "L": 8}}, "a size is given for L, which"),
        ({"cost": CostModel(1e9, 0, 1e12, {"Z": False})}, "has no axis Z"),
        ({"limit": 0}, "limit must be at least 1, got 0"),
        ({"cost": lambda step: -1.0}, "is -1.0: it must be at least 0 s and finite"),
        ({"cost": lambda step: math.nan}, "is nan: it must be at least 0 s and finite"),
    ],
)
def test_a_plan_that_cannot_be_made_says_why(arguments, message):
    with pytest.raises(LayoutError, match=message):
        best("A[I_X, J] · B[J, K] -> C[I, K]", **arguments)


def test_padding_when_asked_for_rounds_the_sizes_up():
    plan = best("A[I_X, J] · B[J, K] -> C[I, K]", {"I": 6, "J": 8, "K": 8}, pad=True)
    assert plan.sizes == {"I": 8, "J": 8, "K": 8}


@pytest.mark.parametrize(
    ("figures", "message"),
    [((0, 0, 1), "link_bandwidth"), ((1, -1, 1), "hop_latency_s"), ((1, 0, math.inf), "peak_flops_per_s")],
)
def test_a_cost_model_of_impossible_figures_is_refused(figures, message):
    with pytest.raises(LayoutError, match=message):
        CostModel(*figures)


# -------------------------------------------------------------- the book's chapter on sharding, by its own figures


def collective(kind, layout, sizes, mesh, dtype="bf16", **model):
    """Seconds of the one collective that takes ``layout`` to where ``kind`` leads it: (step, seconds)."""
    cost = CostModel(**{"link_bandwidth_bytes_per_s": 45e9, "hop_latency_s": 0.0, "peak_flops_per_s": 1e30} | model)
    before, mesh = parse_tensor(layout), Mesh.parse(mesh)
    if kind == "AllGather":
        after = rules.all_gather(before, before.axes)
    elif kind == "AllReduce":
        after = rules.all_reduce(before, before.partial)
    elif kind == "ReduceScatter":
        after = rules.reduce_scatter(before, before.partial, before.dim_names[-1])
    else:
        after = rules.all_to_all(before, before.axes, before.dims[0].name, before.dims[1].name)
    axes = before.partial or before.axes
    ways = tuple(mesh.axis_size(axis) for axis in axes)
    local = before.bytes_per_device(sizes, mesh, dtype)
    full = {
        "AllGather": after.bytes_per_device(sizes, mesh, dtype),
        "AllToAll": local * math.prod(ways),
    }.get(kind, local)
    step = CollectiveStep(kind, before.name, axes, ways, None, before, after, local, full)
    return step, cost(step)


def test_quiz_2a_a_bidirectional_ring_of_4():
    """Printed 377 us from 34e6 B; exact 372.8 us. V/W is the large-n form: a ring of 4 takes 3/4 of it."""
    sizes = {"D": 2048, "F": 8192}
    _, time = collective("AllGather", "A[D_X, F]", sizes, "X=4")
    assert time == pytest.approx(377e-6, rel=0.02)
    assert time == pytest.approx(33_554_432 / 90e9, rel=1e-12)
    _, finite = collective("AllGather", "A[D_X, F]", sizes, "X=4", finite=True)
    assert finite == pytest.approx(0.75 * time, rel=1e-12)


def test_quiz_2a_a_line_of_4():
    _, time = collective("AllGather", "A[D_X, F]", {"D": 2048, "F": 8192}, "X=4", wraps={"X": False})
    assert time == pytest.approx(560e-6, rel=0.002)


def test_question_2_gathering_over_one_and_over_two_axes():
    """Each printed to two digits."""
    layout, sizes, mesh = "A[B_X, D_Y]", {"B": 1024, "D": 4096}, "X=4,Y=4,Z=4"
    before = parse_tensor(layout)
    after = rules.all_gather(before, "X")
    local, full = (each.bytes_per_device(sizes, Mesh.parse(mesh), "bf16") for each in (before, after))
    step = CollectiveStep("AllGather", "A", ("X",), (4,), "B", before, after, local, full)
    assert full == 2 * 1024 * 4096 // 4
    assert CostModel(45e9, 1e-6, 1e30)(step) == pytest.approx(23e-6, rel=0.02)
    both, time = collective("AllGather", layout, sizes, mesh, hop_latency_s=1e-6)
    assert both.full_bytes == 2 * 1024 * 4096
    assert time == pytest.approx(46e-6, rel=0.02)


def test_question_3_a_small_gather_takes_two_hops():
    step, time = collective("AllGather", "A[B_X]", {"B": 128}, "X=4", hop_latency_s=1e-6)
    assert (step.full_bytes, step.local_bytes) == (256, 64)
    assert time == pytest.approx(2e-6, rel=0.01)


def test_shards_below_the_latency_bandwidth_product_are_latency_bound():
    """45 GB/s times 1 us is 45 kB a shard."""
    at, below = (
        collective("AllGather", "A[B_X]", {"B": 16 * shard_bytes}, "X=16", "int8", hop_latency_s=1e-6)[1]
        for shard_bytes in (45_000, 4_500)
    )
    without = collective("AllGather", "A[B_X]", {"B": 16 * 45_000}, "X=16", "int8")[1]
    assert at == below == 8e-6
    assert without == pytest.approx(at, rel=1e-12)


def test_question_4_two_strategies_and_their_threshold():
    """A[B,D] W[D_X,F]: gather W and multiply everywhere, or multiply a part of D each and AllReduce."""
    cost = CostModel(90e9, 0.0, 459e12)

    def strategies(d):
        sizes = {"B": 4096, "D": d, "F": 32768}
        plans = plan_matmul("A[B, D] · W[D_X, F] -> C[B, F]", sizes, "X=4", "bf16", cost, limit=20)
        by_name = {plan.summary: plan for plan in plans}
        return by_name["AllGather_X W, matmul"], by_name["Slice_X A, matmul, AllReduce_X C"]

    gather, reduce = strategies(8192)
    assert gather.compute_s == pytest.approx(0.004790900338893246, rel=1e-9)
    assert gather.communication_s == pytest.approx(0.0029826161777777777, rel=1e-9)
    assert reduce.compute_s == pytest.approx(0.0011977250847233114, rel=1e-9)
    assert reduce.communication_s == pytest.approx(0.0029826161777777777, rel=1e-9)
    threshold = 2 * 459e12 / 180e9
    assert threshold == 5100
    for d in (5096, 5100, 5104):
        gather, reduce = strategies(d)
        assert reduce.communication_s / gather.compute_s == pytest.approx(threshold / d, rel=1e-9)


def test_question_7_two_layers_on_a_2x2_without_wrap():
    mesh, sizes = "X=2,Y=2", {"B": 128, "D": 8192, "F": 32768}
    cost = CostModel(45e9, 0.0, 197e12, {"X": False, "Y": False}, finite=True)
    first = plan_matmul("In[B, D] · W1[D, F_XY] -> H[B, F_XY]", sizes, mesh, "bf16", cost)[0]
    second = plan_matmul("H[B, F_XY] · W2[F_XY, D] -> Out[B, D]", sizes, mesh, "bf16", cost)[0]
    weights = [
        parse_tensor(text).bytes_per_device(sizes, Mesh.parse(mesh), "bf16") for text in ("W1[D, F_XY]", "W2[F_XY, D]")
    ]
    assert sum(weights) == 268_435_456
    assert sum(weights) / 8.1e11 == pytest.approx(0.0003314017975308642, rel=1e-9)
    assert first.summary == "matmul"
    assert second.summary == "matmul, AllReduce_{XY} Out"
    assert second.collectives[0].full_bytes == 2_097_152
    assert first.compute_s + second.compute_s == pytest.approx(0.00017441491557360406, rel=1e-9)
    assert second.communication_s == pytest.approx(3.4952533333333335e-05, rel=1e-9)


def test_question_9_gathering_the_operand_against_scattering_the_result():
    """A[N,M] gathered moves M/K times what C[N,K] scattered moves."""
    sizes = {"N": 1024, "M": 8192, "K": 2048}
    plans = plan_matmul("A[N, M_X] · B[M_X, K] -> C[N, K_X]", sizes, "X=4", "bf16", FAST_CHIP)
    seconds = {}
    for plan in plans:
        for step, time in zip(plan.steps, plan.seconds, strict=True):
            if isinstance(step, CollectiveStep):
                seconds[f"{step.kind} {step.tensor}"] = time
    assert seconds["AllGather A"] / seconds["ReduceScatter C"] == pytest.approx(8192 / 2048, rel=1e-12)


def test_question_10_an_all_to_all_on_both_ways_of_a_ring_is_a_quarter_of_the_gather_for_large_n():
    """Exactly n / (4 (n - 1)) on an even ring of n, and on a line, where half the array crosses the middle."""
    for n in (2, 4, 8, 64, 256):
        for wraps in (True, False):
            times = [
                collective(kind, "A[I_X, J]", {"I": 4096, "J": 4096}, f"X={n}", finite=True, wraps={"X": wraps})[1]
                for kind in ("AllToAll", "AllGather")
            ]
            assert times[0] / times[1] == pytest.approx(n / (4 * (n - 1)), rel=1e-12)
    book = [collective(kind, "A[I_X, J]", {"I": 4096, "J": 4096}, "X=8")[1] for kind in ("AllToAll", "AllGather")]
    assert book[0] / book[1] == 0.25


@pytest.mark.parametrize(
    ("n", "wraps"), [(2, True), (3, True), (5, True), (8, True), (2, False), (5, False), (8, False)]
)
def test_an_all_to_alls_time_is_that_of_its_busiest_link(n, wraps):
    """Counted pair by pair; on an even ring what goes to the antipode is halved between the directions."""
    forward = np.zeros(n)
    for source, target in itertools.product(range(n), repeat=2):
        ahead = (target - source) % n if wraps else target - source
        share = (1.0 if ahead < n / 2 else 0.5 if ahead == n / 2 else 0.0) if wraps else float(ahead > 0)
        for hop in range(ahead if share else 0):
            forward[(source + hop) % n] += share / n**2
    _, time = collective("AllToAll", "A[I_X, J]", {"I": 120 * n, "J": n}, f"X={n}", finite=True, wraps={"X": wraps})
    assert time == pytest.approx(forward.max() * 120 * n * n * 2 / 45e9, rel=1e-12)


def test_the_books_hop_time_and_total():
    """T = max(l n / 2, V / W): 8 hops of 93.2 us."""
    sizes = {"I": 67_108_864}
    _, time = collective("AllGather", "A[I_X]", sizes, "X=16", "int8", hop_latency_s=1e-6)
    assert time == pytest.approx(0.0007456540444444444, rel=1e-9)
    assert time / 8 == pytest.approx(9.320675555555555e-05, rel=1e-9)


def test_two_axes_halve_the_bandwidth_term_and_add_their_hops():
    _, large = collective("AllGather", "A[I_XY]", {"I": 67_108_864}, "X=16,Y=16", "int8", hop_latency_s=1e-6)
    _, small = collective("AllGather", "A[I_XY]", {"I": 256}, "X=16,Y=16", "int8", hop_latency_s=1e-6)
    assert large == pytest.approx(0.0003728270222222222, rel=1e-9)
    assert small == pytest.approx(1.6e-05, rel=1e-9)


@pytest.mark.parametrize(
    ("kind", "layout", "seconds"),
    [
        ("AllGather", "A[I_X, J]", 0.0007456540444444444),
        ("ReduceScatter", "A[I, J]{U_X}", 0.0007456540444444444),
        ("AllReduce", "A[I, J]{U_X}", 0.0014913080888888889),
        ("AllToAll", "A[I_X, J]", 0.0001864135111111111),
    ],
)
def test_the_books_summary_of_costs(kind, layout, seconds):
    step, time = collective(kind, layout, {"I": 8192, "J": 8192}, "X=16", "int8")
    assert step.full_bytes == 67_108_864
    assert time == pytest.approx(seconds, rel=1e-9)


def test_an_all_reduce_of_partial_sums_counts_the_array_once():
    """2 MiB partial on each of 4 chips is V = 2 MiB; four different shards of 2 MiB to gather are V = 8 MiB."""
    sums, _ = collective("AllReduce", "A[I]{U_X}", {"I": 2**20}, "X=4")
    parts, _ = collective("AllGather", "A[I_X]", {"I": 2**22}, "X=4")
    assert (sums.local_bytes, sums.full_bytes) == (2**21, 2**21)
    assert (parts.local_bytes, parts.full_bytes) == (2**21, 2**23)


def test_a_group_that_is_a_part_of_the_mesh_has_the_groups_part_of_the_array():
    plan = best("A[I_Y, J_X] · B[J, K] -> C[I_Y, K]", mesh="X=4,Y=2", kinds=("AllGather",))
    assert plan.collectives[0].full_bytes == 8192 * 8192 * 2 // 2
