"""``simcore whatif SCENARIO --set hbm_bandwidth=2x``: simulated again with other figures, one row a change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from simcore.commands import common
from simcore.commands.explain import verdict
from simcore.commands.outputs import json_text, note
from simcore.commands.parser import CommandParser
from simcore.errors import GraphError
from simcore.scenario import Scenario, scenario_names

if TYPE_CHECKING:
    from simcore.sensitivity import Sensitivity
    from simcore.whatif import WhatIf


def main(arguments: Sequence[str], prog: str) -> int:
    scenario, word, rest = common.split_scenario(arguments, _parser(prog, None), prog)
    if scenario is None:
        _parser(prog, None).parse_all(rest)
        raise AssertionError("the help leaves by HelpShown")
    parsed = _parser(f"{prog} {word}", scenario).parse_all(rest)
    from simcore.whatif import whatif

    found = whatif(
        scenario,
        parsed.set,
        chip=parsed.chip,
        ideal=parsed.ideal,
        engine=common.given_engine(parsed),
        parameters=common.given_parameters(parsed),
    )
    sensitivities = _sensitivities(found)
    if parsed.json:
        print(json_text({**found.to_json(), "sensitivities": [one.to_json() for one in sensitivities]}))
    else:
        from simcore.views.explain_page import show, whatif_page

        show(whatif_page(found, sensitivities))
    return verdict(found.base)


def _sensitivities(found: WhatIf) -> list[Sensitivity]:
    from simcore.explain import RANGES_UP_TO

    try:
        return found.study.sensitivities(ranges=len(found.study.flat) <= RANGES_UP_TO)
    except GraphError as error:
        note(f"simcore: no sensitivities: {error}")
        return []


def _parser(prog: str, scenario: Scenario | None) -> CommandParser:
    about = (
        "Simulate a scenario again with other figures of the chip: one row a --set, and one with all of them.\n"
        "Figures are the chip's own names or short ones (hbm_bandwidth, ici_latency, mxu, vpu, vmem_capacity,\n"
        "issue_cost, ...); values are quantities (1.2TB/s) or factors (2x). Without --set: how the time answers to\n"
        "each figure.\n"
    )
    if scenario is None:
        parser = CommandParser(
            prog=prog,
            usage=f"{prog} SCENARIO [--PARAM VALUE]... --set FIGURE=VALUE [--set ...] [flags]",
            about=f"{about}scenarios: {', '.join(scenario_names())}",
            example=f"{prog} decode_step --ring 4 --set hbm_bandwidth=2x --set ici_latency=0.5x",
        )
    else:
        parser = CommandParser(
            prog=prog,
            usage=f"{prog} [--PARAM VALUE]... --set FIGURE=VALUE [--set ...] [flags]",
            about=f"{about}\n{scenario.about}",
            example=f"{prog} --set hbm_bandwidth=2x --set mxu=2x",
        )
        common.add_scenario_flags(parser, scenario)
    common.add_run_flags(parser)
    next(
        a for a in parser._actions if "--set" in a.option_strings
    ).help = "a change of the chip: one row each, e.g. hbm_bandwidth=2x; may be repeated"
    parser.add_argument_group("output").add_argument(
        "--json", action="store_true", help="print one JSON object instead of the tables"
    )
    return parser
