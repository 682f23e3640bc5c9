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

from simcore.errors import ModelConfigError, nearest
from simcore.layout import TensorLayout, parse_tensor
from simcore.opgraph import OpGraph, ShardedTensor
from simcore.opgraph.backward import Backward
from simcore.opgraph.backward_steps import update
from simcore.opgraph.graph import Repeat
from simcore.opgraph.operations import Attention, Collective, Einsum, Operation
from workloads.config import ModelConfig
from workloads.optimizers import OPTIMIZERS, Optimizer
from workloads.plan import PlacedPlan, Plan
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
    """

    remat: Remat = "none"
    optimizer: str = "adamw"
    gradient_dtype: str = ""
    settings: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.remat not in REMATS:
            raise ModelConfigError(f"remat {self.remat!r}: {nearest(self.remat, REMATS)}")
        if self.optimizer not in OPTIMIZERS:
            raise ModelConfigError(f"optimizer {self.optimizer!r}: {nearest(self.optimizer, OPTIMIZERS)}")


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

    Raises `ModelConfigError` for what is not modelled, or sizes that do not divide over the chips.
    """
    options = options or TrainingOptions()
    step = Step((0,) * batch, context, placed_plan(plan), "skip", training=True, **step_options)
    check_training(config, step)
    g = empty_graph(config, step, "training_step")
    x = embed(g, config, step)
    through_layers(g, config, step, x)
    logits, back = loss(g, config, step, x)
    dtype = options.gradient_dtype or step.activations(config)
    gradients = Backward(g, keeper(g, options.remat), gradient_dtype=dtype).run(logits, back, x.name)
    optimize(g, gradients, OPTIMIZERS[options.optimizer](**options.settings))
    return g


def check_training(config: ModelConfig, step: Step) -> None:
    """Raise `ModelConfigError` for what a training step is not modelled for."""
    plan = step.plan
    for kind in ("tensor2", "context", "expert", "pipeline"):
        if getattr(plan, kind) > 1:
            raise ModelConfigError(f"plan {plan}: training is modelled for data, fsdp, tensor and sequence, not {kind}")
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
    if step.kernel != "flash":
        raise ModelConfigError("training is modelled with the flash kernel")
    for dtype in (step.weights_dtype, step.kv_dtype):
        if dtype:
            raise ModelConfigError(f"format {dtype}: weights are trained in the model's own format")


def keeper(g: OpGraph, remat: Remat) -> Callable[[ShardedTensor, Operation], bool]:
    """Whether a result of the forward pass is kept; outside of the layers everything is."""
    inside = {operation.name for node in g.body if isinstance(node, Repeat) for operation in node.body}
    makers: dict[str, Operation] = {}
    for node in g.body:
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


def loss(g: OpGraph, config: ModelConfig, step: Step, x: ShardedTensor) -> tuple[ShardedTensor, ShardedTensor]:
    """The mean cross-entropy of all positions; returns the logits and what goes back to them.

    Of a vocabulary that is split each chip has the maximum, the sum and the target's logit of its own part, which are
    gathered: 12 bytes a position and chip, and no logit moves.
    """
    b = _builder(g, config, step)
    normed = b.norm("final_norm", x) if config.final_norm else x
    head = b.weight("embedding[V, D]" if config.tied_embeddings else "lm_head[D, V]", "other")
    logits = b.complete(b.product("logits", normed, head, bias="b_lm_head[V]" if config.lm_head_bias else ""))
    targets = g.input(str(b.rules.complete(parse_tensor("targets[B, T]"))), dtype="int32", rows=2)
    targets = _as_rows_of(b, targets, logits)
    axes = logits.layout.dim("V").axes
    part = str(TensorLayout("x", (parse_tensor("x[Vx]").dims[0],)).with_axes("Vx", axes).dims[0])
    each = g.elementwise(
        "loss_parts", [logits, targets], _loss_parts, operations_per_element=LOSS_OPERATIONS * g.sizes["V"] / 3,
        features=f"Ls, {part}", part_of=axes, dtype="fp32",
    )  # fmt: skip
    every = b.whole(each, "Vx") if axes else each
    g.elementwise("loss", [every], _loss, operations_per_element=4, features="J")
    back = g.elementwise(
        "d_logits", [logits, every, targets], _loss_back(step.tokens), operations_per_element=4, part_of=axes
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


def optimize(g: OpGraph, gradients: dict[str, ShardedTensor], optimizer: Optimizer) -> None:
    """The optimizer's step of every weight, layer by layer."""

    def one(name: str) -> None:
        weight = g.tensors[name]
        states = []
        for what, dtype in optimizer.states(weight.dtype):
            layout = TensorLayout(f"{what}_{name}", weight.layout.dims)
            states.append(g.state(str(layout), dtype=dtype))
        update(
            g, f"update_{name}", gradients[name], states, weight, optimizer.step,
            operations_per_element=optimizer.operations,
        )  # fmt: skip

    stacks: dict[str, list[str]] = {}
    for name in gradients:
        stacks.setdefault(g.tensors[name].repeat, []).append(name)
    repeats = {node.stack: node for node in reversed(g.body) if isinstance(node, Repeat)}
    for name in stacks.pop("", []):
        one(name)
    for stack, names in stacks.items():
        like = repeats[stack]
        with g.repeat(f"{like.name} update", like.count, first_layer=like.first_layer, layers=like.layers, stack=stack):
            for name in names:
                one(name)


__all__: Sequence[str] = ["REMATS", "TrainingOptions", "training_step"]
