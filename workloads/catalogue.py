"""Finding models: presets by name, and config files of a user's own.

A preset is a small TOML file with what is said ``about`` the model, its ``published_parameters`` where they are known
exactly, and a ``[config]`` of the keys that a Hugging Face config.json has; `workloads.hf` reads both alike.
"""

from __future__ import annotations

import dataclasses
import tomllib
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from simcore.errors import ModelConfigError, nearest
from simcore.quantities import format_bytes, format_count
from workloads.config import ModelConfig
from workloads.hf import read_config
from workloads.parameters import count_parameters, kv_bytes_per_token

PRESET_KEYS = ("about", "published_parameters", "config")


@dataclasses.dataclass(frozen=True, slots=True)
class Preset:
    """A model that comes with the project."""

    config: ModelConfig
    about: str
    published_parameters: int | None


@cache
def presets() -> dict[str, Preset]:
    """Name -> preset, in order of size."""
    found = {}
    for file in resources.files("workloads").joinpath("presets").iterdir():
        if file.name.endswith(".toml"):
            name = file.name.removesuffix(".toml")
            found[name] = _preset(tomllib.loads(file.read_text(encoding="utf-8")), name, f"preset {name}")
    return dict(sorted(found.items(), key=lambda item: (count_parameters(item[1].config).total, item[0])))


def _preset(data: dict[str, Any], name: str, where: str) -> Preset:
    for key in data:
        if key not in PRESET_KEYS:
            raise ModelConfigError(f"{where}: unknown key {key!r}: {nearest(key, PRESET_KEYS)}")
    config = data.get("config")
    if not isinstance(config, dict):
        raise ModelConfigError(f"{where}: needs a table [config] with the keys of a config.json")
    try:
        read = read_config(config)
    except ModelConfigError as error:
        raise ModelConfigError(f"{where}: {error}") from None
    return Preset(dataclasses.replace(read, name=name), str(data.get("about", "")), data.get("published_parameters"))


def model_names() -> list[str]:
    """Names of the presets."""
    return list(presets())


def load_model(model: str | Path | ModelConfig) -> ModelConfig:
    """A model by preset name (case does not matter), or from a file.

    Anything that ends in .json or .toml or has a / is a path: a Hugging Face config.json, the folder that holds one, or
    a TOML file like the presets. Raises `ModelConfigError` for an unknown name or a file that is no model.
    """
    if isinstance(model, ModelConfig):
        return model
    text = str(model)
    if isinstance(model, Path) or text.endswith((".json", ".toml")) or "/" in text or "\\" in text:
        path = Path(model)
        if path.is_dir():
            path = path / "config.json"
        return _from_toml(path) if path.suffix == ".toml" else read_config(path)
    by_name = {name.lower(): preset for name, preset in presets().items()}
    if text.lower() not in by_name:
        raise ModelConfigError(
            f"unknown model {text!r}: {nearest(text.lower(), by_name)} (or the path of a config.json)"
        )
    return by_name[text.lower()].config


def _from_toml(path: Path) -> ModelConfig:
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelConfigError(f"{path}: there is no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ModelConfigError(f"{path} cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise ModelConfigError(f"{path} is no TOML: {error}") from None
    return _preset(data, path.stem, str(path)).config


def model_table() -> tuple[list[str], list[list[str]]]:
    """Column names and one row a preset, for `simcore list models`."""
    columns = [
        "model",
        "parameters",
        "active",
        "layers",
        "d_model",
        "heads",
        "kv heads",
        "d_ff",
        "vocabulary",
        "KV/token",
    ]
    rows = []
    for name, preset in presets().items():
        config = preset.config
        count = count_parameters(config)
        rows.append(
            [
                name,
                format_count(count.total),
                format_count(count.active) if count.active != count.total else "",
                str(config.n_layers),
                str(config.d_model),
                str(config.n_heads),
                "MLA" if config.mla else str(config.n_kv_heads),
                str(config.moe.d_ff_expert if config.moe else config.d_ff),
                str(config.vocabulary_size),
                format_bytes(float(kv_bytes_per_token(config)), binary=True),
            ]
        )
    return columns, rows
