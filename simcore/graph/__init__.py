"""The task graph: types, unrolling, validation, race check and execution on values."""

from simcore.graph.access import BufferAccess, TensorAccess, WithIndices
from simcore.graph.graph import EntityClass, Loop, Pool, Take, Task, TaskGraph, Tensor, Unit
from simcore.graph.reference import ALL, Ref
from simcore.graph.work import Fixed, Matmul, Transfer, Vector

__all__ = [
    "ALL",
    "BufferAccess",
    "EntityClass",
    "Fixed",
    "Loop",
    "Matmul",
    "Pool",
    "Ref",
    "Take",
    "Task",
    "TaskGraph",
    "Tensor",
    "TensorAccess",
    "Transfer",
    "Unit",
    "Vector",
    "WithIndices",
]
