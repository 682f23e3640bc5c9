"""``simcore trace``: a run as a trace for Perfetto, written to a file or served to its page on this machine."""

from __future__ import annotations

import gzip
import tempfile
import threading
import zlib
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from simcore.commands import common
from simcore.commands.outputs import TRACES, note, output_path
from simcore.commands.parser import CommandParser, Once
from simcore.errors import OutputError, ScenarioError
from simcore.quantities import parse_count
from simcore.scenario import Scenario, run_scenario, scenario_names

PERFETTO = "https://ui.perfetto.dev"
PORT = 9001
"""The port that Perfetto's page may fetch from."""


def main(arguments: Sequence[str], prog: str) -> int:
    given = next((word for word in arguments if word.endswith((".json", ".json.gz")) and Path(word).is_file()), None)
    if given is not None and arguments[max(list(arguments).index(given) - 1, 0)] not in ("-o", "--output"):
        rest = [word for word in arguments if word != given]
        parsed = _parser(prog, None).parse_all(rest)
        if not parsed.open:
            raise ScenarioError(f"{given} is a trace already: --open serves it to Perfetto")
        _check_trace(Path(given))
        return _serve(Path(given), _port(parsed.port))
    scenario, word, rest = common.split_scenario(arguments, _parser(prog, None), prog)
    if scenario is None:
        _parser(prog, None).parse_all(rest)
        raise AssertionError("the help leaves by HelpShown")
    parsed = _parser(f"{prog} {word}", scenario).parse_all(rest)
    path = output_path("-o", parsed.output, TRACES)
    if path is None and not parsed.open:
        raise ScenarioError("say where to write it, -o FILE.json.gz, or --open to serve it to Perfetto")
    port = _port(parsed.port)
    result = run_scenario(
        scenario,
        chip=parsed.chip,
        figures=common.given_figures(parsed),
        ideal=parsed.ideal,
        engine=common.given_engine(parsed),
        parameters=common.given_parameters(parsed),
    )
    from simcore.views.chrome_trace import write_trace

    if path is not None:
        write_trace(result, path)
        note(f"wrote {path}", quiet=parsed.quiet)
        return _serve(path, port) if parsed.open else 0
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / f"{scenario.name}.json.gz"
        write_trace(result, made)
        return _serve(made, port)


def _check_trace(path: Path) -> None:
    """Raise `ScenarioError` for a file that does not begin as JSON does: Perfetto's page would say nothing useful."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            begin = file.read(1024).lstrip()
    except (OSError, EOFError, zlib.error) as error:
        raise ScenarioError(f"{path} is no trace: {error}") from None
    if begin[:1] not in (b"{", b"["):
        raise ScenarioError(f"{path} is no trace: it does not hold JSON")


def _port(text: str) -> int:
    port = parse_count(text)
    if not 0 <= port < 65536:
        raise ScenarioError(f"--port {text}: from 0 (any that is free) to 65535")
    return port


def _serve(path: Path, port: int) -> int:
    """Serve the file on loopback until Perfetto's page has fetched it, or Ctrl-C."""
    with server_of(path, port) as server:
        address = f"{PERFETTO}/#!/?url=http://127.0.0.1:{server.server_port}/{path.name}"
        print(f"open this address in a browser on this machine:\n{address}", flush=True)
        note("waiting until it has been fetched once; Ctrl-C ends it")
        server.serve_forever(poll_interval=0.1)
    return 0


def server_of(path: Path, port: int) -> ThreadingHTTPServer:
    """A server that gives the one file to Perfetto's page, once, and then stops. Raises `OutputError`."""

    class Handler(BaseHTTPRequestHandler):
        def _head(self, status: int, size: int = 0) -> None:
            self.send_response(status)
            self.send_header("Access-Control-Allow-Origin", PERFETTO)
            self.send_header("Cache-Control", "no-cache")
            self.send_header("Content-Type", "application/octet-stream")
            self.send_header("Content-Length", str(size))
            self.end_headers()

        def do_GET(self) -> None:
            if self.path.lstrip("/") != path.name:
                self._head(404)
                return
            data = path.read_bytes()
            self._head(200, len(data))
            self.wfile.write(data)
            # Not from the thread that serves: it waits for this handler.
            threading.Thread(target=self.server.shutdown, daemon=True).start()

        def do_HEAD(self) -> None:
            known = self.path.lstrip("/") == path.name
            self._head(200 if known else 404, path.stat().st_size if known else 0)

        def do_OPTIONS(self) -> None:
            self._head(204)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: the address has been printed."""

    try:
        return ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except OSError as error:
        raise OutputError(f"--port {port}: cannot serve there: {error.strerror}; --port 0 takes any") from None


def _parser(prog: str, scenario: Scenario | None) -> CommandParser:
    about = (
        "A run as a Chrome trace, laid out as JAX profiles are. --open serves it on this machine's loopback to the\n"
        "Perfetto page, whose address it prints; nothing leaves the machine, no window is opened. It ends when the\n"
        "file has been fetched once. With a trace file instead of a scenario, that file is served.\n"
    )
    if scenario is None:
        parser = CommandParser(
            prog=prog,
            usage=f"{prog} SCENARIO|FILE.json.gz [--PARAM VALUE]... [-o FILE] [--open]",
            about=f"{about}scenarios: {', '.join(scenario_names())}",
            example=f"{prog} decode_step --ring 4 -o decode.json.gz",
        )
    else:
        parser = CommandParser(
            prog=prog,
            usage=f"{prog} [--PARAM VALUE]... [-o FILE] [--open] [flags]",
            about=f"{about}\n{scenario.about}",
            example=f"{prog} -o {scenario.name}.json.gz",
        )
        common.add_scenario_flags(parser, scenario)
    common.add_run_flags(parser)
    group = parser.add_argument_group("output")
    group.add_argument("-o", "--output", metavar="FILE", action=Once, help="the trace: .json.gz or .json")
    group.add_argument("--open", action="store_true", help="serve it to Perfetto's page, and print the address")
    group.add_argument("--port", metavar="N", action=Once, default=str(PORT), help=f"to serve on (default: {PORT})")
    group.add_argument("--quiet", action="store_true", help="print no notes")
    return parser
