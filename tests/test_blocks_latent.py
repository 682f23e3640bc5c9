"""Multi-head latent attention: absorbed or rebuilt, the tasks compute what the plain equations say."""

import pytest

from simcore.errors import ModelConfigError
from tests.test_transformer_values import IN_VMEM, THROUGH_HBM, tiny
from tests.values import check_step
from workloads.config import MlaConfig, MoeConfig
from workloads.transformer import model_step

LATENT = MlaConfig(q_lora_rank=12, kv_lora_rank=8, qk_nope_head_dim=4, qk_rope_head_dim=2, v_head_dim=4)
DIRECT = MlaConfig(q_lora_rank=None, kv_lora_rank=8, qk_nope_head_dim=4, qk_rope_head_dim=2, v_head_dim=6)
EXPERTS = MoeConfig(6, 2, 8, layers=(1, 2), shared_d_ff=8)


def deepseek(mla=LATENT, **changes):
    return tiny(**{"mla": mla, "n_kv_heads": 4, "head_dim": 6, "n_layers": 3, "moe": EXPERTS, **changes})


@pytest.mark.parametrize(("chip", "ring"), [(IN_VMEM, 1), (IN_VMEM, 2), (THROUGH_HBM, 2)])
def test_decoding_attends_to_the_latents(chip, ring):
    ops = check_step(deepseek(), chip, "decode", context=[9, 3], ring=ring, seeds=1)
    assert "w_v_up_moe" in ops.tensors
    assert not any(name.startswith("keys") for name in ops.tensors)


@pytest.mark.parametrize("absorbed", [None, True])
@pytest.mark.parametrize(("chip", "ring"), [(IN_VMEM, 2), (THROUGH_HBM, 1)])
def test_prefill_rebuilds_keys_and_values_and_absorbed_gives_the_same(chip, ring, absorbed):
    config = deepseek(n_layers=1, moe=None)
    ops = check_step(config, chip, "prefill", context=5, ring=ring, absorbed=absorbed, seeds=1)
    assert any(name.startswith("keys") for name in ops.tensors) is (absorbed is None)


@pytest.mark.parametrize(("chip", "ring"), [(IN_VMEM, 2), (THROUGH_HBM, 1)])
def test_a_chunk_of_a_prefill_with_direct_queries_and_biases(chip, ring):
    config = deepseek(DIRECT, n_layers=1, moe=None, qkv_bias=True, attention_output_bias=True)
    check_step(config, chip, "prefill", context=4, cached=[3, 0], ring=ring, seeds=1)


def test_rebuilding_cached_keys_is_refused():
    with pytest.raises(ModelConfigError, match="only without a cache"):
        model_step(deepseek(), "decode", context=5, absorbed=False)


@pytest.mark.parametrize(("mode", "absorbed"), [("decode", None), ("prefill", None), ("prefill", True)])
def test_naive_attention_with_latents(mode, absorbed):
    config = deepseek(n_layers=1, moe=None)
    check_step(config, IN_VMEM, mode, context=5, kernel="naive", absorbed=absorbed, ring=2, seeds=1)
