"""TB with three scores of a layer."""

from __future__ import annotations

from tempbalance.lab.findings import Findings
from tempbalance.lab.point import Point, Preset
from tempbalance.lab.points import reduced, table_points
from tempbalance.lab.present import accuracies_with, lines
from tempbalance.lab.study import Presentation, Study


def points(preset: Preset) -> list[Point]:
    """Every score and rate of the paper's table."""
    found = table_points("score", "score", "lr")
    return reduced(found, preset, {"cifar100": "digits"}, models=("resnet18",))


def present(findings: Findings) -> Presentation:
    """Accuracy against the rate, a line for each score."""
    chart = lines(findings, "lr", series="score", title="TB with each score of a layer", x_title="initial rate")
    return accuracies_with(
        findings, chart, "Accuracy against the initial rate, for each score that layers are ranked by."
    )


STUDY = Study(
    name="score",
    title="Which score of a layer should its rate follow?",
    figures=("ablation_metrics",),
    varies="alpha, weighted alpha, spectral norm; the initial rate",
    points=points,
    present=present,
    reference={"score": "alpha"},
)
