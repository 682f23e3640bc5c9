"""The keys of one Hugging Face config file, read by the name of the figure they give, with errors that name the keys.

`Keys` knows aliases and types. It does not know families: what a figure means where it is absent is said by
the caller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from simcore.errors import ModelConfigError
from workloads.config import MAX_LAYERS, MAX_SIZE

ALIASES: dict[str, tuple[str, ...]] = {
    "n_layers": ("num_hidden_layers", "n_layer"),
    "d_model": ("hidden_size", "n_embd", "d_model", "n_embed"),
    "n_heads": ("num_attention_heads", "n_head"),
    "n_kv_heads": ("num_key_value_heads", "num_kv_heads"),
    "head_dim": ("head_dim",),
    "d_ff": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"),
    "d_ff_dense": ("intermediate_size_mlp",),
    "vocabulary_size": ("vocab_size",),
    "max_positions": ("max_position_embeddings", "n_positions"),
    "activation": ("hidden_act", "hidden_activation", "activation_function", "activation"),
    "tied_embeddings": ("tie_word_embeddings",),
    "dtype": ("dtype", "torch_dtype"),
    "n_experts": ("n_routed_experts", "num_experts", "num_local_experts"),
    "top_k": ("num_experts_per_tok", "experts_per_token", "top_k_experts"),
    "d_ff_expert": ("moe_intermediate_size",),
    "n_shared_experts": ("n_shared_experts",),
    "shared_d_ff": ("shared_expert_intermediate_size",),
    "n_groups": ("n_group",),
    "top_k_groups": ("topk_group",),
    "sliding_window": ("sliding_window",),
    "attention_chunk": ("attention_chunk_size",),
    "n_mtp_layers": ("num_nextn_predict_layers", "num_mtp_layers"),
}
"""Figure of the model spec -> the keys that may hold it; the first that is there and not null wins."""

OUTSIDE = ("tie_word_embeddings", "dtype", "torch_dtype", "quantization_config")
"""Keys that a multimodal file may have beside its text_config and not in it."""

MISSING: Any = object()


@dataclass(slots=True)
class Keys:
    """The language model's keys of one file; ``notes`` collects a sentence for every figure filled in."""

    where: str
    family: str
    values: Mapping[str, Any]
    defaults: Mapping[str, Any]
    notes: list[str] = field(default_factory=list)

    def find(self, figure: str) -> tuple[str, Any] | None:
        """The key that gives ``figure`` and its value (None if only null was given), or None if absent."""
        null: tuple[str, Any] | None = None
        for key in ALIASES.get(figure, (figure,)):
            if key in self.values:
                if self.values[key] is not None:
                    return key, self.values[key]
                null = null or (key, None)
        return null

    def integer(self, figure: str, default: Any = MISSING, least: int = 1, because: str = "") -> int:
        """A whole number. Absent: the family's default, else ``default``, else an error with the keys."""
        found = self.optional_integer(figure, least)
        if found is not None:
            return found
        if default is MISSING:
            raise self._missing(figure)
        self.notes.append(f"{figure} {default}: {self._why(figure)}{f', so {because}' if because else ''}")
        return int(default)

    def optional_integer(self, figure: str, least: int = 1) -> int | None:
        """A whole number or None. An explicit null is None even where the family has a default."""
        entry = self.find(figure)
        if entry is None:
            if self.defaults.get(figure) is None:
                return None
            self.notes.append(
                f"{figure} {self.defaults[figure]}: {self._why(figure)}, so the default of {self.family} holds"
            )
            return int(self.defaults[figure])
        key, value = entry
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong(key, "a whole number", value)
        most = MAX_LAYERS if figure == "n_layers" else MAX_SIZE
        if not least <= value <= most:
            raise ModelConfigError(f"{self.where}: {key} must be between {least} and {most:,}, got {short(value)}")
        return value

    def flag(self, figure: str, default: bool) -> bool:
        """True or false; absent or null: ``default``, noted."""
        entry = self.find(figure)
        if entry is None or entry[1] is None:
            value = bool(self.defaults.get(figure, default))
            self.notes.append(
                f"{figure} {str(value).lower()}: {self._why(figure)}, so the default of {self.family} holds"
            )
            return value
        if not isinstance(entry[1], bool):
            raise self.wrong(entry[0], "true or false", entry[1])
        return entry[1]

    def text(self, figure: str, default: str) -> str:
        """A string; absent or null: ``default``, noted."""
        entry = self.find(figure)
        if entry is None or entry[1] is None:
            self.notes.append(f"{figure} {default}: {self._why(figure)}, so the default of {self.family} holds")
            return default
        if not isinstance(entry[1], str):
            raise self.wrong(entry[0], "a string", entry[1])
        return entry[1]

    def integers(self, key: str) -> list[int] | None:
        """A list of whole numbers, or None if absent or null."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or any(isinstance(x, bool) or not isinstance(x, int) for x in value):
            raise self.wrong(key, "a list of whole numbers", value)
        return value

    def strings(self, key: str) -> list[str] | None:
        """A list of strings, or None if absent or null."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or any(not isinstance(x, str) for x in value):
            raise self.wrong(key, "a list of strings", value)
        return value

    def wrong(self, key: str, wanted: str, value: object) -> ModelConfigError:
        """The error for a value of the wrong type."""
        return ModelConfigError(f"{self.where}: {key} must be {wanted}, got {short(value)}")

    def _why(self, figure: str) -> str:
        entry = self.find(figure)
        if entry is not None:
            return f"{entry[0]} is null"
        return f"the file has no {' or '.join(ALIASES.get(figure, (figure,)))}"

    def _missing(self, figure: str) -> ModelConfigError:
        entry = self.find(figure)
        looked_for = " or ".join(ALIASES.get(figure, (figure,)))
        if entry is not None:
            return ModelConfigError(f"{self.where}: {entry[0]} is null, but a {self.family} model needs it ({figure})")
        return ModelConfigError(f"{self.where}: {figure} is missing: a {self.family} config gives it as {looked_for}")


def short(value: object) -> str:
    """``value`` on one line, cut where it is long."""
    try:
        text = repr(value)
    except ValueError:  # an integer of thousands of digits
        return "a number of thousands of digits"
    return text if len(text) <= 60 else text[:57] + "..."
