"""``simcore run SCENARIO``: simulate once; print the report or one JSON object, and write what was asked for."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from simcore.commands import common
from simcore.commands.outputs import PICTURES, TABLES, TRACES, distinct, json_text, note, output_path
from simcore.commands.parser import CommandParser, Once
from simcore.errors import ScenarioError, SimcoreError, nearest
from simcore.quantities import parse_seconds
from simcore.scenario import Scenario, run_scenario, scenario_names

if TYPE_CHECKING:
    from simcore.result import RunResult
    from simcore.views.gantt_scale import GanttOptions

DOES_NOT_FIT = 3
TABLE_KINDS = ("task", "operation", "layer", "resource")


def main(arguments: Sequence[str], prog: str) -> int:
    scenario, word, rest = common.split_scenario(arguments, _parser(prog, None), prog)
    if scenario is None:
        _parser(prog, None).parse_all(rest)
        raise AssertionError("the help leaves by HelpShown")
    own = prog if prog.startswith("python ") else f"{prog} {word}"
    parsed = _parser(own, scenario).parse_all(rest)
    engine = common.given_engine(parsed)
    gantt = output_path("--gantt", parsed.gantt, PICTURES)
    table = output_path("--table", parsed.table, TABLES)
    plot = output_path("--plot", getattr(parsed, "plot", None), PICTURES)
    options = _gantt_options(parsed, gantt, scenario)
    roofline = output_path("--roofline", parsed.roofline, PICTURES)
    trace = output_path("--trace", parsed.trace, TRACES)
    html = output_path("--html", parsed.html, (".html",))
    pictures = {"--gantt": gantt, "--plot": plot, "--roofline": roofline}
    distinct({**pictures, "--table": table, "--trace": trace, "--html": html})
    if parsed.by is not None and parsed.by not in TABLE_KINDS:
        raise ScenarioError(f"--by {parsed.by}: {nearest(parsed.by, TABLE_KINDS)}")
    result = run_scenario(
        scenario,
        chip=parsed.chip,
        figures=common.given_figures(parsed),
        ideal=parsed.ideal,
        engine=engine,
        parameters=common.given_parameters(parsed),
    )
    if gantt:
        result.gantt(gantt, options)
        note(f"wrote {gantt}", quiet=parsed.quiet)
    if trace:
        from simcore.views.chrome_trace import write_trace

        write_trace(result, trace)
        note(f"wrote {trace}", quiet=parsed.quiet)
    if html:
        from simcore.views.bokeh_timeline import write_html

        write_html(result, html)
        note(f"wrote {html}", quiet=parsed.quiet)
    if roofline:
        from simcore.views.roofline_run import draw_roofline_of

        draw_roofline_of(result, roofline)
        note(f"wrote {roofline}", quiet=parsed.quiet)
    if table:
        from simcore.views.tables import write_table

        write_table(result, table, parsed.by or "task")
        note(f"wrote {table}", quiet=parsed.quiet)
    if plot:
        scenario.plot(result, plot)
        note(f"wrote {plot}", quiet=parsed.quiet)
    if parsed.json:
        print(json_text(result.to_json()))
    elif not parsed.quiet:
        print(result.report())
        if parsed.by and not table:
            from simcore.views.tables import text_of

            print(f"\nper {parsed.by}\n{text_of(result, parsed.by)}", end="")
    return _verdict(result)


def _verdict(result: RunResult) -> int:
    over = result.overflowing_memories
    for memory in over:
        peak, capacity = result.memory_peak_bytes[memory], result.memory_capacity_bytes[memory]
        note(f"simcore: does not fit: {memory} needs {peak:,} bytes at its peak and has {capacity:,}")
    return DOES_NOT_FIT if over else 0


def _parser(prog: str, scenario: Scenario | None) -> CommandParser:
    if scenario is None:
        parser = CommandParser(
            prog=prog,
            usage=f"{prog} SCENARIO [--PARAM VALUE]... [flags]",
            about=(
                "Simulate a scenario: a name, or the path of a script of your own.\n"
                f"scenarios: {', '.join(scenario_names())}\n"
                f"`{prog} SCENARIO --help` shows the parameters of one."
            ),
            example=f"{prog} double_buffering --tiles 8 --gantt double_buffering.png",
        )
    else:
        parser = CommandParser(
            prog=prog,
            usage=f"{prog} [--PARAM VALUE]... [flags]",
            about=(scenario.module.__doc__ or "").strip(),
            example=f"{prog} {common.example_of(scenario)}".rstrip(),
        )
        common.add_scenario_flags(parser, scenario)
    common.add_run_flags(parser)
    group = parser.add_argument_group("output")
    group.add_argument("--gantt", metavar="FILE", action=Once, help="draw the timeline: .png, .svg or .pdf")
    group.add_argument("--zoom", metavar="A:B", action=Once, help="draw only from A to B, e.g. 10us:25us")
    for word, metavar, text in (
        ("layers", "A:B", "draw only layers A to B, e.g. 3:5"),
        ("chips", "N,N", "draw only these chips, e.g. 0,1"),
    ):
        names = common.free_names((f"--{word}", f"--gantt-{word}"), scenario)
        group.add_argument(*names, dest=f"gantt_{word}", metavar=metavar, action=Once, help=text)
    group.add_argument("--memory", action="store_true", help="draw what memories hold, below the timeline")
    group.add_argument("--html", metavar="FILE", action=Once, help="a page to zoom, hover and search: .html")
    group.add_argument("--trace", metavar="FILE", action=Once, help="a trace for Perfetto: .json.gz or .json")
    group.add_argument("--roofline", metavar="FILE", action=Once, help="draw every operation under the chip's roofs")
    if scenario is not None and scenario.has_plot:
        group.add_argument("--plot", metavar="FILE", action=Once, help="draw the scenario's own picture")
    group.add_argument(
        "--table", metavar="FILE", action=Once, help="a table, .csv or .parquet: one row a task, or --by"
    )
    group.add_argument(
        "--by", metavar="|".join(TABLE_KINDS), action=Once, help="what --table has a row for; alone: print that table"
    )
    group.add_argument("--json", action="store_true", help="print one JSON object instead of the report")
    group.add_argument("--quiet", action="store_true", help="print no report and no notes")
    return parser


def _window(text: str | None, gantt: Path | None) -> tuple[float, float] | None:
    """Seconds from and to of ``--zoom``."""
    if text is None:
        return None
    if gantt is None:
        raise ScenarioError(f"--zoom {text}: needs --gantt FILE, whose picture it is a part of")
    begin, colon, end = text.partition(":")
    try:
        window = parse_seconds(begin), parse_seconds(end)
    except SimcoreError as error:
        raise ScenarioError(f"--zoom {text}: must be two times such as 10us:25us ({error})") from None
    if not colon or not 0 <= window[0] < window[1]:
        raise ScenarioError(f"--zoom {text}: must go from an earlier time to a later one, such as 10us:25us")
    if window[1] - window[0] < 1e-12:
        raise ScenarioError(f"--zoom {text}: is shorter than a picosecond, which is what times are counted in")
    return window


def _gantt_options(parsed: argparse.Namespace, gantt: Path | None, scenario: Scenario) -> GanttOptions | None:
    """What of the timeline is to be drawn; None for all of it."""
    window = _window(parsed.zoom, gantt)
    of_layers, of_chips = parsed.gantt_layers, parsed.gantt_chips
    layers_flag, chips_flag = (
        common.free_names((f"--{word}", f"--gantt-{word}"), scenario)[0] for word in ("layers", "chips")
    )
    asked = {layers_flag: of_layers is not None, chips_flag: of_chips is not None, "--memory": parsed.memory}
    for flag, given in asked.items():
        if given and gantt is None:
            raise ScenarioError(f"{flag}: needs --gantt FILE, whose picture it is about")
    if window is None and not any(asked.values()):
        return None
    from simcore.views.gantt_scale import GanttOptions

    layers = _numbers(layers_flag, of_layers, ":", "3:5") if of_layers is not None else ()
    if layers and window is not None:
        raise ScenarioError(f"--zoom and {layers_flag}: both say what part of the time is drawn; leave one out")
    if layers and (len(layers) > 2 or layers[0] > layers[-1]):
        raise ScenarioError(f"{layers_flag} {of_layers}: must be a first and a last layer, such as 3:5")
    return GanttOptions(
        window_s=window,
        layers=(layers[0], layers[-1]) if layers else None,
        chips=_numbers(chips_flag, of_chips, ",", "0,1") if of_chips is not None else (),
        memory=parsed.memory,
    )


def _numbers(flag: str, text: str, between: str, example: str) -> tuple[int, ...]:
    try:
        found = tuple(int(part) for part in text.split(between))
    except ValueError:
        raise ScenarioError(f"{flag} {text or repr(text)}: must be whole numbers, such as {example}") from None
    if min(found) < 0:
        raise ScenarioError(f"{flag} {text}: numbers are 0 or more, such as {example}")
    return found
