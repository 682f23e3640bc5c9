"""The command line: what it prints, what it writes, and that a mistake is one line and leaves nothing behind."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

from simcore.cli import main
from simcore.scenario import scenario_names

ROOT = Path(__file__).resolve().parent.parent
FIXED_KEYS = {
    "scenario", "parameters", "chip", "engine", "time_s", "bound_s", "bound_by", "bounds_s", "utilization", "exposed_s",
    "memory_peak_bytes", "flops", "bytes", "bytes_by_tensor", "tasks", "tasks_represented", "wall_s",
}  # fmt: skip


def run(capsys, *arguments):
    code = main([*map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


def as_json(capsys, *arguments):
    code, out, _ = run(capsys, "run", *arguments, "--json")
    assert code == 0
    return json.loads(out)


def test_json_is_one_object_with_the_fixed_keys(capsys):
    found = as_json(capsys, "double_buffering", "--ideal", "--tiles", 4)
    assert set(found) >= FIXED_KEYS
    assert found["time_s"] == 450e-6
    assert found["parameters"] == {"load": 4e-4, "compute": 2e-4, "tiles": 4, "buffers": 2, "issue_cost": 0.0}
    assert found["chip"] == "v5e"


@pytest.mark.parametrize("scenario", scenario_names())
def test_every_scenario_has_a_help_whose_example_works(capsys, scenario, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, _ = run(capsys, "run", scenario, "--help")
    assert code == 0
    example = out.rpartition("example:")[2].strip()
    assert example.startswith(f"simcore run {scenario}")
    assert main([*example.split()[1:], "--quiet"]) == 0


@pytest.mark.parametrize("command", ["run", "sweep", "list", "model"])
def test_every_command_has_a_help_with_an_example(capsys, command):
    code, out, _ = run(capsys, command, "--help")
    assert code == 0
    assert f"simcore {command}" in out.rpartition("example:")[2]


def test_the_overview_names_every_command(capsys):
    code, out, _ = run(capsys, "--help")
    assert code == 0
    for command in ("run", "sweep", "list", "model"):
        assert f"\n  {command} " in out


def test_lists_name_what_there_is(capsys):
    for kind, known in (
        ("chips", "v5e"),
        ("models", "llama3-8b"),
        ("scenarios", "decode_step"),
        ("topologies", "ring"),
    ):
        code, out, _ = run(capsys, "list", kind)
        assert code == 0
        assert known in out
        code, out, _ = run(capsys, "list", kind, "--json")
        assert known in json.dumps(json.loads(out)[kind])


def test_a_model_is_summed_up(capsys):
    code, out, _ = run(capsys, "model", "llama3-8b", "--json")
    assert code == 0
    assert json.loads(out)["parameters"] == 8_030_261_248
    code, out, _ = run(capsys, "model", "example-6b")
    assert "1 GiB at 8192 positions" in out


def test_pictures_and_tables_are_written_where_asked(capsys, tmp_path):
    picture, table = tmp_path / "a.png", tmp_path / "a.csv"
    code, _, err = run(capsys, "run", "double_buffering", "--gantt", picture, "--table", table)
    assert code == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert len(list(csv.DictReader(table.open()))) == 16
    assert err.splitlines() == [f"wrote {picture}", f"wrote {table}"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "a.png"]


def test_quiet_prints_nothing(capsys):
    assert run(capsys, "run", "double_buffering", "--quiet") == (0, "", "")


def test_a_chip_file_and_figures_of_ones_own(capsys, tmp_path):
    chip = tmp_path / "fast.toml"
    chip.write_text('base = "v5e"\nhbm_bandwidth_bytes_per_s = "2x"\n')
    plain = as_json(capsys, "roofline", "--m", 8, "--ideal")
    from_file = as_json(capsys, "roofline", "--m", 8, "--ideal", "--chip", chip)
    from_flag = as_json(capsys, "roofline", "--m", 8, "--ideal", "--set", "hbm_bandwidth=2x")
    assert from_file["bounds_s"]["hbm"] == pytest.approx(plain["bounds_s"]["hbm"] / 2)
    assert from_flag["bounds_s"] == from_file["bounds_s"]


def test_a_step_that_does_not_fit_exits_with_3_and_says_what_was_alive(capsys):
    code, out, err = run(capsys, "run", "decode_step", "--batch", 16, "--context", 16384)
    assert code == 3
    assert "does not fit: hbm needs" in err
    assert "DOES NOT FIT" in out
    assert "k_cache" in out


def test_a_script_of_ones_own_is_a_scenario(capsys, tmp_path):
    script = tmp_path / "mine.py"
    script.write_text(
        '"""One matmul."""\n'
        "from dataclasses import dataclass\n"
        "from simcore import Matmul, TaskGraph\n"
        "from simcore.scenario import param\n"
        "@dataclass(frozen=True)\n"
        "class Parameters:\n"
        "    n: int = param(128, help='sides', minimum=1)\n"
        "def build(p, chip):\n"
        "    graph = TaskGraph('mine')\n"
        "    core = graph.entity_class('chip')\n"
        "    core.unit('mxu')\n"
        "    core.task('multiply', unit='mxu', work=Matmul(p.n, p.n, p.n))\n"
        "    return graph\n"
    )
    assert as_json(capsys, script, "--n", 256)["flops"] == 2 * 256**3


OWN = """'A scenario of one number.'
from dataclasses import dataclass
from simcore.graph import Fixed, TaskGraph
from simcore.scenario import Simulation, param, run_script

@dataclass(frozen=True)
class Parameters:
    {name}: int = param(3, help="a number", minimum=1)

def build(parameters, chip):
    graph = TaskGraph("own")
    core = graph.entity_class("chip")
    core.unit("mxu")
    core.task("work", unit="mxu", work=Fixed.of(f"{{parameters.{name}}}us"))
    return Simulation(graph)

if __name__ == "__main__":
    run_script(Parameters, build)
"""


@pytest.mark.parametrize(
    ("command", "name"),
    [("compare", "measured"), ("compare", "alias"), ("trace", "port"), ("trace", "open")],
)
def test_a_parameter_named_as_a_flag_of_a_command_is_one_line(capsys, tmp_path, command, name):
    script = tmp_path / "own.py"
    script.write_text(OWN.format(name=name))
    code, out, err = run(capsys, command, script, "--help")
    assert (code, out) == (2, "")
    assert f"its parameter --{name} is a flag of simcore {command}; rename it" in err
    assert len(err.splitlines()) == 1
    assert as_json(capsys, script, f"--{name}", 5)["time_s"] == 5e-6  # elsewhere it is free


@pytest.mark.parametrize("name", ["layers", "gantt_layers", "chips", "gantt_chips"])
def test_a_flag_with_two_names_leaves_one_to_a_parameter(capsys, tmp_path, name):
    script = tmp_path / "own.py"
    script.write_text(OWN.format(name=name))
    flag = "--" + name.replace("_", "-")
    assert as_json(capsys, script, flag, 5)["time_s"] == 5e-6
    other = flag.replace("--gantt-", "--") if "gantt" in name else flag.replace("--", "--gantt-")
    code, _, err = run(capsys, "run", script, other, "0")
    assert code == 2
    assert f"{other}: needs --gantt FILE" in err


def test_a_fault_in_a_script_of_ones_own_is_one_line_that_names_it(capsys, tmp_path):
    script = tmp_path / "faulty.py"
    script.write_text(
        '"""Faulty."""\nfrom dataclasses import dataclass\n@dataclass(frozen=True)\nclass Parameters:\n    pass\n'
        "def build(p, chip):\n    return 1 / 0\n"
    )
    code, _, err = run(capsys, "run", script)
    assert code == 2
    assert "faulty.py:7: ZeroDivisionError" in err
    assert len(err.splitlines()) == 1


BAD = [
    (["rnu"], "did you mean run"),
    (["run", "double_bufering"], "did you mean double_buffering"),
    (["run"], "name a scenario"),
    (["run", "nothing/here.py"], "there is no such file"),
    (["run", "double_buffering", "--tile", "8"], "did you mean --tiles"),
    (["run", "double_buffering", "--tiles", "0"], "--tiles 0: must be at least 1"),
    (["run", "double_buffering", "--tiles", "-3"], "--tiles -3: must be at least 1"),
    (["run", "double_buffering", "--tiles", "2.5"], "must be a whole number"),
    (["run", "double_buffering", "--tiles", "99999999999"], "must be at most"),
    (["run", "double_buffering", "--tiles", ""], "must be a whole number"),
    (["run", "double_buffering", "--load", "fast"], "is no time"),
    (["run", "double_buffering", "--load", "-1ms"], "must be at least 0"),
    (["run", "double_buffering", "--load", "nan"], "is no time"),
    (["run", "double_buffering", "--tiles", "4", "--tiles", "8"], "--tiles is given twice"),
    (["run", "double_buffering", "--chip", "v55"], "unknown chip"),
    (["run", "double_buffering", "--set", "hbm_bandwith=1"], "did you mean hbm_bandwidth"),
    (["run", "double_buffering", "--set", "hbm_bandwidth"], "must be FIGURE=VALUE"),
    (["run", "double_buffering", "--engine", "warp"], "known: auto, simpy"),
    (["run", "double_buffering", "--gantt", "out.bmp"], "must be one of .png, .svg, .pdf"),
    (["run", "double_buffering", "--gantt", "no/such/folder/out.png"], "does not exist"),
    (["run", "double_buffering", "--table", "out.xlsx"], "must be one of .csv"),
    (["run", "double_buffering", "--html", "out.htm"], "the format; it must be .html"),
    (["run", "double_buffering", "--trace", "out.png.gz"], "must be one of .json, .json.gz"),
    (["run", "double_buffering", "--trace", "out.gz"], "must be one of .json, .json.gz"),
    (["run", "double_buffering", "--table", ".csv"], "must be one of .csv"),
    *(
        (["run", "double_buffering", flag, "a" * length + suffix], "the name is too long")
        for flag, suffix in (("--gantt", ".png"), ("--html", ".html"), ("--trace", ".json"), ("--table", ".csv"))
        for length in (245, 300)
    ),
    (["run", "double_buffering", "--gantt", "a" * 300 + "/a.png"], "cannot write there"),
    (["run", "double_buffering", "--gantt", "a\0b.png"], "zero byte"),
    (["compare", "double_buffering", "--a", "buffers=1", "--a", "buffers=2"], "--a buffers is given twice"),
    (["compare", "double_buffering", "--measured", ""], "--measured '': no name"),
    (["compare", "double_buffering", "--measured", "."], "--measured .: is a folder"),
    (["run", "double_buffering", "--zoom", "1us:2us"], "needs --gantt"),
    (["run", "double_buffering", "--gantt", "a.png", "--zoom", "2us:1us"], "from an earlier time"),
    (["run", "double_buffering", "--gantt", "a.png", "--zoom", "9s:10s"], "shows nothing"),
    (["run", "double_buffering", "extra"], "one word too many"),
    (["run", "tile_reuse", "--order", "input_outer"], "did you mean inputs_outer"),
    (["run", "tile_reuse", "--weights", "7"], "do not cut into 2 equal tiles"),
    (["run", "tile_reuse", "--weights", "8GB"], "of VMEM"),
    (["run", "roofline", "--m", "0"], "--m 0: must be at least 1"),
    (["run", "roofline", "--dtype", "bf61"], "did you mean bf16"),
    (["run", "roofline", "--tile-m", "100000", "--m", "100000"], "use smaller tiles"),
    (["run", "ring_allgather", "--ring", "0"], "--ring 0: must be at least 1"),
    (["run", "ring_allgather", "--ring", "3", "--bytes", "10"], "equal shards"),
    (["run", "ring_allgather", "--link-bandwidth", "0GB/s"], "must be more than 0"),
    (["run", "ring_allgather", "--chip", "H100"], "has no ici_link_bandwidth_bytes_per_s"),
    (["run", "decode_step", "--ring", "3"], "rings of 1, 2, 4, 8, 16, 32 do"),
    (["run", "decode_step", "--ring", "0"], "--ring 0: must be at least 1"),
    (["run", "decode_step", "--model", "lama3-8b"], "did you mean llama3-8b"),
    (["run", "decode_step", "--model", "no/config.json"], "there is no such file"),
    (["list", "chip"], "did you mean chips"),
    (["model"], "name a model"),
    (["model", "llama3-8b", "--context", "0"], "must be at least 1"),
    (["sweep", "double_buffering", "-o", "a.csv"], "--grid NAME=VALUE,... is missing"),
    (["sweep", "double_buffering", "--grid", "tiles=1,2"], "-o FILE.csv is missing"),
    (["sweep", "double_buffering", "--grid", "tile=1,2", "-o", "a.csv"], "did you mean tiles"),
    (["sweep", "double_buffering", "--grid", "tiles=1,x", "-o", "a.csv"], "must be a whole number"),
    (["sweep", "double_buffering", "--grid", "tiles=", "-o", "a.csv"], "must be NAME=VALUE"),
    (["sweep", "double_buffering", "--grid", "tiles=1,1", "-o", "a.csv"], "given twice"),
    (["sweep", "double_buffering", "--grid", "tiles=1", "--tiles", "2", "-o", "a.csv"], "both swept and given"),
    (["sweep", "double_buffering", "--grid", "tiles=1", "-o", "a.csv", "--jobs", "0"], "--jobs 0"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD, ids=[repr(" ".join(arguments))[1:70] for arguments, _ in BAD])
def test_a_mistake_is_one_line_exit_2_and_nothing_written(capsys, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, *arguments)
    assert code == 2
    assert out == ""
    assert err.startswith("simcore: error: ")
    assert message in err
    assert len(err.splitlines()) == 1
    assert not list(tmp_path.iterdir())


CONFIG = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 128,
}  # fmt: skip


def test_a_config_json_of_ones_own_runs(capsys, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    found = as_json(capsys, "decode_step", "--model", tmp_path / "config.json", "--context", 16, "--ring", 2)
    assert found["chips"] == 2
    assert found["model_parameters"] == 2 * (64 * 16 * 12 + 3 * 64 * 96) + 2 * 64 * 128


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is no JSON: line 1"),
        ("[]", "a config is a JSON object, but this is a list"),
        (json.dumps({**CONFIG, "hidden_size": None}), "hidden_size"),
        (json.dumps({key: value for key, value in CONFIG.items() if key != "vocab_size"}), "vocab_size"),
        (json.dumps({**CONFIG, "model_type": "lama"}), "llama"),
        (json.dumps({**CONFIG, "num_attention_heads": 0}), "num_attention_heads"),
        (json.dumps({**CONFIG, "num_key_value_heads": 3}), "multiple of n_kv_heads"),
    ],
)
def test_a_faulty_config_is_one_line_that_names_file_and_key(capsys, tmp_path, text, message):
    file = tmp_path / "config.json"
    file.write_text(text)
    code, out, err = run(capsys, "run", "decode_step", "--model", file)
    assert (code, out) == (2, "")
    assert message in err
    assert "config.json" in err
    assert len(err.splitlines()) == 1


def test_an_output_that_cannot_be_written_costs_no_simulation(capsys, tmp_path):
    code, _, err = run(capsys, "run", "double_buffering", "--gantt", tmp_path)
    assert code == 2
    assert "it is a folder" in err


def test_a_scenario_is_also_a_script_and_simcore_a_command():
    script = [sys.executable, str(ROOT / "scenarios" / "double_buffering.py"), "--tiles", "8", "--ideal", "--json"]
    by_script = json.loads(subprocess.run(script, capture_output=True, text=True, check=True).stdout)
    command = [sys.executable, "-m", "simcore.cli", "run", "double_buffering", "--tiles", "8", "--ideal", "--json"]
    by_command = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    for found in (by_script, by_command):
        found.pop("wall_s")
    assert by_script == by_command
    assert by_script["time_s"] == 425e-6
