"""The timeline as one HTML file that works from disk: zoom, pan, cards, search, folding, and walks along the waits.

Bokeh draws it; `simcore.views.bokeh_data` says what is on the page, and ``bokeh_timeline.js`` beside this file what the
page does. Nothing is fetched from a network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simcore.errors import OutputError
from simcore.files import written_beside
from simcore.quantities import format_bytes, format_seconds
from simcore.views.bokeh_data import PageData, page_data
from simcore.views.bokeh_memory import memory_figures
from simcore.views.heading import under_title, under_titles
from simcore.views.palette import Style
from simcore.views.report import CAUSES, RESOURCES, finding

if TYPE_CHECKING:
    from simcore.comparison import Comparison, Difference
    from simcore.result import RunResult

LEFT_PX, RIGHT_PX, ABOVE_PX = 150, 58, 36
SUFFIXES = (".html",)
FONT = "system-ui, sans-serif"
MOST_DIFFERENCES = 15
CARD = """<div style="max-width: 460px; font: 12px system-ui, sans-serif">
<div style="font-weight: 600; overflow-wrap: anywhere">@bar{custom}</div>
<div style="white-space: pre-wrap; tab-size: 96px">@card{custom}</div></div>"""


def write_html(result: RunResult, path: str | Path) -> None:
    """Write a run's timeline as a page. Raises `OutputError`, also where Bokeh is not installed."""
    _write([("", result)], path, heading=finding(result), under=under_title(result), name=result.scenario)


def write_compare_html(found: Comparison, path: str | Path) -> None:
    """Write both timelines of a comparison on one axis, and its tables. Raises `OutputError` as `write_html` does."""
    runs = [(found.label_a, found.a), (found.label_b, found.b)]
    under = under_titles(runs)
    waits = {"busy": "MXU or VPU busy", **CAUSES}
    tables = [
        _table(title, rows, found, written, names)
        for title, rows, written, names in (
            ("where the time goes", found.waits(), format_seconds, waits),
            ("time by operation", found.operations(), format_seconds, {}),
            ("work of each resource", found.resources(), format_seconds, RESOURCES),
            ("bytes moved", found.bytes(), format_bytes, RESOURCES),
        )
        if rows
    ]
    heading = f"{found.a.scenario}: {found.finding()}"
    _write(runs, path, heading=heading, under=under, name=found.a.scenario, tables=tables)


def _table(
    title: str, rows: list[Difference], found: Comparison, written: Any, names: Mapping[str, str]
) -> dict[str, Any]:
    cells = []
    for row in rows[:MOST_DIFFERENCES]:
        change = f"{'+' if row.change > 0 else '-'}{written(abs(row.change))}" if row.change else "same"
        cells.append([names.get(row.name, row.name), written(row.a), written(row.b), change])
    if len(rows) > MOST_DIFFERENCES:
        cells.append([f"{len(rows) - MOST_DIFFERENCES} others", "", "", ""])
    return {"title": title, "head": ["", found.label_a, found.label_b, "change"], "rows": cells}


def _write(
    runs: Sequence[tuple[str, RunResult]],
    path: str | Path,
    *,
    heading: str,
    under: str,
    name: str,
    tables: Sequence[dict[str, Any]] = (),
) -> None:
    if Path(path).suffix.lower() not in SUFFIXES:
        raise OutputError(f"cannot write {path}: a page is one of {', '.join(SUFFIXES)}")
    try:
        import bokeh.embed
        import bokeh.resources
    except ImportError:
        raise OutputError('an HTML timeline needs bokeh: pip install "simcore[html]"') from None
    data = page_data(runs)
    page = _Page(data, runs)
    text = bokeh.embed.file_html(
        page.document(),
        bokeh.resources.INLINE,
        title=f"{name}: timeline",
        template=_beside("bokeh_page.html"),
        template_variables={
            "heading": heading,
            "under": under,
            "legend": _legend(data.styles),
            "notes": [*data.notes, *page.notes],
            "tables": tables,
        },
    )
    with written_beside(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _beside(name: str) -> str:
    return (files("simcore.views") / name).read_text(encoding="utf-8")


class _Page:
    """The Bokeh models of a page."""

    def __init__(self, data: PageData, runs: Sequence[tuple[str, RunResult]]) -> None:
        from bokeh.models import Range1d

        self.data, self.runs = data, runs
        self.notes: list[str] = []
        end = data.end
        self.x_range = Range1d(0, end, bounds=(0, end), min_interval=100 / data.factor)
        self.models: dict[str, Any] = {"x_range": self.x_range, "above": ABOVE_PX, "small": data.small()}

    def document(self) -> Any:
        from bokeh.document import Document
        from bokeh.events import DocumentReady
        from bokeh.models import Column, CustomJS

        figures = [self._timeline()]
        memories, curves, self.notes = memory_figures(self.runs, self.data, self.x_range, self._bare_figure)
        self.models["curves"] = curves
        figures += memories
        figures[-1].xaxis[0].axis_label = f"time, {self.data.unit}"
        controls = self._controls()
        plots = Column(*figures, name="plots", sizing_mode="stretch_width")
        document = Document()
        for root in (controls, plots):
            document.add_root(root)
        code = f"{_beside('bokeh_timeline.js')}\nwindow.simcore_timeline = new Timeline({{{', '.join(self.models)}}})"
        document.js_on_event(DocumentReady, CustomJS(args=self.models, code=code))
        return document

    def _source(self, **columns: Any) -> Any:
        from bokeh.models import ColumnDataSource

        return ColumnDataSource(data=columns)

    def _bare_figure(self, height: int, tools: Sequence[Any], **more: Any) -> Any:
        """A figure on the common axis, its frame below the others' and as wide."""
        from bokeh.models import PanTool, WheelZoomTool
        from bokeh.plotting import figure

        wheel, pan = WheelZoomTool(dimensions="width", maintain_focus=False), PanTool(dimensions="width")
        made: Any = figure(
            frame_height=height, sizing_mode="stretch_width", x_range=self.x_range,
            tools=[pan, wheel, *tools], active_scroll=wheel, active_drag=pan, min_border_left=LEFT_PX,
            min_border_right=RIGHT_PX, toolbar_location="above", **more,
        )  # fmt: skip
        made.toolbar.logo = None
        made.xgrid.grid_line_color = "#EEEEEE"
        made.ygrid.grid_line_color = None
        made.outline_line_color = None
        axis = made.xaxis[0]
        axis.formatter.use_scientific = False
        for one in (axis, made.yaxis[0]):
            one.axis_label_text_font_style = "normal"
            one.major_label_text_font = one.axis_label_text_font = FONT
            one.minor_tick_line_color = None
        return made

    def _timeline(self) -> Any:
        from bokeh.events import Tap
        from bokeh.models import (
            BoxAnnotation,
            BoxZoomTool,
            CustomJS,
            FixedTicker,
            Label,
            LinearAxis,
            Range1d,
            ResetTool,
            ZoomInTool,
            ZoomOutTool,
        )  # fmt: skip

        y_range = Range1d(100, 0)
        tools = [BoxZoomTool(dimensions="width"), ZoomInTool(dimensions="width"), ZoomOutTool(dimensions="width")]
        plot = self._bare_figure(100, [*tools, ResetTool()], y_range=y_range, min_border_top=0, output_backend="webgl")
        left, right = plot.yaxis[0], LinearAxis(ticker=FixedTicker(ticks=[]))
        plot.add_layout(right, "right")
        left.ticker = FixedTicker(ticks=[])
        for axis in (left, right):
            axis.axis_line_color = axis.major_tick_line_color = axis.minor_tick_line_color = None
            axis.major_label_text_font = FONT
            axis.major_label_text_font_size = "12px"
        strips, headers = [], []
        for _ in self.data.groups:
            strips.append(BoxAnnotation(fill_color="#E8EEF4", fill_alpha=1, line_color=None, level="underlay"))
            headers.append(
                Label(x=6, y=0, x_units="screen", text_baseline="middle", text_font=FONT, text_font_size="12px",
                      text_font_style="bold")
            )  # fmt: skip
            for one in (strips[-1], headers[-1]):
                plot.add_layout(one)
        self.models.update(
            figure=plot, y_range=y_range, left_axis=left, right_axis=right, strips=strips, headers=headers
        )
        self._glyphs(plot)
        self._ends(plot)
        plot.js_on_event(Tap, CustomJS(code="window.simcore_timeline?.tap(cb_obj.x, cb_obj.y)"))
        for end in ("start", "end"):
            self.x_range.js_on_change(end, CustomJS(code="window.simcore_timeline?.moved()"))
        plot.js_on_change("inner_width", CustomJS(code="window.simcore_timeline?.moved()"))
        return plot

    def _glyphs(self, plot: Any) -> None:
        from bokeh.models import Arrow, CustomJSHover, HoverTool, NormalHead

        bands = self._source(left=[], right=[], top=[], bottom=[], foot=[], colour=[], label=[])
        plot.quad("left", "right", "top", "bottom", source=bands, fill_color="colour", line_color=None)
        plot.segment("left", "top", "left", "foot", source=bands, line_color="#CCCCCC", line_width=0.8)
        # A renderer for each style, and one more with its hatch: colours and hatches as columns take Bokeh long.
        styles = self.data.styles
        looks = [(style.colour, "") for style in styles]
        looks += [(style.colour, style.hatch[:1]) for style in styles if style.hatch]
        looks = list(dict.fromkeys(looks))
        sources, renderers = [], []
        for colour, hatch in looks:
            source = self._source(left=[], right=[], top=[], bottom=[], alpha=[], bar=[], card=[])
            drawn = {"hatch_pattern": hatch, "hatch_color": "black", "hatch_alpha": 0.35, "hatch_scale": 8}
            renderers.append(
                plot.quad("left", "right", "top", "bottom", source=source, fill_color=colour, fill_alpha="alpha",
                          line_color=None, **(drawn if hatch else {}))
            )  # fmt: skip
            sources.append(source)
        outlines = self._source(left=[], right=[], top=[], bottom=[], colour=[], width=[])
        plot.quad("left", "right", "top", "bottom", source=outlines, fill_color=None, line_color="colour",
                  line_width="width")  # fmt: skip
        texts = self._source(x=[], y=[], text=[], colour=[], behind=[], size=[])
        plot.text("x", "y", "text", source=texts, text_color="colour", text_align="center", text_baseline="middle",
                  text_font_size="size", text_font={"value": FONT}, background_fill_color="behind")  # fmt: skip
        chosen = self._source(left=[], right=[], top=[], bottom=[])
        plot.quad("left", "right", "top", "bottom", source=chosen, fill_color=None, line_color="#C2185B", line_width=3)
        arrows = self._source(x0=[], y0=[], x1=[], y1=[])
        head = NormalHead(size=7, fill_color="#C2185B", line_color="#C2185B")
        plot.add_layout(Arrow(source=arrows, x_start="x0", y_start="y0", x_end="x1", y_end="y1", end=head,
                              line_color="#C2185B", line_width=1.6))  # fmt: skip
        plot.add_tools(
            HoverTool(
                renderers=renderers,
                tooltips=CARD,
                point_policy="follow_mouse",
                formatters={
                    "@bar": CustomJSHover(code="return window.simcore_timeline?.card_title(value) ?? ''"),
                    "@card": CustomJSHover(code="return window.simcore_timeline?.card(value) ?? ''"),
                },
            )
        )
        self.models.update(
            plain=[looks.index((style.colour, "")) for style in styles],
            hatched=[looks.index((style.colour, style.hatch[:1])) for style in styles],
            sources=sources,
            bands_source=bands,
            outlines_source=outlines,
            texts_source=texts,
            chosen_source=chosen,
            arrows_source=arrows,
            bars_source=self._source(**self.data.bars),
            tasks_source=self._source(**self.data.tasks),
        )

    def _ends(self, plot: Any) -> None:
        """A line where each run but the longest ends."""
        from bokeh.models import Span

        for _, result in self.runs:
            end = result.timeline.makespan_ps / self.data.factor
            if end < self.data.end:
                plot.add_layout(Span(location=end, dimension="height", line_dash="dotted", line_width=1.5))

    def _controls(self) -> Any:
        from bokeh.events import ButtonClick, ValueSubmit
        from bokeh.models import Button, CheckboxButtonGroup, CustomJS, Div, Row, TextInput

        kinds = list(dict.fromkeys(lane["kind"] for lane in self.data.lanes))
        if any(group["bands"] for group in self.data.groups):
            kinds.insert(0, "layers")
        search = TextInput(placeholder="search: a task, an operation, layer 3", width=270)
        search.js_on_change("value_input", CustomJS(code="window.simcore_timeline?.search(cb_obj.value_input)"))
        search.js_on_event(ValueSubmit, CustomJS(code="window.simcore_timeline?.next(1)"))
        steps = []
        for label, step in (("previous", -1), ("next", 1)):
            button = Button(label=label, width=76)
            button.js_on_event(ButtonClick, CustomJS(code=f"window.simcore_timeline?.next({step})"))
            steps.append(button)
        count = Div(text="", width=110, styles={"line-height": "31px"})
        shown = Div(text="show", styles={"line-height": "31px"})
        buttons = CheckboxButtonGroup(labels=kinds, active=list(range(len(kinds))))
        buttons.js_on_change("active", CustomJS(code="window.simcore_timeline?.show_kinds(cb_obj.active)"))
        self.models.update(kinds=kinds, kind_buttons=buttons, count_text=count)
        return Row(search, *steps, count, shown, buttons, name="controls", styles={"flex-wrap": "wrap"})


def _legend(styles: Sequence[Style]) -> str:
    """Swatches with the hatches of the bars."""
    swatches = []
    for number, style in enumerate([*styles, Style("critical path", "none")]):
        drawn = _HATCHES.get(style.hatch[:1], "")
        line = ' stroke="black" stroke-width="1.6"' if style.colour == "none" else ""
        swatches.append(
            f'<span><svg width="26" height="14"><defs><pattern id="hatch{number}" width="8" height="8" '
            f'patternUnits="userSpaceOnUse">{drawn}</pattern></defs>'
            f'<rect x="1" y="1" width="24" height="12" fill="{style.colour}"{line}/>'
            f'<rect x="1" y="1" width="24" height="12" fill="url(#hatch{number})"/></svg>{escape(style.label)}</span>'
        )
    return "".join(swatches)


def _lines(*paths: str) -> str:
    return "".join(f'<path d="{path}" stroke="black" stroke-opacity="0.35"/>' for path in paths)


_FALLING, _RISING = "M-2,-2L10,10M-2,6L2,10M6,-2L10,2", "M-2,10L10,-2M-2,2L2,-2M6,10L10,6"
_HATCHES = {
    "/": _lines(_RISING),
    "\\": _lines(_FALLING),
    "x": _lines(_RISING, _FALLING),
    ".": '<circle cx="4" cy="4" r="1.4" fill-opacity="0.35"/>',
}
