"""TB and TB+SGDP beside other optimizers and schedules."""

from __future__ import annotations

from tempbalance.lab.findings import Findings
from tempbalance.lab.point import Point, Preset
from tempbalance.lab.points import reduced, table_points
from tempbalance.lab.present import accuracies_with, bars
from tempbalance.lab.study import Presentation, Study


def points(preset: Preset) -> list[Point]:
    """Every line of the paper's table, with its grid."""
    return reduced(table_points("optimizers"), preset, {"cifar100": "digits"}, models=("resnet18",))


def present(findings: Findings) -> Presentation:
    """Bars of the methods, with a cross for each setting."""
    chart = bars(findings, "method", title="Temperature balancing beside optimizers and schedules")
    return accuracies_with(findings, chart, "Accuracy of each method at its best setting.")


STUDY = Study(
    name="optimizers",
    title="Does balancing do better than other optimizers and schedules?",
    figures=("compare_results",),
    varies="CAL, SGDR, LARS, Lookahead, SGDP, TB, TB+SGDP; their grids",
    points=points,
    present=present,
)
