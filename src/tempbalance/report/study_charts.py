"""Charts that compare settings: bars, lines over an option, seconds of balancing, and exponents of eigenvalues."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import altair as alt

from tempbalance.report.chart import (
    BLUE,
    DATA,
    FAINT,
    INK,
    PANEL_HEIGHT,
    RED,
    Datum,
    Panel,
    Signs,
    by_method,
    by_sign,
    check,
    ends,
    error_rule,
    finish_study,
    grid,
    label_axis,
    log_axis,
    measure_axis,
    method_colours,
    numbered,
    of_panel,
    off_axis,
    panel_title,
    panel_width,
    panels_chart,
    zoomed,
)
from tempbalance.report.text import finite, shown

_SETTING, _PAPER, _TIME = "each setting tried", "paper", "time (right axis)"
# colours that are seen on white, on black and on a bar
_SIGNS = {_SETTING: ("M-1,-1L1,1M-1,1L1,-1", "#6f7a86"), _PAPER: ("diamond", "#b07d1e"), _TIME: ("circle", RED)}
_NOTE = "Error bars: one standard deviation. Axes do not begin at 0; a red triangle is a value beyond the axis."


@dataclass(frozen=True)
class Bar:
    """One bar: a method, an assignment, a range or a tail in a panel.

    Attributes:
        panel: Network and data.
        label: Printed under the bar.
        mean, std: Over the seeds; a mean of ``None`` leaves the place to the text ``missing``.
        crosses: Mean of each hyperparameter setting that was tried.
        paper: The paper's mean.
        seconds, seconds_std: Mean and standard deviation of its seconds.
        method: Method, which gives the bar its colour.
        missing: Why there is no mean.
    """

    panel: str
    label: str
    mean: float | None
    std: float | None
    crosses: tuple[float, ...] = ()
    paper: float | None = None
    seconds: float | None = None
    seconds_std: float | None = None
    method: str = "TB"
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
    bars: Sequence[Bar], *, title: str, subtitle: str, y_title: str, seconds_title: str | None = None
) -> alt.TopLevelMixin:
    """Draw bars with error bars in panels, each with its own axis; with ``seconds_title``, seconds on a second axis."""
    check(bars, "bar", lambda bar: (bar.panel, bar.label))
    panels, labels = numbered(bar.panel for bar in bars), numbered(bar.label for bar in bars)
    methods = list(dict.fromkeys(bar.method for bar in bars))
    colours = dict(zip(methods, method_colours(methods), strict=True))
    data = [_bar_datum(bar, panels[bar.panel], labels[bar.label]) | {"colour": colours[bar.method]} for bar in bars]
    used = _used(data, with_seconds=seconds_title is not None)

    def draw(panel: Panel) -> Any:
        base = panel.base.encode(x=label_axis(panel.column("label"), list(labels), panel.width))
        aside = min(
            10.0, panel.width / len(panel.data) / 5
        )  # signs stand next to the error bar, so that none is hidden
        chart = alt.layer(*_bar_layers(base, panel, y_title, used, aside))
        if seconds_title is None:
            return chart
        is_last = panel.number % panel.columns == panel.columns - 1 or panel.number == len(panels) - 1
        line = alt.layer(*_second_layers(base, panel.data, seconds_title if is_last else None, used, aside))
        return alt.layer(chart, line).resolve_scale(y="independent")

    missing = sum(datum["mean"] is None for datum in data)
    return panels_chart(
        list(panels),
        data,
        draw,
        axes=58 if seconds_title is None else 100,
        names={"label_names": list(labels)},
        title=title,
        subtitle=subtitle,
        note=_NOTE,
        description=f"{len(bars)} bars in {len(panels)} panels, {y_title}: mean and one standard deviation"
        f"{f'; {missing} without a run yet' if missing else ''}. The axes are zoomed and do not begin at 0.",
    )


def _bar_datum(bar: Bar, panel: int, label: int) -> Datum:
    low, high = ends(bar.mean, bar.std)
    seconds_low, seconds_high = ends(bar.seconds, bar.seconds_std)
    return {
        "panel": panel,
        "label": label,
        "missing": shown(bar.missing),
        "mean": finite(bar.mean, 9),
        "low": low,
        "high": high,
        "crosses": [value for each in bar.crosses if (value := finite(each, 9)) is not None],
        "paper": finite(bar.paper, 9),
        "seconds": finite(bar.seconds),
        "seconds_low": seconds_low,
        "seconds_high": seconds_high,
    }


def _used(data: Sequence[Datum], *, with_seconds: bool = False) -> Signs:
    """Return the signs that the chart has, for its legend."""
    there = {
        _SETTING: any(datum.get("crosses") for datum in data),
        _PAPER: any(datum["paper"] is not None for datum in data),
        _TIME: with_seconds,
    }
    return {name: look for name, look in _SIGNS.items() if there[name]}


def _values(data: Sequence[Datum]) -> list[float | None]:
    plain = [datum[name] for datum in data for name in ("mean", "low", "high", "paper")]
    return plain + [value for datum in data for value in datum.get("crosses", ())]


def _domain(data: Sequence[Datum], y_title: str) -> tuple[float, float] | None:
    """Return the range of an axis; percents end at 100 unless a mean is above."""
    is_share = y_title.endswith("%") and all(datum["mean"] is None or datum["mean"] <= 100 for datum in data)
    most = 100.0 if is_share else math.inf
    return zoomed((None if value is None else min(value, most) for value in _values(data)), most=most)


def _bar_layers(base: alt.Chart, panel: Panel, y_title: str, used: Signs, aside: float) -> Iterator[alt.Chart]:
    domain = _domain(panel.data, y_title)
    y = measure_axis("mean:Q", panel.first(y_title), domain)
    bars = base.transform_filter("isValid(datum.mean)").transform_calculate(
        name="label_names[datum.label]", floor=str(domain[0] if domain else 0)
    )
    tooltip = _tooltips(panel.data)
    look = {"fill": alt.Fill("colour:N", scale=None), "stroke": alt.Stroke("colour:N", scale=None)}
    yield bars.mark_bar(fillOpacity=0.35, clip=True).encode(y=y, y2="floor:Q", tooltip=tooltip, **look)
    empty = base.transform_filter("!isValid(datum.mean)")
    words = empty.mark_text(angle=270, align="left", fontSize=10, color=FAINT, aria=False)
    yield words.encode(y=alt.value(PANEL_HEIGHT - 6), text="missing:N")
    yield error_rule(base, color=INK)
    yield from off_axis(base, "mean", domain)
    looks = by_sign(used, fill="white") if used else {}
    if _SETTING in used:
        crosses = base.transform_flatten(["crosses"]).transform_calculate(sign=f"'{_SETTING}'")
        points = crosses.mark_point(size=20, strokeWidth=1.8, opacity=1, xOffset=aside, clip=True)
        yield points.encode(y=alt.Y("crosses:Q"), **looks)
    if _PAPER in used:
        papers = base.transform_filter("isValid(datum.paper)").transform_calculate(sign=f"'{_PAPER}'")
        points = papers.mark_point(size=45, strokeWidth=1.8, fill="white", opacity=1, xOffset=-aside, clip=True)
        yield points.encode(y=alt.Y("paper:Q"), **looks)


def _tooltips(data: Sequence[Datum]) -> list[alt.Tooltip]:
    """Return the calculated name, and the numbers that there are."""
    titles = {"mean": "mean", "low": "mean - sd", "high": "mean + sd", "paper": "paper", "seconds": "seconds"}
    there = [field for field in titles if any(datum[field] is not None for datum in data)]
    numbers = [alt.Tooltip(f"{field}:Q", title=titles[field], format=".4g") for field in there]
    return [alt.Tooltip("name:N", title="of"), *numbers]


def _second_layers(
    base: alt.Chart, data: Sequence[Datum], title: str | None, used: Signs, aside: float
) -> Iterator[alt.Chart]:
    """Draw seconds as a line on the right-hand axis, from 0."""
    there = [datum[name] for datum in data for name in ("seconds", "seconds_high") if datum[name] is not None]
    domain = (0.0, 1.15 * max(there)) if there and max(there) > 0 else None
    y = measure_axis("seconds:Q", title, domain, orient="right", grid=False, titleColor=RED, labelColor=RED)
    timed = base.transform_filter("isValid(datum.seconds)").transform_calculate(sign=f"'{_TIME}'")
    yield timed.mark_line(color=RED, strokeWidth=1.5, xOffset=aside, aria=False).encode(y=y)
    yield error_rule(timed, low="seconds_low", high="seconds_high", color=RED, xOffset=aside)
    points = timed.mark_point(size=40, strokeWidth=1.8, fill="white", opacity=1, xOffset=aside)
    yield points.encode(y=y, **by_sign(used, fill="white"))


def line_chart(
    dots: Sequence[Dot],
    *,
    title: str,
    subtitle: str,
    x_title: str,
    y_title: str,
    log_x: bool = False,
    log_y: bool = False,
) -> alt.TopLevelMixin:
    """Draw lines with points and error bars for each series, in panels with their own axes.

    On a log axis an error bar that reaches 0 ends at the axis, and an ``x`` of 0 or less is refused.
    """
    check(dots, "dot", lambda dot: (dot.panel, dot.series, dot.x))
    for dot in dots:
        if finite(dot.x) is None or (log_x and dot.x <= 0):
            raise ValueError(f"x of a dot must be {'above 0' if log_x else 'a finite number'}, got {dot.x!r}")
    panels, series = numbered(dot.panel for dot in dots), numbered(dot.series for dot in dots)
    data = [_dot_datum(dot, panels[dot.panel], series[dot.series]) for dot in dots]

    def draw(panel: Panel) -> Any:
        base = panel.base.encode(x=_varying_axis(panel, x_title, log_x=log_x))
        domain = None if log_y else _domain(panel.data, y_title)
        y = _log_measure_axis(panel.data, panel.first(y_title)) if log_y else None
        y = y or measure_axis("mean:Q", panel.first(y_title), domain)
        layers = _line_layers(base, panel.data, y, by_method(list(series)))
        return alt.layer(*layers, *off_axis(base, "mean", domain))

    return panels_chart(
        list(panels),
        data,
        draw,
        names={"method_names": list(series)},
        title=title,
        subtitle=subtitle,
        note=f"{_NOTE}{' Hollow diamonds: the paper.' if _PAPER in _used(data) else ''}",
        description=f"{y_title} over {x_title} for {len(series)} series in {len(panels)} panels: mean and one "
        "standard deviation. The axes are zoomed and do not begin at 0.",
    )


def _log_measure_axis(data: Sequence[Datum], title: str | None) -> alt.Y:
    there = [value for value in _values(data) if value is not None and value > 0]
    room = (max(there) / min(there)) ** 0.1 * 1.02 if there else 1.0
    options = log_axis((min(there) / room, max(there) * room) if there else (0.1, 1.0))
    options["scale"].clamp = True
    return alt.Y("mean:Q", title=title and shown(title), **options)


def _dot_datum(dot: Dot, panel: int, method: int) -> Datum:
    low, high = ends(dot.mean, dot.std)
    numbers = {"mean": finite(dot.mean, 9), "low": low, "high": high, "paper": finite(dot.paper, 9)}
    return {"panel": panel, "method": method, "x": finite(dot.x, 9), **numbers, "seconds": finite(dot.seconds)}


def _varying_axis(panel: Panel, title: str, *, log_x: bool) -> alt.X:
    """Return an axis with a tick at each value that was tried, where there are few."""
    tried = sorted(set(panel.column("x")))
    ticks: dict[str, Any] = {"values": tried} if len(tried) <= panel.width // 24 else {"tickCount": 5}
    domain = (tried[0], tried[-1]) if len(tried) > 1 else zoomed(tried) or ()
    scale = alt.Scale(type="log" if log_x else "linear", domain=list(domain), nice=False, padding=14)
    # an axis' own format would round 0.025 to the distance of its ticks
    axis = alt.Axis(labelExpr="format(datum.value, '~g')", labelOverlap="greedy", grid=False, **ticks)
    return alt.X("x:Q", title=shown(title), scale=scale, axis=axis)


def _line_layers(base: alt.Chart, data: Sequence[Datum], y: alt.Y, looks: dict[str, Any]) -> Iterator[alt.Chart]:
    measured = base.transform_filter("isValid(datum.mean)")
    yield measured.mark_line(strokeWidth=2, aria=False, clip=True).encode(y=y, **looks)
    yield error_rule(base).encode(color=looks["color"])
    named = measured.transform_calculate(name="method_names[datum.method]")
    points = named.mark_point(size=36, filled=True, opacity=1, clip=True)
    yield points.encode(y=y, color=looks["color"], tooltip=_tooltips(data))
    if _PAPER in _used(data):
        papers = base.transform_filter("isValid(datum.paper)").encode(y=alt.Y("paper:Q"), color=looks["color"])
        yield papers.mark_line(strokeWidth=1, strokeDash=[1, 2], aria=False, clip=True)
        yield papers.mark_point(shape="diamond", size=45, strokeWidth=1.6, fill="white", opacity=1, clip=True)


_KINDS = {"one epoch": ("circle", BLUE), "one balancing": ("square", RED)}


def timing_chart(timings: Sequence[Timing], *, title: str, subtitle: str) -> alt.TopLevelMixin:
    """Draw seconds of one epoch and of one balancing on a log axis, and next to them the increment in percent."""
    check(timings, "timing", lambda timing: (timing.panel, timing.label))
    panels, labels = numbered(each.panel for each in timings), numbered(each.label for each in timings)
    data = [_timing_datum(each, panels[each.panel], labels[each.label]) for each in timings]
    width = panel_width(2)
    charts = []
    for name, number in panels.items():
        mine = [datum for datum in data if datum["panel"] == number]
        base = of_panel(alt.Chart(DATA), number)
        base = base.encode(x=label_axis([datum["label"] for datum in mine], list(labels), width))
        for layers in (_timing_layers(base, mine), _increment_layers(base, mine)):
            charts.append(
                alt.layer(*layers).properties(width=width, height=PANEL_HEIGHT, title=panel_title(name, width))
            )
    return finish_study(
        grid(charts, columns=2),
        data,
        names={"label_names": list(labels)},
        title=title,
        subtitle=subtitle,
        note="Left: error bars are one standard deviation. Right: one balancing in percent of one epoch.",
        description=f"Seconds of one epoch and of one balancing for {len(timings)} networks in {len(panels)} panels, "
        "and how much longer an epoch with one balancing takes, in percent.",
    )


def _timing_datum(timing: Timing, panel: int, label: int) -> Datum:
    datum: Datum = {"panel": panel, "label": label}
    for name in ("epoch", "balancing"):
        seconds = finite(getattr(timing, name), 9)
        seconds = seconds if seconds is not None and seconds > 0 else None
        low, high = ends(seconds, getattr(timing, f"{name}_std"))
        if low is not None and seconds is not None:
            low = max(low, seconds / 10)  # a log axis has no place for 0: the error bar ends within the picture
        datum |= {name: seconds, f"{name}_low": low, f"{name}_high": high}
    epoch, balancing = datum["epoch"], datum["balancing"]
    return {**datum, "increment": None if epoch is None or balancing is None else finite(100 * balancing / epoch)}


def _timing_layers(base: alt.Chart, data: Sequence[Datum]) -> Iterator[alt.Chart]:
    fields = [f"{name}{end}" for name in ("epoch", "balancing") for end in ("", "_low", "_high")]
    there = [datum[field] for datum in data for field in fields if datum[field] is not None]
    options = log_axis((min(there) / 1.5, max(there) * 1.5) if there else (0.1, 1.0))
    for name, (kind, (_, colour)) in zip(("epoch", "balancing"), _KINDS.items(), strict=True):
        y = alt.Y(f"{name}:Q", title="seconds (log)", **options)
        there_is = base.transform_filter(f"isValid(datum.{name})").transform_calculate(sign=f"'{kind}'")
        yield there_is.mark_line(color=colour, strokeWidth=1.5, aria=False).encode(y=y)
        yield error_rule(there_is, low=f"{name}_low", high=f"{name}_high", color=colour)
        tooltip = alt.Tooltip(f"{name}:Q", title=f"seconds of {kind}", format=".4g")
        yield there_is.mark_point(size=50, filled=True, opacity=1).encode(y=y, tooltip=tooltip, **by_sign(_KINDS))


def _increment_layers(base: alt.Chart, data: Sequence[Datum]) -> Iterator[alt.Chart]:
    there = [datum["increment"] for datum in data if datum["increment"] is not None]
    y = measure_axis("increment:Q", "increment, %", (0.0, 1.2 * max(there)) if there else None)
    drawn = base.transform_filter("isValid(datum.increment)")
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


def exponent_chart(fits: Sequence[ExponentFit], *, title: str, subtitle: str) -> alt.TopLevelMixin:
    """Draw alpha against s in a panel for each size, with the curve 1 + 1 / s."""
    check(fits, "fit", lambda each: (each.size, each.s))
    panels = numbered(each.size for each in fits)
    data: list[Datum] = [
        {"panel": panels[each.size], "s": finite(each.s), "alpha": finite(each.alpha)} for each in fits
    ]
    most = max(max(each.alpha, 1 + 1 / each.s) for each in fits)
    scale, axis = alt.Scale(nice=False, zero=True), alt.Axis(grid=False, tickCount=4)
    x = alt.X("s:Q", title="s of the eigenvalues", scale=scale, axis=axis)

    def draw(panel: Panel) -> Any:
        base = panel.base.encode(x=x)
        points = base.mark_point(size=22, color=BLUE, strokeWidth=1.4, opacity=1).encode(
            y=measure_axis("alpha:Q", panel.first("alpha (no unit)"), (1.0, 1.06 * most)),
            tooltip=[alt.Tooltip("s:Q"), alt.Tooltip("alpha:Q", format=".4g")],
        )
        curve = base.transform_calculate(theory="1 + 1 / datum.s").mark_line(color=RED, strokeWidth=1.5, aria=False)
        return alt.layer(curve.encode(y="theory:Q"), points)

    return panels_chart(
        [f"Q = {size:,}" for size in panels],
        data,
        draw,
        title=title,
        subtitle=subtitle,
        note="Circles: alpha of the Hill fit. Line: 1 + 1 / s.",
        description=f"Alpha against s for {len(fits)} spectra in {len(panels)} panels, one for each number of "
        "eigenvalues, with the curve alpha = 1 + 1 / s.",
    )


def pair_chart(
    pairs: Sequence[ExponentPair], *, title: str, subtitle: str, x_title: str, y_title: str
) -> alt.TopLevelMixin:
    """Draw one exponent against another: means over seeds in the order of epochs, each with its number."""
    check(pairs, "pair", lambda each: (each.panel, each.epoch, each.seed))
    panels = numbered(each.panel for each in pairs)
    data = [_pair_datum(panels[each.panel], [each], is_mean=False) for each in pairs]
    for name, epoch in dict.fromkeys((each.panel, each.epoch) for each in pairs):
        mine = [each for each in pairs if (each.panel, each.epoch) == (name, epoch)]
        data.append(_pair_datum(panels[name], mine, is_mean=True))

    def draw(panel: Panel) -> Any:
        scale = alt.Scale(domain=list(zoomed(panel.column("x")) or (0, 1)), nice=False, zero=False)
        x = alt.X("x:Q", title=shown(x_title), scale=scale, axis=alt.Axis(tickCount=5))
        base = panel.base.encode(x=x, y=measure_axis("y:Q", panel.first(y_title), zoomed(panel.column("y"))))
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
    return panels_chart(
        list(panels),
        data,
        draw,
        height=1.5 * PANEL_HEIGHT,
        title=title,
        subtitle=subtitle,
        note=f"Numbers are epochs. {seeds} Axes do not begin at 0.",
        description=f"{y_title} over {x_title} after some epochs in {len(panels)} panels, in order of epochs. {seeds} "
        "The axes are zoomed and do not begin at 0.",
    )


def _pair_datum(panel: int, pairs: Sequence[ExponentPair], *, is_mean: bool) -> Datum:
    x, y = fmean(each.x for each in pairs), fmean(each.y for each in pairs)
    return {"panel": panel, "epoch": pairs[0].epoch, "mean": is_mean, "x": finite(x), "y": finite(y)}


def decay_chart(spectra: Sequence[MatrixSpectrum], *, title: str, subtitle: str) -> alt.TopLevelMixin:
    """Draw eigenvalues by rank on log axes: a row for each panel, a chart for each matrix, a line for each epoch."""
    check(spectra, "spectrum", lambda each: (each.panel, each.matrix, each.epoch))
    places = numbered((each.panel, each.matrix) for each in spectra)
    rows = [row for row, _ in places]
    epochs = numbered(each.epoch for each in spectra)
    data: list[Datum] = [
        {"panel": places[each.panel, each.matrix], "method": epochs[each.epoch], "rank": rank, "value": value}
        for each in spectra
        for rank, raw in enumerate(each.eigenvalues, 1)
        if (value := finite(raw)) is not None and value > 0
    ]
    if not data:
        raise ValueError(f"the chart needs an eigenvalue above 0, got none in {len(spectra)} spectra")

    def draw(panel: Panel) -> Any:
        mine = panel.data or data
        values = [datum["value"] for datum in mine]
        x = alt.X("rank:Q", title="rank (log)", **log_axis((0.9, 1.1 * max(datum["rank"] for datum in mine))))
        y_title = panel.first(shown(f"{rows[panel.number]}: eigenvalue (log)"))
        y = alt.Y("value:Q", title=y_title, **log_axis((min(values) / 1.5, max(values) * 1.5)))
        return panel.base.mark_line(strokeWidth=1.6).encode(
            x=x, y=y, **by_method([f"epoch {epoch}" for epoch in epochs])
        )

    return panels_chart(
        [matrix for _, matrix in places],
        data,
        draw,
        columns=min(4, len({each.matrix for each in spectra})),
        names={"method_names": [f"epoch {epoch}" for epoch in epochs]},
        title=title,
        subtitle=subtitle,
        note="",
        description=f"Eigenvalues by rank on log axes for {len(places)} matrices, a line for each of {len(epochs)} "
        "epochs.",
    )
