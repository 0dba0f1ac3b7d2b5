"""Parts of charts: look, panels side by side, axes, and files for papers and slides."""

from __future__ import annotations

import json
import math
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, TypeVar

import altair as alt
import vl_convert

from tempbalance.report.text import finite, short, shown

WIDTH, HEIGHT = 640, 280  # of a figure on paper; in the page the width is that of the box
INK, FAINT = "#33373d", "#8a8f98"
BLUE, RED = "#3f7fbf", "#d0505a"
COLOURS = ("#3f7fbf", "#d0505a", "#2f9178", "#a9761c", "#8a63c4", "#6f7a86", "#c2559a", "#5d8a2e")
DASHES = ([1, 0], [7, 3], [2, 2], [9, 3, 2, 3], [4, 2], [12, 3], [1, 3], [6, 2, 1, 2, 1, 2])

# Data go into a chart last and as text: lists would be copied and checked, value by value, at every step.
DATA = alt.NamedData(name="main", format=alt.JsonDataFormat(type="json"))


def finish(chart: Any, data: list[dict[str, Any]], *, title: str | alt.Title, description: str) -> alt.TopLevelMixin:
    """Give a chart its data, its title, its text for screen readers and the common look."""
    finished: alt.TopLevelMixin = (
        chart.properties(title=title, description=description)
        .configure(background="white", font="sans-serif", padding=8)
        .configure_view(continuousWidth=WIDTH, continuousHeight=HEIGHT, stroke=None)
        .configure_title(anchor="start", fontSize=14, color=INK, offset=12, subtitleColor=INK)
        .configure_axis(
            labelColor=INK,
            titleColor=INK,
            labelFontSize=11,
            titleFontSize=11,
            titleFontWeight="normal",
            gridColor=FAINT,
            gridOpacity=0.25,
            domainColor=FAINT,
            tickColor=FAINT,
        )
        .configure_legend(
            labelColor=INK, titleColor=INK, orient="bottom", columns=3, labelLimit=220, labelFontSize=11, title=None
        )
        .configure_header(labelColor=INK, titleColor=INK, labelFontSize=12, labelLimit=300)
        .properties(datasets={"main": json.dumps(data, allow_nan=False)})
    )
    return finished


def names_param(name: str, names: Sequence[object]) -> alt.Parameter:
    """Names under their numbers, for labels: data hold the numbers only, so a name is never a key or a field."""
    return alt.param(name=name, value=[short(each, 40) for each in names])


def chooser(name: str, label: str, names: Sequence[object], value: int = 0) -> alt.Parameter:
    """A list to choose one of the names from; the value is its number."""
    labels = [short(each, 80) for each in names]
    return alt.param(
        name=name, value=value, bind=alt.binding_select(options=list(range(len(names))), labels=labels, name=label)
    )


def by_method(num_methods: int) -> dict[str, Any]:
    """Colour and dash of lines, one pair for each method, with one legend of `method_names`."""
    domain = list(range(num_methods))
    legend = alt.Legend(
        labelExpr="method_names[datum.value]", symbolType="stroke", symbolSize=500, symbolStrokeWidth=2, symbolOpacity=1
    )
    colours = [COLOURS[each % len(COLOURS)] for each in domain]
    dashes = [DASHES[each % len(DASHES)] for each in domain]
    return {
        "color": alt.Color("method:N", scale=alt.Scale(domain=domain, range=colours), legend=legend),
        "strokeDash": alt.StrokeDash("method:N", scale=alt.Scale(domain=domain, range=dashes), legend=legend),
    }


T = TypeVar("T")
Datum = dict[str, Any]
Signs = Mapping[str, tuple[str, str]]  # shape and colour by name
PANEL_HEIGHT = 170
_ROOM = 900  # width of all columns and their axes on the page and on paper
_TOP = 0.05  # share of an axis, at its end, without a tick
_LETTER = 6.3  # width of a letter of a label, about


@dataclass(frozen=True)
class Panel:
    """One of several panels: its number, width, the number of columns, and its data."""

    number: int
    width: int
    columns: int
    data: Sequence[Datum]

    @property
    def base(self) -> alt.Chart:
        """A chart of the panel's data."""
        return of_panel(alt.Chart(DATA), self.number)

    def first(self, title: str) -> str | None:
        """Return a title for the first panel of a row, ``None`` for the others."""
        return title if self.number % self.columns == 0 else None

    def column(self, field: str) -> list[Any]:
        """Return a field of all data."""
        return [datum[field] for datum in self.data]


def panels_chart(
    titles: Sequence[str],
    data: list[Datum],
    draw: Callable[[Panel], Any],
    *,
    columns: int | None = None,
    axes: int = 58,
    height: float = PANEL_HEIGHT,
    names: Mapping[str, Sequence[str]] | None = None,
    **texts: str,
) -> alt.TopLevelMixin:
    """Draw a panel for each title.

    Args:
        titles: Headings; the data of the panel with the number ``n`` have ``panel`` n.
        data: Data of all panels.
        draw: Returns the chart of a panel.
        columns: Panels per row; ``None`` for `num_columns`.
        axes: Room for the axes of a panel.
        height: Height of a panel.
        names: Names for labels by their number, under the name of a parameter.
        texts: ``title``, ``subtitle``, ``note`` and ``description``, as for `finish_study`.
    """
    columns = columns or num_columns(len(titles))
    width = panel_width(columns, axes=axes)
    charts = []
    for number, name in enumerate(titles):
        panel = Panel(number, width, columns, [datum for datum in data if datum["panel"] == number])
        charts.append(draw(panel).properties(width=width, height=height, title=panel_title(name, width)))
    chart = grid(charts, columns=columns)
    for name, each in (names or {}).items():
        chart = chart.add_params(names_param(name, list(each)))
    return finish_study(chart, data, **texts)


def num_columns(num_panels: int) -> int:
    """Return the number of panels in a row, 4 at most; 5 and 6 are in two rows of 3."""
    return min(num_panels, 3 if num_panels in (5, 6) else 4)


def panel_width(columns: int, *, axes: int = 58) -> int:
    """Return the width of a panel, without its axes."""
    return min(420, _ROOM // columns - axes)


def grid(panels: Sequence[Any], *, columns: int) -> alt.ConcatChart:
    """Arrange panels row by row."""
    return alt.concat(*panels, columns=columns, spacing={"row": 18, "column": 14})


def of_panel(base: alt.Chart, number: int) -> alt.Chart:
    """Keep the data of one panel."""
    mine: alt.Chart = base.transform_filter(f"datum.panel == {number}")
    return mine


def panel_title(text: str, width: int) -> alt.Title:
    """Return the heading of a panel, cut to its width."""
    words = short(text, max(12, round(width / _LETTER)))
    return alt.Title(text=words, anchor="middle", frame="group", fontSize=12, fontWeight="normal", offset=6)


def label_axis(labels: Sequence[int], names: Sequence[str], width: int) -> alt.X:
    """Return an axis of labels, which ``label_names`` has by number; slanted where they would touch each other."""
    longest = max(len(short(names[label], 40)) for label in labels)
    is_slanted = longest * _LETTER > width / len(labels)
    angle: dict[str, Any] = (
        {"labelAngle": -38, "labelLimit": 110} if is_slanted else {"labelAngle": 0, "labelLimit": 200}
    )
    axis = alt.Axis(labelExpr="label_names[datum.value]", title=None, grid=False, **angle)
    return alt.X("label:O", scale=alt.Scale(domain=list(labels), paddingInner=0.25, paddingOuter=0.2), axis=axis)


def measure_axis(
    field: str, title: str | None, domain: tuple[float, float] | None, *, min_step: float = 0, **options: Any
) -> alt.Y:
    """Return an axis over a domain with ticks at least ``min_step`` apart; bare without a domain."""
    ticks: dict[str, Any] = {"labels": False, "ticks": False}
    if domain:
        ticks = {"tickCount": 5, "values": _ticks(*domain, min_step)}
    scale = alt.Scale(domain=list(domain or (0, 1)), nice=False, zero=False)
    return alt.Y(field, title=title and shown(title), scale=scale, axis=alt.Axis(**{**ticks, **options}))


def _ticks(low: float, high: float, min_step: float) -> list[float]:
    """Return about five round numbers; none is near the top, where its label would push the title up."""
    rough = (high - low) / 7
    decade = 10.0 ** math.floor(math.log10(rough))
    step = max(min_step, next(each * decade for each in (1, 2, 5, 10) if each * decade >= 0.999 * rough))
    first, last = math.ceil(low / step), math.floor((high - _TOP * (high - low)) / step)
    return [float(f"{place * step:.12g}") for place in range(first, last + 1)]


def log_axis(domain: tuple[float, float]) -> dict[str, Any]:
    """Return scale and axis over a domain, with ticks at powers of ten, and at 2 and 5 times those if they are few."""
    low, high = domain
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    by_step = {
        step: [tick for each in exponents if low <= (tick := step * 10.0**each) <= high * (low / high) ** _TOP]
        for step in (1, 2, 5)
    }
    ticks = sorted(tick for each in by_step.values() for tick in each)
    if len(ticks) > 7:
        ticks = by_step[1][:: len(by_step[1]) // 7 + 1]
    elif len(ticks) < 2:
        ticks = _ticks(low, high, 0)
    label = "datum.value < 0.001 || datum.value >= 100000 ? format(datum.value, '.0e') : format(datum.value, '~g')"
    return {
        "scale": alt.Scale(type="log", domain=[low, high], nice=False),
        "axis": alt.Axis(values=ticks, labelExpr=label, labelOverlap="greedy", labelSeparation=4, grid=False),
    }


def error_rule(base: alt.Chart, *, low: str = "low", high: str = "high", **look: Any) -> alt.Chart:
    """Draw a line from one standard deviation below the mean to one above it, where there is one."""
    there = base.transform_filter(f"isValid(datum.{low}) && isValid(datum.{high})")
    rule: alt.Chart = there.mark_rule(strokeWidth=1.5, aria=False, **look).encode(y=alt.Y(f"{low}:Q"), y2=f"{high}:Q")
    return rule


def by_sign(used: Signs) -> dict[str, Any]:
    """Return shape and colour of points by ``sign``, the name of their kind, with one legend of all kinds used."""
    shapes, colours = zip(*used.values(), strict=True)
    legend = alt.Legend(symbolSize=70, symbolStrokeWidth=1.8, symbolOpacity=1)
    return {
        "shape": alt.Shape("sign:N", scale=alt.Scale(domain=list(used), range=list(shapes)), legend=legend),
        "color": alt.Color("sign:N", scale=alt.Scale(domain=list(used), range=list(colours)), legend=legend),
    }


def finish_study(
    chart: Any, data: list[Datum], *, title: str, subtitle: str, note: str, description: str
) -> alt.TopLevelMixin:
    """Give a chart its data and the common look; title, subtitle and note take as many lines as they need."""
    lines = [*_lines(subtitle), *_lines(note)]
    words = alt.Title(text=_lines(title), subtitle=lines, subtitlePadding=5, subtitleFontSize=11, offset=14)
    return finish(chart, data, title=words, description=f"{short(description, 600)} {short(subtitle, 300)}")


def _lines(text: str) -> list[str]:
    return textwrap.wrap(short(text, 400), 130) if text else []


def check(items: Sequence[T], what: str, key: Callable[[T], object] | None = None) -> None:
    """Refuse items that cannot be drawn.

    Raises:
        ValueError: If there are none, or several have the same key.
    """
    if not items:
        raise ValueError(f"the chart needs at least one {what}, got none")
    counts = Counter(map(key, items)) if key else {}
    for place, count in counts.items():
        if count > 1:
            raise ValueError(f"each {what} must have its own place, got {count} at {shown(place)}")


def numbered(names: Iterable[T]) -> dict[T, int]:
    """Number different names in the order of appearance."""
    return {name: number for number, name in enumerate(dict.fromkeys(names))}


def evenly(values: Sequence[T], most: int) -> list[T]:
    """Choose at most this many values evenly, with the first and the last."""
    if len(values) <= most:
        return list(values)
    return [values[round(place * (len(values) - 1) / (most - 1))] for place in range(most)]


def ends(mean: float | None, std: float | None) -> tuple[float | None, float | None]:
    """Return one standard deviation below and above the mean; ``None`` where either is missing."""
    middle, error = finite(mean, 9), finite(std, 9)
    if middle is None or error is None:
        return None, None
    return finite(middle - error, 9), finite(middle + error, 9)


def zoomed(values: Iterable[float | None]) -> tuple[float, float] | None:
    """Return a range that holds the values with some room around them; ``None`` if there is no value."""
    there = [value for value in values if value is not None]
    if not there:
        return None
    low, high = min(there), max(there)
    room = 0.12 * (high - low) or 0.02 * abs(high) or 1.0
    return low - room, high + room


FORMATS = ("svg", "pdf", "png")


def save_figures(charts: Mapping[str, alt.TopLevelMixin], folder: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write each chart in each format.

    Args:
        charts: By name; the name becomes that of the file.
        folder: Where to; made if it is not there.
        formats: Of ``svg``, ``pdf``, ``png``.

    Returns:
        The files, chart by chart.

    Raises:
        ValueError: If a format is not known.
    """
    for each in formats:
        if each not in FORMATS:
            raise ValueError(f"formats must be of {', '.join(FORMATS)}, got {each!r}")
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, chart in charts.items():
        spec = chart.to_dict()
        for each in formats:
            written.append(folder / f"{name}.{each}")
            written[-1].write_bytes(_rendered(spec, each))
    return written


def _rendered(spec: dict[str, object], form: str) -> bytes:
    if form == "svg":
        label = escape(str(spec["description"]))
        return vl_convert.vegalite_to_svg(spec).replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1).encode()
    if form == "pdf":
        return vl_convert.vegalite_to_pdf(spec)
    return vl_convert.vegalite_to_png(spec, scale=2)
