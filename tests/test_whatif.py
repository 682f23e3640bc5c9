"""What-ifs are what running the scenario with the changed chip gives, told in one row each."""

from __future__ import annotations

import json

import pytest

import simcore
from simcore.chips.figures import ALIASES, FIGURES
from simcore.commands.parser import HelpShown
from simcore.commands.whatif import main
from simcore.errors import ChipError, ScenarioError, SimcoreError
from simcore.whatif import SHORT, full_name, read_sets, short_name, whatif

RING = {"ring": 8, "direction": "one_way"}


def test_each_change_is_a_run_of_its_own_and_all_together_come_last():
    found = whatif("ring_allgather", ["ici_bandwidth=2x", "ici_latency=0.5x"], parameters=RING)
    alone = [
        simcore.run_scenario("ring_allgather", parameters=RING, figures=figures).time_s
        for figures in (
            {"ici_bandwidth": "2x"},
            {"ici_latency": "0.5x"},
            {"ici_bandwidth": "2x", "ici_latency": "0.5x"},
        )
    ]
    assert [change.time_s for change in found.changes] == alone
    assert [change.label for change in found.changes] == ["ici_bandwidth=2x", "ici_latency=0.5x", "all together"]
    assert [change.predicted_s for change in found.changes] == alone
    assert found.changes[0].speedup == found.base.time_s / alone[0]


def test_one_change_needs_no_row_for_all():
    assert len(whatif("ring_allgather", {"ici_bandwidth": 9e10}).changes) == 1


def test_the_bottleneck_moves_to_what_is_left():
    found = whatif("ring_allgather", {"ici_bandwidth": "10000x"}, parameters=RING)
    assert found.to_json()["bottleneck"] == "ici"
    assert found.changes[0].bottleneck[0] == "ici latency"


def test_what_a_run_does_not_use_makes_no_change_and_says_so():
    found = whatif("ring_allgather", {"hbm_capacity": "2x", "dcn_bandwidth": "2x", "ici_latency": "1x"})
    for change in found.changes[:3]:
        assert change.time_s == found.base.time_s
        assert change.note.startswith("no change")


def test_what_is_hidden_makes_no_change_and_says_so():
    found = whatif("tile_reuse", {"vpu": "2x", "mxu": "2x"}, ideal=True)
    assert found.changes[0].note == "no change: this run does not depend on it"
    assert (found.changes[1].speedup or 0) > 1
    hidden = whatif("decode_step", {"ici_latency": "0.9x"}, parameters={"ring": 4, "context": 256})
    assert hidden.changes[0].note == "no change: it is not on the critical path"


def test_a_change_that_cannot_be_run_is_a_row_and_the_others_go_on():
    sets = {"vmem_capacity": "1KiB", "hbm_bandwidth": "2x"}
    found = whatif("decode_step", sets, parameters={"model": "tiny", "context": 128})
    assert found.changes[0].note.startswith("cannot be run: ")
    assert found.changes[0].time_s is None
    assert found.changes[0].speedup is None
    assert (found.changes[1].speedup or 0) > 1


def test_a_memory_that_becomes_too_small_is_told():
    found = whatif("decode_step", {"hbm_capacity": "1 MB"}, parameters={"model": "tiny", "context": 1024})
    assert found.changes[0].note == "does not fit in hbm"


@pytest.mark.parametrize("name", sorted({**SHORT, **ALIASES}))
def test_every_short_name_means_a_figure_of_the_chip(name):
    assert full_name(name) in {*FIGURES, "peak_flops_per_s"}
    assert full_name(name.replace("_", "-")) == full_name(name)


def test_names_shown_are_names_taken():
    for figure in FIGURES:
        assert full_name(short_name(figure)) == figure


@pytest.mark.parametrize(
    ("item", "error"),
    [
        ("hbm_bandwith=2x", "did you mean hbm_bandwidth"),
        ("efficiency.hbn=1", "did you mean efficiency.hbm"),
        ("bandwidth.hbm=1", "known: efficiency.dcn"),
        ("hbm", "must be FIGURE=VALUE"),
        ("=2x", "must be FIGURE=VALUE"),
        ("hbm=", "must be FIGURE=VALUE"),
        ("", "must be FIGURE=VALUE"),
    ],
)
def test_a_misspelt_set_is_an_error_that_helps(item, error):
    with pytest.raises(ScenarioError, match=error):
        read_sets([item])


@pytest.mark.parametrize("value", ["0x", "-1", "fast", "nan", "1e400", "2 GB"])
def test_an_impossible_value_is_an_error_before_anything_runs(value):
    with pytest.raises(ChipError, match="hbm_bandwidth_bytes_per_s"):
        whatif("decode_step", {"hbm_bandwidth": value})


def test_the_same_figure_by_two_names_is_an_error():
    with pytest.raises(ScenarioError, match="given twice"):
        whatif("decode_step", ["hbm=2x", "hbm_bandwidth=3x"])


def test_the_command_prints_one_json_object(capsys):
    words = ["ring_allgather", "--ring", "4", "--set", "ici_bandwidth=2x", "--set", "ici_latency=0.5x", "--json"]
    assert main(words, "simcore whatif") == 0
    found = json.loads(capsys.readouterr().out)
    assert [change["change"] for change in found["changes"]] == ["ici_bandwidth=2x", "ici_latency=0.5x", "all together"]
    assert {one["figure"] for one in found["sensitivities"]} == {"ici_link_bandwidth_bytes_per_s", "ici_hop_latency_s"}
    assert found["parameters"]["ring"] == 4


def test_the_command_s_page_has_a_row_a_change(capsys):
    assert main(["ring_allgather", "--set", "ici=2x", "--set", "pcie=2x"], "simcore whatif") == 0
    out = capsys.readouterr().out
    assert "ici=2x" in out
    assert "no change" in out
    assert max(map(len, out.splitlines())) <= 100


def test_without_a_set_it_shows_the_sensitivities(capsys):
    assert main(["ring_allgather"], "simcore whatif") == 0
    assert "ici_bandwidth" in capsys.readouterr().out


def test_the_help_has_an_example(capsys):
    for words in (["--help"], ["ring_allgather", "--help"]):
        with pytest.raises(HelpShown):
            main(words, "simcore whatif")
        assert "--set hbm_bandwidth=2x" in capsys.readouterr().out


@pytest.mark.parametrize("words", [[], ["nothing"], ["ring_allgather", "--sett", "a=b"], ["ring_allgather", "two"]])
def test_a_mistake_on_the_command_line_is_simcore_s_own_error(words):
    with pytest.raises(SimcoreError):
        main(words, "simcore whatif")


def test_a_base_that_does_not_fit_exits_with_three(capsys):
    words = ["decode_step", "--model", "llama3-8b", "--chip", "v5e", "--set", "hbm_capacity=2x"]
    assert main(words, "simcore whatif") == 3
    out, err = capsys.readouterr()
    assert "now fits in hbm" in " ".join(out.split())
    assert "does not fit" in err
