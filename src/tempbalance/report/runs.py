"""Runs as a report sees them: read, grouped by method, and converted to data for charts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, stdev
from typing import Any

from tempbalance.report.chart import Datum
from tempbalance.report.layer_charts import MOST_CELLS, MOST_EPOCHS
from tempbalance.report.spectrum import spectrum_datum
from tempbalance.report.statistics import paired
from tempbalance.report.text import finite
from tempbalance.runlog import Line, RunFolder, RunFolderError

# options that do not make it another method, and those that are always said where they differ
_NOT_COMPARED = ("seed", "method", "log_gradients", "log_eigenvalues")
_SETTING = ("dataset", "model", "width", "epochs")


@dataclass(frozen=True)
class Run:
    """The content of a run's folder."""

    recipe: Line
    metrics: list[Line]
    layers: list[Line]
    result: Line | None

    @property
    def accuracy(self) -> float | None:
        """Test accuracy after the last epoch, in percent; ``None`` while the run is not complete."""
        return finite((self.result or {}).get("test_accuracy"), 12)


@dataclass(frozen=True)
class Group:
    """Runs that differ in nothing but the seed.

    Attributes:
        label: The method, and in what it differs from others where the method alone does not tell.
        runs: One a seed.
    """

    label: str
    runs: tuple[Run, ...]

    @property
    def accuracies(self) -> dict[str, float]:
        """Test accuracy of the complete runs, by seed."""
        return {str(run.recipe.get("seed")): run.accuracy for run in self.runs if run.accuracy is not None}


@dataclass(frozen=True)
class Summary:
    """What a group came to.

    Attributes:
        label: That of the group.
        num_runs, num_complete: All its runs, and the complete ones.
        mean, std: Of the test accuracies in percent; the standard deviation is that of the sample, ``None`` under two.
        difference, difference_std: Mean and standard deviation of the paired differences to the first group of the same
            dataset and network, in points; ``None`` for that group itself, or without common seeds.
        num_pairs: Seeds in common.
    """

    label: str
    num_runs: int
    num_complete: int
    mean: float | None
    std: float | None
    difference: float | None
    difference_std: float | None
    num_pairs: int


def read_groups(folders: Sequence[RunFolder]) -> list[Group]:
    """Read runs and put those together that differ in nothing but the seed, in the order of the first of each.

    Raises:
        ValueError: If there are no runs.
        RunFolderError: If a folder holds none, or is damaged.
    """
    if not folders:
        raise ValueError("a report needs at least one run, got none")
    found: dict[str, list[Run]] = {}
    for folder in folders:
        run = _read(folder)
        options = {name: value for name, value in run.recipe.items() if name not in (*_NOT_COMPARED,)}
        found.setdefault(repr((run.recipe.get("method"), sorted(options.items()))), []).append(run)
    groups = list(found.values())
    return [Group(_label(runs, groups), tuple(runs)) for runs in groups]


def _read(folder: RunFolder) -> Run:
    content = folder.recipe
    if content is None or not isinstance(content.get("recipe"), dict):
        raise RunFolderError(f"{folder.path} holds no run: its recipe.json must have a recipe, got {str(content)[:80]}")
    layers = [_checked(line, folder) for line in folder.layers]
    return Run(content["recipe"], folder.metrics, layers, folder.result)


def _checked(line: Line, folder: RunFolder) -> Line:
    """A line about a layer, its eigenvalues ascending and finite."""
    if not isinstance(line.get("layer"), str):
        raise RunFolderError(f"{folder.path}, layers.jsonl: a line must have the name of a layer, got {str(line)[:80]}")
    if "eigenvalues" not in line:
        return line
    values = line["eigenvalues"]
    if not isinstance(values, list) or any(finite(value) is None for value in values):
        raise RunFolderError(f"{folder.path}, layers.jsonl: eigenvalues must be numbers, got {str(values)[:80]}")
    return {**line, "eigenvalues": sorted(map(float, values))}


def _label(runs: list[Run], groups: list[list[Run]]) -> str:
    recipe, everyone = runs[0].recipe, [group[0].recipe for group in groups]
    alike = [other for other in everyone if other.get("method") == recipe.get("method")]
    told = [
        f"{name} {value}"
        for name, value in recipe.items()
        if name not in _NOT_COMPARED
        and any(other.get(name) != value for other in (everyone if name in _SETTING else alike))
    ]
    return ", ".join([str(recipe.get("method")), *told])


def summarize(groups: Sequence[Group]) -> list[Summary]:
    """What each group came to, beside the first one of the same dataset and network."""
    return [_summary(group, _first_alike(group, groups)) for group in groups]


def _first_alike(group: Group, groups: Sequence[Group]) -> Group:
    def setting(each: Group) -> list[Any]:
        return [each.runs[0].recipe.get(name) for name in ("dataset", "model", "width")]

    return next(each for each in groups if setting(each) == setting(group))


def _summary(group: Group, first: Group) -> Summary:
    accuracies = group.accuracies
    values = list(accuracies.values())
    test = None if group is first else paired(accuracies, first.accuracies)
    return Summary(
        group.label,
        num_runs=len(group.runs),
        num_complete=len(values),
        mean=fmean(values) if values else None,
        std=stdev(values) if len(values) > 1 else None,
        difference=test.mean if test else None,
        difference_std=test.std if test else None,
        num_pairs=test.num_pairs if test else 0,
    )


MOST_SPECTRA = 6_000


def layer_names(groups: Sequence[Group]) -> list[str]:
    """Every layer that a log names, in the order of the logs."""
    lines = (line for group in groups for run in group.runs for line in run.layers)
    return list(dict.fromkeys(str(line["layer"]) for line in lines))


def curves(groups: Sequence[Group], quantity: str) -> list[Datum]:
    """Mean of ``accuracy`` or ``loss`` over the seeds, and the lowest and highest of them, epoch by epoch."""
    data = []
    for method, group in enumerate(groups):
        for stage in ("test", "train"):
            lines = [line for run in group.runs for line in run.metrics]
            for epoch, values in _by_epoch(lines, f"{stage}_{quantity}"):
                datum = {"method": method, "stage": stage, "epoch": epoch, "mean": _mean(values)}
                data.append({**datum, "low": finite(min(values)), "high": finite(max(values)), "n": len(values)})
    return data


def _by_epoch(lines: Iterable[Line], name: str) -> Iterator[tuple[int, list[float]]]:
    found: dict[int, list[float]] = {}
    for line in lines:
        if (value := finite(line.get(name), 12)) is not None:
            found.setdefault(int(line["epoch"]), []).append(value)
    yield from sorted(found.items())


def cells(groups: Sequence[Group], names: Sequence[str]) -> list[Datum]:
    """Alpha and rate of each layer at each scoring, as means over the seeds; of many epochs an even choice."""
    kept = dict(shown_epochs(groups, MOST_CELLS // max(1, len(groups) * len(names))))
    data = []
    for method, group in enumerate(groups):
        lines: dict[str, list[Line]] = {name: [] for name in names}
        for line in (line for run in group.runs for line in run.layers if int(line["epoch"]) in kept):
            lines[str(line["layer"])].append(line)
        for number, name in enumerate(names):
            alphas, rates = (dict(_by_epoch(lines[name], quantity)) for quantity in ("alpha", "rate"))
            for epoch in sorted({*alphas, *rates}):
                datum = {"method": method, "layer": number, "epoch": epoch}
                data.append({**datum, "alpha": _mean(alphas.get(epoch)), "rate": _mean(rates.get(epoch))})
    return data


def _mean(values: list[float] | None) -> float | None:
    return finite(fmean(values)) if values else None


def shown_epochs(groups: Sequence[Group], most: int) -> list[tuple[int, int]]:
    """The epochs that are drawn, each with the last one that it stands for.

    Args:
        groups: All of them.
        most: As many as fit; never fewer than two nor more than `MOST_EPOCHS`.
    """
    epochs = sorted({int(line["epoch"]) for group in groups for run in group.runs for line in run.layers})
    most = min(MOST_EPOCHS, max(2, most))
    if len(epochs) > most:
        epochs = sorted({epochs[round(place * (len(epochs) - 1) / (most - 1))] for place in range(most)})
    return [(epoch, after - 1) for epoch, after in pairwise(epochs)] + [(epoch, epoch) for epoch in epochs[-1:]]


def last_alphas(groups: Sequence[Group], names: Sequence[str]) -> list[Datum]:
    """Alpha of each layer and run at the run's last scoring."""
    numbers = {name: number for number, name in enumerate(names)}
    return [
        {"method": method, "layer": numbers[str(line["layer"])], "alpha": alpha}
        for method, group in enumerate(groups)
        for run in group.runs
        for line in run.layers
        if line["epoch"] == run.layers[-1]["epoch"] and (alpha := finite(line.get("alpha"))) is not None
    ]


def recorded_spectra(groups: Sequence[Group], names: Sequence[str]) -> list[Datum]:
    """The spectra that were recorded, of each method's first run that has any; of many epochs an even choice."""
    numbers = {name: number for number, name in enumerate(names)}
    kept = dict(shown_epochs(groups, MOST_SPECTRA // max(1, len(groups) * len(names))))
    data = []
    for method, group in enumerate(groups):
        run = next((run for run in group.runs if any(line.get("eigenvalues") for line in run.layers)), None)
        for line in run.layers if run else []:
            if (epoch := int(line["epoch"])) in kept and (datum := _spectrum(run, line)) is not None:
                place = {"method": method, "layer": numbers[str(line["layer"])], "epoch": epoch, "until": kept[epoch]}
                data.append({**datum, **place})
    return data


def _spectrum(run: Run | None, line: Line) -> Datum | None:
    """A recorded spectrum; logs have no threshold, but that of the median is known from the recipe."""
    values, alpha = line.get("eigenvalues", []), finite(line.get("alpha"))
    tail = None if run is None else run.recipe.get("tail")
    if run is None or tail not in ("median", "median_published"):
        return spectrum_datum(values, alpha=alpha)
    fraction = finite(run.recipe.get("tail_fraction", 0.5))
    num_tail = int(len(values) * fraction) if fraction is not None and 0 < fraction < 1 else 0
    if fraction is not None and tail == "median_published":
        num_tail = len(values) - int(len(values) * (1 - fraction)) - 1  # above the threshold, which counts too
    if not 0 < num_tail < len(values):
        return spectrum_datum(values, alpha=alpha)
    return spectrum_datum(values, alpha=alpha, xmin=values[-num_tail - 1], num_tail=num_tail)
