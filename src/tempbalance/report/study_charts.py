"""Charts of studies that compare: bars of methods, and lines over what varies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import altair as alt

from tempbalance.report.look import BLUE, DATA, FAINT, INK, RED, by_method, names_param
from tempbalance.report.study_data import Bar, Dot, check, ends, numbered, zoomed
from tempbalance.report.study_look import (
    HEIGHT,
    Datum,
    Signs,
    by_sign,
    error_rule,
    finish_study,
    grid,
    label_axis,
    log_axis,
    measure_axis,
    num_columns,
    of_panel,
    panel_title,
    panel_width,
)
from tempbalance.report.text import finite, shown

_SETTING, _PAPER, _TIME = "each setting tried", "paper", "time (right axis)"
# colours that are seen on white, on black and on a bar
_SIGNS = {_SETTING: ("M-1,-1L1,1M-1,1L1,-1", "#6f7a86"), _PAPER: ("diamond", "#b07d1e"), _TIME: ("circle", RED)}
_NOTE = "Error bars: one standard deviation. Axes do not begin at 0."


def bar_chart(
    bars: Sequence[Bar], *, title: str, subtitle: str, y_title: str, seconds_title: str | None = None
) -> alt.TopLevelMixin:
    """Bars with error bars in panels side by side, each with an axis of its own that is zoomed to its data.

    Args:
        bars: In the order in which the panels, and the bars in them, stand.
        title: What is compared.
        subtitle: Preset and data.
        y_title: What the bars measure, and its unit.
        seconds_title: What the seconds are of; with it they are drawn as a line on a second axis.

    Raises:
        ValueError: If there are no bars, or two of one label in a panel.
    """
    check(bars, "bar", lambda bar: (bar.panel, bar.label))
    panels, labels = numbered(bar.panel for bar in bars), numbered(bar.label for bar in bars)
    data = [_bar_datum(bar, panels[bar.panel], labels[bar.label]) for bar in bars]
    used = _used(data, with_seconds=seconds_title is not None)
    columns = num_columns(len(panels))
    width = panel_width(columns, axes=58 if seconds_title is None else 100)
    charts = []
    for name, number in panels.items():
        mine = [datum for datum in data if datum["panel"] == number]
        base = of_panel(alt.Chart(DATA), number)
        base = base.encode(x=label_axis([datum["label"] for datum in mine], list(labels), width))
        aside = min(10.0, width / len(mine) / 5)  # other signs stand beside the error bar, so that none hides another
        chart = alt.layer(*_bar_layers(base, mine, y_title if number % columns == 0 else None, used, aside))
        if seconds_title is not None:
            is_last = number % columns == columns - 1 or number == len(panels) - 1
            line = alt.layer(*_second_layers(base, mine, seconds_title if is_last else None, used, aside))
            chart = alt.layer(chart, line).resolve_scale(y="independent")
        charts.append(chart.properties(width=width, height=HEIGHT, title=panel_title(name, width)))
    missing = sum(datum["mean"] is None for datum in data)
    return finish_study(
        grid(charts, columns=columns).add_params(names_param("label_names", list(labels))),
        data,
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
        "mean": finite(bar.mean, 9),
        "low": low,
        "high": high,
        "crosses": [value for each in bar.crosses if (value := finite(each, 9)) is not None],
        "paper": finite(bar.paper, 9),
        "seconds": finite(bar.seconds),
        "seconds_low": None if seconds_low is None else max(0.0, seconds_low),
        "seconds_high": seconds_high,
    }


def _used(data: Sequence[Datum], *, with_seconds: bool) -> Signs:
    """The signs that the chart has, for its legend."""
    there = {
        _SETTING: any(datum.get("crosses") for datum in data),
        _PAPER: any(datum["paper"] is not None for datum in data),
        _TIME: with_seconds,
    }
    return {name: look for name, look in _SIGNS.items() if there[name]}


def _values(data: Sequence[Datum]) -> list[float | None]:
    plain = [datum[name] for datum in data for name in ("mean", "low", "high", "paper")]
    return plain + [value for datum in data for value in datum.get("crosses", ())]


def _bar_layers(
    base: alt.Chart, data: Sequence[Datum], y_title: str | None, used: Signs, aside: float
) -> Iterator[alt.Chart]:
    domain = zoomed(_values(data))
    y = measure_axis("mean:Q", y_title, domain)
    bars = base.transform_filter("isValid(datum.mean)").transform_calculate(
        name="label_names[datum.label]", floor=str(domain[0] if domain else 0)
    )
    yield bars.mark_bar(fill=BLUE, fillOpacity=0.35, stroke=BLUE).encode(y=y, y2="floor:Q", tooltip=_told(data))
    empty = base.transform_filter("!isValid(datum.mean)")
    words = empty.mark_text(text="no run yet", angle=270, align="left", fontSize=10, color=FAINT, aria=False)
    yield words.encode(y=alt.value(HEIGHT - 6))
    yield error_rule(base, color=INK)
    if _SETTING in used:
        crosses = base.transform_flatten(["crosses"]).transform_calculate(sign=f"'{_SETTING}'")
        points = crosses.mark_point(size=20, strokeWidth=1.8, opacity=1, xOffset=aside)
        yield points.encode(y=alt.Y("crosses:Q"), **by_sign(used))
    if _PAPER in used:
        papers = base.transform_filter("isValid(datum.paper)").transform_calculate(sign=f"'{_PAPER}'")
        points = papers.mark_point(size=45, strokeWidth=1.8, fill="white", opacity=1, xOffset=-aside)
        yield points.encode(y=alt.Y("paper:Q"), **by_sign(used))


def _told(data: Sequence[Datum]) -> list[alt.Tooltip]:
    """The name that was calculated, and the numbers that there are."""
    titles = {"mean": "mean", "low": "mean - sd", "high": "mean + sd", "paper": "paper", "seconds": "seconds"}
    there = [field for field in titles if any(datum[field] is not None for datum in data)]
    numbers = [alt.Tooltip(f"{field}:Q", title=titles[field], format=".4g") for field in there]
    return [alt.Tooltip("name:N", title="of"), *numbers]


def _second_layers(
    base: alt.Chart, data: Sequence[Datum], title: str | None, used: Signs, aside: float
) -> Iterator[alt.Chart]:
    """Seconds as a line on the right-hand axis, from 0."""
    there = [datum[name] for datum in data for name in ("seconds", "seconds_high") if datum[name] is not None]
    domain = (0.0, 1.15 * max(there)) if there and max(there) > 0 else None
    y = measure_axis("seconds:Q", title, domain, orient="right", grid=False, titleColor=RED, labelColor=RED)
    timed = base.transform_filter("isValid(datum.seconds)").transform_calculate(sign=f"'{_TIME}'")
    yield timed.mark_line(color=RED, strokeWidth=1.5, xOffset=aside, aria=False).encode(y=y)
    yield error_rule(timed, low="seconds_low", high="seconds_high", color=RED, xOffset=aside)
    yield timed.mark_point(size=40, filled=True, opacity=1, xOffset=aside).encode(y=y, **by_sign(used))


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
    """Lines with points and error bars for each series in panels, each with an axis that is zoomed to its data.

    Args:
        dots: In the order in which panels and series stand.
        title: What is compared.
        subtitle: Preset and data.
        x_title: What varies, and its unit.
        y_title: What is measured, and its unit.
        log_x: Whether ``x`` is on a log axis.
        log_y: Whether what is measured is; an error bar that goes down to 0 ends at the axis.

    Raises:
        ValueError: If there are no dots, two of one series at one place, or an ``x`` that its axis has no place for.
    """
    check(dots, "dot", lambda dot: (dot.panel, dot.series, dot.x))
    for dot in dots:
        if finite(dot.x) is None or (log_x and dot.x <= 0):
            raise ValueError(f"x of a dot must be {'above 0' if log_x else 'a finite number'}, got {dot.x!r}")
    panels, series = numbered(dot.panel for dot in dots), numbered(dot.series for dot in dots)
    data = [_dot_datum(dot, panels[dot.panel], series[dot.series]) for dot in dots]
    columns = num_columns(len(panels))
    width = panel_width(columns)
    charts = []
    for name, number in panels.items():
        mine = [datum for datum in data if datum["panel"] == number]
        base = of_panel(alt.Chart(DATA), number).encode(x=_varying_axis(mine, x_title, width, log_x=log_x))
        y = _measured_axis(mine, y_title if number % columns == 0 else None, log_y=log_y)
        chart = alt.layer(*_line_layers(base, mine, y, by_method(len(series))))
        charts.append(chart.properties(width=width, height=HEIGHT, title=panel_title(name, width)))
    return finish_study(
        grid(charts, columns=columns).add_params(names_param("method_names", list(series))),
        data,
        title=title,
        subtitle=subtitle,
        note=f"{_NOTE}{' Hollow diamonds: the paper.' if _PAPER in _used(data, with_seconds=False) else ''}",
        description=f"{y_title} over {x_title} for {len(series)} series in {len(panels)} panels: mean and one "
        "standard deviation. The axes are zoomed and do not begin at 0.",
    )


def _measured_axis(data: Sequence[Datum], title: str | None, *, log_y: bool) -> alt.Y:
    if not log_y:
        return measure_axis("mean:Q", title, zoomed(_values(data)))
    there = [value for value in _values(data) if value is not None and value > 0]
    options = log_axis((min(there) / 1.3, max(there) * 1.3) if there else (0.1, 1.0))
    options["scale"].clamp = True
    return alt.Y("mean:Q", title=title and shown(title), **options)


def _dot_datum(dot: Dot, panel: int, method: int) -> Datum:
    low, high = ends(dot.mean, dot.std)
    numbers = {"mean": finite(dot.mean, 9), "low": low, "high": high, "paper": finite(dot.paper, 9)}
    return {"panel": panel, "method": method, "x": finite(dot.x, 9), **numbers, "seconds": finite(dot.seconds)}


def _varying_axis(data: Sequence[Datum], title: str, width: int, *, log_x: bool) -> alt.X:
    """An axis with a tick at each value that was tried, where there are few."""
    tried = sorted({datum["x"] for datum in data})
    ticks: dict[str, Any] = {"values": tried} if len(tried) <= width // 24 else {"tickCount": 5}
    domain = (tried[0], tried[-1]) if len(tried) > 1 else zoomed(tried) or ()
    scale = alt.Scale(type="log" if log_x else "linear", domain=list(domain), nice=False, padding=14)
    # an axis' own format would round 0.025 to the distance of its ticks
    axis = alt.Axis(labelExpr="format(datum.value, '~g')", labelOverlap="greedy", grid=False, **ticks)
    return alt.X("x:Q", title=shown(title), scale=scale, axis=axis)


def _line_layers(base: alt.Chart, data: Sequence[Datum], y: alt.Y, looks: dict[str, Any]) -> Iterator[alt.Chart]:
    measured = base.transform_filter("isValid(datum.mean)")
    yield measured.mark_line(strokeWidth=2, aria=False).encode(y=y, **looks)
    yield error_rule(base).encode(color=looks["color"])
    named = measured.transform_calculate(name="method_names[datum.method]")
    yield named.mark_point(size=36, filled=True, opacity=1).encode(y=y, color=looks["color"], tooltip=_told(data))
    if _PAPER in _used(data, with_seconds=False):
        papers = base.transform_filter("isValid(datum.paper)").encode(y=alt.Y("paper:Q"), color=looks["color"])
        yield papers.mark_line(strokeWidth=1, strokeDash=[1, 2], aria=False)
        yield papers.mark_point(shape="diamond", size=45, strokeWidth=1.6, fill="white", opacity=1)
