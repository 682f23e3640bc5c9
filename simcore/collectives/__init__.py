"""Collectives as per-link chunk transfers, and the closed forms that they must reproduce."""

from simcore.collectives.ring import RingTensor, all_gather, all_reduce, reduce_scatter

__all__ = ["RingTensor", "all_gather", "all_reduce", "reduce_scatter"]
