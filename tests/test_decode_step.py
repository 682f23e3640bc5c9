"""A decode step of the made-up model: its FLOPs, bytes and bounds are those of the worked case."""

from itertools import pairwise

import pytest

from simcore.chips import load_chip
from simcore.lowering import LoweringOptions, lower
from simcore.running import run
from workloads.accounting import account, decode_flops
from workloads.config import ModelConfig
from workloads.transformer import decode_step, prefill

EXAMPLE = ModelConfig(
    name="example", model_type="llama", n_layers=32, d_model=4096, n_heads=32, n_kv_heads=8, head_dim=128,
    d_ff=11008, vocabulary_size=32000, tied_embeddings=True,
)  # fmt: skip
TERA = load_chip("v5e").replace(hbm_bandwidth="1 TB/s", **{"peak_flops_per_s.bf16": "100 TFLOP/s"})


def simulate(ring=1, ideal=True, chip=TERA, **sizes):

    sizes = {"batch": 4, "context": 8192, **sizes}
    graph = lower(decode_step(EXAMPLE, ring=ring, **sizes), chip, LoweringOptions(algorithm="ring"))
    return run(graph, chip=chip, ideal=ideal)


def test_the_account_is_that_of_the_worked_case():
    held = account(EXAMPLE, batch=4, cached=8192, new=1)
    assert held.parameters == 5_801_771_008
    assert held.weight_bytes == 11_603_542_016
    assert held.kv_read_bytes == 4_294_967_296
    assert held.kv_cache_bytes == 4_295_491_584
    assert held.weights_and_kv_bytes / 2**30 == pytest.approx(14.807, abs=5e-4)
    assert held.read_bytes == 15_898_509_312
    assert decode_flops(EXAMPLE, batch=4, context=8192) == 63_596_134_400


@pytest.mark.parametrize("ring", [1, 2, 4, 8])
def test_flops_and_bytes_of_the_simulation_are_those_of_the_closed_forms(ring):
    result = simulate(ring)
    assert result.flops == 63_596_134_400
    read = result.bytes_by_tensor["hbm_read"]
    apart = sum(size for name, size in read.items() if "norm" in name or name == "embedding rows")
    assert sum(read.values()) - apart == 15_898_509_312
    assert result.bytes["hbm_write"] == 524_288  # the new position's keys and values
    # Two AllReduces a layer and one after the lookup, each moving 2 (n - 1) / n of [4, 4096] on every chip.
    assert result.bytes.get("ici", 0) == (2 * 32 + 1) * 2 * (ring - 1) * 4 * 4096 * 2


def test_the_memory_bound_is_15_9_ms_and_the_step_is_close_to_it():
    result = simulate()
    assert result.bounds_s["hbm"] == pytest.approx(15.9e-3, rel=1e-3)
    assert result.bounds_s["mxu"] == pytest.approx(0.635961344e-3, rel=1e-6)
    assert result.bound_by == "hbm"
    assert result.bound_s <= result.time_s <= 1.01 * result.bound_s


@pytest.mark.parametrize("ideal", [True, False])
def test_larger_rings_gain_less_and_less(ideal):
    times = [simulate(ring, ideal=ideal, chip=load_chip("v5e")).time_s for ring in (1, 2, 4, 8)]
    gains = [before / after for before, after in pairwise(times)]
    assert all(gain > 1.5 for gain in gains)
    assert gains[-1] < gains[0]


def test_busy_time_and_attributed_waits_make_up_the_whole_step():
    result = simulate(4, chip=load_chip("v5e"), ideal=False)
    assert result.busy_s + sum(result.exposed_s.values()) == pytest.approx(result.time_s, abs=2e-12)
    # A ReduceScatter and an AllGather of ceil((4 - 1) / 2) hops each, 65 times; nothing hides them in this step.
    assert result.exposed_s["latency"] == pytest.approx(65 * 4 * 1e-6, rel=1e-6)


def test_weights_and_cache_are_what_hbm_holds():
    result = simulate()
    held = account(EXAMPLE, batch=4, cached=8192, new=1)
    assert result.memory_peak_bytes["hbm"] == held.weights_and_kv_bytes + held.norm_bytes
    assert result.memory_peak_bytes["vmem"] <= TERA.vmem_capacity_bytes


def test_a_step_without_history_reads_no_cache():
    result = simulate(context=0)
    assert "k_cache" not in result.bytes_by_tensor["hbm_read"]


@pytest.mark.parametrize(("causal", "scores"), [("full", 64 * 64), ("skip", 64 * 64)])
def test_one_block_of_queries_sees_the_whole_rectangle(causal, scores):
    tiny = ModelConfig(
        name="tiny", model_type="llama", n_layers=3, d_model=64, n_heads=4, n_kv_heads=2, head_dim=16, d_ff=96,
        vocabulary_size=128,
    )  # fmt: skip
    result = run(lower(prefill(tiny, batch=2, context=64, causal=causal), TERA), chip=TERA, ideal=True)
    projections = 2 * 64 * (64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 96)
    assert result.flops == 2 * (3 * (projections + 4 * scores * 64) + 2 * 64 * 128)


def test_skipping_blocks_above_the_diagonal_saves_about_half_of_the_scores():

    def scores(causal):
        graph = lower(prefill(EXAMPLE, batch=1, context=4096, causal=causal), TERA)
        result = run(graph, chip=TERA, ideal=True)
        t = result.timeline
        names = [number for number, name in enumerate(t.operation_names) if name == "attention"]
        return int(t.flops[t.operation == names[0]].sum())

    full = scores("full")
    assert full == 32 * 4 * 4096 * 4096 * 4096  # 4 T^2 N H a layer
    assert 0.5 < scores("skip") / full < 0.6
