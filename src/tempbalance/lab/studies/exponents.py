"""Spectra of layers with their fits; alpha and the decay of eigenvalues; the decay of Hessian and covariance."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from tempbalance.lab.claims import pearson
from tempbalance.lab.findings import Cell, Findings
from tempbalance.lab.options import pretty
from tempbalance.lab.paper import stated
from tempbalance.lab.runs import load_weights
from tempbalance.lab.studies.layers import Steps, at_steps, numbers, peak
from tempbalance.report.statistics import correlation_limit
from tempbalance.report.tables import Entry, Number, Report, ResultTable
from tempbalance.runlog import Line, RunFolder, write_whole

if TYPE_CHECKING:
    import altair as alt

    from tempbalance.report.spectrum import FittedSpectrum
    from tempbalance.report.study_charts import ExponentFit


def power_law(size: int, s: float) -> list[float]:
    """Return the eigenvalues k^-s for k from 1 to the size, ascending; a factor on them changes no alpha."""
    return [float(k) ** -s for k in range(size, 0, -1)]


def fit_exponents() -> list[ExponentFit]:
    """Fit alpha for each size and exponent of the paper."""
    import torch

    from tempbalance.report.study_charts import ExponentFit
    from tempbalance.spectral.tail import fit_tail

    return [
        ExponentFit(size, s, fit_tail(torch.tensor(power_law(size, s), dtype=torch.float64), tail="median").alpha)
        for size in stated("exponent_sizes")
        for s in stated("exponents")
    ]


def both_exponents() -> list[tuple[float, float]]:
    """Return s, and 1 / (alpha - 1), for each size and exponent."""
    return [(each.s, each.found) for each in fit_exponents()]


def sizes_and_errors() -> list[tuple[float, float]]:
    """Return the mean error of s for each size."""
    fits = fit_exponents()
    return [(size, fmean(_error(each) for each in fits if each.size == size)) for size in stated("exponent_sizes")]


def _error(fit: ExponentFit) -> float:
    return abs(fit.found / fit.s - 1)


def present_exponent(findings: Findings) -> Report:
    """Return a row for each size, and alpha against s with the curve."""
    from tempbalance.report.study_charts import exponent_chart

    fits = fit_exponents()
    rows: list[list[Entry]] = []
    means = []
    for size in stated("exponent_sizes"):
        of_s = [100 * _error(each) for each in fits if each.size == size]
        of_alpha = [abs(each.alpha - 1 - 1 / each.s) for each in fits if each.size == size]
        errors = numbers([fmean(of_s), max(of_s), fmean(of_alpha), max(of_alpha)])
        rows.append([*numbers([size, size // 2], 0), *errors])
        means.append(100 * fmean(_error(each) for each in fits if each.size == size))
    table = ResultTable(
        "Error of s = 1 / (alpha - 1) in percent of s, and of alpha against 1 + 1 / s: mean and largest over "
        f"{len(stated('exponents'))} exponents s from {fits[0].s:g} to {fits[-1].s:g}. Alpha is of the Hill fit to the "
        "larger half of Q eigenvalues k^-s.",
        ["Q", "eigenvalues in the tail", "error of s, %", "largest, %", "error of alpha", "largest of alpha"],
        rows,
    )
    title = "Alpha of the tail against the decay of the eigenvalues"
    charts = {"exponent": exponent_chart(fits, title=title, subtitle=findings.subtitle)}
    falls = means == sorted(means, reverse=True)
    text = "falls with the size, as the paper says" if falls else "does not always fall"
    notes = [
        f"The error of s {text}: {means[0]:.1f} % at Q = {fits[0].size}, {means[-1]:.2f} % at Q = {fits[-1].size:,}.",
        "In percent it is the same for every s: with K eigenvalues in the tail the Hill fit finds "
        "log(K + 1) - log(K!) / K of s, which is below 1 and nears it; so alpha comes out too large.",
    ]
    return Report([table], charts, {}, notes)


_MATRICES = {
    "output_covariance": "output covariance", "hidden_covariance": "hidden covariance",
    "hessian": "Hessian", "ntk": "Fisher, NTK",
}  # fmt: skip

Lines = Mapping[int, Mapping[int, Line]]  # measured after an epoch, by epoch and seed


def exponent_pairs(run: RunFolder) -> list[tuple[float, float]]:
    """Return the exponents of output covariance and Hessian at each measured epoch of a run."""
    lines = [line["exponents"] for line in run.metrics if "exponents" in line]
    return [(each["output_covariance"], each["hessian"]) for each in lines]


def present_matrices(findings: Findings) -> Report:
    """Return exponents epoch by epoch, their correlations, one exponent against the other, and the spectra."""
    found = {cell.labels["method"]: _measured(cell) for cell in findings.cells}
    charts = _matrices_charts(findings, found) if any(found.values()) else {}
    return Report([_exponent_table(found), _correlation_table(found)], charts, {}, _correlation_notes(found))


def _measured(cell: Cell) -> Lines:
    found: dict[int, dict[int, Line]] = {}
    for seed, run in cell.best.runs.items():
        for line in run.metrics:
            if "exponents" in line:
                found.setdefault(line["epoch"], {})[seed] = line
    return found


def _exponent_table(found: Mapping[str, Lines]) -> ResultTable:
    columns = [f"s, {words}" for words in _MATRICES.values()]
    rows: list[list[Entry]] = []
    for method, lines in found.items():
        for epoch, by_seed in lines.items():
            values = [[line["exponents"][name] for line in by_seed.values()] for name in _MATRICES]
            accuracy = _number([line["test_accuracy"] for line in by_seed.values()])
            exponents = [_number(each, digits=3) for each in values]
            rows.append([pretty(method), str(epoch), *exponents, accuracy, str(len(by_seed))])
    return ResultTable(
        "Exponent s of lambda_k = lambda_1 k^-s after some epochs, by least squares on log axes over the largest "
        "eigenvalues: mean ± standard deviation over the seeds. The Fisher matrix and the neural tangent kernel (NTK) "
        "share their spectrum but for a factor, and so their s.",
        ["method", "epoch", *columns, "accuracy, %", "seeds"],
        rows,
        spread=(*columns, "accuracy, %"),
    )


def _number(values: Sequence[float], digits: int = 2) -> Number:
    return Number(fmean(values), stdev(values) if len(values) > 1 else None, digits=digits)


def _correlation_table(found: Mapping[str, Lines]) -> ResultTable:
    rows: list[list[Entry]] = []
    for method, lines in found.items():
        for name, words in _MATRICES.items():
            if name != "hessian" and lines:
                seeds = next(iter(lines.values()))
                by_seed = [each for seed in seeds if (each := _pearson(lines, name, seed)) is not None]
                values = (_pearson(lines, name), min(by_seed, default=None), max(by_seed, default=None))
                rows.append([pretty(method), words, *numbers(values), str(len(lines))])
    return ResultTable(
        "Pearson correlation r over the epochs of the Hessian's s with that of another matrix: of the means over the "
        "seeds, and the lowest and highest of a seed. None for fewer than three epochs.",
        ["method", "with s of", "r", "lowest r", "highest r", "epochs"],
        rows,
    )


def _pearson(lines: Lines, matrix: str, seed: int | None = None) -> float | None:
    """Correlate the exponents of the Hessian with those of a matrix, as means over the seeds or of one."""
    pairs = []
    for by_seed in lines.values():
        exponents = [each["exponents"] for key, each in by_seed.items() if seed in (None, key)]
        pairs.append((fmean(each["hessian"] for each in exponents), fmean(each[matrix] for each in exponents)))
    return pearson(pairs)


def _correlation_notes(found: Mapping[str, Lines]) -> list[str]:
    notes = []
    for method, lines in found.items():
        r = _pearson(lines, "output_covariance")
        if r is not None:
            limit = correlation_limit(len(lines))
            above = "above" if abs(r) > limit else "not above"
            notes.append(
                f"{pretty(method)}: r = {r:+.2f} of the exponents of Hessian and output covariance over {len(lines)} "
                f"epochs, in size {above} the {limit:.2f} that independent points exceed by chance once in twenty."
            )
    if notes:
        notes.append(
            "The paper calls the correlation strong, of the regularized network, and gives no number. A few epochs of "
            "one training are not independent: what grows steadily correlates with all else that does."
        )
    return notes


def _matrices_charts(findings: Findings, found: Mapping[str, Lines]) -> dict[str, alt.TopLevelMixin]:
    from tempbalance.report.study_charts import ExponentPair, MatrixSpectrum, decay_chart, pair_chart

    pairs = [
        ExponentPair(pretty(method), epoch, seed, line["exponents"]["output_covariance"], line["exponents"]["hessian"])
        for method, lines in found.items()
        for epoch, by_seed in lines.items()
        for seed, line in by_seed.items()
    ]
    spectra = [
        MatrixSpectrum(pretty(method), words, epoch, tuple(next(iter(by_seed.values()))["eigenvalues"][name]))
        for method, lines in found.items()
        for name, words in _MATRICES.items()
        for epoch, by_seed in lines.items()
    ]
    return {
        "matrices": pair_chart(
            pairs,
            title="Decay of the Hessian's eigenvalues against that of the output covariance",
            subtitle=findings.subtitle,
            x_title="s of the output covariance",
            y_title="s of the Hessian",
        ),
        "spectra": decay_chart(
            spectra, title="Eigenvalues of the matrices during training, first seed", subtitle=findings.subtitle
        ),
    }


_LAYER = "layer4.0.conv2"  # one of the two layers that the paper follows elsewhere; it does not say which it shows here


def _spikes(run: RunFolder) -> Steps:
    """Return the epoch and the largest eigenvalue over the 99th percentile at each noted step."""

    def spike(line: Line) -> float | None:
        values = sorted(line["eigenvalues"]) if line["layer"] == _LAYER else []
        return values[-1] / values[int(0.99 * (len(values) - 1))] if values else None

    return at_steps(run, spike)


def largest_spike(run: RunFolder) -> float | None:
    """Return the step with the largest spike."""
    return peak(_spikes(run))


def second_epoch(run: RunFolder) -> float | None:
    """Return the first noted step of the second epoch."""
    return min((step for step, (epoch, _) in _spikes(run).items() if epoch == 2), default=None)


def later_spike(run: RunFolder) -> float | None:
    """Return the largest spike after the first epoch over the largest one in it."""
    spikes = _spikes(run).values()
    first, later = [ratio for epoch, ratio in spikes if epoch == 1], [ratio for epoch, ratio in spikes if epoch != 1]
    return max(later) / max(first) if first and later else None


def present_rank_one(findings: Findings) -> Report:
    """Return the spike of a layer's spectrum epoch by epoch, and spectra with their fits."""
    from tempbalance.report.chart import evenly

    (cell,) = findings.cells
    rows: list[list[Entry]] = []
    spikes = [found for run in cell.best.runs.values() if (found := _spikes(run))]
    for epoch in sorted({epoch for found in spikes for epoch, _ in found.values()}):
        ratios = [[ratio for at, ratio in found.values() if at == epoch] for found in spikes]
        largest = [max(each) for each in ratios if each]
        rows.append([str(epoch), *numbers([fmean(largest), max(largest)]), str(len(largest))])
    caption = f"Largest eigenvalue of {_LAYER} over the 99th percentile, the largest in each epoch; {cell.panel}, CAL."
    table = ResultTable(caption, ["epoch", "mean over the seeds", "largest of a seed", "seeds"], rows)
    if not spikes:
        return Report([table], {}, {})
    lines = [line for line in next(iter(cell.best.runs.values())).steps if line["layer"] == _LAYER]
    early = [line for line in lines if line["epoch"] == 1]
    ends = {line["epoch"]: line for line in sorted(lines, key=lambda line: line["step"]) if line["epoch"] != 1}
    shown = [*evenly(early, 4), *evenly([ends[epoch] for epoch in sorted(ends)], 4)]
    panels = [_fitted(f"epoch {each['epoch']}, step {each['step']:,}", each["eigenvalues"]) for each in shown]
    title = f"Spectrum of {_LAYER} in the first epoch and after it"
    return Report([table], _spectrum_chart(findings, panels, title), {})


def _fitted(panel: str, eigenvalues: Sequence[float]) -> FittedSpectrum:
    import torch

    from tempbalance.report.spectrum import FittedSpectrum
    from tempbalance.spectral.tail import fit_tail

    fit = fit_tail(torch.tensor(eigenvalues, dtype=torch.float64).sort().values, tail="median")
    return FittedSpectrum(panel, tuple(eigenvalues), fit.alpha, fit.xmin, fit.num_tail)


def _spectrum_chart(findings: Findings, panels: list[FittedSpectrum], title: str) -> dict[str, alt.TopLevelMixin]:
    from tempbalance.report.spectrum import fitted_spectra

    return {findings.name: fitted_spectra(panels, title=title, subtitle=findings.subtitle)} if panels else {}


_SPECTRA = "spectra.json"  # in a run's folder


def keep_spectra(findings: Findings, cache: Path | None) -> None:
    """Keep the spectra of the most and the least heavy-tailed layer of each run, by the layer's name."""
    from tempbalance import spectrum

    for run in (run for cell in findings.cells for run in cell.best.runs.values()):
        if (run.path / _SPECTRA).exists():
            continue
        least = ((run.recipe or {}).get("recipe") or {}).get("min_eigenvalues", 50)
        spectra = {
            name.removesuffix(".weight"): spectrum(weight).tolist()
            for name, weight in load_weights(run.path).items()
            if weight.dim() == 4 and min(weight.shape[:2]) >= least
        }
        alphas = {name: _fitted(name, values).alpha for name, values in spectra.items()}
        chosen = dict.fromkeys((min(alphas, key=alphas.__getitem__), max(alphas, key=alphas.__getitem__)))
        write_whole(run.path / _SPECTRA, json.dumps({name: spectra[name] for name in chosen}).encode())


def present_spectra(findings: Findings) -> Report:
    """Return the two spectra of the first run with their fits."""
    files = [run.path / _SPECTRA for cell in findings.cells for run in cell.best.runs.values()]
    found = [json.loads(path.read_text(encoding="utf-8")) for path in files[:1] if path.exists()]
    panels = [_fitted(name, values) for each in found for name, values in each.items()]
    rows: list[list[Entry]] = [
        [each.panel, str(len(each.eigenvalues)), str(each.num_tail), Number(each.xmin, digits=4), Number(each.alpha)]
        for each in panels
    ]
    caption = "The most and the least heavy-tailed layer at the end of training: a smaller alpha is a heavier tail."
    table = ResultTable(caption, ["layer", "eigenvalues", "in the tail", "xmin", "alpha"], rows)
    notes = ["TB lowers the learning rate of the first layer and raises that of the second."] if panels else []
    title = "Two layers of a network with the fits of their tails"
    return Report([table], _spectrum_chart(findings, panels, title), {}, notes)
