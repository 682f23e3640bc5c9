"""From one layout of a tensor to another: the collectives that move the fewest bytes, found and not looked up.

Hardware-free: a step costs the bytes that each device receives, and of ways that move as many the one with fewer steps
is taken. Of n devices, with a local array of L bytes: an AllGather to L' costs L' - L, a ReduceScatter (n - 1)/n L, an
AllReduce twice that, an AllToAll (n - 1)/n L, keeping a part nothing.
"""

from __future__ import annotations

import heapq
import itertools
import math
from dataclasses import replace

from simcore.errors import LayoutError
from simcore.layout import TensorLayout
from simcore.layout.moves import Move, Moves
from simcore.layout.steps import CollectiveKind, CollectiveStep, LocalMatmul, Step
from simcore.opgraph.graph import OpGraph
from simcore.opgraph.tensor import ShardedTensor

STEP = 2.0**-20
"""What a step costs beside its bytes: less than any byte."""


def reshard(g: OpGraph, tensor: ShardedTensor, wanted: TensorLayout) -> ShardedTensor:
    """``tensor`` laid out as ``wanted`` (whatever name that has), by as few moved bytes as can be.

    Raises `LayoutError` where no collectives lead there.
    """
    for step in route(g, tensor, wanted):
        match step.kind:
            case "AllReduce":
                tensor = g.all_reduce(tensor, step.axes)
            case "AllGather":
                assert step.dim is not None
                tensor = g.all_gather(tensor, step.axes)
            case "ReduceScatter":
                assert step.dim is not None
                tensor = g.reduce_scatter(tensor, step.axes, step.dim)
            case "AllToAll":
                assert step.dim is not None
                assert step.to_dim is not None
                tensor = g.all_to_all(tensor, step.axes, step.dim, step.to_dim)
            case "Slice":
                assert step.dim is not None
                tensor = g.keep_shard(tensor, step.axes, step.dim)
    return tensor


def route(g: OpGraph, tensor: ShardedTensor, wanted: TensorLayout) -> list[CollectiveStep]:
    """The steps of `reshard`, cheapest in bytes (Dijkstra's search over layouts)."""
    start = tensor.layout
    goal = replace(wanted, name=start.name)
    if start == goal:
        return []
    if start.dim_names != goal.dim_names:
        raise LayoutError(f"{start} cannot be laid out as {wanted}: its dimensions differ")
    if set(goal.partial) - set(start.partial):
        raise LayoutError(f"{start} cannot be laid out as {wanted}: complete values do not become partial sums again")
    moves = Moves(g.sizes, g.mesh, tensor.dtype, received_bytes, _free_axes(start, goal), _kinds(start, goal))
    counter = itertools.count()
    queue: list[tuple[float, int, TensorLayout, tuple[CollectiveStep, ...]]] = [(0.0, next(counter), start, ())]
    done: set[TensorLayout] = set()
    while queue:
        cost, _, layout, steps = heapq.heappop(queue)
        if layout == goal:
            return list(steps)
        if layout in done:
            continue
        done.add(layout)
        for move in moves.of(layout):
            if move.step.after not in done and _sensible(move, goal):
                heapq.heappush(queue, (cost + move.seconds, next(counter), move.step.after, (*steps, move.step)))
    raise LayoutError(f"no collectives lead from {start} to {wanted}: sizes may not divide")


def received_bytes(step: Step) -> float:
    """Bytes that each device receives in a step, and a little for its being one."""
    if isinstance(step, LocalMatmul):
        return 0.0
    n = math.prod(step.axis_sizes)
    if step.kind == "Slice" or n == 1:
        return STEP
    if step.kind == "AllGather":
        return step.full_bytes - step.local_bytes + STEP
    share = (n - 1) / n * step.local_bytes
    return (2 * share if step.kind == "AllReduce" else share) + STEP


def _free_axes(start: TensorLayout, goal: TensorLayout) -> tuple[str, ...]:
    """Axes that a slice may use: those that the goal splits by."""
    return tuple(sorted(set(goal.axes)))


def _kinds(start: TensorLayout, goal: TensorLayout) -> list[CollectiveKind]:
    kinds: list[CollectiveKind] = ["AllGather", "ReduceScatter", "AllReduce", "Slice"]
    changes = any(
        here.name != there.name
        for axis in start.axes
        if (here := start.dim_of(axis)) is not None and (there := goal.dim_of(axis)) is not None
    )
    return [*kinds, "AllToAll"] if changes else kinds


def _sensible(move: Move, goal: TensorLayout) -> bool:
    """Leaves out steps that no short way has: several dimensions gathered at once, and splits that the goal lacks."""
    step = move.step
    if step.kind == "AllGather":
        return step.dim is not None
    if step.kind in ("ReduceScatter", "AllToAll", "Slice"):
        at = step.to_dim if step.kind == "AllToAll" else step.dim
        assert at is not None
        after = step.after.dim(at).axes
        return after == goal.dim(at).axes[: len(after)] or step.kind == "ReduceScatter"
    return True
