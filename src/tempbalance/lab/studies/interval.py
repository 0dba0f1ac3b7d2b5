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
    return [_every(iterations, point) for point in usual for iterations in _intervals(point)]


def _intervals(point: Point) -> list[int]:
    """The paper's, but for those that are too short or too close together for an epoch of so few steps."""
    steps = {steps_like(each, point.options): each for each in reversed(paper_statements()["intervals"].value)}
    steps.pop(steps_like(PAPER_STEPS, point.options), None)
    return [PAPER_STEPS, *reversed(steps.values())]


def _every(iterations: int, point: Point) -> Point:
    cell = {**point.cell, "iterations": iterations}
    if iterations == PAPER_STEPS:
        return replace(point, cell=cell)
    return replace(
        point, cell=cell, options={**point.options, "interval_steps": steps_like(iterations, point.options)}, paper=None
    )


def present(findings: Findings) -> Presentation:
    """A bar for each interval, and the time of a balancing."""
    title = "TB that balances every so many of 390 iterations"
    chart = bars(findings, "iterations", title=title, seconds="balancing_an_epoch")
    caption = (
        "Accuracy against the iterations between two balancings, of 390 an epoch or the same share of a shorter one; "
        "on the right axis the seconds that balancing takes in an epoch."
    )
    return accuracies_with(findings, chart, caption, seconds="balancing_an_epoch")


STUDY = Study(
    name="interval",
    title="Does balancing more often than once an epoch help?",
    figures=("vary-update-interval",),
    varies="390, 300, 200, 100, 50 iterations between two balancings",
    points=points,
    present=present,
    reference={"iterations": PAPER_STEPS},
)
