"""Parts of charts: colours, panels side by side, axes that one bad value does not flatten, and files for papers."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import altair as alt
import vl_convert

from tempbalance.report.text import finite, short, shown

T = TypeVar("T")
Datum = dict[str, Any]
Signs = Mapping[str, tuple[str, str]]  # shape and colour by name
FORMATS = ("svg", "pdf", "png")
WIDTH, HEIGHT = 640, 280  # of a figure on paper; in the page the width is that of the box
PANEL_HEIGHT = 170
INK, FAINT = "#33373d", "#8a8f98"
BLUE, RED = "#3f7fbf", "#d0505a"
# readable on white and on black, in colour and, with the dashes, in grey; blue shades are TB's, grey is CAL's
_OURS, _PLAIN = (BLUE, "#1f5a94", "#2aa1b8", "#5a6fd0"), "#6f7a86"
COLOURS = ("#d0505a", "#2f9178", "#a9761c", "#8a63c4", "#c2559a", "#5d8a2e", "#b0602e", "#8c8c3c")
DASHES = ([1, 0], [7, 3], [2, 2], [9, 3, 2, 3], [4, 2], [12, 3], [1, 3], [6, 2, 1, 2, 1, 2])
_ROOM = 960  # width of all columns and their axes on the page and on paper
_TOP = 0.05  # share of an axis, at its end, without a tick
_LETTER = 6.3  # width of a letter of a label, about

DATA = alt.NamedData(name="main")


class Finished(alt.TopLevelMixin):
    """A chart with its data, which is shown and saved as Altair's are.

    Altair copies and checks every value at every step, so data and names go into the finished Vega-Lite.
    """

    def __init__(self, spec: Datum) -> None:
        self._spec = spec

    def to_dict(self, *_: Any, **__: Any) -> Datum:
        """Return the chart as Vega-Lite."""
        return dict(self._spec)


def finish(
    chart: Any,
    data: list[Datum],
    *,
    title: str | alt.Title,
    description: str,
    params: Sequence[Datum] = (),
) -> alt.TopLevelMixin:
    """Give a chart its data and parameters, its title, its text for screen readers and the common look."""
    spec = (
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
            labelColor=INK, titleColor=INK, orient="bottom", columns=3, labelLimit=290, labelFontSize=11, title=None
        )
        .configure_header(labelColor=INK, titleColor=INK, labelFontSize=12, labelLimit=300)
        .to_dict()
    )
    spec.setdefault("datasets", {})["main"] = data
    return Finished(spec | {"params": list(params)} if params else spec)


def finish_study(
    chart: Any,
    data: list[Datum],
    *,
    title: str,
    subtitle: str,
    note: str,
    description: str,
    names: Mapping[str, Sequence[str]] | None = None,
) -> alt.TopLevelMixin:
    """Give a chart its data and the common look; title, subtitle and note take as many lines as they need.

    ``names`` are labels by number, under the name of a parameter.
    """
    lines = [*_lines(subtitle, 400), *_lines(note, 400)]
    words = alt.Title(text=_lines(title, 400), subtitle=lines, subtitlePadding=5, subtitleFontSize=11, offset=14)
    params = [names_param(name, each) for name, each in (names or {}).items()]
    text = f"{short(description, 600)} {short(subtitle, 300)}"
    return finish(chart, data, title=words, description=text, params=params)


def _lines(text: str, most: int, width: int = 130) -> list[str]:
    return textwrap.wrap(short(text, most), width) if text else []


def save_figures(charts: Mapping[str, alt.TopLevelMixin], folder: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write each chart in each format.

    Args:
        charts: By name; the name becomes that of the file.
        folder: Folder of the files; made if it does not exist.
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
    return vl_convert.vegalite_to_pdf(spec) if form == "pdf" else vl_convert.vegalite_to_png(spec, scale=2)


def names_param(name: str, names: Sequence[object]) -> Datum:
    """Return names under their numbers, for labels: data hold numbers only, so a name is never a key or a field."""
    return {"name": name, "value": [short(each, 60) for each in names]}


def chooser(name: str, label: str, names: Sequence[object], value: int = 0) -> Datum:
    """Return a list to choose one of the names from; the value is its number."""
    labels = [short(each, 80) for each in names]
    bind = {"input": "select", "options": list(range(len(names))), "labels": labels, "name": label}
    return {"name": name, "value": value, "bind": bind}


def method_colours(names: Sequence[str]) -> list[str]:
    """Return a colour for each method: blue for TB, other blues for its variants, grey for CAL.

    Example:
        >>> method_colours(["CAL", "TB"]) == method_colours(["cal, lr 0.1", "VGG16, TB"])
        True
    """
    parts = [name.lower().split(", ") for name in names]
    firsts = [next((part for part in each if part == "cal" or part.startswith("tb")), "") for each in parts]
    ours, others, found = 1, 0, []
    for first in firsts:
        if first == "tb" and _OURS[0] not in found:
            found.append(_OURS[0])
        elif first.startswith("tb"):
            found.append(_OURS[ours % len(_OURS)])
            ours += 1
        elif first == "cal" and _PLAIN not in found:
            found.append(_PLAIN)
        else:
            found.append(COLOURS[others % len(COLOURS)])
            others += 1
    return found


def by_method(names: Sequence[str]) -> dict[str, Any]:
    """Return colour and dash of lines, a pair for each method, with one legend of `method_names`."""
    domain = list(range(len(names)))
    legend = alt.Legend(
        labelExpr="method_names[datum.value]",
        symbolType="stroke",
        symbolSize=500,
        symbolStrokeWidth=2,
        symbolOpacity=1,
        columns=3 if max(map(len, names), default=0) < 36 else 1,
    )
    dashes = [DASHES[each % len(DASHES)] for each in domain]
    return {
        "color": alt.Color("method:N", scale=alt.Scale(domain=domain, range=method_colours(names)), legend=legend),
        "strokeDash": alt.StrokeDash("method:N", scale=alt.Scale(domain=domain, range=dashes), legend=legend),
    }


def by_sign(used: Signs, *, fill: str | None = None) -> dict[str, Any]:
    """Return shape and colour of points by ``sign``, the name of their kind, with one legend of all kinds used."""
    shapes, colours = zip(*used.values(), strict=True)
    inside: dict[str, Any] = {} if fill is None else {"symbolFillColor": fill}
    legend = alt.Legend(symbolSize=70, symbolStrokeWidth=1.8, symbolOpacity=1, **inside)
    return {
        "shape": alt.Shape("sign:N", scale=alt.Scale(domain=list(used), range=list(shapes)), legend=legend),
        "color": alt.Color("sign:N", scale=alt.Scale(domain=list(used), range=list(colours)), legend=legend),
    }


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
        columns: Panels per row; ``None`` for 4 at most, and 5 and 6 in two rows of 3.
        axes: Room for the axes of a panel.
        height: Height of a panel.
        names: Names for labels by their number, under the name of a parameter.
        texts: ``title``, ``subtitle``, ``note`` and ``description``, as for `finish_study`.
    """
    columns = columns or min(len(titles), 3 if len(titles) in (5, 6) else 4)
    width = panel_width(columns, axes=axes)
    of: dict[int, list[Datum]] = {number: [] for number in range(len(titles))}
    for datum in data:
        of[datum["panel"]].append(datum)
    charts = [
        draw(Panel(number, width, columns, of[number])).properties(
            width=width, height=height, title=panel_title(name, width)
        )
        for number, name in enumerate(titles)
    ]
    return finish_study(grid(charts, columns=columns), data, names=names, **texts)


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
    """Return the heading of a panel, wrapped to its width."""
    words = _lines(text, 120, max(12, round(width / _LETTER)))
    return alt.Title(
        text=words if len(words) > 1 else "".join(words),
        anchor="middle",
        frame="group",
        fontSize=12,
        fontWeight="normal",
        offset=6,
    )


def label_axis(labels: Sequence[int], names: Sequence[str], width: int) -> alt.X:
    """Return an axis of labels, wrapped at spaces; slanted where a word is wider than its place.

    ``label_names`` has the names by number.
    """
    room = int(width / len(labels) / _LETTER)
    texts = [short(names[label], 60) for label in labels]
    longest = max(len(word) for text in texts for word in (text.split() or [""]))
    angle: dict[str, Any]
    if longest <= room:
        # a line for each word, and words that fit into a line together
        expression = (
            "split(label_names[datum.value], ' ')" if max(map(len, texts)) > room else "label_names[datum.value]"
        )
        angle = {"labelAngle": 0, "labelLimit": 200, "labelExpr": expression}
    else:
        angle = {"labelAngle": -38, "labelLimit": 170, "labelExpr": "label_names[datum.value]"}
    axis = alt.Axis(title=None, grid=False, labelOverlap=False, **angle)
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


def epoch_axis(data: Sequence[Datum], field: str = "epoch", title: str | None = None) -> alt.X:
    """Return an axis of whole numbers, such as epochs or steps."""
    there = [datum[field] for datum in data] or [0]
    low, high = min(there), max(there)
    values = _ticks(low, high + 1.2 * _TOP * (high - low), 1) if high > low else [low]
    axis = alt.Axis(values=values, format=",d", grid=False, labelOverlap="greedy")
    domain = [low, high] if high > low else [low - 1, high + 1]
    return alt.X(f"{field}:Q", title=title or field, axis=axis, scale=alt.Scale(nice=False, zero=False, domain=domain))


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


def zoomed(values: Iterable[float | None], *, most: float = math.inf) -> tuple[float, float] | None:
    """Return a range for an axis: room around the values, without a few that are far from all others.

    The range goes below 0 only if a value does, and not above ``most`` unless a value is.

    Example:
        >>> zoomed([84.0, 85.0, 86.0, 10.0])  # one setting diverged
        (83.76, 86.24)
    """
    there = _together([value for value in values if value is not None])
    if not there:
        return None
    low, high = min(there), max(there)
    room = 0.12 * (high - low) or 0.02 * abs(high) or 1.0
    bottom = low - room if low < 0 else max(0.0, low - room)
    return bottom, max(high, min(most, high + room)) if high <= most else high + room


def _together(values: list[float]) -> list[float]:
    """Skip values eight times as far from the median as most, if the range is a third without them."""
    if len(values) < 3:
        return values
    middle = median(values)
    reach = max(8 * median(abs(value - middle) for value in values), 0.02 * abs(middle))
    kept = [value for value in values if abs(value - middle) <= reach]
    return kept if 3 * (max(kept) - min(kept)) < max(values) - min(values) else values


def off_axis(base: alt.Chart, field: str, domain: tuple[float, float] | None) -> Iterator[alt.Chart]:
    """Draw an arrow with the number at the end of the axis for each value beyond it."""
    low, high = domain or (-math.inf, math.inf)
    for where, shape, y, above in (
        (f"datum.{field} < {low}", "triangle-down", PANEL_HEIGHT - 4, -9),
        (f"datum.{field} > {high}", "triangle-up", 4, 11),
    ):
        if domain is not None:
            there = base.transform_filter(f"isValid(datum.{field}) && {where}")
            yield there.mark_point(shape=shape, filled=True, size=40, color=RED, opacity=1).encode(y=alt.value(y))
            text = there.mark_text(fontSize=10, color=INK).encode(y=alt.value(y + above))
            yield text.encode(text=alt.Text(f"{field}:Q", format=".3~g"))


def error_rule(base: alt.Chart, *, low: str = "low", high: str = "high", **look: Any) -> alt.Chart:
    """Draw a line from one standard deviation below the mean to one above it, where there is one."""
    there = base.transform_filter(f"isValid(datum.{low}) && isValid(datum.{high})")
    rule: alt.Chart = there.mark_rule(strokeWidth=1.5, aria=False, clip=True, **look)
    rule = rule.encode(y=alt.Y(f"{low}:Q"), y2=f"{high}:Q")
    return rule


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
    """Return one standard deviation below and above the mean; ``None`` where either is missing.

    The lower end of a mean that is not negative is not negative either.
    """
    middle, error = finite(mean, 9), finite(std, 9)
    if middle is None or error is None:
        return None, None
    low = middle - error if middle < 0 else max(0.0, middle - error)
    return finite(low, 9), finite(middle + error, 9)
