"""Layers of different kinds, put together as repeats: 3 dense and 58 with experts, or 7 times (sliding, full)."""

from __future__ import annotations

from dataclasses import dataclass

from simcore.opgraph import View
from workloads.config import LayerAttention, ModelConfig

LONGEST_PERIOD = 16


@dataclass(frozen=True, slots=True)
class LayerKind:
    """What tells one layer of a model from another."""

    attention: LayerAttention
    moe: bool

    def view(self, config: ModelConfig) -> View:
        """Which positions its attention sees."""
        if self.attention == "sliding":
            return View(window=config.sliding_window)
        return View(chunk=config.attention_chunk) if self.attention == "chunked" else View()


@dataclass(frozen=True, slots=True)
class Segment:
    """``count`` repetitions of a body of layers, of which the first is layer number ``first``.

    ``labels`` tell the tensors and operations of the layers of a model's bodies apart; "" where there is but one.
    """

    first: int
    count: int
    kinds: tuple[LayerKind, ...]
    labels: tuple[str, ...] = ()

    @property
    def period(self) -> int:
        """Layers in the body."""
        return len(self.kinds)

    @property
    def name(self) -> str:
        """Of its loop."""
        return "layer" if self.labels == ("",) else f"layers from {self.first}"

    def layers(self, position: int) -> list[int]:
        """The layers of the model that the body's layer at ``position`` stands for, one an iteration."""
        return [self.first + iteration * self.period + position for iteration in range(self.count)]


def segments(config: ModelConfig) -> tuple[Segment, ...]:
    """The model's layers as repeats: from each layer on, the period that covers most (the shortest of equals)."""
    kinds = [LayerKind(config.attention_pattern[i], config.is_moe_layer(i)) for i in range(config.n_layers)]
    found: list[Segment] = []
    at = 0
    while at < len(kinds):
        covers = []
        for period in range(1, min(LONGEST_PERIOD, len(kinds) - at) + 1):
            end = at + period
            while end < len(kinds) and kinds[end] == kinds[end - period]:
                end += 1
            count = (end - at) // period
            if count > 1 or period == 1:
                covers.append((count * period, -period))
        covered, negative = max(covers)
        found.append(Segment(at, covered // -negative, tuple(kinds[at : at - negative])))
        at += covered
    return _labelled(found)


def _labelled(found: list[Segment]) -> tuple[Segment, ...]:
    bodies = [kind for segment in found for kind in segment.kinds]
    attention_varies = len({kind.attention for kind in bodies}) > 1
    experts_vary = len({kind.moe for kind in bodies}) > 1

    def word(kind: LayerKind) -> str:
        attention: list[str] = [kind.attention] if attention_varies else []
        return "_".join(attention + ["moe" if kind.moe else "dense"] * experts_vary)

    words = [word(kind) for kind in bodies]
    numbered = [
        word if words.count(word) == 1 else f"{word}{words[:at].count(word) + 1}" for at, word in enumerate(words)
    ]
    labels = iter(numbered)
    return tuple(
        Segment(segment.first, segment.count, segment.kinds, tuple(next(labels) for _ in segment.kinds))
        for segment in found
    )
