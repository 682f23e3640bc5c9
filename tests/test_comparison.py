"""Two runs against each other, and a run against measured times."""

import gzip
import json

import pytest

from simcore.cli import main
from simcore.comparison import charged_s, compare
from simcore.measured import MeasuredError, against_measured, normalised, read_measured
from simcore.scenario import run_scenario

TINY = {"model": "tiny", "context": 128}


@pytest.fixture(scope="module")
def runs():
    return [run_scenario("decode_step", parameters={**TINY, "ring": ring}) for ring in (1, 4)]


def test_time_is_charged_to_operations_exactly(runs):
    for result in runs:
        assert sum(charged_s(result).values()) == pytest.approx(result.time_s, abs=1e-12)


def test_changes_add_up_to_the_change_of_the_time(runs):
    found = compare(*runs, "one", "four")
    change = runs[1].time_s - runs[0].time_s
    assert sum(row.change for row in found.operations()) == pytest.approx(change, abs=1e-12)
    assert sum(row.change for row in found.waits()) == pytest.approx(change, abs=1e-12)
    assert found.speed_up == pytest.approx(runs[0].time_s / runs[1].time_s)


def test_a_run_is_the_same_as_itself(runs):
    found = compare(runs[0], runs[0])
    assert all(row.change == 0 for row in (*found.operations(), *found.waits(), *found.bytes()))
    assert found.speed_up == 1
    assert "same" in found.report()


def command(capsys, *words):
    code = main(["compare", "decode_step", "--model", "tiny", "--context", "64", *words])
    return code, capsys.readouterr()


def test_the_command_compares_parameters_chips_and_figures(capsys, tmp_path):
    path = tmp_path / "both.svg"
    words = ["--a", "ring=1", "--b", "ring=4", "--b", "chip=v5p", "--b", "hbm_bandwidth=2x", "--gantt", str(path)]
    code, out = command(capsys, *words)
    assert code == 0
    assert "time by operation" in out.out
    text = path.read_text(encoding="utf-8")
    assert "ring=4, chip=v5p, hbm_bandwidth=2x" in text
    code, out = command(capsys, "--a", "ideal=true", "--b", "ideal=false", "--json")
    found = json.loads(out.out)
    assert found["a"]["ideal"] is True
    assert found["speed_up"] < 1


def test_two_pictures_of_one_comparison_are_the_same_bytes(capsys, tmp_path):
    for name in ("one.svg", "two.svg"):
        assert command(capsys, "--a", "ring=1", "--b", "ring=2", "--gantt", str(tmp_path / name))[0] == 0
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "say what differs"),
        (["--a", "rng=2"], "--a rng=2: unknown 'rng', did you mean ring"),
        (["--a", "ring"], "must be PARAM=VALUE"),
        (["--a", "ideal=maybe"], "true or false"),
        (["--a", "chip=v9"], "v9"),
        (["--measured", "nothing.csv"], "there is no such file"),
        (["--measured", "x.csv", "--a", "ring=2"], "leave out --a"),
        (["--alias", "a=b", "--a", "ring=2"], "--alias is for --measured"),
    ],
)
def test_bad_input_is_one_clear_line(capsys, words, message):
    code, out = command(capsys, *words)
    assert code == 2
    assert message in out.err
    assert out.err.count("\n") == 1


def trace_of(result, rename=lambda name: name):
    """A profile as JAX writes it, with what the simulation charges to each operation."""
    events = [
        {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "/device:TPU:0"}},
        {"ph": "M", "pid": 1, "tid": 1, "name": "thread_name", "args": {"name": "XLA Ops"}},
        {"ph": "M", "pid": 2, "name": "process_name", "args": {"name": "/host:CPU"}},
        {"ph": "X", "pid": 2, "tid": 1, "name": "python", "ts": 0, "dur": 1e6},
    ]
    at = 0.0
    for name, seconds in charged_s(result).items():
        for half in range(2):
            dur = seconds / 2 * 1e6
            events.append({"ph": "X", "pid": 1, "tid": 1, "name": f"{rename(name)}.{half}", "ts": at, "dur": dur})
            at += dur
    return {"traceEvents": events}


def test_a_profile_that_is_the_simulation_has_no_differences(runs, tmp_path):
    path = tmp_path / "run.trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps(trace_of(runs[0])).encode()))
    found = against_measured(runs[0], read_measured(path))
    assert found.measured_s == pytest.approx(runs[0].time_s, rel=1e-9)
    assert not found.only_measured
    assert not found.only_simulated
    assert max(abs(row.change) for row in found.matched) < 1e-12


def test_aliases_and_what_only_one_side_has(runs, tmp_path):
    path = tmp_path / "measured.csv"
    path.write_text("name,duration_us,count\nfusion.7,10,3\nq,5,1\ncopy.1,2,1\n", encoding="utf-8")
    found = against_measured(runs[0], read_measured(path), {"down": "fusion.7"})
    assert {row.name: round(row.a * 1e6, 9) for row in found.matched} == {"down": 30, "q": 5}
    assert found.only_measured == {"copy.1": pytest.approx(2e-6)}
    assert "gate" in found.only_simulated
    with pytest.raises(MeasuredError, match=r"no measured operation 'fusion\.8', did you mean fusion\.7"):
        against_measured(runs[0], read_measured(path), {"down": "fusion.8"})


def test_numbers_at_the_end_of_a_name_do_not_count():
    assert [normalised(name) for name in ("fusion.12", "dot_3", "all-reduce.1.2", "7")] == [
        "fusion",
        "dot",
        "all-reduce",
        "7",
    ]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"name,time\nq,1\n", "needs the columns name and one of duration_s"),
        ("a.csv", b"name,duration_us\n", "has no rows"),
        ("a.csv", b"name,duration_us\nq,fast\n", "line 2: 'fast' or its count is no number"),
        ("a.csv", b"name,duration_us\nq,-1\n", "0 or more"),
        ("a.csv", b"\xff\xfe\x00", "is no text"),
        ("a.txt", b"q 1", "a .csv, a .trace.json.gz or a .json is meant"),
        ("a.json", b"{", "is no Chrome trace"),
        ("a.json", b'{"traceEvents": []}', 'no device has a line "XLA Ops"'),
        ("a.json.gz", b"not gzip", "is no Chrome trace"),
    ],
)
def test_bad_files_say_what_is_wrong(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(MeasuredError) as error:
        read_measured(path)
    assert message in str(error.value)
