"""What stands under the title of a picture or a page: the scenario, the chips, and the parameters as they are typed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from simcore.errors import SimcoreError
from simcore.scenario import load_scenario

if TYPE_CHECKING:
    from simcore.flags import Flag
    from simcore.result import RunResult


def under_title(result: RunResult) -> str:
    """The run in a line; parameters that are not at their defaults come first."""
    given = _listed(result, dict(result.parameters))
    return f"{result.scenario} {_on(result)}" + (f"  ({given})" if given else "")


def under_titles(runs: Sequence[tuple[str, RunResult]]) -> str:
    """Several runs in a line: on which chips each ran, and the parameters that all of them share."""
    first = runs[0][1]
    places = {_on(result) for _, result in runs}
    if len(places) == 1:
        said = f"{first.scenario} {places.pop()}"
    else:
        said = " against ".join(f"{label} {_on(result)}" for label, result in runs)
    shared = {
        name: value
        for name, value in first.parameters.items()
        if all(name in result.parameters and result.parameters[name] == value for _, result in runs)
    }
    given = _listed(first, shared)
    return said + (f"  ({given})" if given else "")


def _on(result: RunResult) -> str:
    chips = f"{result.chips} x " if result.chips > 1 else ""
    return f"on {chips}{result.chip.name}, {'ideal' if result.ideal else 'calibrated'} model"


def _listed(result: RunResult, parameters: Mapping[str, Any]) -> str:
    flags = _flags(result)
    given = [(name, value) for name, value in parameters.items() if value is not None]
    given.sort(key=lambda item: item[0] in flags and flags[item[0]].default == item[1])
    return ", ".join(f"{name}={flags[name].show(value) if name in flags else value}" for name, value in given)


def _flags(result: RunResult) -> dict[str, Flag]:
    """The flags that the run's parameters came from; none where the scenario is not found by its name."""
    try:
        flags = {flag.name: flag for flag in load_scenario(result.scenario).flags}
    except SimcoreError:
        return {}
    return flags if flags.keys() == result.parameters.keys() else {}
