"""Random weights and caches for a step's op graph, cut up for its chips, and the comparison with plain numpy."""

import numpy as np

from simcore.graph.races import check_races
from simcore.graph.unroll import unroll
from simcore.graph.values import execute
from simcore.hardware import Hardware
from simcore.lowering import LoweringOptions, lower
from tests.reference_transformer import Reference
from workloads.experts import ExpertLoad, capacity
from workloads.layers import segments
from workloads.transformer import model_step


class Model:
    """A config with random weights: for each of the op graph's weights an array of its global dimensions."""

    def __init__(self, config, weight_scale=1.0, seed=7):
        self.config, self.rng, self.weight_scale = config, np.random.default_rng(seed), weight_scale
        self.dims = {}
        self.arrays = {}  # name in the op graph -> array, with the repeat's iterations first
        self.where = {}  # layer -> (label, iteration)
        for segment in segments(config):
            for position, label in enumerate(segment.labels):
                for iteration, layer in enumerate(segment.layers(position)):
                    self.where[layer] = (label, iteration)

    def declare(self, ops):
        """Draw an array for each weight, with the model's own number of key-value heads."""
        counts = {node.name: node.count for node in ops.body if hasattr(node, "count")}
        for tensor in ops.tensors.values():
            if tensor.role != "weight" or tensor.name in self.arrays:
                continue
            shape = [self.config.n_kv_heads if d == "K" else ops.sizes[d] for d in tensor.dim_names]
            lead = [counts[tensor.repeat]] if tensor.repeat else []
            self.dims[tensor.name] = tensor.dim_names
            scale = 1.0 if len(shape) < 2 else self.weight_scale * np.prod(shape) ** -0.25
            self.arrays[tensor.name] = self.rng.normal(size=[*lead, *shape]) * scale

    def __call__(self, name, layer=None):
        if layer is None:
            return self.arrays[name]
        label, iteration = self.where[layer]
        full = f"{name}_{label}" if label else name
        array = self.arrays[full][iteration]
        return array.swapaxes(0, 1) if name == "w_v_up" and self.dims[full][0] == "C" else array


def cache_names(config):
    if config.mla is not None:
        return {"latent_cache": (config.mla.kv_lora_rank + config.mla.qk_rope_head_dim,)}
    return dict.fromkeys(("k_cache", "v_cache"), (config.n_kv_heads, config.head_dim))


def in_slots(array, positions, length, seen_from, chips=1):
    """Positions [first, positions) of a cache where they lie in an array of ``length``; NaN elsewhere.

    Of ``chips`` that positions are dealt out over, each has a part of the array.
    """
    slots = np.full((length, *array.shape[1:]), np.nan)
    part = length // chips
    for position in range(max(seen_from, positions - length, 0), positions):
        slots[position % chips * part + position // chips % part] = array[position]
    return slots


def dealt_out(array, chips):
    """Columns (positions) in the order in which chips have them: all of the first chip's, then the second's."""
    return np.concatenate([array[:, chip::chips] for chip in range(chips)], axis=1)


def cut(array, tensor, ops, chip, shape):
    """A chip's shard of a global array, in the shape in which the tasks have it; heads are copied where shared."""
    lead = (slice(None),) if array.ndim > len(tensor.dim_names) else ()
    for axis, dim in enumerate(tensor.dim_names):
        at = axis + len(lead)
        if dim == "K" and array.shape[at] != ops.sizes["K"]:
            array = np.repeat(array, ops.sizes["K"] // array.shape[at], axis=at)
    at = list(ops.mesh.coordinates())[chip]
    return array[(*lead, *tensor.layout.shard_slices(at, ops.sizes, ops.mesh))].reshape(shape).copy()


def check_step(
    config,
    chip,
    mode,
    *,
    context,
    cached=0,
    ring=1,
    plan=None,
    batch=2,
    seeds=2,
    races=True,
    factor=None,
    weight_scale=1.0,
    **options,
):
    """Execute the tasks of a step in random permitted orders and compare logits and caches with the reference.

    Returns the op graph.
    """
    model = Model(config, weight_scale)
    lengths = context if mode == "decode" else cached
    lengths = [lengths] * batch if isinstance(lengths, int) else list(lengths)
    new = 1 if mode == "decode" else context

    def step(**more):
        asked = {"context": context, "cached": cached, "ring": ring, "plan": plan}
        return model_step(config, mode, batch=batch, **asked, **options, **more)

    ops = step()
    model.declare(ops)
    rng = np.random.default_rng(3)
    tokens = rng.integers(0, config.vocabulary_size, size=(batch, new))
    before = [
        [{name: rng.normal(size=(n, *dims)) for name, dims in cache_names(config).items()} for _ in model.where]
        for n in lengths
    ]
    after = [[{name: array.copy() for name, array in layer.items()} for layer in request] for request in before]
    room = capacity(config.moe, batch * new, factor) if factor is not None else None
    reference = Reference(config, model, room)
    expected = reference.forward(tokens, lengths, after)
    if config.moe is not None:
        ops = step(experts=ExpertLoad(capacity_factor=factor, rows=None if factor else tuple(reference.routed)))
    graph = lower(ops, chip, LoweringOptions())
    flat = unroll(graph, Hardware(chip))
    if races:
        check_races(flat)
    shapes = {name: tensor.shape for name, tensor in graph.classes["chip"].tensors.items()}
    given = {}
    positions = np.array([n + np.arange(new) for n in lengths])
    chips, contexts = range(ops.mesh.size), ops.sizes["Cx"]
    for at in chips:
        for name, rows in (("tokens", tokens), ("positions", positions)):
            rows = dealt_out(rows, contexts) if new > 1 else rows
            given[at, name] = cut(rows.astype(float), ops.tensors[name], ops, at, shapes[name])
        for tensor in ops.tensors.values():
            if tensor.role == "weight":
                given[at, tensor.name] = cut(model.arrays[tensor.name], tensor, ops, at, shapes[tensor.name])
            elif tensor.role == "cache":
                given[at, tensor.name] = cut(
                    _cache(model, config, tensor, ops, before, lengths), tensor, ops, at, shapes[tensor.name]
                )
    for seed in range(seeds):
        storage = execute(flat, given, seed=seed)
        for at in chips:
            last = expected[:, None] if "T'" in ops.tensors["logits"].dim_names else expected.reshape(batch, new, -1)
            mine = cut(last, ops.tensors["logits"], ops, at, shapes["logits"])
            np.testing.assert_allclose(storage[at, "logits"], mine, rtol=1e-7, atol=1e-9)
        for tensor in ops.tensors.values():
            if tensor.role == "cache":
                filled = _cache(model, config, tensor, ops, after, [n + new for n in lengths], before, lengths)
                for at in chips:
                    mine = cut(filled, tensor, ops, at, shapes[tensor.name])
                    have = storage[at, tensor.name]
                    if contexts > 1:  # places that are not filled yet may hold anything
                        have = np.where(np.isnan(mine), np.nan, have)
                    np.testing.assert_allclose(have, mine, rtol=1e-7, atol=1e-9)
    return ops


def _cache(model, config, tensor, ops, caches, lengths, older=None, older_lengths=()):
    """A cache of the op graph [iterations, B, S, ..]; what is older stays where nothing new has gone over it."""
    length = ops.sizes[tensor.dim_names[1]]
    layers = {}
    for layer, (label, iteration) in model.where.items():
        base = tensor.name.removesuffix(f"_{label}") if label else tensor.name
        if base in cache_names(config) and tensor.name == (f"{base}_{label}" if label else base):
            layers[iteration] = (layer, base)
    stack = []
    for iteration in sorted(layers):
        layer, base = layers[iteration]
        rows = []
        for request, n in enumerate(lengths):
            chips = ops.sizes["Cx"]
            # What no window shows any more may have been written over.
            shown = {"Sw": config.sliding_window, "Sc": config.attention_chunk}.get(tensor.dim_names[1])
            since = max(n - shown, 0) if chips > 1 and shown else 0
            slots = in_slots(caches[request][layer][base], n, length, since, chips)
            if older is not None:
                old = in_slots(older[request][layer][base], older_lengths[request], length, since, chips)
                slots = np.where(np.isnan(slots), old, slots)
            rows.append(slots)
        stack.append(rows)
    return np.array(stack)
