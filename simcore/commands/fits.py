"""``simcore fits``: whether a step fits in memory, what takes the room, and what would make it fit."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from simcore.chips import load_chip
from simcore.commands.outputs import json_text
from simcore.commands.parser import CommandParser, Once
from simcore.errors import ModelConfigError, nearest
from simcore.quantities import format_bytes, parse_count

if TYPE_CHECKING:
    from workloads.fits import Fit, Mend, Question

DOES_NOT_FIT = 3
MOST_ALIVE = 4


def main(arguments: Sequence[str], prog: str) -> int:
    from workloads.catalogue import load_model
    from workloads.fits import Question, fit, mends, planned, smallest_slice
    from workloads.training import TrainingOptions
    from workloads.transformer import MODES

    parsed = _parser(prog).parse_all(arguments)
    if parsed.model is None:
        raise ModelConfigError(f"name a model, or the path of a config.json ({prog} --help)")
    if parsed.train:
        if parsed.mode is not None:
            raise ModelConfigError(f"--mode {parsed.mode} and --train: give one of them")
    elif parsed.remat or parsed.optimizer or parsed.no_master_weights:
        raise ModelConfigError("--remat, --optimizer and --no-master-weights are about a training step: add --train")
    mode = "train" if parsed.train else parsed.mode or "decode"
    if parsed.mode is not None and parsed.mode not in MODES:
        raise ModelConfigError(f"--mode {mode}: {nearest(mode, MODES)} (a training step: --train)")
    chip = load_chip(parsed.chip)
    names = ("weights_dtype", "kv_dtype", "activation_dtype")
    options = {name: getattr(parsed, name) for name in names if getattr(parsed, name)}
    question = Question(
        load_model(parsed.model), mode, _count(parsed, "batch"), _count(parsed, "context"), options,
        _count(parsed, "microbatches") if parsed.microbatches else 0,
        TrainingOptions(
            remat=parsed.remat or "full", optimizer=parsed.optimizer or "adamw",
            settings={"master": False} if parsed.no_master_weights else {},
        ),
    )  # fmt: skip
    plan = planned(question, chip, parsed.slice or "", parsed.plan or "", slices=_count(parsed, "slices"))
    held = fit(question, chip, plan)
    smallest = smallest_slice(question, chip)
    changes = [] if held.fits else mends(question, chip, plan)
    if parsed.json:
        print(json_text(_json(question, chip.name, held, smallest, changes)))
    else:
        print(_page(question, chip.name, held, smallest, changes))
    return 0 if held.fits else DOES_NOT_FIT


def _parser(prog: str) -> CommandParser:
    parser = CommandParser(
        prog=prog,
        usage=f"{prog} CONFIG.json|NAME --chip NAME [--slice 4x4] [--plan tensor=16] [flags]",
        about=(
            "Whether a step of a model fits in the chips' memory: what takes the room, the smallest slice that\n"
            "holds it, and what would make it fit. Nothing is simulated. Exit code 0: it fits; 3: it does not."
        ),
        example=f"{prog} llama3-70b --chip v5e --slice 4x4 --batch 32",
    )
    parser.add_argument("model", nargs="?", help="the path of a config.json, or a model's name")
    add = parser.add_argument
    add("--chip", metavar="NAME|FILE", action=Once, default="v5e", help="a chip (default: v5e)")
    add("--slice", metavar="SHAPE", action=Once, help="such as 4x4, or a number of GPUs (default: one chip)")
    add("--slices", metavar="N", action=Once, default="1", help="that many of them (default: 1)")
    add("--plan", metavar="PLAN", action=Once, help="such as tensor=8,data=2 (default: what leaves the most room)")
    add("--mode", metavar="decode|prefill", action=Once, help="(default: decode)")
    add("--train", action="store_true", help="a training step: weights, states, gradients, what is kept for backward")
    add("--remat", metavar="none|full|matmuls", action=Once, help="computed once more in training (default: full)")
    add("--optimizer", metavar="NAME", action=Once, help="adamw, adam, sgd, momentum (default: adamw)")
    add("--no-master-weights", action="store_true", help="the optimizer moves the weights, no fp32 copies of them")
    add("--batch", metavar="N", action=Once, default="1", help="requests (default: 1)")
    add("--context", metavar="N", action=Once, default="8192", help="positions of each (default: 8192)")
    add("--microbatches", metavar="N", action=Once, help="parts of the requests, for a pipeline's stages")
    add("--weights-dtype", metavar="DTYPE", action=Once, help="such as int8, int4 (default: the model's)")
    add("--kv-dtype", metavar="DTYPE", action=Once, help="such as int8, fp8 (default: that of the activations)")
    add("--activation-dtype", metavar="DTYPE", action=Once, help="(default: the model's)")
    add("--json", action="store_true", help="print one JSON object")
    return parser


def _count(parsed: argparse.Namespace, name: str) -> int:
    text = getattr(parsed, name)
    count = parse_count(text)
    if count < 1:
        raise ModelConfigError(f"--{name.replace('_', '-')} {text}: must be at least 1")
    return count


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "0%"


def _size(amount: int) -> str:
    """Bytes as the page has them."""
    return format_bytes(amount, binary=True)


def _page(question: Question, chip: str, held: Fit, smallest: tuple[str, Fit] | None, changes: Sequence[Mend]) -> str:
    verdict = (
        f"fits, with {_size(held.left_bytes)} to spare"
        if held.fits
        else f"does not fit: {_size(-held.left_bytes)} over"
    )
    what = {"prefill": "new positions", "train": "tokens"}.get(question.mode, "cached positions")
    lines = [
        f"{question.config.name}, {question.mode}, {question.batch} x {question.context} {what}, on {held.chips} "
        f"chip{'s' * (held.chips > 1)} {chip} ({held.plan}): {verdict}",
        "",
        f"each chip holds {_size(held.total_bytes)} of {_size(held.capacity_bytes)}",
    ]
    for part, amount in held.parts.items():
        lines.append(f"  {part:<16} {_size(amount):>11}  {_share(amount, held.total_bytes):>4}")
    alive = sorted(held.fullest.alive.items(), key=lambda item: -item[1])
    if alive:
        which = "activations and gradients" if question.mode == "train" else "activations"
        shown = ", ".join(f"{name} {_size(amount)}" for name, amount in alive[:MOST_ALIVE])
        more = f", {len(alive) - MOST_ALIVE} others" if len(alive) > MOST_ALIVE else ""
        lines.append(f"  {which} are fullest at {held.fullest.operation}: {shown}{more}")
    lines.append("  (buffers of collectives in flight come on top; the simulation has them)")
    lines.append("")
    if smallest is None:
        ways = "fsdp and tensor" if question.mode == "train" else "tensor, tensor2, expert and data"
        lines.append(f"no slice of {chip} holds it under a plan of {ways} ways")
    else:
        shape, there = smallest
        lines.append(
            f"smallest slice that holds it: {shape} ({there.chips} chips, {there.plan}), "
            f"{_size(there.total_bytes)} of {_size(there.capacity_bytes)} a chip"
        )
    if changes:
        lines += ["", "each of these alone makes it fit:"]
        lines += [f"  {mend.change:<40} {_size(mend.fit.total_bytes):>11} a chip" for mend in changes]
    return "\n".join(lines)


def _json(
    question: Question, chip: str, held: Fit, smallest: tuple[str, Fit] | None, changes: Sequence[Mend]
) -> dict[str, Any]:
    return {
        "model": question.config.name,
        "chip": chip,
        "mode": question.mode,
        "batch": question.batch,
        "context": question.context,
        "chips": held.chips,
        "plan": str(held.plan),
        "fits": held.fits,
        "left_bytes": held.left_bytes,
        "total_bytes": held.total_bytes,
        "capacity_bytes": held.capacity_bytes,
        "parts_bytes": dict(held.parts),
        "alive_at_peak_bytes": dict(held.fullest.alive),
        "smallest_slice": None
        if smallest is None
        else {"slice": smallest[0], "chips": smallest[1].chips, "plan": str(smallest[1].plan)},
        "makes_it_fit": [{"change": mend.change, "total_bytes": mend.fit.total_bytes} for mend in changes],
    }
