"""Worked cases of the project's notes, each against the project's own computation.

Those of decode, tiles and pipelines that a scenario shows are in test_decode_step and test_scenarios.
"""

import numpy as np
import pytest

from simcore import Mesh, OpGraph, TaskGraph, Vector, run
from simcore.chips import load_chip
from simcore.errors import LayoutError
from simcore.graph import TensorAccess
from simcore.layout import parse_tensor, rules
from simcore.lowering import MatmulShape, Tiling, lower, matmul_graph
from simcore.lowering.attention_values import normalise, online_softmax
from simcore.memory import occupancy
from simcore.scenario import run_scenario
from workloads.catalogue import load_model
from workloads.parameters import count_parameters, kv_cache_bytes
from workloads.transformer import decode_step, prefill

EXAMPLE = load_model("example-6b")
V5E = load_chip("v5e")


class TestRoofline:
    def test_fractions_of_peak_and_of_the_tasks_own_roof(self):
        chip = V5E.replace(flops="6 GFLOP/s", hbm_bandwidth="1 GB/s")
        roof = min(chip.peak("bf16"), 4 * chip.hbm_bandwidth_bytes_per_s)
        assert chip.ridge_flops_per_byte() == 6
        assert roof == 4e9  # memory-bound
        assert (3e9 / chip.peak("bf16"), 3e9 / roof) == (0.5, 0.75)

    @pytest.mark.parametrize(
        ("m", "intensity"),
        [(1, 0.9980506822612085), (8, 7.876923076923077), (256, 170.66666666666666), (1024, 1024 / 3),
         (4096, 455.1111111111111), (1048576, 511.75012201073696)],
    )  # fmt: skip
    def test_intensity_over_rows(self, m, intensity):
        assert MatmulShape(m, 1024, 1024).intensity_flops_per_byte == pytest.approx(intensity, rel=1e-9)

    def test_eight_rows_share_one_read_of_the_weights(self):
        eight = MatmulShape(8, 4096, 4096)
        tiling = Tiling("nmk", 8, 4096, 512)
        moved = run(matmul_graph(eight, tiling, V5E), chip=V5E).bytes_by_tensor
        assert moved == {"hbm_read": {"A": 65536, "B": 33_554_432}, "hbm_write": {"C": 65536}}
        one = sum(MatmulShape(1, 4096, 4096).bytes(operand) for operand in "abc")
        assert 8 * one - sum(map(sum, (by.values() for by in moved.values()))) == 234_881_024


class TestPipelines:
    def test_equal_loads_and_computations(self):
        result = run_scenario(
            "double_buffering", ideal=True, parameters={"load": "5ms", "compute": "5ms", "tiles": 5, "buffers": 2}
        )
        assert result.time_s == 6e-3

    def test_compute_bound(self):
        parameters = {"load": "0.2ms", "compute": "0.4ms", "tiles": 4}
        assert run_scenario("double_buffering", ideal=True, parameters=parameters).time_s == 0.45e-3

    def test_an_output_in_two_column_blocks_is_still_written_once(self):
        shape = MatmulShape(1000, 500, 2000)
        result = run(matmul_graph(shape, Tiling("nmk", 500, 500, 1000), V5E), chip=V5E)
        assert result.bytes["hbm_write"] == 4_000_000


class TestRings:
    @pytest.mark.parametrize(
        ("ring", "seconds", "rounds"),
        [(2, 9.320675555555555e-05, 1), (4, 0.00013981013333333334, 3), (8, 0.0001631118222222222, 7)],
    )
    def test_one_way_without_latency(self, ring, seconds, rounds):
        common = {"ring": ring, "bytes": 8388608, "hop_latency": 0}
        for collective, phases in (("all_gather", 1), ("reduce_scatter", 1), ("all_reduce", 2)):
            result = run_scenario("ring_allgather", ideal=True, parameters={**common, "collective": collective})
            assert result.time_s == pytest.approx(phases * seconds, rel=1e-8)  # steps are whole picoseconds
            assert result.bytes["ici"] == phases * ring * rounds * 8388608 // ring

    def test_partial_sums_of_2_mib_on_4_chips(self):
        parameters = {"ring": 4, "bytes": 2**21, "hop_latency": 0, "collective": "all_reduce"}
        result = run_scenario("ring_allgather", ideal=True, parameters=parameters)
        assert result.time_s == pytest.approx(6.990506666666667e-05, rel=1e-6)
        assert result.bytes["ici"] == 4 * 3_145_728
        assert result.extra["shard_bytes"] == 524_288

    @pytest.mark.parametrize(
        ("ring", "exact"),
        [(2, 0.0003728270222222222), (4, 0.0005592405333333334), (8, 0.0006524472888888888),
         (16, 0.0006990506666666666), (64, 0.0007340032)],
    )  # fmt: skip
    def test_finite_bidirectional_rings_are_faster_than_the_books_limit(self, ring, exact):
        parameters = {"ring": ring, "bytes": 2**26, "hop_latency": 0, "direction": "both"}
        time_s = run_scenario("ring_allgather", ideal=True, parameters=parameters).time_s
        assert time_s == pytest.approx(exact, rel=1e-6)
        limit = 2**26 / 90e9
        assert limit / time_s - 1 == pytest.approx(1 / (ring - 1), rel=1e-6)


class TestLayouts:
    def test_splitting_the_contracted_dimension_leaves_partial_sums(self):
        product = rules.matmul(parse_tensor("A[I, J_X]"), parse_tensor("B[J_X, K]"))
        assert str(product) == "C[I, K]{U_X}"

    def test_splitting_columns_leaves_complete_columns(self):
        product = rules.matmul(parse_tensor("A[I, J]"), parse_tensor("B[J, K_X]"))
        assert str(product) == "C[I, K_X]"

    def test_contracted_indices_must_be_the_same_not_only_as_many(self):
        with pytest.raises(LayoutError, match="J"):
            rules.matmul(parse_tensor("A[I, J_X]"), parse_tensor("B[J_Y, K]"))

    def test_no_nonlinear_function_of_partial_sums(self):
        g = OpGraph("bad", Mesh.of(X=2), {"I": 4, "J": 4, "K": 4})
        y = g.einsum("y", g.input("x[I, J_X]"), g.weight("w[J_X, K]"))
        with pytest.raises(LayoutError, match=r"AllReduce.*y"):
            g.elementwise("relu", [y], lambda values: np.maximum(values, 0), operations_per_element=1)

    def test_adding_partial_to_complete_names_the_mend(self):
        g = OpGraph("bad", Mesh.of(X=2), {"I": 4, "J": 4, "K": 4})
        y = g.einsum("y", g.input("x[I, J_X]"), g.weight("w[J_X, K]"))
        with pytest.raises(LayoutError, match="AllReduce y over X"):
            g.add("sum", y, g.input("z[I, K]"))


class TestTransformer:
    def test_shapes_of_a_decode_step(self):
        ops = decode_step(EXAMPLE, batch=4, context=8192)

        def shape(name):
            return ops.tensors[name].layout.global_shape(ops.sizes)

        assert shape("x") == (4, 1, 4096)
        assert shape("q") == shape("attention") == (4, 1, 32, 128)
        assert shape("k") == shape("v") == (4, 1, 8, 128)
        assert shape("k_cache") == shape("v_cache") == (4, 8193, 8, 128)
        assert shape("gate") == shape("up") == (4, 1, 11008)
        assert shape("o") == shape("down") == (4, 1, 4096)
        assert shape("logits") == (4, 1, 32000)
        assert (shape("w_q"), shape("w_k"), shape("w_o")) == ((4096, 32, 128), (4096, 8, 128), (32, 128, 4096))

    def test_parameters_of_a_layer(self):
        layer = count_parameters(EXAMPLE).layers[0]
        assert (layer.attention, layer.mlp) == (41_943_040, 135_266_304)

    def test_flops_by_operation(self):
        chip = V5E
        result = run(lower(decode_step(EXAMPLE, batch=4, context=8192), chip), chip=chip)
        t = result.timeline
        by = {name: int(t.flops[t.operation == number].sum()) for number, name in enumerate(t.operation_names)}
        assert sum(by[name] for name in ("q", "k", "v", "o")) == 10_737_418_240
        assert sum(by[name] for name in ("gate", "up", "down")) == 34_628_173_824
        assert by["attention"] == 17_181_966_336
        assert by["logits"] == 1_048_576_000

    def test_cache_of_many_heads_of_groups_and_of_one(self):
        from dataclasses import replace

        sizes = [4 * kv_cache_bytes(replace(EXAMPLE, n_kv_heads=heads), 8192) for heads in (32, 8, 1)]
        assert sizes == [17_179_869_184, 4_294_967_296, 536_870_912]

    @pytest.mark.parametrize(("positions", "ratio"), [(1024, 0.19047619047619047 / 4), (4096, 0.19047619047619047)])
    def test_attention_against_weights_in_a_prefill(self, positions, ratio):
        result = run(lower(prefill(EXAMPLE, batch=1, context=positions, causal="full"), V5E), chip=V5E, ideal=True)
        t = result.timeline
        attention = int(t.flops[t.operation == t.operation_names.index("attention")].sum())
        weights = sum(
            int(t.flops[t.operation == t.operation_names.index(name)].sum())
            for name in ("q", "k", "v", "o", "gate", "up", "down")
        )
        # 4 T^2 N H against 2 T P: P of this model is 10.5625 D^2, not 10.5.
        assert attention / weights == pytest.approx(ratio * 10.5 / (177_209_344 / 4096**2), rel=1e-9)


class TestAttention:
    def merged(self, scores, values):
        """Blocks of one head and one query, merged as the tasks do."""
        sums = np.zeros((1, 1, 3))
        sums[..., 1] = -np.inf
        for block, column in zip(scores, values, strict=True):
            weights, sums = online_softmax(np.array(block, dtype=float)[None, None], sums)
            sums[..., 0] += (weights[0, 0] * np.array(column)).sum()
        return float(normalise(sums)[0, 0])

    def test_blocks_merge_at_a_common_scale(self):
        assert self.merged([[1.0, 2.0], [3.0, 0.0]], [[1.0, 2.0], [3.0, 4.0]]) == pytest.approx(2.62088714770611)

    def test_masked_positions_weigh_nothing(self):
        weights, sums = online_softmax(np.array([[[0.0, 0.0, -np.inf]]]), np.array([[[0.0, -np.inf, 0.0]]]))
        assert (weights / sums[..., -1:]).tolist() == [[[0.5, 0.5, 0.0]]]

    def test_equal_scores_weigh_a_third(self):
        assert self.merged([[0.0, 0.0, 0.0]], [[1.0, 0.0, 0.0]]) == pytest.approx(1 / 3)


def test_liveness_of_a_gated_mlp_with_its_product_in_place():
    """Residual 64; up +192; gate +192; the product is put in place of one, the other dies; +64 for the output."""
    mib = 2**20
    graph = TaskGraph("liveness")
    core = graph.entity_class("chip")
    core.unit("vpu")
    for name, size in (("x", 64), ("up", 192), ("gate", 192), ("out", 64)):
        core.tensor(name, bytes=size * mib, persistent=name == "x")
    steps = (
        ("make up", ["x"], "up"), ("make gate", ["x"], "gate"), ("multiply", ["up", "gate"], "up"),
        ("make out", ["up"], "out"),
    )  # fmt: skip
    before = []
    for name, reads, writes in steps:
        before = [
            core.task(
                name,
                unit="vpu",
                work=Vector(10**6),
                after=before,
                reads=[TensorAccess(read) for read in reads],
                writes=[TensorAccess(writes)],
            )
        ]
    timeline = run(graph).timeline
    _, held = occupancy(timeline, 0, "hbm")
    # Gate dies and the output is born at one instant; at the end of the run everything dies.
    assert [int(size) // mib for size in held] == [256, 448, 320, 0]
    assert run(graph).memory_peak_bytes["hbm"] == 448 * mib
