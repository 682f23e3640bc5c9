"""A training step executed on numpy, and the loss of the plain model whose gradients it must give."""

import numpy as np

from simcore.graph.races import check_races
from simcore.graph.unroll import unroll
from simcore.graph.values import execute
from simcore.hardware import Hardware
from simcore.lowering import lower
from tests.reference_transformer import Reference
from tests.values import Model, cache_names, cut
from workloads.training import TrainingOptions, training_step

RATE = 0.5


class Trained:
    """The weights before and after a step, and the loss, of a plan's chips; all hold the same, which is checked."""

    def __init__(self, config, chip, *, batch=4, context=6, plan=None, remat="none", optimizer="sgd", seed=0,
                 races=False, lowering=None, **more):  # fmt: skip
        settings = {"learning_rate": RATE} if optimizer == "sgd" else {}
        options = TrainingOptions(remat=remat, optimizer=optimizer, settings=settings, **more)
        self.ops = ops = training_step(config, batch=batch, context=context, plan=plan, options=options)
        self.config, self.model = config, Model(config)
        self.model.declare(ops)
        self.graph = lower(ops, chip, lowering)
        flat = unroll(self.graph, Hardware(chip))
        if races:
            check_races(flat)
        rng = np.random.default_rng(5)
        self.tokens, self.targets = rng.integers(0, config.vocabulary_size, size=(2, batch, context))
        self.storage = execute(flat, self._given(), seed=seed)
        self.before = self.model.arrays
        self.after = {name: self._whole(name) for name in self.before}
        self.loss = self._whole("loss").mean()

    def _given(self):
        shapes = {name: tensor.shape for name, tensor in self.graph.classes["chip"].tensors.items()}
        positions = np.tile(np.arange(self.tokens.shape[1]), (len(self.tokens), 1))
        rows = {"tokens": self.tokens, "targets": self.targets, "positions": positions}
        given = {}
        for at in range(self.ops.mesh.size):
            for tensor in self.ops.tensors.values():
                name, role = tensor.name, tensor.role
                if name in rows:
                    array = rows[name].astype(float)
                elif role == "weight":
                    array = self.model.arrays[name]
                elif role == "state":
                    array = self.model.arrays[name.split("_", 1)[1]] if name.startswith("master_") else None
                    if array is None:
                        array = 0 * self.model.arrays[name.split("_moment_", 1)[1]]
                else:
                    continue
                given[at, name] = cut(array, tensor, self.ops, at, shapes[name])
        return given

    def _whole(self, name):
        """A tensor put together from the chips' shards; chips that have the same part must have the same values."""
        ops, tensor = self.ops, self.ops.tensors[name]
        lead = self.before[name].shape[: -len(tensor.dim_names)] if name in self.model.arrays else ()
        whole = np.full([*lead, *(ops.sizes[dim] for dim in tensor.dim_names)], np.nan)
        for at, coordinates in enumerate(ops.mesh.coordinates()):
            where = (*(slice(None) for _ in lead), *tensor.layout.shard_slices(coordinates, ops.sizes, ops.mesh))
            mine = self.storage[at, name].reshape(whole[where].shape)
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
