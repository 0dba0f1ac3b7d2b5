"""CAL and TB at several initial rates."""

from __future__ import annotations

from tempbalance.lab.findings import Findings
from tempbalance.lab.point import Point, Preset
from tempbalance.lab.points import reduced, table_points
from tempbalance.lab.present import accuracies_with, lines
from tempbalance.lab.study import Presentation, Study


def points(preset: Preset) -> list[Point]:
    """Every rate of the paper's table."""
    return reduced(table_points("learning_rate", "lr"), preset, {"cifar100": "digits"}, models=("resnet18", "vgg16"))


def present(findings: Findings) -> Presentation:
    """Accuracy against the rate."""
    chart = lines(findings, "lr", title="CAL and TB at each initial rate", x_title="initial rate")
    return accuracies_with(findings, chart, "Accuracy against the initial rate.")


STUDY = Study(
    name="learning_rate",
    title="Does balancing help whatever the initial rate?",
    figures=("tune_learning_rate",),
    varies="TB and CAL; the initial rate",
    points=points,
    present=present,
)
