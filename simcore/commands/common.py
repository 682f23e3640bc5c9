"""What the commands that run a scenario share: finding it in the command line, its flags, and the chip's."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from simcore.commands.parser import CommandParser, Once
from simcore.errors import ScenarioError, nearest
from simcore.flags import Flag
from simcore.scenario import ENGINES, Scenario, load_scenario, scenario_names


def add_run_flags(parser: CommandParser) -> None:
    """Flags that say on what a scenario runs."""
    group = parser.add_argument_group("chip and model")
    group.add_argument(
        "--chip", metavar="NAME|FILE", action=Once, help="a chip of `simcore list chips`, or a chip file (.toml)"
    )
    group.add_argument(
        "--set",
        metavar="FIGURE=VALUE",
        action="append",
        default=[],
        help="override a figure of the chip, e.g. hbm_bandwidth_bytes_per_s=1e12; may be repeated",
    )
    group.add_argument(
        "--ideal",
        action="store_true",
        help="textbook arithmetic: efficiencies 1, no padding, no issue or launch cost of the chip",
    )
    group.add_argument(
        "--engine", metavar="|".join(ENGINES), action=Once, default="auto", help="what simulates (default: auto)"
    )


def split_scenario(
    arguments: Sequence[str], parser: CommandParser, prog: str
) -> tuple[Scenario | None, str, list[str]]:
    """Take the scenario, the first word that is no flag, out of a command line.

    ``parser`` holds the command's own flags. Returns the scenario, the word, and the rest; no scenario only where the
    command's own help is asked for.
    """
    index = 0
    while index < len(arguments):
        word = arguments[index]
        if not word.startswith("-"):
            rest = [*arguments[:index], *arguments[index + 1 :]]
            scenario = load_scenario(word)
            _without_collisions(scenario, parser, word)
            return scenario, word, rest
        if word in ("-h", "--help"):
            return None, "", list(arguments)
        action = parser._option_string_actions.get(word.partition("=")[0])
        if action is None:
            raise ScenarioError(f"{word} before the scenario: write {prog} SCENARIO {word} ...")
        index += 1 if "=" in word or action.nargs == 0 else 2
    known = ", ".join(scenario_names()) or "none"
    raise ScenarioError(f"name a scenario, or the path of a script; known: {known} ({prog} --help)")


def _without_collisions(scenario: Scenario, parser: CommandParser, word: str) -> None:
    """Raise `ScenarioError` for a parameter that has all the names of one of the command's own flags."""
    given = {option for flag in scenario.flags for option in options_of(flag)}
    for option in sorted(given):
        own = parser._option_string_actions.get(option)
        if own is not None and given.issuperset(own.option_strings):
            raise ScenarioError(f"scenario {word}: its parameter {option} is a flag of {parser.prog}; rename it")


def options_of(flag: Flag) -> tuple[str, ...]:
    """What a parameter is called on the command line."""
    return (flag.option, f"--no-{flag.option.removeprefix('--')}") if flag.is_switch else (flag.option,)


def free_names(names: Sequence[str], scenario: Scenario | None) -> list[str]:
    """Those of the names of a flag that no parameter of the scenario has."""
    taken = {option for flag in scenario.flags for option in options_of(flag)} if scenario is not None else set()
    return [name for name in names if name not in taken]


def add_scenario_flags(parser: CommandParser, scenario: Scenario, *, required: bool = True) -> None:
    """The scenario's parameters as flags; they are kept as text in ``parameter:NAME``."""
    if not scenario.flags:
        return
    group = parser.add_argument_group(f"parameters of {scenario.name}")
    for flag in scenario.flags:
        text = flag.declared.help.replace("%", "%%")
        note = "required" if flag.required else f"default: {flag.show(flag.default)}".replace("%", "%%")
        options: dict[str, Any] = {
            "dest": f"parameter:{flag.name}",
            "help": f"{text} ({note})".strip(),
            "default": argparse.SUPPRESS,
        }
        if flag.is_switch:
            group.add_argument(flag.option, action=argparse.BooleanOptionalAction, **options)
        else:
            metavar = "|".join(map(str, flag.choices)) if flag.choices and not flag.kind.several else flag.kind.metavar
            group.add_argument(
                flag.option, action=Once, metavar=metavar, required=required and flag.required, **options
            )


def given_parameters(parsed: argparse.Namespace) -> dict[str, Any]:
    """The parameters that were typed, as text, by name."""
    return {key.partition(":")[2]: value for key, value in vars(parsed).items() if key.startswith("parameter:")}


def given_figures(parsed: argparse.Namespace) -> dict[str, str]:
    """``--set figure=value`` flags as a mapping."""
    figures: dict[str, str] = {}
    for item in parsed.set:
        figure, equals, value = item.partition("=")
        if not (figure and equals and value):
            raise ScenarioError(f"--set {item}: must be FIGURE=VALUE, e.g. hbm_bandwidth_bytes_per_s=1e12")
        if figure in figures:
            raise ScenarioError(f"--set {figure} is given twice")
        figures[figure] = value
    return figures


def given_engine(parsed: argparse.Namespace) -> str:
    if parsed.engine not in ENGINES:
        raise ScenarioError(f"--engine {parsed.engine}: {nearest(parsed.engine, ENGINES)}")
    return str(parsed.engine)


def example_of(scenario: Scenario) -> str:
    """Flags for an example that works: the module's ``EXAMPLE``, else the first parameters at their defaults."""
    stated = getattr(scenario.module, "EXAMPLE", None)
    if isinstance(stated, str):
        return stated
    shown: list[Flag] = [flag for flag in scenario.flags if not flag.is_switch and flag.default is not None]
    words = [f"{flag.option} {'...' if flag.required else flag.show(flag.default)}" for flag in shown[:2]]
    return " ".join(words)
