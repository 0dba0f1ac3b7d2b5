"""The logs of runs as data for charts: methods and layers as numbers, seeds brought together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

import numpy as np

from tempbalance.report.histogram import spectrum_datum
from tempbalance.report.runs import Group, Run
from tempbalance.report.text import finite
from tempbalance.runlog import Line

MOST_EPOCHS, MOST_CELLS, MOST_SPECTRA = 60, 20_000, 6_000
Datum = dict[str, Any]


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


_NARROWEST = 0.2  # a histogram of alphas that hardly differ is drawn this wide, or its bars are too thin to see


def alpha_bins(alphas: Sequence[Datum]) -> list[Datum]:
    """How many alphas of each method lie in each of some common bins."""
    values = [each["alpha"] for each in alphas]
    room = max(0.0, _NARROWEST - (max(values) - min(values))) / 2
    low, high = min(values) - room, max(values) + room
    edges = np.linspace(low, high, 1 + min(30, max(8, len(alphas) // 8)))
    data = []
    for method in sorted({each["method"] for each in alphas}):
        counts, _ = np.histogram([each["alpha"] for each in alphas if each["method"] == method], bins=edges)
        for count, left, right in zip(counts, edges, edges[1:], strict=False):
            data.append(
                {"method": method, "left": finite(float(left)), "right": finite(float(right)), "count": int(count)}
            )
    return data


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
    if run is None or run.recipe.get("tail") != "median":
        return spectrum_datum(values, alpha=alpha)
    fraction = finite(run.recipe.get("tail_fraction", 0.5))
    num_tail = int(len(values) * fraction) if fraction is not None and 0 < fraction < 1 else 0
    if not 0 < num_tail < len(values):
        return spectrum_datum(values, alpha=alpha)
    return spectrum_datum(values, alpha=alpha, xmin=values[-num_tail - 1], num_tail=num_tail)
