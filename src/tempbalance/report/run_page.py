"""Charts and page of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import altair as alt

from tempbalance.errors import CheckpointError
from tempbalance.report.chart import (
    BLUE,
    COLOURS,
    DASHES,
    DATA,
    INK,
    RED,
    Datum,
    by_method,
    chooser,
    finish,
    names_param,
    save_figures,
)
from tempbalance.report.layer_charts import alpha_bins, epoch_axis, heat_map, mark_two
from tempbalance.report.page import Column, cell, document, facts, figure, section, table
from tempbalance.report.runs import (
    Group,
    Summary,
    cells,
    curves,
    last_alphas,
    layer_names,
    read_groups,
    recorded_spectra,
    summarize,
)
from tempbalance.report.spectrum import spectrum_chart
from tempbalance.report.text import named, shown
from tempbalance.runlog import RunFolder, write_whole

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


_COLUMNS = (
    Column("#", "Place in the list of methods"),
    Column("method", "Its name, and in what it differs from others of that name", is_number=False),
    Column("seeds", "Complete runs"),
    Column("test accuracy, mean, %", "Mean of the test accuracy after the last epoch"),
    Column("sd, points", "Standard deviation over the seeds"),
    Column("difference, points", "Mean of the differences to the first method, seed by seed"),
    Column("sd of it", "Standard deviation of those differences"),
    Column("pairs", "Seeds that both methods have"),
)
_END = "First and last layers have no score in the logs, unless the recipe says so, and are skipped as in the paper."
_CAPTIONS = {
    "accuracy": "Mean over the seeds; the band goes from the lowest seed to the highest.",
    "loss": "Cross entropy, mean over the seeds; the band goes from the lowest seed to the highest.",
    "alpha_map": "Mean over the seeds at each scoring; of many scorings an even choice. Epoch 0 is before training. "
    + _END,
    "rate_map": "The rate that follows each scoring, mean over the seeds; of many scorings an even choice.",
    "alpha_boxes": "Alpha at the last scoring, over layers and seeds: median, quartiles, the farthest values within "
    "1.5 times their distance, and those beyond as points. The diamond is the mean, the dashed line marks 2. " + _END,
    "alpha_histogram": "The same values counted; the dashed line marks 2.",
    "two_layers": "Alpha above and learning rate below, mean over the seeds.",
    "spectrum": "Of each method's first run with recorded eigenvalues. Eigenvalues as a density on log axes; stronger "
    "bars are the tail from xmin on, the dashed line is p(x) ~ x^-alpha, where the recipe tells the threshold.",
}
_SECTIONS = (
    ("Curves", ("accuracy", "loss"), "No epoch is complete yet."),
    ("Layers over the epochs", ("alpha_map", "rate_map"), "No layer was scored."),
    ("The distribution of alpha", ("alpha_boxes", "alpha_histogram"), "No layer has an alpha."),
    ("Two layers", ("two_layers",), "No layer was scored."),
    ("Spectra through the epochs", ("spectrum",), "No eigenvalues were recorded: train with --log-eigenvalues."),
)


def runs_page(runs: Sequence[RunFolder]) -> str:
    """One HTML document about runs, which opens offline.

    Args:
        runs: Their folders; the first one's method is what others are compared with.

    Raises:
        ValueError: If there are no runs, or a folder holds none.
    """
    groups = read_groups(runs)
    charts = charts_of(groups)
    title = ", ".join(dict.fromkeys(f"{_option(group, 'model')} on {_option(group, 'dataset')}" for group in groups))
    body = [
        f"<header><p>Runs</p><h1>{named(title)}</h1></header>",
        facts(_facts(groups)),
        section("Methods", _methods(groups)),
        *(section(heading, *_figures(names, charts, otherwise)) for heading, names, otherwise in _SECTIONS),
    ]
    return document(f"Runs: {title}", body, charts)


def _option(group: Group, name: str) -> Any:
    return group.runs[0].recipe.get(name)


def _facts(groups: Sequence[Group]) -> dict[str, Any]:
    runs = [run for group in groups for run in group.runs]
    missing = sum(run.result is None for run in runs)
    values = {"methods": len(groups), "runs": len(runs), "not complete": missing or None}
    for name in ("epochs", "batch_size", "lr", "weight_decay", "tail", "score", "assignment"):
        found = {str(run.recipe.get(name)) for run in runs if run.recipe.get(name) is not None}
        if len(found) == 1:
            values[name.replace("_", " ")] = found.pop()  # type: ignore[assignment]
    return values


def _methods(groups: Sequence[Group]) -> str:
    lines = [_line(place, summary) for place, summary in enumerate(summarize(groups), start=1)]
    return table(_COLUMNS, lines, caption="Test accuracy after the last epoch")


def _line(place: int, summary: Summary) -> str:
    unfinished = summary.num_runs - summary.num_complete
    more = f" ({unfinished} not complete)" if unfinished else ""
    difference = "" if summary.difference is None else f"{summary.difference:+.2f}"
    return (
        f'<tbody><tr>{cell(place)}<th scope="row">{named(summary.label)}{more}</th>{cell(summary.num_complete)}'
        f'{_points(summary.mean)}{_points(summary.std)}<td class="number">{difference}</td>'
        f"{_points(summary.difference_std)}{cell(summary.num_pairs or None)}</tr></tbody>\n"
    )


def _points(value: float | None) -> str:
    return f'<td class="number">{"" if value is None else f"{value:.2f}"}</td>'


def _figures(names: Sequence[str], charts: Mapping[str, Any], otherwise: str) -> list[str]:
    there = [figure(name, _CAPTIONS[name]) for name in names if name in charts]
    return there or [f"<p>{escape(otherwise)}</p>"]


def find_runs(folders: Sequence[Path]) -> list[RunFolder]:
    """The runs of images that the folders are or hold, in the order of their names.

    Raises:
        CheckpointError: If a folder is or holds none, or none has finished an epoch or is of images.
    """
    found: dict[Path, RunFolder] = {}
    for folder in folders:
        paths = sorted(path.parent for path in folder.rglob("recipe.json"))
        if not paths:
            raise CheckpointError(f"{shown(str(folder))} is no run and holds none: a run has a recipe.json")
        found.update((path.resolve(), RunFolder(path)) for path in paths)
    begun = [run for run in found.values() if run.metrics]
    runs = [run for run in begun if _kind(run) == "images"]
    if begun and not runs:
        kinds = ", ".join(dict.fromkeys(map(_kind, begun)))
        raise CheckpointError(
            f"{shown(str(folders[0]))} holds runs of {kinds}, pages are of images: see tempbalance study report {kinds}"
        )
    if not runs:
        raise CheckpointError(f"no run in {', '.join(shown(str(each)) for each in folders)} has finished an epoch yet")
    return runs


def _kind(run: RunFolder) -> str:
    recipe = (run.recipe or {}).get("recipe")
    return str(recipe.get("kind", "images")) if isinstance(recipe, dict) else "images"


def write_runs(folders: Sequence[Path], html: Path, figures: Path | None = None) -> list[Path]:
    """Write the page of runs, and its charts if there is a folder for them.

    Args:
        folders: Runs, or folders that hold some.
        html: The page.
        figures: Where charts go as SVG, PDF and PNG.

    Returns:
        What was written.

    Raises:
        CheckpointError: If there are no runs.
        ValueError: If the page's place is a folder.
    """
    if html.is_dir():
        raise ValueError(f"html must be a file to write, got the folder {str(html)!r}")
    runs = find_runs(folders)
    write_whole(html, runs_page(runs).encode())
    return [html, *(save_figures(runs_charts(runs), figures) if figures is not None else [])]
