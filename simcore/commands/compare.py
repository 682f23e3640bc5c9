"""``simcore compare SCENARIO --a ring=1 --b ring=4``: two runs against each other, or one against a profile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from simcore.chips import Chip, load_chip
from simcore.commands import common
from simcore.commands.outputs import PICTURES, distinct, json_text, note, output_path
from simcore.commands.parser import CommandParser, Once
from simcore.errors import ScenarioError, nearest
from simcore.result import RunResult
from simcore.scenario import Scenario, run_scenario, scenario_names


def main(arguments: Sequence[str], prog: str) -> int:
    scenario, word, rest = common.split_scenario(arguments, _parser(prog, None), prog)
    if scenario is None:
        _parser(prog, None).parse_all(rest)
        raise AssertionError("the help leaves by HelpShown")
    parsed = _parser(f"{prog} {word}", scenario).parse_all(rest)
    gantt = output_path("--gantt", parsed.gantt, PICTURES)
    html = output_path("--html", parsed.html, (".html",))
    distinct({"--gantt": gantt, "--html": html})
    base = {
        "chip": parsed.chip,
        "figures": common.given_figures(parsed),
        "ideal": parsed.ideal,
        "engine": common.given_engine(parsed),
        "parameters": common.given_parameters(parsed),
    }
    if parsed.measured is not None:
        if parsed.a or parsed.b or gantt or html:
            raise ScenarioError("--measured holds one run against a file: leave out --a, --b, --gantt and --html")
        return _measured(scenario, base, parsed)
    if parsed.alias:
        raise ScenarioError("--alias is for --measured FILE")
    if not parsed.a and not parsed.b:
        raise ScenarioError("say what differs: --a PARAM=VALUE and --b PARAM=VALUE, or --measured FILE")
    from simcore.comparison import compare

    for flag, changes in (("--a", parsed.a), ("--b", parsed.b)):
        _once(flag, changes)
    runs = [_run(scenario, base, flag, changes) for flag, changes in (("--a", parsed.a), ("--b", parsed.b))]
    labels = [", ".join(changes) or "as it is" for changes in (parsed.a, parsed.b)]
    found = compare(runs[0], runs[1], *labels)
    if gantt:
        from simcore.views.gantt_panels import draw_gantts

        draw_gantts(list(zip(labels, runs, strict=True)), gantt, f"{scenario.name}: {found.finding()}")
        note(f"wrote {gantt}", quiet=parsed.quiet)
    if html:
        from simcore.views.bokeh_timeline import write_compare_html

        write_compare_html(found, html)
        note(f"wrote {html}", quiet=parsed.quiet)
    if parsed.json:
        print(json_text(found.to_json()))
    elif not parsed.quiet:
        print(found.report())
    return 0


def _once(flag: str, changes: Sequence[str]) -> None:
    """Raise `ScenarioError` where one run is to have two values of the same thing."""
    names = [change.partition("=")[0].strip().replace("-", "_") for change in changes]
    for name in names:
        if names.count(name) > 1:
            raise ScenarioError(f"{flag} {name} is given twice")


def _measured(scenario: Scenario, base: dict[str, Any], parsed: Any) -> int:
    from simcore.measured import against_measured, read_measured

    if not parsed.measured or Path(parsed.measured).is_dir():
        what = "is a folder" if parsed.measured else "no name"
        raise ScenarioError(
            f"--measured {parsed.measured or repr(parsed.measured)}: {what}; name a file (.csv, .json.gz)"
        )
    measured = read_measured(parsed.measured)
    aliases = {}
    for item in parsed.alias:
        ours, equals, theirs = item.partition("=")
        if not (ours and equals and theirs):
            raise ScenarioError(f"--alias {item}: must be SIMULATED=MEASURED, such as gate=fusion.3")
        if ours in aliases:
            raise ScenarioError(f"--alias {ours} is given twice")
        aliases[ours] = theirs
    found = against_measured(run_scenario(scenario, **base), measured, aliases)
    print(json_text(found.to_json()) if parsed.json else found.report())
    return 0


def _run(scenario: Scenario, base: dict[str, Any], flag: str, changes: Sequence[str]) -> RunResult:
    """The run with changes to its parameters, its chip or the chip's figures."""
    asked = {**base, "figures": dict(base["figures"]), "parameters": dict(base["parameters"])}
    names = {one.name: one for one in scenario.flags}
    figures = {field.name for field in fields(Chip)}
    for change in changes:
        name, equals, value = change.partition("=")
        name = name.strip().replace("-", "_")
        if not (name and equals and value):
            raise ScenarioError(f"{flag} {change}: must be PARAM=VALUE, such as ring=4")
        if name == "chip":
            asked["chip"] = value
        elif name == "ideal":
            if value not in ("true", "false"):
                raise ScenarioError(f"{flag} {change}: true or false is meant")
            asked["ideal"] = value == "true"
        elif name in names:
            asked["parameters"][name] = value
        elif name in figures or _is_figure(name):
            asked["figures"][name] = value
        else:
            known = [*names, "chip", "ideal", *figures]
            raise ScenarioError(f"{flag} {change}: unknown {name!r}, {nearest(name, known)}")
    return run_scenario(scenario, **asked)


def _is_figure(name: str) -> bool:
    """Whether the chip takes it as one of its figures, by a short name too."""
    from simcore.errors import SimcoreError

    try:
        load_chip("v5e").replace(**{name: "1x"})
    except SimcoreError:
        return False
    return True


def _parser(prog: str, scenario: Scenario | None) -> CommandParser:
    about = (
        "Two runs of a scenario against each other: times, waits, operations, resources and bytes. What --a and --b\n"
        "say are parameters, chip=NAME, ideal=true, or figures of the chip (hbm_bandwidth=2x); each may be repeated.\n"
        "--measured FILE holds one run against measured times: a CSV file (name, duration_us, count), or a JAX\n"
        "profile (*.trace.json.gz).\n"
    )
    if scenario is None:
        parser = CommandParser(
            prog=prog,
            usage=f"{prog} SCENARIO [--PARAM VALUE]... --a PARAM=VALUE --b PARAM=VALUE [flags]",
            about=f"{about}scenarios: {', '.join(scenario_names())}",
            example=f"{prog} decode_step --a ring=1 --b ring=4 --gantt compared.png",
        )
    else:
        parser = CommandParser(
            prog=prog,
            usage=f"{prog} [--PARAM VALUE]... --a PARAM=VALUE --b PARAM=VALUE [flags]",
            about=f"{about}\n{scenario.about}",
            example=f"{prog} --a chip=v5e --b chip=v5p",
        )
        common.add_scenario_flags(parser, scenario, required=False)
    common.add_run_flags(parser)
    group = parser.add_argument_group("comparison")
    group.add_argument("--a", metavar="PARAM=VALUE", action="append", default=[], help="what the first run changes")
    group.add_argument("--b", metavar="PARAM=VALUE", action="append", default=[], help="what the second run changes")
    group.add_argument("--measured", metavar="FILE", action=Once, help="measured times to hold the run against")
    group.add_argument(
        "--alias", metavar="SIMULATED=MEASURED", action="append", default=[], help="names that are the same operation"
    )
    group.add_argument("--gantt", metavar="FILE", action=Once, help="both timelines on one axis: .png, .svg or .pdf")
    group.add_argument("--html", metavar="FILE", action=Once, help="both timelines as a page to zoom and search: .html")
    group.add_argument("--json", action="store_true", help="print one JSON object")
    group.add_argument("--quiet", action="store_true", help="print no report and no notes")
    return parser
