"""Training seen from inside: alpha, learning rates and gradients of the layers, and seconds of balancing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import pairwise
from statistics import fmean, median, pstdev
from typing import TYPE_CHECKING

from tempbalance.lab.findings import Cell, Findings, last_alphas, last_lines
from tempbalance.lab.options import pretty
from tempbalance.lab.paper import stated
from tempbalance.lab.points import NAMED
from tempbalance.lab.studies.points import CHANNELS
from tempbalance.report.tables import Entry, Number, Report, ResultTable
from tempbalance.runlog import Line, RunFolder

if TYPE_CHECKING:
    from tempbalance.report.layer_charts import Alphas, LayerTrack

Steps = dict[int, tuple[int, float]]  # the epoch of a noted step, and a number


def numbers(values: Iterable[float | None], digits: int = 2) -> list[Entry]:
    """Return entries of a table."""
    return [None if each is None else Number(each, digits=digits) for each in values]


def present_alpha(findings: Findings) -> Report:
    """Return box plots for each network and data, and histograms for families of them."""
    from tempbalance.report.layer_charts import Alphas, alpha_boxes, alpha_histograms

    values = [
        (cell, [alpha for run in cell.best.runs.values() for alpha in last_alphas(run)]) for cell in findings.cells
    ]
    rows: list[list[Entry]] = []
    for cell, found in values:
        summary = (fmean(found), pstdev(found), median(found)) if found else (None,) * 3
        rows.append([*(pretty(cell.labels[name]) for name in NAMED), str(len(found)), *numbers(summary, 3)])
    columns = ["data", "network", "method", "alphas", "mean", "standard deviation", "median"]
    caption = "Alpha of the scored layers at the end, all seeds together; theory holds 2 for the best."
    table = ResultTable(caption, columns, rows)
    if not any(found for _, found in values):
        return Report([table], {}, {})

    def together(panel: Callable[[Cell], str | None]) -> list[Alphas]:
        groups: dict[tuple[str, str], list[float]] = {}
        for cell, found in values:
            if found and (name := panel(cell)) is not None:
                groups.setdefault((name, pretty(cell.labels["method"])), []).extend(found)
        return [Alphas(name, method, tuple(each)) for (name, method), each in groups.items()]

    groups = [*together(lambda cell: "all"), *together(_family), *together(lambda cell: pretty(cell.labels["dataset"]))]
    subtitle = findings.subtitle
    charts = {
        "alpha_boxes": alpha_boxes(together(lambda cell: cell.panel), title="Alpha of the layers", subtitle=subtitle),
        "alpha_histograms": alpha_histograms(groups, title="Alpha of the layers of many networks", subtitle=subtitle),
    }
    return Report([table], charts, {})


def _family(cell: Cell) -> str | None:
    families = {"resnet": "ResNet", "vgg": "VGG", "wrn": "WRN"}
    return next((name for start, name in families.items() if cell.labels["model"].startswith(start)), None)


def present_layers(findings: Findings) -> Report:
    """Return heat maps of all layers, and lines of the two that the paper shows."""
    from tempbalance.report.layer_charts import layer_maps, two_layers

    tracks = [_track(cell) for cell in findings.cells if cell.best.runs]
    rows: list[list[Entry]] = []
    for track in tracks:
        for layer, alphas, rates in zip(track.layers, track.alpha, track.rate, strict=True):
            ends: list[float | None] = [value for value in alphas if value is not None] or [None]
            largest = max((rate for rate in rates if rate is not None), default=None)
            rows.append([track.panel, layer, *numbers((ends[0], ends[-1]), 3), *numbers([largest], 4)])
    columns = ["network", "layer", "first alpha", "last alpha", "largest rate"]
    table = ResultTable("Each scored layer of the run with the first seed.", columns, rows)
    if not tracks:
        return Report([table], {}, {})
    charts = {"layers": layer_maps(tracks, title="Rate and alpha of every layer", subtitle=findings.subtitle)}
    if resnet18 := [track for track in tracks if track.panel.startswith("ResNet18,")]:
        first, second = stated("layers_shown")
        title = "Rate and alpha of two layers"
        charts["two_layers"] = two_layers(resnet18, (first, second), title=title, subtitle=findings.subtitle)
    return Report([table], charts, {})


def _track(cell: Cell) -> LayerTrack:
    """Return alpha and rate of the layers over training, from the log of the first complete seed."""
    from tempbalance.report.layer_charts import LayerTrack

    lines = next(iter(cell.best.runs.values())).layers
    names = tuple(dict.fromkeys(line["layer"] for line in lines))
    epochs = tuple(sorted({line["epoch"] for line in lines}))
    by_place: dict[tuple[str, int], Line] = {(line["layer"], line["epoch"]): line for line in lines}

    def values(quantity: str) -> tuple[tuple[float | None, ...], ...]:
        return tuple(tuple(by_place.get((name, epoch), {}).get(quantity) for epoch in epochs) for name in names)

    panel = f"{cell.panel}, {pretty(cell.labels['method'])}"
    return LayerTrack(panel, epochs, names, alpha=values("alpha"), rate=values("rate"))


def present_gradients(findings: Findings) -> Report:
    """Return the largest, smallest and mean norm over training, and the distribution in the first epoch."""
    from tempbalance.report.layer_charts import StepNorm, gradient_chart, gradient_histograms

    (cell,) = findings.cells
    norms = [
        StepNorm(line["epoch"], line["step"], line["layer"], line["gradient_norm"])
        for run in list(cell.best.runs.values())[:1]
        for line in run.steps
        if line["gradient_norm"] is not None
    ]
    rows: list[list[Entry]] = []
    for epoch in sorted({each.epoch for each in norms}):
        values = [each.norm for each in norms if each.epoch == epoch and each.norm is not None]
        rows.append([str(epoch), *numbers((max(values), min(values), sum(values) / len(values)), 4)])
    caption = f"Norms of the layers' gradients at the noted steps of each epoch, first seed; {cell.panel}, CAL."
    table = ResultTable(caption, ["epoch", "largest", "smallest", "mean"], rows)
    if not norms:
        return Report([table], {}, {})
    subtitle = findings.subtitle
    charts = {
        "gradients": gradient_chart(norms, title="Gradient norms of the layers", subtitle=subtitle),
        "gradient_histograms": gradient_histograms(norms, title="Gradient norms in the first epoch", subtitle=subtitle),
    }
    return Report([table], charts, {})


def present_overhead(findings: Findings) -> Report:
    """Return a table of seconds, and the paper's four panels."""
    from tempbalance.report.study_charts import Timing, timing_chart

    rows: list[list[Entry]] = []
    timings = []
    usual = min(cell.labels["width"] for cell in findings.cells)
    for cell in findings.cells:
        model, width = cell.labels["model"], cell.labels["width"]
        channels = str(round(CHANNELS * width))
        row: list[Entry] = [pretty(cell.labels["dataset"]), pretty(model), channels]
        epoch, balancing = cell.best.seconds("epoch"), cell.best.seconds("balancing")
        row += [None if epoch is None else Number(*epoch)]
        row += [None if balancing is None else Number(*balancing, digits=3)]
        if epoch is None or balancing is None:
            rows.append([*row, None])
            continue
        rows.append([*row, Number(100 * balancing[0] / epoch[0])])
        if cell.labels["method"] != "tb":  # a control
            continue
        if width == usual:
            timings.append(Timing("depth", model.removeprefix("resnet"), *epoch, *balancing))
        if model == "resnet18":
            timings.append(Timing("channels", channels, *epoch, *balancing))
    caption = "Mean ± standard deviation over the epochs of a run, of training alone and of balancing once."
    columns = ["data", "network", "channels", "seconds an epoch", "seconds a balancing", "increment, %"]
    limit = 100 * stated("overhead_limit")
    notes = [f"The paper's balancing takes less than {limit:.0f} % of an epoch at every depth and width, on a GPU."]
    title = "What balancing once an epoch costs"
    charts = {"overhead": timing_chart(timings, title=title, subtitle=findings.subtitle)} if timings else {}
    return Report([ResultTable(caption, columns, rows)], charts, {}, notes)


# Numbers of a run that claims test


def balancing_seconds(run: RunFolder) -> float | None:
    """Return the mean seconds of one balancing."""
    return (run.result or {}).get("balancing_seconds")


def balancing_an_epoch(run: RunFolder) -> float | None:
    """Return the seconds of balancing in an epoch."""
    seconds, result = balancing_seconds(run), run.result or {}
    return None if seconds is None else seconds * result["num_balancings"] / result["epochs"]


def balancing_share(run: RunFolder) -> float | None:
    """Return the time of one balancing as a share of an epoch's."""
    seconds = balancing_seconds(run)
    return None if seconds is None else seconds / (run.result or {})["epoch_seconds"]


def alpha_spread(run: RunFolder) -> float | None:
    """Return the standard deviation of alpha over the layers at the end of a run."""
    alphas = last_alphas(run)
    return pstdev(alphas) if alphas else None


def alpha_distance(run: RunFolder) -> float | None:
    """Return the mean distance of alpha from the best according to theory at the end of a run."""
    alphas = last_alphas(run)
    return fmean(abs(alpha - stated("best_alpha")) for alpha in alphas) if alphas else None


def alphas_and_scales(run: RunFolder) -> list[tuple[float, float]]:
    return [(line["alpha"], line["scale"]) for line in last_lines(run)]


def places_and_alphas(run: RunFolder) -> list[tuple[float, float]]:
    return list(enumerate(last_alphas(run)))


def alpha_gap(run: RunFolder) -> float | None:
    """Return the distance between the last alphas of the two layers that the paper follows."""
    alphas = [line["alpha"] for line in last_lines(run) if line["layer"] in stated("layers_shown")]
    return abs(alphas[0] - alphas[1]) if len(alphas) == 2 else None


def early_rate(run: RunFolder) -> float | None:
    """Return the mean learning rate of the first of these layers."""
    return _mean_rate(run, 0)


def late_rate(run: RunFolder) -> float | None:
    """Return the mean learning rate of the second of these layers."""
    return _mean_rate(run, 1)


def _mean_rate(run: RunFolder, place: int) -> float | None:
    layer = list(stated("layers_shown"))[place]
    rates = [line["rate"] for line in run.layers if line["layer"] == layer]
    return fmean(rates) if rates else None


def settling(run: RunFolder) -> float | None:
    """Return how much more scales change from epoch to epoch in the first quarter of training than in the last."""
    scales: dict[str, list[float]] = {}
    for line in run.layers:
        scales.setdefault(line["layer"], []).append(line["scale"])
    steps = [[abs(b - a) for a, b in pairwise(each)] for each in scales.values()]
    quarter = min(map(len, steps), default=0) // 4
    if not quarter:
        return None
    early, late = (
        fmean(value for each in steps for value in each[part]) for part in (slice(quarter), slice(-quarter, None))
    )
    return early / late if late > 0 else None


def at_steps(run: RunFolder, number: Callable[[Line], float | None]) -> Steps:
    """Return the epoch and the largest number of a line at each noted step."""
    found: Steps = {}
    for line in run.steps:
        value = number(line)
        if value is not None and value > found.get(line["step"], (0, 0.0))[1]:
            found[line["step"]] = (line["epoch"], value)
    return found


def peak(found: Steps) -> float | None:
    """Return the step with the largest number."""
    return max(found, key=lambda step: found[step][1], default=None)


def _norms(run: RunFolder) -> Steps:
    return at_steps(run, lambda line: line["gradient_norm"])


def largest_norm(run: RunFolder) -> float | None:
    """Return the step with the largest gradient norm of a layer."""
    return peak(_norms(run))


def last_explosion(run: RunFolder) -> float | None:
    """Return the last step whose largest norm is three times the median after the first epoch."""
    norms = _norms(run)
    later = [norm for epoch, norm in norms.values() if epoch > 1]
    return max((step for step, (_, norm) in norms.items() if norm > 3 * median(later)), default=None) if later else None


def smallest_norm(run: RunFolder) -> float | None:
    """Return the decimal logarithm of the smallest norm over the median, after the first epoch; at least -300."""
    norms = [line["gradient_norm"] for line in run.steps if line["epoch"] > 1 and line["gradient_norm"] is not None]
    return math.log10(max(1e-300, min(norms)) / median(norms)) if norms and median(norms) > 0 else None


def first_steps(run: RunFolder) -> float:
    """Return the number of steps in which the paper's gradients explode, as the same share of an epoch."""
    return float(stated("explosion_iterations") / stated("gradient_iterations") * _log_steps(run))


def after_second_noted(run: RunFolder) -> float:
    """Return the step after the paper's iteration 60."""
    return float(2 * _log_steps(run) + 1)


def _log_steps(run: RunFolder) -> int:
    return int((run.recipe or {})["recipe"]["log_steps"])
