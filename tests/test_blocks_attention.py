"""Attention and dense blocks of the model families: the tasks compute what plain numpy does."""

import numpy as np
import pytest

from simcore.chips import load_chip
from simcore.lowering import lower
from simcore.running import run
from tests.test_transformer_values import IN_VMEM, THROUGH_HBM, tiny
from tests.values import check_step
from workloads.catalogue import load_model
from workloads.transformer import prefill

SLIDING = {"n_layers": 5, "attention_pattern": ("sliding", "full") * 2 + ("sliding",), "sliding_window": 4}
CHUNKED = {"n_layers": 3, "attention_pattern": ("chunked", "chunked", "full"), "attention_chunk": 4}
GPT2 = {
    "gated_mlp": False, "activation": "gelu_new", "norm": "layernorm", "norm_bias": True, "tied_embeddings": True,
    "qkv_bias": True, "attention_output_bias": True, "mlp_bias": True, "learned_positions": 20,
}  # fmt: skip
GEMMA = {
    "activation": "gelu_pytorch_tanh", "norms_per_layer": 4, "qk_norm": "per_head", "tied_embeddings": True,
    **SLIDING, "n_layers": 3, "attention_pattern": ("sliding", "full", "sliding"),
}  # fmt: skip
FALCON = {
    "parallel_block": True, "norms_per_layer": 1, "norm": "layernorm", "activation": "gelu", "gated_mlp": False,
    "lm_head_bias": True, "attention_output_bias": True, "mlp_bias": True, "n_kv_heads": 1,
}  # fmt: skip
NEOX = {**FALCON, "norms_per_layer": 2, "norm_bias": True, "n_kv_heads": 4}
FAMILIES = {
    "gpt2": GPT2,
    "gemma": GEMMA,
    "falcon": FALCON,
    "gpt_neox": NEOX,
    "opt": {**GPT2, "activation": "relu", "final_norm": False},
    "olmo2": {"qk_norm": "whole"},
    "cohere": {"qk_norm": "whole", "n_kv_heads": 1, "parallel_block": True, "norms_per_layer": 1},
    "llama4": {"qk_norm": "weightless", **CHUNKED},
    "qwen2": {"qkv_bias": True, **SLIDING, "n_layers": 3, "attention_pattern": ("full", "sliding", "sliding")},
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("ring", [1, 2])
def test_a_decode_step_of_each_family(family, ring):
    check_step(tiny(**FAMILIES[family]), IN_VMEM, "decode", context=[9, 3], ring=ring)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_prefill_of_each_family_with_activations_in_hbm(family):
    check_step(tiny(**FAMILIES[family]), THROUGH_HBM, "prefill", context=5, batch=1, ring=2, seeds=1)


@pytest.mark.parametrize("causal", ["full", "skip"])
@pytest.mark.parametrize("pattern", [SLIDING, CHUNKED])
def test_a_chunk_of_a_prefill_goes_round_the_cache_of_a_window(pattern, causal):
    check_step(tiny(**pattern), IN_VMEM, "prefill", context=6, cached=[3, 9], causal=causal, races=False)


def test_a_window_in_blocks_smaller_than_itself():
    check_step(tiny(**SLIDING), THROUGH_HBM, "prefill", context=7, cached=[5], batch=1, seeds=1)


@pytest.mark.parametrize(("chip", "ring"), [(IN_VMEM, 1), (IN_VMEM, 2), (THROUGH_HBM, 2)])
@pytest.mark.parametrize(("mode", "sizes"), [("decode", {"context": 9}), ("prefill", {"context": 5, "cached": 4})])
def test_naive_attention_gives_the_same(chip, ring, mode, sizes):
    check_step(tiny(n_layers=1), chip, mode, ring=ring, kernel="naive", seeds=1, **sizes)


@pytest.mark.parametrize("pattern", [SLIDING, CHUNKED])
def test_naive_attention_under_windows(pattern):
    check_step(tiny(**pattern), IN_VMEM, "prefill", context=6, cached=5, kernel="naive", races=False, seeds=1)


@pytest.mark.parametrize("kernel", ["flash", "naive"])
def test_large_scores_do_not_overflow(kernel):
    """Weights that make scores of hundreds: a running maximum that is not subtracted would give infinity."""
    with np.errstate(over="raise"):
        check_step(tiny(n_layers=1), IN_VMEM, "decode", context=9, kernel=kernel, weight_scale=30.0)


def test_naive_attention_sends_all_scores_over_hbm_four_times_and_computes_the_same():
    config, chip = load_model("tiny"), load_chip("v5e")
    for context in (256, 1024):
        flash, naive = (
            run(lower(prefill(config, batch=2, context=context, causal="full", kernel=kernel), chip), chip=chip)
            for kernel in ("flash", "naive")
        )
        scores = 2 * 2 * 4 * context * context * 2  # layers, requests, heads, bytes
        assert naive.flops == flash.flops
        moved = [sum(result.bytes[way] for way in ("hbm_read", "hbm_write")) for result in (flash, naive)]
        table = naive.bytes_by_tensor
        assert table["hbm_read"]["attention.scores"] == table["hbm_write"]["attention.scores"] == 2 * scores
        assert moved[1] - moved[0] == 4 * scores
        assert naive.time_s > flash.time_s
