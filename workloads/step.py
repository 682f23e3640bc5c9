"""What one step of a model is asked to do: requests, positions, chips, formats, experts; checked against the model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from simcore.dtypes import dtype_bits
from simcore.errors import ModelConfigError
from simcore.opgraph.operations import Causal, Kernel
from workloads.config import ModelConfig
from workloads.experts import ExpertLoad, capacity, sent_rows
from workloads.plan import PlacedPlan, Plan
from workloads.rules import Rules


@dataclass(frozen=True, slots=True)
class Step:
    """``new`` positions for each of ``len(cached)`` requests, request r with ``cached[r]`` positions in its cache.

    Parameters
    ----------
    placed : the plan, and which mesh axes carry it.
    causal : whether attention computes the "full" rectangle or may "skip" blocks that no query sees.
    weights_dtype : format of all matrices; "" as the model is stored.
    kv_dtype : format of the cache; "" that of the activations.
    activation_dtype : format of the activations, and with narrower weights of the products; "" the model's.
    experts : how tokens spread over experts.
    absorbed : with a latent cache, whether attention works on the latents; None: wherever something is cached.
    kernel : "flash", or for comparison "naive", which sends all scores through HBM.
    training : nothing is cached, and what a backward pass reads is not written over (see `workloads.training`).
    """

    cached: tuple[int, ...]
    new: int
    placed: PlacedPlan = field(default_factory=lambda: PlacedPlan.unplaced(Plan()))
    causal: Causal = "full"
    weights_dtype: str = ""
    kv_dtype: str = ""
    activation_dtype: str = ""
    experts: ExpertLoad = field(default_factory=ExpertLoad)
    absorbed: bool | None = None
    kernel: Kernel = "flash"
    training: bool = False

    def __post_init__(self) -> None:
        if not self.cached or self.new < 1 or min(self.cached) < 0:
            raise ModelConfigError(
                f"batch {len(self.cached)}, new positions {self.new}, cached {min(self.cached, default=0)}: batch and "
                "new positions are 1 or more, cached ones 0 or more"
            )
        if self.causal not in ("full", "skip"):
            raise ModelConfigError(f"causal {self.causal!r}: full or skip is meant")
        if self.kernel not in ("flash", "naive"):
            raise ModelConfigError(f"kernel {self.kernel!r}: flash or naive is meant")
        if self.kernel == "naive" and len(set(self.cached)) > 1:
            raise ModelConfigError("naive attention is for requests of equal length: use the flash kernel")
        for dtype in (self.weights_dtype, self.kv_dtype, self.activation_dtype):
            if dtype:
                dtype_bits(dtype)

    @property
    def plan(self) -> Plan:
        """Ways of each kind of parallelism."""
        return self.placed.plan

    @property
    def ring(self) -> int:
        """Chips that heads, feed-forward columns and the vocabulary are split over."""
        return self.plan.tensor

    def rules(self, config: ModelConfig) -> Rules:
        """Layouts of the step's tensors."""
        return Rules(self.placed, self.sizes(config))

    @property
    def batch(self) -> int:
        """Requests."""
        return len(self.cached)

    @property
    def tokens(self) -> int:
        """New positions of all requests."""
        return self.batch * self.new

    @property
    def context(self) -> int:
        """The most positions that a request has after the step."""
        return max(self.cached) + self.new

    @property
    def tokens_per_chip(self) -> int:
        """New positions that a chip has: of its group's requests, and where context splits them, of the positions."""
        return self.tokens // self._row_ways

    @property
    def _row_ways(self) -> int:
        return self.plan.groups * (self.plan.context if self.new > 1 else 1)

    def _rows_per_chip(self, config: ModelConfig) -> int:
        moe, factor = config.moe, self.experts.capacity_factor
        assert moe is not None
        if factor is None:
            return self.tokens_per_chip * moe.top_k
        return moe.n_experts * capacity(moe, self.tokens_per_chip, factor)

    def uses_absorbed(self) -> bool:
        """Whether attention works on the latents of a latent cache."""
        return any(self.cached) if self.absorbed is None else self.absorbed

    def activations(self, config: ModelConfig) -> str:
        """Format of the activations."""
        return self.activation_dtype or config.dtype

    def cache_dtype(self, config: ModelConfig) -> str:
        """Format of the cache."""
        return self.kv_dtype or self.activations(config)

    def weight_dtype(self, config: ModelConfig, part: str) -> str:
        """Format of the matrices of a part: "linear", "experts" or "other" (embeddings, routers)."""
        if self.weights_dtype:
            return self.weights_dtype
        quantized = part == "experts" or (part == "linear" and config.quantized_parts == "linear")
        return config.quantized_dtype if config.quantized_dtype and quantized else config.dtype

    def expert_rows(self, config: ModelConfig) -> int:
        """Rows that all experts of a layer compute together."""
        moe = config.moe
        if moe is None:
            return 0
        if self.experts.capacity_factor is None:
            return self.tokens * moe.top_k
        return moe.n_experts * capacity(moe, self.tokens, self.experts.capacity_factor)

    def kv_heads(self, config: ModelConfig) -> int:
        """Key-value heads over all chips: fewer heads than chips are held by several each."""
        k = config.n_kv_heads
        return self.ring if k < self.ring and self.ring % k == 0 else k

    def _places(self, positions: int) -> int:
        """Length of a cache: on each of n chips that positions are dealt out over, room for one in n of them.

        While decoding there is room for two more besides: a window's edge need not be a chip's, and a chip whose turn
        it is not writes to its next place.
        """
        n = self.plan.context
        if n == 1:
            return positions
        return n * (-(-positions // n) + (2 if self.new == 1 else 0))

    def _values_width(self, config: ModelConfig) -> int:
        """Values of a head that attention gives."""
        if config.mla is None:
            return config.head_dim
        return config.mla.kv_lora_rank if self.uses_absorbed() else config.mla.v_head_dim

    def sizes(self, config: ModelConfig) -> dict[str, int]:
        """Dimension -> size, of all the dimensions that blocks use."""
        moe, mla = config.moe, config.mla
        sizes = {
            "B": self.batch, "T": self.new, "T'": 1, "J": 1,
            "D": config.d_model, "N": config.n_heads, "K": self.kv_heads(config), "H": config.head_dim,
            "F": config.d_ff, "V": config.vocabulary_size,
            "S": self._places(self.context),
            "Sw": self._places(min(self.context, config.sliding_window or self.context)),
            "Sc": self._places(min(self.context, config.attention_chunk or self.context)),
            "Cx": self.plan.context, "Hs": self._values_width(config) + 1,
            "P": max(config.learned_positions, 1), "St": 2, "Ls": 3, "Vx": self.plan.tensor,
        }  # fmt: skip
        if moe is not None:
            sizes |= {"E": moe.n_experts, "Fe": moe.d_ff_expert, "Fs": max(moe.shared_d_ff, 1)}
            sizes["R"] = self._row_ways * self._rows_per_chip(config)
            if self.plan.expert > 1 and self.experts.capacity_factor is not None:
                room = capacity(moe, self.tokens_per_chip, self.experts.capacity_factor)
                sizes["Rc"] = self._row_ways * room
            elif self.plan.expert > 1:
                each = sent_rows(moe, self.tokens_per_chip, self.plan.expert, self.experts.imbalance)
                sizes |= {"Ez": self.plan.expert, "Rz": self._row_ways * each}
        if mla is not None:
            sizes |= {
                "Q": mla.q_lora_rank or 1, "C": mla.kv_lora_rank, "O": mla.qk_rope_head_dim,
                "W": mla.kv_lora_rank + mla.qk_rope_head_dim, "Hn": mla.qk_nope_head_dim, "Hv": mla.v_head_dim,
            }  # fmt: skip
        return sizes


def lengths(batch: int | None, context: int | Sequence[int]) -> tuple[int, ...]:
    """The cached positions of each request: a length for each, or one for all ``batch`` of them."""
    if isinstance(context, int):
        return (context,) * (1 if batch is None else batch)
    if batch is not None and batch != len(context):
        raise ModelConfigError(f"batch {batch}, but {len(context)} context lengths: give one a request, or one for all")
    return tuple(context)


def check_step(config: ModelConfig, step: Step) -> list[str]:
    """Notes on what is assumed. Raises `ModelConfigError` for what is not modelled or does not divide."""
    notes = list(config.assumptions)
    _check_blocks(config, step)
    check_ring(config, step.ring)
    check_plan(config, step)
    notes += step.placed.notes
    if config.learned_positions and step.context > config.learned_positions:
        raise ModelConfigError(
            f"model {config.name}: {step.context} positions, and its table of learned positions has "
            f"{config.learned_positions}"
        )
    if config.max_positions is not None and step.context > config.max_positions:
        notes.append(f"{step.context} positions are more than the model's maximum of {config.max_positions}")
    if step.kv_heads(config) > config.n_kv_heads and config.mla is None:
        copies = step.ring // config.n_kv_heads
        notes.append(f"{config.n_kv_heads} key-value heads on {step.ring} chips: each head is held {copies} times")
    narrow = {step.weight_dtype(config, part) for part in ("linear", "experts")} - {step.activations(config)}
    if narrow:
        notes.append(f"{', '.join(sorted(narrow))} weights are widened to {step.activations(config)} at no cost")
    if config.moe is not None:
        notes.append("routing is a softmax over the chosen experts, whatever the model's own scoring")
    if config.mla is not None:
        how = "on the latents (absorbed)" if step.uses_absorbed() else "on keys and values rebuilt from the latents"
        notes.append(f"attention works {how}; every chip holds the whole latent cache")
    if config.model_type == "olmo2" or (config.model_type == "opt" and not config.final_norm):
        notes.append("norms are modelled before the blocks")
    return notes


def _check_blocks(config: ModelConfig, step: Step) -> None:
    if config.norms_per_layer not in (1, 2, 4) or (config.norms_per_layer == 1) > config.parallel_block:
        raise ModelConfigError(
            f"model {config.name}: {config.norms_per_layer} norms a layer"
            f"{' with' if config.parallel_block else ' without'} parallel blocks are not modelled: 2, 4 (after the "
            "blocks too), or 1 with parallel blocks"
        )
    if config.parallel_block and config.norms_per_layer == 4:
        raise ModelConfigError(f"model {config.name}: norms after parallel blocks are not modelled")
    if config.mla is not None and config.has_window:
        raise ModelConfigError(f"model {config.name}: a latent cache with windows is not modelled")
    if step.absorbed is False and any(step.cached):
        raise ModelConfigError("attention that is not absorbed would rebuild the cached keys: only without a cache")


def _split_sizes(config: ModelConfig) -> Mapping[str, int]:
    sizes = {"query heads": config.n_heads, "vocabulary rows": config.vocabulary_size}
    if config.mla is None:
        sizes["key-value heads"] = config.n_kv_heads
    if config.moe is None or len(config.moe.layers) < config.n_layers:
        sizes["feed-forward columns"] = config.d_ff
    if config.moe is not None:
        sizes["expert columns"] = config.moe.d_ff_expert
        if config.moe.shared_d_ff:
            sizes["shared expert columns"] = config.moe.shared_d_ff
    return sizes


def check_ring(config: ModelConfig, ring: int) -> None:
    """Raise `ModelConfigError` if the model does not divide over ``ring`` chips, naming what would."""
    if ring < 1:
        raise ModelConfigError(f"a ring of {ring} chips: 1 or more is meant")
    sizes = _split_sizes(config)

    def divides(what: str, n: int) -> bool:
        size = sizes[what]
        return size % n == 0 or (what == "key-value heads" and n % size == 0)

    for what, size in sizes.items():
        if not divides(what, ring):
            most = min(math.gcd(*(size for what, size in sizes.items() if what != "key-value heads")), 4096)
            fitting = [n for n in range(1, most + 1) if all(divides(what, n) for what in sizes)]
            raise ModelConfigError(
                f"model {config.name}: {size} {what} do not divide over a ring of {ring}; "
                f"rings of {', '.join(map(str, fitting))} do"
            )


def check_plan(config: ModelConfig, step: Step) -> None:
    """Raise `ModelConfigError` for a plan that the step does not divide over, naming what would."""
    plan = step.plan
    if plan.pipeline > 1:
        raise ModelConfigError(f"plan {plan}: pipeline stages have programs of their own: see workloads.stages")
    for what, size, ways, kinds in (
        ("requests", step.batch, plan.groups, "data x fsdp x expert"),
        ("model width", config.d_model, plan.tensor2, "tensor2"),
    ):
        if size % ways:
            raise ModelConfigError(
                f"model {config.name}: {size} {what} do not divide over {kinds} = {ways}: a multiple of {ways} would"
            )
    if plan.expert > 1 and config.moe is None:
        raise ModelConfigError(f"plan {plan}: model {config.name} has no experts to split over expert = {plan.expert}")
    if plan.expert > 1 and config.moe is not None:
        if config.moe.n_experts % plan.expert:
            raise ModelConfigError(
                f"model {config.name}: {config.moe.n_experts} experts do not divide over expert = {plan.expert}: "
                f"a divisor of {config.moe.n_experts} would"
            )
        if step.experts.rows is not None:
            raise ModelConfigError("rows of a real router with expert > 1: give a capacity factor instead")
    if config.moe is not None and plan.context > 1 and step.new > 1 and plan.expert > 1:
        raise ModelConfigError(f"plan {plan}: context and expert together are for decoding")
    per_group = step.batch // plan.groups
    if step.cached[:per_group] * plan.groups != step.cached:
        raise ModelConfigError(
            f"{plan.groups} groups of chips run one program: give each the same {per_group} lengths, in the same order"
        )
    if plan.context > 1 and step.kernel == "naive":
        raise ModelConfigError("naive attention has all positions of its requests: context needs the flash kernel")
    if plan.context > 1 and step.new > 1:
        if any(step.cached):
            raise ModelConfigError("a chunk of a prompt with context > 1: only from an empty cache")
        if len(step.placed.of("context")) > 1:
            raise ModelConfigError(
                f"context = {plan.context} lies on several axes, and keys go round a ring: lay it on one axis (map)"
            )
    if step.new > 1 and step.new % plan.context:
        raise ModelConfigError(
            f"{step.new} new positions do not divide over context = {plan.context}: a multiple of it would"
        )
