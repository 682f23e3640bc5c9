"""Topologies: how chips are joined. One module each, found by its name; its docstring's first line says what it is.

A topology module has ``build(chip, ...)``, whose keyword parameters are the topology's own, with defaults.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from types import ModuleType
from typing import Any

from simcore.chips import Chip, load_chip
from simcore.errors import nearest
from topologies.topology import Axis, Link, Topology, TopologyError

__all__ = ["Axis", "Link", "Topology", "TopologyError", "build_topology", "topology_names", "topology_table"]


def _modules() -> dict[str, ModuleType]:
    found = {}
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        if callable(getattr(module, "build", None)):
            found[info.name] = module
    return dict(sorted(found.items()))


def topology_names() -> list[str]:
    """Names of the topologies."""
    return list(_modules())


def build_topology(name: str, chip: str | Chip = "v5e", **parameters: Any) -> Topology:
    """Build a topology of chips, with link figures of ``chip``.

    Raises `TopologyError` for an unknown name or parameter, or sizes that make no sense.
    """
    modules = _modules()
    if name not in modules:
        raise TopologyError(f"unknown topology {name!r}: {nearest(name, modules)}")
    known = list(inspect.signature(modules[name].build).parameters)[1:]
    for parameter in parameters:
        if parameter not in known:
            raise TopologyError(f"topology {name} has no parameter {parameter!r}: {nearest(parameter, known)}")
    made: Topology = modules[name].build(load_chip(chip), **parameters)
    return made


def topology_table() -> tuple[list[str], list[list[str]]]:
    """Column names and one row a topology, for `simcore list topologies`."""
    rows = []
    for name, module in _modules().items():
        about = (module.__doc__ or "").strip().partition("\n")[0]
        given = list(inspect.signature(module.build).parameters.values())[1:]
        rows.append([name, ", ".join(f"{parameter.name}={parameter.default}" for parameter in given), about])
    return ["topology", "parameters", "what it is"], rows
