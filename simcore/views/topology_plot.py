"""A drawing of a topology: chips on their grid, links between them, and the bytes that a run moved over each.

A ring is drawn as a circle; the planes of a 3D topology side by side. Links that wrap around, or lead from plane to
plane, are stubs at both their ends. A host is a box around its chips, which stands for their PCIe links.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from simcore.files import written_beside
from simcore.quantities import format_bytes

if TYPE_CHECKING:
    from simcore.result import RunResult

PLAIN = "#9A9A9A"
COLOURS = "viridis_r"
STUB, BOX = 0.42, 0.36
OTHER_NODES = {
    "host": ("s", "#CC79A7"),
    "switch": ("D", "#E69F00"),
    "leaf": ("D", "#56B4E9"),
    "spine": ("D", "#0072B2"),
}


def traffic_of(result: RunResult) -> dict[tuple[tuple[int, ...], str], int]:
    """(coordinates of the sending chip, unit) -> bytes, of every link unit of a run."""
    timeline = result.timeline
    moved: dict[tuple[tuple[int, ...], str], int] = {}
    for number, lane in enumerate(timeline.lanes):
        if lane.kind not in ("hbm", "mxu", "vpu", "server"):
            total = int(timeline.bytes[timeline.lane == number].sum())
            for at in timeline.entities[lane.entity].each():
                moved[at, lane.unit.lower()] = moved.get((at, lane.unit.lower()), 0) + total
    return moved


def draw_topology(
    topology: Any, path: str | Path, traffic: Mapping[tuple[tuple[int, ...], str], int] | None = None
) -> None:
    """Draw a topology (`topologies.Topology`); with ``traffic`` (see `traffic_of`) its links are coloured by it.

    The title names the busiest link. Raises `OutputError` if the file cannot be written.
    """
    places = _places(topology)
    xs = [x for x, _ in places.values()]
    ys = [y for _, y in places.values()]
    width, height = max(xs) - min(xs) + 1.6, max(ys) - min(ys) + 1.6
    scale = min(11.5 / width, 8.0 / height, 1.1)
    figure = Figure(
        figsize=(max(width * scale, 4.2) + (0.9 if traffic else 0.0), height * scale + 0.9), layout="constrained"
    )
    axes = figure.add_subplot()
    known = {key: size for key, size in (traffic or {}).items() if size}
    norm = _norm(list(known.values()))
    colours = matplotlib.colormaps[COLOURS]
    few = len(topology.chips) <= 64
    for link in topology.links:
        size = known.get((link.source[1], link.unit.lower()), 0)
        if link.kind == "pcie" and not size:
            continue  # the host's box says it
        colour = colours(norm(size)) if size and norm else PLAIN
        width = (2.2 if size else 0.8) * (1.0 if few else 0.7)
        _draw_link(axes, link, places, colour, width, arrows=bool(size) and few)
    _draw_hosts(axes, topology, places)
    _draw_nodes(axes, topology, places, few)
    axes.set_aspect("equal")
    axes.set_xlim(min(xs) - 0.8, max(xs) + 0.8)
    axes.set_ylim(max(ys) + 0.8, min(ys) - 0.8)
    axes.axis("off")
    room = int(figure.get_size_inches()[0] * 11)
    lines = [part for line in _title(topology, traffic, known).splitlines() for part in textwrap.wrap(line, room)]
    axes.set_title("\n".join(lines), loc="left", fontsize=10)
    if known and norm:
        bar = figure.colorbar(ScalarMappable(norm, colours), ax=axes, fraction=0.04, pad=0.01)
        bar.ax.yaxis.set_major_formatter(lambda value, _: format_bytes(value))
        bar.set_label("sent over a link", fontsize=8)
    with written_beside(path) as temporary:
        figure.savefig(temporary, dpi=150)


def _norm(sizes: list[int]) -> Normalize | None:
    if not sizes:
        return None
    low, high = min(sizes), max(sizes)
    return LogNorm(low, high) if high > 20 * low else Normalize(0, high)


def _title(topology: Any, traffic: Any, known: Mapping[tuple[tuple[int, ...], str], int]) -> str:
    chips = len(topology.chips)
    axes = ", ".join(f"{axis.name}={axis.size}{' (wraps)' if axis.wraps else ''}" for axis in topology.axes)
    first = f"{topology.name}: {chips} chips, {axes}"
    if traffic is None:
        return first
    if not known:
        return f"{first}\nnothing moved over its links"
    (at, unit), size = max(known.items(), key=lambda item: item[1])
    where = ",".join(map(str, at))
    even = " like every link that carries any" if len(set(known.values())) == 1 else ""
    busy = f"{len(known)} of {len(topology.links)} links carry traffic"
    return f"{first}\n{busy}; the busiest, {unit} of chip {where}: {format_bytes(size)}{even}"


def _places(topology: Any) -> dict[Any, tuple[float, float]]:
    """Node -> place on the page; the first axis goes right, the second down, further ones are planes side by side."""
    places: dict[Any, tuple[float, float]] = {}
    chips = topology.chips
    rank = len(chips[0][1])
    sizes = [max(chip[1][position] for chip in chips) + 1 for position in range(rank)]
    leaves = any(node[0] == "leaf" for node in topology.nodes)
    circle = rank == 1 and len(chips) > 2 and topology.axes[0].wraps
    radius = max(len(chips) / (2 * np.pi), 1.0)
    for chip in chips:
        at = chip[1]
        if circle:
            angle = 2 * np.pi * at[0] / len(chips)
            places[chip] = (radius * float(np.sin(angle)), -radius * float(np.cos(angle)))
        elif rank == 1:
            places[chip] = (at[0], 0.0)
        elif rank == 2 and leaves:
            places[chip] = (at[1] + at[0] * (sizes[1] + 0.8), 0.0)
        elif rank == 2:
            places[chip] = (at[1], at[0])
        elif rank == 3:
            places[chip] = (at[2] + at[0] * (sizes[2] + 0.8), at[1])
        else:
            places[chip] = (at[-1] + at[0] * (sizes[-1] + 0.8), at[-2] + at[1] * (sizes[-2] + 0.8))
    floor = max(y for _, y in places.values())
    others: dict[str, list[Any]] = {}
    for node in topology.nodes:
        if node[0] != "chip":
            others.setdefault(node[0], []).append(node)
    middle = (min(x for x, _ in places.values()) + max(x for x, _ in places.values())) / 2
    for row, nodes in enumerate(others.values(), start=1):
        for number, node in enumerate(nodes):
            under = [places[other] for other in topology.graph.successors(node) if other[0] == "chip"]
            x = (
                float(np.mean([place[0] for place in under]))
                if under
                else middle + 1.4 * (number - (len(nodes) - 1) / 2)
            )
            y = max(place[1] for place in under) + BOX if under and node[0] == "host" else floor + row
            places[node] = (x, y)
    return places


def _draw_link(axes: Any, link: Any, places: Any, colour: Any, width: float, arrows: bool) -> None:
    start, end = np.array(places[link.source]), np.array(places[link.target])
    along = end - start
    length = float(np.hypot(*along)) or 1.0
    if length > 1.5 and link.axis and link.source[0] == link.target[0] == "chip":
        # Around the grid or to another plane: a stub outwards, or askew.
        along = -along / length if link.wrap and 0 in along else np.array([0.6, -0.8]) * link.sign
        end = start + STUB * along
    # The two directions of a link lie beside each other.
    aside = np.array([-along[1], along[0]]) / (float(np.hypot(*along)) or 1.0) * 0.06
    axes.add_patch(
        FancyArrowPatch(
            tuple(start + aside),
            tuple(end + aside),
            arrowstyle="-|>" if arrows else "-",
            mutation_scale=7,
            color=colour,
            linewidth=width,
            shrinkA=5,
            shrinkB=5 if length <= 1.5 else 0,
            zorder=1 if colour == PLAIN else 2,
        )
    )


def _draw_hosts(axes: Any, topology: Any, places: Any) -> None:
    """A box around the chips of each host."""
    for chips in topology.hosts().values():
        xs, ys = zip(*(places[chip] for chip in chips), strict=True)
        axes.add_patch(
            FancyBboxPatch(
                (min(xs) - BOX, min(ys) - BOX),
                max(xs) - min(xs) + 2 * BOX,
                max(ys) - min(ys) + 2 * BOX,
                boxstyle="round,pad=0,rounding_size=0.15",
                facecolor="#CC79A718",
                edgecolor="#CC79A7",
                linewidth=1.0,
                zorder=0,
            )
        )


def _draw_nodes(axes: Any, topology: Any, places: Any, few: bool) -> None:
    chips = topology.chips
    points = np.array([places[chip] for chip in chips])
    axes.scatter(points[:, 0], points[:, 1], s=150 if few else 36, color="#0072B2", zorder=3)
    if few:
        for chip in chips:
            text = ",".join(map(str, chip[1]))
            x, y = places[chip]
            axes.text(
                x, y, text, ha="center", va="center", color="white", fontsize=6 if len(text) <= 3 else 4.5, zorder=4
            )
    for kind, (marker, colour) in OTHER_NODES.items():
        nodes = [node for node in topology.nodes if node[0] == kind]
        if nodes:
            at = np.array([places[node] for node in nodes])
            axes.scatter(at[:, 0], at[:, 1], s=70, marker=marker, color=colour, zorder=3, label=kind)
    if any(node[0] != "chip" for node in topology.nodes):
        axes.legend(frameon=False, fontsize=8, loc="upper right")
