"""Scenarios: modules that go from a few parameters to what is to be simulated.

A scenario is a module with

- a docstring, whose first line says what the experiment is;
- ``Parameters``, a frozen dataclass whose fields are the flags (see `simcore.flags`);
- ``build(parameters, chip)``, which returns a `TaskGraph`, or a `Simulation` with figures and notes beside it;

and, where it needs them,

- ``DEFAULT_CHIP``, the chip when none is named (else "v5e");
- ``chip_for(parameters, chip)``, the chip with the figures that the parameters override;
- ``run(parameters, chip, ideal, engine)``, instead of ``build``, which returns a whole `RunResult`;
- ``plot(result, path)``, the picture behind ``--plot``.

It ends with ``if __name__ == "__main__": raise SystemExit(run_script(__file__))``.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from simcore.errors import ScenarioError, SimcoreError, nearest
from simcore.flags import Bandwidth, Bytes, Flag, Seconds, flags_of, param, read_all

if TYPE_CHECKING:
    from simcore.chips import Chip
    from simcore.graph import TaskGraph
    from simcore.result import RunResult

__all__ = [
    "Bandwidth",
    "Bytes",
    "Scenario",
    "Seconds",
    "Simulation",
    "load_scenario",
    "param",
    "run_scenario",
    "run_script",
    "scenario_names",
]

DEFAULT_CHIP = "v5e"
ENGINES = ("auto", "simpy")
RESERVED = frozenset(
    {"chip", "set", "ideal", "engine", "gantt", "zoom", "html", "trace", "table", "plot", "json", "quiet", "help"}
    | {"memory", "by", "roofline", "grid", "jobs", "cluster", "output", "resume", "a", "b"}
)
"""Flags of the commands themselves, which no parameter may be called."""


@dataclass(frozen=True, slots=True)
class Simulation:
    """What ``build`` may return: the graph, figures for ``--json`` beside the fixed ones, and notes for the report.

    ``derive`` gives more figures and notes from the result, such as rates.
    """

    graph: TaskGraph
    extra: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    derive: Callable[[RunResult], tuple[Mapping[str, Any], tuple[str, ...]]] | None = None


@dataclass(frozen=True, slots=True)
class Scenario:
    """A scenario that has been found and read: its name, module and flags."""

    name: str
    path: Path
    module: ModuleType
    flags: tuple[Flag, ...]

    @property
    def about(self) -> str:
        """The first line of its docstring."""
        return (self.module.__doc__ or "").strip().partition("\n")[0]

    @property
    def default_chip(self) -> str:
        return str(getattr(self.module, "DEFAULT_CHIP", DEFAULT_CHIP))

    @property
    def has_plot(self) -> bool:
        return callable(getattr(self.module, "plot", None))

    def parameters(self, given: Mapping[str, Any]) -> Any:
        """The dataclass made of texts ("0.4ms") or plain values, by name; raises `ScenarioError`."""
        with self._own_errors():
            return read_all(self.module.Parameters, self.flags, given)

    def plain(self, parameters: Any) -> dict[str, Any]:
        """The parameters as plain values, for JSON and tables: lists for tuples, seconds, bytes."""
        values = {flag.name: getattr(parameters, flag.name) for flag in self.flags}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    def plot(self, result: RunResult, path: Path) -> None:
        """Draw the scenario's own picture."""
        with self._own_errors():
            self.module.plot(result, path)

    def run(self, parameters: Any, *, chip: Chip, ideal: bool, engine: str) -> RunResult:
        """Build and simulate; raises a `SimcoreError` for anything that a user can cause."""
        from simcore.running import run

        module = self.module
        with self._own_errors():
            if hasattr(module, "chip_for"):
                chip = module.chip_for(parameters, chip)
            if hasattr(module, "run"):
                return self._finished(module.run(parameters, chip, ideal, engine), parameters)
            built = module.build(parameters, chip)
        if not isinstance(built, Simulation):
            built = Simulation(built)
        result = run(
            built.graph,
            chip=chip,
            ideal=ideal,
            engine=engine,
            scenario=self.name,
            parameters=self.plain(parameters),
            extra=built.extra,
        )
        figures, notes = built.derive(result) if built.derive is not None else ({}, ())
        return dataclasses.replace(
            result, extra={**result.extra, **figures}, notes=(*result.notes, *built.notes, *notes)
        )

    def _finished(self, result: RunResult, parameters: Any) -> RunResult:
        return dataclasses.replace(result, scenario=self.name, parameters=self.plain(parameters))

    @contextmanager
    def _own_errors(self) -> Iterator[None]:
        """A fault of a user's script becomes one line that names the place; faults of simcore stay what they are."""
        try:
            yield
        except SimcoreError:
            raise
        except Exception as error:
            place = _place(error, self.path)
            if place is None or self.path.parent == _folder().resolve():
                raise
            raise ScenarioError(f"{place}: {type(error).__name__}: {error}") from error


def _place(error: BaseException, path: Path) -> str | None:
    """``script.py:12``, the innermost line of the script that the error came through."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return f"{path}:{error.lineno}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f"{path}:{frames[-1].lineno}" if frames else None


def _folder() -> Path:
    found = importlib.util.find_spec("scenarios")
    places = list(found.submodule_search_locations or ()) if found else []
    return Path(places[0]) if places else Path(__file__).resolve().parent.parent / "scenarios"


def scenario_names() -> list[str]:
    """Names of the scenarios that come with simcore."""
    return sorted(path.stem for path in _folder().glob("[!_]*.py"))


def load_scenario(scenario: str | Path | Scenario) -> Scenario:
    """Find a scenario by name, or read it from a script of one's own (anything with a ``/`` or ending in ``.py``).

    Raises `ScenarioError` for an unknown name, a missing file, or a script that is not a scenario.
    """
    if isinstance(scenario, Scenario):
        return scenario
    text = str(scenario)
    if isinstance(scenario, Path) or text.endswith(".py") or "/" in text or "\\" in text:
        path = Path(scenario)
        if path.is_dir():
            raise ScenarioError(f"scenario {text}: it is a folder; name a script, {text.rstrip('/')}/NAME.py")
        if not path.is_file():
            raise ScenarioError(f"scenario {text}: there is no such file")
        return _read(path.resolve())
    name = text.replace("-", "_")
    if name not in scenario_names():
        raise ScenarioError(f"unknown scenario {text!r}: {nearest(name, scenario_names())}")
    return _read(_folder().resolve() / f"{name}.py")


def _read(path: Path) -> Scenario:
    if path.suffix != ".py":
        raise ScenarioError(f"scenario {path}: a scenario is a Python script, its name ends in .py")
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:12]
    module = ModuleType(f"simcore_scenario_{path.stem}_{digest}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses and type hints look their module up
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # as for a script that is run: modules beside it can be imported
    try:
        exec(compile(path.read_bytes(), str(path), "exec"), module.__dict__)  # no __pycache__ beside the script
    except SimcoreError:
        raise
    except (Exception, SystemExit) as error:
        place = _place(error, path) or str(path)
        what = error.msg if isinstance(error, SyntaxError) else str(error)
        raise ScenarioError(f"scenario {place}: {type(error).__name__}: {what}") from error
    return _checked(path, module)


def _checked(path: Path, module: ModuleType) -> Scenario:
    if not (module.__doc__ or "").strip():
        raise ScenarioError(f"scenario {path}: needs a docstring, whose first line says what it is")
    if not isinstance(getattr(module, "Parameters", None), type):
        raise ScenarioError(f"scenario {path}: needs a frozen dataclass Parameters, whose fields are its flags")
    if not callable(getattr(module, "build", None)) and not callable(getattr(module, "run", None)):
        raise ScenarioError(f"scenario {path}: needs a function build(parameters, chip) that returns a TaskGraph")
    try:
        flags = flags_of(module.Parameters)
    except ScenarioError as error:
        raise ScenarioError(f"scenario {path}: {error}") from None
    for flag in flags:
        if flag.name in RESERVED:
            raise ScenarioError(f"scenario {path}: parameter {flag.name!r} is a flag of simcore's own; rename it")
    return Scenario(path.stem, path, module, flags)


def run_scenario(
    scenario: str | Path | Scenario,
    *,
    chip: str | Path | Chip | None = None,
    figures: Mapping[str, Any] | None = None,
    ideal: bool = False,
    engine: str = "auto",
    parameters: Mapping[str, Any] | None = None,
) -> RunResult:
    """Run a scenario.

    Parameters
    ----------
    scenario : its name, the path of a script, or one that is loaded.
    chip : a chip's name, the path of a chip file, or a chip; None is the scenario's default.
    figures : figures of the chip to override, ``{"hbm_bandwidth_bytes_per_s": "1 TB/s"}``.
    ideal, engine : as for `simcore.running`.
    parameters : the scenario's parameters by name, as text ("0.4ms") or plain values; defaults for the rest.
    """
    from simcore.chips import load_chip

    if engine not in ENGINES:
        raise ScenarioError(f"unknown engine {engine!r}: {nearest(engine, ENGINES)}")
    loaded = load_scenario(scenario)
    made = loaded.parameters(parameters or {})
    used = load_chip(loaded.default_chip if chip is None else chip)
    if figures:
        used = used.replace(**figures)
    return loaded.run(made, chip=used, ideal=ideal, engine=engine)


def run_script(file: str) -> int:
    """What ``python scenarios/NAME.py --PARAM VALUE`` does: the same as ``simcore run NAME --PARAM VALUE``."""
    from simcore.cli import main

    return main(["run", file, *sys.argv[1:]], prog=f"python {sys.argv[0]}")
