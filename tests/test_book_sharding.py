"""Products of the book's chapter on sharded matrices, simulated from their plans in the ideal model.

The rest of the chapter: layouts in `tests.test_layout`, closed forms in `tests.test_layout_rules`, single collectives
in `tests.test_collective_book`. The book's V/W is for many chips; where n is finite a ring has (n - 1)/n of it, and a
test divides by that. It leaves latency out of these cases, so they are simulated without. Simulated work is rounded to
a picosecond for each tile, a millionth of it at most.
"""

import pytest

from simcore.chips import load_chip
from simcore.layout import CostModel, Mesh, parse_tensor, plan_matmul
from simcore.lowering import LoweringOptions, lower
from simcore.opgraph import OpGraph
from simcore.opgraph.product import product_graph
from simcore.running import run

V5E = load_chip("v5e").replace(ici_hop_latency_s=0)
V5P = load_chip("v5p").replace(ici_hop_latency_s=0)


def simulated(product, sizes, mesh, steps, chip, lines=()):
    """The ideal simulation of the one plan that takes these steps."""
    cost = CostModel(
        chip.require("ici_link_bandwidth_bytes_per_s"),
        0.0,
        chip.peak("bf16"),
        dict.fromkeys(lines, False),
        finite=True,
        in_turn=True,
    )
    plans = plan_matmul(product, sizes, mesh, "bf16", cost, limit=40)
    plan = next(plan for plan in plans if plan.summary == steps)
    options = LoweringOptions(lines=frozenset(lines))
    return plan, run(product_graph(plan), chip=chip, ideal=True, lowering=options)


def test_quiz_1_the_bytes_that_a_chip_holds_and_all_of_them():
    """int8 [128, 2048] over X = 2 and Y = 8, on both of Z: 16 KiB a chip, 512 KiB in all."""
    ops = OpGraph("quiz", Mesh.parse("X=2,Y=8,Z=2"), {"I": 128, "J": 2048, "K": 8}, dtype="int8")
    ops.einsum("C", ops.input("A[I_XY, J]"), ops.weight("B[J, K]"))
    tensor = lower(ops, V5P).classes["chip"].tensors["A"]
    assert tensor.bytes == 16_384
    assert tensor.bytes * ops.mesh.size == 524_288


def test_the_local_shapes_of_a_product():
    """[8, 2048] over X = 4 and Y = 2 is [2, 1024] a chip, [2048, 8192] over Y [2048, 4096]; D is gathered first."""
    product, sizes = "A[B_X, D_Y] · W[D, F_Y] -> C[B_X, F_Y]", {"B": 8, "D": 2048, "F": 8192}
    plan, _ = simulated(product, sizes, "X=4,Y=2", "AllGather_Y A, matmul", V5P)
    tensors = lower(product_graph(plan), V5P).classes["chip"].tensors
    assert (tensors["A"].shape, tensors["W"].shape) == ((2, 1024), (2048, 4096))
    assert (tensors["A_gathered"].shape, tensors["C"].shape) == ((2, 2048), (2, 4096))


def test_question_1_a_replica_for_each_device_of_the_axes_not_used():
    """A[I_X, J, K] on X=4, Y=8, Z=2: all chips together hold 16 copies."""
    mesh, sizes = Mesh.parse("X=4,Y=8,Z=2"), {"I": 8, "J": 16, "K": 4, "L": 4}
    ops = OpGraph("question", mesh, sizes)
    ops.einsum("C", ops.input("A[I_X, J, K]", rows=2), ops.weight("B[K, L]"))
    held = lower(ops, V5P).classes["chip"].tensors["A"].bytes * mesh.size
    assert held == 16 * parse_tensor("A[I, J, K]").bytes_per_device(sizes, mesh, "bf16")


class TestQuestion4:
    """A[B, D] · W[D_X, F] on 4 v5p: gather W and multiply everywhere, or multiply a part of D each and AllReduce."""

    PRODUCT = "A[B, D] · W[D_X, F] -> C[B, F]"
    GATHER, REDUCE = "AllGather_X W, matmul", "Slice_X A, matmul, AllReduce_X C"

    def strategies(self, d):
        sizes = {"B": 4096, "D": d, "F": 32768}
        return [simulated(self.PRODUCT, sizes, "X=4", steps, V5P)[1] for steps in (self.GATHER, self.REDUCE)]

    def test_the_times_of_compute_and_of_communication(self):
        """The ring of 4 has 3/4 of the book's V/W and 2 V/W: FLOPs and bytes exactly, times but for rounding."""
        gather, reduce = self.strategies(8192)
        math_s = 0.004790900338893246, 0.0011977250847233114
        for result, seconds, moves in zip((gather, reduce), math_s, (1, 2), strict=True):
            assert result.flops / 4 / 459e12 == pytest.approx(seconds, rel=1e-9)
            assert result.bounds_s["mxu"] == pytest.approx(seconds, rel=1e-6)
            sent_by_a_chip = result.bytes["ici"] / 4
            assert sent_by_a_chip == moves * 3 / 4 * (2 * 8192 * 32768 if moves == 1 else 2 * 4096 * 32768)
            assert sent_by_a_chip / (3 / 4) / 180e9 == pytest.approx(0.0029826161777777777, rel=1e-9)
            assert result.bounds_s["ici"] / (3 / 4) == pytest.approx(0.0029826161777777777, rel=1e-6)

    def test_one_after_the_other_they_add_up(self):
        """With the first tile's load, which nothing hides."""
        for result in self.strategies(8192):
            both = result.bounds_s["mxu"] + result.bounds_s["ici"]
            assert both <= result.time_s < 1.01 * both

    def test_a_d_of_5100_is_where_reducing_costs_as_much_as_multiplying_everywhere(self):
        """2 C/W; D is a multiple of 4 here."""
        for d, reduces in ((5096, False), (5104, True)):
            gather, reduce = self.strategies(d)
            assert (reduce.bounds_s["ici"] / (3 / 4) < gather.bounds_s["mxu"]) is reduces
        gather, reduce = self.strategies(5100)
        assert reduce.bounds_s["ici"] / (3 / 4) == pytest.approx(gather.bounds_s["mxu"], rel=1e-3)

    def test_the_ridge_of_the_network(self):
        """B rows of A make the gather of W compute-bound from B = C/W = 2550 on."""
        for rows, bound in ((2500, "ici"), (2600, "mxu")):
            sizes = {"B": rows, "D": 8192, "F": 8192}
            _, result = simulated(self.PRODUCT, sizes, "X=4", self.GATHER, V5P)
            seconds = {"mxu": result.bounds_s["mxu"], "ici": result.bounds_s["ici"] / (3 / 4)}
            assert max(seconds, key=seconds.get) == bound


def test_question_7_two_layers_on_four_v5e():
    """In[B, D] · W1[D, F_XY] · W2[F_XY, D] on a 2 x 2 without wrap: 268 MB of weights a chip are most of its time.

    The AllReduce takes 2 (n - 1)/n V/(2 b): both links of a chip are busy.
    """
    ops = OpGraph("two layers", Mesh.parse("X=2,Y=2"), {"B": 128, "D": 8192, "F": 32768})
    hidden = ops.einsum("H", ops.input("In[B, D]"), ops.weight("W1[D, F_XY]"))
    out = ops.einsum("Out", hidden, ops.weight("W2[F_XY, D]"))
    ops.all_reduce(out, "XY")
    result = run(ops, chip=V5E, ideal=True, lowering=LoweringOptions(lines=frozenset("XY")))
    assert result.bytes_by_tensor["hbm_read"] == {"W1": 4 * 134_217_728, "W2": 4 * 134_217_728}
    assert 268_435_456 <= result.memory_peak_bytes["hbm"] < 300_000_000
    assert result.bounds_s["hbm"] == pytest.approx(0.0003314017975308642, rel=1e-6)
    assert result.bounds_s["mxu"] == pytest.approx(0.00017441491557360406, rel=1e-6)
    assert result.bounds_s["ici"] == pytest.approx(3.4952533333333335e-05, rel=1e-6)
    assert result.bytes["ici"] == 2 * 3 * 2_097_152
    both = result.bounds_s["hbm"] + result.bounds_s["ici"]
    assert both < result.time_s < 1.02 * both


def test_question_9_gathering_the_operand_moves_m_over_k_times_what_scattering_the_result_does():
    """A[N, M_X] · B[M_X, K] -> C[N, K_X]: 8192/2048 = 4, in bytes and in time."""
    sizes, product = {"N": 1024, "M": 8192, "K": 2048}, "A[N, M_X] · B[M_X, K] -> C[N, K_X]"
    gather = simulated(product, sizes, "X=4", "AllGather_X A, AllToAll_X B, matmul", V5P)[1]
    scatter = simulated(product, sizes, "X=4", "matmul, ReduceScatter_X C", V5P)[1]
    moved = gather.bytes_by_tensor["ici"]["A_gathered"], scatter.bytes_by_tensor["ici"]["C"]
    assert moved[0] / moved[1] == 4
    alone = {}
    for before, after in (("A[N, M_X]", "gather"), ("C[N, K]{U_X}", "scatter")):
        ops = OpGraph(after, Mesh.parse("X=4"), sizes)
        tensor = ops.input(before)
        _ = ops.all_gather(tensor, "X") if after == "gather" else ops.reduce_scatter(tensor, "X", "K")
        alone[after] = run(ops, chip=V5P, ideal=True).time_s
    assert alone["gather"] / alone["scatter"] == pytest.approx(4, rel=1e-6)
