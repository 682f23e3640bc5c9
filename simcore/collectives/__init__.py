"""Collectives as per-link chunk transfers, and the closed forms that they must reproduce.

`collective` is the front door: it picks an algorithm by its closed form and lowers it. The algorithms by themselves
are in `ring`, `line`, `torus` (several axes at once), `all_to_all`, `permute`, `broadcast` (and reduce), `one_shot`,
`switch`, `hierarchical` (over slices) and `host` (over PCIe).
"""

from simcore.collectives.auto import choices, collective
from simcore.collectives.ring import all_gather, all_reduce, reduce_scatter
from simcore.collectives.tensor import RingTensor, even_split

__all__ = ["RingTensor", "all_gather", "all_reduce", "choices", "collective", "even_split", "reduce_scatter"]
