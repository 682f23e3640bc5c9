"""Which mesh axes split which dimension under a plan: from these rules all layouts, and so all collectives, follow.

| tensor | B | T | D | N, K | F, V | S | E |
|---|---|---|---|---|---|---|---|
| weights | | | tensor2 (fsdp) | tensor | tensor (context) | | expert |
| residual | groups | context, tensor if sequence | tensor2 | | | | |
| heads | groups, tensor2 | context | | tensor | | | |
| caches | groups, tensor2 | | | tensor | | context | |

*groups* are data, fsdp and expert: chips with requests of their own. A weight's fsdp axes split its largest dimension
that they divide, and are gathered before each use. Where the new positions do not divide, as in a decode step, a
sequence plan splits the residual's requests or its width instead. The first of context's two uses is the prompt's
positions; while decoding it splits feed-forward columns and the vocabulary too, where they divide.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from simcore.layout import Dim, TensorLayout, parse_tensor
from workloads.plan import PlacedPlan

Axes = tuple[str, ...]
HEADS = ("N", "K")
COLUMNS = ("F", "Fe", "Fs", "V")
SENT = ("E", "Ez", "R", "Rc", "Rz")
"""Dimensions of experts' rows, which stay where they are."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Layouts of a step's tensors. ``sizes`` are those of its dimensions."""

    placed: PlacedPlan
    sizes: Mapping[str, int]

    def ways(self, axes: Axes) -> int:
        return math.prod(self.placed.sizes[axis] for axis in axes)

    @property
    def groups(self) -> Axes:
        """Axes of chips with requests of their own."""
        return self.placed.of("data", "fsdp", "expert")

    @property
    def context(self) -> Axes:
        """The context axes where they split new positions."""
        return self.placed.of("context") if self.sizes["T"] > 1 else ()

    def columns(self, dim: str) -> Axes:
        """What splits feed-forward columns or the vocabulary."""
        both = self.placed.of("tensor", "context")
        return both if self.sizes["T"] == 1 and self.sizes[dim] % self.ways(both) == 0 else self.placed.of("tensor")

    @property
    def _columns(self) -> dict[str, Axes]:
        return {dim: self.columns(dim) for dim in COLUMNS if dim in self.sizes}

    # -- weights ----------------------------------------------------------------------------------------------

    def weight(self, spec: str) -> TensorLayout:
        """``"w_up[D, F]"`` as it is stored: split over tensor axes, and once more over the fsdp axes."""
        layout = self.stationary(parse_tensor(spec))
        fsdp = self.placed.of("fsdp")
        if not fsdp or len(layout.dims) < 2:
            return layout
        fits = [dim for dim in layout.dims if self._local(dim) % self.ways(fsdp) == 0 and dim.name != "E"]
        if not fits:
            return layout
        best = max(fits, key=self._local)
        return layout.with_axes(best.name, (*best.axes, *fsdp))

    def stationary(self, layout: TensorLayout) -> TensorLayout:
        """How a matmul sees a weight: without the fsdp axes."""
        split: dict[str, Axes] = dict.fromkeys(HEADS, self.placed.of("tensor"))
        split |= self._columns
        split["D"] = self.placed.of("tensor2")
        if layout.dims[0].name == "E":  # a stack of experts; a router's columns are whole
            split["E"] = self.placed.of("expert")
        return replace(layout, dims=tuple(Dim(dim.name, split.get(dim.name, ())) for dim in layout.dims))

    def _local(self, dim: Dim) -> int:
        return self.sizes[dim.name] // self.ways(dim.axes)

    # -- activations ------------------------------------------------------------------------------------------

    def complete(self, layout: TensorLayout) -> TensorLayout:
        """An activation as what is not linear needs it: complete, split as its dimensions are."""
        rows: dict[str, Axes] = {"B": self.groups, "T": self.context}
        rows["Cx"] = self.placed.of("context")
        split = rows | dict.fromkeys(HEADS, self.placed.of("tensor")) | self._columns
        split |= {dim.name: dim.axes for dim in layout.dims if dim.name in SENT}
        return TensorLayout(layout.name, tuple(Dim(dim.name, split.get(dim.name, ())) for dim in layout.dims))

    def heads(self, layout: TensorLayout) -> TensorLayout:
        """Queries, keys, values and what attention gives: the 2D axes split requests, where they divide."""
        found = self.complete(layout)
        return found.with_axes("B", self.cache_requests)

    def rows(self, dim: str) -> str:
        """``"R"`` as rows of experts are split: as the requests and, if they are, the positions."""
        return str(Dim(dim, (*self.groups, *self.context)))

    @property
    def cache_requests(self) -> Axes:
        """What splits the requests of attention and its caches."""
        axes = (*self.groups, *self.placed.of("tensor2"))
        return axes if self.sizes["B"] % self.ways(axes) == 0 else self.groups

    def residual(self, layout: TensorLayout) -> TensorLayout:
        """What blocks read and add to, ``[B, T, D]``."""
        found = self.complete(layout)
        if "D" in found.dim_names:
            found = found.with_axes("D", self.placed.of("tensor2"))
        if self.placed.plan.sequence:
            tensor = self.placed.of("tensor")
            for name in ("T", "B", "D"):
                if name in found.dim_names and self._local(found.dim(name)) % self.ways(tensor) == 0:
                    return found.with_axes(name, (*found.dim(name).axes, *tensor))
        return found

    def cache(self, spec: str) -> TensorLayout:
        """``"k_cache[B, S, K, H]"``."""
        layout = self.heads(parse_tensor(spec))
        return layout.with_axes(layout.dim_names[1], self.placed.of("context"))
