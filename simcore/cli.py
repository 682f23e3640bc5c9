"""The ``simcore`` command: finds the subcommand, and turns errors into one line and an exit code.

What a subcommand does is in `simcore.commands`, one module each; only the one that is called is imported.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from simcore.commands.parser import CommandParser, HelpShown
from simcore.errors import ScenarioError, SimcoreError, nearest

COMMANDS = {
    "run": "simulate a scenario: how long, what holds it back, what overlaps",
    "explain": "why a scenario takes what it takes, and what would help most",
    "whatif": "simulate again with other figures of the chip, one row a change",
    "compare": "two runs against each other, or one against measured times",
    "trace": "a run as a trace for Perfetto, written or served",
    "sweep": "run a scenario over a grid of parameters, in parallel, into a CSV file",
    "matmul": "plan a sharded matmul: its collectives, its bounds, its simulated time",
    "list": "the scenarios, chips, models and topologies there are",
    "fits": "whether a step of a model fits in memory, and what would make it fit",
    "model": "what a model's config.json amounts to: parameters, bytes, FLOPs",
}
INTERRUPTED = 130


def main(argv: Sequence[str] | None = None, *, prog: str | None = None) -> int:
    """Run a command line; returns the exit code: 0 done, 2 the user's error, 3 does not fit in memory.

    ``prog`` is what the help calls the program, when it is not ``simcore COMMAND`` (a scenario run as a script).
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _dispatch(arguments, prog)
        sys.stdout.flush()
        return code
    except HelpShown:
        return 0
    except SimcoreError as error:
        print(f"simcore: error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("simcore: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader (`| head`) has gone: nothing more to say, and nothing to say it to at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0


def _dispatch(arguments: list[str], prog: str | None) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_overview())
        return 0
    if arguments[0] == "--version":
        from importlib.metadata import version

        print(f"simcore {version('simcore')}")
        return 0
    name = arguments[0]
    if name not in COMMANDS:
        what = "flag" if name.startswith("-") else "command"
        raise ScenarioError(f"unknown {what} {name!r}: {nearest(name, COMMANDS)} (simcore --help)")
    command = importlib.import_module(f"simcore.commands.{name}")
    code = command.main(arguments[1:], prog or f"simcore {name}")
    return int(code)


def _overview() -> str:
    parser = CommandParser(
        prog="simcore",
        usage="simcore COMMAND [--help] ...",
        about="Simulate accelerator chips, their memories and their links running Transformers.",
        example="simcore run double_buffering --tiles 8 --gantt double_buffering.png",
    )
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  {name:<{width}}  {about}" for name, about in COMMANDS.items())
    return parser.format_help().replace("\nexample:", f"\ncommands:\n{commands}\n\nexample:").rstrip()


if __name__ == "__main__":
    raise SystemExit(main())
