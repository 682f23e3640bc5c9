"""Every plan of a sharded product, lowered and executed on each chip's shards, equals the unsharded product."""

import math
import re
from typing import ClassVar

import numpy as np
import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from simcore.chips import load_chip
from simcore.engine.simpy_engine import SimpyEngine
from simcore.errors import LayoutError
from simcore.graph.races import check_races
from simcore.graph.unroll import unroll
from simcore.graph.values import execute
from simcore.hardware import Hardware
from simcore.layout import CostModel, Dim, Mesh, TensorLayout, parse_product, plan_matmul
from simcore.layout.values import shard, unshard
from simcore.lowering import LoweringOptions, lower
from simcore.opgraph.product import UNIT, product_graph, result_of
from simcore.running import run

CHIP = load_chip("v5e")
COST = CostModel(45e9, 1e-6, 197e12)
SMALL = CHIP.replace(vmem_capacity_bytes=2**13, mxu_side=4, mxu_sublanes=1)
"""A chip in whose VMEM no operand of these tests stays: all stream through HBM."""


def plans_of(product, sizes, mesh, dtype="bf16", cost=COST, **more):
    return plan_matmul(product, sizes, mesh, dtype, cost, **more)


def subscripts(left, right, out):
    letters = {name: chr(97 + i) for i, name in enumerate(dict.fromkeys((*left, *right)))}
    return "{},{}->{}".format(*("".join(letters[name] for name in names) for names in (left, right, out)))


def in_order(array, names, wanted):
    """``array`` with its dimensions as ``wanted`` has them, which may have one of size 1 more."""
    found = array.transpose([names.index(name) for name in wanted if name != UNIT])
    return found[..., np.newaxis] if UNIT in wanted else found


def simulated(flat):
    env = simpy.Environment(initial_time=0)
    engine = SimpyEngine(flat, env, [simpy.Resource(env, capacity=1) for _ in flat.units])
    env.run()
    return engine.schedule()


def check_plan(plan, *, chip=CHIP, races=False, seeds=(0,), **options):
    """Execute a plan's tasks in random permitted orders and in the simulated one."""
    product, mesh = plan.product, plan.mesh
    ops = product_graph(plan)
    graph = lower(ops, chip, LoweringOptions(**options))
    flat = unroll(graph, Hardware(chip))
    if races:
        check_races(flat)
    shapes = {name: tensor.shape for name, tensor in graph.classes["chip"].tensors.items()}
    rng = np.random.default_rng(5)
    arrays, inputs = {}, {}
    for layout in (product.left, product.right):
        arrays[layout.name] = array = rng.normal(size=layout.global_shape(plan.sizes))
        given_ = ops.tensors[layout.name] if ops.tensors[layout.name].layout.partial == layout.partial else None
        start = given_.layout if given_ is not None else ops.tensors[layout.name].layout.with_partial(layout.partial)
        parts = shard(in_order(array, layout.dim_names, start.dim_names), start, mesh, seed=3)
        for at, where in enumerate(mesh.coordinates()):
            inputs[at, layout.name] = parts[where].reshape(shapes[layout.name])
    left, right, out = product.left, product.right, product.out
    formula = subscripts(left.dim_names, right.dim_names, out.dim_names)
    expected = np.einsum(formula, arrays[left.name], arrays[right.name])
    result = result_of(ops)
    local = result.layout.local_shape(ops.sizes, mesh)
    for how in [{"schedule": simulated(flat)}, *({"seed": seed} for seed in seeds)]:
        storage = execute(flat, inputs, **how)
        pieces = {where: storage[at, result.name].reshape(local) for at, where in enumerate(mesh.coordinates())}
        found = unshard(pieces, result.layout, mesh)
        wanted = in_order(expected, out.dim_names, result.dim_names)
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-9, err_msg=plan.describe())


def dims_of(product):
    found = parse_product(product)
    return dict.fromkeys((*found.left.dim_names, *found.right.dim_names))


@pytest.mark.parametrize("lines", [(), ("X", "Y")], ids=["rings", "lines"])
@pytest.mark.parametrize(
    "product",
    [
        "A[I_X, J] · B[J, K_Y] -> C[I_X, K_Y]",
        "A[I, J_X] · B[J, K] -> C[I, K]",
        "A[I, J_X] · B[J_X, K] -> C[I, K]",
        "A[I_X, J] · B[J, K_X] -> C[I, K_X]",
        "A[I_X, J_Y] · B[J_X, K_Y] -> C[I, K]",
        "A[I, J]{U_X} · B[J, K] -> C[I, K_X]",
        "A[I, J] · B[J, K]{U_X} -> C[I, K_Y]",
        "A[I, J_{XY}] · B[J_{XY}, K] -> C[I, K]",
        "A[J_X, I] · B[K, J_X] -> C[K, I]",
        "A[I, J_X, L] · B[L, J_X, K] -> C[K, I_X]",
        "A[J_X] · B[J_X, K] -> C[K]",
        "A[I, J_X] · B[J_X] -> C[I]",
        "A[N_X, I, J_Y] · B[N_X, J, K_Y] -> C[N, I, K]",
        "A[N, I, J_Y] · B[J_Y, N] -> C[I, N_X]",
    ],
)
def test_every_plan_of_a_product_gives_its_values(product, lines):
    for plan in plans_of(product, dict.fromkeys(dims_of(product), 8), "X=4,Y=2", "fp32", limit=6):
        check_plan(plan, lines=frozenset(lines))


def split_over(draw, name, dims, axes, partial=False):
    """A layout of ``dims`` with any of ``axes`` splitting any of them, or carrying partial sums."""
    placed, sums = {dim: [] for dim in dims}, []
    for axis in draw(st.permutations(axes)):
        where = draw(st.sampled_from([None, *dims, *(["sum"] if partial else [])]))
        if where is not None:
            (sums if where == "sum" else placed[where]).append(axis)
    return TensorLayout(name, tuple(Dim(dim, tuple(split)) for dim, split in placed.items()), tuple(sums))


SHAPES = [
    ("IJ", "JK", "IK"),
    ("JI", "KJ", "KI"),
    ("NIJ", "NJK", "NIK"),
    ("INJ", "JN", "NI"),
    ("IJL", "LJK", "IK"),
    ("J", "JK", "K"),
    ("IJ", "J", "I"),
]
MESHES = ["X=1", "X=2", "X=3", "X=4", "X=2,Y=2", "X=4,Y=2", "X=3,Y=2", "X=1,Y=4", "X=2,Y=2,Z=2", "X=2,Y=1,Z=3"]


@st.composite
def products(draw):
    """A product with random layouts, the sizes of its dimensions, which the three divide, and a mesh."""
    mesh = Mesh.parse(draw(st.sampled_from(MESHES)))
    dims = draw(st.sampled_from(SHAPES))
    partial = draw(st.sampled_from(["A", "B", "neither"]))
    layouts = [split_over(draw, name, own, mesh.names, partial == name) for name, own in zip("ABC", dims, strict=True)]
    sizes = {}
    for layout in layouts:
        for dim in layout.dims:
            sizes[dim.name] = math.lcm(sizes.get(dim.name, 1), mesh.axis_size(dim.axes))
    for dim, size in sizes.items():
        sizes[dim] = size * draw(st.integers(1, 3))
    return "{} · {} -> {}".format(*layouts), sizes, mesh


@settings(max_examples=30, deadline=None)
@given(st.data(), products(), st.sampled_from(["bf16", "fp32", "int8"]), st.sampled_from([CHIP, SMALL]))
def test_every_plan_of_random_layouts_gives_the_values_of_the_product(data, product, dtype, chip):
    lines = frozenset(data.draw(st.sets(st.sampled_from(product[2].names))))
    options = {"lines": lines, "ring_direction": data.draw(st.sampled_from(["one_way", "both"]))}
    cost = CostModel(45e9, 1e-6, 197e12, dict.fromkeys(lines, False), finite=True)
    for plan in plans_of(*product, dtype, cost):
        check_plan(plan, chip=chip, seeds=(data.draw(st.integers(0, 9)),), **options)


@pytest.mark.parametrize("chip", [CHIP, SMALL], ids=["in VMEM", "in HBM"])
@pytest.mark.parametrize(
    "product",
    [
        "A[I, J_X] · B[J_X, K] -> C[I, K]",
        "A[I_X, J] · B[J, K_X] -> C[I_X, K]",
        "A[I_X, J] · B[J_X, K] -> C[I, K_X]",
        "A[N, I, J_X] · B[N, J_X, K] -> C[N_X, I, K]",
    ],
)
def test_no_plan_has_a_race(product, chip):
    for plan in plans_of(product, dict.fromkeys(dims_of(product), 4), "X=2", "fp32"):
        check_plan(plan, chip=chip, races=True)


def test_operands_that_stream_from_hbm_do_so_in_these_tests():
    (plan, *_) = plans_of("A[I, J_X] · B[J_X, K] -> C[I, K]", dict.fromkeys("IJK", 24), "X=2", "fp32")
    graph = lower(product_graph(plan), SMALL)
    assert {tensor.memory for tensor in graph.classes["chip"].tensors.values()} == {"hbm"}
    assert {tensor.memory for tensor in lower(product_graph(plan), CHIP).classes["chip"].tensors.values()} == {
        "hbm",
        "vmem",
    }


def test_a_gather_of_two_dimensions_becomes_two_gathers():
    plan = next(
        plan
        for plan in plans_of("A[I_X, J_Y] · B[J, K] -> C[I, K]", dict.fromkeys("IJK", 8), "X=2,Y=2", limit=20)
        if plan.summary == "AllGather_{XY} A, matmul"
    )
    assert [operation.name for operation in product_graph(plan).body] == ["A_gathered", "A_gathered_gathered", "C"]


def test_a_product_in_another_order_keeps_its_steps():
    plans = [
        plans_of(product, {"I": 8, "J": 16, "K": 32}, "X=2")[0]
        for product in ("A[I, J_X] · B[J_X, K] -> C[I, K]", "A[J_X, I] · B[K, J_X] -> C[K, I]")
    ]
    graphs = [product_graph(plan) for plan in plans]
    assert [str(result_of(graph).layout) for graph in graphs] == ["C[I, K]", "C[I, K]"]
    assert len({tuple(type(operation) for operation in graph.body) for graph in graphs}) == 1


@pytest.mark.parametrize(
    ("product", "message"),
    [
        (
            "A[M, N, I, J] · B[M, N, J, K] -> C[M, N, I, K]",
            "one batch dimension, and here are 2 (M, N): write them as one",
        ),
        (
            "A[N, I, J, L] · B[N, J, L, K] -> C[N, I, K]",
            "one contracted dimension, and here are 2 (J, L): write them as one",
        ),
        (
            "A[N, I, J] · B[N, J, K, L] -> C[N, I, K, L]",
            "one right-hand dimension, and here are 2 (K, L): write them as one",
        ),
        ("A[N, I] · B[N, K] -> C[N, I, K]", "with a contracted dimension: add one"),
    ],
)
def test_a_product_that_is_not_lowered_says_why(product, message):
    (plan, *_) = plans_of(product, dict.fromkeys(dims_of(product), 2), "X=1")
    with pytest.raises(LayoutError, match=re.escape(message)):
        product_graph(plan)


@pytest.mark.parametrize("wraps", [True, False], ids=["ring", "line"])
@pytest.mark.parametrize("n", [2, 4, 8])
@pytest.mark.parametrize(
    ("product", "steps"),
    [
        ("A[I, J_X] · B[J, K] -> C[I, K]", "AllGather_X A, matmul"),
        ("A[I, J] · B[J, K_X] -> C[I, K]", "AllGather_X B, matmul"),
        ("A[I, J_X] · B[J_X, K] -> C[I, K]", "matmul, AllReduce_X C"),
        ("A[I, J_X] · B[J_X, K] -> C[I, K_X]", "matmul, ReduceScatter_X C"),
        ("A[I_X, J] · B[J, K] -> C[I, K_X]", "matmul, AllToAll_X C"),
    ],
)
def test_the_collective_of_a_plan_takes_its_closed_form_in_the_ideal_model(product, steps, n, wraps):
    """From the first transfer to the last arrival; an AllReduce of two would be a hop faster in one shot.

    On a line the last blocks of an AllToAll cross the middle while earlier ones go on to the ends: half the hops show.
    """
    cost = CostModel(45e9, 1e-6, 197e12, {"X": wraps}, finite=True)
    sizes = dict.fromkeys("IJK", 2048)
    plan = next(plan for plan in plans_of(product, sizes, f"X={n}", cost=cost, limit=20) if plan.summary == steps)
    options = LoweringOptions(lines=frozenset() if wraps else frozenset("X"), algorithm="ring")
    result = run(product_graph(plan), chip=CHIP, ideal=True, lowering=options)
    line = result.timeline
    on_links = np.array([lane >= 0 and line.lanes[lane].kind == "ici" for lane in line.lane])
    took_ps = line.done_ps[on_links].max() - line.start_ps[on_links].min()
    hidden_s = 1e-6 * (n - 1 - n // 2) if steps == "matmul, AllToAll_X C" and not wraps else 0.0
    assert took_ps / 1e12 + hidden_s == pytest.approx(plan.communication_s, rel=1e-6)
    assert result.flops == n * plan.local_matmul.flops
    assert plan.time_s <= result.time_s + hidden_s < 1.1 * plan.time_s


def test_gathers_of_both_operands_on_axes_of_their_own_run_at_the_same_time():
    product = "A[I_X, J_Y] · B[J_X, K_Y] -> C[I_X, K_Y]"
    plan = plans_of(product, dict.fromkeys("IJK", 4096), "X=4,Y=4", cost=CostModel(45e9, 1e-6, 197e12, finite=True))[0]
    assert plan.summary == "AllGather_Y A, AllGather_X B, matmul"
    result = run(product_graph(plan), chip=CHIP, ideal=True)
    assert result.exposed_s["ici"] + result.exposed_s["latency"] == pytest.approx(plan.communication_s / 2, rel=1e-6)


class TestCostsOfWhatIsLowered:
    SIZES: ClassVar = {"I": 1024, "J": 1024, "K": 8}

    def gather(self, **model):
        cost = CostModel(45e9, 0.0, 1e30, finite=True, **model)
        plans = plans_of("A[I_X, J_Y] · B[J, K] -> C[I, K]", self.SIZES, "X=4,Y=4", cost=cost, limit=40)
        return next(plan for plan in plans if plan.summary == "AllGather_{XY} A, matmul").communication_s

    def test_two_dimensions_at_once_use_the_links_of_both_axes(self):
        assert self.gather() == pytest.approx(15 / 16 * 2 * 1024**2 / 180e9)

    def test_one_after_another_they_use_those_of_one(self):
        """3/4 of V/4, then 3/4 of V: the same bytes."""
        assert self.gather(in_turn=True) == pytest.approx(15 / 16 * 2 * 1024**2 / 90e9)

    def test_the_order_of_gathers_on_a_ring_and_a_line_is_the_cheaper_one(self):
        """The line first, while the array is small; the ring moves the whole of it."""
        cost = CostModel(45e9, 0.0, 1e30, {"Y": False}, finite=True, in_turn=True)
        plans = plans_of("A[I_Y, J_X] · B[J, K] -> C[I, K]", self.SIZES, "X=4,Y=4", cost=cost, kinds=("AllGather",))
        before = [plan for plan in plans if plan.steps[-1] == plan.local_matmul]
        assert before[0].communication_s == pytest.approx(2 * 1024**2 * (3 / 16 / 45e9 + 3 / 4 / 90e9))

    def test_on_a_switch_each_sends_through_its_port(self):
        """(n - 1) V/(n b) + l to gather, twice that to reduce, an n-th of its bandwidth term to exchange."""
        cost = CostModel(450e9, 1e-6, 1e30, switch=True)
        for product, steps, seconds in (
            (
                "A[I_X, J] · B[J, K] -> C[I, K_X]",
                "AllGather_X A, matmul, Slice_X C",
                7 / 8 * 2 * 1024**2 / 450e9 + 1e-6,
            ),
            ("A[I, J_X] · B[J_X, K] -> C[I, K]", "matmul, AllReduce_X C", 2 * (7 / 8 * 2 * 1024 * 8 / 450e9 + 1e-6)),
            ("A[I_X, J] · B[J, K] -> C[I, K_X]", "matmul, AllToAll_X C", 7 / 64 * 2 * 1024 * 8 / 450e9 + 1e-6),
        ):
            plans = plans_of(product, self.SIZES, "X=8", cost=cost, limit=40)
            plan = next(plan for plan in plans if plan.summary == steps)
            assert plan.communication_s == pytest.approx(seconds, rel=1e-9)
