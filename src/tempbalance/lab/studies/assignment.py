"""TB with four ways from scores to scales."""

from __future__ import annotations

from tempbalance.lab.findings import Findings
from tempbalance.lab.options import ASSIGNMENTS
from tempbalance.lab.point import Point, Preset
from tempbalance.lab.points import best_points, reduced, varied
from tempbalance.lab.present import accuracies_with, bars
from tempbalance.lab.study import Presentation, Study


def points(preset: Preset) -> list[Point]:
    """The four networks on CIFAR-100, with each assignment."""
    found = best_points("main", datasets=("cifar100",), methods=("tb",))
    small = {"cifar100": "digits"}
    return reduced(varied(found, "assignment", ASSIGNMENTS[:4]), preset, small, models=("resnet18", "vgg16"))


def present(findings: Findings) -> Presentation:
    """A bar for each assignment."""
    chart = bars(findings, "assignment", title="TB with each assignment of rates")
    return accuracies_with(findings, chart, "Accuracy with each way from scores to scales.")


STUDY = Study(
    name="assignment",
    title="How should scores become scales?",
    figures=("lr_assign_func",),
    varies="linear, sqrt, log2, step",
    points=points,
    present=present,
    reference={"assignment": "linear"},
)
