"""Model configs: published counts, the traps of absent keys, and files that are no model."""

import json
import math

import pytest

from simcore.errors import ModelConfigError
from workloads.catalogue import load_model, model_names, model_table, presets
from workloads.hf import read_config
from workloads.parameters import count_parameters, kv_bytes_per_token, kv_cache_bytes, weight_shapes
from workloads.summary import model_summary

LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name, preset in presets().items() if preset.published_parameters])
def test_parameters_equal_the_published_total(name):
    preset = presets()[name]
    assert count_parameters(preset.config).total == preset.published_parameters


@pytest.mark.parametrize("name", model_names())
def test_the_arrays_of_a_model_add_up_to_its_count(name):
    config = load_model(name)
    assert sum(map(math.prod, weight_shapes(config).values())) == count_parameters(config).total
    assert sum(count_parameters(config).by_part().values()) == count_parameters(config).total


@pytest.mark.parametrize(
    ("name", "kv_elements", "active_billions"),
    [
        ("llama3-8b", 65_536, None), ("llama3-70b", 163_840, None), ("llama3-405b", 258_048, None),
        ("qwen3-8b", 73_728, None), ("mixtral-8x7b", 65_536, 12.88), ("qwen3-30b-a3b", 49_152, 3.35),
        ("qwen3-235b-a22b", 96_256, 22.19), ("deepseek-v3", 35_136, 37.55), ("gpt-oss-120b", 36_864, 5.71),
        ("gpt-oss-20b", 24_576, 4.19),
    ],
)  # fmt: skip
def test_cache_and_active_parameters(name, kv_elements, active_billions):
    config = load_model(name)
    assert kv_bytes_per_token(config) == 2 * kv_elements
    if active_billions:
        assert count_parameters(config).active / 1e9 == pytest.approx(active_billions, abs=0.006)


def test_the_made_up_model_is_that_of_the_worked_case():
    count = count_parameters(load_model("example-6b"))
    assert count.total_without_norms == 5_801_771_008
    assert count.layers[0].attention + count.layers[0].mlp == 177_209_344
    assert count.embedding == 131_072_000


def test_unequal_caches_add_up():
    config = load_model("example-6b")
    assert sum(kv_cache_bytes(config, length) for length in (8192, 4096, 1024, 100)) == 1_757_937_664


def test_what_a_file_leaves_out_is_filled_in_by_family_and_said():
    config = read_config(LLAMA)
    assert config.head_dim == 128
    assert not config.tied_embeddings
    assert any("head_dim 128" in sentence for sentence in config.assumptions)


def test_an_explicit_head_dim_is_honoured():
    assert read_config({**LLAMA, "head_dim": 64}).head_dim == 64
    assert load_model("qwen3-30b-a3b").head_dim == 128  # not 2048 / 32


def test_a_nested_text_config_is_read():
    inner = {"model_type": "gemma3_text", "hidden_size": 3840, "num_hidden_layers": 48, "intermediate_size": 15360,
             "num_attention_heads": 16, "num_key_value_heads": 8, "sliding_window": 1024}  # fmt: skip
    config = read_config({"model_type": "gemma3", "text_config": inner})
    assert (config.head_dim, config.vocabulary_size, config.tied_embeddings) == (256, 262208, True)
    assert config.attention_pattern[:6] == ("sliding",) * 5 + ("full",)


def test_tied_tables_count_once():
    tied = read_config({**LLAMA, "tie_word_embeddings": True})
    assert count_parameters(read_config(LLAMA)).total - count_parameters(tied).total == 128256 * 4096


def test_a_gpt2_file_has_learned_positions_biases_and_two_matrices():
    config = load_model("gpt2")
    assert (config.learned_positions, config.d_ff, config.gated_mlp, config.n_kv_heads) == (1024, 3072, False, 12)


def test_names_are_found_in_any_case_and_misspelt_ones_hinted_at():
    assert load_model("LLAMA3-8B").name == "llama3-8b"
    with pytest.raises(ModelConfigError, match="did you mean llama3-8b"):
        load_model("llama-3-8b")


def test_a_folder_or_a_toml_of_ones_own(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert count_parameters(load_model(tmp_path)).total == 8_030_261_248
    own = tmp_path / "own.toml"
    own.write_text(
        'about = "mine"\n[config]\n' + "".join(f"{key} = {json.dumps(value)}\n" for key, value in LLAMA.items())
    )
    assert load_model(own).name == "own"
    own.write_text('abuot = "mine"\n')
    with pytest.raises(ModelConfigError, match="did you mean about"):
        load_model(own)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "llamma"}, "llama"),
        ({"model_type": None}, "model_type"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_hidden_layers": "32"}, "num_hidden_layers"),
        ({"hidden_size": -1}, "hidden_size"),
        ({"num_key_value_heads": 5}, "multiple of n_kv_heads"),
        ({"vocab_size": 10**12}, "vocab_size"),
    ],
)
def test_faulty_configs_name_the_key(changes, message):
    with pytest.raises(ModelConfigError, match=message) as caught:
        read_config({**LLAMA, **changes})
    assert "\n" not in str(caught.value)


def test_a_summary_says_what_a_model_amounts_to():
    summary = model_summary(load_model("llama3-8b"), 8192)
    assert summary.kv_cache_bytes == 2**30
    assert summary.flops_per_token == 2 * (8_030_261_248 - 128256 * 4096 - 65 * 4096)
    assert summary.attention_flops_per_token == 4 * 8192 * 32 * 128 * 32
    assert "8.03 G parameters" in summary.text()


def test_the_table_has_a_row_a_preset():
    columns, rows = model_table()
    assert [row[0] for row in rows] == model_names()
    assert all(len(row) == len(columns) for row in rows)
