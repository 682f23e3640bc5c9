"""``simcore explain SCENARIO``: why it takes what it takes, and what would help."""

from __future__ import annotations

from collections.abc import Sequence

from simcore.commands import common
from simcore.commands.outputs import json_text, note
from simcore.commands.parser import CommandParser
from simcore.result import RunResult
from simcore.scenario import Scenario, scenario_names

DOES_NOT_FIT = 3


def main(arguments: Sequence[str], prog: str) -> int:
    scenario, word, rest = common.split_scenario(arguments, _parser(prog, None), prog)
    if scenario is None:
        _parser(prog, None).parse_all(rest)
        raise AssertionError("the help leaves by HelpShown")
    parsed = _parser(f"{prog} {word}", scenario).parse_all(rest)
    from simcore.explain import explain

    found = explain(
        scenario,
        chip=parsed.chip,
        figures=common.given_figures(parsed),
        ideal=parsed.ideal,
        engine=common.given_engine(parsed),
        parameters=common.given_parameters(parsed),
    )
    if parsed.json:
        print(json_text(found.to_json()))
    else:
        from simcore.views.explain_page import explain_page, show

        show(explain_page(found))
    return verdict(found.result)


def verdict(result: RunResult) -> int:
    """The exit code, with a line on stderr for each memory that is too small."""
    over = result.overflowing_memories
    for memory in over:
        peak, capacity = result.memory_peak_bytes[memory], result.memory_capacity_bytes[memory]
        note(f"simcore: does not fit: {memory} needs {peak:,} bytes at its peak and has {capacity:,}")
    return DOES_NOT_FIT if over else 0


def _parser(prog: str, scenario: Scenario | None) -> CommandParser:
    about = (
        "Explain a scenario's time: its lower bounds and the gap to them, the critical path, what compute waits for,\n"
        "who holds the memories, and the changes that would help most, each simulated.\n"
    )
    if scenario is None:
        parser = CommandParser(
            prog=prog,
            usage=f"{prog} SCENARIO [--PARAM VALUE]... [flags]",
            about=f"{about}scenarios: {', '.join(scenario_names())}",
            example=f"{prog} decode_step --batch 4 --context 2048",
        )
    else:
        parser = CommandParser(
            prog=prog,
            usage=f"{prog} [--PARAM VALUE]... [flags]",
            about=f"{about}\n{scenario.about}",
            example=f"{prog} --json",
        )
        common.add_scenario_flags(parser, scenario)
    common.add_run_flags(parser)
    parser.add_argument_group("output").add_argument(
        "--json", action="store_true", help="print one JSON object instead of the page"
    )
    return parser
