"""Traces for Perfetto: nothing overlaps on a line, every scenario's passes, and the same run gives the same bytes."""

import gzip
import json
import threading
import urllib.error
import urllib.request

import pytest

from simcore.cli import main
from simcore.commands.trace import PERFETTO, server_of
from simcore.errors import OutputError
from simcore.measured import against_measured, read_measured
from simcore.scenario import run_scenario, scenario_names
from simcore.views.chrome_trace import check_trace, events_of, us, write_trace

SMALL = {
    "decode_step": {"model": "tiny", "context": 64, "ring": 2},
    "prefill": {"model": "tiny", "context": 128},
    "generate": {"model": "tiny", "context": 32, "steps": 2},
    "kv_cache": {"model": "tiny", "context": 64, "groups": 2},
    "moe_layer": {"batch": 2},
    "flash_attention": {"positions": 512, "heads": 4, "kv_heads": 2},
    "two_layer_mlp": {"batch": 64},
    "host_offload": {"layers": 3},
    "roofline": {"m": 256, "k": 256, "n": 256},
    "tile_reuse": {},
    "training_step": {"model": "tiny", "context": 64, "batch": 4, "plan": "fsdp=2"},
    "remat": {"model": "tiny", "context": 64, "batch": 4, "plan": "fsdp=2"},
    "pipeline": {"model": "tiny", "context": 64, "batch": 4, "plan": "pipeline=2", "microbatches": 4},
}


@pytest.mark.parametrize("name", scenario_names())
def test_the_trace_of_every_scenario_passes_the_checks(name, tmp_path):
    chip = "v5p" if name in ("moe_layer", "multi_axis") else None
    result = run_scenario(name, chip=chip, parameters=SMALL.get(name, {}))
    path = tmp_path / "run.json.gz"
    write_trace(result, path)
    data = json.loads(gzip.decompress(path.read_bytes()))
    check_trace(data["traceEvents"])
    spans = [event for event in data["traceEvents"] if event["ph"] == "X"]
    last = max(round(event["ts"] * 10**6) + round(event["dur"] * 10**6) for event in spans)
    assert last == result.timeline.makespan_ps


@pytest.fixture(scope="module")
def result():
    return run_scenario("decode_step", parameters={"model": "tiny", "context": 64, "ring": 4})


def test_it_is_laid_out_as_profiles_of_jax_are(result):
    events = events_of(result)
    lines = [event["args"]["name"] for event in events if event["name"] == "thread_name"]
    assert lines[:3] == ["Steps", "XLA Modules", "XLA Ops"]
    assert "Async XLA Ops" in lines
    assert {"DMA HBM to VMEM", "MXU", "VPU"} <= set(lines)
    processes = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert processes == ["/device:TPU:0 chips tensor=0-3: 4 alike, drawn once"]
    assert {event["name"] for event in events if event["ph"] == "C"} == {"VMEM held", "HBM held", "HBM bytes/s"}


def test_bytes_and_flops_of_spans_are_those_of_the_run(result):
    events = events_of(result)
    spans = [event for event in events if event["ph"] == "X"]
    units = [event for event in spans if 100 <= event["tid"] < 1000]
    assert 4 * sum(event["args"].get("flops", 0) for event in units) == result.flops
    ops = [event for event in spans if event["tid"] == 3]
    assert 4 * sum(event["args"]["flops"] for event in ops) == result.flops
    busy = sum(event["dur"] for event in ops)
    assert busy * 1e-6 >= result.busy_s * 0.999


def test_every_picosecond_survives():
    for ps in (1, 999_999, 1_000_001, 123_456_789_012_345):
        assert round(us(ps) * 10**6) == ps


def test_arrows_follow_the_critical_path(result):
    events = events_of(result)
    starts = {event["id"]: event for event in events if event["ph"] == "s"}
    ends = {event["id"]: event for event in events if event["ph"] == "f"}
    assert starts
    assert set(starts) == set(ends)
    assert all(starts[number]["ts"] <= ends[number]["ts"] for number in starts)


def test_the_same_run_gives_the_same_bytes(tmp_path):
    for name in ("one", "two"):
        write_trace(run_scenario("double_buffering"), tmp_path / f"{name}.json.gz")
    assert (tmp_path / "one.json.gz").read_bytes() == (tmp_path / "two.json.gz").read_bytes()


def test_our_own_reader_of_profiles_reads_it(result, tmp_path):
    write_trace(result, tmp_path / "run.trace.json.gz")
    found = against_measured(result, read_measured(tmp_path / "run.trace.json.gz"))
    assert {row.name for row in found.matched} >= {"q", "gate", "down", "logits"}


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ([{"ph": "Z"}], "unknown kind"),
        ([{"ph": "X", "pid": 1, "tid": 1, "name": "a", "ts": 0, "dur": 1}], "has no name"),
        ([{"ph": "X", "pid": 1, "tid": 1, "name": "a", "ts": -1, "dur": 1}], "has no time"),
        (
            [
                {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "line"}},
                {"ph": "X", "pid": 1, "tid": 1, "name": "a", "ts": 0, "dur": 2},
                {"ph": "X", "pid": 1, "tid": 1, "name": "b", "ts": 1, "dur": 2},
            ],
            "'b' overlaps another span",
        ),
    ],
)
def test_the_check_finds_faults(events, message):
    with pytest.raises(OutputError, match=message):
        check_trace(events)


def test_the_file_is_served_to_perfetto_once_and_nothing_else_is(tmp_path):
    path = tmp_path / "run.json.gz"
    path.write_bytes(b"data")
    with server_of(path, 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        address = f"http://127.0.0.1:{server.server_port}"
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(f"{address}/../secret", timeout=5)
        with urllib.request.urlopen(f"{address}/run.json.gz", timeout=5) as answer:
            assert answer.read() == b"data"
            assert answer.headers["Access-Control-Allow-Origin"] == PERFETTO
        thread.join(timeout=5)
        assert not thread.is_alive()
        with pytest.raises(OutputError, match="cannot serve there"):
            server_of(path, server.server_port)


def test_the_commands(tmp_path, capsys):
    path = tmp_path / "run.json.gz"
    assert main(["trace", "double_buffering", "-o", str(path)]) == 0
    assert path.is_file()
    other = tmp_path / "same.json"
    assert main(["run", "double_buffering", "--trace", str(other), "--quiet"]) == 0
    check_trace(json.loads(other.read_text(encoding="utf-8"))["traceEvents"])
    for words, message in (
        (["double_buffering"], "say where to write it"),
        (["double_buffering", "-o", str(tmp_path / "x.txt")], "the suffix chooses the format"),
        (["double_buffering", "-o", str(path), "--port", "99999"], "from 0"),
        ([str(path)], "is a trace already"),
        (["nothing"], "unknown scenario"),
    ):
        assert main(["trace", *words]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(("name", "content"), [("a.json.gz", b"no gzip"), ("a.json", b"<html>"), ("a.json", b"")])
def test_what_is_no_trace_is_not_served(tmp_path, capsys, name, content):
    (tmp_path / name).write_bytes(content)
    assert main(["trace", str(tmp_path / name), "--open", "--port", "0"]) == 2
    out = capsys.readouterr()
    assert out.out == ""
    assert out.err.count("\n") == 1
    assert "is no trace" in out.err
