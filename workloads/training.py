"""A training step as an op graph: forward, loss, the derived backward pass, and an optimizer's step.

What the backward pass reads of the forward pass is kept, or computed once more, as the policy says:

| remat | kept of each layer | computed once more |
|---|---|---|
| none | all that the rules of the backward pass read, but gathered copies | gathers |
| full | its input | the layer, but for its last matmul, of which nothing is read |
| matmuls | its input and what its matmuls and attention give | norms, activations, gathers |

Source: How To Scale Your Model, "Training"; Chen et al. 2016; Korthikanti et al. 2022 for keeping some.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from simcore.chips import Chip
from simcore.errors import ModelConfigError, nearest
from simcore.graph import TaskGraph
from simcore.layout import TensorLayout, parse_tensor
from simcore.lowering import LoweringOptions, lower, lower_stages
from simcore.opgraph import OpGraph, ShardedTensor
from simcore.opgraph.backward import Backward
from simcore.opgraph.backward_steps import square_sum, update
from simcore.opgraph.graph import Repeat
from simcore.opgraph.operations import Attention, Collective, Einsum, Operation, written
from workloads.config import ModelConfig
from workloads.optimizers import OPTIMIZERS, Optimizer
from workloads.plan import PlacedPlan, Plan
from workloads.schedules import CHUNKED, DEFAULT_CHUNKS, SCHEDULES
from workloads.stages import layer_ranges, pipeline_axis, some_layers, without_pipeline
from workloads.step import Step
from workloads.transformer import _builder, embed, empty_graph, placed_plan, through_layers

Remat = Literal["none", "full", "matmuls"]
REMATS: tuple[str, ...] = ("none", "full", "matmuls")
LOSS_OPERATIONS = 4
"""Vector operations a logit: maximum, subtract, exponential, sum (assumed one each)."""


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """What a training step does beside its forward pass.

    Parameters
    ----------
    remat : which results are kept for the backward pass.
    optimizer : "adamw", "sgd", ...; see `workloads.optimizers`.
    gradient_dtype : format of weights' gradients, in which they are added up over chips; "" as the activations.
    microbatches : parts that the sequences are cut in, whose gradients are added up; by default as many as stages.
    schedule : in which order a stage takes the microbatches' forward and backward passes; see `SCHEDULES`.
    clip_norm : greatest norm of all gradients together, to which they are scaled down; 0 leaves them as they are.
    chunks : runs of layers that each stage has, under a schedule that has several; by default `DEFAULT_CHUNKS`.
    """

    remat: Remat = "none"
    optimizer: str = "adamw"
    gradient_dtype: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    microbatches: int = 0
    schedule: str = "1f1b"
    chunks: int = 0
    clip_norm: float = 0.0

    def __post_init__(self) -> None:
        if self.remat not in REMATS:
            raise ModelConfigError(f"remat {self.remat!r}: {nearest(self.remat, REMATS)}")
        if self.optimizer not in OPTIMIZERS:
            raise ModelConfigError(f"optimizer {self.optimizer!r}: {nearest(self.optimizer, OPTIMIZERS)}")
        if self.schedule not in SCHEDULES:
            raise ModelConfigError(f"schedule {self.schedule!r}: {nearest(self.schedule, SCHEDULES)}")
        if self.microbatches < 0:
            raise ModelConfigError(f"{self.microbatches} microbatches: 1 or more is meant")
        if self.clip_norm < 0:
            raise ModelConfigError(f"a norm of {self.clip_norm:g} to clip gradients to: more than 0 is meant")
        if self.chunks < 0:
            raise ModelConfigError(f"{self.chunks} chunks: 1 or more is meant")
        if self.chunks > 1 and self.schedule not in CHUNKED:
            raise ModelConfigError(
                f"{self.chunks} chunks under schedule {self.schedule}: each stage has one; {CHUNKED[0]} is meant"
            )

    def states(self, dtype: str) -> list[tuple[str, str]]:
        """Name and format of what the optimizer keeps of a weight of format ``dtype``."""
        return OPTIMIZERS[self.optimizer](**self.settings).states(dtype)

    @property
    def runs(self) -> int:
        """Runs of layers that each stage has."""
        return (self.chunks or DEFAULT_CHUNKS) if self.schedule in CHUNKED else 1


def training_step(
    config: ModelConfig,
    *,
    batch: int,
    context: int,
    plan: Plan | PlacedPlan | str | None = None,
    options: TrainingOptions | None = None,
    **step_options: Any,
) -> OpGraph:
    """One step on ``batch`` sequences of ``context`` tokens: the op graph of forward, backward and update.

    Raises `ModelConfigError` for what is not modelled, or sizes that do not divide over the chips; for a plan with
    pipeline stages, which have a graph each, see `training_stages`.
    """
    if placed_plan(plan).plan.pipeline > 1:
        raise ModelConfigError(f"plan {plan}: pipeline stages have programs of their own: see training_stages")
    return training_stages(config, batch=batch, context=context, plan=plan, options=options, **step_options)[0]


def training_stages(
    config: ModelConfig,
    *,
    batch: int,
    context: int,
    plan: Plan | PlacedPlan | str | None = None,
    options: TrainingOptions | None = None,
    **step_options: Any,
) -> list[OpGraph]:
    """The op graph of each pipeline stage of a step, one where there are none. Raises as `training_step` does."""
    options, placed = options or TrainingOptions(), placed_plan(plan)
    stages = placed.plan.pipeline
    parts = options.microbatches or stages
    if batch % parts:
        raise ModelConfigError(f"{batch} sequences do not cut into {parts} microbatches: a divisor of {batch} would do")
    inner = without_pipeline(placed) if stages > 1 else placed
    step = Step((0,) * (batch // parts), context, inner, "skip", training=True, **step_options)
    check_training(config, step, stages)
    axis = pipeline_axis(placed) if stages > 1 else ""
    _check_schedule(config, options, stages, parts, in_line=axis in placed.lines)
    return [_Stage(config, step, options, axis, stage, stages, parts).graph() for stage in range(stages)]


def lowered_training(
    config: ModelConfig,
    chip: Chip,
    *,
    plan: PlacedPlan,
    lowering: LoweringOptions | None = None,
    **asked: Any,
) -> tuple[TaskGraph, list[OpGraph]]:
    """The tasks of a step, and the op graphs that they are made from; arguments as of `training_stages`."""
    graphs = training_stages(config, plan=plan, **asked)
    if len(graphs) == 1:
        return lower(graphs[0], chip, lowering), graphs
    return lower_stages(graphs, chip, lowering, axis=pipeline_axis(plan)), graphs


@dataclass
class _Stage:
    """Builds the program of a stage, microbatch by microbatch in the order of the schedule."""

    config: ModelConfig
    step: Step
    options: TrainingOptions
    axis: str
    stage: int
    stages: int
    parts: int
    gradients: dict[str, ShardedTensor] = field(default_factory=dict)

    def graph(self) -> OpGraph:
        """Its operations, each in the phase "forward", "backward", "recompute" or "optimizer"."""
        chunks = self.options.runs
        ranges = layer_ranges(self.config.n_layers, self.stages * chunks)
        self.ranges = [ranges[chunk * self.stages + self.stage] for chunk in range(chunks)]
        self.parts_of = [some_layers(self.config, *one) if len(ranges) > 1 else self.config for one in self.ranges]
        self.g = g = empty_graph(self.parts_of[0], self.step, "training_step")
        if self.stages > 1 and self.stage == 0:
            g.notes.append(
                f"{self.stages} stages of {f'{chunks} chunks of ' * (chunks > 1)}{self.ranges[0][1]} layers, "
                f"{self.parts} microbatches of {self.step.batch} sequences each, {self.options.schedule}"
            )
            if self.parts < self.stages:
                g.notes.append(
                    f"fewer microbatches ({self.parts}) than stages ({self.stages}): stages wait for each other"
                )
        self.made: dict[tuple[int, int], tuple[ShardedTensor, list[Operation | Repeat]]] = {}
        for one in SCHEDULES[self.options.schedule](self.stage, self.stages, self.parts, chunks):
            if one.forward:
                with g.in_phase("forward"):
                    self._forward(one.microbatch, one.chunk)
            else:
                self._backward(one.microbatch, one.chunk)
        backward = Backward(g, lambda tensor, operation: True, gradients=self.gradients)
        sums = backward.add_up()
        with g.in_phase("optimizer"):
            norm = self._norm(sums) if self.options.clip_norm else None
            optimizer = OPTIMIZERS[self.options.optimizer](**self.options.settings)
            optimize(g, sums, optimizer, norm, self.options.clip_norm)
        return g

    def _norm(self, gradients: dict[str, ShardedTensor]) -> ShardedTensor:
        """The square of the norm of all gradients; through stages it is added up to the last, and told from there."""
        g = self.g
        total = squares(g, gradients)
        if self.stage > 0:
            before = g.receive("norm_before[J]", sent="send_norm", axis=self.axis, rows=0, dtype="fp32")
            g.add("norm_so_far", total, before, into=total)
        if self.stage < self.stages - 1:
            g.send("send_norm", total, self.axis, to="norm_before")
            total = g.receive("norm[J]", sent="tell_norm", axis=self.axis, rows=0, dtype="fp32", step=-1)
        if self.stage > 0:
            g.send("tell_norm", total, self.axis, to="norm", step=-1)
        return total

    def _piece(self, number: int) -> str:
        return f"m{number}" if self.parts > 1 or self.stages > 1 else ""

    def _named(self, chunk: int, number: int) -> str:
        """What ends the names of what a chunk gets and gives."""
        return f"{_chunk(chunk)}_m{number}" if self.options.runs > 1 else f"m{number}"

    def _begins(self, chunk: int) -> bool:
        return self.stage == 0 and chunk == 0

    def _ends(self, chunk: int) -> bool:
        return self.stage == self.stages - 1 and chunk == self.options.runs - 1

    def _before(self, chunk: int, number: int) -> str:
        """The name of what the chunk before gave."""
        return self._named(chunk if self.stage > 0 else chunk - 1, number)

    def _after(self, chunk: int, number: int) -> str:
        """The name of what the chunk after gets."""
        return self._named(chunk if self.stage < self.stages - 1 else chunk + 1, number)

    def _forward(self, number: int, chunk: int) -> None:
        g, piece, part = self.g, self._piece(number), self.parts_of[chunk]
        own = self._named(chunk, number)
        if self._begins(chunk):
            begin = len(g.body)
            x = embed(g, part, self.step, piece)
        else:
            residual = self.step.rules(part).residual(parse_tensor(f"x_{own}[B, T, D]"))
            x = g.receive(str(residual), sent=f"send_{self._before(chunk, number)}", axis=self.axis)
            begin = len(g.body)
        through_layers(
            g, part, self.step, x, first=self.ranges[chunk][0], piece=piece,
            chunk=_chunk(chunk) if self.options.runs > 1 else "",
        )  # fmt: skip
        self.made[number, chunk] = x, g.body[begin:]
        if not self._ends(chunk):
            g.send(f"send_{own}", x, self.axis, to=f"x_{self._after(chunk, number)}")

    def _backward(self, number: int, chunk: int) -> None:
        g, piece, part = self.g, self._piece(number), self.parts_of[chunk]
        own = self._named(chunk, number)
        x, nodes = self.made.pop((number, chunk))
        if self._ends(chunk):
            begin = len(g.body)
            with g.in_phase("forward"):
                start, back = loss(g, part, self.step, x, piece, self.step.tokens * self.parts)
            ends = [node for node in g.body[begin:] if not isinstance(node, Repeat)]
            named = next(at for at, node in enumerate(ends) if start.name in [t.name for t in written(node)])
            nodes = [*nodes, *ends[: named + 1]]
        else:
            start = x
            layout = self.step.rules(part).residual(parse_tensor(f"back_{own}[B, T, D]"))
            sent = f"send_back_{self._after(chunk, number)}"
            back = g.receive(str(layout), sent=sent, axis=self.axis, step=-1)
        dtype = self.options.gradient_dtype or self.step.activations(part)
        later = frozenset(axis for axis in g.mesh.names if axis not in self.step.placed.of("fsdp"))
        backward = Backward(
            g, keeper(nodes, self.options.remat), gradient_dtype=dtype, gradients=self.gradients, piece=piece,
            later=later if self.parts > 1 else frozenset(),
        )  # fmt: skip
        backward.run(start, back, x.name, nodes)
        if not self._begins(chunk):
            to = f"back_{self._before(chunk, number)}"
            g.send(f"send_back_{own}", backward.to(x), self.axis, to=to, step=-1)


def _chunk(number: int) -> str:
    return f"c{number}"


def _check_schedule(config: ModelConfig, options: TrainingOptions, stages: int, parts: int, *, in_line: bool) -> None:
    schedule, chunks = options.schedule, options.runs
    if stages > config.n_layers:
        raise ModelConfigError(f"model {config.name}: {stages} stages, and it has {config.n_layers} layers")
    if schedule not in CHUNKED:
        return
    if stages == 1:
        raise ModelConfigError(f"schedule {schedule}: the plan has no pipeline")
    if config.n_layers % (stages * chunks):
        raise ModelConfigError(
            f"schedule {schedule}: {config.n_layers} layers are no {stages} stages of {chunks} equal chunks: chunks "
            f"that divide {config.n_layers / stages:g} are meant"
        )
    if parts % stages:
        raise ModelConfigError(f"schedule {schedule}: {parts} microbatches are not a multiple of {stages} stages")
    if in_line:
        raise ModelConfigError(
            f"schedule {schedule}: the last stage sends to the first, and they are the ends of a line: lay the "
            "pipeline on an axis that wraps around"
        )


def check_training(config: ModelConfig, step: Step, stages: int = 1) -> None:
    """Raise `ModelConfigError` for what a training step is not modelled for."""
    plan = step.plan
    for kind in ("tensor2", "context", "expert"):
        if getattr(plan, kind) > 1:
            raise ModelConfigError(
                f"plan {plan}: training is modelled for data, fsdp, tensor, sequence and pipeline, not {kind}"
            )
    if config.moe is not None or config.mla is not None:
        what = "experts" if config.moe is not None else "a latent cache"
        raise ModelConfigError(f"model {config.name}: training with {what} is not modelled")
    if config.qk_norm == "whole":
        raise ModelConfigError(f"model {config.name}: training with a norm over all heads is not modelled")
    if step.kv_heads(config) > config.n_kv_heads:
        raise ModelConfigError(
            f"model {config.name}: {config.n_kv_heads} key-value heads on tensor = {plan.tensor} chips would have "
            f"copies, whose gradients are not modelled: use tensor = {config.n_kv_heads} or a divisor of it"
        )
    if stages > 1 and config.tied_embeddings:
        raise ModelConfigError(
            f"model {config.name}: training in stages with a tied embedding, which the first and the last share, is "
            "not modelled"
        )
    if step.kernel != "flash":
        raise ModelConfigError("training is modelled with the flash kernel")
    for dtype in (step.weights_dtype, step.kv_dtype):
        if dtype:
            raise ModelConfigError(f"format {dtype}: weights are trained in the model's own format")


def keeper(nodes: Sequence[Operation | Repeat], remat: Remat) -> Callable[[ShardedTensor, Operation], bool]:
    """Whether a result of the forward pass is kept; outside of the layers everything is."""
    inside = {operation.name for node in nodes if isinstance(node, Repeat) for operation in node.body}
    makers: dict[str, Operation] = {}
    for node in nodes:
        for operation in node.body if isinstance(node, Repeat) else []:
            # Of partial sums nothing is left once they are added up: what they become is what a matmul gives.
            moved = isinstance(operation, Collective) and operation.kind != "AllGather"
            maker = makers.get(operation.reads[0].name, operation) if moved else operation
            makers.setdefault(operation.out.name, maker)

    def kept(tensor: ShardedTensor, operation: Operation) -> bool:
        if operation.name not in inside:
            return True
        if remat == "full":
            return False
        if isinstance(operation, Collective) and operation.kind == "AllGather":
            return False
        if remat == "matmuls":
            return isinstance(makers.get(tensor.name, operation), Einsum | Attention)
        return True

    return kept


def loss(
    g: OpGraph, config: ModelConfig, step: Step, x: ShardedTensor, piece: str, tokens: int
) -> tuple[ShardedTensor, ShardedTensor]:
    """The cross-entropy of all positions, whose mean is over ``tokens``; returns the logits and what goes back to them.

    Of a vocabulary that is split each chip has the maximum, the sum and the target's logit of its own part, which are
    gathered: 12 bytes a position and chip, and no logit moves.
    """
    b = _builder(g, config, step, piece)
    normed = b.norm("final_norm", x) if config.final_norm else x
    head = b.weight("embedding[V, D]" if config.tied_embeddings else "lm_head[D, V]", "other")
    logits = b.complete(b.product(b.named("logits"), normed, head, bias="b_lm_head[V]" if config.lm_head_bias else ""))
    targets = g.input(str(b.rules.complete(parse_tensor(b.named("targets[B, T]")))), dtype="int32", rows=2)
    targets = _as_rows_of(b, targets, logits)
    axes = logits.layout.dim("V").axes
    part = str(TensorLayout("x", (parse_tensor("x[Vx]").dims[0],)).with_axes("Vx", axes).dims[0])
    each = g.elementwise(
        b.named("loss_parts"), [logits, targets], _loss_parts,
        operations_per_element=LOSS_OPERATIONS * g.sizes["V"] / 3, features=f"Ls, {part}", part_of=axes, dtype="fp32",
    )  # fmt: skip
    every = b.whole(each, "Vx") if axes else each
    g.elementwise(b.named("loss"), [every], _loss, operations_per_element=4, features="J")
    back = g.elementwise(
        b.named("d_logits"), [logits, every, targets], _loss_back(tokens), operations_per_element=4, part_of=axes
    )
    return logits, back


def _as_rows_of(b: Any, targets: ShardedTensor, logits: ShardedTensor) -> ShardedTensor:
    layout = TensorLayout(targets.name, logits.layout.dims[:2])
    return targets if targets.layout == layout else b.laid_out(targets, layout)


def _loss_parts(number: int, logits: Any, targets: Any) -> Any:
    """Rows [maximum, sum of exponentials, the target's logit] of a part of the vocabulary."""
    highest = logits.max(axis=-1)
    total = np.exp(logits - highest[:, None]).sum(axis=-1)
    at, here = _targets_in(number, logits, targets)
    return np.stack([highest, total, np.where(here, logits[np.arange(len(logits)), at], 0.0)], axis=-1)


def _targets_in(number: int, logits: Any, targets: Any) -> tuple[Any, Any]:
    at = np.asarray(targets).reshape(-1).astype(int) - number * logits.shape[-1]
    here = (at >= 0) & (at < logits.shape[-1])
    return np.where(here, at, 0), here


def _together(parts: Any) -> tuple[Any, Any]:
    """The logarithm of the sum of exponentials, and the target's logit."""
    highest, total, target = parts.reshape(len(parts), 3, -1).transpose(1, 0, 2)
    most = highest.max(axis=-1)
    return most + np.log((total * np.exp(highest - most[:, None])).sum(axis=-1)), target.sum(axis=-1)


def _loss(parts: Any) -> Any:
    log, target = _together(parts)
    return (log - target)[:, None]


def _loss_back(tokens: int) -> Callable[..., Any]:
    def back(number: int, logits: Any, parts: Any, targets: Any) -> Any:
        log, _ = _together(parts)
        made = np.exp(logits - log[:, None])
        at, here = _targets_in(number, logits, targets)
        made[np.arange(len(made)), at] -= here
        return made / tokens

    return back


def squares(g: OpGraph, gradients: dict[str, ShardedTensor]) -> ShardedTensor:
    """The sum of the squares of all gradients of a stage, on each chip: one number [J], summed over all chips."""
    totals: list[ShardedTensor] = []

    def one(name: str) -> None:
        made = square_sum(g, f"squares_{name}" if totals else "squares", gradients[name], "J")
        if totals:
            g.add(f"squares_with_{name}", totals[0], made, into=totals[0])
        else:
            totals.append(made)

    _layer_by_layer(g, gradients, "squares", one)
    total = totals[0]
    return g.all_reduce(total, g.mesh.names) if total.layout.partial else total


def optimize(
    g: OpGraph,
    gradients: dict[str, ShardedTensor],
    optimizer: Optimizer,
    norm: ShardedTensor | None = None,
    clip_norm: float = 0.0,
) -> None:
    """The optimizer's step of every weight, layer by layer; of gradients clipped by ``norm``, the square of theirs."""
    step, operations = optimizer.step, optimizer.operations
    if norm is not None:
        step, operations = _clipped(optimizer.step, clip_norm), operations + 1

    def one(name: str) -> None:
        weight = g.tensors[name]
        states = []
        for what, dtype in optimizer.states(weight.dtype):
            layout = TensorLayout(f"{what}_{name}", weight.layout.dims)
            states.append(g.state(str(layout), dtype=dtype))
        update(
            g, f"update_{name}", gradients[name], states, weight, step,
            operations_per_element=operations, extra=() if norm is None else (norm,),
        )  # fmt: skip

    _layer_by_layer(g, gradients, "update", one)


def _clipped(step: Callable[..., Any], clip_norm: float) -> Callable[..., Any]:
    def clipped(gradient: Any, *given: Any) -> Any:
        *others, squared = given
        norm = np.sqrt(np.asarray(squared).reshape(-1)[0])
        return step(gradient * min(1.0, clip_norm / max(norm, 1e-300)), *others)

    return clipped


def _layer_by_layer(g: OpGraph, gradients: dict[str, ShardedTensor], what: str, one: Callable[[str], None]) -> None:
    """Do ``one`` for every weight: first those outside of the layers, then those of each layer."""
    stacks: dict[str, list[str]] = {}
    for name in gradients:
        stacks.setdefault(g.tensors[name].repeat, []).append(name)
    repeats = {node.stack: node for node in reversed(g.body) if isinstance(node, Repeat)}
    for name in stacks.pop("", []):
        one(name)
    for stack, names in stacks.items():
        like = repeats[stack]
        with g.repeat(f"{like.name} {what}", like.count, first_layer=like.first_layer, layers=like.layers, stack=stack):
            for name in names:
                one(name)


__all__: Sequence[str] = ["REMATS", "TrainingOptions", "lowered_training", "training_stages", "training_step"]
