"""Lowering: from operations on sharded tensors to the tasks of a class of chips."""

from simcore.lowering.lower import lower, lower_stages
from simcore.lowering.matmul import matmul_graph, tile_matmul
from simcore.lowering.placement import Placement
from simcore.lowering.program import LoweringOptions
from simcore.lowering.tiling import MatmulShape, Tiling, choose_tiling

__all__ = [
    "LoweringOptions",
    "MatmulShape",
    "Placement",
    "Tiling",
    "choose_tiling",
    "lower",
    "lower_stages",
    "matmul_graph",
    "tile_matmul",
]
