"""Op graphs: operations on sharded tensors, free of hardware."""

from simcore.opgraph.graph import OpGraph, Repeat
from simcore.opgraph.tensor import ShardedTensor

__all__ = ["OpGraph", "Repeat", "ShardedTensor"]
