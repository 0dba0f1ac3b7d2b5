"""TB with three ways to find where the tail starts, and their time."""

from __future__ import annotations

from tempbalance.lab.findings import Findings
from tempbalance.lab.point import Point, Preset
from tempbalance.lab.points import reduced, table_points
from tempbalance.lab.present import accuracies_with, bars
from tempbalance.lab.study import Presentation, Study


def points(preset: Preset) -> list[Point]:
    """Every line of the paper's table."""
    return reduced(table_points("tail", "tail"), preset, {"cifar100": "digits"}, models=("resnet18", "vgg16"))


def present(findings: Findings) -> Presentation:
    """Accuracy as bars, seconds of one balancing on a second axis."""
    chart = bars(findings, "tail", title="TB with each fit of the tail", seconds="balancing")
    caption = "Accuracy, and on the right axis the seconds of one balancing, for each way to find the tail."
    return accuracies_with(findings, chart, caption, seconds="balancing")


STUDY = Study(
    name="tail",
    title="How should the tail be found, and what does it cost?",
    figures=("alpha-fit-ablation",),
    varies="goodness of fit, peak, median; accuracy and time",
    points=points,
    present=present,
    reference={"tail": "median"},
)
