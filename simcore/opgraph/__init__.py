"""Op graphs: operations on sharded tensors, free of hardware."""

from simcore.opgraph.graph import OpGraph, Repeat
from simcore.opgraph.groups import Groups
from simcore.opgraph.operations import View
from simcore.opgraph.tensor import ShardedTensor

__all__ = ["Groups", "OpGraph", "Repeat", "ShardedTensor", "View"]
