"""Sweeps: a scenario over a grid of parameters, in parallel processes, into rows of a table.

Every point is one run; a point that the scenario refuses becomes a row with its error, and the others go on. With an
output file the finished rows are kept in ``FILE.partial`` as they come, so that an interrupted sweep can be resumed.
"""

from __future__ import annotations

import csv
import itertools
import json
import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simcore.chips import Chip
from simcore.errors import OutputError, ScenarioError, SimcoreError
from simcore.files import written_beside
from simcore.scenario import Scenario, load_scenario, run_scenario

MOST_POINTS = 1_000_000
RESULTS = ("time_s", "bound_s", "bound_by", "busy_s", "flops", "tasks", "wall_s")
"""Columns of results that every sweep has, after the parameters and before bytes, exposure and the scenario's own."""

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Sweep:
    """The table of a sweep: one row a point of the grid, in the grid's order.

    ``grid`` is parameter -> the values swept; a row has all parameters, the results, and "error" (empty where the
    point ran).
    """

    scenario: str
    grid: Mapping[str, Sequence[Any]]
    rows: Sequence[Row]

    @property
    def columns(self) -> list[str]:
        """Columns of the table, "error" last."""
        found = dict.fromkeys(name for row in self.rows for name in row if name != "error")
        return [*found, "error"]

    @property
    def failed(self) -> list[Row]:
        return [row for row in self.rows if row.get("error")]

    def best(self, column: str = "time_s") -> Row:
        """The row with the least value of a column. Raises `ScenarioError` if no point ran."""
        ran = [row for row in self.rows if not row.get("error") and isinstance(row.get(column), int | float)]
        if not ran:
            raise ScenarioError(f"no point of the sweep has a {column}: {self.rows[0].get('error', '')}")
        return min(ran, key=lambda row: row[column])

    def to_csv(self, path: str | Path) -> None:
        """Write the table; raises `OutputError` if the file cannot be written."""
        with written_beside(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self.columns, restval="", lineterminator="\n")
            writer.writeheader()
            writer.writerows(self.rows)

    def plot(self, path: str | Path) -> None:
        """Draw the time over the first swept parameter, one line for each value of the others."""
        from simcore.views.sweep_plot import draw_sweep

        draw_sweep(self, path)


@dataclass(frozen=True, slots=True)
class _Point:
    """What a worker needs to run one point."""

    scenario: str
    parameters: Mapping[str, Any]
    chip: str | Chip | None
    figures: Mapping[str, Any]
    ideal: bool
    engine: str


@dataclass
class _Partial:
    """Finished rows beside the output file, one JSON line each, by their parameters."""

    path: Path
    done: dict[str, Row] = field(default_factory=dict)

    @classmethod
    def of(cls, output: Path, resume: bool) -> _Partial:
        partial = cls(output.with_name(output.name + ".partial"))
        if resume and partial.path.is_file():
            for line in partial.path.read_text(encoding="utf-8").splitlines():
                try:
                    saved = json.loads(line)
                except json.JSONDecodeError:
                    continue  # the line that was being written when the sweep was interrupted
                partial.done[saved["key"]] = saved["row"]
        else:
            partial.path.unlink(missing_ok=True)
        return partial

    def add(self, key: str, row: Row) -> None:
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"key": key, "row": row}) + "\n")
        except OSError as error:
            raise OutputError(f"cannot write {self.path}: {error.strerror}") from None

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)


def sweep(
    scenario: str | Path | Scenario,
    grid: Mapping[str, Sequence[Any]],
    *,
    parameters: Mapping[str, Any] | None = None,
    chip: str | Path | Chip | None = None,
    figures: Mapping[str, Any] | None = None,
    ideal: bool = False,
    engine: str = "auto",
    jobs: int | None = None,
    output: str | Path | None = None,
    resume: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Sweep:
    """Run a scenario at every point of a grid.

    Parameters
    ----------
    grid : parameter -> values, as texts or plain values; "chip" may be one of them.
    parameters : values of parameters that are not swept.
    chip, figures, ideal, engine : as for `run_scenario`.
    jobs : processes; by default one a processor. 1 runs in this process.
    output : a CSV file to write; until it is complete its rows are kept in ``output.partial``.
    resume : take the rows of an interrupted sweep from there.
    progress : called with (points done, points in all).

    Raises `ScenarioError` for an unknown parameter or an empty grid. A point that fails is a row with an "error".
    """
    loaded = load_scenario(scenario)
    points = _points(loaded, grid, parameters or {}, chip, figures or {}, ideal, engine)
    if jobs is not None and jobs < 1:
        raise ScenarioError(f"jobs is {jobs}; it must be 1 or more")
    partial = _Partial.of(Path(output), resume) if output is not None else None
    keys = [_key(point) for point in points]
    rows: dict[str, Row] = {key: row for key, row in (partial.done if partial else {}).items() if key in set(keys)}
    left = [(key, point) for key, point in zip(keys, points, strict=True) if key not in rows]
    if progress:
        progress(len(rows), len(points))
    for key, row in _run_all(left, jobs or os.cpu_count() or 1):
        rows[key] = row
        if partial:
            partial.add(key, row)
        if progress:
            progress(len(rows), len(points))
    done = Sweep(loaded.name, {name: list(values) for name, values in grid.items()}, [rows[key] for key in keys])
    if output is not None:
        done.to_csv(output)
    if partial:
        partial.remove()
    return done


def _points(
    scenario: Scenario,
    grid: Mapping[str, Sequence[Any]],
    parameters: Mapping[str, Any],
    chip: str | Path | Chip | None,
    figures: Mapping[str, Any],
    ideal: bool,
    engine: str,
) -> list[_Point]:
    if not grid:
        raise ScenarioError("the grid is empty: give at least one parameter and its values, such as tiles=1,2,4")
    known = {flag.name for flag in scenario.flags} | {"chip"}
    for name, values in grid.items():
        if name not in known:
            scenario.parameters({name: values[0] if values else None})  # raises, with the nearest name
        if not values:
            raise ScenarioError(f"the grid has no values for {name}")
        if name in parameters:
            raise ScenarioError(f"{name} is both swept and given")
    total = 1
    for values in grid.values():
        total *= len(values)
    if total > MOST_POINTS:
        raise ScenarioError(f"the grid has {total:,} points; at most {MOST_POINTS:,} are run")
    points = []
    where = str(scenario.path)
    for combination in itertools.product(*grid.values()):
        given = {**parameters, **dict(zip(grid, combination, strict=True))}
        used = given.pop("chip", chip)
        points.append(_Point(where, given, str(used) if isinstance(used, Path) else used, figures, ideal, engine))
    return points


def _key(point: _Point) -> str:
    chip = point.chip.name if isinstance(point.chip, Chip) else point.chip
    return json.dumps(
        [point.scenario, sorted(point.parameters.items()), chip, sorted(point.figures.items()), point.ideal],
        default=str,
    )


def _run_all(points: Sequence[tuple[str, _Point]], jobs: int) -> Iterator[tuple[str, Row]]:
    """Rows as they are finished."""
    if jobs == 1 or len(points) <= 1:
        for key, point in points:
            yield key, _row(point)
        return
    # A fresh interpreter for each worker: what the parent has loaded (threads, pictures) is not copied along.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(jobs, len(points)), mp_context=context) as pool:
        waiting: dict[Future[Row], str] = {}
        todo = iter(points)
        try:
            for key, point in itertools.islice(todo, 4 * jobs):
                waiting[pool.submit(_row, point)] = key
            while waiting:
                finished, _ = wait(waiting, return_when=FIRST_COMPLETED)
                for future in finished:
                    yield waiting.pop(future), future.result()
                    for key, point in itertools.islice(todo, 1):
                        waiting[pool.submit(_row, point)] = key
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _row(point: _Point) -> Row:
    """Run a point: its parameters, its figures, and the error in one line if it has none."""
    row: Row = {name: _cell(value) for name, value in point.parameters.items()}
    try:
        result = run_scenario(
            point.scenario,
            chip=point.chip,
            figures=point.figures,
            ideal=point.ideal,
            engine=point.engine,
            parameters=point.parameters,
        )
    except SimcoreError as error:
        return {**row, "error": str(error)}
    row |= {name: _cell(value) for name, value in result.parameters.items()}
    row["chip"] = result.chip.name
    row |= {name: getattr(result, name) for name in RESULTS}
    for name, values in (
        ("bytes", result.bytes),
        ("exposed_s", result.exposed_s),
        ("utilization", result.utilization),
        ("memory_peak_bytes", result.memory_peak_bytes),
    ):
        row |= {f"{name}.{part}": value for part, value in values.items()}
    row |= {name: _cell(value) for name, value in result.extra.items()}
    over = result.overflowing_memories
    row["error"] = f"does not fit in {', '.join(over)}" if over else ""
    return row


def _cell(value: Any) -> Any:
    """A value as one cell of a table."""
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)
