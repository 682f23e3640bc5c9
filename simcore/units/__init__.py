"""Units driven by hand: a chip whose HBM, MXU, links, ... serve the processes of a SimPy environment of your own.

The same unit models, timelines and views as for task graphs; a task graph may run beside the processes, on the same
units. Time in the environment is an integer number of picoseconds.
"""

from simcore.units.chip import SimChip
from simcore.units.memory import BlockingMemory, Buffer
from simcore.units.together import GraphRun, result_of, run_graph_with, timeline_of

__all__ = ["BlockingMemory", "Buffer", "GraphRun", "SimChip", "result_of", "run_graph_with", "timeline_of"]
