"""How chips are joined: a directed graph of chips, hosts and switches, whose edges are one-way links.

A topology knows links (bandwidth one-way, latency, the axis they belong to) and coordinates, and nothing of chips'
insides. The modules beside this one build them; `topologies.mapping` lays logical meshes on them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeAlias

import networkx as nx

from simcore.errors import SimcoreError, nearest

LinkKind = Literal["ici", "nvlink", "pcie", "dcn", "network"]
Node: TypeAlias = tuple[str, tuple[int, ...]]
"""(kind, coordinates): ("chip", (0, 3)), ("host", (1,)), ("switch", (0,))."""


class TopologyError(SimcoreError):
    """A topology that cannot be built, or a mesh that cannot be laid on one."""


@dataclass(frozen=True, slots=True)
class Axis:
    """A physical axis: its size, and whether its last chip is joined to its first."""

    name: str
    size: int
    wraps: bool


@dataclass(frozen=True, slots=True)
class Link:
    """One direction of one link."""

    source: Node
    target: Node
    kind: LinkKind
    bandwidth_bytes_per_s: float
    latency_s: float
    axis: str = ""
    sign: int = 0
    wrap: bool = False

    @property
    def unit(self) -> str:
        """The unit of the source that drives it in a task graph: ``ici_x+``."""
        return f"{self.kind}_{self.axis}{'+' if self.sign > 0 else '-'}" if self.axis else self.kind


@dataclass(frozen=True)
class Topology:
    """Chips and what joins them.

    Parameters
    ----------
    axes : of the grid that the chips' coordinates are in.
    links : every direction by itself.
    nodes : all nodes, chips first.
    notes : what was assumed.

    Raises `TopologyError` for a link without bandwidth, or chips that cannot reach each other.
    """

    name: str
    axes: tuple[Axis, ...]
    links: tuple[Link, ...]
    nodes: tuple[Node, ...]
    notes: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        for link in self.links:
            if not link.bandwidth_bytes_per_s > 0 or link.latency_s < 0:
                raise TopologyError(
                    f"{self.name}: the link {label(link.source)} -> {label(link.target)} has a bandwidth of "
                    f"{link.bandwidth_bytes_per_s:g} bytes/s and a latency of {link.latency_s:g} s: a bandwidth is "
                    "positive, a latency not negative"
                )
        simple = self._simple()
        if len(self.nodes) > 1 and not nx.is_strongly_connected(simple):
            pieces = sorted(len(piece) for piece in nx.strongly_connected_components(simple))
            raise TopologyError(f"{self.name} is disconnected: it falls into {len(pieces)} pieces of {pieces} nodes")

    @cached_property
    def graph(self) -> nx.MultiDiGraph[Node]:
        """Nodes, and one edge a link with the link itself as ``link``; edge keys are units ("ici_x+")."""
        graph: nx.MultiDiGraph[Node] = nx.MultiDiGraph()
        graph.add_nodes_from(self.nodes)
        for link in self.links:
            graph.add_edge(link.source, link.target, key=link.unit, link=link)
        return graph

    def _simple(self, without: str = "") -> nx.DiGraph[Node]:
        """One edge for each pair of nodes that a link joins; without links of one kind."""
        graph: nx.DiGraph[Node] = nx.DiGraph()
        graph.add_nodes_from(self.nodes)
        graph.add_edges_from((link.source, link.target) for link in self.links if link.kind != without)
        return graph

    @property
    def chips(self) -> list[Node]:
        """Chips in order of their coordinates, the last axis varying fastest."""
        return sorted(node for node in self.nodes if node[0] == "chip")

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(axis.size for axis in self.axes)

    def axis(self, name: str) -> Axis:
        """The axis of that name. Raises `TopologyError` if there is none."""
        for axis in self.axes:
            if axis.name == name:
                return axis
        raise TopologyError(f"{self.name} has no axis {name!r}: {nearest(name, [axis.name for axis in self.axes])}")

    def links_from(self, node: Node) -> list[Link]:
        """The links that leave a node."""
        return [link for link in self.links if link.source == node]

    def neighbours(self, node: Node) -> list[Node]:
        """Nodes that one link leads to, each once."""
        return sorted(set(self.graph.successors(node)))

    def links_on(self, axis: str) -> list[Link]:
        """Links of one axis, both directions."""
        self.axis(axis)
        return [link for link in self.links if link.axis == axis]

    @property
    def diameter_hops(self) -> int:
        """Links between the two chips that are farthest apart; through hosts only where there is no other way."""
        if self.axes and all(node[0] == "chip" for node in self.nodes):
            return sum(axis.size // 2 if axis.wraps else axis.size - 1 for axis in self.axes)  # axes are independent
        direct = self._simple(without="pcie")
        farthest = 0
        for chip in self.chips:
            reached = nx.single_source_shortest_path_length(direct, chip)
            if any(other not in reached for other in self.chips):
                reached = nx.single_source_shortest_path_length(self._simple(), chip)
            farthest = max(farthest, max(reached[other] for other in self.chips))
        return farthest

    @property
    def bisection_bandwidth_bytes_per_s(self) -> float:
        """Bandwidth, one direction, over the best cut of the grid into equal halves across one axis.

        Raises `TopologyError` where no axis is even, or there is no grid.
        """
        cuts = [self._cut(position) for position, axis in enumerate(self.axes) if axis.size % 2 == 0]
        found = [cut for cut in cuts if cut]
        if not found:
            raise TopologyError(f"{self.name} has no axis of even size, with links between chips, to cut in two")
        return min(found)

    def _cut(self, position: int) -> float:
        half = self.axes[position].size // 2
        return sum(
            link.bandwidth_bytes_per_s
            for link in self.links
            if link.source[0] == link.target[0] == "chip"
            and link.source[1][position] < half <= link.target[1][position]
        )

    def hosts(self) -> dict[Node, list[Node]]:
        """Host -> the chips that hang on it."""
        return {
            node: sorted(other for other in self.graph.successors(node) if other[0] == "chip")
            for node in self.nodes
            if node[0] == "host"
        }

    def path(self, source: Node, target: Node) -> list[Node]:
        """A shortest path by hops."""
        for node in (source, target):
            if node not in self.graph:
                raise TopologyError(f"{self.name} has no {label(node)}")
        return list(nx.shortest_path(self._simple(), source, target))


def label(node: Node) -> str:
    """``chip (0, 3)``."""
    return f"{node[0]} ({', '.join(map(str, node[1]))})"


def coordinates(shape: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """All coordinates of a grid, the last axis varying fastest."""
    return iter(_product(shape))


def _product(shape: Sequence[int]) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = [()]
    for size in shape:
        found = [(*prefix, index) for prefix in found for index in range(size)]
    return found


AXIS_NAMES = ("x", "y", "z")
MOST_NODES = 100_000


def grid(
    name: str,
    shape: Sequence[int],
    wraps: Sequence[bool],
    *,
    kind: LinkKind = "ici",
    bandwidth_bytes_per_s: float,
    latency_s: float,
    notes: Sequence[str] = (),
) -> Topology:
    """Chips on a grid, each joined to its neighbours along every axis, and around it where the axis wraps.

    An axis of two that wraps has both its links between the same two chips; one of one has none.
    """
    if not 1 <= len(shape) <= len(AXIS_NAMES):
        raise TopologyError(f"{name}: a shape of {len(shape)} axes; 1 to {len(AXIS_NAMES)} are meant")
    for size in shape:
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise TopologyError(f"{name}: an axis of {size!r}; a size is a whole number of at least 1")
    if math.prod(shape) > MOST_NODES:
        raise TopologyError(f"{name}: {math.prod(shape):,} chips; at most {MOST_NODES:,} are built")
    axes = tuple(Axis(AXIS_NAMES[i], size, bool(wrap)) for i, (size, wrap) in enumerate(zip(shape, wraps, strict=True)))
    links = []
    for at in coordinates(shape):
        for position, axis in enumerate(axes):
            for sign in (1, -1):
                there = at[position] + sign
                around = not 0 <= there < axis.size
                if axis.size == 1 or (around and not axis.wraps):
                    continue
                target = (*at[:position], there % axis.size, *at[position + 1 :])
                links.append(
                    Link(
                        ("chip", at), ("chip", target), kind, bandwidth_bytes_per_s, latency_s, axis.name, sign, around
                    )
                )
    nodes = tuple(("chip", at) for at in coordinates(shape))
    return Topology(name, axes, tuple(links), nodes, tuple(notes))


def parse_shape(shape: str | Sequence[int]) -> tuple[int, ...]:
    """``"4x4x8"``, ``"16"`` or a sequence. Raises `TopologyError`."""
    if isinstance(shape, str):
        parts = shape.lower().replace("×", "x").split("x")
        if not all(part.strip().isdigit() for part in parts):
            raise TopologyError(f"{shape!r} is no shape: write it like 4x4 or 4x4x8")
        return tuple(int(part) for part in parts)
    return tuple(shape)


def figure(value: Any, what: str, chip: str) -> float:
    """A link figure that a topology needs. Raises `TopologyError` if the chip has none."""
    if value is None:
        raise TopologyError(f"chip {chip} has no {what}: choose another topology, or give the figure")
    return float(value)
