"""Layouts of sharded tensors: meshes, the book's notation, the rules, values, and the plan of a sharded matmul."""

from simcore.layout.layout import Dim, TensorLayout, padded_sizes
from simcore.layout.mesh import Mesh, axis_names
from simcore.layout.notation import Product, parse_product, parse_tensor
from simcore.layout.planner import CollectiveStep, CostModel, LocalMatmul, MatmulPlan, plan_matmul

__all__ = [
    "CollectiveStep",
    "CostModel",
    "Dim",
    "LocalMatmul",
    "MatmulPlan",
    "Mesh",
    "Product",
    "TensorLayout",
    "axis_names",
    "padded_sizes",
    "parse_product",
    "parse_tensor",
    "plan_matmul",
]
