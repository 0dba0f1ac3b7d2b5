"""CAL, SNR, TB and TB+SNR on four datasets and six networks."""

from __future__ import annotations

from tempbalance.lab.findings import Findings
from tempbalance.lab.point import Point, Preset
from tempbalance.lab.points import reduced, table_points
from tempbalance.lab.present import accuracies_with, bars
from tempbalance.lab.study import Presentation, Study


def points(preset: Preset) -> list[Point]:
    """Every line of the paper's table; small, its 10-class datasets with data that stand in for them."""
    stand_ins = {"cifar10": "fashion_mnist", "svhn": "digits"}
    return reduced(table_points("main"), preset, stand_ins, models=("resnet18", "vgg16"))


def present(findings: Findings) -> Presentation:
    """Bars of the four methods for each network and data."""
    chart = bars(findings, "method", title="Temperature balancing beside its baselines")
    return accuracies_with(findings, chart, "Accuracy of each method at its best setting.")


STUDY = Study(
    name="main",
    title="Does balancing generalise better than the baselines?",
    figures=("main_result",),
    varies="CAL, SNR, TB, TB+SNR; datasets, networks; grids of rate and lambda",
    points=points,
    present=present,
)
