"""TB that starts in a later epoch."""

from __future__ import annotations

from tempbalance.lab.findings import Findings
from tempbalance.lab.paper.statements import paper_statements
from tempbalance.lab.point import Point, Preset
from tempbalance.lab.points import best_points, reduced, varied
from tempbalance.lab.present import accuracies_with, bars
from tempbalance.lab.study import Presentation, Study


def points(preset: Preset) -> list[Point]:
    """ResNet18 on CIFAR-100; an epoch is counted from 1, its ``start`` from 0."""
    found = best_points("optimizers", models=("resnet18",), methods=("tb",))
    starts = [0, *(epoch - 1 for epoch in paper_statements()["start_epochs"].value)]
    last = preset.options.get("epochs", found[0].options["epochs"])
    late = [start for start in starts if start < last]
    return reduced(varied(found, "start", late), preset, {"cifar100": "digits"})


def present(findings: Findings) -> Presentation:
    """A bar for each start."""
    chart = bars(findings, "start", title="TB that starts after so many epochs")
    return accuracies_with(findings, chart, "Accuracy when balancing starts after so many epochs.")


STUDY = Study(
    name="start",
    title="Does it matter when balancing starts?",
    figures=("late-start",),
    varies="epochs 1, 2, 5, 10 as the first that is balanced",
    points=points,
    present=present,
    reference={"start": 0},
)
