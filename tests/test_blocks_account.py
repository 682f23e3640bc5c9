"""FLOPs and bytes of the simulation are those of the closed forms, for every family, format and mode."""

from dataclasses import replace

import pytest

from simcore.chips import load_chip
from simcore.errors import SimcoreError
from simcore.layout import Mesh
from simcore.lowering import lower
from simcore.memory import occupancy
from simcore.opgraph import OpGraph
from simcore.running import run
from workloads.accounting import account
from workloads.catalogue import load_model, presets
from workloads.config import ModelConfig
from workloads.experts import ExpertLoad, expected_distinct_experts
from workloads.layers import segments
from workloads.parameters import count_parameters
from workloads.transformer import decode_step, model_step, prefill

CHIP = load_chip("v5p")
MIB = 2**20
FAMILIES = [
    "gpt2",
    "qwen3-8b",
    "gemma2-9b",
    "gemma3-27b",
    "mixtral-8x7b",
    "gpt-oss-20b",
    "qwen3-30b-a3b",
    "deepseek-v3",
]


def first_layers(name, layers=4):
    """The model cut to its first layers."""
    config = load_model(name)
    moe = config.moe and replace(config.moe, layers=tuple(at for at in config.moe.layers if at < layers))
    return replace(config, n_layers=layers, attention_pattern=config.attention_pattern[:layers], moe=moe)


def simulate(ops, chip=CHIP, ideal=True):
    return run(lower(ops, chip), chip=chip, ideal=ideal)


def matrices_and_cache_read(result):
    """HBM reads without norms, biases and looked-up rows."""
    read = result.bytes_by_tensor["hbm_read"]
    return sum(n for name, n in read.items() if not ("norm" in name or name.startswith("b_") or name.endswith(" rows")))


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("ring", [1, 8])
def test_a_decode_step_reads_and_computes_what_the_closed_forms_say(name, ring):
    config, lengths = first_layers(name), [5000, 24, 600, 0]
    if config.learned_positions:  # a table of 1024, and a vocabulary of 50257 that divides over no ring
        lengths, ring = [1000, 24, 600, 0], 1
    result = simulate(decode_step(config, context=lengths, ring=ring))
    held = account(config, cached=lengths, new=1, ring=ring)
    assert result.flops == held.flops
    assert matrices_and_cache_read(result) == held.read_bytes
    assert result.bytes["hbm_write"] == held.kv_written_bytes
    assert result.bound_s <= result.time_s
    if ring == 1:
        everything = held.weight_bytes + held.norm_bytes + held.kv_cache_bytes
        assert result.memory_peak_bytes["hbm"] == everything


@pytest.mark.parametrize("name", presets())
def test_the_weights_of_the_op_graph_are_the_parameters_of_the_model(name):
    config = load_model(name)
    ops = decode_step(config, batch=1, context=100)
    counts = {node.name: node.count for node in ops.body if hasattr(node, "count")}
    total = 0
    for tensor in ops.tensors.values():
        if tensor.role == "weight":
            rows, columns = ops.local_rows_columns(tensor)
            total += rows * columns * counts.get(tensor.repeat, 1)
    assert total == count_parameters(config).total


@pytest.mark.parametrize("name", FAMILIES)
def test_prefill_computes_at_least_what_is_seen_and_at_most_the_rectangles(name):
    config = first_layers(name, 2 if name != "deepseek-v3" else 4)
    held = account(config, cached=0, new=512, batch=1)
    scores = {}
    for causal in ("skip", "full"):
        result = simulate(prefill(config, batch=1, context=512, causal=causal))
        scores[causal] = result.flops - held.layer_flops - held.vocabulary_flops
        cached = sum(size for tensor, size in result.bytes_by_tensor["hbm_write"].items() if "cache" in tensor)
        assert cached == held.kv_written_bytes
    assert scores["full"] == held.attention_flops
    assert held.attention_needed_flops <= scores["skip"] <= scores["full"]


def test_a_causal_mask_needs_36_of_64_pairs_at_8_positions():
    config = load_model("tiny")
    held = account(config, cached=0, new=8, batch=1)
    assert held.attention_needed_flops / held.attention_flops == 36 / 64


def test_prefill_in_chunks_computes_the_same_pairs_and_fills_the_same_cache():
    config = first_layers("gemma2-9b")
    whole = account(config, cached=0, new=6000, batch=1)
    parts = [account(config, cached=at, new=1000, batch=1) for at in range(0, 6000, 1000)]
    assert sum(part.attention_needed_flops for part in parts) == whole.attention_needed_flops
    assert parts[-1].kv_cache_bytes == whole.kv_cache_bytes
    chunk = simulate(prefill(config, batch=1, context=256, cached=5000, causal="full"))
    held = account(config, cached=5000, new=256, batch=1)
    assert chunk.flops == held.flops
    assert chunk.bytes_by_tensor["hbm_read"]["k_cache_full"] == 2 * 5000 * 8 * 256 * 2  # once: one block of queries
    assert chunk.bytes_by_tensor["hbm_read"]["k_cache_sliding"] == 2 * 4095 * 8 * 256 * 2


def test_only_the_sum_of_the_lengths_counts():
    config = first_layers("qwen3-8b")
    equal, unequal = (
        simulate(decode_step(config, context=lengths)) for lengths in ([4096] * 4, [8192, 4096, 2048, 2048])
    )
    assert equal.flops == unequal.flops
    assert equal.bytes == unequal.bytes
    assert unequal.time_s == pytest.approx(equal.time_s, rel=0.01)
    assert equal.memory_peak_bytes["hbm"] == unequal.memory_peak_bytes["hbm"]


# -- experts ----------------------------------------------------------------------------------------------------


def test_only_the_experts_that_are_hit_are_read():
    config = first_layers("qwen3-30b-a3b")
    expert = 3 * 2048 * 768 * 2
    for batch in (1, 4, 32):
        read = simulate(decode_step(config, batch=batch, context=64)).bytes_by_tensor["hbm_read"]
        hit = round(expected_distinct_experts(config.moe, batch))
        assert sum(n for name, n in read.items() if name.startswith("w_expert")) == 4 * hit * expert
    assert round(expected_distinct_experts(config.moe, 1)) == 8


def test_a_capacity_computes_and_reads_all_experts():
    config = first_layers("mixtral-8x7b", 2)
    load = ExpertLoad(capacity_factor=2.0)
    result = simulate(decode_step(config, batch=4, context=64, experts=load))
    held = account(config, cached=64, new=1, batch=4, experts=load)
    assert result.flops == held.flops
    # Each of 8 experts has room for 2 * 4 * 2 / 8 = 2 rows: 16 rows, twice the 8 that are used.
    assert held.flops - account(config, cached=64, new=1, batch=4).flops == 2 * 8 * 6 * 4096 * 14336
    assert (
        matrices_and_cache_read(result) == held.read_bytes == held.weight_bytes - 32000 * 4096 * 2 + held.kv_read_bytes
    )


def test_an_imbalance_moves_no_row_but_reads_fewer_experts():
    config = first_layers("qwen3-30b-a3b")
    balanced, skewed = (
        simulate(decode_step(config, batch=16, context=64, experts=ExpertLoad(imbalance))) for imbalance in (1.0, 6.0)
    )
    assert balanced.flops == skewed.flops
    assert skewed.bytes["hbm_read"] < balanced.bytes["hbm_read"]
    assert skewed.time_s < balanced.time_s


def test_moe_flops_are_those_of_the_experts_used():
    """8 experts, 2 used: 25.50e9 FLOPs a token, not the 93.14e9 of all."""
    config = load_model("mixtral-8x7b")
    held = account(config, cached=0, new=1, batch=1)
    assert held.layer_flops + held.vocabulary_flops == pytest.approx(25.50e9, rel=1e-3)
    assert count_parameters(config).total == 46_702_792_704


# -- caches -----------------------------------------------------------------------------------------------------


def test_a_latent_cache_holds_576_values_a_position_and_layer_on_every_chip():
    config = load_model("deepseek-v3")
    held = account(config, cached=1000, new=1, batch=1)
    assert held.kv_cache_bytes == 61 * 1001 * 576 * 2
    assert account(config, cached=1000, new=1, batch=1, ring=8).kv_cache_bytes == 8 * held.kv_cache_bytes


def test_gqa_caches_key_value_heads_only():
    """64 query heads and 8 key-value heads of 128, batch 16, 2048 positions: 134,217,728 bytes a layer."""
    held = account(load_model("llama3-70b"), cached=2048, new=1, batch=16)
    assert held.kv_read_bytes == 80 * 134_217_728


def test_an_explicit_head_width_counts():
    config = ModelConfig(
        name="wide", model_type="llama", n_layers=40, d_model=5120, n_heads=32, n_kv_heads=8, head_dim=128, d_ff=1024,
        vocabulary_size=256,
    )  # fmt: skip
    assert account(config, cached=0, new=1, batch=1).kv_cache_bytes == 163_840


def test_8_heads_on_16_chips_are_held_twice():
    config = load_model("llama3-70b")
    ops = decode_step(config, batch=1, context=1, ring=16)
    assert "8 key-value heads on 16 chips: each head is held 2 times" in ops.notes
    held = account(config, cached=0, new=1, batch=1, ring=16)
    assert held.kv_cache_bytes // 16 == 40_960


def test_a_window_caps_the_cache_of_its_layers():
    config = load_model("gemma3-27b")
    sliding = config.attention_pattern.count("sliding")
    full = len(config.attention_pattern) - sliding
    held = account(config, cached=8000, new=1, batch=1)
    assert held.kv_cache_bytes == (sliding * 1024 + full * 8001) * 2 * 16 * 128 * 2


# -- formats ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "share"), [("int8", 1 / 2), ("fp8", 1 / 2), ("int4", 1 / 4)])
def test_narrow_weights_take_their_bytes_at_the_peak_of_the_activations(dtype, share):
    config = first_layers("qwen3-8b")
    plain, narrow = (simulate(decode_step(config, batch=4, context=512, weights_dtype=w)) for w in ("", dtype))
    held = account(config, cached=512, new=1, batch=4, weights_dtype=dtype)
    assert matrices_and_cache_read(narrow) == held.read_bytes
    assert held.weight_bytes == share * account(config, cached=512, new=1, batch=4).weight_bytes
    assert narrow.flops == plain.flops
    assert narrow.bounds_s["mxu"] == pytest.approx(plain.bounds_s["mxu"], rel=1e-4)


def test_narrow_activations_and_weights_are_multiplied_at_their_own_peak():
    config = first_layers("qwen3-8b")
    plain, narrow = (
        simulate(decode_step(config, batch=4, context=512, weights_dtype=dtype, activation_dtype=dtype))
        for dtype in ("", "int8")
    )
    ratio = CHIP.peak("int8") / CHIP.peak("bf16")
    assert plain.bounds_s["mxu"] / narrow.bounds_s["mxu"] == pytest.approx(ratio, rel=1e-6)


@pytest.mark.parametrize("dtype", ["int8", "fp8"])
def test_a_narrow_cache_takes_half_the_bytes(dtype):
    config = first_layers("qwen3-8b")
    plain, narrow = (simulate(decode_step(config, batch=4, context=512, kv_dtype=kv)) for kv in ("", dtype))
    for tensor in ("k_cache", "v_cache"):
        for way in ("hbm_read", "hbm_write"):
            assert 2 * narrow.bytes_by_tensor[way][tensor] == plain.bytes_by_tensor[way][tensor]
    assert narrow.bounds_s["mxu"] == plain.bounds_s["mxu"]


def test_a_stored_format_of_experts_is_that_of_the_experts_alone():
    config = replace(first_layers("gpt-oss-20b"), quantized_dtype="mxfp4", quantized_parts="experts")
    result = simulate(decode_step(config, batch=4, context=512))
    held = account(config, cached=512, new=1, batch=4)
    assert matrices_and_cache_read(result) == pytest.approx(held.read_bytes, rel=1e-6)
    assert result.bytes_by_tensor["hbm_read"]["w_q_full"] == 2 * 2880 * 64 * 64 * 2


# -- structure --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("llama3-70b", [("layer", 80, 1)]),
        ("gemma2-9b", [("layers from 0", 21, 2)]),
        ("gemma3-27b", [("layers from 0", 10, 6), ("layers from 60", 2, 1)]),
        ("deepseek-v3", [("layers from 0", 3, 1), ("layers from 3", 58, 1)]),
    ],
)
def test_layers_are_repeats_of_the_shortest_period(name, expected):
    config = load_model(name)
    found = segments(config)
    assert [(s.name, s.count, s.period) for s in found] == expected
    assert sorted(at for s in found for p in range(s.period) for at in s.layers(p)) == list(range(config.n_layers))


def test_a_product_in_place_lets_the_gated_mlp_peak_at_448_mib():
    """Residual 64 MiB, two branches of 192 MiB: 448, then 256 once one is overwritten and the other freed, then 320."""
    g = OpGraph("mlp", Mesh.of(X=1), {"B": 8192, "D": 4096, "F": 12288})
    x = g.input("x[B, D]")
    gate, up = (g.einsum(name, x, g.weight(f"w_{name}[D, F]")) for name in ("gate", "up"))
    z = g.elementwise("product", [gate, up], lambda a, b: a * b, operations_per_element=1, into=gate)
    g.einsum("down", z, g.weight("w_down[F, D]"))
    result = run(lower(g, CHIP), chip=CHIP, ideal=True)
    weights = 3 * 4096 * 12288 * 2
    _, held = occupancy(result.timeline, 0, "hbm")
    steps = [(int(size) - weights) / MIB for size in held[:-1]]
    assert steps == [64, 256, 448, 256, 320, 128]  # the first branch and the second; product; output; branch freed


# -- refusals ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "arguments", "message"),
    [
        ({}, {"mode": "decod", "context": 3}, "decode"),
        ({}, {"mode": "decode", "context": 3, "batch": 0}, "batch"),
        ({}, {"mode": "decode", "context": -1}, "0 or more"),
        ({}, {"mode": "decode", "context": [3, 4], "batch": 3}, "give one a request"),
        ({}, {"mode": "decode", "context": 3, "cached": 2}, "as context"),
        ({}, {"mode": "prefill", "context": [3, 4]}, "give one context"),
        ({}, {"mode": "prefill", "context": 3, "colour": 2}, "unknown option"),
        ({}, {"mode": "prefill", "context": 3, "causal": "half"}, "full or skip"),
        ({}, {"mode": "prefill", "context": 3, "kv_dtype": "int9"}, "int8"),
        ({}, {"mode": "decode", "context": 3, "ring": 3}, "do not divide over a ring of 3; rings of 1, 2, 4"),
        ({}, {"mode": "decode", "context": 3, "ring": 0}, "1 or more"),
        ({"activation": "silu2"}, {"mode": "decode", "context": 3}, "silu"),
        ({"norms_per_layer": 3}, {"mode": "decode", "context": 3}, "not modelled"),
        ({"norms_per_layer": 1}, {"mode": "decode", "context": 3}, "not modelled"),
        ({"learned_positions": 4}, {"mode": "decode", "context": 4}, "table of learned positions has 4"),
    ],
)
def test_what_is_not_modelled_is_refused_in_one_line(changes, arguments, message):
    config = replace(load_model("tiny"), **changes)
    with pytest.raises(SimcoreError, match=message) as caught:
        model_step(config, **arguments)
    assert "\n" not in str(caught.value)


def test_a_context_over_the_models_maximum_is_noted():
    config = replace(load_model("tiny"), max_positions=100)
    assert any("more than the model's maximum of 100" in note for note in decode_step(config, context=100).notes)
    assert not any("maximum" in note for note in decode_step(config, context=99).notes)
