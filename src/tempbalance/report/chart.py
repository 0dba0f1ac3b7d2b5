"""Parts of charts: colours, panels side by side, axes that one bad value does not flatten, and files for papers."""

from __future__ import annotations

import json
import math
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from operator import attrgetter
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import altair as alt
import vl_convert

from tempbalance.report.text import finite, short, shown

T = TypeVar("T")
Datum = dict[str, Any]
Domain = tuple[float, float]
Signs = Mapping[str, tuple[str, str]]  # shape and colour by name
FORMATS = ("svg", "pdf", "png")
PANEL_HEIGHT = 170
INK, FAINT = "#33373d", "#8a8f98"
BLUE, RED = "#3f7fbf", "#d0505a"
# readable on white and on black, in colour and, with the dashes, in grey; blue shades are TB's, grey is CAL's
_OURS, _PLAIN = (BLUE, "#1f5a94", "#2aa1b8", "#5a6fd0"), "#6f7a86"
COLOURS = ("#d0505a", "#2f9178", "#a9761c", "#8a63c4", "#c2559a", "#5d8a2e", "#b0602e", "#8c8c3c")
DASHES = ([1, 0], [7, 3], [2, 2], [9, 3, 2, 3], [4, 2], [12, 3], [1, 3], [6, 2, 1, 2, 1, 2])
_TOP = 0.05  # share of an axis, at its end, without a tick
_LETTER = 6.3  # width of a letter of a label, about

DATA = alt.NamedData(name="main")
# the common look, and the note and description of each chart
_WORDS = json.loads(files("tempbalance.report").joinpath("templates", "charts.json").read_text(encoding="utf-8"))


class Finished(alt.TopLevelMixin):
    """A chart with its data, which is shown and saved as Altair's are.

    Altair copies and checks every value at every step, so data and names go into the finished Vega-Lite.
    """

    def __init__(self, spec: Datum) -> None:
        self._spec = spec

    def to_dict(self, *_: Any, **__: Any) -> Datum:
        return dict(self._spec)


def finish(
    chart: Any, data: list[Datum], *, title: str | alt.Title, description: str, params: Sequence[Datum] = ()
) -> alt.TopLevelMixin:
    """Give a chart its data and parameters, its title, its text for screen readers and the common look."""
    spec = chart.properties(title=title, description=description).to_dict() | {"config": _WORDS["config"]}
    spec.setdefault("datasets", {})["main"] = data
    return Finished(spec | {"params": list(params)} if params else spec)


def finish_study(
    kind: str, chart: Any, data: list[Datum], *, title: str, subtitle: str, names: Mapping[str, Any], **values: object
) -> alt.TopLevelMixin:
    """Finish a chart with the words of its kind; ``names`` are labels by number, ``values`` stand in the words."""
    note, description = (_WORDS[kind].get(each, "").format(**values) for each in ("note", "description"))
    lines = [*_lines(subtitle, 400), *_lines(note, 400)]
    words = alt.Title(text=_lines(title, 400), subtitle=lines, subtitlePadding=5, subtitleFontSize=11, offset=14)
    params = [names_param(name, each) for name, each in names.items()]
    text = f"{short(description, 600)} {short(subtitle, 300)}"
    return finish(chart, data, title=words, description=text, params=params)


def _lines(text: str, most: int, width: int = 130) -> list[str]:
    return textwrap.wrap(short(text, most), width) if text else []


def save_figures(charts: Mapping[str, alt.TopLevelMixin], folder: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write each chart in each format into a folder, which is made if it does not exist, and return the files."""
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


def _rendered(spec: Datum, form: str) -> bytes:
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
    ours, others, found = 1, 0, []
    for name in names:
        parts = name.lower().split(", ")
        method = next((part for part in parts if part == "cal" or part.startswith("tb")), "")
        if method == "tb" and _OURS[0] not in found:
            found.append(_OURS[0])
        elif method.startswith("tb"):
            found.append(_OURS[ours % len(_OURS)])
            ours += 1
        elif method == "cal" and _PLAIN not in found:
            found.append(_PLAIN)
        else:
            found.append(COLOURS[others % len(COLOURS)])
            others += 1
    return found


def by_method(names: Sequence[str]) -> dict[str, Any]:
    """Return colour and dash of lines, a pair for each method, with one legend of `method_names`."""
    columns = 3 if max(map(len, names), default=0) < 36 else 1
    look = {"symbolStrokeWidth": 2, "symbolOpacity": 1, "columns": columns}
    dashes = [DASHES[each % len(DASHES)] for each in range(len(names))]
    return by_stroke("method", method_colours(names), dashes, "method_names[datum.value]", **look)


def by_stroke(
    field: str, colours: Sequence[str], dashes: Sequence[list[int]], label: str, **look: Any
) -> dict[str, Any]:
    """Return colour and dash of lines by the numbers of a field, with one legend."""
    legend = alt.Legend(labelExpr=label, symbolType="stroke", symbolSize=500, **look)
    domain = list(range(len(colours)))
    return {
        "color": alt.Color(f"{field}:N", scale=alt.Scale(domain=domain, range=list(colours)), legend=legend),
        "strokeDash": alt.StrokeDash(f"{field}:N", scale=alt.Scale(domain=domain, range=list(dashes)), legend=legend),
    }


def by_sign(used: Signs, field: str = "sign", **look: Any) -> dict[str, Any]:
    """Return shape and colour of points by the name of their kind, with one legend of all kinds used."""
    shapes, colours = zip(*used.values(), strict=True)
    legend = alt.Legend(symbolSize=70, symbolStrokeWidth=1.8, symbolOpacity=1, **look)
    return {
        "shape": alt.Shape(f"{field}:N", scale=alt.Scale(domain=list(used), range=list(shapes)), legend=legend),
        "color": alt.Color(f"{field}:N", scale=alt.Scale(domain=list(used), range=list(colours)), legend=legend),
    }


def tooltips(form: str, **titles: str) -> list[alt.Tooltip]:
    """Return a line of a tooltip for each field, its number in this format."""
    return [alt.Tooltip(f"{field}:Q", title=title, format=form) for field, title in titles.items()]


@dataclass(frozen=True)
class Panel:
    """One of several panels: its number, width, the number of columns, its data, and names by field and number."""

    number: int
    width: int
    columns: int
    data: Sequence[Datum]
    names: Mapping[str, Sequence[str]]

    @property
    def base(self) -> Any:
        return alt.Chart(DATA).transform_filter(f"datum.panel == {self.number}")

    def first(self, title: str) -> str | None:
        """Return a title for the first panel of a row, ``None`` for the others."""
        return title if self.number % self.columns == 0 else None

    def column(self, *fields: str) -> list[Any]:
        """Return the values of some fields that there are."""
        return [datum[field] for field in fields for datum in self.data if datum[field] is not None]


def panels_chart(
    kind: str,
    data: Sequence[Datum],
    draw: Callable[[Panel], Any],
    *,
    names: Mapping[str, Sequence[str]] | None = None,
    columns: int | None = None,
    axes: int = 58,
    height: float = PANEL_HEIGHT,
    **texts: Any,
) -> alt.TopLevelMixin:
    """Draw the chart, or list of charts, of each panel.

    ``panel``, ``label`` and ``method`` of the data are numbers, or names, which become numbers; ``names`` has theirs in
    order if they are not those of the data. There are 4 columns at most, and 5 and 6 panels stand in two rows of 3.
    """
    fields = [field for field in ("panel", "label", "method") if field in data[0]]
    known = {field: list(dict.fromkeys(datum[field] for datum in data)) for field in fields} | dict(names or {})
    texts |= {f"{field}s": len(each) for field, each in known.items()}
    numbers = {field: {name: number for number, name in enumerate(known[field])} for field in fields}
    placed: list[Datum] = []
    of: list[list[Datum]] = [[] for _ in known["panel"]]
    for datum in data:
        placed.append({**datum, **{field: numbers[field].get(datum[field], datum[field]) for field in fields}})
        of[placed[-1]["panel"]].append(placed[-1])
    columns = columns or min(len(of), 3 if len(of) in (5, 6) else 4)
    width = min(420, 960 // columns - axes)
    charts = []
    for number, title in enumerate(known.pop("panel")):
        drawn = draw(Panel(number, width, columns, of[number], known))
        for each in drawn if isinstance(drawn, list) else [drawn]:
            charts.append(each.properties(width=width, height=height, title=panel_title(title, width)))
    params = {f"{field}_names": each for field, each in known.items()}
    return finish_study(kind, grid(charts, columns=columns), placed, names=params, items=len(data), **texts)


def grid(panels: Sequence[Any], *, columns: int) -> alt.ConcatChart:
    return alt.concat(*panels, columns=columns, spacing={"row": 18, "column": 14})


def panel_title(text: str, width: int) -> alt.Title:
    """Return the heading of a panel, wrapped to its width."""
    words: Any = _lines(text, 120, max(12, round(width / _LETTER)))
    words = words if len(words) > 1 else "".join(words)
    return alt.Title(text=words, anchor="middle", frame="group", fontSize=12, fontWeight="normal", offset=6)


def label_axis(panel: Panel) -> alt.X:
    """Return an axis of labels, wrapped at spaces; slanted where a word is wider than its place."""
    labels = list(dict.fromkeys(panel.column("label")))
    room = int(panel.width / len(labels) / _LETTER)
    texts = [short(panel.names["label"][label], 60) for label in labels]
    name, angle, limit = "label_names[datum.value]", 0, 200
    if max(len(word) for text in texts for word in (text.split() or [""])) > room:
        angle, limit = -38, 170
    elif max(map(len, texts)) > room:
        name = f"split({name}, ' ')"  # a line for each word
    axis = alt.Axis(title=None, grid=False, labelOverlap=False, labelAngle=angle, labelLimit=limit, labelExpr=name)
    return alt.X("label:O", scale=alt.Scale(domain=labels, paddingInner=0.25, paddingOuter=0.2), axis=axis)


def measure_axis(field: str, title: str | None, domain: Domain | None, *, min_step: float = 0, **options: Any) -> alt.Y:
    """Return an axis over a domain with ticks at least ``min_step`` apart; bare without a domain."""
    ticks: dict[str, Any] = {"labels": False, "ticks": False}
    if domain:
        ticks = {"tickCount": 5, "values": _ticks(*domain, min_step)}
    scale = alt.Scale(domain=list(domain or (0, 1)), nice=False, zero=False)
    return alt.Y(field, title=title and shown(title), scale=scale, axis=alt.Axis(**{**ticks, **options}))


def epoch_axis(data: Sequence[Datum], field: str = "epoch") -> alt.X:
    """Return an axis of whole numbers, such as epochs or steps."""
    there = [datum[field] for datum in data] or [0]
    low, high = min(there), max(there)
    values = _ticks(low, high + 1.2 * _TOP * (high - low), 1) if high > low else [low]
    axis = alt.Axis(values=values, format=",d", grid=False, labelOverlap="greedy")
    domain = [low, high] if high > low else [low - 1, high + 1]
    return alt.X(f"{field}:Q", title=field, axis=axis, scale=alt.Scale(nice=False, zero=False, domain=domain))


def _ticks(low: float, high: float, min_step: float) -> list[float]:
    """Return about five round numbers; none is near the top, where its label would push the title up."""
    rough = (high - low) / 7
    decade = 10.0 ** math.floor(math.log10(rough))
    step = max(min_step, next(each * decade for each in (1, 2, 5, 10) if each * decade >= 0.999 * rough))
    first, last = math.ceil(low / step), math.floor((high - _TOP * (high - low)) / step)
    return [float(f"{place * step:.12g}") for place in range(first, last + 1)]


def log_axis(low: float, high: float) -> dict[str, Any]:
    """Return scale and axis over a domain, with ticks at powers of ten, and at 2 and 5 times those if they are few."""
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


def zoomed(values: Iterable[float | None], *, most: float = math.inf) -> Domain | None:
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


def off_axis(base: alt.Chart, domain: Domain | None) -> Iterator[alt.Chart]:
    """Draw an arrow with the number at the end of the axis for each mean beyond it."""
    if domain is None:
        return
    for beyond, shape, y, above in (
        (f"datum.mean < {domain[0]}", "triangle-down", PANEL_HEIGHT - 4, -9),
        (f"datum.mean > {domain[1]}", "triangle-up", 4, 11),
    ):
        there = base.transform_filter(f"isValid(datum.mean) && {beyond}")
        yield there.mark_point(shape=shape, filled=True, size=40, color=RED, opacity=1).encode(y=alt.value(y))
        text = there.mark_text(fontSize=10, color=INK).encode(y=alt.value(y + above))
        yield text.encode(text=alt.Text("mean:Q", format=".3~g"))


def error_rule(base: alt.Chart, *, of: str = "", **look: Any) -> Any:
    """Draw a line from one standard deviation below the mean to one above it, where there is one."""
    there = base.transform_filter(f"isValid(datum.{of}low) && isValid(datum.{of}high)")
    rule = there.mark_rule(strokeWidth=1.5, aria=False, clip=True, **look)
    return rule.encode(y=alt.Y(f"{of}low:Q"), y2=f"{of}high:Q")


def check(items: Sequence[Any], what: str, *place: str) -> None:
    """Refuse to draw nothing, or several items in the place that these attributes give."""
    if not items:
        raise ValueError(f"the chart needs at least one {what}, got none")
    counts = Counter(map(attrgetter(*place), items)) if place else {}
    for each, count in counts.items():
        if count > 1:
            raise ValueError(f"each {what} must have its own place, got {count} at {shown(each)}")


def evenly(values: Sequence[T], most: int) -> list[T]:
    """Choose at most this many values evenly, with the first and the last."""
    if len(values) <= most:
        return list(values)
    return [values[round(place * (len(values) - 1) / (most - 1))] for place in range(most)]


def ends(mean: float | None, std: float | None, of: str = "") -> Datum:
    """Return the ends of an error bar, without a mean or deviation ``None``; none is below 0 unless the mean is."""
    middle, error = finite(mean, 9), finite(std, 9)
    if middle is None or error is None:
        return {f"{of}low": None, f"{of}high": None}
    low = middle - error if middle < 0 else max(0.0, middle - error)
    return {f"{of}low": finite(low, 9), f"{of}high": finite(middle + error, 9)}
