"""The errors a user can cause: one tree, each message one or two lines that say what is wrong and what would be right.

The command line prints the message without a traceback and exits with the class's ``exit_code``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SimcoreError(Exception):
    """Base of every error that a user of simcore can cause."""

    exit_code = 2


class QuantityError(SimcoreError):
    """A quantity ("819 GB/s", "1 us") that cannot be read or is out of range."""


class ChipError(SimcoreError):
    """A chip that is unknown, or a chip file with a missing, misspelt or impossible figure."""


class ModelConfigError(SimcoreError):
    """A model configuration that cannot be read or does not make sense."""


class LayoutError(SimcoreError):
    """A layout that is malformed or breaks a rule of sharded computation."""


class GraphError(SimcoreError):
    """An op graph or task graph that cannot be run as it stands."""


class DeadlockError(GraphError):
    """A simulation that can't go on: the message names the waiting tasks and who holds what."""


class RaceError(GraphError):
    """Two accesses to one region, one of them a write, that nothing orders."""


class ScenarioError(SimcoreError):
    """An unknown scenario or parameter, or a parameter value that is out of range."""


class OutputError(SimcoreError):
    """An output file that cannot be written."""


class OutOfMemoryError(SimcoreError):
    """Something does not fit in a memory; the message says what was alive. Exit code 3."""

    exit_code = 3


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for a misspelt name: the nearest known one if any is near, else the list of all.

    >>> nearest("v5", ["v4p", "v5e", "v5p"])
    'did you mean v5p, v5e?'
    """
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    if close:
        return f"did you mean {', '.join(close)}?"
    return f"known: {', '.join(names)}" if names else "none are known"
