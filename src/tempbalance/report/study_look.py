"""How charts of studies look: panels side by side, under a title and a line that tells preset and data."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from tempbalance.report.look import finish
from tempbalance.report.text import short, shown

Datum = dict[str, Any]
Signs = Mapping[str, tuple[str, str]]  # shape and colour by name
HEIGHT = 170
_ROOM = 900  # of all columns and their axes: what the page and a sheet of paper have
_TOP = 0.05  # share of an axis, at its end, that has no tick
_LETTER = 6.3  # width of a letter of a label, about


def num_columns(num_panels: int) -> int:
    """How many panels stand side by side, 4 at most; 5 and 6 are in two rows of 3."""
    return min(num_panels, 3 if num_panels in (5, 6) else 4)


def panel_width(columns: int, *, axes: int = 58) -> int:
    """Width of a panel, its axes not counted, among so many beside each other."""
    return min(420, _ROOM // columns - axes)


def grid(panels: Sequence[Any], *, columns: int) -> alt.ConcatChart:
    """The panels, row by row."""
    return alt.concat(*panels, columns=columns, spacing={"row": 18, "column": 14})


def of_panel(base: alt.Chart, number: int) -> alt.Chart:
    """The data of one panel."""
    mine: alt.Chart = base.transform_filter(f"datum.panel == {number}")
    return mine


def panel_title(text: str, width: int) -> alt.Title:
    """The heading of a panel, cut to its width."""
    words = short(text, max(12, round(width / _LETTER)))
    return alt.Title(text=words, anchor="middle", frame="group", fontSize=12, fontWeight="normal", offset=6)


def label_axis(labels: Sequence[int], names: Sequence[str], width: int) -> alt.X:
    """An axis of labels, which ``label_names`` has by number; slanted where they would touch each other."""
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
    """An axis over this domain, its ticks so far apart or farther; without a domain there is nothing to measure."""
    ticks: dict[str, Any] = {"labels": False, "ticks": False}
    if domain:
        ticks = {"tickCount": 5, "values": _ticks(*domain, min_step)}
    scale = alt.Scale(domain=list(domain or (0, 1)), nice=False, zero=False)
    return alt.Y(field, title=title and shown(title), scale=scale, axis=alt.Axis(**{**ticks, **options}))


def _ticks(low: float, high: float, min_step: float) -> list[float]:
    """About five round numbers; none is near the top, where its label would push the title up."""
    rough = (high - low) / 7
    decade = 10.0 ** math.floor(math.log10(rough))
    step = max(min_step, next(each * decade for each in (1, 2, 5, 10) if each * decade >= 0.999 * rough))
    first, last = math.ceil(low / step), math.floor((high - _TOP * (high - low)) / step)
    return [float(f"{place * step:.12g}") for place in range(first, last + 1)]


def log_axis(domain: tuple[float, float]) -> dict[str, Any]:
    """Scale and axis over this domain, with ticks at powers of ten, and at 2 and 5 times those where they are few."""
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
    """A line from one standard deviation below the mean to one above it, where there is one."""
    there = base.transform_filter(f"isValid(datum.{low}) && isValid(datum.{high})")
    rule: alt.Chart = there.mark_rule(strokeWidth=1.5, aria=False, **look).encode(y=alt.Y(f"{low}:Q"), y2=f"{high}:Q")
    return rule


def by_sign(used: Signs) -> dict[str, Any]:
    """Shape and colour of points by ``sign``, the name of their kind, with one legend of all kinds that are used."""
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
