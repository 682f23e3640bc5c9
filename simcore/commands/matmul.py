"""``simcore matmul PRODUCT``: how to multiply sharded matrices, what each way costs, and what it takes simulated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simcore.chips import Chip, load_chip
from simcore.commands import common
from simcore.commands.outputs import PICTURES, json_text, note, output_path
from simcore.commands.parser import CommandParser, Once
from simcore.commands.slices import Placing, place
from simcore.errors import LayoutError, ScenarioError, SimcoreError
from simcore.exposure import exposed_communication_s
from simcore.layout import CostModel, MatmulPlan, Mesh, parse_product, plan_matmul
from simcore.layout.steps import LocalMatmul
from simcore.lowering import LoweringOptions
from simcore.opgraph.product import product_graph
from simcore.quantities import format_bytes, format_seconds, parse_count
from simcore.result import RunResult
from simcore.views.report import CAUSES, RESOURCES

EXAMPLE = '"A[I_X, J] · B[J, K_Y] -> C[I, K]" --size I=8192,J=8192,K=8192 --mesh X=4,Y=2 --chip v5e'
DOES_NOT_FIT = 3
MOST_PLANS = 100


@dataclass(frozen=True)
class Simulated:
    """A plan and its simulation, or why it has none."""

    plan: MatmulPlan
    result: RunResult | None
    reason: str = ""


def main(arguments: Sequence[str], prog: str) -> int:
    if {"->", "→"} & set(arguments):
        raise ScenarioError(f"the product is one word for the shell: put it in quotes, {EXAMPLE.partition(' --')[0]}")
    parsed = _parser(prog).parse_all(arguments)
    product = parse_product(_one_word(parsed.product, prog))
    for flag in ("size", "mesh"):
        if getattr(parsed, flag) is None:
            raise ScenarioError(f"--{flag} is missing: write it like {_example(flag)} ({prog} --help)")
    sizes, mesh = _sizes(parsed.size), Mesh.parse(parsed.mesh)
    limit, number = _count("--limit", parsed.limit, MOST_PLANS), _count("--plan", parsed.plan, MOST_PLANS)
    gantt = output_path("--gantt", parsed.gantt, PICTURES)
    engine = common.given_engine(parsed)
    chip = load_chip(parsed.chip or "v5e")
    figures = common.given_figures(parsed)
    if figures:
        chip = chip.replace(**figures)
    chip.peak(parsed.dtype)

    mesh.check(product.left.used_axes + product.right.used_axes + product.out.used_axes)
    placing = place(mesh, chip, parsed.slice, parsed.map)
    cost = cost_model(chip, placing, parsed.dtype)
    plans = plan_matmul(
        placing.product(product), sizes, placing.mesh, parsed.dtype, cost, limit=max(limit, number), pad=parsed.pad
    )
    if number > len(plans):
        raise ScenarioError(f"--plan {number}: there are {len(plans)} plans: choose one of 1 to {len(plans)}")
    listed = plans[: max(limit, number)]
    options = LoweringOptions(lines=placing.lines, networks=dict.fromkeys(placing.mesh.names, placing.network))
    parameters = {
        "product": str(product),
        "size": ",".join(f"{dim}={size}" for dim, size in listed[0].sizes.items()),
        "mesh": str(mesh),
        "slice": placing.slice,
        "dtype": parsed.dtype,
        "plan": number,
    }
    found = [
        _simulate(plan, chip, options, parsed.ideal, engine, parameters, required=at == number)
        for at, plan in enumerate(listed, start=1)
    ]
    chosen = found[number - 1].result
    assert chosen is not None
    if gantt:
        chosen.gantt(gantt)
        note(f"wrote {gantt}")
    if parsed.json:
        print(json_text(_json(found, number, chosen, placing)))
    else:
        print(_text(found, number, chosen, placing))
    return _verdict(chosen)


def cost_model(chip: Chip, placing: Placing, dtype: str) -> CostModel:
    """The closed forms of steps on the axes as they lie, with a finite number of chips."""
    name = "nvlink" if placing.network == "nvlink" else "ici"
    figures = {"ici": ("ici_link_bandwidth_bytes_per_s", "ici_hop_latency_s")}
    bandwidth, latency = figures.get(name, ("nvlink_bandwidth_bytes_per_s", "nvlink_latency_s"))
    return CostModel(
        float(chip.require(bandwidth)),
        float(chip.require(latency)),
        chip.peak(dtype),
        wraps={axis: axis not in placing.lines for axis in placing.mesh.names},
        finite=True,
        in_turn=True,
        switch=name == "nvlink",
    )


def _simulate(
    plan: MatmulPlan,
    chip: Chip,
    options: LoweringOptions,
    ideal: bool,
    engine: str,
    parameters: Mapping[str, Any],
    *,
    required: bool,
) -> Simulated:
    """A plan that the lowering has no form of is an error only where it is the one asked for."""
    from simcore.running import run

    try:
        result = run(
            product_graph(plan),
            chip=chip,
            ideal=ideal,
            engine=engine,
            scenario="matmul",
            parameters=parameters,
            lowering=options,
        )
    except SimcoreError as error:
        if required:
            raise
        return Simulated(plan, None, str(error))
    return Simulated(plan, result)


# -- reading the command line ----------------------------------------------------------------------------------------


def _one_word(words: Sequence[str], prog: str) -> str:
    if not words:
        raise ScenarioError(f'give the product, such as "A[I_X, J] · B[J, K_Y] -> C[I, K]" ({prog} --help)')
    if len(words) > 1:
        raise ScenarioError(f'the product is one word for the shell: put it in quotes, "{" ".join(words)}"')
    return words[0]


def _sizes(text: str) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for part in text.split(","):
        name, equals, value = (word.strip() for word in part.partition("="))
        try:
            size = parse_count(value) if equals and name else 0
        except SimcoreError:
            size = 0
        if size < 1:
            raise LayoutError(f"--size {text}: cannot read {part.strip()!r}: write DIMENSION=SIZE, such as I=8192")
        if name in sizes:
            raise LayoutError(f"--size {text}: {name} is given twice")
        sizes[name] = size
    return sizes


def _count(flag: str, text: str, most: int) -> int:
    try:
        count = parse_count(text)
    except SimcoreError:
        count = 0
    if not 1 <= count <= most:
        raise ScenarioError(f"{flag} {text}: must be a whole number from 1 to {most}")
    return count


def _example(flag: str) -> str:
    return {"size": "--size I=8192,J=8192,K=8192", "mesh": "--mesh X=4,Y=2"}[flag]


def _parser(prog: str) -> CommandParser:
    parser = CommandParser(
        prog=prog,
        usage=f"{prog} PRODUCT --size DIM=N,... --mesh AXIS=N,... [flags]",
        about=(
            "Find the cheapest collectives and local matmul for a product of sharded matrices, and simulate it.\n"
            "PRODUCT is the scaling book's notation: A[I_X, J] has dimension I split over mesh axis X, A[I_XY, J]\n"
            "over X then Y, and A[I, J]{U_X} holds partial sums over X; * is read as ·."
        ),
        example=f"{prog} {EXAMPLE}",
    )
    parser.add_argument("product", nargs="*", help="left · right -> output, in quotes")
    group = parser.add_argument_group("product and mesh")
    group.add_argument("--size", metavar="DIM=N,...", action=Once, help="global size of each dimension (required)")
    group.add_argument("--mesh", metavar="AXIS=N,...", action=Once, help="mesh axes and their sizes (required)")
    group.add_argument("--dtype", metavar="NAME", action=Once, default="bf16", help="of all three (default: bf16)")
    group.add_argument("--pad", action="store_true", help="round dimensions up to what their axes divide")
    group.add_argument(
        "--slice", metavar="4x2", action=Once, help="the slice that the mesh fills (default: an axis for each of its)"
    )
    group.add_argument(
        "--map", metavar="X=x,Y=y", action=Once, help="physical axes of each mesh axis, the first the major"
    )
    common.add_run_flags(parser)
    group = parser.add_argument_group("output")
    group.add_argument("--limit", metavar="N", action=Once, default="8", help="plans to list (default: 8)")
    group.add_argument("--plan", metavar="N", action=Once, default="1", help="the plan to show (default: 1, the best)")
    group.add_argument("--gantt", metavar="FILE", action=Once, help="draw the plan's timeline: .png, .svg or .pdf")
    group.add_argument("--json", action="store_true", help="print one JSON object instead of the report")
    return parser


# -- the report ------------------------------------------------------------------------------------------------------


def _text(found: Sequence[Simulated], number: int, chosen: RunResult, placing: Placing) -> str:
    plan = found[number - 1].plan
    sizes = ", ".join(f"{dim} = {size}" for dim, size in plan.sizes.items())
    model = "ideal" if chosen.ideal else "calibrated"
    chips = "1 chip" if plan.mesh.size == 1 else f"{plan.mesh.size} chips"
    lines = [f"{plan.product} on {chips} {chosen.chip.name} ({model} model)", f"  {sizes}, {plan.dtype}"]
    lines += [f"  {text}" for text in placing.notes]
    lines += ["", f"plan {number} of {len(found)}: {plan.summary}", *(f"  {t}" for t in plan.describe().splitlines())]
    lines += ["", *_times(plan, chosen), "", *_alternatives(found, number)]
    if chosen.notes:
        lines += ["", "as simulated", *(f"  {text}" for text in chosen.notes)]
    return "\n".join(lines)


def _times(plan: MatmulPlan, result: RunResult) -> list[str]:
    bounds = [
        f"{_resource(kind)} {format_seconds(seconds)}"
        for kind, seconds in sorted(result.bounds_s.items(), key=lambda item: -item[1])
        if seconds
    ]
    moved = [f"{_interface(name)} {format_bytes(amount)}" for name, amount in result.bytes.items() if amount]
    exposed = exposed_communication_s(result.exposed_s)
    waits = [
        f"{CAUSES.get(cause, cause)} {format_seconds(seconds)}"
        for cause, seconds in sorted(result.exposed_s.items(), key=lambda item: -item[1])
        if seconds
    ]
    share = f" ({100 * exposed / result.time_s:.0f} %)" if result.time_s else ""
    ratio = f", {result.time_s / result.bound_s:.2f} x its bound" if result.bound_s else ""
    return [
        f"closed form            {format_seconds(plan.time_s)}, {format_seconds(plan.overlapped_s)} if overlapped",
        f"simulated              {format_seconds(result.time_s)}, bound by {_resource(result.bound_by)}{ratio}",
        f"bounds                 {', '.join(bounds) or 'none'}",
        f"exposed communication  {format_seconds(exposed)}{share}",
        f"compute busy           {format_seconds(result.busy_s)}; the rest: {', '.join(waits) or 'none'}",
        f"bytes, all chips       {', '.join(moved) or 'none'}",
    ]


def _interface(name: str) -> str:
    """``hbm_read`` as "HBM read"."""
    kind, _, way = name.partition("_")
    return f"{_resource(kind)} {way}".rstrip()


def _resource(kind: str) -> str:
    return RESOURCES.get(kind, kind)


def _alternatives(found: Sequence[Simulated], number: int) -> list[str]:
    rows = [("", "plan", "closed form", "simulated", "bound by", "exposed", "steps")]
    reasons = []
    for at, one in enumerate(found, start=1):
        mark = "->" if at == number else ""
        closed = format_seconds(one.plan.time_s)
        if one.result is None:
            reasons.append(f"  plan {at} is not simulated: {one.reason}")
            rows.append((mark, str(at), closed, "-", "-", "-", one.plan.summary))
            continue
        result = one.result
        exposed = format_seconds(exposed_communication_s(result.exposed_s))
        simulated = format_seconds(result.time_s)
        rows.append((mark, str(at), closed, simulated, _resource(result.bound_by), exposed, one.plan.summary))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["plans"]
    for row in rows:
        cells = [
            cell.rjust(width) if column in (1, 2, 3, 5) else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    times = {at: one.result.time_s for at, one in enumerate(found, start=1) if one.result is not None}
    fastest = min(times, key=lambda at: (times[at], at))
    if times[fastest] < times[number]:
        lines.append(
            f"  simulated, plan {fastest} is faster than plan {number}, by "
            f"{format_seconds(times[number] - times[fastest])} (--plan {fastest} shows it)"
        )
    return lines + reasons


def _json(found: Sequence[Simulated], number: int, chosen: RunResult, placing: Placing) -> dict[str, Any]:
    plan = found[number - 1].plan
    steps = []
    for step, seconds in zip(plan.steps, plan.seconds, strict=True):
        if isinstance(step, LocalMatmul):
            amount: dict[str, Any] = {"kind": "matmul", "flops_per_device": step.flops}
            amount["shape"] = {"batch": step.batch, "m": step.m, "k": step.k, "n": step.n}
        else:
            amount = {"kind": step.kind, "axes": list(step.axes), "full_bytes": step.full_bytes}
        steps.append({"step": str(step), **amount, "closed_form_s": seconds})
    alternatives = [
        {
            "plan": at,
            "steps": one.plan.summary,
            "closed_form_s": one.plan.time_s,
            "simulated_s": one.result.time_s if one.result else None,
            "bound_by": one.result.bound_by if one.result else None,
            "exposed_communication_s": exposed_communication_s(one.result.exposed_s) if one.result else None,
            **({"not_simulated": one.reason} if one.result is None else {}),
        }
        for at, one in enumerate(found, start=1)
    ]
    return {
        **chosen.to_json(),
        "steps": steps,
        "closed_form_s": plan.time_s,
        "closed_form_overlapped_s": plan.overlapped_s,
        "exposed_communication_s": exposed_communication_s(chosen.exposed_s),
        "lines": sorted(placing.lines),
        "placing": list(placing.notes),
        "plans": alternatives,
    }


def _verdict(result: RunResult) -> int:
    over = result.overflowing_memories
    for memory in over:
        peak, capacity = result.memory_peak_bytes[memory], result.memory_capacity_bytes[memory]
        note(f"simcore: does not fit: {memory} needs {peak:,} bytes at its peak and has {capacity:,}")
    return DOES_NOT_FIT if over else 0
