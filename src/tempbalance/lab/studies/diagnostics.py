"""Training seen from inside: alpha, rates, gradients and spectra of the layers, and seconds of balancing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from statistics import fmean, median, pstdev
from typing import TYPE_CHECKING, Any

from tempbalance.lab.claims import Claim
from tempbalance.lab.findings import Cell, Findings, last_alphas
from tempbalance.lab.options import pretty
from tempbalance.lab.paper.statements import stated
from tempbalance.lab.points import NAMED, Grid, Point, Preset, common_settings, reduced, steps_like
from tempbalance.lab.studies.comparisons import TWO_STAND_INS
from tempbalance.lab.study import Study
from tempbalance.report.tables import Entry, Number, Report, ResultTable
from tempbalance.runlog import Line, RunFolder

if TYPE_CHECKING:
    from tempbalance.report.layer_charts import Alphas, LayerTrack

_FAMILIES = {"resnet": "ResNet", "vgg": "VGG", "wrn": "WRN"}


def _present_alpha(findings: Findings) -> Report:
    """Return box plots for each network and data, and histograms for families of them."""
    from tempbalance.report.layer_charts import Alphas, alpha_boxes, alpha_histograms

    values = [(cell, [alpha for run in cell.runs for alpha in last_alphas(run)]) for cell in findings.cells]
    rows: list[list[Entry]] = []
    for cell, found in values:
        numbers = (fmean(found), pstdev(found), median(found)) if found else (None,) * 3
        entries = [None if each is None else Number(each, digits=3) for each in numbers]
        rows.append([*(pretty(cell.labels[name]) for name in NAMED), str(len(found)), *entries])
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
    captions = {
        "alpha_boxes": "Alpha of the layers at the end of training; a star is the mean.",
        "alpha_histograms": "The same for all networks together, for each family and for each dataset.",
    }
    return Report([table], charts, captions)


def _alpha_spread(run: RunFolder) -> float | None:
    """Return the standard deviation of alpha over the layers at the end of a run."""
    alphas = last_alphas(run)
    return pstdev(alphas) if alphas else None


def _alpha_distance(run: RunFolder) -> float | None:
    """Return the mean distance of alpha from the best according to theory at the end of a run."""
    alphas = last_alphas(run)
    return fmean(abs(alpha - stated("best_alpha")) for alpha in alphas) if alphas else None


def _family(cell: Cell) -> str | None:
    return next((name for start, name in _FAMILIES.items() if cell.labels["model"].startswith(start)), None)


def _present_layers(findings: Findings) -> Report:
    """Return heat maps of all layers, and lines of the two that the paper shows."""
    from tempbalance.report.layer_charts import layer_maps, two_layers

    tracks = [track for cell in findings.cells if (track := _track(cell)) is not None]
    rows = []
    for track in tracks:
        for layer, alphas, rates in zip(track.layers, track.alpha, track.rate, strict=True):
            ends = [value for value in alphas if value is not None]
            numbers = [Number(ends[0], digits=3), Number(ends[-1], digits=3)] if ends else [None, None]
            largest = max((rate for rate in rates if rate is not None), default=None)
            rows.append([track.panel, layer, *numbers, None if largest is None else Number(largest, digits=4)])
    columns = ["network", "layer", "first alpha", "last alpha", "largest rate"]
    table = ResultTable("Each scored layer of the run with the first seed.", columns, rows)
    if not tracks:
        return Report([table], {}, {})
    charts = {"layers": layer_maps(tracks, title="Rate and alpha of every layer", subtitle=findings.subtitle)}
    if resnet18 := [track for track in tracks if track.panel.startswith("ResNet18,")]:
        first, second = stated("layers_shown")
        charts["two_layers"] = two_layers(
            resnet18, (first, second), title="Rate and alpha of two layers", subtitle=findings.subtitle
        )
    captions = {
        "layers": "Rate and alpha of every scored layer, epoch by epoch.",
        "two_layers": "Rate and alpha of an early and a late layer, epoch by epoch.",
    }
    return Report([table], charts, captions)


def _track(cell: Cell) -> LayerTrack | None:
    """Return alpha and rate of the layers over training, from the log of the first complete seed."""
    from tempbalance.report.layer_charts import LayerTrack

    if not cell.runs:
        return None
    lines = cell.runs[0].layers
    names = tuple(dict.fromkeys(line["layer"] for line in lines))
    epochs = tuple(sorted({line["epoch"] for line in lines}))
    by_place: dict[tuple[str, int], Line] = {(line["layer"], line["epoch"]): line for line in lines}

    def values(quantity: str) -> tuple[tuple[float | None, ...], ...]:
        return tuple(tuple(by_place.get((name, epoch), {}).get(quantity) for epoch in epochs) for name in names)

    panel = f"{cell.panel}, {pretty(cell.labels['method'])}"
    return LayerTrack(panel, epochs, names, alpha=values("alpha"), rate=values("rate"))


def _logged_points(preset: Preset, num_epochs: int, **options: Any) -> list[Point]:
    """Return CAL on ResNet18 and CIFAR-100, its layers logged every 30 iterations of the first epochs."""
    found = Grid("optimizers", best=True, models=("resnet18",), methods=("cal",))(preset)
    for place, point in enumerate(found):
        steps = steps_like(stated("gradient_iterations"), point.options)
        logged = {**point.options, "stop_after": num_epochs, "log_steps": steps, **options}
        found[place] = replace(point, options=logged, paper=None)
    return found


def _present_gradients(findings: Findings) -> Report:
    """Return the largest, smallest and mean norm over training, and the distribution in the first epoch."""
    from tempbalance.report.layer_charts import StepNorm, gradient_chart, gradient_histograms

    (cell,) = findings.cells
    norms = [
        StepNorm(line["epoch"], line["step"], line["layer"], line["gradient_norm"])
        for run in cell.runs
        for line in run.steps
        if line["gradient_norm"] is not None
    ]
    rows: list[list[Entry]] = []
    for epoch in sorted({each.epoch for each in norms}):
        values = [each.norm for each in norms if each.epoch == epoch and each.norm is not None]
        numbers = (max(values), min(values), sum(values) / len(values))
        rows.append([str(epoch), *(Number(value, digits=4) for value in numbers)])
    caption = f"Norms of the layers' gradients at the steps noted in each epoch; {cell.panel}, CAL."
    table = ResultTable(caption, ["epoch", "largest", "smallest", "mean"], rows)
    if not norms:
        return Report([table], {}, {})
    subtitle = findings.subtitle
    charts = {
        "gradients": gradient_chart(norms, title="Gradient norms of the layers", subtitle=subtitle),
        "gradient_histograms": gradient_histograms(norms, title="Gradient norms in the first epoch", subtitle=subtitle),
    }
    captions = {
        "gradients": "The largest, the smallest and the mean gradient norm of all layers, step by step.",
        "gradient_histograms": "How the gradient norms of the layers are distributed at steps of the first epoch.",
    }
    return Report([table], charts, captions)


_LAYER = "layer4.0.conv2"  # one of the two layers that the paper follows elsewhere; it does not say which it shows here


def _present_rank_one(findings: Findings) -> Report:
    """Return the distance of the largest eigenvalue from the others, step by step, and some of the spectra."""
    from tempbalance.report.layer_charts import StepSpectrum, spectra_chart

    (cell,) = findings.cells
    spectra = [
        StepSpectrum(line["epoch"], line["step"], line["layer"], tuple(line["eigenvalues"]))
        for run in cell.runs
        for line in run.steps
        if line["layer"] == _LAYER
    ]
    rows: list[list[Entry]] = []
    for each in spectra:
        largest = each.eigenvalues[-1]
        bulk = sorted(each.eigenvalues)[int(0.99 * (len(each.eigenvalues) - 1))]
        rows.append([str(each.epoch), str(each.step), Number(largest, digits=4), Number(largest / bulk)])
    caption = f"Spectrum of {_LAYER} before steps of the first two epochs; {cell.panel}, CAL."
    table = ResultTable(caption, ["epoch", "step", "largest eigenvalue", "largest / 99th percentile"], rows)
    if not spectra:
        return Report([table], {}, {})
    title = f"Spectrum of {_LAYER} in the first epoch and after it"
    charts = {"rank_one": spectra_chart(spectra, title=title, subtitle=findings.subtitle)}
    return Report([table], charts, {"rank_one": "Large updates of rank one show as a spike to the right of the bulk."})


_CHANNELS = 512  # of the last stage at width 1


def _overhead_points(preset: Preset) -> list[Point]:
    """Return TB on CIFAR-100, ten epochs of each network; in small presets two, which take minutes for the widest."""
    num_epochs = stated("overhead_runs") if preset.is_paper else 2
    deep = [(f"resnet{depth}", 1.0) for depth in stated("overhead_depths")]
    wide = [("resnet18", channels / _CHANNELS) for channels in stated("overhead_widths")]
    found = []
    for model, width in dict.fromkeys(deep + wide):
        names = {"dataset": "cifar100", "model": model, "method": "tb"}
        options = {**common_settings(), **names, "width": width, "stop_after": num_epochs}
        found.append(Point({**names, "width": width}, options))
    return reduced(found, preset, {"cifar100": "fashion_mnist"})


def _present_overhead(findings: Findings) -> Report:
    """Return a table of seconds, and the paper's four panels."""
    from tempbalance.report.study_charts import Timing, timing_chart

    rows, timings = [], []
    usual = min(cell.labels["width"] for cell in findings.cells)
    for cell in findings.cells:
        model, width = cell.labels["model"], cell.labels["width"]
        channels = str(round(_CHANNELS * width))
        row: list[Entry] = [pretty(cell.labels["dataset"]), pretty(model), channels]
        epoch, balancing = cell.seconds("epoch"), cell.seconds("balancing")
        row += [None if epoch is None else Number(*epoch)]
        row += [None if balancing is None else Number(*balancing, digits=3)]
        if epoch is None or balancing is None:
            rows.append([*row, None])
            continue
        rows.append([*row, Number(100 * balancing[0] / epoch[0])])
        if width == usual:
            timings.append(Timing("depth", model.removeprefix("resnet"), *epoch, *balancing))
        if model == "resnet18":
            timings.append(Timing("channels", channels, *epoch, *balancing))
    caption = "Mean ± standard deviation over the epochs of one run, of training alone and of balancing once."
    columns = ["data", "network", "channels", "seconds an epoch", "seconds a balancing", "increment, %"]
    limit = 100 * stated("overhead_limit")
    notes = [f"The paper's balancing takes less than {limit:.0f} % of an epoch at every depth and width, on a GPU."]
    title = "What balancing once an epoch costs"
    charts = {"overhead": timing_chart(timings, title=title, subtitle=findings.subtitle)} if timings else {}
    captions = {"overhead": "Seconds of an epoch and of one balancing, and the one as a share of the other."}
    return Report([ResultTable(caption, columns, rows)], charts, captions, notes)


STUDIES = (
    Study(
        "alpha",
        title="Does balancing bring the layers' alphas together?",
        figures=("vis-boxplots", "vis-hist"),
        varies="TB and CAL; the distribution of alpha",
        points=Grid("main", best=True, methods=("cal", "tb"), stand_ins=TWO_STAND_INS, smoke=("resnet18", "vgg16")),
        present=_present_alpha,
        claims=(
            Claim("tb_alphas_are_closer", "method", "tb", ("cal",), part="standard deviation", value=_alpha_spread),
            Claim("tb_alphas_are_closer", "method", "tb", ("cal",), part="mean distance from 2", value=_alpha_distance),
        ),
    ),
    Study(
        "layers",
        title="What does balancing do to each layer over training?",
        figures=("layerwise-vis-every", "layerwise-vis-two"),
        varies="rate and alpha per layer over training, TB and CAL",
        points=Grid("optimizers", best=True, methods=("cal", "tb"), smoke=("resnet18",)),
        present=_present_layers,
    ),
    Study(
        "gradients",
        title="Do gradients explode or vanish?",
        figures=("gradient-norm-value", "gradient-norm-vis"),
        varies="layer gradient norms every 30 iterations of 10 epochs",
        points=lambda preset: _logged_points(preset, stated("gradient_epochs")),
        present=_present_gradients,
        num_seeds=1,
    ),
    Study(
        "rank_one",
        title="Do large updates of rank one disturb the spectrum?",
        figures=("rank-1",),
        varies="the spectrum of one layer within the first epoch and the second",
        points=lambda preset: _logged_points(preset, 2, log_eigenvalues=True),
        present=_present_rank_one,
        num_seeds=1,
    ),
    Study(
        "overhead",
        title="What does balancing cost?",
        figures=("compute-overhead",),
        varies="depth 18 to 101, width 512 to 2048; seconds of one balancing and of one epoch",
        points=_overhead_points,
        present=_present_overhead,
        num_seeds=1,
        is_timed=True,
    ),
)
