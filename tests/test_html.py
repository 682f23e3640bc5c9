"""The HTML timeline, in headless Chromium: it loads from disk alone, shows the bars, zooms, and says what waited for
what."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from simcore.cli import main
from simcore.comparison import Comparison
from simcore.errors import OutputError
from simcore.result import RunResult
from simcore.scenario import load_scenario, run_scenario
from simcore.views.bokeh_data import TASK, WAIT, page_data
from simcore.views.bokeh_timeline import write_compare_html, write_html
from simcore.views.gantt_lanes import band_labels
from simcore.views.report import finding

SHOWN = "window.simcore_timeline !== undefined && window.simcore_timeline.shown.length > 0"
POINT = """([x, y]) => {
    const {figure} = window.simcore_timeline, view = Bokeh.index.find_one(figure)
    const box = view.el.getBoundingClientRect(), {x_scale, y_scale} = view.frame
    return [box.x + x_scale.compute(x), box.y + y_scale.compute(y)]
}"""
CARD_SHOWS = """(text) => {
    const all = (root) => [...root.querySelectorAll("*")]
        .flatMap((e) => e.shadowRoot ? [e, ...all(e.shadowRoot)] : [e])
    const cards = all(document).filter((e) => e.matches(".bk-Tooltip, [class*=tooltip]"))
    return cards.some((e) => (e.shadowRoot ?? e).textContent.includes(text))
}"""
LONGEST = """(lane_label) => {
    const t = window.simcore_timeline
    let best = -1
    for (const [lane, , from, to] of t.data.blocks)
        if (t.data.lanes[lane].label === lane_label)
            for (let bar = from; bar < to; bar++)
                if (best < 0 || t.bars.right[bar] - t.bars.left[bar] > t.bars.right[best] - t.bars.left[best])
                    best = bar
    const lane = t.lane_of(best)
    return {bar: best, row: t.bars.row[best], x: (t.bars.left[best] + t.bars.right[best]) / 2,
            y: lane.top + lane.height / 2, name: t.name(t.bars.row[best])}
}"""


def simulated(name: str, **parameters: Any) -> RunResult:
    return run_scenario(load_scenario(name), parameters=parameters)


@pytest.fixture(scope="module")
def result() -> RunResult:
    return simulated("double_buffering", tiles=6)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("there is no Chromium: apt-get install chromium")
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        yield opened
        opened.close()


class Opened:
    """A page in the browser, with what went wrong on it and what it asked a network for."""

    def __init__(self, browser: Any, path: Path, before: str = "") -> None:
        self.page = browser.new_page(viewport={"width": 1300, "height": 900})
        if before:
            self.page.add_init_script(before)
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", lambda said: said.type == "error" and self.errors.append(said.text))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())
        self.page.wait_for_function(SHOWN, timeout=60_000)
        self.page.wait_for_timeout(300)

    def read(self, expression: str, *given: Any) -> Any:
        return self.page.evaluate(expression, *given)

    def of(self, attribute: str) -> Any:
        return self.read(f"() => window.simcore_timeline.{attribute}")

    def point(self, x: float, y: float) -> tuple[float, float]:
        left, top = self.read(POINT, [x, y])
        return left, top


@pytest.fixture(scope="module")
def opened(browser: Any, result: RunResult, tmp_path_factory: pytest.TempPathFactory) -> Opened:
    path = tmp_path_factory.mktemp("html") / "run.html"
    write_html(result, path)
    return Opened(browser, path)


# -- without a browser ----------------------------------------------------------------------------------------


def test_the_page_is_one_file_that_asks_for_nothing(result: RunResult, tmp_path: Path) -> None:
    write_html(result, tmp_path / "run.html")
    text = (tmp_path / "run.html").read_text(encoding="utf-8")
    assert not re.search(r"<(script|link)[^>]*(src|href)\s*=", text)
    assert "<title>double_buffering: timeline</title>" in text
    assert finding(result) in text
    assert [path.name for path in tmp_path.iterdir()] == ["run.html"]


def test_bars_are_the_tasks_that_take_time(result: RunResult) -> None:
    page, t = page_data([("", result)]), result.timeline
    served = int(((t.end_ps > t.start_ps) & (t.lane >= 0)).sum())
    assert int((page.bars["kind"] == TASK).sum()) == served
    busy = page.bars["kind"] != WAIT
    assert (page.bars["right"] >= page.bars["left"]).all()
    assert busy.any()


def test_waits_and_computing_fill_the_time(result: RunResult) -> None:
    page = page_data([("", result)])
    waits = page.bars["kind"] == WAIT
    waited = float((page.bars["right"] - page.bars["left"])[waits].sum())
    computed = sum(
        float((page.bars["right"] - page.bars["left"])[first:last].sum())
        for lane, _, first, last in page.blocks
        if page.lanes[lane]["label"] in ("MXU", "VPU")
    )
    assert waited + computed == pytest.approx(page.end)


def test_too_many_bars_are_merged_and_the_page_says_so() -> None:
    result = simulated("decode_step", ring=1, context=1024)
    whole, merged = page_data([("", result)]), page_data([("", result)], most_bars=2000)
    assert len(merged.bars["left"]) <= 2000 < len(whole.bars["left"])
    assert merged.bars["stands_for"].sum() == len(whole.bars["left"])
    assert any("are merged with their neighbours" in note for note in merged.notes)


def test_a_page_has_its_suffix(result: RunResult, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"\.html"):
        write_html(result, tmp_path / "run.htm5")
    assert main(["run", "double_buffering", "--html", str(tmp_path / "run.png")]) == 2
    assert not list(tmp_path.iterdir())


def test_without_bokeh_one_line_says_how_to_get_it(
    result: RunResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "bokeh"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "bokeh", None)
    with pytest.raises(OutputError, match=r'pip install "simcore\[html\]"'):
        write_html(result, tmp_path / "run.html")


def test_what_a_task_waited_for_is_found_on_the_page_though_its_chip_is_drawn_by_another() -> None:
    result = simulated("cross_slice")
    page, t = page_data([("", result)]), result.timeline
    assert sum(group["header"].endswith("alike, drawn once") for group in page.groups) > 1
    tasks = page.tasks
    found = {}
    for row, by in enumerate(tasks["by"].tolist()):
        waiter = page.task_names[tasks["task"][row]], page.chips[tasks["chip"][row]], tasks["start"][row]
        found[waiter] = (page.task_names[tasks["task"][by]], tasks["start"][by]) if by >= 0 else None
    assert -2 not in tasks["by"]
    for row, by in enumerate(t.released_by.tolist()):
        waiter = t.task_names[t.task[row]], t.entities[t.entity[row]].label, t.start_ps[row] / page.factor
        if waiter in found:
            releaser = (t.task_names[t.task[by]], t.start_ps[by] / page.factor) if by >= 0 else None
            assert found.pop(waiter) == releaser
    assert not found


# -- in the browser -------------------------------------------------------------------------------------------


def test_it_loads_from_disk_without_errors(opened: Opened, result: RunResult) -> None:
    assert opened.errors == []
    assert len(opened.requests) == 1
    assert finding(result) in opened.page.inner_text("body")
    assert opened.of("bars.left.length") == len(page_data([("", result)]).bars["left"])
    drawn = opened.read("() => window.simcore_timeline.sources.reduce((sum, s) => sum + s.data.left.length, 0)")
    assert drawn > 0


def test_the_wheel_zooms_where_the_pointer_is(opened: Opened) -> None:
    bar = opened.read(LONGEST, "MXU")
    start, end = opened.of("x_range.start"), opened.of("x_range.end")
    opened.page.mouse.move(*opened.point(bar["x"], bar["y"]))
    opened.page.mouse.wheel(0, -400)
    opened.page.wait_for_function(f"window.simcore_timeline.x_range.end - window.simcore_timeline.x_range.start < "
                                  f"0.95 * {end - start}")  # fmt: skip
    assert opened.of("x_range.start") <= bar["x"] <= opened.of("x_range.end")
    opened.read("([start, end]) => window.simcore_timeline.x_range.setv({start, end})", [start, end])
    opened.page.wait_for_timeout(200)


def test_hovering_shows_what_a_bar_is(opened: Opened) -> None:
    bar = opened.read(LONGEST, "MXU")
    opened.page.mouse.move(*opened.point(bar["x"], bar["y"] + 1))
    opened.page.mouse.move(*opened.point(bar["x"], bar["y"]))
    opened.page.wait_for_function(CARD_SHOWS, arg=bar["name"])
    lines = dict(opened.read("(bar) => window.simcore_timeline.lines(bar)", bar["bar"]))
    assert lines["duration"]
    assert lines["start"]
    assert any("waited for" in name for name in lines)


def test_search_counts_and_goes_to_matches(opened: Opened, result: RunResult) -> None:
    box = opened.page.locator("input").first
    box.fill("compute")
    opened.page.wait_for_function("window.simcore_timeline.matches.length > 0")
    t = result.timeline
    named = [number for number, name in enumerate(t.task_names) if "compute" in name]
    assert opened.of("matches.length") == sum(int((t.task == number).sum()) for number in named)
    opened.page.get_by_text("next", exact=True).click()
    opened.page.wait_for_function("window.simcore_timeline.match === 0")
    assert opened.of("chosen") == opened.of("matches[0]")
    box.fill("no such task")
    opened.page.wait_for_function("window.simcore_timeline.matching && !window.simcore_timeline.matches.length")
    box.fill("")
    opened.read("() => window.simcore_timeline.clear()")
    opened.page.wait_for_timeout(200)


def test_a_click_walks_back_along_what_was_waited_for(opened: Opened, result: RunResult) -> None:
    opened.read("() => window.simcore_timeline.x_range.setv({start: 0, end: window.simcore_timeline.data.end})")
    opened.page.wait_for_timeout(300)
    bar = opened.read(LONGEST, "MXU")
    opened.page.mouse.click(*opened.point(bar["x"], bar["y"]))
    opened.page.wait_for_function("window.simcore_timeline.chosen >= 0")
    row = opened.of("chosen_row")
    start = opened.read("(row) => window.simcore_timeline.tasks.start[row]", row)
    t, page = result.timeline, page_data([("", result)])
    name = opened.read("(row) => window.simcore_timeline.data.task_names[window.simcore_timeline.tasks.task[row]]", row)
    mine = [
        at for at in range(len(t))
        if t.task_names[t.task[at]] == name and t.start_ps[at] / page.factor == pytest.approx(start)
    ]  # fmt: skip
    chain, at = [], int(t.released_by[mine[0]])
    while at >= 0:
        chain.append(t.task_names[t.task[at]])
        at = int(t.released_by[at])
    shown = opened.read(
        "() => { const t = window.simcore_timeline;return t.chain.map((row) => t.data.task_names[t.tasks.task[row]]) }"
    )
    assert shown == chain
    assert opened.page.locator("#chain").is_visible()
    opened.page.keyboard.press("Escape")
    assert opened.page.locator("#chain").is_hidden()


def test_lanes_fold(opened: Opened) -> None:
    before = opened.of("y_range.start")
    opened.read("() => window.simcore_timeline.fold(0, true)")
    assert opened.of("y_range.start") < before
    opened.read("() => window.simcore_timeline.fold(0, false)")
    assert opened.of("y_range.start") == before
    kinds = opened.of("kinds")
    opened.page.get_by_text("buffers", exact=True).click()
    opened.page.wait_for_function("window.simcore_timeline.hidden.has('buffers')")
    assert "buffers" in kinds
    assert opened.of("y_range.start") < before
    opened.page.get_by_text("buffers", exact=True).click()


ALWAYS_WEBGL = """
    const context = HTMLCanvasElement.prototype.getContext
    HTMLCanvasElement.prototype.getContext = function (kind, options) {
        return context.call(this, kind, {...options, failIfMajorPerformanceCaveat: false})
    }
    // And it does not say that it is done in software.
    const parameter = WebGLRenderingContext.prototype.getParameter
    WebGLRenderingContext.prototype.getParameter = function (name) {
        const found = parameter.call(this, name)
        return typeof found === "string" ? found.replace(/swiftshader|llvmpipe|softpipe|software/gi, "a card") : found
    }
"""


def test_webgl_draws_it_unless_it_is_done_in_software(
    opened: Opened, browser: Any, result: RunResult, tmp_path: Path
) -> None:
    assert opened.of("figure.output_backend") == "canvas"  # this browser has no graphics processor
    write_html(result, tmp_path / "run.html")
    drawn = Opened(browser, tmp_path / "run.html", ALWAYS_WEBGL)
    assert drawn.errors == []
    assert drawn.of("figure.output_backend") == "webgl"
    assert sum(drawn.of("sources.map((source) => source.data.bar.length)")) > 0
    views = "Bokeh.index.find_one(window.simcore_timeline.figure).renderer_views.values()"
    assert drawn.read(f"() => [...{views}].some((view) => view.has_webgl)")


def test_memories_share_the_axis(opened: Opened) -> None:
    shared = opened.read(
        "() => [...Bokeh.index.find_one(window.simcore_timeline.figure).model.document.roots()[1].children]"
        ".map((figure) => figure.x_range.id)"
    )
    assert len(shared) > 1
    assert len(set(shared)) == 1


def test_two_runs_are_compared_on_one_axis(browser: Any, tmp_path: Path) -> None:
    runs = [simulated("double_buffering", tiles=4, buffers=buffers) for buffers in (1, 2)]
    found = Comparison("buffers=1", "buffers=2", *runs)
    write_compare_html(found, tmp_path / "compare.html")
    opened = Opened(browser, tmp_path / "compare.html")
    assert opened.errors == []
    text = opened.page.inner_text("body")
    assert "where the time goes" in text
    assert "waiting for HBM" in text
    assert "double_buffering on v5e, calibrated model (tiles=4, load=400us" in re.sub(r"\s+", " ", text)
    assert opened.of("data.end") == pytest.approx(page_data([("", runs[0])]).end)


@pytest.mark.parametrize("width", [60, 24, 15, 3])
def test_layers_are_labelled_as_in_the_picture(opened: Opened, width: int) -> None:
    labels = [f"layer {number}" for number in range(80)]
    edges = [(number * width, (number + 1) * width) for number in range(80)]
    shown = opened.read("([labels, edges]) => window.simcore_timeline.labels_of(labels, edges)", [labels, edges])
    # The page leaves six pixels of room, the picture a character.
    assert shown == band_labels(labels, edges, 6.1)


def test_zooming_draws_once_a_frame_in_columns_of_numbers(opened: Opened) -> None:
    drawn = opened.read("""async () => {
        const t = window.simcore_timeline, draw = t.draw, frame = () => new Promise(requestAnimationFrame)
        let count = 0
        t.draw = () => { count++; draw.call(t) }
        await frame()
        for (let step = 1; step <= 20; step++) {
            t.x_range.setv({start: 0, end: t.data.end * (1 - step / 50)})
            await Promise.resolve()
        }
        await frame(); await frame(); await frame()
        delete t.draw
        const last = t.x_range.end, shown = Math.max(...t.sources.flatMap((source) => [...source.data.left]))
        t.x_range.setv({start: 0, end: t.data.end})
        await frame(); await frame()
        const kinds = new Set(t.sources.map((source) => source.data.left.constructor.name))
        return {count, last, shown, kinds: [...kinds], drawn: t.sources.some((source) => source.data.bar.length)}
    }""")
    assert drawn["count"] <= 3
    assert drawn["shown"] < drawn["last"]  # the last step was drawn
    assert "Float64Array" in drawn["kinds"]
    assert drawn["drawn"]


def test_narrow_bars_have_no_hatch(opened: Opened) -> None:
    count = """([start, end]) => {
        const t = window.simcore_timeline
        t.x_range.setv({start, end})
        t.draw()
        const hatched = t.hatched.filter((number, style) => number !== t.plain[style])
        return hatched.reduce((sum, number) => sum + t.parts[number].count, 0)
    }"""
    end = opened.of("data.end")
    assert opened.read(count, [0, end]) > 0
    opened.read("() => { window.simcore_timeline.x_range.bounds = null }")
    assert opened.read(count, [0, 300 * end]) == 0
    opened.read(count, [0, end])
    opened.page.wait_for_timeout(200)


def test_fifty_thousand_bars_load_and_zoom(browser: Any, tmp_path: Path) -> None:
    write_html(simulated("prefill"), tmp_path / "prefill.html")
    opened = Opened(browser, tmp_path / "prefill.html")
    assert opened.of("bars.left.length") > 50_000
    drawn = "() => window.simcore_timeline.sources.reduce((sum, s) => sum + s.data.left.length, 0)"
    # What Bokeh draws is bounded by the pixels, not by the run.
    assert 0 < opened.read(drawn) < 6_000
    end = opened.of("data.end")
    opened.read("([start, end]) => window.simcore_timeline.x_range.setv({start, end})", [0.5 * end, 0.5005 * end])
    opened.page.wait_for_function(f"({drawn})() < 1000")
    alone = opened.read("() => window.simcore_timeline.joined.size")
    assert alone < opened.read(drawn)
    assert opened.errors == []
    assert (tmp_path / "prefill.html").stat().st_size < 8e6
