"""``simcore sweep SCENARIO --grid name=1,2,4``: every point of a grid, in parallel, into a CSV file."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from simcore.commands import common
from simcore.commands.outputs import PICTURES, TABLES, distinct, json_text, note, output_path
from simcore.commands.parser import CommandParser, Once
from simcore.errors import ScenarioError, nearest
from simcore.flags import Flag
from simcore.quantities import format_seconds
from simcore.scenario import Scenario, scenario_names
from simcore.sweeping import Sweep, sweep

INTERRUPTED = 130


def main(arguments: Sequence[str], prog: str) -> int:
    scenario, word, rest = common.split_scenario(arguments, _parser(prog, None), prog)
    if scenario is None:
        _parser(prog, None).parse_all(rest)
        raise AssertionError("the help leaves by HelpShown")
    parsed = _parser(f"{prog} {word}", scenario).parse_all(rest)
    engine = common.given_engine(parsed)
    if parsed.output is None:
        raise ScenarioError(f"-o FILE.csv is missing: where the table goes ({prog} --help)")
    output = output_path("-o", parsed.output, TABLES)
    plot = output_path("--plot", parsed.plot, PICTURES)
    assert output is not None
    distinct({"-o": output, "--plot": plot})
    grid = _grid(parsed.grid, scenario)
    given = common.given_parameters(parsed)
    with _progress(parsed.quiet) as progress:
        try:
            done = sweep(
                scenario,
                grid,
                parameters=given,
                chip=parsed.chip,
                figures=common.given_figures(parsed),
                ideal=parsed.ideal,
                engine=engine,
                jobs=_jobs(parsed.jobs),
                output=output,
                resume=parsed.resume,
                progress=progress,
            )
        except KeyboardInterrupt:
            note(f"simcore: interrupted; the same command with --resume goes on from {output}.partial")
            return INTERRUPTED
    note(f"wrote {output}", quiet=parsed.quiet)
    failed = done.failed
    if failed and not parsed.quiet:
        note(f"simcore: {len(failed)} of {len(done.rows)} points failed; the first: {failed[0]['error']}")
    if len(failed) == len(done.rows):
        return 2
    if plot:
        done.plot(plot)
        note(f"wrote {plot}", quiet=parsed.quiet)
    if parsed.json:
        print(json_text({"scenario": done.scenario, "grid": done.grid, "rows": done.rows, "best": done.best()}))
    elif not parsed.quiet:
        print(_finding(done))
    return 0


def _finding(done: Sweep) -> str:
    best = done.best()
    at = ", ".join(f"{name}={best[name]}" for name in done.grid)
    return f"{done.scenario}: {len(done.rows)} points; fastest at {at}: {format_seconds(best['time_s'])}"


def _parser(prog: str, scenario: Scenario | None) -> CommandParser:
    if scenario is None:
        parser = CommandParser(
            prog=prog,
            usage=f"{prog} SCENARIO --grid NAME=VALUE,... [--grid ...] -o FILE.csv [--PARAM VALUE]... [flags]",
            about=(
                "Run a scenario at every point of a grid, in parallel processes, into a CSV file.\n"
                f"scenarios: {', '.join(scenario_names())}"
            ),
            example=f"{prog} double_buffering --grid tiles=1,2,4,8,16,32,64 --issue-cost 1us --ideal -o tiles.csv "
            "--plot tiles.png",
        )
    else:
        first = next((flag.name for flag in scenario.flags if not flag.is_switch), "NAME")
        parser = CommandParser(
            prog=prog,
            usage=f"{prog} --grid NAME=VALUE,... [--grid ...] -o FILE.csv [--PARAM VALUE]... [flags]",
            about=(scenario.module.__doc__ or "").strip(),
            example=f"{prog} --grid {first}={_two_values(scenario, first)} -o {scenario.name}.csv",
        )
        common.add_scenario_flags(parser, scenario, required=False)
    group = parser.add_argument_group("sweep")
    group.add_argument(
        "--grid",
        metavar="NAME=VALUE,...",
        action="append",
        default=[],
        help="a parameter (or chip) and the values it takes; given more than once, every combination is run",
    )
    group.add_argument("-o", "--output", metavar="FILE.csv", action=Once, help="the table, one row a point")
    group.add_argument("--plot", metavar="FILE", action=Once, help="draw the times: .png, .svg or .pdf")
    group.add_argument("--jobs", metavar="N", action=Once, help="processes (default: one a processor)")
    group.add_argument("--resume", action="store_true", help="go on with a sweep that was interrupted")
    group.add_argument("--json", action="store_true", help="print one JSON object instead of the finding")
    group.add_argument("--quiet", action="store_true", help="print no finding, no progress and no notes")
    common.add_run_flags(parser)
    return parser


def _two_values(scenario: Scenario, name: str) -> str:
    flag = next((flag for flag in scenario.flags if flag.name == name), None)
    if flag is None or flag.required or flag.default is None:
        return "..."
    shown = flag.show(flag.default)
    return f"{shown},{flag.show(flag.default * 2)}" if isinstance(flag.default, int | float) else shown


def _jobs(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isdigit() or int(text) < 1:
        raise ScenarioError(f"--jobs {text}: must be a whole number of at least 1")
    return int(text)


def _grid(items: Sequence[str], scenario: Scenario) -> dict[str, list[Any]]:
    """``name=a,b`` items, checked value by value so that a typing error costs no waiting."""
    if not items:
        raise ScenarioError(f"--grid NAME=VALUE,... is missing: what is swept, such as {_example(scenario)}")
    flags: dict[str, Flag] = {flag.name: flag for flag in scenario.flags}
    grid: dict[str, list[Any]] = {}
    for item in items:
        name, equals, values = item.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not values.strip():
            raise ScenarioError(f"--grid {item}: must be NAME=VALUE,VALUE, such as {_example(scenario)}")
        if name in grid:
            raise ScenarioError(f"--grid {name} is given twice")
        texts = [text.strip() for text in values.split(",")]
        if name == "chip":
            from simcore.chips import load_chip

            for text in texts:
                load_chip(text)
            grid[name] = list(texts)
            continue
        if name not in flags:
            raise ScenarioError(f"--grid {name}: no such parameter: {nearest(name, [*flags, 'chip'])}")
        if len(set(texts)) < len(texts):
            raise ScenarioError(f"--grid {item}: a value is given twice")
        grid[name] = [flags[name].read(text) for text in texts]
    return grid


def _example(scenario: Scenario) -> str:
    number = next((flag for flag in scenario.flags if isinstance(flag.default, int) and not flag.is_switch), None)
    return f"{number.name}=1,2,4" if number else "chip=v5e,v5p"


@contextmanager
def _progress(quiet: bool) -> Iterator[Any]:
    """A progress bar on stderr, or nothing."""
    if quiet:
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(file=sys.stderr)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    bar = Progress(*columns, console=console, transient=not console.is_terminal)
    task = bar.add_task("points", total=None)

    def show(done: int, total: int) -> None:
        if not bar.live.is_started:  # a mistake that is found before the first point shows no bar
            bar.start()
        bar.update(task, completed=done, total=total)

    try:
        yield show
    finally:
        if bar.live.is_started:
            bar.stop()
