"""A training step executed on numpy, and the loss of the plain model whose gradients it must give."""

import re

import numpy as np

from simcore.graph.races import check_races
from simcore.graph.unroll import unroll
from simcore.graph.values import execute
from simcore.hardware import Hardware
from tests.reference_transformer import Reference
from tests.values import Model, cache_names, cut
from workloads.stages import layer_ranges
from workloads.training import TrainingOptions, lowered_training, training_step
from workloads.transformer import placed_plan

RATE = 0.5


class Trained:
    """The weights before and after a step, and the loss, of a plan's chips; all hold the same, which is checked."""

    def __init__(self, config, chip, *, batch=4, context=6, plan=None, remat="none", optimizer="sgd", seed=0,
                 races=False, lowering=None, **more):  # fmt: skip
        settings = {"learning_rate": RATE} if optimizer == "sgd" else {}
        options = TrainingOptions(remat=remat, optimizer=optimizer, **{"settings": settings, **more})
        asked = {"batch": batch, "context": context, "options": options}
        self.config, self.model = config, Model(config)
        self.model.declare(training_step(config, **{**asked, "options": TrainingOptions()}))
        placed = placed_plan(plan)
        self.graph, self.stages = lowered_training(config, chip, plan=placed, lowering=lowering, **asked)
        self.chunks = options.runs
        self.ranges = layer_ranges(config.n_layers, len(self.stages) * self.chunks)
        flat = unroll(self.graph, Hardware(chip))
        if races:
            check_races(flat)
        rng = np.random.default_rng(5)
        self.tokens, self.targets = rng.integers(0, config.vocabulary_size, size=(2, batch, context))
        self.storage = execute(flat, self._given(), seed=seed)
        self.before = self.model.arrays
        self.after = {name: self._weight(name) for name in self.before}
        losses = [name for name in self.stages[-1].tensors if re.fullmatch(r"loss(_m\d+)?", name)]
        self.loss = np.mean([self._whole(len(self.stages) - 1, name).mean() for name in losses])

    def _given(self):
        rows = {"tokens": self.tokens, "targets": self.targets}
        rows["positions"] = np.tile(np.arange(self.tokens.shape[1]), (len(self.tokens), 1))
        given = {}
        for stage, ops in enumerate(self.stages):
            cls = list(self.graph.classes.values())[stage]
            shapes = {name: tensor.shape for name, tensor in cls.tensors.items()}
            for tensor in ops.tensors.values():
                array = self._array(tensor, rows, stage, ops)
                if array is None:
                    continue
                for at in range(ops.mesh.size):
                    mine = cut(array, tensor, ops, at, shapes[tensor.name])
                    given[stage * ops.mesh.size + at, tensor.name] = mine
        return given

    def _array(self, tensor, rows, stage, ops):
        name, _, part = tensor.name.partition("_m")
        if tensor.role == "input" and name in rows:  # of a microbatch
            each = ops.sizes["B"]
            return rows[name][int(part or 0) * each : (int(part or 0) + 1) * each].astype(float)
        if tensor.role not in ("weight", "state"):
            return None
        weight, scale = tensor.name, 1.0
        if tensor.role == "state":
            what = next(what for what in ("master_", "first_moment_", "second_moment_") if weight.startswith(what))
            weight, scale = weight.removeprefix(what), float(what == "master_")
        return scale * self._of_stage(ops.tensors[weight], stage)

    def _of_stage(self, tensor, stage):
        """What a stage has of a weight: the layers of its run or, of a chunk's weight ("w_gate_c1"), of that chunk."""
        name, chunk = self._of_chunk(tensor.name)
        first, count = self.ranges[chunk * len(self.stages) + stage]
        array = self.model.arrays[name]
        return array[first : first + count] if tensor.repeat and len(self.stages) > 1 else array

    def _of_chunk(self, name):
        found = re.fullmatch(r"(\w+)_c(\d+)", name) if self.chunks > 1 else None
        return (found[1], int(found[2])) if found else (name, 0)

    def _weight(self, name):
        names = [f"{name}_c{chunk}" for chunk in range(self.chunks)] if self.chunks > 1 else []
        parts = [
            self._whole(stage, one)
            for one in (name, *names)
            for stage, ops in enumerate(self.stages)
            if one in ops.tensors
        ]
        return np.concatenate(parts) if len(parts) > 1 else parts[0]

    def _whole(self, stage, name):
        """A tensor put together from the chips' shards; chips that have the same part must have the same values."""
        ops = self.stages[stage]
        tensor = ops.tensors[name]
        lead = ()
        if tensor.role == "weight" and tensor.repeat:
            lead = (len(self._of_stage(tensor, stage)),)
        whole = np.full([*lead, *(ops.sizes[dim] for dim in tensor.dim_names)], np.nan)
        for at, coordinates in enumerate(ops.mesh.coordinates()):
            where = (*(slice(None) for _ in lead), *tensor.layout.shard_slices(coordinates, ops.sizes, ops.mesh))
            mine = self.storage[stage * ops.mesh.size + at, name].reshape(whole[where].shape)
            assert not np.isnan(mine).any(), name
            have = whole[where]
            np.testing.assert_allclose(np.where(np.isnan(have), mine, have), mine, rtol=1e-9, atol=1e-12)
            whole[where] = mine
        return whole

    @property
    def gradients(self):
        """What a step of plain descent went back along."""
        return {name: (self.before[name] - self.after[name]) / RATE for name in self.before}

    def plain_loss(self, arrays):
        """The mean cross-entropy of the plain model with these weights."""
        model = Model(self.config)
        model.dims, model.arrays = self.model.dims, arrays
        reference = Reference(self.config, model)
        caches = [
            [{name: np.zeros((0, *dims)) for name, dims in cache_names(self.config).items()} for _ in model.where]
            for _ in self.tokens
        ]
        logits = reference.forward(self.tokens, [0] * len(self.tokens), caches, every=True)
        logits = logits - logits.max(axis=-1, keepdims=True)
        log = np.log(np.exp(logits).sum(axis=-1))
        return (log - np.take_along_axis(logits, self.targets[..., None], axis=-1)[..., 0]).mean()

    def check_gradients(self, directions=2, step=1e-6):
        """Along random directions of each weight, the gradients agree with differences of the plain loss."""
        rng = np.random.default_rng(11)
        np.testing.assert_allclose(self.loss, self.plain_loss(self.before), rtol=1e-9)
        for name, gradient in self.gradients.items():
            for _ in range(directions):
                direction = rng.normal(size=gradient.shape)
                there, back = (
                    self.plain_loss({**self.before, name: self.before[name] + sign * step * direction})
                    for sign in (1, -1)
                )
                expected = (there - back) / (2 * step)
                np.testing.assert_allclose((gradient * direction).sum(), expected, rtol=2e-5, atol=2e-8, err_msg=name)
