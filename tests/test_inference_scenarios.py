"""The scenarios of inference: their figures against closed forms, and that their pictures are drawn."""

import pytest

from simcore.errors import SimcoreError
from simcore.rates import Rates
from simcore.scenario import load_scenario, run_scenario
from workloads.catalogue import load_model
from workloads.parameters import kv_bytes_per_token


def simulate(name, ideal=True, chip=None, **parameters):
    return run_scenario(name, ideal=ideal, chip=chip, parameters=parameters)


@pytest.mark.parametrize("positions", [256, 1024, 2048])
def test_naive_attention_moves_all_scores_four_times_and_flash_none(positions):
    flash, naive = (simulate("flash_attention", positions=positions, kernel=kernel) for kernel in ("flash", "naive"))
    moved = [sum(result.bytes[way] for way in ("hbm_read", "hbm_write")) for result in (flash, naive)]
    assert flash.flops == naive.flops == 4 * 32 * positions**2 * 128
    again = (1024 - 512) // 512  # how often keys and values are read: once a block of queries
    assert moved[0] >= flash.extra["least_traffic_bytes"]
    assert moved[1] - moved[0] >= 0.9 * naive.extra["naive_score_traffic_bytes"] - again * moved[0]
    assert naive.time_s > flash.time_s


def test_the_traffic_of_naive_attention_is_that_of_the_scores_and_grows_with_their_number():
    def traffic(kernel, positions):
        result = simulate("flash_attention", positions=positions, kernel=kernel)
        return sum(result.bytes.values())

    assert traffic("naive", 4096) > 3.9 * traffic("naive", 2048)
    # Keys and values once for each block of queries: far less than the scores.
    assert traffic("flash", 4096) < traffic("naive", 4096) / 8


@pytest.mark.parametrize("kind", ["mha", "gqa", "mqa", "mla"])
def test_a_cache_costs_what_a_token_of_it_holds(kind):
    result = simulate("kv_cache", kind=kind, context=4096)
    config = load_model("example-6b")
    heads = {"mha": config.n_heads, "gqa": 8, "mqa": 1}
    if kind != "mla":
        assert result.extra["kv_bytes_per_token"] == 2 * config.n_layers * heads[kind] * config.head_dim * 2
    else:
        assert result.extra["kv_bytes_per_token"] == config.n_layers * (512 + 64) * 2
    tables = result.bytes_by_tensor["hbm_read"]
    read = sum(size for name, size in tables.items() if "cache" in name)
    assert read == pytest.approx(4 * 4096 * result.extra["kv_bytes_per_token"])


def test_a_layer_of_experts_reads_those_that_are_hit():
    few, many = (simulate("moe_layer", batch=batch, chip="v5p") for batch in (2, 64))
    assert few.extra["expected_distinct_experts"] == pytest.approx(8 * (1 - 0.75**2))
    assert many.extra["expected_distinct_experts"] == pytest.approx(8, abs=1e-6)
    assert few.bytes["hbm_read"] < many.bytes["hbm_read"]
    one, eight = (
        simulate("moe_layer", batch=64, chip="v5p"),
        simulate("moe_layer", batch=64, chip="v5p", plan="expert=8"),
    )
    assert eight.bytes["ici"] > 0
    assert eight.time_s < one.time_s
    with pytest.raises(SimcoreError, match="has no experts"):
        simulate("moe_layer", model="llama3-8b")


def test_generating_is_a_prefill_and_as_many_steps():
    result = simulate("generate", model="tiny", context=64, steps=8, batch=2, price_per_chip_hour=3.6)
    extra = result.extra
    assert extra["generate_s"] == pytest.approx(extra["prefill_s"] + extra["decode_s"])
    assert extra["decode_s"] == pytest.approx(8 * extra["time_per_token_s"])
    assert extra["first_step_s"] <= extra["last_step_s"]
    assert extra["cost_per_million_tokens"] == pytest.approx(1e-3 * extra["generate_s"] / (2 * 9) * 1e6)
    sharded = simulate("generate", model="tiny", context=64, steps=4, plan="tensor=2,sequence")
    assert sharded.chips == 2


def test_rates_follow_from_time_bytes_and_flops():
    rates = Rates.of(
        time_s=0.5, chips=4, tokens=100, model_flops=10**12, needed_bytes=10**11, peak_flops_per_s=1e12,
        hbm_bandwidth_bytes_per_s=1e11, price_per_chip_hour=9.0,
    )  # fmt: skip
    assert (rates.tokens_per_s, rates.tokens_per_s_per_chip) == (200, 50)
    assert rates.mfu == pytest.approx(0.5)
    assert rates.mbu == pytest.approx(0.5)
    assert rates.cost_per_million_tokens == pytest.approx(4 * 0.5 * 9 / 3600 / 100 * 1e6)
    nothing = Rates.of(
        time_s=0.0,
        chips=1,
        tokens=1,
        model_flops=1,
        needed_bytes=1,
        peak_flops_per_s=1.0,
        hbm_bandwidth_bytes_per_s=1.0,
    )
    assert nothing.tokens_per_s == 0
    with pytest.raises(SimcoreError, match="0 or more"):
        Rates.of(
            time_s=1.0, chips=1, tokens=1, model_flops=1, needed_bytes=1, peak_flops_per_s=1.0,
            hbm_bandwidth_bytes_per_s=1.0, price_per_chip_hour=-1.0,
        )  # fmt: skip


def test_a_decode_step_has_its_rates_and_its_bound():
    result = simulate("decode_step", model="llama3-8b", batch=8, chip="v5p", price_per_chip_hour=2)
    needed = result.extra["weight_bytes"] + 8 * 8192 * float(kv_bytes_per_token(load_model("llama3-8b"), "bf16"))
    assert result.extra["mbu"] == pytest.approx(needed / result.time_s / result.chip.hbm_bandwidth_bytes_per_s, rel=0.1)
    assert result.extra["mbu"] > 0.9
    assert result.extra["tokens_per_s"] == pytest.approx(8 / result.time_s)
    assert result.extra["memory_bound_s"] == pytest.approx(result.bounds_s["hbm"], rel=1e-3)


@pytest.mark.parametrize("plan", ["tensor=2,sequence", "fsdp=2", "data=2", "tensor2=2", "context=2", "pipeline=2"])
def test_the_account_of_the_op_graph_is_what_is_simulated(plan):
    result = simulate("decode_step", model="tiny", batch=4, context=64, plan=plan)
    tables = result.bytes_by_tensor["hbm_read"]
    counted = sum(size for name, size in tables.items() if name.startswith(("w_", "embedding", "k_cache", "v_cache")))
    assert counted == pytest.approx(result.extra["read_bytes"], rel=0.02)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("flash_attention", {"positions": 512, "heads": 4, "kv_heads": 2}),
        ("kv_cache", {"model": "tiny", "context": 1024, "groups": 2}),
        ("moe_layer", {"batch": 4}),
    ],
)
def test_pictures_are_drawn(name, parameters, tmp_path):
    result = simulate(name, chip="v5p", **parameters)
    path = tmp_path / "picture.png"
    load_scenario(name).plot(result, path)
    assert path.stat().st_size > 20_000


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"plan": "tensor=2", "ring": 4}, "give one of them"),
        ({"plan": "tensor=3"}, "do not divide"),
        ({"plan": "tensor=8", "slice": "4x4"}, "the product of its ways must be 16"),
        ({"plan": "pipeline=64"}, "64 stages, and it has 32 layers"),
        ({"weights_dtype": "int9"}, "int9"),
        ({"imbalance": 0.5}, "imbalance"),
        ({"capacity_factor": -1}, "capacity"),
        ({"price_per_chip_hour": -1}, "price"),
        ({"batch": 0}, "batch"),
    ],
)
def test_bad_input_says_what_would_be_right(parameters, message):
    with pytest.raises(SimcoreError, match=message):
        simulate("decode_step", **parameters)
