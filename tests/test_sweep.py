"""Sweeps: every point of the grid, in order, with errors as rows, and resumable."""

import csv
import json

import pytest

import simcore
from simcore.cli import main
from simcore.errors import ScenarioError
from simcore.sweeping import sweep


def test_the_valley_of_tile_counts():
    for buffers in (2, 3, 8):
        found = simcore.sweep(
            "double_buffering",
            {"tiles": [1, 2, 4, 8, 16, 32, 64]},
            parameters={"issue_cost": "1us", "buffers": buffers},
            ideal=True,
            jobs=1,
        )
        best = found.best()
        assert (best["tiles"], best["time_s"]) == (16, 428.5e-6)


def test_rows_are_in_the_grids_order_whatever_the_processes_do():
    grid = {"tiles": [8, 1, 4], "buffers": [2, 1]}
    found = sweep("double_buffering", grid, ideal=True, jobs=2)
    assert [(row["tiles"], row["buffers"]) for row in found.rows] == [(8, 2), (8, 1), (1, 2), (1, 1), (4, 2), (4, 1)]
    assert found.rows[0]["time_s"] == 425e-6
    assert found.columns[-1] == "error"


def test_a_point_that_is_refused_is_a_row_with_its_error():
    found = sweep("decode_step", {"ring": [1, 3]}, parameters={"model": "tiny", "context": 8}, jobs=1)
    assert found.rows[0]["error"] == ""
    assert "do not divide over a ring of 3" in found.rows[1]["error"]
    assert len(found.failed) == 1
    assert found.best()["ring"] == 1


def test_the_chip_can_be_swept():
    found = sweep("roofline", {"chip": ["v5e", "v5p"]}, jobs=1)
    assert [row["chip"] for row in found.rows] == ["v5e", "v5p"]
    assert found.rows[1]["time_s"] < found.rows[0]["time_s"]


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ({}, "the grid is empty"),
        ({"tile": [1]}, "did you mean 'tiles'|did you mean tiles"),
        ({"tiles": []}, "no values for tiles"),
        ({"tiles": range(1, 2000), "buffers": range(1, 2000)}, "at most 1,000,000"),
    ],
)
def test_a_grid_that_cannot_be_run(grid, message):
    with pytest.raises(ScenarioError, match=message):
        sweep("double_buffering", grid, jobs=1)


def test_the_command_writes_a_table_and_a_picture(capsys, tmp_path):
    table, picture = tmp_path / "t.csv", tmp_path / "t.png"
    arguments = ["--grid", "tiles=1,2,4,8,16,32", "--issue-cost", "1us", "--ideal", "--jobs", "1"]
    assert main(["sweep", "double_buffering", *arguments, "-o", str(table), "--plot", str(picture)]) == 0
    out, _ = capsys.readouterr()
    assert "fastest at tiles=16: 428.5 us" in out
    rows = list(csv.DictReader(table.open()))
    assert [row["tiles"] for row in rows] == ["1", "2", "4", "8", "16", "32"]
    assert float(rows[4]["time_s"]) == 428.5e-6
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.csv", "t.png"]


def test_an_interrupted_sweep_keeps_its_rows_and_goes_on(capsys, tmp_path, monkeypatch):
    table = tmp_path / "t.csv"
    partial = tmp_path / "t.csv.partial"
    command = ["sweep", "double_buffering", "--grid", "tiles=1,2,4", "--jobs", "1", "-o", str(table), "--quiet"]
    import simcore.sweeping as sweeping

    ran = []
    run_scenario = sweeping.run_scenario

    def run_two(scenario, **given):
        if len(ran) == 2:
            raise KeyboardInterrupt
        ran.append(given["parameters"]["tiles"])
        return run_scenario(scenario, **given)

    monkeypatch.setattr(sweeping, "run_scenario", run_two)
    assert main(command) == 130
    assert "--resume goes on" in capsys.readouterr().err
    assert not table.exists()
    assert len(partial.read_text().splitlines()) == 2
    with partial.open("a") as file:
        file.write('{"key": "half')  # the row that was being written
    ran.clear()
    assert main([*command, "--resume"]) == 0
    assert ran == [4]
    assert [row["tiles"] for row in csv.DictReader(table.open())] == ["1", "2", "4"]
    assert not partial.exists()


def test_when_every_point_fails_the_exit_code_says_so(capsys, tmp_path):
    command = ["sweep", "decode_step", "--model", "tiny", "--grid", "ring=3,5", "--jobs", "1"]
    assert main([*command, "-o", str(tmp_path / "t.csv")]) == 2
    assert "2 of 2 points failed" in capsys.readouterr().err


def test_json_carries_the_rows_and_the_best(capsys, tmp_path):
    command = ["sweep", "double_buffering", "--grid", "tiles=1,4", "--ideal", "--jobs", "1", "--json"]
    assert main([*command, "-o", str(tmp_path / "t.csv")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["rows"]) == 2
    assert found["best"]["tiles"] == 4
