"""Charts and page of runs: those of one method together, whatever their seeds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import altair as alt

from tempbalance.errors import CheckpointError
from tempbalance.report import chart as parts
from tempbalance.report import layer_charts
from tempbalance.report.chart import DATA, Datum, chooser, epoch_axis, finish, names_param
from tempbalance.report.layer_charts import MOST_EPOCHS, Alphas, LayerTrack
from tempbalance.report.page import check_places, facts, render, table_content, write_files
from tempbalance.report.spectrum import spectrum_chart, spectrum_datum
from tempbalance.report.statistics import Paired, paired
from tempbalance.report.tables import Entry, Number, ResultTable
from tempbalance.report.text import finite, shown
from tempbalance.runlog import Line, RunFolder, RunFolderError

MOST_SPECTRA = 6_000
# options that do not make it another method, and those that a label always has where they differ
_NOT_COMPARED = ("seed", "method", "log_gradients", "log_eigenvalues", "log_layers")
_SETTING = ("dataset", "model", "width", "epochs")


@dataclass(frozen=True)
class Run:
    """The content of a run's folder."""

    recipe: Line
    metrics: list[Line]
    layers: list[Line]
    result: Line | None


@dataclass(frozen=True)
class Group:
    """Runs that differ in nothing but the seed; the label has the method and the options that tell it from others."""

    label: str
    runs: tuple[Run, ...]

    @property
    def accuracies(self) -> dict[str, float]:
        """Test accuracy of the complete runs in percent, by seed."""
        found = {str(run.recipe.get("seed")): (run.result or {}).get("test_accuracy") for run in self.runs}
        return {seed: value for seed, raw in found.items() if (value := finite(raw, 12)) is not None}

    @property
    def layers(self) -> list[Line]:
        return [line for run in self.runs for line in run.layers]


def read_groups(folders: Sequence[RunFolder]) -> list[Group]:
    """Read runs and group those that differ in nothing but the seed, in the order of the first of each."""
    if not folders:
        raise ValueError("a report needs at least one run, got none")
    found: dict[str, list[Run]] = {}
    for folder in folders:
        run = _read(folder)
        options = {name: value for name, value in run.recipe.items() if name not in _NOT_COMPARED}
        found.setdefault(repr((run.recipe.get("method"), sorted(options.items()))), []).append(run)
    recipes = [runs[0].recipe for runs in found.values()]
    return [Group(_label(runs[0].recipe, recipes), tuple(runs)) for runs in found.values()]


def _read(folder: RunFolder) -> Run:
    content = folder.recipe
    if content is None or not isinstance(content.get("recipe"), dict):
        raise RunFolderError(f"{folder.path} holds no run: its recipe.json must have a recipe, got {str(content)[:80]}")
    layers = folder.layers
    for line in layers:
        values = line.get("eigenvalues", [])
        if not isinstance(line.get("layer"), str):
            reason = f"a line must have the name of a layer, got {str(line)[:80]}"
        elif not isinstance(values, list) or any(finite(value) is None for value in values):
            reason = f"eigenvalues must be numbers, got {str(values)[:80]}"
        else:
            continue
        raise RunFolderError(f"{folder.path}, layers.jsonl: {reason}")
    return Run(content["recipe"], folder.metrics, layers, folder.result)


def _label(recipe: Line, recipes: Sequence[Line]) -> str:
    alike = [other for other in recipes if other.get("method") == recipe.get("method")]
    options = [
        f"{name} {value}"
        for name, value in recipe.items()
        if name not in _NOT_COMPARED
        and any(other.get(name) != value for other in (recipes if name in _SETTING else alike))
    ]
    return ", ".join([str(recipe.get("method")), *options])


def method_table(groups: Sequence[Group]) -> ResultTable:
    """Return a row for each group: its accuracy, and the paired test against the first of its dataset and network."""
    columns = ("method", "seeds", "test accuracy, %", "difference, points", "p")
    rows = []
    for group in groups:
        values = list(group.accuracies.values())
        mean = Number(fmean(values), stdev(values) if len(values) > 1 else None) if values else None
        seeds = str(len(values)) if len(values) == len(group.runs) else f"{len(values)} of {len(group.runs)}"
        rows.append([group.label, seeds, mean, *_test_entries(against_first(group, groups), len(values))])
    caption = (
        "Test accuracy after the last epoch, mean ± standard deviation over the seeds of complete runs. Difference: to "
        "the first method of the same dataset and network, seed by seed, ± half the 95 % interval of the mean; p of "
        "the paired t-test."
    )
    return ResultTable(caption, columns, rows, spread=columns[2:4])


def against_first(group: Group, groups: Sequence[Group]) -> Paired | None:
    """Test a group against the first one of the same dataset and network; ``None`` for that one itself."""

    def setting(each: Group) -> list[Any]:
        return [each.runs[0].recipe.get(name) for name in ("dataset", "model", "width")]

    first = next(each for each in groups if setting(each) == setting(group))
    return None if group is first else paired(group.accuracies, first.accuracies)


def _test_entries(test: Paired | None, num_seeds: int) -> list[Entry]:
    if test is None:
        return [None, None]
    note = f"({test.num_pairs} of {num_seeds} seeds)" if test.num_pairs < num_seeds else ""
    p_value = None if test.p_value is None else Number(test.p_value, digits=3, least=0.001)
    return [Number(test.mean, test.interval or None, signed=True, note=note), p_value]


def curves(groups: Sequence[Group], quantity: str) -> list[Datum]:
    """Return the mean of ``accuracy`` or ``loss`` over the seeds, and the lowest and highest of them, by epoch."""
    data = []
    for method, group in enumerate(groups):
        for stage in ("test", "train"):
            lines = [line for run in group.runs for line in run.metrics]
            for epoch, values in _by_epoch(lines, f"{stage}_{quantity}").items():
                datum = {"method": method, "stage": stage, "epoch": epoch, "mean": finite(fmean(values))}
                data.append({**datum, "low": finite(min(values)), "high": finite(max(values)), "n": len(values)})
    return data


def _by_epoch(lines: Iterable[Line], name: str) -> dict[int, list[float]]:
    found: dict[int, list[float]] = {}
    for line in lines:
        if (value := finite(line.get(name), 12)) is not None:
            found.setdefault(int(line["epoch"]), []).append(value)
    return dict(sorted(found.items()))


def tracks(groups: Sequence[Group]) -> list[LayerTrack]:
    """Return alpha and rate of each layer at each scoring, as means over the seeds, for each group with a score."""
    found = []
    for group in groups:
        lines: dict[str, list[Line]] = {}
        for line in group.layers:
            lines.setdefault(line["layer"], []).append(line)
        alphas, rates = ([_by_epoch(each, name) for each in lines.values()] for name in ("alpha", "rate"))
        epochs = sorted({epoch for each in (*alphas, *rates) for epoch in each})
        if epochs:
            alpha, rate = (
                tuple(
                    tuple(finite(fmean(each[epoch])) if epoch in each else None for epoch in epochs) for each in layers
                )
                for layers in (alphas, rates)
            )
            found.append(LayerTrack(group.label, tuple(epochs), tuple(lines), alpha, rate))
    return found


def last_alphas(groups: Sequence[Group]) -> list[Alphas]:
    """Return alpha of each layer and run at the run's last scoring."""
    found = []
    for group in groups:
        last = [line for run in group.runs for line in run.layers if line["epoch"] == run.layers[-1]["epoch"]]
        alphas = tuple(alpha for line in last if (alpha := finite(line.get("alpha"))) is not None)
        found.append(Alphas("", group.label, alphas))
    return found


def shown_epochs(groups: Sequence[Group], most: int) -> list[tuple[int, int]]:
    """Return an even choice of epochs, 2 to `MOST_EPOCHS`, each with the last one that it stands for."""
    epochs = sorted({int(line["epoch"]) for group in groups for line in group.layers})
    epochs = parts.evenly(epochs, min(MOST_EPOCHS, max(2, most)))
    return [(epoch, after - 1) for epoch, after in pairwise(epochs)] + [(epoch, epoch) for epoch in epochs[-1:]]


def recorded_spectra(groups: Sequence[Group]) -> tuple[list[Datum], list[str]]:
    """Return the recorded spectra of each group's first run that has any, at some epochs, and the layers' names."""
    names = list(dict.fromkeys(line["layer"] for group in groups for line in group.layers))
    numbers = {name: number for number, name in enumerate(names)}
    kept = dict(shown_epochs(groups, MOST_SPECTRA // max(1, len(groups) * len(names))))
    data = []
    for method, group in enumerate(groups):
        run = next((run for run in group.runs if any(line.get("eigenvalues") for line in run.layers)), None)
        for line in run.layers if run is not None else []:
            epoch = int(line["epoch"])
            if run is not None and epoch in kept and (datum := _spectrum(run, line)) is not None:
                place = {"method": method, "layer": numbers[line["layer"]], "epoch": epoch, "until": kept[epoch]}
                data.append({**datum, **place})
    return data, names


def _spectrum(run: Run, line: Line) -> Datum | None:
    """Return a recorded spectrum; logs have no threshold, but that of the median is known from the recipe."""
    values, alpha = sorted(map(float, line.get("eigenvalues", []))), finite(line.get("alpha"))
    tail, fraction = run.recipe.get("tail"), finite(run.recipe.get("tail_fraction", 0.5)) or 0.0
    num_tail = int(len(values) * fraction) if tail == "median" and fraction < 1 else 0
    if tail == "median_published":
        num_tail = len(values) - int(len(values) * (1 - fraction)) - 1  # above the threshold, which counts too
    if not 0 < num_tail < len(values):
        return spectrum_datum(values, alpha=alpha)
    return spectrum_datum(values, alpha=alpha, xmin=values[-num_tail - 1], num_tail=num_tail)


def runs_charts(runs: Sequence[RunFolder]) -> dict[str, alt.TopLevelMixin]:
    """Return the charts for which the logs have values; other methods are compared with the first run's.

    They are ``accuracy``, ``loss``, ``layer_maps``, ``alpha_boxes``, ``alpha_histogram``, ``two_layers``, ``spectrum``.
    """
    return _charts(read_groups(runs))


def _charts(groups: Sequence[Group]) -> dict[str, alt.TopLevelMixin]:
    methods = [group.label for group in groups]
    charts: dict[str, alt.TopLevelMixin] = {}
    for quantity, unit in (("accuracy", "%"), ("loss", "nats")):
        if data := curves(groups, quantity):
            charts[quantity] = _curves(data, methods, quantity, unit)
    if found := tracks(groups):
        title = "Learning rate and alpha by layer and epoch"
        charts["layer_maps"] = layer_charts.layer_maps(found, title=title, subtitle="")
    alphas = last_alphas(groups)
    if any(each.values for each in alphas):
        charts["alpha_boxes"] = layer_charts.alpha_boxes(alphas, title="Alpha at the end", subtitle="")
        title = "Histograms of alpha at the end"
        charts["alpha_histogram"] = layer_charts.alpha_histograms(alphas, title=title, subtitle="")
    if found:
        charts["two_layers"] = _two_layers(found)
    spectra, names = recorded_spectra(groups)
    if spectra:
        charts["spectrum"] = _spectra(spectra, methods, names)
    return charts


def _curves(data: list[Datum], methods: list[str], quantity: str, unit: str) -> alt.TopLevelMixin:
    # radio buttons of one name would be one choice, so each chart's has another
    stage = f"{quantity}_stage"
    radio = {"input": "radio", "options": ["test", "train"], "labels": ["test", "training"], "name": "Images "}
    is_log = quantity == "loss" and all(datum["low"] > 0 for datum in data)
    y: dict[str, Any] = {
        "title": f"{quantity}, {unit} (log)" if is_log else f"{quantity}, {unit}",
        "scale": alt.Scale(type="log", nice=False) if is_log else alt.Scale(zero=False),
        "axis": alt.Axis(grid=not is_log),
    }
    base = alt.Chart(DATA).transform_filter(f"datum.stage == {stage}")
    base = base.encode(x=epoch_axis(data), y=alt.Y("mean:Q", **y))
    looks = parts.by_method(methods)
    band = base.mark_area(opacity=0.18, aria=False).encode(y=alt.Y("low:Q", **y), y2="high:Q", color=looks["color"])
    numbers = parts.tooltips(".4g", mean="mean", low="lowest", high="highest")
    hover = base.mark_point(size=60, opacity=0, filled=True, aria=False).encode(
        tooltip=[alt.Tooltip("epoch:Q"), *numbers, alt.Tooltip("n:Q", title="seeds")]
    )
    chart = alt.layer(band, base.mark_line(strokeWidth=2).encode(**looks), hover)
    return finish(
        chart.properties(width="container"),
        data,
        params=[names_param("method_names", methods), {"name": stage, "value": "test", "bind": radio}],
        title=f"{quantity.capitalize()} over the epochs",
        description=f"{quantity.capitalize()} of {len(methods)} methods over the epochs: mean over the seeds as a "
        "line, lowest to highest as a band.",
    )


def _two_layers(found: Sequence[LayerTrack]) -> alt.TopLevelMixin:
    """Draw alpha and rate of two layers to choose, of one method or of two."""
    data, _ = layer_charts.track_data(found)
    names = [f"{name} ({track.panel})" if len(found) > 1 else name for track in found for name in track.layers]
    base = alt.Chart(DATA).transform_filter("datum.layer == first || datum.layer == second")
    base = base.transform_calculate(which="datum.layer == first ? 0 : 1")
    looks = parts.by_stroke(
        "which", parts.COLOURS[:2], parts.DASHES[:2], "layer_names[datum.value == 0 ? first : second]"
    )
    lines = [
        base.transform_filter(f"isValid(datum.{quantity})")
        .mark_line(strokeWidth=2, point=True)
        .encode(x=epoch_axis(data), y=alt.Y(f"{quantity}:Q", title=title, scale=alt.Scale(zero=False)), **looks)
        .properties(width=560, height=160)
        for quantity, title in (("alpha", "alpha (no unit)"), ("rate", "learning rate"))
    ]
    choosers = [chooser("first", "Layer ", names), chooser("second", "and ", names, value=len(names) - 1)]
    return finish(
        alt.vconcat(*lines),
        data,
        params=[names_param("layer_names", names), *choosers],
        title="Two layers over the epochs",
        description="Alpha and learning rate of two chosen layers over the epochs, mean over the seeds. Choose the "
        "layers in the lists before the chart.",
    )


def _spectra(data: list[Datum], methods: list[str], names: list[str]) -> alt.TopLevelMixin:
    first, last = min(datum["epoch"] for datum in data), max(datum["until"] for datum in data)
    slider = {"input": "range", "min": first, "max": last, "step": 1, "name": "Epoch "}
    return spectrum_chart(
        data,
        chosen="datum.method == method && datum.layer == layer && datum.epoch <= epoch && epoch <= datum.until",
        title="layer_names[layer] + ', ' + method_names[method] + ', epoch ' + epoch",
        description="Histogram of the eigenvalues of a chosen layer on log axes, with the threshold xmin and the "
        "fitted power law. The slider before the chart moves it through the epochs.",
        params=[
            names_param("method_names", methods),
            names_param("layer_names", names),
            chooser("method", "Method ", methods, value=data[0]["method"]),
            chooser("layer", "Layer ", names, value=data[0]["layer"]),
            {"name": "epoch", "value": last, "bind": slider},
        ],
    )


def runs_page(runs: Sequence[RunFolder]) -> str:
    """Return one HTML document about runs, which opens offline."""
    groups = read_groups(runs)
    recipes = [group.runs[0].recipe for group in groups]
    heading = ", ".join(dict.fromkeys(f"{each.get('model')} on {each.get('dataset')}" for each in recipes))
    return render(
        "runs.html",
        title=f"Runs: {heading}",
        charts=_charts(groups),
        heading=heading,
        facts=facts(_facts(groups)),
        table=table_content(method_table(groups)),
    )


def _facts(groups: Sequence[Group]) -> dict[str, Any]:
    runs = [run for group in groups for run in group.runs]
    missing = sum(run.result is None for run in runs)
    values: dict[str, Any] = {"methods": len(groups), "runs": len(runs), "not complete": missing or None}
    for name in ("epochs", "batch_size", "lr", "weight_decay", "tail", "score", "assignment"):
        found = {str(run.recipe.get(name)) for run in runs if run.recipe.get(name) is not None}
        if len(found) == 1:
            values[name] = found.pop()
    return values


def find_runs(folders: Sequence[Path]) -> list[RunFolder]:
    """Return the runs of images that the folders are or hold, in the order of their names."""
    found: dict[Path, RunFolder] = {}
    for folder in folders:
        paths = sorted(path.parent for path in folder.rglob("recipe.json"))
        if not paths:
            raise CheckpointError(f"{shown(str(folder))} is no run and holds none: a run has a recipe.json")
        found.update((path.resolve(), RunFolder(path)) for path in paths)
    begun = {run: _kind(run) for run in found.values() if run.metrics}
    runs = [run for run, kind in begun.items() if kind == "images"]
    if begun and not runs:
        kinds = ", ".join(dict.fromkeys(begun.values()))
        raise CheckpointError(
            f"{shown(str(folders[0]))} holds runs of {kinds}, pages are of images: see tempbalance study report {kinds}"
        )
    if not runs:
        raise CheckpointError(f"no run in {', '.join(shown(str(each)) for each in folders)} has finished an epoch yet")
    return runs


def _kind(run: RunFolder) -> str:
    recipe = run.recipe.get("recipe") if isinstance(run.recipe, dict) else None
    # a damaged recipe is refused when it is read
    return str(recipe.get("kind", "images")) if isinstance(recipe, dict) else "images"


def write_runs(folders: Sequence[Path], html: Path, figures: Path | None = None) -> list[Path]:
    """Write the page of the runs that the folders are or hold, and the charts if there is a folder for them."""
    check_places(html, figures)
    runs = find_runs(folders)
    return write_files(html, figures, page=lambda: runs_page(runs), charts=lambda: runs_charts(runs))
