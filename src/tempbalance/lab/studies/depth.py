"""CAL and TB on ResNets of three depths."""

from __future__ import annotations

from tempbalance.lab.findings import Findings
from tempbalance.lab.paper.statements import paper_statements
from tempbalance.lab.point import Point, Preset
from tempbalance.lab.points import common_settings, reduced, table_points
from tempbalance.lab.present import accuracies_with, bars
from tempbalance.lab.study import Presentation, Study


def points(preset: Preset) -> list[Point]:
    """ResNet18 and 34 from the paper's table of rates, ResNet101 with the rates that the text states."""
    found = table_points("learning_rate", models=("resnet18", "resnet34"))
    for method in ("cal", "tb"):
        names = {"dataset": "cifar100", "model": "resnet101", "method": method}
        for rate in paper_statements()["resnet101_rates"].value:
            found.append(Point(names, {**common_settings(), **names, "lr": rate}, is_best=rate == 0.1))
    return reduced(found, preset, {"cifar100": "digits"})


def present(findings: Findings) -> Presentation:
    """Two bars for each depth."""
    chart = bars(findings, "method", title="CAL and TB on deeper networks")
    return accuracies_with(findings, chart, "Accuracy at the best rate, for each depth.")


STUDY = Study(
    name="depth",
    title="Does balancing help deeper networks as much?",
    figures=("resnet101",),
    varies="ResNet 18, 34, 101; CAL and TB; the initial rate",
    points=points,
    present=present,
)
