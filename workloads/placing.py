"""Laying a plan's kinds of parallelism on the axes that there really are: a slice's, a switch's, the network's.

On a TPU slice every kind lies on whole physical axes, so that its collectives use their links; where one lies on
several, it is split over as many mesh axes. What talks most (tensor) gets rings where there are any. Several slices are
joined by their hosts' network cards: the outermost kind that divides is split over them. GPUs fill their NVLink domain
from the innermost kind outwards; what is left lies on the network.
"""

from __future__ import annotations

import math

from simcore.chips import Chip
from simcore.errors import ModelConfigError
from simcore.layout import Mesh
from topologies import tpu_slice
from topologies.mapping import default_mapping, parse_mapping
from workloads.plan import KINDS, PlacedPlan, Plan

ACROSS_SLICES = ("pipeline", "data", "fsdp")
"""Kinds that may be split over slices, the first that divides: those that talk least."""


def place(plan: Plan, chip: Chip, slice_shape: str = "", *, slices: int = 1, mapping: str = "") -> PlacedPlan:
    """``plan`` on a slice such as ``"4x4"`` (``slices`` of them), or on that many GPUs; "" assumes rings.

    ``mapping`` says which kind lies on which physical axes, ``"tensor=xy,data=z"``; "" lets the most kinds have rings.
    Raises `ModelConfigError` for a plan of another number of chips, `TopologyError` where it is not on whole axes.
    """
    if slices < 1:
        raise ModelConfigError(f"slices {slices}: 1 or more is meant")
    if chip.gpus_per_nvlink_domain is not None:
        return _on_gpus(plan, chip, slice_shape)
    if not slice_shape:
        if slices > 1:
            raise ModelConfigError(f"{slices} slices: say of what shape, such as --slice 4x4")
        return _assumed(plan)
    topology = tpu_slice.build(chip, slice_shape)
    chips = len(topology.chips) * slices
    _check_chips(plan, chips, f"{slices} slices of {slice_shape}" if slices > 1 else f"a slice of {slice_shape}")
    inside, across = _across(plan, slices)
    logical = Mesh.of({kind: ways for kind, ways in inside.items() if ways > 1} or {"tensor": 1})
    laid = parse_mapping(mapping, logical, topology) if mapping else default_mapping(logical, topology)
    axes: dict[str, tuple[str, ...]] = {}
    sizes: dict[str, int] = {}
    lines: set[str] = set()
    networks: dict[str, str] = {}
    if across:
        name = f"{across}_slices"
        axes[across], sizes[name], networks[name] = (name,), slices, "dcn_share"
    for kind in logical.names:
        physical = [axis for axis in laid.axes_of(kind) if axis.size > 1]
        for axis in physical:
            name = kind if len(physical) == 1 else f"{kind}_{axis.name}"
            axes[kind] = (*axes.get(kind, ()), name)
            sizes[name] = axis.size
            if not axis.wraps:
                lines.add(name)
    notes = [*topology.notes]
    if lines:
        notes.append(f"no wrap-around on {', '.join(sorted(lines))}: lines, not rings")
    return PlacedPlan(plan, axes, sizes or {"tensor": 1}, frozenset(lines), networks, tuple(notes))


def _assumed(plan: Plan) -> PlacedPlan:
    placed = PlacedPlan.unplaced(plan)
    if plan.chips == 1:
        return placed
    rings = " and ".join(f"{kind}={ways}" for kind, ways in plan.ways.items() if ways > 1)
    note = f"{rings}: assumed to lie on rings of their own (give a slice for the links there really are)"
    return PlacedPlan(plan, placed.axes, placed.sizes, placed.lines, placed.networks, (note,))


def _check_chips(plan: Plan, chips: int, what: str) -> None:
    if plan.chips != chips:
        raise ModelConfigError(
            f"plan {plan} uses {plan.chips} chips, {what} has {chips}: the product of its ways must be {chips}"
        )


def _across(plan: Plan, slices: int) -> tuple[dict[str, int], str]:
    """The ways inside each slice, and the kind that is split over the slices."""
    ways = dict(plan.ways)
    if slices == 1:
        return ways, ""
    for kind in ACROSS_SLICES:
        if ways[kind] % slices == 0:
            ways[kind] //= slices
            return ways, kind
    raise ModelConfigError(
        f"plan {plan} on {slices} slices: one of {', '.join(ACROSS_SLICES)} must be a multiple of {slices}"
    )


def _on_gpus(plan: Plan, chip: Chip, count: str) -> PlacedPlan:
    domain = chip.gpus_per_nvlink_domain or 1
    if count:
        try:
            gpus = math.prod(int(part) for part in count.lower().split("x"))
        except ValueError:
            raise ModelConfigError(f"slice {count!r} of {chip.name}: a number of GPUs is meant, such as 64") from None
        _check_chips(plan, gpus, f"{count} of {chip.name}")
    axes: dict[str, tuple[str, ...]] = {}
    sizes: dict[str, int] = {}
    networks: dict[str, str] = {}
    room = domain
    for kind in reversed(KINDS):
        ways = plan.ways[kind]
        if ways == 1:
            continue
        inner = math.gcd(ways, room)
        if 1 < inner < min(ways, room):
            raise ModelConfigError(
                f"plan {plan}: {kind}={ways} does not fill what is left of an NVLink domain, {room} of {domain} GPUs: "
                f"use a divisor or a multiple of {room}"
            )
        room //= inner
        outer, names = ways // inner, []
        for size, network in ((outer, "network"), (inner, "nvlink")):
            if size > 1:
                name = kind if outer == 1 or inner == 1 else f"{kind}_{network}"
                names.append(name)
                sizes[name], networks[name] = size, network
        axes[kind] = tuple(names)
    ordered = {name: sizes[name] for name in reversed(sizes)}
    return PlacedPlan(plan, axes, ordered or {"tensor": 1}, frozenset(), networks)
