"""Charts that compare settings: bars, lines over an option, seconds of balancing, and exponents of eigenvalues.

Each chart takes its items in the order of the panels, a title, and a subtitle with preset and data. It raises
a ValueError without items that can be drawn, or if two have the same place.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import altair as alt

from tempbalance.report import chart as parts
from tempbalance.report.chart import BLUE, FAINT, INK, PANEL_HEIGHT, RED, Datum, Panel, Signs, measure_axis, tooltips
from tempbalance.report.text import finite, shown

_SETTING, _PAPER, _TIME = "each setting tried", "paper", "time (right axis)"
# colours that are seen on white, on black and on a bar
_SIGNS = {_SETTING: ("M-1,-1L1,1M-1,1L1,-1", "#6f7a86"), _PAPER: ("diamond", "#b07d1e"), _TIME: ("circle", RED)}
_KINDS = {"one epoch": ("circle", BLUE), "one balancing": ("square", RED)}


@dataclass(frozen=True)
class Bar:
    """One bar: a method, an assignment, a range or a tail in a panel."""

    panel: str
    label: str
    mean: float | None  # over the seeds; without one the place has the text `missing`
    std: float | None
    crosses: tuple[float, ...] = ()  # mean of each hyperparameter setting that was tried
    paper: float | None = None
    seconds: float | None = None
    seconds_std: float | None = None
    method: str = "TB"  # which gives the bar its colour
    missing: str = "no run yet"


@dataclass(frozen=True)
class Dot:
    """One point of a line: the mean and standard deviation of a series (a method) at ``x``, and the paper's mean."""

    panel: str
    series: str
    x: float
    mean: float | None
    std: float | None
    paper: float | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Timing:
    """Seconds of one epoch of training and of one balancing, with their standard deviations."""

    panel: str
    label: str
    epoch: float | None
    epoch_std: float | None
    balancing: float | None
    balancing_std: float | None


def bar_chart(
    bars: Sequence[Bar], *, y_title: str, seconds_title: str | None = None, **texts: Any
) -> alt.TopLevelMixin:
    """Draw bars with error bars in panels, each with its own axis; with ``seconds_title``, seconds on a second axis."""
    parts.check(bars, "bar", "panel", "label")
    methods = list(dict.fromkeys(bar.method for bar in bars))
    colours = dict(zip(methods, parts.method_colours(methods), strict=True))
    data = [
        {"panel": bar.panel, "label": bar.label, "missing": shown(bar.missing), "colour": colours[bar.method]}
        | _measured(bar)
        | parts.ends(bar.seconds, bar.seconds_std, "seconds_")
        | {"crosses": [value for each in bar.crosses if (value := finite(each, 9)) is not None]}
        for bar in bars
    ]
    there = {_SETTING: any(datum["crosses"] for datum in data), _PAPER: _has_paper(data), _TIME: bool(seconds_title)}
    used = {name: look for name, look in _SIGNS.items() if there[name]}
    num_panels = len({bar.panel for bar in bars})

    def draw(panel: Panel) -> Any:
        base = panel.base.encode(x=parts.label_axis(panel))
        aside = min(10.0, panel.width / len(panel.data) / 5)  # signs stand beside the error bar, so that none is hidden
        chart = alt.layer(*_bar_layers(base, panel, y_title, used, aside))
        if seconds_title is None:
            return chart
        is_last = panel.number % panel.columns == panel.columns - 1 or panel.number == num_panels - 1
        line = alt.layer(*_second_layers(base, panel, seconds_title if is_last else None, used, aside))
        return alt.layer(chart, line).resolve_scale(y="independent")

    missing = sum(datum["mean"] is None for datum in data)
    axes, words = 58 if seconds_title is None else 100, f"; {missing} without a run yet" if missing else ""
    return parts.panels_chart("bars", data, draw, axes=axes, y_title=y_title, missing=words, **texts)


def _measured(item: Bar | Dot) -> Datum:
    numbers = {"mean": finite(item.mean, 9), "paper": finite(item.paper, 9), "seconds": finite(item.seconds)}
    return numbers | parts.ends(item.mean, item.std)


def _has_paper(data: Sequence[Datum]) -> bool:
    return any(datum["paper"] is not None for datum in data)


def _values(panel: Panel) -> list[float]:
    crosses = [value for datum in panel.data for value in datum.get("crosses", ())]
    return panel.column("mean", "low", "high", "paper") + crosses


def _domain(panel: Panel, y_title: str) -> tuple[float, float] | None:
    """Return the range of an axis; percents end at 100 unless a mean is above."""
    most = 100.0 if y_title.endswith("%") and max(panel.column("mean"), default=0) <= 100 else math.inf
    return parts.zoomed((min(value, most) for value in _values(panel)), most=most)


def _bar_layers(base: alt.Chart, panel: Panel, y_title: str, used: Signs, aside: float) -> Iterator[alt.Chart]:
    domain = _domain(panel, y_title)
    y = measure_axis("mean:Q", panel.first(y_title), domain)
    bars = _valid(base, "mean").transform_calculate(
        name="label_names[datum.label]", floor=str(domain[0] if domain else 0)
    )
    look = {"fill": alt.Fill("colour:N", scale=None), "stroke": alt.Stroke("colour:N", scale=None)}
    yield bars.mark_bar(fillOpacity=0.35, clip=True).encode(y=y, y2="floor:Q", tooltip=_tooltip(panel), **look)
    empty = base.transform_filter("!isValid(datum.mean)")
    words = empty.mark_text(angle=270, align="left", fontSize=10, color=FAINT, aria=False)
    yield words.encode(y=alt.value(PANEL_HEIGHT - 6), text="missing:N")
    yield parts.error_rule(base, color=INK)
    yield from parts.off_axis(base, domain)
    if _SETTING in used:
        crosses = _signed(base.transform_flatten(["crosses"]), _SETTING)
        points = crosses.mark_point(size=20, strokeWidth=1.8, opacity=1, xOffset=aside, clip=True)
        yield points.encode(y=alt.Y("crosses:Q"), **_legend(used))
    if _PAPER in used:
        papers = _signed(_valid(base, "paper"), _PAPER)
        points = papers.mark_point(size=45, strokeWidth=1.8, fill="white", opacity=1, xOffset=-aside, clip=True)
        yield points.encode(y=alt.Y("paper:Q"), **_legend(used))


def _second_layers(base: alt.Chart, panel: Panel, title: str | None, used: Signs, aside: float) -> Iterator[alt.Chart]:
    """Draw seconds as a line on the right-hand axis, from 0."""
    most = 1.15 * max(panel.column("seconds", "seconds_high"), default=0.0)
    domain = (0.0, most) if most > 0 else None
    y = measure_axis("seconds:Q", title, domain, orient="right", grid=False, titleColor=RED, labelColor=RED)
    timed = _signed(_valid(base, "seconds"), _TIME)
    yield timed.mark_line(color=RED, strokeWidth=1.5, xOffset=aside, aria=False).encode(y=y)
    yield parts.error_rule(timed, of="seconds_", color=RED, xOffset=aside)
    points = timed.mark_point(size=40, strokeWidth=1.8, fill="white", opacity=1, xOffset=aside)
    yield points.encode(y=y, **_legend(used))


def _valid(base: alt.Chart, field: str) -> Any:
    return base.transform_filter(f"isValid(datum.{field})")


def _signed(base: alt.Chart, sign: str) -> Any:
    return base.transform_calculate(sign=f"'{sign}'")


def _legend(used: Signs) -> dict[str, Any]:
    return parts.by_sign(used, symbolFillColor="white")


def _tooltip(panel: Panel) -> list[alt.Tooltip]:
    """Return the calculated name, and the numbers that there are."""
    titles = {"mean": "mean", "low": "mean - sd", "high": "mean + sd", "paper": "paper", "seconds": "seconds"}
    there = {field: title for field, title in titles.items() if panel.column(field)}
    return [alt.Tooltip("name:N", title="of"), *tooltips(".4g", **there)]


def line_chart(
    dots: Sequence[Dot], *, x_title: str, y_title: str, log_x: bool = False, log_y: bool = False, **texts: Any
) -> alt.TopLevelMixin:
    """Draw lines with points and error bars for each series, in panels with their own axes.

    On a log axis an error bar that reaches 0 ends at the axis, and an ``x`` of 0 or less is refused.
    """
    parts.check(dots, "dot", "panel", "series", "x")
    for dot in dots:
        if finite(dot.x) is None or (log_x and dot.x <= 0):
            raise ValueError(f"x of a dot must be {'above 0' if log_x else 'a finite number'}, got {dot.x!r}")
    data = [{"panel": dot.panel, "method": dot.series, "x": finite(dot.x, 9), **_measured(dot)} for dot in dots]

    def draw(panel: Panel) -> Any:
        base = panel.base.encode(x=_varying_axis(panel, x_title, log_x=log_x))
        domain = None if log_y else _domain(panel, y_title)
        y = measure_axis("mean:Q", panel.first(y_title), domain)
        return alt.layer(
            *_line_layers(base, panel, _log_measure_axis(panel, y_title) if log_y else y),
            *parts.off_axis(base, domain),
        )

    paper = " Hollow diamonds: the paper." if _has_paper(data) else ""
    return parts.panels_chart("lines", data, draw, x_title=x_title, y_title=y_title, paper=paper, **texts)


def _log_measure_axis(panel: Panel, title: str) -> alt.Y:
    there = [value for value in _values(panel) if value > 0]
    room = (max(there) / min(there)) ** 0.1 * 1.02 if there else 1.0
    options = parts.log_axis(min(there, default=0.1) / room, max(there, default=1.0) * room)
    options["scale"].clamp = True
    return alt.Y("mean:Q", title=panel.first(shown(title)), **options)


def _varying_axis(panel: Panel, title: str, *, log_x: bool) -> alt.X:
    """Return an axis with a tick at each value that was tried, where there are few."""
    tried = sorted(set(panel.column("x")))
    ticks: dict[str, Any] = {"values": tried} if len(tried) <= panel.width // 24 else {"tickCount": 5}
    domain = (tried[0], tried[-1]) if len(tried) > 1 else parts.zoomed(tried) or ()
    scale = alt.Scale(type="log" if log_x else "linear", domain=list(domain), nice=False, padding=14)
    # an axis' own format would round 0.025 to the distance of its ticks
    axis = alt.Axis(labelExpr="format(datum.value, '~g')", labelOverlap="greedy", grid=False, **ticks)
    return alt.X("x:Q", title=shown(title), scale=scale, axis=axis)


def _line_layers(base: alt.Chart, panel: Panel, y: alt.Y) -> Iterator[alt.Chart]:
    measured, looks = _valid(base, "mean"), parts.by_method(panel.names["method"])
    yield measured.mark_line(strokeWidth=2, aria=False, clip=True).encode(y=y, **looks)
    yield parts.error_rule(base).encode(color=looks["color"])
    named = measured.transform_calculate(name="method_names[datum.method]")
    points = named.mark_point(size=36, filled=True, opacity=1, clip=True)
    yield points.encode(y=y, color=looks["color"], tooltip=_tooltip(panel))
    if _has_paper(panel.data):
        papers = _valid(base, "paper").encode(y=alt.Y("paper:Q"), color=looks["color"])
        yield papers.mark_line(strokeWidth=1, strokeDash=[1, 2], aria=False, clip=True)
        yield papers.mark_point(shape="diamond", size=45, strokeWidth=1.6, fill="white", opacity=1, clip=True)


def timing_chart(timings: Sequence[Timing], **texts: Any) -> alt.TopLevelMixin:
    """Draw seconds of one epoch and of one balancing on a log axis, and next to them the increment in percent."""
    parts.check(timings, "timing", "panel", "label")

    def draw(panel: Panel) -> list[Any]:
        base = panel.base.encode(x=parts.label_axis(panel))
        return [alt.layer(*_timing_layers(base, panel)), alt.layer(*_increment_layers(base, panel))]

    return parts.panels_chart("timing", [_timing_datum(each) for each in timings], draw, columns=2, **texts)


def _timing_datum(timing: Timing) -> Datum:
    datum: Datum = {"panel": timing.panel, "label": timing.label, "increment": None}
    for name in ("epoch", "balancing"):
        seconds = finite(getattr(timing, name), 9)
        seconds = seconds if seconds is not None and seconds > 0 else None
        ends = parts.ends(seconds, getattr(timing, f"{name}_std"), f"{name}_")
        if seconds is not None and ends[f"{name}_low"] is not None:
            # a log axis has no place for 0: the error bar ends within the picture
            ends[f"{name}_low"] = max(ends[f"{name}_low"], seconds / 10)
        datum |= {name: seconds, **ends}
    if datum["epoch"] is not None and datum["balancing"] is not None:
        datum["increment"] = finite(100 * datum["balancing"] / datum["epoch"])
    return datum


def _timing_layers(base: alt.Chart, panel: Panel) -> Iterator[alt.Chart]:
    there = panel.column(*(f"{name}{end}" for name in ("epoch", "balancing") for end in ("", "_low", "_high")))
    options = parts.log_axis(min(there) / 1.5, max(there) * 1.5) if there else parts.log_axis(0.1, 1.0)
    for name, (kind, (_, colour)) in zip(("epoch", "balancing"), _KINDS.items(), strict=True):
        y = alt.Y(f"{name}:Q", title="seconds (log)", **options)
        timed = _signed(_valid(base, name), kind)
        yield timed.mark_line(color=colour, strokeWidth=1.5, aria=False).encode(y=y)
        yield parts.error_rule(timed, of=f"{name}_", color=colour)
        tooltip = alt.Tooltip(f"{name}:Q", title=f"seconds of {kind}", format=".4g")
        yield timed.mark_point(size=50, filled=True, opacity=1).encode(y=y, tooltip=tooltip, **parts.by_sign(_KINDS))


def _increment_layers(base: alt.Chart, panel: Panel) -> Iterator[alt.Chart]:
    there = panel.column("increment")
    y = measure_axis("increment:Q", "increment, %", (0.0, 1.2 * max(there)) if there else None)
    drawn = _valid(base, "increment")
    yield drawn.mark_bar(fill=BLUE, fillOpacity=0.35, stroke=BLUE).encode(y=y)
    yield drawn.mark_text(dy=-8, fontSize=11, color=INK).encode(y=y, text=alt.Text("increment:Q", format=".3~g"))


@dataclass(frozen=True)
class ExponentFit:
    """Alpha of the tail of ``size`` eigenvalues that decay with the exponent ``s``."""

    size: int
    s: float
    alpha: float

    @property
    def found(self) -> float:
        """The exponent that alpha implies: 1 / (alpha - 1)."""
        return 1 / (self.alpha - 1)


@dataclass(frozen=True)
class ExponentPair:
    """Exponents of the eigenvalues of two matrices after an epoch of a seed."""

    panel: str
    epoch: int
    seed: int
    x: float
    y: float


@dataclass(frozen=True)
class MatrixSpectrum:
    """The largest eigenvalues of a matrix after an epoch, the largest first."""

    panel: str
    matrix: str
    epoch: int
    eigenvalues: tuple[float, ...]


def exponent_chart(fits: Sequence[ExponentFit], **texts: Any) -> alt.TopLevelMixin:
    """Draw alpha against s in a panel for each size, with the curve 1 + 1 / s."""
    parts.check(fits, "fit", "size", "s")
    data = [{"panel": f"Q = {each.size:,}", "s": finite(each.s), "alpha": finite(each.alpha)} for each in fits]
    most = max(max(each.alpha, 1 + 1 / each.s) for each in fits)
    scale, axis = alt.Scale(nice=False, zero=True), alt.Axis(grid=False, tickCount=4)

    def draw(panel: Panel) -> Any:
        base = panel.base.encode(x=alt.X("s:Q", title="s of the eigenvalues", scale=scale, axis=axis))
        points = base.mark_point(size=22, color=BLUE, strokeWidth=1.4, opacity=1).encode(
            y=measure_axis("alpha:Q", panel.first("alpha (no unit)"), (1.0, 1.06 * most)),
            tooltip=[alt.Tooltip("s:Q"), alt.Tooltip("alpha:Q", format=".4g")],
        )
        curve = base.transform_calculate(theory="1 + 1 / datum.s").mark_line(color=RED, strokeWidth=1.5, aria=False)
        return alt.layer(curve.encode(y="theory:Q"), points)

    return parts.panels_chart("exponents", data, draw, **texts)


def pair_chart(pairs: Sequence[ExponentPair], *, x_title: str, y_title: str, **texts: Any) -> alt.TopLevelMixin:
    """Draw one exponent against another: means over seeds in the order of epochs, each with its number."""
    parts.check(pairs, "pair", "panel", "epoch", "seed")
    together: dict[tuple[str, int], list[ExponentPair]] = {}
    for each in pairs:
        together.setdefault((each.panel, each.epoch), []).append(each)
    data = [
        {"panel": each[0].panel, "epoch": each[0].epoch, "mean": is_mean}
        | {"x": finite(fmean(one.x for one in each)), "y": finite(fmean(one.y for one in each))}
        for is_mean, groups in ((False, [[each] for each in pairs]), (True, list(together.values())))
        for each in groups
    ]

    def draw(panel: Panel) -> Any:
        scale = alt.Scale(domain=list(parts.zoomed(panel.column("x")) or (0, 1)), nice=False, zero=False)
        x = alt.X("x:Q", title=shown(x_title), scale=scale, axis=alt.Axis(tickCount=5))
        y = measure_axis("y:Q", panel.first(y_title), parts.zoomed(panel.column("y")))
        base = panel.base.encode(x=x, y=y)
        means = base.transform_filter("datum.mean")
        tooltip = [alt.Tooltip("epoch:Q"), alt.Tooltip("x:Q", format=".3f"), alt.Tooltip("y:Q", format=".3f")]
        return alt.layer(
            base.transform_filter("!datum.mean").mark_point(size=14, filled=True, color=FAINT, opacity=0.8),
            means.mark_line(color=BLUE, strokeWidth=1, opacity=0.6, aria=False).encode(order="epoch:Q"),
            means.mark_point(size=55, filled=True, color=BLUE, opacity=1).encode(tooltip=tooltip),
            means.mark_text(align="left", dx=7, dy=-7, fontSize=12, color=INK).encode(text="epoch:Q"),
        )

    num_seeds = len({each.seed for each in pairs})
    seeds = f"Large points: means over {num_seeds} seeds; small ones: each seed." if num_seeds > 1 else "One seed."
    words: Datum = {"x_title": x_title, "y_title": y_title, "seeds": seeds}
    return parts.panels_chart("pairs", data, draw, height=1.5 * PANEL_HEIGHT, **words, **texts)


def decay_chart(spectra: Sequence[MatrixSpectrum], **texts: Any) -> alt.TopLevelMixin:
    """Draw eigenvalues by rank on log axes: a row for each panel, a chart for each matrix, a line for each epoch."""
    parts.check(spectra, "spectrum", "panel", "matrix", "epoch")
    places = list(dict.fromkeys((each.panel, each.matrix) for each in spectra))
    epochs = list(dict.fromkeys(f"epoch {each.epoch}" for each in spectra))
    data: list[Datum] = [
        {"panel": places.index((each.panel, each.matrix)), "method": epochs.index(f"epoch {each.epoch}")}
        | {"rank": rank, "value": value}
        for each in spectra
        for rank, raw in enumerate(each.eigenvalues, 1)
        if (value := finite(raw)) is not None and value > 0
    ]
    if not data:
        raise ValueError(f"the chart needs an eigenvalue above 0, got none in {len(spectra)} spectra")

    def draw(panel: Panel) -> Any:
        mine = panel.data or data
        values = [datum["value"] for datum in mine]
        x = alt.X("rank:Q", title="rank (log)", **parts.log_axis(0.9, 1.1 * max(datum["rank"] for datum in mine)))
        y_title = panel.first(shown(f"{places[panel.number][0]}: eigenvalue (log)"))
        y = alt.Y("value:Q", title=y_title, **parts.log_axis(min(values) / 1.5, max(values) * 1.5))
        return panel.base.mark_line(strokeWidth=1.6).encode(x=x, y=y, **parts.by_method(epochs))

    columns = min(4, len({each.matrix for each in spectra}))
    names = {"panel": [matrix for _, matrix in places], "method": epochs}
    return parts.panels_chart("decay", data, draw, names=names, columns=columns, **texts)
