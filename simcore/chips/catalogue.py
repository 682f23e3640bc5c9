"""The chip catalogue: one TOML file a chip, and chip files of a user's own.

A figure is a number, a quantity as text, or ``{ value = ..., source = "..." }``. A file of one's own may start from
another chip and change some figures, also by a factor::

    name = "fat-v5e"
    base = "v5e"
    hbm_bandwidth_bytes_per_s = "2x"
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from simcore.chips.chip import Chip
from simcore.chips.figures import FIGURES, TABLES, read_figure
from simcore.errors import ChipError, nearest
from simcore.quantities import format_bandwidth, format_bytes, format_flops_per_s, format_seconds

TEXTS = ("name", "family", "base", "aliases")


@cache
def _catalogue() -> dict[str, Chip]:
    chips: dict[str, Chip] = {}
    for file in sorted(resources.files("simcore.chips").joinpath("data").iterdir(), key=lambda file: file.name):
        if file.name.endswith(".toml"):
            chip = _chip(tomllib.loads(file.read_text(encoding="utf-8")), file.name, ())
            chips[chip.name] = chip
    return chips


def chip_names() -> list[str]:
    """Names of the catalogue's chips: TPUs, then GPUs, each in order of age."""
    return [chip.name for chip in all_chips()]


def all_chips() -> list[Chip]:
    """The catalogue's chips."""
    return sorted(_catalogue().values(), key=lambda chip: (chip.family != "tpu", chip.peak("bf16"), chip.name))


def load_chip(chip: str | Path | Chip) -> Chip:
    """A chip by its catalogue name (case does not matter), or from a file (anything ending in .toml or with a /).

    Raises `ChipError` for an unknown name, or a file with a missing, misspelt or impossible figure.
    """
    if isinstance(chip, Chip):
        return chip
    text = str(chip)
    if isinstance(chip, Path) or text.endswith(".toml") or "/" in text or "\\" in text:
        return _from_file(Path(chip), ())
    known = {name.lower(): made for made in _catalogue().values() for name in (made.name, *made.aliases)}
    found = known.get(text.lower())
    if found is None:
        raise ChipError(
            f"unknown chip {text!r}: {nearest(text, chip_names())} (or the path of a chip file, my_chip.toml)"
        )
    return found


def _from_file(path: Path, seen: tuple[Path, ...]) -> Chip:
    if path.is_dir():
        raise ChipError(f"chip file {path}: it is a folder")
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ChipError(f"chip file {path}: there is no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ChipError(f"chip file {path} cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise ChipError(f"chip file {path} is no TOML: {error}") from None
    if path.resolve() in seen:
        raise ChipError(f"chip file {path}: it is derived from itself")
    return _chip(data, f"chip file {path}", (*seen, path.resolve()), path)


def _chip(data: Mapping[str, Any], where: str, seen: tuple[Path, ...], path: Path | None = None) -> Chip:
    base = _base(data, where, seen, path)
    known = [*TEXTS, *FIGURES, *TABLES]
    for key in data:
        if key not in known:
            raise ChipError(f"{where}: unknown key {key!r}: {nearest(key, known)}")
    for key in ("name", "family"):
        if key in data and (not isinstance(data[key], str) or not data[key]):
            raise ChipError(f"{where}: {key} must be a text")
    figures: dict[str, Any] = {}
    sources: dict[str, str] = dict(base.sources) if base else {}
    for key, figure in FIGURES.items():
        if key in data:
            value, source = _value(data[key], where, key)
            figures[key] = read_figure(where, key, figure, value, getattr(base, key) if base else None)
            sources[key] = source or f"{where}"
    for table, (figure, entries) in TABLES.items():
        old: dict[str, float] = dict(getattr(base, table)) if base else {}
        given = data.get(table, {})
        if not isinstance(given, Mapping):
            raise ChipError(f"{where}: {table} must be a table, [{table}] with one line each of {', '.join(entries)}")
        for entry, raw in given.items():
            if entry not in entries:
                raise ChipError(f"{where}: unknown key {entry!r} in [{table}]: {nearest(entry, entries)}")
            value, source = _value(raw, where, f"{table}.{entry}")
            old[entry] = read_figure(where, f"{table}.{entry}", figure, value, old.get(entry))
            sources[f"{table}.{entry}"] = source or f"{where}"
        figures[table] = old
    if base is None:
        missing = [key for key, figure in FIGURES.items() if figure.required and key not in figures]
        if not figures["peak_flops_per_s"]:
            missing.append("[peak_flops_per_s] with at least bf16")
        if missing:
            raise ChipError(f'{where}: missing {", ".join(missing)} (or derive it: base = "v5e")')
    else:
        inherited = {key: getattr(base, key) for key in FIGURES if key not in figures}
        figures = {**inherited, **figures}
    name = data.get("name") or (path.stem if path else base.name if base else "chip")
    aliases = data.get("aliases", [])
    return Chip(
        name=name,
        family=data.get("family") or (base.family if base else "tpu"),
        aliases=tuple(aliases),
        sources=sources,
        **{key: value for key, value in figures.items() if value is not None},
    )


def _base(data: Mapping[str, Any], where: str, seen: tuple[Path, ...], path: Path | None) -> Chip | None:
    base = data.get("base")
    if base is None:
        return None
    if not isinstance(base, str):
        raise ChipError(f"{where}: base must be the name or the file of a chip")
    if path is not None and base.endswith(".toml"):
        return _from_file(path.parent / base, seen)
    try:
        return load_chip(base)
    except ChipError as error:
        raise ChipError(f"{where}: base: {error}") from None


def _value(raw: Any, where: str, key: str) -> tuple[Any, str]:
    if not isinstance(raw, Mapping):
        return raw, ""
    extra = sorted(set(raw) - {"value", "source"})
    if "value" not in raw or extra:
        raise ChipError(f'{where}: {key} must be a number, a quantity, or {{ value = ..., source = "..." }}')
    return raw["value"], str(raw.get("source", ""))


def chip_table() -> tuple[list[str], list[list[str]]]:
    """Column names and one row a chip, for `simcore list chips`."""
    columns = [
        "chip",
        "HBM",
        "HBM bandwidth",
        "bf16",
        "int8",
        "VMEM",
        "link, one-way",
        "hop",
        "links",
        "pod",
        "FLOPs/byte",
    ]
    rows = []
    for chip in all_chips():
        link = chip.ici_link_bandwidth_bytes_per_s or chip.nvlink_bandwidth_bytes_per_s
        hop = chip.ici_hop_latency_s or chip.nvlink_latency_s
        shape = chip.pod_shape
        rows.append(
            [
                chip.name,
                format_bytes(chip.hbm_capacity_bytes),
                format_bandwidth(chip.hbm_bandwidth_bytes_per_s),
                format_flops_per_s(chip.peak("bf16")),
                format_flops_per_s(chip.peak_flops_per_s["int8"]) if "int8" in chip.peak_flops_per_s else "-",
                format_bytes(chip.vmem_capacity_bytes, binary=True),
                format_bandwidth(link) if link else "-",
                format_seconds(hop) if hop else "-",
                f"{2 * chip.torus_dimensions} ICI" if chip.torus_dimensions else "NVLink",
                "x".join(map(str, shape)) if shape else str(chip.gpus_per_nvlink_domain or "-"),
                f"{chip.ridge_flops_per_byte():.0f}",
            ]
        )
    return columns, rows
