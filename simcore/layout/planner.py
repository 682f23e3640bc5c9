"""The cheapest legal way to a sharded product: collectives on the operands, one local matmul, collectives after.

Found by search over layouts, not looked up. Every layout of each operand that collectives can reach has a cheapest
way there (Dijkstra); every pair of them that may be multiplied locally gives an output layout; every output layout
has a cheapest way to the wanted one (Dijkstra backwards). The cost of a step is pluggable.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from simcore.errors import LayoutError, nearest
from simcore.layout.cost import CostModel
from simcore.layout.layout import TensorLayout, padded_sizes
from simcore.layout.mesh import Mesh
from simcore.layout.moves import Move, Moves, step_seconds
from simcore.layout.notation import Product, parse_product
from simcore.layout.plan import MatmulPlan
from simcore.layout.rules import Contraction, contraction, matmul
from simcore.layout.steps import COLLECTIVE_KINDS, CollectiveKind, CollectiveStep, LocalMatmul, Step, local_matmul

__all__ = ["CollectiveStep", "CostModel", "LocalMatmul", "MatmulPlan", "plan_matmul"]

ROUTES_PER_MATMUL = 3
"""Ways from one local matmul to the wanted output that are compared: one for each of its cheapest first moves."""

PLANS_COMPARED = 1000
"""Plans looked through for alternatives that are not detours of a better one."""

MAX_AXES_WITH_SPARE = 4
"""Mesh axes up to which those that the product does not name are used too; the search grows factorially with them."""

NOT_PLAIN: tuple[CollectiveKind, ...] = ("Slice", "AllToAll")


@dataclass(frozen=True, slots=True)
class _Route:
    seconds: float
    moves: tuple[Move, ...]


@dataclass(frozen=True, slots=True)
class _Candidate:
    """One local matmul with the way to it and the cheapest way on."""

    before: _Route
    matmul: LocalMatmul
    matmul_s: float
    after: _Route


def plan_matmul(
    product: Product | str,
    sizes: Mapping[str, int],
    mesh: Mesh | str,
    dtype: str,
    cost: Callable[[Step], float],
    *,
    limit: int = 8,
    overlap: bool = False,
    pad: bool = False,
    kinds: Collection[CollectiveKind] = COLLECTIVE_KINDS,
) -> list[MatmulPlan]:
    """The best plan and the best alternatives to it, at most ``limit``, best first; ties go to fewer collectives.

    A plan that does all that a better one does and more is no alternative, nor is one that moves a tensor over one
    axis twice in the same way. ``kinds`` are the steps permitted. Axes that the product does not name are used as
    well, on meshes of at most `MAX_AXES_WITH_SPARE` axes.

    ``cost`` gives a step's seconds, such as a `CostModel`. Plans are ranked by the sum of their steps' times, or
    with ``overlap`` by the longer of communication and compute. ``pad`` rounds dimensions up to what the three
    layouts divide. Raises `LayoutError` for a product that cannot be, a dimension that does not divide, and an
    output that no sequence of collectives reaches.
    """
    product = parse_product(product) if isinstance(product, str) else product
    mesh = Mesh.parse(mesh) if isinstance(mesh, str) else mesh
    if limit < 1:
        raise LayoutError(f"limit must be at least 1, got {limit}")
    for kind in kinds:
        if kind not in COLLECTIVE_KINDS:
            raise LayoutError(f"unknown kind of step {kind!r}: {nearest(str(kind), COLLECTIVE_KINDS)}")
    if isinstance(cost, CostModel):
        cost.check_mesh(mesh)
    left, right, wanted = product.left, product.right, product.out
    parts = contraction(left, right, wanted.dim_names)
    dims = {*left.dim_names, *right.dim_names}
    unused = next((name for name in sizes if name not in dims), None)
    if unused is not None:
        raise LayoutError(f"a size is given for {unused}, which {product} does not have: {nearest(unused, dims)}")
    if pad:
        sizes = padded_sizes((left, right, wanted), sizes, mesh)
    for layout in (left, right, wanted):
        layout.local_shape(sizes, mesh)  # raises for an axis or a size that does not fit

    named = {*left.used_axes, *right.used_axes, *wanted.used_axes}
    slice_axes = tuple(name for name, size in mesh.axes if size > 1 or name in named)
    if len(slice_axes) > MAX_AXES_WITH_SPARE:
        slice_axes = tuple(name for name in slice_axes if name in named)
    moves = Moves(sizes, mesh, dtype, cost, slice_axes, kinds)
    to_left, to_right = _ways(left, moves), _ways(right, moves)
    matmuls = list(_local_matmuls(parts, to_left, to_right, wanted, sizes, mesh))
    outputs = {found.out for _, found in matmuls}
    from_outputs = _routes_to(wanted, outputs, moves)
    plain_from_outputs = _routes_to(wanted, outputs, moves, leave_out=NOT_PLAIN)

    candidates = [
        _Candidate(before, found, step_seconds(found, cost), from_outputs[found.out])
        for before, found in matmuls
        if found.out in from_outputs
    ]
    if not candidates:
        raise LayoutError(
            f"no sequence of {', '.join(kinds) or 'no collectives'} and one matmul gives {wanted} from {left} and "
            f"{right}: permit other steps, or another output layout"
        )

    def rank(candidate: _Candidate, after: _Route) -> tuple[float, ...]:
        """The time ranked by, to 12 digits so that rounding decides no tie; then fewer collectives, fewer steps."""
        communication, compute = candidate.before.seconds + after.seconds, candidate.matmul_s
        times = (max(communication, compute), communication + compute) if overlap else (communication + compute,)
        moves = (*candidate.before.moves, *after.moves)
        collectives = sum(move.step.kind != "Slice" for move in moves)
        return (*(float(f"{time:.12g}") for time in times), collectives, len(moves))

    def best_first() -> Iterator[MatmulPlan]:
        """Every plan in order of rank; a matmul's other ways on are worked out when its best one's turn comes."""
        tie = itertools.count()
        queue: list[tuple[tuple[float, ...], int, _Candidate, _Route | None]]
        queue = [(rank(c, c.after), next(tie), c, None) for c in candidates]
        heapq.heapify(queue)
        while queue:
            _, _, candidate, route = heapq.heappop(queue)
            if route is not None:
                yield _plan(product, sizes, mesh, dtype, candidate, route)
                continue
            out = candidate.matmul.out
            ways = _routes_on(out, wanted, from_outputs, moves)
            if out in plain_from_outputs and plain_from_outputs[out] not in ways:
                ways.append(plain_from_outputs[out])
            for way in ways:
                heapq.heappush(queue, (rank(candidate, way), next(tie), candidate, way))

    kept: list[MatmulPlan] = []
    for plan in itertools.islice(best_first(), PLANS_COMPARED):
        if not kept or not _is_detour(plan, kept):
            kept.append(plan)
        if len(kept) == limit:
            break
    return kept


def _plan(
    product: Product, sizes: Mapping[str, int], mesh: Mesh, dtype: str, candidate: _Candidate, route: _Route
) -> MatmulPlan:
    before = candidate.before.moves
    steps: tuple[Step, ...] = (*(m.step for m in before), candidate.matmul, *(m.step for m in route.moves))
    seconds = (*(m.seconds for m in before), candidate.matmul_s, *(m.seconds for m in route.moves))
    return MatmulPlan(product, dict(sizes), mesh, dtype, steps, seconds)


def _is_detour(plan: MatmulPlan, better: list[MatmulPlan]) -> bool:
    """Whether ``plan`` moves all that a better one moves and more, or one thing twice: no real alternative."""
    moved = _moved(plan)
    return max(moved.values(), default=0) > 1 or any(_moved(other) <= moved for other in better)


def _moved(plan: MatmulPlan) -> Counter[tuple[str, str, str]]:
    steps = (step for step in plan.steps if isinstance(step, CollectiveStep))
    return Counter((step.kind, step.tensor, axis) for step in steps for axis in step.axes)


def _ways(start: TensorLayout, moves: Moves) -> dict[TensorLayout, list[_Route]]:
    """For every layout reached from ``start`` the cheapest route and, where another, the cheapest plain one.

    Cutting a replica over a spare axis and gathering over both uses more links and may be cheaper than gathering
    alone; the plain way is kept as an alternative, because it is what one would write down.
    """
    ways = {layout: [route] for layout, route in _routes_from(start, moves).items()}
    for layout, route in _routes_from(start, moves, leave_out=NOT_PLAIN).items():
        if route.moves != ways[layout][0].moves:
            ways[layout].append(route)
    return ways


def _routes_from(
    start: TensorLayout, moves: Moves, leave_out: Collection[CollectiveKind] = ()
) -> dict[TensorLayout, _Route]:
    """The cheapest route from ``start`` to every layout that collectives can reach."""
    routes: dict[TensorLayout, _Route] = {}
    tie = itertools.count()
    queue: list[tuple[float, int, int, TensorLayout, tuple[Move, ...]]] = [(0.0, 0, next(tie), start, ())]
    while queue:
        seconds, length, _, layout, path = heapq.heappop(queue)
        if layout in routes:
            continue
        routes[layout] = _Route(seconds, path)
        for move in moves.of(layout):
            after = move.step.after
            if after not in routes and move.step.kind not in leave_out:
                entry = (seconds + move.seconds, length + 1, next(tie), after, (*path, move))
                heapq.heappush(queue, entry)
    return routes


def _routes_to(
    wanted: TensorLayout, starts: set[TensorLayout], moves: Moves, leave_out: Collection[CollectiveKind] = ()
) -> dict[TensorLayout, _Route]:
    """The cheapest route to ``wanted`` from every layout on the way from ``starts``; those without one are left out."""
    seen, frontier = set(starts), list(starts)
    arriving: dict[TensorLayout, list[Move]] = {}
    while frontier:
        for move in moves.of(frontier.pop()):
            if move.step.kind in leave_out:
                continue
            after = move.step.after
            arriving.setdefault(after, []).append(move)
            if after not in seen:
                seen.add(after)
                frontier.append(after)
    routes: dict[TensorLayout, _Route] = {}
    tie = itertools.count()
    queue: list[tuple[float, int, int, TensorLayout, tuple[Move, ...]]] = []
    if wanted in seen:
        queue.append((0.0, 0, next(tie), wanted, ()))
    while queue:
        seconds, length, _, layout, path = heapq.heappop(queue)
        if layout in routes:
            continue
        routes[layout] = _Route(seconds, path)
        for move in arriving.get(layout, ()):
            before = move.step.before
            if before not in routes:
                entry = (seconds + move.seconds, length + 1, next(tie), before, (move, *path))
                heapq.heappush(queue, entry)
    return routes


def _routes_on(
    out: TensorLayout, wanted: TensorLayout, from_outputs: Mapping[TensorLayout, _Route], moves: Moves
) -> list[_Route]:
    """The best routes from ``out`` to ``wanted``, one for each first move: a ReduceScatter, an AllReduce, ..."""
    if out == wanted:
        return [_Route(0.0, ())]
    routes = []
    for move in moves.of(out):
        rest = from_outputs.get(move.step.after)
        if rest is not None and all(later.step.before != out for later in rest.moves):
            routes.append(_Route(move.seconds + rest.seconds, (move, *rest.moves)))
    routes.sort(key=lambda route: (route.seconds, len(route.moves)))
    return routes[:ROUTES_PER_MATMUL]


def _local_matmuls(
    parts: Contraction,
    to_left: Mapping[TensorLayout, list[_Route]],
    to_right: Mapping[TensorLayout, list[_Route]],
    wanted: TensorLayout,
    sizes: Mapping[str, int],
    mesh: Mesh,
) -> Iterator[tuple[_Route, LocalMatmul]]:
    """Every pair of reachable operand layouts that the rules let multiply, and the ways to it."""
    shared = (*parts.batch, *parts.contracted)
    alike: dict[tuple[tuple[str, ...], ...], list[TensorLayout]] = {}
    for layout in to_right:
        alike.setdefault(tuple(layout.dim(dim).axes for dim in shared), []).append(layout)
    for left, ways_left in to_left.items():
        own = {axis for dim in parts.left_only for axis in left.dim(dim).axes}
        for right in alike.get(tuple(left.dim(dim).axes for dim in shared), ()):
            if not own.isdisjoint(right.used_axes):
                continue  # quickly, before the rules say the same
            try:
                out = matmul(left, right, wanted.dim_names, name=wanted.name)
            except LayoutError:
                continue
            found = local_matmul(left, right, out, sizes, mesh)
            for one, other in itertools.product(ways_left, to_right[right]):
                yield _Route(one.seconds + other.seconds, (*one.moves, *other.moves)), found
