"""A decoder-only Transformer as an op graph: one step of any model, under any plan.

Dimensions: B requests, T new positions of each, D model, N query heads, K key-value heads, H head, F feed-forward,
V vocabulary, S positions of the cache; those of experts and of latent attention are in `workloads.step`. How they are
split follows from the plan (`workloads.rules`), and the collectives from that: where heads and columns are split
(Megatron's tensor parallelism), each block ends in partial sums and an AllReduce.

Source of that split: Shoeybi et al. 2019, and How To Scale Your Model, "All the Transformer Math You Need to Know".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from simcore.errors import ModelConfigError, nearest
from simcore.layout import Mesh, parse_tensor
from simcore.opgraph import OpGraph, ShardedTensor
from simcore.opgraph.operations import Causal
from workloads.blocks.builder import Builder
from workloads.blocks.layer import layer
from workloads.config import ModelConfig
from workloads.experts import expected_distinct_experts, expert_groups
from workloads.layers import segments
from workloads.plan import PlacedPlan, Plan
from workloads.step import Step, check_ring, check_step, lengths

__all__ = ["MODES", "check_ring", "decode_step", "model_step", "prefill", "step_graph"]

Mode = Literal["decode", "prefill"]
MODES: tuple[str, ...] = ("decode", "prefill")


def model_step(
    config: ModelConfig,
    mode: str,
    *,
    context: int | Sequence[int],
    batch: int | None = None,
    cached: int | Sequence[int] = 0,
    ring: int = 1,
    plan: Plan | PlacedPlan | str | None = None,
    causal: Causal | None = None,
    **options: Any,
) -> OpGraph:
    """One step of a model as an op graph whose notes say what was assumed.

    Parameters
    ----------
    mode : "decode", one new token for each request with ``context`` positions in its cache; or "prefill", ``context``
        new positions for each, after ``cached`` ones (a chunk of a longer prompt), and logits of the last alone.
    context, cached : positions of each request, or one number for all ``batch`` of them. New positions are the same
        for all requests.
    plan : how the model is spread over chips; ``ring`` chips of a ring are short for ``tensor=ring``.
    causal : "full" computes whole rectangles of scores, "skip" leaves out blocks that no query sees; by default
        decoding has nothing to skip and prefill skips.
    options : the further fields of `workloads.step.Step` (formats, experts, absorbed).

    Raises `ModelConfigError` for what is not modelled, or sizes that do not divide over the chips.
    """
    step = step_of(
        config, mode, context=context, batch=batch, cached=cached, ring=ring, plan=plan, causal=causal, **options
    )
    return step_graph(config, step, name="decode_step" if mode == "decode" else "prefill")


def step_of(
    config: ModelConfig,
    mode: str,
    *,
    context: int | Sequence[int],
    batch: int | None = None,
    cached: int | Sequence[int] = 0,
    ring: int = 1,
    plan: Plan | PlacedPlan | str | None = None,
    causal: Causal | None = None,
    **options: Any,
) -> Step:
    """The step that `model_step` makes a graph of, with the same arguments and errors."""
    if mode not in MODES:
        raise ModelConfigError(f"mode {mode!r}: {nearest(mode, MODES)}")
    if mode == "decode":
        if isinstance(cached, int) and cached == 0:
            cached, new = context, 1
        else:
            raise ModelConfigError("decode: give the cached positions as context")
    elif isinstance(context, int):
        new = context
    else:
        raise ModelConfigError("prefill: every request has the same number of new positions; give one context")
    known = set(Step.__dataclass_fields__) - {"cached", "new", "placed", "causal"}
    for option in options:
        if option not in known:
            raise ModelConfigError(f"unknown option {option!r}: {nearest(option, known)}")
    rectangles: Causal = causal or ("full" if mode == "decode" else "skip")
    return Step(lengths(batch, cached), new, placed_plan(plan, ring), rectangles, **options)


def decode_step(
    config: ModelConfig, *, batch: int | None = None, context: int | Sequence[int], ring: int = 1, **options: Any
) -> OpGraph:
    """One new token for each request; ``context`` positions are in its cache. See `model_step`."""
    return model_step(config, "decode", batch=batch, context=context, ring=ring, **options)


def prefill(
    config: ModelConfig,
    *,
    batch: int | None = None,
    context: int,
    ring: int = 1,
    causal: Causal = "skip",
    cached: int | Sequence[int] = 0,
    **options: Any,
) -> OpGraph:
    """``context`` new positions for each request, caches filled, logits of the last position. See `model_step`."""
    return model_step(
        config, "prefill", batch=batch, context=context, ring=ring, causal=causal, cached=cached, **options
    )


def placed_plan(plan: Plan | PlacedPlan | str | None, ring: int = 1) -> PlacedPlan:
    """A plan with mesh axes: as it is placed, or each kind on a ring of its own.

    Raises `ModelConfigError` where a ring is given besides.
    """
    if plan is None or plan == "":
        if ring < 1:
            raise ModelConfigError(f"a ring of {ring} chips: 1 or more is meant")
        return PlacedPlan.unplaced(Plan(tensor=ring))
    if ring != 1:
        raise ModelConfigError(f"ring {ring} and plan {plan}: give one of them (a ring of n is tensor=n)")
    if isinstance(plan, str):
        plan = Plan.parse(plan)
    return plan if isinstance(plan, PlacedPlan) else PlacedPlan.unplaced(plan)


def step_graph(config: ModelConfig, step: Step, name: str = "step") -> OpGraph:
    """The op graph of a step that is given whole. Raises `ModelConfigError` as `model_step` does."""
    g = empty_graph(config, step, name)
    x = embed(g, config, step)
    through_layers(g, config, step, x)
    predict(g, config, step, x)
    return g


def empty_graph(config: ModelConfig, step: Step, name: str) -> OpGraph:
    """An op graph of the step's sizes and mesh, with notes on what is assumed."""
    notes = check_step(config, step)
    g = OpGraph(name, Mesh.of(step.placed.sizes), step.sizes(config), dtype=step.activations(config))
    g.notes += [*notes, *_notes(config, step)]
    return g


def _builder(g: OpGraph, config: ModelConfig, step: Step, piece: str = "") -> Builder:
    """A builder outside the layers; ``piece`` ends the names of all but weights, for microbatches."""
    rules = step.rules(config)
    rows = rules.complete if config.learned_positions else rules.heads
    name = f"positions_{piece}" if piece else "positions"
    positions = g.tensors.get(name)
    if positions is None:
        positions = g.input(str(rows(parse_tensor(f"{name}[B, T]"))), dtype="int32", rows=2)
    return Builder(g, config, step, rules, positions, piece=piece)


def embed(g: OpGraph, config: ModelConfig, step: Step, piece: str = "") -> ShardedTensor:
    """The residual ``x[B, T, D]`` of the tokens."""
    b = _builder(g, config, step, piece)
    spec = parse_tensor(b.named("tokens[B, T]"))
    tokens = g.input(str(b.rules.complete(spec)), dtype="int32", rows=2)
    embedding = b.weight("embedding[V, D]", "other")
    x = b.residual(g.lookup(b.named("x"), b.gathered(embedding, rows=1), tokens))
    if config.learned_positions:
        table = b.gathered(b.weight("position_table[P, D]", "other"), rows=1)
        learned = g.lookup(b.named("learned_positions"), table, b.positions)
        g.add(b.named("with_positions"), x, b.residual(learned), into=x)
    return x


def predict(g: OpGraph, config: ModelConfig, step: Step, x: ShardedTensor, piece: str = "") -> None:
    """The logits of the last position."""
    b = _builder(g, config, step, piece)
    last = x if step.new == 1 else g.take_last(b.named("last"), b.whole(x, "T"), "T", "T'")
    if config.final_norm:
        last = b.norm("final_norm", last)
    head = b.weight("embedding[V, D]" if config.tied_embeddings else "lm_head[D, V]", "other")
    b.complete(b.product(b.named("logits"), last, head, bias="b_lm_head[V]" if config.lm_head_bias else ""))


def through_layers(
    g: OpGraph,
    config: ModelConfig,
    step: Step,
    x: ShardedTensor,
    *,
    first: int = 0,
    piece: str = "",
    chunk: str = "",
) -> None:
    """All layers of ``config``, which are the model's from number ``first`` on; ``x`` is changed in place.

    ``chunk`` tells the weights of several such runs of layers apart.
    """
    b = _builder(g, config, step, piece)
    moe = config.moe
    for segment in segments(config):
        stack = f"{segment.name} {chunk}" if chunk else segment.name
        name = f"{stack} {piece}" if piece else stack
        labels = ["_".join(filter(None, (label, chunk))) for label in segment.labels]
        with g.repeat(name, segment.count, first_layer=first + segment.first, layers=segment.period, stack=stack):
            for position, (kind, label) in enumerate(zip(segment.kinds, labels, strict=True)):
                if position:
                    g.next_layer()
                groups = None
                if kind.moe and moe is not None:
                    numbers = [moe.layers.index(at) for at in segment.layers(position)]
                    groups = expert_groups(moe, step.tokens_per_chip, step.experts, numbers)
                layer(Builder(g, config, step, b.rules, b.positions, kind, label, groups, piece), x)


def _notes(config: ModelConfig, step: Step) -> list[str]:
    """What the step assumes of experts and requests."""
    notes = []
    moe = config.moe
    if moe is not None and step.experts.capacity_factor is not None:
        rows = step.expert_rows(config) // moe.n_experts
        notes.append(f"all {moe.n_experts} experts compute {rows} rows each; tokens beyond are left out")
    elif moe is not None and step.experts.rows is None:
        expected = expected_distinct_experts(moe, step.tokens, step.experts.imbalance)
        hit = max(round(expected), moe.top_k)
        notes.append(
            f"{step.tokens} tokens use {hit} different experts of {moe.n_experts} in a layer: {expected:.2f} expected, "
            f"the sum of 1 - (1 - p)^{step.tokens} with p = {moe.top_k}/{moe.n_experts} on average and "
            f"{step.experts.imbalance:g} times that for the fullest; no token is dropped"
        )
    if len(set(step.cached)) > 1:
        notes.append(f"{step.batch} requests with {sum(step.cached)} cached positions in all")
    return notes
