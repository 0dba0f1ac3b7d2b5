"""TB with five ranges of scales."""

from __future__ import annotations

from tempbalance.lab.findings import Findings
from tempbalance.lab.paper.statements import paper_statements
from tempbalance.lab.point import Point, Preset
from tempbalance.lab.points import best_points, reduced, varied
from tempbalance.lab.present import accuracies_with, bars
from tempbalance.lab.study import Presentation, Study


def points(preset: Preset) -> list[Point]:
    """The four networks on CIFAR-100, with each range."""
    found = best_points("main", datasets=("cifar100",), methods=("tb",))
    ranges = paper_statements()["scale_ranges"].value
    return reduced(varied(found, "scale_range", ranges), preset, {"cifar100": "digits"}, models=("resnet18",))


def present(findings: Findings) -> Presentation:
    """A bar for each range."""
    chart = bars(findings, "scale_range", title="TB with each range of scales")
    return accuracies_with(findings, chart, "Accuracy with each range of scales, the smallest and the largest.")


STUDY = Study(
    name="scale_range",
    title="How far apart should the layers' rates be?",
    figures=("hyper-study-on-s",),
    varies="five ranges of scales",
    points=points,
    present=present,
    reference={"scale_range": (0.5, 1.5)},
)
