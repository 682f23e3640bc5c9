"""``simcore list``: the scenarios, chips, models and topologies there are."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from simcore.commands.outputs import json_text
from simcore.commands.parser import CommandParser
from simcore.errors import ScenarioError, nearest
from simcore.scenario import load_scenario, scenario_names

Table = tuple[list[str], list[list[str]]]


def _scenarios() -> Table:
    return ["scenario", "what it shows"], [[name, load_scenario(name).about] for name in scenario_names()]


def _chips() -> Table:
    from simcore.chips import chip_table

    return chip_table()


def _models() -> Table:
    from workloads.catalogue import model_table

    return model_table()


def _topologies() -> Table:
    from topologies import topology_table

    return topology_table()


KINDS: dict[str, Callable[[], Table]] = {
    "scenarios": _scenarios,
    "chips": _chips,
    "models": _models,
    "topologies": _topologies,
}
NOTES = {
    "chips": 'A chip of your own: --chip my_chip.toml (base = "v5e" derives it); sources: simcore/chips/data.',
    "models": "A model of your own: --model path/to/config.json.",
    "scenarios": "`simcore run SCENARIO --help` shows its parameters; a script of your own: simcore run path/to/it.py.",
}


def main(arguments: Sequence[str], prog: str) -> int:
    parser = CommandParser(
        prog=prog,
        usage=f"{prog} [{' | '.join(KINDS)}] [--json]",
        about="List what there is; without a kind, all of it.",
        example=f"{prog} chips",
    )
    parser.add_argument("kind", nargs="?", help=", ".join(KINDS))
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parsed = parser.parse_all(arguments)
    if parsed.kind is not None and parsed.kind not in KINDS:
        raise ScenarioError(f"unknown kind {parsed.kind!r}: {nearest(parsed.kind, KINDS)} ({prog} --help)")
    kinds = [parsed.kind] if parsed.kind else list(KINDS)
    tables = {kind: KINDS[kind]() for kind in kinds}
    if parsed.json:
        plain = {
            kind: [dict(zip(columns, row, strict=True)) for row in rows] for kind, (columns, rows) in tables.items()
        }
        print(json_text(plain))
        return 0
    parts = []
    for kind, (columns, rows) in tables.items():
        lines = [text_table(columns, rows)]
        if kind in NOTES:
            lines.append(NOTES[kind])
        parts.append("\n".join(lines))
    print("\n\n".join(parts))
    return 0


def text_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell, two spaces apart; numbers are not told from words."""
    widths = [max(len(cell) for cell in column) for column in zip(columns, *rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (columns, ["-" * width for width in widths], *rows)
    ]
    return "\n".join(lines)
