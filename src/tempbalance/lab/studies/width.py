"""CAL and TB at several widths."""

from __future__ import annotations

from tempbalance.lab.findings import Findings
from tempbalance.lab.point import Point, Preset
from tempbalance.lab.points import reduced, table_points
from tempbalance.lab.present import accuracies_with, lines
from tempbalance.lab.study import Presentation, Study


def points(preset: Preset) -> list[Point]:
    """Every width of the paper's table, in small presets as shares of theirs."""
    return reduced(table_points("width", "width"), preset, {"cifar100": "digits"}, models=("resnet18", "vgg16"))


def present(findings: Findings) -> Presentation:
    """Accuracy against the width."""
    chart = lines(findings, "width", title="CAL and TB at each width", x_title="width, 1 is 512 channels")
    return accuracies_with(findings, chart, "Accuracy against the width.")


STUDY = Study(
    name="width",
    title="Does balancing help whatever the width?",
    figures=("tune_model_width",),
    varies="TB and CAL; the width",
    points=points,
    present=present,
)
