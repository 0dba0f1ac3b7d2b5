"""How alpha is distributed over the layers, TB against CAL."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean, median, pstdev
from typing import TYPE_CHECKING

from tempbalance.lab.findings import Cell, Findings
from tempbalance.lab.names import pretty
from tempbalance.lab.point import Point, Preset
from tempbalance.lab.points import best_points, reduced
from tempbalance.lab.study import Presentation, Study
from tempbalance.lab.tables import Entry, Number, ResultTable

if TYPE_CHECKING:
    from tempbalance.report.study_data import Alphas

_FAMILIES = {"resnet": "ResNet", "vgg": "VGG", "wrn": "WRN"}


def points(preset: Preset) -> list[Point]:
    """The networks of `main`, with the settings that the paper found best."""
    stand_ins = {"cifar10": "fashion_mnist", "svhn": "digits"}
    return reduced(best_points("main", methods=("cal", "tb")), preset, stand_ins, models=("resnet18", "vgg16"))


def present(findings: Findings) -> Presentation:
    """Box plots for each network and data, histograms for families of them."""
    from tempbalance.report.study_alphas import alpha_boxes, alpha_histograms
    from tempbalance.report.study_data import Alphas

    values = {id(cell): last_alphas(cell) for cell in findings.cells}
    rows: list[list[Entry]] = []
    for cell in findings.cells:
        found = values[id(cell)]
        told = (fmean(found), pstdev(found), median(found)) if found else (None,) * 3
        numbers = [None if each is None else Number(each, digits=3) for each in told]
        rows.append(
            [*(pretty(cell.labels[name]) for name in ("dataset", "model", "method")), str(len(found)), *numbers]
        )
    columns = ["data", "network", "method", "alphas", "mean", "standard deviation", "median"]
    table = ResultTable(
        "Alpha of the scored layers at the end, all seeds together; theory holds 2 for the best.", columns, rows
    )
    done = [cell for cell in findings.cells if values[id(cell)]]
    if not done:
        return Presentation([table], {}, {})

    def together(panel: Callable[[Cell], str | None]) -> list[Alphas]:
        found: dict[tuple[str, str], list[float]] = {}
        for cell in done:
            if (name := panel(cell)) is not None:
                found.setdefault((name, pretty(cell.labels["method"])), []).extend(values[id(cell)])
        return [Alphas(name, method, tuple(each)) for (name, method), each in found.items()]

    groups = [*together(lambda cell: "all"), *together(_family), *together(lambda cell: pretty(cell.labels["dataset"]))]
    texts = {"subtitle": findings.subtitle}
    charts = {
        "alpha_boxes": alpha_boxes(together(lambda cell: cell.panel), title="Alpha of the layers", **texts),
        "alpha_histograms": alpha_histograms(groups, title="Alpha of the layers of many networks", **texts),
    }
    captions = {
        "alpha_boxes": "Alpha of the layers at the end of training; a star is the mean.",
        "alpha_histograms": "The same for all networks together, for each family and for each dataset.",
    }
    return Presentation([table], charts, captions)


def last_alphas(cell: Cell) -> list[float]:
    """Alpha of every layer at the last scoring of every run."""
    found: list[float] = []
    for run in cell.best.runs.values() if cell.best is not None else ():
        lines = run.layers
        found += [line["alpha"] for line in lines if line["epoch"] == lines[-1]["epoch"] and line["alpha"] is not None]
    return found


def _family(cell: Cell) -> str | None:
    return next((name for start, name in _FAMILIES.items() if cell.labels["model"].startswith(start)), None)


STUDY = Study(
    name="alpha",
    title="Does balancing bring the layers' alphas together?",
    figures=("vis-boxplots", "vis-hist"),
    varies="TB and CAL; the distribution of alpha",
    points=points,
    present=present,
)
