"""What the README and the docs show works as typed."""

import re
import shlex
from pathlib import Path

import matplotlib
import pytest

from simcore.cli import main

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page, language):
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.S)


def commands(page):
    return [
        line.removeprefix("simcore ")
        for block in blocks(page, "")
        for line in block.splitlines()
        if line.startswith("simcore ")
    ]


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.name)
def test_python_on_a_page_runs_from_top_to_bottom(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    matplotlib.use("Agg")
    names = {"__name__": "example"}
    for block in blocks(page, "python"):
        exec(compile(block, str(page), "exec"), names)


@pytest.mark.parametrize("command", [command for page in PAGES for command in commands(page)])
def test_commands_on_a_page_work_as_typed(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    arguments = shlex.split(command)
    if arguments[0] == "sweep":
        arguments += ["--jobs", "1"]
    assert main(arguments) in (0, 3)
    said = capsys.readouterr()
    assert said.out or said.err


def test_the_pages_of_the_readme_exist():
    for link in re.findall(r"\]\(((?:docs)/[^)]+)\)", (ROOT / "README.md").read_text(encoding="utf-8")):
        assert (ROOT / link).is_file(), link


def test_own_graph_is_twenty_lines():
    first = blocks(ROOT / "docs" / "own_graph.md", "python")[0]
    assert len([line for line in first.splitlines() if line.strip()]) <= 20
