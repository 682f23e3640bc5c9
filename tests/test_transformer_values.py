"""What was timed is what was computed: the tasks of a sharded Transformer, executed on numpy, give the plain result."""

import numpy as np
import pytest

from simcore.chips import load_chip
from simcore.graph.races import check_races
from simcore.graph.unroll import unroll
from simcore.graph.values import execute
from simcore.hardware import Hardware
from simcore.lowering import LoweringOptions, lower
from tests.reference_transformer import forward, random_model
from workloads.config import ModelConfig
from workloads.transformer import decode_step, prefill

N, K, H = 4, 2, 4
SPLIT_COLUMNS = {"w_q", "w_k", "w_v", "w_gate", "w_up", "lm_head"}
SPLIT_ROWS = {"w_o", "w_down", "embedding"}


def config(tied):
    return ModelConfig(
        name="tiny", model_type="llama", n_layers=2, d_model=16, n_heads=N, n_kv_heads=K, head_dim=H, d_ff=24,
        vocabulary_size=32, tied_embeddings=tied,
    )  # fmt: skip


def part(array, axis, chip, ring):
    return np.split(array, ring, axis=axis)[chip]


def inputs(weights, tokens, k_cache, v_cache, cached, ring):
    given = {}
    positions = cached + np.tile(np.arange(tokens.shape[1]), (len(tokens), 1))
    for chip in range(ring):
        for name, array in weights.items():
            if name in SPLIT_COLUMNS:
                array = part(array, -1, chip, ring)
            elif name in SPLIT_ROWS:
                array = part(array, -2, chip, ring)
            given[chip, name] = array
        given[chip, "k_cache"] = part(k_cache, -1, chip, ring).copy()
        given[chip, "v_cache"] = part(v_cache, -1, chip, ring).copy()
        given[chip, "tokens"] = tokens.reshape(-1, 1).astype(float)
        given[chip, "positions"] = positions.reshape(-1, 1).astype(float)
    return given


CHIPS = {
    "everything fits in VMEM": load_chip("v5e"),
    "activations go through HBM": load_chip("v5e").replace(vmem_capacity_bytes=4000, mxu_side=2, mxu_sublanes=1),
}


@pytest.mark.parametrize("memory", CHIPS)
@pytest.mark.parametrize("ring", [1, 2])
@pytest.mark.parametrize(("new", "cached", "causal"), [(1, 9, "full"), (6, 0, "full"), (6, 0, "skip")])
def test_a_sharded_step_gives_the_unsharded_logits_in_any_order(memory, ring, new, cached, causal):
    rng = np.random.default_rng(7)
    tied = new == 1
    weights = random_model(rng, tied=tied)
    tokens = rng.integers(0, 32, size=(2, new))
    caches = [rng.normal(size=(2, 2, cached + new, K * H)) for _ in range(2)]
    for cache in caches:
        cache[:, :, cached:] = np.nan  # not written yet
    if cached:
        ops = decode_step(config(tied), batch=2, context=cached, ring=ring)
    else:
        ops = prefill(config(tied), batch=2, context=new, ring=ring, causal=causal)
    chip = CHIPS[memory]
    flat = unroll(lower(ops, chip, LoweringOptions(ring_direction="both")), Hardware(chip))
    check_races(flat)
    k_cache, v_cache = (cache.copy() for cache in caches)
    expected = forward(weights, tokens, k_cache, v_cache, N, K, H)
    for seed in range(2):
        storage = execute(flat, inputs(weights, tokens, *caches, cached, ring), seed=seed)
        logits = np.concatenate([storage[chip_, "logits"] for chip_ in range(ring)], axis=-1)
        np.testing.assert_allclose(logits, expected, rtol=1e-9)
        for name, filled in (("k_cache", k_cache), ("v_cache", v_cache)):
            stored = np.concatenate([storage[chip_, name] for chip_ in range(ring)], axis=-1)
            np.testing.assert_allclose(stored, filled, rtol=1e-9)
