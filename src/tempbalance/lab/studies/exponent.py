"""Whether the tail's alpha and the decay s of eigenvalues are one thing: s = 1 / (alpha - 1)."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from tempbalance.lab.findings import Findings
from tempbalance.lab.paper.statements import paper_statements
from tempbalance.lab.point import Point, Preset
from tempbalance.lab.study import Presentation, Study
from tempbalance.lab.tables import Entry, Number, ResultTable

if TYPE_CHECKING:
    from tempbalance.report.study_exponent import ExponentFit


def points(preset: Preset) -> list[Point]:
    """None: nothing is trained."""
    return []


def power_law(size: int, s: float) -> list[float]:
    """The eigenvalues k^-s for k from 1 to the size, ascending; a factor on them moves no alpha."""
    return [float(k) ** -s for k in range(size, 0, -1)]


def fit_exponents() -> list[ExponentFit]:
    """Alpha for each size and exponent of the paper."""
    import torch

    from tempbalance.report.study_exponent import ExponentFit
    from tempbalance.spectral.tail import fit_tail

    said = paper_statements()
    return [
        ExponentFit(size, s, fit_tail(torch.tensor(power_law(size, s), dtype=torch.float64), tail="median").alpha)
        for size in said["exponent_sizes"].value
        for s in said["exponents"].value
    ]


def present(findings: Findings) -> Presentation:
    """A row for each size, and alpha against s beside the curve."""
    from tempbalance.report.study_exponent import exponent_chart

    fits = fit_exponents()
    by_size = {each.size: [other for other in fits if other.size == each.size] for each in fits}
    table = ResultTable(
        "Error of s = 1 / (alpha - 1) in percent of s, and of alpha against 1 + 1 / s: mean and largest over "
        f"{len(next(iter(by_size.values())))} exponents s from {fits[0].s:g} to {fits[-1].s:g}. Alpha is of the Hill "
        "fit to the larger half of Q eigenvalues k^-s.",
        ["Q", "eigenvalues in the tail", "error of s, %", "largest, %", "error of alpha", "largest of alpha"],
        [_row(size, each) for size, each in by_size.items()],
    )
    chart = exponent_chart(
        fits, title="Alpha of the tail against the decay of the eigenvalues", subtitle=findings.subtitle
    )
    caption = "Alpha against the exponent s of the eigenvalues k^-s; the line is the paper's alpha = 1 + 1 / s."
    return Presentation([table], {"exponent": chart}, {"exponent": caption}, _notes(by_size))


def _row(size: int, fits: Sequence[ExponentFit]) -> list[Entry]:
    of_s = [100 * _error(each) for each in fits]
    of_alpha = [abs(each.alpha - 1 - 1 / each.s) for each in fits]
    tail = Number(size // 2, digits=0)
    return [Number(size, digits=0), tail, *(Number(over(each)) for each in (of_s, of_alpha) for over in (fmean, max))]


def _error(fit: ExponentFit) -> float:
    return abs(fit.found / fit.s - 1)


def _notes(by_size: dict[int, list[ExponentFit]]) -> list[str]:
    means = {size: 100 * fmean(map(_error, fits)) for size, fits in by_size.items()}
    (first, most), *_, (last, least) = means.items()
    found = list(means.values())
    told = "falls with the size, as the paper says" if found == sorted(found, reverse=True) else "does not always fall"
    return [
        f"The error of s {told}: {most:.1f} % at Q = {first}, {least:.2f} % at Q = {last:,}.",
        "In percent it is the same for every s: with K eigenvalues in the tail the Hill fit finds "
        "log(K + 1) - log(K!) / K of s, which is below 1 and nears it; so alpha comes out too large.",
    ]


STUDY = Study(
    name="exponent",
    title="Are alpha of the tail and the decay of eigenvalues one thing?",
    figures=("alpha vs s",),
    varies="the number of eigenvalues, 16 to 1,024, and the exponent s of their decay, 0.2 to 3.2",
    points=points,
    present=present,
)
