"""Charts of runs: curves, layer by epoch, how alpha is distributed, two layers beside each other, spectra in motion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from tempbalance.report.look import (
    BLUE,
    COLOURS,
    DASHES,
    DATA,
    INK,
    RED,
    by_method,
    chooser,
    finish,
    names_param,
)
from tempbalance.report.run_data import (
    Datum,
    alpha_bins,
    cells,
    curves,
    last_alphas,
    layer_names,
    recorded_spectra,
)
from tempbalance.report.runs import Group, read_groups
from tempbalance.report.spectrum_chart import spectrum_chart
from tempbalance.runlog import RunFolder

_LAYER = "layer_names[datum.value]"
_METHOD = "method_names[datum.value]"


def runs_charts(runs: Sequence[RunFolder]) -> dict[str, alt.TopLevelMixin]:
    """The charts of runs by name.

    Args:
        runs: Their folders; the first one's method is what others are compared with.

    Returns:
        ``accuracy``, ``loss``, ``alpha_map``, ``rate_map``, ``alpha_boxes``, ``alpha_histogram``, ``two_layers`` and
        ``spectrum``, each where the logs have what it shows.

    Raises:
        ValueError: If there are no runs, or a folder holds none.
    """
    return charts_of(read_groups(runs))


def charts_of(groups: Sequence[Group]) -> dict[str, alt.TopLevelMixin]:
    """The charts of groups of runs by name."""
    names, methods = layer_names(groups), [group.label for group in groups]
    charts: dict[str, alt.TopLevelMixin] = {}
    for quantity, unit in (("accuracy", "%"), ("loss", "nats")):
        if data := curves(groups, quantity):
            charts[quantity] = _curves(data, methods, quantity, unit)
    grid = cells(groups, names)
    for quantity, title in (("alpha", "Alpha"), ("rate", "Learning rate")):
        if data := [datum for datum in grid if datum[quantity] is not None]:
            charts[f"{quantity}_map"] = _map(data, methods, names, quantity, title)
    if alphas := last_alphas(groups, names):
        charts["alpha_boxes"] = _boxes(alphas, methods)
        charts["alpha_histogram"] = _histogram(alpha_bins(alphas), methods)
    if grid:
        charts["two_layers"] = _two_layers(grid, methods, names)
    if spectra := recorded_spectra(groups, names):
        charts["spectrum"] = _spectra(spectra, methods, names)
    return charts


def _curves(data: list[Datum], methods: list[str], quantity: str, unit: str) -> alt.TopLevelMixin:
    # radio buttons of one name would be one choice, so each chart's has its own
    stage = f"{quantity}_stage"
    radio = alt.binding_radio(options=["test", "train"], labels=["test", "training"], name="Images ")
    is_log = quantity == "loss" and all(datum["low"] > 0 for datum in data)
    y_options: dict[str, Any] = {
        "title": f"{quantity}, {unit} (log)" if is_log else f"{quantity}, {unit}",
        "scale": alt.Scale(type="log", nice=False) if is_log else alt.Scale(zero=False),
        "axis": alt.Axis(grid=not is_log),
    }
    base = (
        alt.Chart(DATA)
        .transform_filter(f"datum.stage == {stage}")
        .encode(x=epoch_axis(), y=alt.Y("mean:Q", **y_options))
    )
    looks = by_method(len(methods))
    band = base.mark_area(opacity=0.18, aria=False).encode(
        y=alt.Y("low:Q", **y_options), y2="high:Q", color=looks["color"]
    )
    layers = band, base.mark_line(strokeWidth=2).encode(**looks), _hover(base)
    chart = alt.layer(*layers).add_params(
        names_param("method_names", methods), alt.param(name=stage, value="test", bind=radio)
    )
    return finish(
        chart.properties(width="container"),
        data,
        title=f"{quantity.capitalize()} over the epochs",
        description=f"{quantity.capitalize()} of {len(methods)} methods over the epochs: mean over the seeds as a "
        "line, lowest to highest as a band.",
    )


def epoch_axis() -> alt.X:
    """Epochs as numbers."""
    return alt.X("epoch:Q", title="epoch", axis=alt.Axis(tickMinStep=1), scale=alt.Scale(nice=False))


def _hover(base: alt.Chart) -> alt.Chart:
    """Points that are not seen, and tell their numbers."""
    names = {"mean": "mean", "low": "lowest", "high": "highest"}
    numbers = [alt.Tooltip(f"{field}:Q", title=title, format=".4g") for field, title in names.items()]
    points: alt.Chart = base.mark_point(size=60, opacity=0, filled=True, aria=False).encode(
        tooltip=[alt.Tooltip("epoch:Q"), *numbers, alt.Tooltip("n:Q", title="seeds")]
    )
    return points


def _map(data: list[Datum], methods: list[str], names: list[str], quantity: str, title: str) -> alt.TopLevelMixin:
    chart = (
        heat_map(quantity, title, len(names))
        .properties(width=260)
        .facet(facet=_facet(), columns=min(2, len(methods)))
        .add_params(names_param("method_names", methods), names_param("layer_names", names))
    )
    return finish(
        chart,
        data,
        title=f"{title} by layer and epoch",
        description=f"{title} of {len(names)} layers over the epochs as a heat map for each of {len(methods)} methods, "
        "mean over the seeds.",
    )


def heat_map(quantity: str, title: str, num_layers: int, domain: list[float] | None = None) -> alt.Chart:
    """Layers, called as ``layer_names`` says, by epochs, coloured by the quantity, or by where it is in the domain."""
    scale = alt.Scale(scheme="viridis", zero=False, domain=alt.Undefined if domain is None else domain)
    legend = alt.Legend(title=title.lower(), orient="bottom", gradientLength=200, direction="horizontal")
    cells: alt.Chart = (
        alt.Chart(DATA)
        .mark_rect()
        .encode(
            x=alt.X("epoch:O", axis=alt.Axis(labelOverlap="greedy", labelSeparation=5, labelAngle=0, title="epoch")),
            y=alt.Y("layer:O", title=None, axis=alt.Axis(labelExpr=_LAYER, labelLimit=110, labelOverlap="greedy")),
            color=alt.Color(f"{quantity}:Q", scale=scale, legend=legend),
            tooltip=[alt.Tooltip("epoch:O"), alt.Tooltip(f"{quantity}:Q", format=".4g")],
        )
        .properties(height=alt.Step(16) if num_layers <= 30 else 480)
    )
    return cells


def _facet() -> alt.Facet:
    return alt.Facet("method:O", title=None, header=alt.Header(labelExpr=_METHOD, labelAnchor="start"))


def _boxes(alphas: list[Datum], methods: list[str]) -> alt.TopLevelMixin:
    base = alt.Chart(DATA).encode(y=alt.Y("method:O", title=None, axis=alt.Axis(labelExpr=_METHOD, labelLimit=110)))
    x = alt.X("alpha:Q", title="alpha (no unit)", scale=alt.Scale(zero=False))
    boxes = base.mark_boxplot(color=BLUE, size=18, extent=1.5, median={"color": "white"}).encode(x=x)
    means = base.mark_point(shape="diamond", filled=True, size=90, color=RED, opacity=1).encode(x="mean(alpha):Q")
    chart = alt.layer(boxes, means, mark_two()).add_params(names_param("method_names", methods))
    return finish(
        chart.properties(width="container", height=36 * len(methods) + 24),
        alphas,
        title="Alpha at the end",
        description=f"Box plots of alpha over layers and seeds for {len(methods)} methods, with the mean, and the "
        "value 2 marked.",
    )


def mark_two(channel: str = "x") -> alt.Chart:
    """A dashed line at the value that the paper calls optimal."""
    data = alt.Chart(alt.InlineData(values=[{"two": 2}]))
    two: alt.Chart = data.mark_rule(color=INK, strokeDash=[5, 4], aria=False).encode(**{channel: "two:Q"})
    return two


def _histogram(data: list[Datum], methods: list[str]) -> alt.TopLevelMixin:
    base = alt.Chart(DATA)
    bars = base.mark_rect(fill=BLUE, stroke=None).encode(
        x=alt.X("left:Q", title="alpha (no unit)", scale=alt.Scale(zero=False)),
        x2="right:Q",
        y=alt.Y("count:Q", title="layers x seeds", axis=alt.Axis(tickMinStep=1)),
        tooltip=["left:Q", "right:Q", "count:Q"],
    )
    two = base.mark_rule(color=INK, strokeDash=[5, 4], aria=False).encode(x=alt.datum(2))
    chart = alt.layer(bars, two).properties(width=260, height=150).facet(facet=_facet(), columns=min(2, len(methods)))
    return finish(
        chart.add_params(names_param("method_names", methods)),
        data,
        title="Histograms of alpha at the end",
        description=f"Histograms of alpha over layers and seeds, one for each of {len(methods)} methods, with the "
        "value 2 marked.",
    )


def _two_layers(data: list[Datum], methods: list[str], names: list[str]) -> alt.TopLevelMixin:
    base = (
        alt.Chart(DATA)
        .transform_filter("datum.method == method && (datum.layer == first || datum.layer == second)")
        .transform_calculate(which="datum.layer == first ? 0 : 1")
    )
    legend = alt.Legend(labelExpr="layer_names[datum.value == 0 ? first : second]", symbolType="stroke", symbolSize=500)
    looks = {
        "color": alt.Color("which:N", scale=alt.Scale(domain=[0, 1], range=list(COLOURS[:2])), legend=legend),
        "strokeDash": alt.StrokeDash("which:N", scale=alt.Scale(domain=[0, 1], range=list(DASHES[:2])), legend=legend),
    }
    lines = [
        base.transform_filter(f"isValid(datum.{quantity})")
        .mark_line(strokeWidth=2, point=True)
        .encode(x=epoch_axis(), y=alt.Y(f"{quantity}:Q", title=title, scale=alt.Scale(zero=False)), **looks)
        .properties(width=560, height=160)
        for quantity, title in (("alpha", "alpha (no unit)"), ("rate", "learning rate"))
    ]
    chart = alt.vconcat(*lines).add_params(
        names_param("layer_names", names),
        chooser("method", "Method ", methods, value=data[0]["method"]),
        chooser("first", "Layer ", names),
        chooser("second", "beside ", names, value=len(names) - 1),
    )
    return finish(
        chart,
        data,
        title="Two layers over the epochs",
        description="Alpha and learning rate of two chosen layers over the epochs, mean over the seeds. Choose method "
        "and layers in the lists before the chart.",
    )


def _spectra(data: list[Datum], methods: list[str], names: list[str]) -> alt.TopLevelMixin:
    first, last = min(datum["epoch"] for datum in data), max(datum["until"] for datum in data)
    start = data[0]
    slider = alt.param(name="epoch", value=last, bind=alt.binding_range(min=first, max=last, step=1, name="Epoch "))
    return spectrum_chart(
        data,
        chosen="datum.method == method && datum.layer == layer && datum.epoch <= epoch && epoch <= datum.until",
        title="layer_names[layer] + ', ' + method_names[method] + ', epoch ' + epoch",
        description="Histogram of the eigenvalues of a chosen layer on log axes, with the threshold xmin and the "
        "fitted power law. The slider before the chart moves it through the epochs.",
        params=[
            names_param("method_names", methods),
            names_param("layer_names", names),
            chooser("method", "Method ", methods, value=start["method"]),
            chooser("layer", "Layer ", names, value=start["layer"]),
            slider,
        ],
    )
