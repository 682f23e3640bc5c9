"""What the lowering of an op graph knows while it emits tasks: local sizes, where tensors live, and who waits for whom.

Activations live in VMEM for as long as they are needed where they fit beside the tile pools; else the largest ones go
to HBM and are streamed. Weights and caches are in HBM and stream through pools of ``buffers`` tiles that all
operations of a kind share, so that the next operation's first tiles are loaded while this one computes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from simcore.chips import Chip
from simcore.dtypes import dtype_bits
from simcore.errors import GraphError, LayoutError
from simcore.graph import EntityClass, Ref, TaskGraph
from simcore.graph.access import Region
from simcore.graph.graph import Reference
from simcore.graph.reference import Indices
from simcore.lowering.tiling import Tiling
from simcore.opgraph.graph import OpGraph, Repeat
from simcore.opgraph.liveness import Placed, arrays, lives, local_bytes, placed_operations
from simcore.opgraph.operations import written
from simcore.opgraph.tensor import ShardedTensor

LAUNCH = "launch"
"""The host's launch of the step, where the chip has a cost for it: what waits for nothing else waits for it."""
RESIDENT_SHARE = 8
"""Activations may take 1 / this of VMEM; the tile pools have the rest."""
ROWS_SHARE = 64
"""A block of rows that is streamed for the vector unit takes at most 1 / this of VMEM."""

VECTORS = "vectors"
"""The pool of weights of one row: norms' scales, biases."""


@dataclass(frozen=True, slots=True)
class LoweringOptions:
    """Choices of the lowering.

    Parameters
    ----------
    buffers : tiles of each pool: 2 is double buffering.
    ring_direction : "one_way" or "both" directions of a ring's links.
    algorithm : "auto", the fastest by its closed form; or "ring", which leaves out sending whole arrays in one shot.
    keep_activations : whether activations that fit stay in VMEM; else all move through HBM.
    prefetch_layers : weights are gathered at most so many layers ahead of the one that computes.
    lines : mesh axes that do not wrap around.
    networks : mesh axis -> "ici" (where it is not given), "nvlink", "network", "dcn" or "dcn_share".
    """

    buffers: int = 2
    ring_direction: Literal["one_way", "both"] = "both"
    algorithm: Literal["auto", "ring"] = "auto"
    keep_activations: bool = True
    prefetch_layers: int = 1
    lines: frozenset[str] = frozenset()
    networks: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.buffers < 1:
            raise GraphError(f"buffers is {self.buffers}; it must be 1 or more")
        if self.ring_direction not in ("one_way", "both"):
            raise GraphError(f"ring_direction {self.ring_direction!r}; one_way or both is meant")

        if self.prefetch_layers < 0:
            raise GraphError(f"prefetch_layers is {self.prefetch_layers}; it must be 0 or more")
        if self.algorithm not in ("auto", "ring"):
            raise GraphError(f"algorithm {self.algorithm!r}; auto or ring is meant")

    def network(self, axis: str) -> str:
        """The network that a mesh axis is on."""
        return self.networks.get(axis, "ici")


@dataclass
class Program:
    """The state of one lowering."""

    ops: OpGraph
    chip: Chip
    options: LoweringOptions
    tasks: TaskGraph
    cls: EntityClass
    order: list[Placed]
    resident: frozenset[str]
    position: int = 0
    tilings: dict[object, Tiling] = field(default_factory=dict)
    """(shape, operands in VMEM) -> the tiling chosen for it"""
    loops_of: dict[str, list[Repeat]] = field(init=False)
    """stack of weights -> the repeats that go through it"""
    _writers: dict[str, list[int]] = field(init=False)
    """tensor -> positions of the operations that write it, in order; and of those that read it"""
    _readers: dict[str, list[int]] = field(init=False)
    collectives: list[str] = field(default_factory=list)
    """how collectives are done, each different one once"""

    def __post_init__(self) -> None:
        self._writers, self._readers = {}, {}
        for at, placed in enumerate(self.order):
            for table, tensors in (
                (self._writers, written(placed.operation)),
                (self._readers, placed.operation.reads),
            ):
                for name in dict.fromkeys(tensor.name for tensor in tensors):
                    table.setdefault(name, []).append(at)
        self.loops_of = {}
        for node in self.ops.body:
            if isinstance(node, Repeat):
                self.loops_of.setdefault(node.stack, []).append(node)

    @property
    def repeats(self) -> dict[str, int]:
        """Stack of weights -> iterations of its repeats."""
        return {node.stack: node.count for node in self.ops.body if isinstance(node, Repeat)}

    def note_collective(self, text: str) -> None:
        if text not in self.collectives:
            self.collectives.append(text)

    # -- sizes and places -------------------------------------------------------------------------------------

    def rows_columns(self, tensor: ShardedTensor) -> tuple[int, int]:
        return self.ops.local_rows_columns(tensor)

    def is_resident(self, tensor: ShardedTensor) -> bool:
        """Whether the tensor is in VMEM."""
        return tensor.name in self.resident

    def tile_share(self, parts: int) -> int:
        """The largest tile where two may take 2 / ``parts`` of VMEM; with more buffers each is smaller."""
        return self.chip.vmem_capacity_bytes * 2 // (parts * max(self.options.buffers, 2))

    def lead(self, tensor: ShardedTensor, i: Indices) -> Region:
        """The index of the iteration that has its own copy of the tensor."""
        if not tensor.repeat:
            return ()
        repeat = next(repeat for repeat in self.loops_of[tensor.repeat] if repeat.name in i)
        at = int(i[repeat.name])
        if repeat.backwards:
            at = repeat.count - 1 - at
        return (slice(at, at + 1),)

    @property
    def repeat_name(self) -> str:
        """The repeat that the operation at hand stands in, "" for none."""
        return self._here.repeat.name if self._here.repeat is not None else ""

    # -- pools ------------------------------------------------------------------------------------------------

    def pool(self, name: str, buffer_bytes: int, buffers: int | None = None) -> str:
        """A pool shared by all operations that ask for the name: as large and as many buffers as any asks for."""
        known = self.cls.pools.get(name)
        if known is None:
            self.cls.pool(name, memory="vmem", buffers=buffers or self.options.buffers, buffer_bytes=buffer_bytes)
        else:
            self.cls.pools[name] = replace(
                known,
                buffer_bytes=max(buffer_bytes, known.buffer_bytes),
                buffers=max(buffers or self.options.buffers, known.buffers),
            )
        return name

    # -- who waits for whom -----------------------------------------------------------------------------------

    @property
    def _here(self) -> Placed:
        return self.order[self.position]

    def after(self, *tensors: ShardedTensor) -> list[Reference]:
        """What must be complete before the operation at hand reads these tensors: their last writers."""
        writers = [at for tensor in tensors for at in self._last(tensor.name, writers=True)]
        found: list[Reference] = [self._end_of(at) for at in dict.fromkeys(writers)]
        return found or ([Ref(LAUNCH)] if LAUNCH in self.cls.tasks else [])

    def after_readers(self, tensor: ShardedTensor) -> list[Reference]:
        """What must be complete before the operation at hand writes over the tensor: its readers so far."""
        return [self._end_of(at) for at in self._last(tensor.name, writers=False) if at != self.position]

    def gather_gate(self) -> list[Reference]:
        """What a weight's gather waits for, so that it does not run further ahead than it may: the first operation of a
        layer some layers back, inside a repeat or before the operation at hand."""
        ahead, here = self.options.prefetch_layers, self._here.repeat
        repeat = here
        if repeat is None:
            before = [placed.repeat for placed in self.order[: self.position] if placed.repeat is not None]
            if not before or ahead >= before[-1].count:
                return []
            repeat = before[-1]
        first = f"{repeat.body[0].name}.end"
        if here is None:
            return [Ref(first, at={repeat.name: repeat.count - 1 - ahead})]
        if ahead == 0 and self.order[self.position].operation is repeat.body[0]:
            return []
        return [Ref(first, at={repeat.name: -ahead}, outside="ignore")]

    def _last(self, name: str, writers: bool) -> list[int]:
        """Positions of the last writer, or of the readers since then, as seen from the operation at hand.

        Inside a repeat, what comes later in its body happened in the iteration before.
        """
        here = self.position
        repeat = self._here.repeat
        touching = (self._writers if writers else self._readers).get(name, [])
        cut = bisect_left(touching, here)
        earlier = touching[:cut]
        same_body = repeat is not None and any(self.order[at].repeat is repeat for at in earlier)
        later = [at for at in touching[cut:] if repeat is not None and self.order[at].repeat is repeat]
        if writers:
            return (earlier[-1:] + later[-1:]) if not same_body else earlier[-1:]
        return earlier + later

    def _end_of(self, at: int) -> Ref:
        """The end of the operation at a position, in the iteration that the operation at hand sees."""
        task = f"{self.order[at].operation.name}.end"
        theirs, mine = self.order[at].repeat, self._here.repeat
        if theirs is None:
            return Ref(task)
        if theirs is not mine:
            return Ref(task, at={theirs.name: -1})  # the last iteration of a repeat that is over
        if at >= self.position:
            return Ref(task, at={theirs.name: -1}, outside="ignore")
        return Ref(task)


def choose_resident(ops: OpGraph, chip: Chip) -> frozenset[str]:
    """Activations and inputs that stay in VMEM: all, or all but the largest where too many live at once.

    A tensor counts from the operation that makes it to the one after its last reader, which may run beside it.
    """
    several = arrays(ops)  # one for each layer: in HBM
    alive_at = {
        name: range(first, last + 2)
        for name, (first, last) in lives(ops).items()
        if ops.tensors[name].role in ("activation", "input") and name not in several
    }
    sizes = {name: local_bytes(ops, ops.tensors[name]) for name in alive_at}
    room = chip.vmem_capacity_bytes // RESIDENT_SHARE
    resident = set(alive_at)
    while True:
        alive: dict[int, int] = {}
        for name in resident:
            for at in alive_at[name]:
                alive[at] = alive.get(at, 0) + sizes[name]
        fullest = max(alive, key=lambda at: (alive[at], -at), default=-1)
        if fullest < 0 or alive[fullest] <= room:
            return frozenset(resident)
        resident.remove(
            max((name for name in resident if fullest in alive_at[name]), key=lambda name: (sizes[name], name))
        )


def of_local_requests(name: str, lengths: tuple[int, ...], requests: int) -> tuple[int, ...]:
    """The lengths of a chip's own requests. Raises `LayoutError` where those of other chips differ."""
    local = lengths[:requests]
    if local * (len(lengths) // requests) != lengths:
        raise LayoutError(
            f"{name}: chips have requests of different lengths, {lengths}, and all run one program: give each the same"
        )
    return local


def compute_dtype(left: str, right: str) -> str:
    """What a product of two formats is computed in: the wider one, as narrow weights are widened on their way."""
    return left if dtype_bits(left) >= dtype_bits(right) else right


__all__ = [
    "LAUNCH",
    "ROWS_SHARE",
    "VECTORS",
    "LoweringOptions",
    "Program",
    "choose_resident",
    "compute_dtype",
    "local_bytes",
    "of_local_requests",
    "placed_operations",
]
