"""Whether a step fits in the chips' memory, what takes the room, and what would make it fit: from layouts alone.

Counted are each chip's weights, caches and, at the fullest moment, the activations that are too large for VMEM; of
weights that are gathered for use, those of the layer at work and of the one that is fetched ahead.
Buffers of collectives in flight come on top, a few tiles' worth; the simulation has them. A training step holds the
optimizer's states besides, gradients, and what the backward pass needs of the forward pass.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from simcore.chips import Chip
from simcore.dtypes import bytes_of
from simcore.errors import LayoutError, ModelConfigError
from simcore.lowering import LoweringOptions
from simcore.lowering.program import choose_resident
from simcore.opgraph import OpGraph
from simcore.opgraph.liveness import Moment, gathered_bytes, lasting_bytes, peak
from topologies.tpu_slice import SLICES_2D
from workloads.config import ModelConfig
from workloads.parameters import count_parameters
from workloads.placing import place
from workloads.plan import PlacedPlan, Plan
from workloads.stages import stage_graphs
from workloads.training import TrainingOptions, training_stages
from workloads.transformer import model_step

LARGEST_BATCH = 2**20
ABOUT = 1.1
"""Plans whose bytes differ by less than this factor leave about the same room."""
REMATS_BY_MEMORY = ("none", "matmuls", "full")
"""Policies from the one that keeps most on."""
NARROW = (("int8", {"weights_dtype": "int8"}), ("int4", {"weights_dtype": "int4"}))


@dataclass(frozen=True, slots=True)
class Fit:
    """What the fullest chip holds.

    Parameters
    ----------
    parts : "weights", "KV cache", "activations" and, if there are any, "gathered" weights -> bytes; of training
        "optimizer states" and "gradients" too.
    fullest : the operation at which the activations are most, and what is alive there.
    """

    plan: Plan
    chips: int
    capacity_bytes: int
    parts: Mapping[str, int]
    fullest: Moment

    @property
    def total_bytes(self) -> int:
        return sum(self.parts.values())

    @property
    def fits(self) -> bool:
        return self.total_bytes <= self.capacity_bytes

    @property
    def left_bytes(self) -> int:
        """What is left of the memory; negative where it does not fit."""
        return self.capacity_bytes - self.total_bytes


@dataclass(frozen=True, slots=True)
class Question:
    """A step to be held: ``options`` are those of `workloads.transformer.model_step`.

    A step of ``mode`` "train" is that of ``training``.
    """

    config: ModelConfig
    mode: str
    batch: int
    context: int
    options: Mapping[str, Any] = field(default_factory=dict)
    microbatches: int = 0
    training: TrainingOptions = TrainingOptions()

    def graphs(self, plan: Plan | PlacedPlan) -> list[OpGraph]:
        """The op graphs of the step, one for each pipeline stage."""
        asked: dict[str, Any] = {"batch": self.batch, "context": self.context, **self.options}
        ways = plan.plan if isinstance(plan, PlacedPlan) else plan
        if self.mode == "train":
            options = replace(self.training, microbatches=self.microbatches)
            return training_stages(self.config, plan=plan, options=options, **asked)
        if ways.pipeline > 1:
            return stage_graphs(self.config, self.mode, plan=plan, microbatches=self.microbatches, **asked)
        return [model_step(self.config, self.mode, plan=plan, **asked)]

    def with_(self, **changes: Any) -> Question:
        """The same question with other fields, such as the batch, or other options."""
        own = {name: changes.pop(name) for name in ("batch", "context", "microbatches", "training") if name in changes}
        return replace(self, **own, options={**self.options, **changes})


def fit(question: Question, chip: Chip, plan: Plan | PlacedPlan) -> Fit:
    """What the fullest chip holds under a plan. Raises `ModelConfigError` for one that does not divide the model."""
    ways = plan.plan if isinstance(plan, PlacedPlan) else plan
    found = []
    for ops in question.graphs(plan):
        lasting = lasting_bytes(ops)
        gathered = [name for name, tensor in ops.tensors.items() if tensor.role == "gathered"]
        fullest = peak(ops, [*choose_resident(ops, chip), *gathered])
        parts = {"weights": sum(lasting["weight"].values()), "activations": fullest.total_bytes}
        if question.mode == "train":
            gradients = sum(size for name, size in fullest.alive.items() if ops.tensors[name].role == "gradient")
            parts |= {
                "optimizer states": sum(lasting["state"].values()),
                "gradients": gradients,
                "activations": fullest.total_bytes - gradients,
            }
        else:
            parts["KV cache"] = sum(lasting["cache"].values())
        if gathered:
            parts["gathered"] = gathered_bytes(ops, 1 + LoweringOptions().prefetch_layers)
        found.append(Fit(ways, ways.chips, chip.hbm_capacity_bytes, parts, fullest))
    return max(found, key=lambda one: one.total_bytes)


def plans_of(question: Question, chips: int) -> Iterator[Plan]:
    """Plans of ``chips`` chips that are worth a look: tensor, the weights' other dimension, experts, requests.

    In training, fsdp and tensor with the norms split: neither leaves a copy of anything.
    """
    config, batch = question.config, question.batch
    if question.mode == "train":
        each = batch // max(question.microbatches, 1)
        for fsdp in _divisors(chips):
            if each % fsdp == 0:
                yield Plan(fsdp=fsdp, tensor=chips // fsdp, sequence=fsdp < chips)
        return
    experts = config.moe.n_experts if config.moe is not None else 1
    for tensor, tensor2, expert in itertools.product(_divisors(chips), repeat=3):
        if chips % (tensor * tensor2 * expert) or experts % expert or (tensor2 > 1 and expert > 1):
            continue
        data = chips // (tensor * tensor2 * expert)
        if batch % (data * expert) == 0:
            yield Plan(data=data, tensor=tensor, tensor2=tensor2, expert=expert)


def best_plan(question: Question, chip: Chip, chips: int) -> Fit | None:
    """A plan that leaves about the most room on ``chips`` chips; None where none divides."""
    found: list[Fit] = []
    copies = 0
    for plan in sorted(plans_of(question, chips), key=lambda plan: plan.data):
        if found and plan.data > copies:
            break  # more copies of the weights leave less room
        try:
            found.append(fit(question, chip, plan))
        except (ModelConfigError, LayoutError):
            continue
        copies = plan.data
    least = min((one.total_bytes for one in found), default=0)
    # Of plans that hold about as much, the one with the most tensor ways: they move the least.
    close = [one for one in found if one.total_bytes <= ABOUT * least]
    if question.mode == "train":  # ... but gathered weights move less than activations
        return min(close, key=lambda one: (one.plan.tensor, one.total_bytes), default=None)
    return max(close, key=lambda one: (one.plan.tensor, one.plan.expert, -one.total_bytes), default=None)


def slices_of(chip: Chip) -> list[str]:
    """Slices of a chip from the smallest on: those that are offered (v5e, v6e), cubes and parts of them, GPU counts."""
    if chip.gpus_per_nvlink_domain is not None:
        return [str(2**power) for power in range(13)]
    pod = chip.require("pod_shape")
    if chip.require("torus_dimensions") == 2:
        shapes = [shape for shape in SLICES_2D if all(a <= b for a, b in zip(shape, sorted(pod), strict=True))]
        return ["x".join(map(str, shape)) for shape in sorted(shapes, key=math.prod)]
    sides = [side for side in (1, 2, 4, 8, 12, 16, 20, 24, 28, 32) if side <= max(pod)]
    shapes3 = [
        shape
        for shape in itertools.combinations_with_replacement(sides, 3)
        if math.prod(shape) <= math.prod(pod) and _balanced(shape)
    ]
    return ["x".join(map(str, shape)) for shape in sorted(shapes3, key=lambda shape: (math.prod(shape), shape[::-1]))]


def _balanced(shape: tuple[int, ...]) -> bool:
    """Parts of a cube of 4, and whole cubes up to twice as long as they are wide."""
    if max(shape) <= 4:
        return shape in {(1, 1, 1), (1, 2, 2), (2, 2, 2), (2, 2, 4), (2, 4, 4), (4, 4, 4)}
    return min(shape) >= 4 and max(shape) <= 2 * min(shape)


def smallest_slice(question: Question, chip: Chip, *, most_chips: int = 4096) -> tuple[str, Fit] | None:
    """The smallest slice on which some plan fits, with that plan; None where none up to ``most_chips`` does."""
    for shape in slices_of(chip):
        chips = math.prod(int(part) for part in shape.split("x"))
        if chips > most_chips:
            break
        if chips * chip.hbm_capacity_bytes < _least_bytes(question):
            continue
        found = best_plan(question, chip, chips)
        if found is not None and found.fits:
            return shape, found
    return None


def _least_bytes(question: Question) -> float:
    """What the weights, and in training the optimizer's states, take at least, over all chips."""
    config = question.config
    dtype = question.options.get("weights_dtype") or config.quantized_dtype or config.dtype
    parameters = count_parameters(config).total
    least = bytes_of(parameters, dtype)
    if question.mode == "train":
        states = question.training.states(config.dtype)
        return least + sum(bytes_of(parameters, kept) for _, kept in states)
    return least if dtype == config.dtype else 0


def largest(question: Question, chip: Chip, plan: Plan | PlacedPlan, what: str) -> int:
    """The largest batch or context that fits under the plan, 0 if not even one does."""
    ways = plan.plan if isinstance(plan, PlacedPlan) else plan
    unit = 1
    if what == "batch":
        # Requests that the 2D axes divide too split the caches over them.
        unit = math.lcm(ways.groups * ways.tensor2, question.microbatches or ways.pipeline)
    elif question.mode == "prefill":
        unit = ways.context

    def holds(count: int) -> bool:
        try:
            return fit(question.with_(**{what: count * unit}), chip, plan).fits
        except (ModelConfigError, LayoutError):
            return False

    if not holds(1):
        return 0
    low, high = 1, 2
    while high * unit <= LARGEST_BATCH * 64 and holds(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low * unit


@dataclass(frozen=True, slots=True)
class Mend:
    """A change that makes it fit, and what is left of the memory then."""

    change: str
    fit: Fit


def mends(question: Question, chip: Chip, plan: Plan | PlacedPlan) -> list[Mend]:
    """Changes that make a step fit that does not, the least first: fewer requests, shorter, narrower, more chips."""
    found: list[Mend] = []

    def tried(change: str, **changes: Any) -> None:
        try:
            held = fit(question.with_(**changes), chip, plan)
        except (ModelConfigError, LayoutError):
            return
        if held.fits:
            found.append(Mend(change, held))

    if question.mode == "train":
        _train_mends(question, tried)
    for what, flag in (("batch", "--batch"), ("context", "--context")):
        most = largest(question, chip, plan, what)
        if most:
            tried(f"{flag} {most}", **{what: most})
    if question.mode != "train":
        tried("--kv-dtype int8", kv_dtype="int8")
    for name, changes in NARROW if question.mode != "train" else ():
        tried(f"--weights-dtype {name}", **changes)
        tried(f"--weights-dtype {name} --kv-dtype int8", kv_dtype="int8", **changes)
    larger = smallest_slice(question, chip)
    if larger is not None:
        shape, held = larger
        found.append(Mend(f"--slice {shape} --plan {held.plan}", held))
    return found


def _train_mends(question: Question, tried: Callable[..., None]) -> None:
    """More recomputed, or fewer sequences at once: what costs time alone."""
    for remat in ("matmuls", "full"):
        if REMATS_BY_MEMORY.index(remat) > REMATS_BY_MEMORY.index(question.training.remat):
            tried(f"--remat {remat}", training=replace(question.training, remat=remat))
    for parts in _divisors(question.batch):
        if parts > max(question.microbatches, 1):
            tried(f"--microbatches {parts}", microbatches=parts)


def planned(question: Question, chip: Chip, slice_shape: str, plan: str, *, slices: int = 1) -> PlacedPlan | Plan:
    """The plan that is asked for on a slice, or the one that leaves the most room there.

    Raises `ModelConfigError` where no plan divides the model over the slice.
    """
    if plan:
        return place(Plan.parse(plan), chip, slice_shape, slices=slices)
    chips = math.prod(int(part) for part in slice_shape.split("x")) * slices if slice_shape else 1
    best = best_plan(question, chip, chips)
    if best is None:
        raise ModelConfigError(
            f"model {question.config.name}: no plan of tensor, tensor2, expert and data ways divides it and "
            f"{question.batch} requests over {chips} chips: give a plan, or another batch"
        )
    return best.plan


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]
