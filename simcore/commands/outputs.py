"""Output files of commands: checked before anything is simulated, so that a typing error costs no waiting."""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from simcore.errors import OutputError

PICTURES = (".png", ".svg", ".pdf")
TABLES = (".csv", ".parquet")
LONGEST_NAME = 240
"""Bytes; most file systems take 255, and while a file is written its name is a little longer."""
TRACES = (".json", ".json.gz")


def output_path(flag: str, text: str | None, suffixes: Sequence[str]) -> Path | None:
    """The path behind a flag, None where it is not given.

    Raises `OutputError` if the suffix is none of ``suffixes``, or a file cannot be made there.
    """
    if text is None:
        return None
    path = Path(text)
    known = ", ".join(suffixes)
    if "\0" in text or len(os.fsencode(path.name)) > LONGEST_NAME:
        what = "a name of a file has no zero byte" if "\0" in text else "the name is too long for a file"
        raise OutputError(f"{flag} {_short(text)}: {what}")
    try:
        is_folder = path.is_dir()
    except OSError as error:
        raise OutputError(f"{flag} {_short(text)}: cannot write there: {error.strerror}") from None
    if not text or is_folder:
        raise OutputError(
            f"{flag} {text or repr(text)}: {'it is a folder' if text else 'no name'}; name a file ({known})"
        )
    if not path.name.lower().endswith(tuple(suffixes)) or path.name.lower() in suffixes:
        raise OutputError(
            f"{flag} {text}: the suffix chooses the format; it must be {'one of ' * (len(suffixes) > 1)}{known}"
        )
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except FileNotFoundError:
        raise OutputError(f"{flag} {text}: the folder {path.parent} does not exist") from None
    except OSError as error:
        raise OutputError(f"{flag} {text}: cannot write there: {error.strerror}") from None
    return path


def _short(text: str) -> str:
    shown = text.replace("\0", "\\0")
    return shown if len(shown) <= 60 else f"{shown[:30]}...{shown[-20:]}"


def distinct(outputs: Mapping[str, Path | None]) -> None:
    """Raise `OutputError` if two flags name one file."""
    seen: dict[Path, str] = {}
    for flag, path in outputs.items():
        if path is not None:
            other = seen.setdefault(path.resolve(), flag)
            if other != flag:
                raise OutputError(f"{other} and {flag} name the same file, {path}")


def json_text(value: Any) -> str:
    """One JSON object with finite numbers only: what is not a number, or infinite, is null."""
    return json.dumps(_plain(value), indent=2, allow_nan=False, ensure_ascii=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, str | bool | int | float):
        return value
    return str(value)


def note(text: str, *, quiet: bool = False) -> None:
    """A line for the person, on stderr, so that stdout stays the result's."""
    if not quiet:
        print(text, file=sys.stderr)
