"""TB that balances more often than once an epoch."""

from __future__ import annotations

from dataclasses import replace

from tempbalance.lab.findings import Findings
from tempbalance.lab.paper.statements import paper_statements
from tempbalance.lab.point import Point, Preset
from tempbalance.lab.points import PAPER_STEPS, best_points, reduced, steps_like
from tempbalance.lab.present import accuracies_with, bars
from tempbalance.lab.study import Presentation, Study


def points(preset: Preset) -> list[Point]:
    """ResNet18 on CIFAR-100; once an epoch is the lab's usual interval, others are the same shares of an epoch."""
    usual = reduced(best_points("optimizers", models=("resnet18",), methods=("tb",)), preset, {"cifar100": "digits"})
    intervals = (PAPER_STEPS, *paper_statements()["intervals"].value)
    return [_every(iterations, point) for point in usual for iterations in intervals]


def _every(iterations: int, point: Point) -> Point:
    cell = {**point.cell, "iterations": iterations}
    if iterations == PAPER_STEPS:
        return replace(point, cell=cell)
    return replace(
        point, cell=cell, options={**point.options, "interval_steps": steps_like(iterations, point.options)}, paper=None
    )


def present(findings: Findings) -> Presentation:
    """A bar for each interval, and the time of a balancing."""
    chart = bars(findings, "iterations", title="TB that balances every so many of 390 iterations", seconds=True)
    caption = (
        "Accuracy against the iterations between two balancings, of 390 an epoch or the same share of a shorter one; "
        "on the right axis the seconds of one balancing."
    )
    return accuracies_with(findings, chart, caption, seconds=True)


STUDY = Study(
    name="interval",
    title="Does balancing more often than once an epoch help?",
    figures=("vary-update-interval",),
    varies="390, 300, 200, 100, 50 iterations between two balancings",
    points=points,
    present=present,
    reference={"iterations": PAPER_STEPS},
)
