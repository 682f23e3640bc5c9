"""The picture of a timeline: its title states the finding, and its lanes show what the contract promises."""

import dataclasses
import re
from itertools import pairwise

import matplotlib.image
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from simcore import Fixed, TaskGraph, run
from simcore.cli import main
from simcore.critical import critical_rows
from simcore.errors import OutputError
from simcore.scenario import run_scenario
from simcore.views import gantt
from simcore.views.gantt import LIGHTEST, at_least, draw_gantt, merge_slivers
from simcore.views.gantt_lanes import band_labels, groups_of
from simcore.views.gantt_panels import draw_gantts
from simcore.views.gantt_scale import GanttOptions, memory_strips, scale_of
from simcore.views.report import finding


def double_buffer(**parameters):
    return run_scenario("double_buffering", ideal=True, parameters=parameters)


def svg_of(result, tmp_path, **options):
    path = tmp_path / "picture.svg"
    draw_gantt(result, path, GanttOptions(**options))
    return path.read_text()


def texts(svg):
    return [re.sub(r"<[^>]+>", "", text) for text in re.findall(r"<text[^>]*>(.*?)</text>", svg, flags=re.S)]


def test_the_title_states_the_finding(tmp_path):
    result = double_buffer()
    assert finding(result) == "425 us · MXU 47 % · HBM 94 % · bound by HBM, 1.06 x its 400 us"
    assert finding(result) in texts(svg_of(result, tmp_path))


def test_a_double_buffer_shows_as_two_alternating_rows():
    groups, note = groups_of(double_buffer(tiles=4).timeline)
    lanes = {lane.label: lane for lane in groups[0].lanes}
    assert list(lanes) == ["MXU", "waiting on", "HBM→VMEM", "tiles 0", "tiles 1"]
    assert lanes["tiles 0"].bars[0].numbers.tolist() == [0, 2]
    assert lanes["tiles 1"].bars[0].numbers.tolist() == [1, 3]
    # From its load's start to its last use.
    assert lanes["tiles 0"].bars[0].start_ps.tolist() == [0, 200_000_000]
    assert lanes["tiles 0"].bars[0].end_ps.tolist() == [150_000_000, 350_000_000]
    assert note == ""


def test_chips_that_do_the_same_are_drawn_once():
    result = run_scenario("ring_allgather", ideal=True, parameters={"ring": 8, "direction": "both"})
    groups, _ = groups_of(result.timeline)
    assert [group.members for group in groups] == [8]
    assert groups[0].header == "chips x=0-7: 8 alike, drawn once"
    assert {lane.label for lane in groups[0].lanes} == {"ICI x+", "ICI x-", "waiting on"}


def test_chips_that_differ_are_drawn_apart():
    graph = TaskGraph("two")
    for name, work in (("fast", "1us"), ("slow", "2us")):
        core = graph.entity_class(name)
        core.unit("mxu")
        core.task("work", unit="mxu", work=Fixed.of(work))
    groups, _ = groups_of(run(graph).timeline)
    assert [group.header for group in groups] == ["fast", "slow"]


def test_layers_are_a_band():
    result = run_scenario("decode_step", parameters={"model": "tiny", "context": 64})
    bands = groups_of(result.timeline)[0][0].bands
    assert [band.label for band in bands] == ["layer 0", "layer 1"]
    assert bands[0].end_ps <= bands[1].start_ps


def test_the_critical_path_ends_last_and_is_unbroken():
    timeline = double_buffer().timeline
    rows = critical_rows(timeline)
    assert timeline.done_ps[rows[-1]] == timeline.makespan_ps
    assert timeline.released_by[rows[1:]].tolist() == rows[:-1].tolist()
    assert timeline.start_ps[rows[0]] == 0


def test_slivers_of_one_kind_are_merged_and_wide_bars_are_not():
    start = np.array([0, 10, 20, 100, 300], dtype=np.int64)
    end = np.array([9, 19, 29, 200, 301], dtype=np.int64)
    begins, ends, sizes = merge_slivers(start, end, narrow=20)
    assert begins.tolist() == [0, 100, 300]
    assert ends.tolist() == [29, 200, 301]
    assert sizes.tolist() == [3, 1, 1]


def test_merging_is_said_in_the_picture(tmp_path):
    many = double_buffer(tiles=20_000)
    found = texts(svg_of(many, tmp_path))
    assert any("narrower than a pixel are merged" in text for text in found)
    assert not any("merged" in text for text in texts(svg_of(double_buffer(), tmp_path)))


@pytest.mark.parametrize(
    ("count", "width", "shown"),
    [
        (3, 10.0, ["layer 0", "layer 1", "layer 2"]),
        (12, 3.0, [str(number) for number in range(12)]),
        (80, 2.0, ["0", "5", "10", "75"]),
        (80, 0.4, ["0", "10", "20", "70"]),
        (400, 0.1, ["0", "50", "100", "350"]),
    ],
)
def test_layers_that_do_not_all_fit_are_labelled_in_fives_or_tens(count, width, shown):
    edges = [(number * width, (number + 1) * width) for number in range(count)]
    found = band_labels([f"layer {number}" for number in range(count)], edges, 1.0)
    written = [label for label in found if label]
    assert written == shown if len(shown) > 4 or count == 3 else [*written[:3], written[-1]] == shown
    # None is over its neighbour.
    ends = [(sum(edges[at]) / 2, (len(label) + 1) / 2) for at, label in enumerate(found) if label]
    assert all(one + half <= other - more for (one, half), (other, more) in pairwise(ends))


def test_a_layer_that_is_cut_off_does_not_change_the_others():
    edges = [(0, 0.5), (0.5, 4), (4, 8), (8, 8.2)]
    assert band_labels(["layer 9", "layer 10", "layer 11", "layer 12"], edges, 1.0) == ["", "10", "11", ""]
    assert band_labels(["load", "compute"], [(0, 6), (6, 8)], 1.0) == ["load", ""]


def test_eighty_layers_are_labelled_up_to_the_last_ones(tmp_path):
    parameters = {"model": "tiny", "context": 16}
    result = run_scenario("decode_step", parameters=parameters)
    band, group = gantt.Band, groups_of(result.timeline)[0][0]
    step = result.timeline.makespan_ps // 80
    bands = [band(f"layer {number}", number * step, (number + 1) * step) for number in range(80)]
    options = GanttOptions()
    scale = scale_of(result.timeline, options)
    picture = gantt._Picture(result, [dataclasses.replace(group, bands=bands)], scale, options)
    found = [text.get_text() for text in picture.draw("").axes[0].texts]
    assert {"0", "5", "75"} <= set(found)


def test_bars_are_at_least_a_pixel_wide_and_end_in_the_picture():
    begin, end = at_least(np.array([0.0, 10.0, 99.5]), np.array([0.1, 20.0, 100.0]), 2.0, 100.0)
    assert begin.tolist() == [0, 10, 98]
    assert end.tolist() == [2, 20, 100]


def columns_drawn(picture, colour):
    """Columns of pixels with that colour somewhere."""
    return (np.abs(picture[:, :, :3].astype(int) - colour).max(axis=2) < 12).any(axis=0)


def test_no_bar_is_lost_between_pixels(tmp_path):
    """Forty stores far apart, each a tenth of a pixel: forty lines in the picture."""
    result = double_buffer(tiles=40, load="1s", compute="1ms")
    draw_gantt(result, tmp_path / "a.png")
    picture = (matplotlib.image.imread(tmp_path / "a.png") * 255).astype(int)
    blue = columns_drawn(picture[: len(picture) // 3], (0x00, 0x72, 0xB2))
    assert int((np.diff(blue.astype(int)) == 1).sum()) == 40


def test_merged_bars_are_as_light_as_they_are_sparse(tmp_path, monkeypatch):
    drawn = []
    collection = gantt._Picture._collection
    monkeypatch.setattr(
        gantt._Picture, "_collection",
        lambda self, begin, end, y, height, colours, hatch: (
            drawn.append(colours), collection(self, begin, end, y, height, colours, hatch),
        )[1],
    )  # fmt: skip
    draw_gantt(double_buffer(tiles=20_000, compute="0.04ms"), tmp_path / "a.svg")
    red = min(float(colours[:, 0].min()) for colours in drawn if not isinstance(colours, str))
    assert red == pytest.approx(1 - LIGHTEST, abs=0.05)  # of blue, which has no red in it


def test_two_runs_share_what_stands_below_the_title(tmp_path):
    panels = [(f"buffers={n}", double_buffer(buffers=n)) for n in (1, 2)]
    draw_gantts(panels, tmp_path / "a.svg", "two")
    found = texts((tmp_path / "a.svg").read_text())
    under = next(text for text in found if text.startswith("double_buffering on v5e"))
    assert "buffers=" not in under
    assert "load=400us" in under


def test_below_the_title_what_is_not_at_its_default_comes_first(tmp_path):
    found = texts(svg_of(double_buffer(tiles=4), tmp_path))
    assert any("(tiles=4, load=400us" in text for text in found)


def test_the_same_run_gives_the_same_file(tmp_path):
    assert svg_of(double_buffer(), tmp_path) == svg_of(double_buffer(), tmp_path)


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_the_suffix_chooses_the_format(tmp_path, suffix):
    path = tmp_path / f"picture.{suffix}"
    double_buffer().gantt(path)
    assert path.read_bytes()[:5] in (b"\x89PNG\r", b"<?xml", b"%PDF-")
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_a_window_shows_a_part_and_one_beyond_the_end_is_refused(tmp_path):
    result = double_buffer()
    assert "a part of a run of 425 us" in " ".join(texts(svg_of(result, tmp_path, window_s=(1e-4, 2e-4))))
    assert "a part of a run" not in " ".join(texts(svg_of(result, tmp_path)))
    for window in ((1.0, 2.0), (-1.0, 2.0), (2e-4, 1e-4)):
        with pytest.raises(OutputError, match="shows nothing"):
            draw_gantt(result, tmp_path / "none.png", GanttOptions(window_s=window))
    assert not (tmp_path / "none.png").exists()


@pytest.mark.parametrize("parameters", [{"load": 0, "compute": 0}, {"tiles": 1}, {"load": 0}])
def test_runs_of_nothing_or_little_can_be_drawn(tmp_path, parameters):
    double_buffer(**parameters).gantt(tmp_path / "small.png")


def test_an_empty_graph_can_be_drawn_and_reported(tmp_path):
    graph = TaskGraph("empty")
    graph.entity_class("chip")
    result = run(graph)
    result.gantt(tmp_path / "empty.png")
    assert "0 s" in result.report()


def test_layers_of_a_model_that_repeats_in_periods_are_numbered_one_by_one():
    """gemma2 alternates two kinds of layers, so one iteration of its loop is two layers."""
    result = run_scenario("decode_step", parameters={"model": "gemma2-9b", "context": 64})
    bands = groups_of(result.timeline)[0][0].bands
    assert [band.label for band in bands] == [f"layer {number}" for number in range(42)]


def tiny_pipeline():
    parameters = {"model": "tiny", "context": 32, "batch": 4, "plan": "pipeline=2,tensor=2"}
    return run_scenario("decode_step", parameters=parameters)


def test_layers_choose_the_window():
    result = run_scenario("decode_step", parameters={"model": "tiny", "context": 64})
    whole = scale_of(result.timeline, GanttOptions())
    first, second = (scale_of(result.timeline, GanttOptions(layers=(at, at))) for at in (0, 1))
    assert whole.begin_ps <= first.begin_ps < first.end_ps <= second.end_ps <= whole.end_ps
    with pytest.raises(OutputError, match="layers 7 to 9 show nothing: the run has layers 0 to 1"):
        scale_of(result.timeline, GanttOptions(layers=(7, 9)))


def test_chips_are_chosen_by_number_also_where_they_are_folded():
    result = tiny_pipeline()
    assert [group.entity for group in groups_of(result.timeline, (0, 1))[0]] == [0]
    assert [group.entity for group in groups_of(result.timeline, (3,))[0]] == [1]
    with pytest.raises(OutputError, match="there is no chip 4: the run has 4"):
        groups_of(result.timeline, (4,))


def test_microbatches_are_bands_of_each_stage():
    groups, _ = groups_of(tiny_pipeline().timeline)
    assert [[band.label for band in group.bands] for group in groups] == [["m0", "m1"], ["m0", "m1"]]


def test_memories_are_curves_below_where_asked_for(tmp_path):
    result = tiny_pipeline()
    strips = memory_strips(result, scale_of(result.timeline, GanttOptions()))
    assert [name for name, _, _ in strips] == ["VMEM held", "HBM held"]
    for (_, held, most), memory in zip(strips, ("vmem", "hbm"), strict=True):
        assert most == pytest.approx(result.memory_peak_bytes[memory] / result.memory_capacity_bytes[memory])
        assert held.max() == pytest.approx(most)
    draw_gantt(result, tmp_path / "memory.svg", GanttOptions(memory=True))
    assert "HBM held" in (tmp_path / "memory.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--layers", "1:2"], "--layers: needs --gantt FILE"),
        (["--layers", ""], "--layers: needs --gantt FILE"),
        (["--gantt", "a.png", "--layers", ""], "--layers '': must be whole numbers"),
        (["--gantt", "a.png", "--chips", ""], "--chips '': must be whole numbers"),
        (["--gantt", "a.png", "--layers", "0", "--zoom", "0us:1us"], "--zoom and --layers"),
        (["--gantt", "a.png", "--zoom", "0us:1e-30s"], "shorter than a picosecond"),
        (["--layers", "5:3", "--gantt", "x.png"], "must be a first and a last layer"),
        (["--layers", "a:b", "--gantt", "x.png"], "must be whole numbers"),
        (["--chips", "-1", "--gantt", "x.png"], "0 or more"),
        (["--memory"], "--memory: needs --gantt FILE"),
    ],
)
def test_zooms_that_cannot_be_say_why(words, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["run", "decode_step", "--model", "tiny", "--context", "16", *words]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("scenario", "parameters"),
    [
        ("double_buffering", {}),
        ("host_offload", {"layers": 4}),
        ("decode_step", {"model": "tiny", "context": 64, "batch": 4, "plan": "pipeline=2,tensor=2"}),
        ("prefill", {"model": "tiny", "context": 256, "ring": 4}),
    ],
)
def test_no_text_lies_on_another(scenario, parameters):
    result = run_scenario(scenario, parameters=parameters)
    options = GanttOptions()
    groups, note = groups_of(result.timeline)
    figure = gantt._Picture(result, groups, scale_of(result.timeline, options), options).draw(note)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    boxes = [
        (text.get_text(), text.get_window_extent(renderer))
        for text in figure.findobj(Text)
        if text.get_text().strip() and text.get_visible()
    ]
    assert len(boxes) > 8
    for number, (one, box) in enumerate(boxes):
        for other, against in boxes[number + 1 :]:
            shared = [
                min(box.x1, against.x1) - max(box.x0, against.x0), min(box.y1, against.y1) - max(box.y0, against.y0)
            ]  # fmt: skip
            assert min(shared) < 1.5, f"{one!r} lies on {other!r}"
