"""``simcore model``: what a model's config amounts to."""

from __future__ import annotations

from collections.abc import Sequence

from simcore.commands.outputs import json_text
from simcore.commands.parser import CommandParser, Once
from simcore.errors import ModelConfigError
from simcore.quantities import parse_count


def main(arguments: Sequence[str], prog: str) -> int:
    from workloads.catalogue import load_model
    from workloads.summary import model_summary

    parser = CommandParser(
        prog=prog,
        usage=f"{prog} CONFIG.json|NAME [--context N] [--json]",
        about="Parameters, bytes and FLOPs of a model: a config.json, or a name of `simcore list models`.",
        example=f"{prog} llama3-8b --context 8192",
    )
    parser.add_argument("model", nargs="?", help="the path of a config.json, or a model's name")
    parser.add_argument("--context", metavar="N", action=Once, default="8192", help="positions (default: 8192)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parsed = parser.parse_all(arguments)
    if parsed.model is None:
        raise ModelConfigError(f"name a model, or the path of a config.json ({prog} --help)")
    context = parse_count(parsed.context)
    if context < 1:
        raise ModelConfigError(f"--context {parsed.context}: must be at least 1")
    summary = model_summary(load_model(parsed.model), context)
    print(json_text(summary.to_json()) if parsed.json else summary.text())
    return 0
