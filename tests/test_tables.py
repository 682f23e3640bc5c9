"""Tables of a run, frames, the card for notebooks, and the example notebook."""

import csv
import json
import re

import numpy as np
import pytest

from simcore.cli import main
from simcore.errors import OutputError
from simcore.scenario import run_scenario
from simcore.views.card import html_card
from simcore.views.tables import TABLES, columns_of, frame_of, text_of, write_table


@pytest.fixture(scope="module")
def result():
    return run_scenario("decode_step", parameters={"model": "tiny", "context": 128, "ring": 4})


def test_operations_have_all_flops_bytes_and_waits(result):
    table = columns_of(result, "operation")
    assert sum(table["flops"]) == result.flops
    assert sum(table["hbm_bytes"]) == result.bytes["hbm_read"] + result.bytes["hbm_write"]
    assert sum(table["network_bytes"]) == result.bytes["ici"]
    assert sum(table["waited_for_s"]) == pytest.approx(sum(result.exposed_s.values()), rel=1e-9)
    assert sum(table["tasks"]) == result.tasks
    assert all(0 <= share <= 1 for share in table["share_of_peak"])


def test_layers_are_rows_of_their_own(result):
    table = columns_of(result, "layer")
    assert table["layer"] == [0, 1]
    assert table["flops"][0] == table["flops"][1]


def test_resources_are_as_busy_as_the_result_says(result):
    table = columns_of(result, "resource")
    for kind, share in result.utilization.items():
        rows = [at for at, name in enumerate(table["resource"]) if name == kind]
        assert max(table["share"][at] for at in rows) == pytest.approx(share)
        assert max(table["work_s"][at] for at in rows) == pytest.approx(result.bounds_s[kind])


@pytest.mark.parametrize("by", TABLES)
def test_csv_and_parquet_hold_the_same(result, by, tmp_path):
    polars = pytest.importorskip("polars", reason="polars is an optional extra")
    write_table(result, tmp_path / "table.csv", by)
    write_table(result, tmp_path / "table.parquet", by)
    with (tmp_path / "table.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    frame = polars.read_parquet(tmp_path / "table.parquet")
    assert frame.columns == list(rows[0])
    assert len(frame) == len(rows)
    for name in frame.columns:
        if frame[name].dtype.is_numeric():
            read = [float(row[name]) if row[name] else None for row in rows]
            np.testing.assert_allclose(
                [x for x in frame[name].to_list() if x is not None], [x for x in read if x is not None], rtol=1e-12
            )


def test_frames_of_both_libraries(result):
    pytest.importorskip("polars", reason="polars is an optional extra")
    pytest.importorskip("pandas", reason="pandas is an optional extra")
    one, other = result.frame("operation"), frame_of(result, "operation", "pandas")
    assert one["flops"].sum() == other["flops"].sum() == result.flops
    with pytest.raises(OutputError, match="polars"):
        frame_of(result, "operation", "polers")
    with pytest.raises(OutputError, match="operation"):
        columns_of(result, "operations")


def test_text_has_units_and_no_empty_columns(result):
    text = text_of(result, "operation")
    assert "us" in text
    assert "kB" in text
    assert text.splitlines()[0].startswith("operation")
    assert "... and" in text_of(result, "task", most=3)


def test_a_time_and_an_amount_of_one_unit_have_different_headings(result):
    head = text_of(result, "operation").splitlines()[0]
    assert {"HBM time", "HBM bytes", "network time", "network bytes"} <= set(re.split(r"  +", head))


def test_the_card_has_the_finding_and_no_scripts(result):
    card = html_card(result)
    assert result._repr_html_() == card
    assert "decode_step on 4 x v5e" in card
    assert "<script" not in card
    assert card.count("<rect") == 1 + len(result.exposed_s)


def test_a_card_of_nothing_is_no_error():
    nothing = run_scenario("ring_allgather", parameters={"ring": 1})
    assert "<table>" in html_card(nothing)


def test_the_command_prints_and_writes_tables(capsys, tmp_path):
    words = ["run", "decode_step", "--model", "tiny", "--context", "64"]
    assert main([*words, "--by", "operation"]) == 0
    assert "per operation" in capsys.readouterr().out
    path = tmp_path / "layers.csv"
    assert main([*words, "--table", str(path), "--by", "layer", "--quiet"]) == 0
    assert path.read_text(encoding="utf-8").startswith("layer,")
    assert main([*words, "--by", "laier"]) == 2
    assert "did you mean layer" in capsys.readouterr().err


def test_the_example_notebook_runs(tmp_path):
    nbformat = pytest.importorskip("nbformat", reason="notebooks need nbformat")
    nbclient = pytest.importorskip("nbclient", reason="notebooks need nbclient")
    pytest.importorskip("ipykernel", reason="notebooks need a kernel")
    pytest.importorskip("polars", reason="polars is an optional extra")
    from pathlib import Path

    path = Path(__file__).resolve().parent.parent / "docs" / "notebooks" / "first_look.ipynb"
    book = nbformat.read(path, as_version=4)
    assert all(not cell.get("outputs") for cell in book.cells)
    done = nbclient.NotebookClient(book, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    card = done.cells[1].outputs[0]["data"]["text/html"]
    assert "decode_step on 4 x v5e" in card
    json.dumps(done)
