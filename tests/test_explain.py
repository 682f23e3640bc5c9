"""The page of ``simcore explain``: its numbers are the run's, and what it promises has been simulated."""

from __future__ import annotations

import json

import pytest

import simcore
from simcore.commands.explain import main
from simcore.commands.parser import HelpShown
from simcore.critical import critical_path
from simcore.errors import ScenarioError, SimcoreError
from simcore.explain import explain, exposed
from simcore.exposure import exposed_ps
from simcore.memory import peak_bytes

TINY = {"model": "tiny", "context": 128, "ring": 2}
CASES = [
    ("double_buffering", {}),
    ("ring_allgather", {}),
    ("tile_reuse", {}),
    ("two_layer_mlp", {}),
    ("decode_step", TINY),
    ("prefill", TINY),
]


@pytest.mark.parametrize(("name", "parameters"), CASES)
def test_exposed_waits_by_operation_add_up_to_those_by_cause(name, parameters):
    timeline = simcore.run_scenario(name, parameters=parameters).timeline
    for entity in range(len(timeline.entities)):
        by_cause: dict[str, int] = {}
        for wait in exposed(timeline, entity):
            by_cause[wait.cause] = by_cause.get(wait.cause, 0) + wait.ps
        assert by_cause == {cause: ps for cause, ps in exposed_ps(timeline, entity).items() if ps}


@pytest.mark.parametrize(("name", "parameters"), CASES)
def test_the_page_s_numbers_add_up(name, parameters):
    found = explain(name, parameters=parameters)
    makespan = found.result.timeline.makespan_ps
    assert found.gap.bound_ps + sum(part.ps for part in found.gap.parts) == makespan
    assert found.path.total_ps == makespan
    assert found.result.bound_s <= found.bounds.best_ps / 1e12 + 1e-15
    for held in found.memories:
        assert sum(size for _, size in held.holders) == held.peak_bytes
        fullest = max(peak_bytes(found.path.timeline, e, held.memory) for e in range(len(found.path.timeline.entities)))
        assert held.peak_bytes == fullest


def test_what_helps_has_been_simulated_and_comes_best_first():
    found = explain("decode_step", parameters=TINY)
    assert len(found.changes) == 3
    for change in found.changes:
        again = simcore.run_scenario("decode_step", parameters=TINY, figures=dict(change.figures))
        assert again.time_s == change.time_s
        assert (change.speedup or 0) > 1
    speedups = [change.speedup for change in found.changes]
    assert speedups == sorted(speedups, reverse=True)


def test_a_step_bound_by_hbm_is_helped_most_by_its_bandwidth():
    found = explain("decode_step", parameters={"context": 256, "model": "example-6b"})
    assert found.bounds.best == "hbm"
    assert found.changes[0].figures == {"hbm_bandwidth_bytes_per_s": "2x"}
    assert found.sensitivities[0].figure == "hbm_bandwidth_bytes_per_s"
    assert found.sensitivities[0].elasticity() < -0.9
    assert next(iter(critical_path(found.result.timeline).by_resource())) == "hbm"


def test_where_only_fixed_times_are_nothing_of_the_chip_helps():
    found = explain("double_buffering")
    assert found.changes == ()
    assert "No change that was tried helps" in found.report()


@pytest.mark.parametrize(("name", "parameters"), CASES)
def test_the_page_is_readable_at_80_columns(name, parameters):
    page = explain(name, parameters=parameters).report(80)
    assert max(map(len, page.splitlines())) <= 80
    assert "…" not in page
    for title in ("Lower bounds", "Critical path", "What compute waits for"):
        assert title in page


LEVERED = '''"""Two ways."""
from dataclasses import dataclass
from simcore.graph import Fixed, TaskGraph
from simcore.scenario import param

LEVERS = ({levers},)

@dataclass(frozen=True)
class Parameters:
    way: str = param("slow", help="which", choices=("slow", "fast", "slower"))

def build(p, chip):
    graph = TaskGraph("ways")
    one = graph.entity_class("chip")
    one.unit("mxu")
    one.task("work", unit="mxu", work=Fixed.of({{"fast": "1us", "slow": "2us", "slower": "3us"}}[p.way]))
    return graph
'''


def test_levers_of_a_scenario_are_tried(tmp_path):
    script = tmp_path / "ways.py"
    script.write_text(LEVERED.format(levers='"way"'))
    (change,) = explain(script).changes
    assert (change.label, change.time_s, change.speedup) == ("--way fast", 1e-6, 2.0)


def test_a_lever_that_is_no_parameter_is_an_error(tmp_path):
    script = tmp_path / "ways.py"
    script.write_text(LEVERED.format(levers='"wey"'))
    with pytest.raises(ScenarioError, match="did you mean way"):
        explain(script)


def test_json_has_the_run_s_figures_and_why(capsys):
    assert main(["ring_allgather", "--ring", "4", "--json"], "simcore explain") == 0
    found = json.loads(capsys.readouterr().out)
    run = simcore.run_scenario("ring_allgather", parameters={"ring": 4})
    assert found["time_s"] == run.time_s
    assert found["best_bound_by"] in found["all_bounds_s"]
    assert sum(part["ps"] for part in found["gap_parts"]) == found["gap_ps"]
    assert sum(found["critical_path_s"]["by_resource"].values()) == pytest.approx(run.time_s)
    assert [change["speedup"] for change in found["helping"]]


def test_set_is_the_chip_that_is_explained(capsys):
    assert main(["ring_allgather", "--set", "ici_bandwidth=2x", "--json"], "simcore explain") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["time_s"] == simcore.run_scenario("ring_allgather", figures={"ici_bandwidth": "2x"}).time_s


def test_the_command_prints_the_page(capsys):
    assert main(["tile_reuse", "--ideal"], "simcore explain") == 0
    out = capsys.readouterr().out
    assert "x the bound" in out
    assert "What would help most (each simulated)" in out


def test_what_does_not_fit_is_explained_all_the_same_and_exits_with_three(capsys):
    words = ["decode_step", "--model", "tiny", "--context", "1024", "--set", "hbm_capacity=1MB"]
    assert main(words, "simcore explain") == 3
    out, err = capsys.readouterr()
    assert "DOES NOT FIT" in " ".join(out.split())
    assert "does not fit: hbm" in err


def test_the_help_has_an_example(capsys):
    for words in (["--help"], ["ring_allgather", "--help"]):
        with pytest.raises(HelpShown):
            main(words, "simcore explain")
        assert "example:" in capsys.readouterr().out


@pytest.mark.parametrize("words", [[], ["nothing"], ["ring_allgather", "--jsn"], ["ring_allgather", "--set", "x"]])
def test_a_mistake_on_the_command_line_is_simcore_s_own_error(words):
    with pytest.raises(SimcoreError):
        main(words, "simcore explain")
