"""How charts look: readable on white and on black, in colour and in grey."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import altair as alt

from tempbalance.report.text import short

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
