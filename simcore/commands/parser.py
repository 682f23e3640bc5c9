"""An argument parser that raises `ScenarioError`, with the nearest name, instead of leaving the program."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from simcore.errors import ScenarioError, nearest

_NEGATIVE = re.compile(r"-\.?\d")


class HelpShown(Exception):
    """The help was asked for and has been printed."""


class CommandParser(argparse.ArgumentParser):
    """`argparse`, with an example at the end of the help, no abbreviations, and errors of our own."""

    def __init__(self, *, prog: str, about: str, example: str, usage: str | None = None, help: bool = True) -> None:
        super().__init__(
            prog=prog,
            usage=usage,
            description=about,
            epilog=f"example:\n  {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            add_help=help,
        )

    def error(self, message: str) -> NoReturn:
        """Instead of printing the usage and leaving."""
        raise ScenarioError(f"{message} ({self.prog} --help)")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """`argparse` calls this after it has printed the help."""
        raise HelpShown

    def parse_all(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse; an unknown flag or a word too many is an error that names the nearest."""
        parsed, unknown = self.parse_known_args(joined(arguments))
        for word in unknown:
            if word.startswith("-"):
                option = word.partition("=")[0]
                known = [known for known in self._option_string_actions if known.startswith("--")]
                raise ScenarioError(f"unknown flag {option}: {nearest(option, known)} ({self.prog} --help)")
        if unknown:
            raise ScenarioError(f"{unknown[0]!r} is one word too many ({self.prog} --help)")
        return parsed


def joined(arguments: Sequence[str]) -> list[str]:
    """``--load -1ms`` as ``--load=-1ms``: a negative quantity is a value, not a flag."""
    out: list[str] = []
    for word in arguments:
        if _NEGATIVE.match(word) and out and out[-1].startswith("--") and "=" not in out[-1]:
            out[-1] += f"={word}"
        else:
            out.append(word)
    return out


class Once(argparse.Action):
    """Store a value; the same flag twice is an error, not silently the last one."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        seen: set[str] = namespace.__dict__.setdefault("_seen", set())
        if self.dest in seen:
            raise ScenarioError(f"{option_string} is given twice")
        seen.add(self.dest)
        setattr(namespace, self.dest, values)
