"""simcore: a discrete-event simulator of accelerator chips, their memories and their links running Transformers.

import simcore
result = simcore.run(graph, chip="v5e")       # a TaskGraph or an OpGraph of your own
result = simcore.run_scenario("decode_step", parameters={"ring": 4})
table = simcore.sweep("double_buffering", grid={"tiles": [1, 2, 4, 8]})
page = simcore.explain("decode_step")         # why it takes what it takes, and what would help
"""

from simcore.chips import Chip, load_chip
from simcore.critical import critical_path
from simcore.errors import SimcoreError
from simcore.explain import explain
from simcore.graph import Fixed, Matmul, Take, TaskGraph, Transfer, Vector
from simcore.layout import Mesh
from simcore.opgraph import OpGraph
from simcore.result import RunResult
from simcore.running import run
from simcore.scenario import run_scenario
from simcore.sweeping import Sweep, sweep
from simcore.whatif import whatif

__all__ = [
    "Chip",
    "Fixed",
    "Matmul",
    "Mesh",
    "OpGraph",
    "RunResult",
    "SimcoreError",
    "Sweep",
    "Take",
    "TaskGraph",
    "Transfer",
    "Vector",
    "critical_path",
    "explain",
    "load_chip",
    "run",
    "run_scenario",
    "sweep",
    "whatif",
]
