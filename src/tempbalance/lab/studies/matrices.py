"""Whether the spectra of a network's Hessian and of its output covariance decay alike."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import StatisticsError, correlation, fmean, stdev
from typing import TYPE_CHECKING, Any

from tempbalance.lab.findings import Cell, Findings
from tempbalance.lab.names import pretty
from tempbalance.lab.paper.statements import paper_statements
from tempbalance.lab.point import Point, Preset
from tempbalance.lab.study import Presentation, Study
from tempbalance.lab.tables import Entry, Number, ResultTable
from tempbalance.runlog import Line

if TYPE_CHECKING:
    import altair as alt

_LAPTOP = {
    "dataset": "fashion_mnist", "limit": 10_000, "test_limit": 2_000, "hidden": 500, "batch_size": 625,
    "num_samples": 1000,
}  # fmt: skip
_SMOKE = {
    "dataset": "digits", "limit": 256, "test_limit": 128, "hidden": 32, "batch_size": 64, "epochs": 3,
    "measure_every": 1, "num_samples": 64, "num_eigenvalues": 5, "tau": 5,
}  # fmt: skip
_MATRICES = {
    "output_covariance": "output covariance", "hidden_covariance": "hidden covariance",
    "hessian": "Hessian", "ntk": "Fisher, NTK",
}  # fmt: skip

Lines = Mapping[int, Mapping[int, Line]]  # what was measured after an epoch, by epoch and seed


def points(preset: Preset) -> list[Point]:
    """The paper's network, with the penalty that makes the spectrum a power law and without."""
    said = paper_statements()
    options: dict[str, Any] = {
        "dataset": "mnist", "hidden": said["matrices_neurons"].value, "epochs": said["matrices_num_epochs"].value,
    }  # fmt: skip
    if not preset.is_paper:
        options.update(_SMOKE if preset.name == "smoke" else _LAPTOP)
        options["dataset"] = preset.dataset or options["dataset"]
    names = {"dataset": options["dataset"], "model": "mlp"}
    return [
        Point(
            {**names, "method": method},
            {**options, "kind": "matrices", "model": "mlp", "method": method},
            stands_for=None if preset.is_paper else "mnist",
        )
        for method in ("regularized", "plain")
    ]


def present(findings: Findings) -> Presentation:
    """Exponents epoch by epoch, their correlations, the one exponent against the other, and the spectra."""
    found = {cell.labels["method"]: _measured(cell) for cell in findings.cells}
    tables = [_exponent_table(found), _correlation_table(found)]
    charts = _charts(findings, found) if any(found.values()) else {}
    captions = {
        "matrices": "The exponent of the Hessian against that of the output covariance; numbers are epochs.",
        "spectra": "The largest eigenvalues of each matrix by rank, both on log axes: a power law is a straight line.",
    }
    return Presentation(tables, charts, {name: captions[name] for name in charts}, _notes(found))


def _measured(cell: Cell) -> Lines:
    runs = cell.best.runs if cell.best is not None else {}
    found: dict[int, dict[int, Line]] = {}
    for seed, run in runs.items():
        for line in run.metrics:
            if "exponents" in line:
                found.setdefault(line["epoch"], {})[seed] = line
    return found


def _exponents(lines: Lines, matrix: str, seed: int | None = None) -> list[float]:
    """Those of a matrix epoch by epoch, as means over the seeds or of one."""
    return [
        fmean(line["exponents"][matrix] for each, line in by_seed.items() if seed in (None, each))
        for by_seed in lines.values()
    ]


def _exponent_table(found: Mapping[str, Lines]) -> ResultTable:
    columns = [f"s, {words}" for words in _MATRICES.values()]
    rows: list[list[Entry]] = []
    for method, lines in found.items():
        for epoch, by_seed in lines.items():
            values = [[line["exponents"][name] for line in by_seed.values()] for name in _MATRICES]
            accuracies = [line["test_accuracy"] for line in by_seed.values()]
            told = [_number(each, digits=3) for each in values]
            rows.append([pretty(method), str(epoch), *told, _number(accuracies), str(len(by_seed))])
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
                low, high = _range(lines, name)
                told = [None if each is None else Number(each) for each in (_pearson(lines, name), low, high)]
                rows.append([pretty(method), words, *told, str(len(lines))])
    return ResultTable(
        "Pearson correlation r over the epochs of the Hessian's s with that of another matrix: of the means over the "
        "seeds, and the lowest and highest of a seed. None for fewer than three epochs.",
        ["method", "with s of", "r", "lowest r", "highest r", "epochs"],
        rows,
    )


def _pearson(lines: Lines, matrix: str, seed: int | None = None) -> float | None:
    if len(lines) < 3:  # any two points lie on a line
        return None
    try:
        return correlation(_exponents(lines, "hessian", seed), _exponents(lines, matrix, seed))
    except StatisticsError:  # all exponents of a matrix are equal
        return None


def _range(lines: Lines, matrix: str) -> tuple[float | None, float | None]:
    seeds = next(iter(lines.values()))
    there = [each for seed in seeds if (each := _pearson(lines, matrix, seed)) is not None]
    return min(there, default=None), max(there, default=None)


def _notes(found: Mapping[str, Lines]) -> list[str]:
    told = []
    for method, lines in found.items():
        r = _pearson(lines, "output_covariance")
        if r is not None:
            needed = _chance(len(lines))
            above = "above" if abs(r) > needed else "not above"
            told.append(
                f"{pretty(method)}: r = {r:+.2f} of the exponents of Hessian and output covariance over {len(lines)} "
                f"epochs, in size {above} the {needed:.2f} that independent points exceed by chance once in twenty."
            )
    if told:
        told.append(
            "The paper calls the correlation strong, of the regularized network, and gives no number. A few epochs of "
            "one training are not independent: what grows steadily correlates with all else that does."
        )
    return told


def _chance(num_points: int) -> float:
    """The correlation that so many independent points without any exceed, in size, once in twenty."""
    from scipy.stats import t  # type: ignore[import-untyped]

    bound = float(t.ppf(0.975, num_points - 2))
    return bound / math.hypot(bound, math.sqrt(num_points - 2))


def _charts(findings: Findings, found: Mapping[str, Lines]) -> dict[str, alt.TopLevelMixin]:
    from tempbalance.report.study_matrices import ExponentPair, MatrixSpectrum, decay_chart, pair_chart

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


STUDY = Study(
    name="matrices",
    title="Do the spectra of Hessian and covariance decay alike?",
    figures=("hessian vs covar",),
    varies="the epoch, with and without a penalty that makes the hidden layer's spectrum a power law",
    points=points,
    present=present,
    reference={"method": "plain"},
)
