"""The chapters on Transformers and on inference: worked numbers, from op graphs' accounts, layouts and plans.

Where the book rounds, the tolerance is as wide as its rounding; where it is exact, so are we.
"""

import dataclasses
import math

import pytest

from simcore.chips import load_chip
from simcore.collectives import RingTensor
from simcore.collectives.auto import collective
from simcore.graph import TaskGraph
from simcore.layout import Mesh
from simcore.lowering import LoweringOptions
from simcore.opgraph import OpGraph
from simcore.opgraph.account import account_graph
from simcore.rates import Rates
from simcore.running import run
from workloads.accounting import account
from workloads.catalogue import load_model
from workloads.config import ModelConfig, MoeConfig
from workloads.experts import ExpertLoad
from workloads.fits import Question, fit, largest
from workloads.parameters import count_parameters, kv_bytes_per_token
from workloads.plan import Plan
from workloads.stages import lowered_step
from workloads.transformer import model_step, placed_plan

V5E, V5P = load_chip("v5e"), load_chip("v5p")


def model(**sizes):
    shared = {"name": "book", "model_type": "llama", "tied_embeddings": False}
    return ModelConfig(**{**shared, "n_kv_heads": sizes["n_heads"], **sizes})


def flops_of(ops):
    return account_graph(ops).flops


class TestTransformers:
    def test_a_matmul_is_two_flops_a_multiply_add(self):
        g = OpGraph("matmul", Mesh.of(X=1), {"N": 64, "P": 128, "M": 256})
        g.einsum("product", g.input("a[N, P]"), g.weight("b[P, M]"))
        assert flops_of(g) == {"matmul": 2 * 64 * 128 * 256}
        assert 2 * 64 * 128 * 256 == 4_194_304

    def test_the_forward_pass_of_a_layer_is_a_third_of_its_training_flops(self):
        """18BTDF, 24BTDNH, 12BT²NH and 6BTDV of a training step: a third of each is the forward pass."""
        b, t, d, f, n, h, v = 4, 2048, 4096, 16384, 32, 128, 32000
        config = model(n_layers=1, d_model=d, n_heads=n, head_dim=h, d_ff=f, vocabulary_size=v)
        ops = model_step(config, "prefill", batch=b, context=t, causal="full")
        by_name = {}
        for node in ops.body:
            for operation in getattr(node, "body", [node]):
                g = dataclasses.replace(ops, body=[operation])
                by_name[operation.name] = sum(flops_of(g).values())
        assert 3 * sum(by_name[name] for name in ("gate", "up", "down")) == 9_895_604_649_984
        assert 3 * sum(by_name[name] for name in ("q", "k", "v", "o")) == 3_298_534_883_328
        assert 3 * by_name["attention"] == 824_633_720_832
        # Prefill makes the logits of the last position alone: a T-th of 6BTDV.
        assert 3 * t * by_name["logits"] == 6_442_450_944_000

    @pytest.mark.parametrize(("d", "printed", "rel"), [(8192, 65536, 0.02), (4608, 32768, 0.13)])
    def test_attention_is_as_much_as_the_rest_at_eight_times_the_width(self, d, printed, rel):
        """12BT²D / 96BTD² = T/(8D) of a layer with F = 4D and heads as wide as the model."""
        config = model(n_layers=1, d_model=d, n_heads=d // 128, head_dim=128, d_ff=4 * d, vocabulary_size=128)
        t = 8 * d
        done = account(config, cached=0, new=t, causal="full")
        # The book has the plain count of 12BT²D, forward and backward: a third each way.
        assert done.attention_flops == pytest.approx(4 * t * t * d)
        assert done.layer_flops == pytest.approx(2 * t * (4 * d * d + 3 * d * 4 * d))
        assert done.attention_flops / done.layer_flops == pytest.approx(1, rel=1e-9)
        assert t == pytest.approx(printed, rel=rel)

    def test_parameters_of_question_1(self):
        config = model(n_layers=64, d_model=4096, n_heads=32, head_dim=128, d_ff=16384, vocabulary_size=32000)
        count = count_parameters(config)
        attention = sum(layer.attention for layer in count.layers)
        layers = sum(layer.attention + layer.mlp for layer in count.layers)
        assert attention == 4_294_967_296
        # The book counts one norm of D a layer and none at the end; there are two, and one at the end.
        assert count.total - count.norms + 64 * 4096 == 17_442_275_328
        assert attention / layers == 0.25
        assert attention / 17_442_275_328 == pytest.approx(0.24623893472804606, rel=1e-9)
        assert float(kv_bytes_per_token(config, "int8")) == 524_288

    def test_an_einsum_counts_the_product_of_all_its_dimensions(self):
        """[I, J, M, N, O] · [I, J, K, L] over I and J."""
        sizes = {"I": 2, "J": 3, "K": 5, "L": 7, "M": 11, "N": 13, "O": 17}
        g = OpGraph("einsum", Mesh.of(X=1), sizes)
        g.einsum("product", g.input("a[M, N, O, I, J]", rows=3), g.weight("b[I, J, K, L]"))
        assert flops_of(g) == {"matmul": 2 * 2 * 3 * 5 * 7 * 11 * 13 * 17}
        assert flops_of(g)["matmul"] == 1_021_020

    @pytest.mark.parametrize(
        ("t", "s", "group", "expected", "rel"),
        [
            (4096, 4096, 8, 3640.8888888888887, 1e-9),
            (1, 8192, 8, 7.9921951219512195, 1e-9),
            (480, 480, 1, 240, 1e-9),
            (1, 8192, 1, 1, 1e-3),
        ],
    )
    def test_the_intensity_of_attention(self, t, s, group, expected, rel):
        """4BTSNH FLOPs over the bytes of queries, keys, values and outputs: TSG/(TG + S)."""
        k, h = 4, 128
        sizes = {"B": 1, "T": t, "N": k * group, "K": k, "H": h}
        flops = 4 * t * s * k * group * h
        g = OpGraph("attention", Mesh.of(X=1), sizes)
        q = g.input("q[B, T, N, H]", rows=2)
        keys, values = (g.input(f"{name}[B, T, K, H]", rows=2) for name in "kv")
        if s == t:
            g.attention("attend", q, keys, values)
            assert flops_of(g) == {"attention": flops}
        moved = 2 * 2 * (t * k * group * h + s * k * h)
        assert flops / moved == pytest.approx(expected, rel=rel)

    def test_redoing_scores_costs_two_matmuls(self):
        b, t, n, h = 4, 4096, 32, 128
        config = model(n_layers=1, d_model=4096, n_heads=n, head_dim=h, d_ff=128, vocabulary_size=128)
        assert account(config, cached=0, new=t, batch=b, causal="full").attention_flops == 1_099_511_627_776

    def test_experts_need_many_more_tokens_to_be_compute_bound(self):
        """2kB/(E p) over the ridge: 240 x 256/16 = 3840 tokens with int8 weights and a ridge of 240."""
        moe = MoeConfig(256, 8, 2048, layers=(0,))
        config = model(n_layers=1, d_model=4096, n_heads=32, head_dim=128, d_ff=128, vocabulary_size=128, moe=moe)
        tokens = 3840
        rows = ((tokens * 8 // 256,) * 256,)
        options = {"weights_dtype": "int8", "experts": ExpertLoad(rows=rows)}
        ops = model_step(config, "decode", batch=tokens, context=1, **options)
        experts = [
            o
            for node in ops.body
            for o in getattr(node, "body", [])
            if o.name.startswith("expert_") and hasattr(o, "groups")
        ]
        done = account_graph(dataclasses.replace(ops, body=experts))
        assert done.total_flops / done.total_read_bytes == pytest.approx(240, rel=1e-9)


LLAMA_13B = model(n_layers=40, d_model=5120, n_heads=40, head_dim=128, d_ff=13824, vocabulary_size=32000)
Q = model(n_layers=64, d_model=4096, n_heads=32, n_kv_heads=8, head_dim=256, d_ff=16384, vocabulary_size=32128)


class TestInference:
    def test_the_quiz_of_a_30b_model_on_4x4_v5e(self):
        """Weights of 30 GB and 100 kB of cache a token: (B kv + P)/(N beta), 2.5 ms and 21 ms."""
        beta, flops, chips, kv, p = 8.1e11, 1.97e14, 16, 100e3 * 8192, 30e9
        assert kv == pytest.approx(819e6, rel=1e-3)
        small = (4 * kv + p) / (chips * beta)
        assert small == pytest.approx(0.0025, rel=0.03)
        large = 256 * kv / (chips * beta) + max(2 * 256 * p / (chips * flops), p / (chips * beta))
        assert large == pytest.approx(0.021, rel=0.005)

    def test_parameters_and_cache_of_llama_2_13b(self):
        count = count_parameters(load_model("llama2-13b"))
        assert sum(layer.mlp for layer in count.layers) == pytest.approx(8.5e9, rel=0.01)
        assert sum(layer.attention for layer in count.layers) == pytest.approx(4.2e9, rel=0.01)
        assert count.embedding + count.lm_head == pytest.approx(330e6, rel=0.01)
        assert count.total == pytest.approx(13e9, rel=0.01)
        kv = account(load_model("llama2-13b"), cached=8191, new=1).kv_cache_bytes
        assert kv == 6_710_886_400 == pytest.approx(6.7e9, rel=0.003)
        assert math.ceil(2 * count.total / kv) == 4

    def test_the_activation_of_a_prefill(self):
        ops = model_step(load_model("llama2-13b"), "prefill", context=8192)
        shape = ops.tensors["x"].layout.local_shape(ops.sizes, ops.mesh)
        assert math.prod(shape) * 2 == 83_886_080

    @pytest.mark.parametrize(
        ("batch", "kv", "total", "step_s", "rate"),
        [
            (1, 6.7e9, 32.7e9, 0.00498, 200.61), (8, 53.6e9, 79.6e9, 0.01213, 659.3),
            (16, 107.2e9, 133.2e9, 0.0203, 787.99), (32, 214.4e9, 240.4e9, 0.03665, 873.21),
            (64, 428.8e9, 454.8e9, 0.06933, 923.13), (240, 1608e9, 1634e9, 0.24909, 963.53),
        ],
    )  # fmt: skip
    def test_the_table_of_batches_on_8_v5e(self, batch, kv, total, step_s, rate):
        """Bound by HBM all along: the simulation of the ideal chip takes what the bytes take, within the rounding of
        the table's inputs (weights of 26.0 GB, 6.7 GB of cache a sequence)."""
        chip = V5E.replace(hbm_bandwidth_bytes_per_s=8.2e11)
        config = load_model("llama2-13b")
        held = account(config, cached=8191, new=1, batch=batch)
        assert held.kv_cache_bytes == pytest.approx(kv, rel=0.002)
        assert held.weights_and_kv_bytes == pytest.approx(total, rel=0.002)
        time_s = held.weights_and_kv_bytes / (8 * 8.2e11)
        assert time_s == pytest.approx(step_s, rel=0.003)  # weights of 26.03 GB, not 26.0
        assert batch / time_s == pytest.approx(rate, rel=0.003)
        if batch in (1, 16):
            graph, _ = lowered_step(config, "decode", chip, plan=placed_plan("tensor=8"), batch=batch, context=8191)
            simulated = run(graph, chip=chip, ideal=True)
            # The table of rows that are looked up is not read; hops come on top.
            assert simulated.bounds_s["hbm"] == pytest.approx(time_s, rel=0.012)
            assert simulated.time_s > 0.98 * time_s

    def test_tensor_ways_before_links_bound_decoding(self):
        """Y < F/(B beta'), beta' = W_hbm/W_ici of about 8: 64 ways of F = 16384 with 32 requests."""
        config = model(n_layers=1, d_model=4096, n_heads=64, head_dim=64, d_ff=16384, vocabulary_size=128)
        ops = model_step(config, "decode", batch=32, context=1, plan="tensor=64")
        up = [o for node in ops.body for o in getattr(node, "body", []) if o.name == "up"]
        read = account_graph(dataclasses.replace(ops, body=up)).read_bytes["weights"]
        # 2DF/Y bytes of a matrix against 2BD of the activation are beta' = 8 apart at 64 ways.
        assert read / (32 * 4096 * 2) == pytest.approx(8, rel=1e-9)

    def test_cache_of_question_1_and_batch_of_question_2(self):
        assert float(kv_bytes_per_token(Q, "int8")) == 262_144
        assert float(kv_bytes_per_token(Q, "bf16")) == 524_288
        room = 16 * V5E.hbm_capacity_bytes - 18_384_000_000
        assert room == 237_616_000_000
        assert room // 262_144 == 906_433
        assert room // (262_144 * 8192) == 110
        # The book's 888 with one head each has a model whose parameters shrink too.
        assert room // (262_144 // 8 * 8192) == 885

    def test_the_largest_batch_by_layouts_is_that_of_the_arithmetic(self):
        """Question 2 with this model's own parameters: what 4 x 4 v5e hold beside int8 weights."""
        options = {"weights_dtype": "int8", "kv_dtype": "int8"}
        question = Question(Q, "decode", 16, 8191, options)
        plan = Plan(tensor=8, tensor2=2)
        weights = fit(question, V5E, plan).parts["weights"]
        room = (V5E.hbm_capacity_bytes - weights) * 16
        most = largest(question, V5E, plan, "batch")
        assert most == pytest.approx(room // (262_144 * 8192), abs=2)

    def test_reading_the_parameters_of_question_3(self):
        assert pytest.approx(0.0014185185185185186, rel=1e-9) == 18_384_000_000 / (16 * 8.1e11)

    def test_two_dimensions_of_question_7(self):
        """2B/W (D/X + 2F/(YZ)) at its best X against 4BD/(3W) of three axes in one dimension."""
        b, d, f, n, w, c = 64, 8192, 32768, 128, 9e10, 1.97e14
        best = min(range(1, n + 1), key=lambda x: abs(2 * b / w * (d / x + 2 * f * x / n) - 0) if n % x == 0 else 1e9)
        assert best == 4
        assert n / best == 32
        assert 2 * b / w * (d / best + 2 * f / (n / best)) == pytest.approx(5.825422222222222e-06, rel=1e-9)
        assert 4 * b * d / (3 * w) == pytest.approx(7.767229629629629e-06, rel=1e-9)
        assert 4 * b * d * f / (n * c) == pytest.approx(2.7252330558375635e-06, rel=1e-9)

    def test_2d_plans_move_less_than_1d_where_the_book_says(self):
        """The same MLP on 128 chips under both plans: the 2D layout receives fewer bytes a layer."""
        config = model(n_layers=1, d_model=8192, n_heads=128, head_dim=64, d_ff=32768, vocabulary_size=128)
        received = {}
        for plan in ("tensor=128", "tensor2=4,tensor=32"):
            ops = model_step(config, "decode", batch=64, context=1, plan=plan)
            received[plan] = sum(account_graph(ops).received_bytes.values())
        assert received["tensor2=4,tensor=32"] < received["tensor=128"]

    def test_a_layer_of_the_appendix_is_read_in_327_us(self):
        d, f = 8192, 32768
        config = model(
            n_layers=1, d_model=d, n_heads=64, head_dim=128, d_ff=f, vocabulary_size=128, gated_mlp=False,
            activation="gelu",
        )  # fmt: skip
        mlp = count_parameters(config).layers[0].mlp
        assert mlp == 536_870_912
        assert 2 * mlp / (4 * 8.2e11) == pytest.approx(0.000327360312195122, rel=1e-9)

    def test_what_is_latency_bound_over_eight_chips(self):
        """A shard takes as long as a hop at n b l: below it the simulated AllGather hardly grows with the bytes."""
        assert 8 * V5E.ici_link_bandwidth_bytes_per_s * V5E.ici_hop_latency_s == pytest.approx(360e3)
        activation = 16 * 8192
        assert activation == pytest.approx(131e3, rel=0.003)
        times = []
        for size in (activation, 8 * activation):
            graph = TaskGraph("gather")
            cls = graph.entity_class("chip", mesh={"x": 8})
            cls.tensor("array", bytes=size, shape=(size,))
            collective(cls, "gather", "AllGather", "x", RingTensor("array", size // 8), chip=V5E, direction="one_way")
            times.append(run(graph, chip=V5E, ideal=True).time_s)
        hops = 7 * V5E.ici_hop_latency_s
        assert times[0] < 1.5 * hops
        assert times[1] > 3 * hops
        ways = activation / (V5E.ici_link_bandwidth_bytes_per_s * V5E.ici_hop_latency_s)
        assert ways == pytest.approx(2.9127111111111113, rel=0.003)


LLAMA_70B = load_model("llama3-70b")
INT8 = {"weights_dtype": "int8", "kv_dtype": "int8"}


class TestServingLlama70b:
    def test_cache_of_a_token_and_of_long_sequences(self):
        per_token = float(kv_bytes_per_token(LLAMA_70B, "int8"))
        assert per_token == 163_840
        assert 32768 * per_token == pytest.approx(5.3e9, rel=0.02)
        batch = 240 * 32768 * per_token
        assert batch == pytest.approx(1.3e12, rel=0.02)
        assert (batch + 70e9) / V5E.hbm_capacity_bytes == pytest.approx(86, rel=0.02)

    def test_memory_of_32_sequences_from_the_layouts(self):
        held = account(LLAMA_70B, cached=8191, new=1, batch=32, **INT8)
        assert held.kv_cache_bytes == pytest.approx(41.9e9, rel=0.03)
        assert held.weights_and_kv_bytes == pytest.approx(112e9, rel=0.03)
        assert held.weights_and_kv_bytes / V5E.hbm_capacity_bytes == pytest.approx(7, rel=0.03)
        question = Question(LLAMA_70B, "decode", 32, 8191, INT8)
        assert fit(question, V5E, Plan(tensor=8)).fits
        one = fit(question, V5E, Plan(tensor=8))
        assert one.total_bytes * 8 == pytest.approx(held.weights_and_kv_bytes, rel=0.01)

    @pytest.mark.parametrize(("chips", "printed_s"), [(8, 0.017), (16, 0.0085)])
    def test_the_step_time_is_that_of_reading_it_all(self, chips, printed_s):
        total = 112e9
        assert total / (chips * 8.1e11) == pytest.approx(printed_s, rel=0.02)
        plan = placed_plan("tensor=8" if chips == 8 else "tensor=8,tensor2=2")
        graph, _ = lowered_step(LLAMA_70B, "decode", V5E, plan=plan, batch=32, context=8191, **INT8)
        result = run(graph, chip=V5E, ideal=True)
        assert result.bounds_s["hbm"] == pytest.approx(printed_s, rel=0.03)
        if chips == 8:
            rates = Rates.of(
                time_s=total / (chips * 8.1e11), chips=chips, tokens=32, model_flops=1, needed_bytes=1,
                peak_flops_per_s=1.0, hbm_bandwidth_bytes_per_s=1.0,
            )  # fmt: skip
            assert rates.tokens_per_s == pytest.approx(1882, rel=0.02)
            assert rates.tokens_per_s_per_chip == pytest.approx(235, rel=0.02)

    def test_tensor_ways_before_links_bound_prefill(self):
        """M F/(C/W) over two axes: 26 ways on v5e."""
        ridge = V5E.peak("bf16") / (2 * V5E.ici_link_bandwidth_bytes_per_s)
        assert ridge == pytest.approx(2188.9, rel=1e-3)
        assert 2 * LLAMA_70B.d_ff / ridge == pytest.approx(26.197767, rel=0.01)

    def test_reading_all_of_hbm(self):
        step = V5E.hbm_capacity_bytes / 8.2e11
        assert step == pytest.approx(0.019, rel=0.12)
        assert 512 * step == pytest.approx(9, rel=0.12)

    def test_reading_int4_weights_alone(self):
        held = account(LLAMA_70B, cached=0, new=1, weights_dtype="int4")
        assert held.weight_bytes == pytest.approx(35e9, rel=0.01)
        assert held.weight_bytes / (4 * 8.2e11) == pytest.approx(0.01, rel=0.08)

    @pytest.mark.parametrize(
        ("chips", "expected"), [(16, 0.2762643914473684), (8, 0.5525287828947368), (4, 1.1050575657894737)]
    )
    def test_requests_a_second_and_chip(self, chips, expected):
        rates = Rates.of(
            time_s=0.019,
            chips=chips,
            tokens=43,
            model_flops=1,
            needed_bytes=1,
            peak_flops_per_s=1.0,
            hbm_bandwidth_bytes_per_s=1.0,
        )
        assert rates.tokens_per_s_per_chip / 512 == pytest.approx(expected, rel=1e-9)
        assert expected * chips / 16 == pytest.approx(0.27, rel=0.03)

    @pytest.mark.parametrize(("size", "chips", "qps"), [(2, 32, 0.4433), (1, 16, 0.8866), (0.5, 8, 1.7732)])
    def test_twice_the_slice_holds_138_sequences_in_every_format(self, size, chips, qps):
        kv = float(kv_bytes_per_token(LLAMA_70B, "int8")) * size * 8192
        room = chips * 16e9 - 70e9 * size
        assert room == {2: 372e9, 1: 186e9, 0.5: 93e9}[size]
        assert int(room // kv) == 138
        assert 138 / (0.019 * 512 * chips) == pytest.approx(qps, rel=1e-3)

    def test_an_mlp_on_4_by_8(self):
        """2BD/W, 2DF/(Y beta), 2BDF/(Y C) of a matmul with 32 ways: communication hides behind HBM up to 56 ways."""
        b, d, f, y, w, beta, c = 64, 8192, 28672, 32, 9e10, 8.1e11, 1.97e14
        assert 2 * b * d / w == pytest.approx(1.1e-5, rel=0.06)
        assert 2 * d * f / (y * beta) == pytest.approx(1.8e-5, rel=0.06)
        assert 2 * b * d * f / (y * c) == pytest.approx(4.8e-6, rel=0.06)
        assert f / (8 * b) == 56

    def test_prefill_of_8192_tokens_at_40_per_cent(self):
        held = account(LLAMA_70B, cached=0, new=8192, causal="full")
        linear = held.layer_flops
        assert linear == pytest.approx(2 * 70e9 * 8192, rel=0.03)
        assert pytest.approx(0.91, rel=0.002) == 2 * 70e9 * 8192 / (16 * 1.97e14 * 0.4)
        # Scores come on top: 4 T² N H L, of which causal attention needs half, 8 %.
        assert held.attention_flops / 2 / linear == pytest.approx(0.08, abs=0.015)

    def test_evictions_and_prefill_servers(self):
        assert 32 / 4096 == 0.0078125
        assert 32 * (8192 + 4096) / 4096 == 96
        assert pytest.approx(3, rel=0.003) == 0.91 / (0.019 * 512 / 32)

    def test_llama_3_8b_with_240_sequences(self):
        config = load_model("llama3-8b")
        count = count_parameters(config)
        assert count.total - count.norms == pytest.approx(8_029_995_008, abs=2**18)
        assert float(kv_bytes_per_token(config, "int8")) == 65_536
        held = account(config, cached=8191, new=1, batch=240, **INT8)
        assert held.kv_cache_bytes == 128_849_018_880
        total = held.weights_and_kv_bytes
        assert total == pytest.approx(136_879_013_888, rel=1e-4)
        assert total / V5E.hbm_capacity_bytes == pytest.approx(8.554938368, rel=1e-4)
        # A working activation: the gated branch of one layer.
        assert 240 * config.d_ff * 2 == 6_881_280

    @pytest.mark.parametrize(
        ("chips", "least_s"), [(32, 0.015625), (64, 0.0078125), (128, 0.00390625), (256, 0.001953125)]
    )
    def test_llama_3_405b_is_read_at_least_once(self, chips, least_s):
        assert 405e9 / (chips * 8.1e11) == pytest.approx(least_s, rel=1e-9)
        held = account(load_model("llama3-405b"), cached=0, new=1, weights_dtype="int8")
        assert held.weight_bytes == pytest.approx(405e9, rel=0.005)
        assert held.weight_bytes < chips * V5E.hbm_capacity_bytes


def test_plans_of_one_model_read_its_weights_once_whatever_the_plan():
    """Tensor plans and 2D plans read every weight once over all chips; data plans once a copy."""
    config = load_model("tiny")
    whole = account(config, cached=64, new=1, batch=4).weight_read_bytes
    for plan, copies in (("tensor=2", 1), ("tensor2=2", 1), ("data=2", 2), ("pipeline=2", 1)):
        _, stages = lowered_step(
            config, "decode", V5P, plan=placed_plan(plan), batch=4, context=64, options=LoweringOptions(),
            microbatches=1 if plan == "pipeline=2" else 0,
        )  # fmt: skip
        read = sum(account_graph(ops).read_bytes["weights"] for ops in stages) * stages[0].mesh.size
        assert read == copies * whole, plan
