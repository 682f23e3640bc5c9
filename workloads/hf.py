"""Reading a Hugging Face ``config.json`` into a `ModelConfig`: aliases, family defaults, and no guesses.

What a family means is data in `workloads.hf_families`. Every figure that the file left out is listed in the
model's ``assumptions``; a file of an unknown family, or with a feature that is not modelled, is an error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simcore.errors import ModelConfigError, nearest
from workloads.config import LayerAttention, MlaConfig, ModelConfig
from workloads.hf_families import FAMILIES, REFUSED, WRAPPERS, Family, Switch
from workloads.hf_keys import OUTSIDE, Keys, short

_DTYPES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "fp32",
    "float": "fp32",
    "float8_e4m3fn": "fp8",
}
_LAYER_TYPES: dict[str, LayerAttention] = {
    "full_attention": "full",
    "sliding_attention": "sliding",
    "chunked_attention": "chunked",
}


def read_config(source: str | Path | Mapping[str, Any]) -> ModelConfig:
    """The model that a Hugging Face config file (or its contents as a mapping) describes.

    Raises `ModelConfigError`, in one line that names the file and the key, for a file that is missing or is
    no JSON object, an unknown or refused model_type, a missing key, a value of the wrong type, or figures
    that fit no model.
    """
    if isinstance(source, Mapping):
        return _read(source, "the config", None)
    path = Path(source)
    return _read(load_json_object(path), str(path), path)


def load_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in ``path``. Raises `ModelConfigError` in one line for anything else."""
    if path.is_dir():
        raise ModelConfigError(f"{path} is a folder: give the file, such as {path / 'config.json'}")
    try:
        data = json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise ModelConfigError(f"{path}: there is no such file") from None
    except OSError as error:
        raise ModelConfigError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ModelConfigError(f"{path} is no text in UTF-8, so no JSON either") from None
    except json.JSONDecodeError as error:
        raise ModelConfigError(f"{path} is no JSON: line {error.lineno}, column {error.colno}: {error.msg}") from None
    except (RecursionError, ValueError):
        raise ModelConfigError(
            f"{path} is no JSON that can be a model: nested too deep, or a number too long"
        ) from None
    if not isinstance(data, dict):
        kind = {list: "a list", str: "a string", type(None): "null", bool: "true or false"}.get(type(data), "a number")
        raise ModelConfigError(f"{path}: a config is a JSON object, but this is {kind}")
    return data


def _read(data: Mapping[str, Any], where: str, path: Path | None) -> ModelConfig:
    model_type, values, notes = _language_model(data, where)
    family = FAMILIES[model_type]
    keys = Keys(where, model_type, values, family.defaults, notes)
    try:
        return ModelConfig(name=_name(data, model_type, path), model_type=model_type, **_figures(keys, family))
    except ModelConfigError as error:
        if str(error).startswith(where):
            raise
        raise ModelConfigError(f"{where}: {error}") from None


def _language_model(data: Mapping[str, Any], where: str) -> tuple[str, Mapping[str, Any], list[str]]:
    """The model_type and keys of the language model, which a multimodal file has in its text_config."""
    outer = _model_type(data, where)
    text = data.get("text_config")
    if text is not None and not isinstance(text, Mapping):
        raise ModelConfigError(f"{where}: text_config must be an object, got {short(text)}")
    if outer in FAMILIES:
        return outer, data, []
    if outer not in WRAPPERS:
        raise _unknown(outer, data, where)
    if text is None:
        raise ModelConfigError(f"{where}: a {outer} config has its language model in text_config, which is missing")
    inner = _model_type(text, where) if text.get("model_type") is not None else WRAPPERS[outer]
    if inner not in FAMILIES:
        raise _unknown(inner, text, f"{where}, text_config")
    values = {**{key: data[key] for key in OUTSIDE if key in data}, **_without_null(text, OUTSIDE)}
    return (
        inner,
        values,
        [f"only the language model ({inner}) of this {outer} config is read: no vision part is counted"],
    )


def _without_null(values: Mapping[str, Any], some: tuple[str, ...]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in some or value is not None}


def _model_type(data: Mapping[str, Any], where: str) -> str:
    model_type = data.get("model_type")
    if model_type is None:
        raise ModelConfigError(f"{where}: model_type is missing, so the family is unknown; {_keys_found(data)}")
    if not isinstance(model_type, str):
        raise ModelConfigError(f"{where}: model_type must be a string, got {short(model_type)}")
    if model_type in REFUSED:
        raise ModelConfigError(f"{where}: model_type {model_type!r} is not modelled: {REFUSED[model_type]}")
    return model_type


def _unknown(model_type: str, data: Mapping[str, Any], where: str) -> ModelConfigError:
    known = sorted({*FAMILIES, *WRAPPERS})
    hint = nearest(model_type, known)
    names = "" if hint.startswith("known:") else f" known: {', '.join(known)};"
    return ModelConfigError(
        f"{where}: unknown model_type {short(model_type)}: {hint}{names or ';'} {_keys_found(data)}"
    )


def _keys_found(data: Mapping[str, Any]) -> str:
    names = [key if len(key) <= 40 else key[:37] + "..." for key in sorted(map(str, data))]
    more = f" and {len(names) - 30} more" if len(names) > 30 else ""
    return f"keys found: {', '.join(names[:30])}{more}" if names else "it has no keys"


def _name(data: Mapping[str, Any], model_type: str, path: Path | None) -> str:
    if path is not None:
        stem = path.stem
        return path.resolve().parent.name if stem == "config" and path.resolve().parent.name else stem
    name = data.get("_name_or_path")
    return name if isinstance(name, str) and name else model_type


def _figures(keys: Keys, family: Family) -> dict[str, Any]:
    n_layers = keys.integer("n_layers")
    d_model = keys.integer("d_model")
    n_heads = keys.integer("n_heads")
    mla = _mla(keys) if family.latent_cache else None
    if mla is not None:
        n_kv_heads, head_dim = n_heads, mla.qk_head_dim
    else:
        details_decide = keys.family == "falcon" and keys.find("n_kv_heads") is None
        n_kv_heads = n_heads if details_decide else keys.integer("n_kv_heads", n_heads, because="it is n_heads")
        head_dim = _head_dim(keys, d_model, n_heads)
    multiple = family.d_ff_over_d_model
    if multiple is None:
        d_ff = keys.integer("d_ff")
    else:
        d_ff = keys.integer("d_ff", multiple * d_model, because=f"it is {multiple} d_model")
    vocabulary_size = keys.integer("vocabulary_size")
    pattern = _pattern(keys, family, n_layers)
    window = keys.optional_integer("sliding_window") if "sliding" in pattern else None
    chunk = keys.optional_integer("attention_chunk") if "chunked" in pattern else None
    if family.learned_positions_beyond is None:
        max_positions, learned = keys.optional_integer("max_positions"), 0
    else:
        max_positions = keys.integer("max_positions")
        learned = max_positions + family.learned_positions_beyond
    moe = family.experts(keys, n_layers)
    quantized, parts = _quantization(keys, moe is not None)
    mtp = keys.optional_integer("n_mtp_layers", least=0)
    if mtp:
        keys.notes.append(f"the {mtp} multi-token-prediction layer{'s are' if mtp > 1 else ' is'} not counted")
    figures: dict[str, Any] = {
        "n_layers": n_layers,
        "d_model": d_model,
        "n_heads": n_heads,
        "n_kv_heads": n_kv_heads,
        "head_dim": head_dim,
        "d_ff": d_ff,
        "vocabulary_size": vocabulary_size,
        "tied_embeddings": keys.flag("tied_embeddings", family.tied_embeddings),
        "gated_mlp": family.gated_mlp,
        "activation": keys.text("activation", family.activation),
        "norm": family.norm,
        "norm_bias": family.norm_bias,
        "norms_per_layer": family.norms_per_layer,
        "max_positions": max_positions,
        "attention_pattern": pattern,
        "sliding_window": window,
        "attention_chunk": chunk,
        "learned_positions": learned,
        "mla": mla,
        "moe": moe,
        "qkv_bias": _switch(keys, family.qkv_bias),
        "attention_output_bias": _switch(keys, family.attention_output_bias),
        "mlp_bias": _switch(keys, family.mlp_bias),
        "qk_norm": family.qk_norm,
        "parallel_block": family.parallel_block,
        "dtype": _dtype(keys),
        "quantized_dtype": quantized,
        "quantized_parts": parts,
    }
    figures.update(family.details(keys))
    figures["assumptions"] = tuple(dict.fromkeys(keys.notes))
    return figures


def _head_dim(keys: Keys, d_model: int, n_heads: int) -> int:
    given = keys.optional_integer("head_dim")
    if given is not None:
        return given
    if d_model % n_heads:
        raise ModelConfigError(
            f"{keys.where}: head_dim is not given, and d_model {d_model} is not a multiple of n_heads {n_heads}"
        )
    return keys.integer("head_dim", d_model // n_heads, because="it is d_model / n_heads")


def _mla(keys: Keys) -> MlaConfig | None:
    if keys.optional_integer("kv_lora_rank") is None:
        return None
    return MlaConfig(
        q_lora_rank=keys.optional_integer("q_lora_rank"),
        kv_lora_rank=keys.integer("kv_lora_rank"),
        qk_nope_head_dim=keys.integer("qk_nope_head_dim"),
        qk_rope_head_dim=keys.integer("qk_rope_head_dim"),
        v_head_dim=keys.integer("v_head_dim"),
    )


def _pattern(keys: Keys, family: Family, n_layers: int) -> tuple[LayerAttention, ...]:
    given = keys.strings("layer_types")
    if given is None or (family.window_needs_use and keys.values.get("use_sliding_window") is not True):
        return family.attention(keys, n_layers)
    if len(given) != n_layers:
        raise ModelConfigError(f"{keys.where}: layer_types has {len(given)} entries for {n_layers} layers")
    for kind in given:
        if kind not in _LAYER_TYPES:
            raise ModelConfigError(
                f"{keys.where}: layer_types has {short(kind)}, which is not modelled: {nearest(kind, _LAYER_TYPES)}"
            )
    return tuple(_LAYER_TYPES[kind] for kind in given)


def _switch(keys: Keys, switch: Switch) -> bool:
    return switch.default if switch.key is None else keys.flag(switch.key, switch.default)


def _dtype(keys: Keys) -> str:
    given = keys.text("dtype", "bfloat16").removeprefix("torch.")
    if given not in _DTYPES:
        raise ModelConfigError(f"{keys.where}: unknown dtype {short(given)}: {nearest(given, _DTYPES)}")
    return _DTYPES[given]


def _quantization(keys: Keys, has_experts: bool) -> tuple[str | None, str]:
    """The dtype of quantized weights and which parts are in it. An unmodelled scheme is noted."""
    quantization = keys.values.get("quantization_config")
    if quantization is None:
        return None, "linear"
    if not isinstance(quantization, Mapping):
        raise keys.wrong("quantization_config", "an object", quantization)
    method = quantization.get("quant_method")
    if method == "fp8":
        return "fp8", "linear"
    if method == "mxfp4" and has_experts:
        return "mxfp4", "experts"
    keys.notes.append(f"the quantization {short(method)} is not modelled: weights are counted as stored unquantized")
    return None, "linear"
