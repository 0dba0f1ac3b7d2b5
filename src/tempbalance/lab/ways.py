"""Studies of a network of the paper trained in several ways that the paper does not have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tempbalance.lab.findings import Findings
from tempbalance.lab.point import Point, Preset
from tempbalance.lab.points import best_points, reduced
from tempbalance.lab.present import accuracies_with, bars
from tempbalance.lab.study import Presentation, Study

Ways = Mapping[str, Mapping[str, Any]]

FAIR = {"reference": "random", "keep_mean": True}
FAIR_NOTE = "Fair: alpha over that of a random matrix of the same shape, and scales divided by their mean."
_SMALLER = {"laptop": {"width": 0.125, "limit": 4_000}}  # of a study of many ways, that is to end within an hour


def study_of_ways(
    name: str, ways: Ways, *, title: str, varies: str, chart: str, caption: str, on_laptop: Sequence[str] = ()
) -> Study:
    """A study with a bar for each way, with five seeds on a laptop.

    Args:
        name: The study's.
        ways: Options by what the way is called, as for `points_of_ways`.
        title: What it asks.
        varies: What differs between the ways.
        chart: The chart's title.
        caption: Of the table and the chart.
        on_laptop: The ways that a laptop has time for; none for all.
    """
    few = {way: ways[way] for way in on_laptop or ways}
    notes = [FAIR_NOTE] if any(FAIR.items() <= way.items() for way in ways.values()) else []

    def points(preset: Preset) -> list[Point]:
        return points_of_ways(preset, few if preset.name == "laptop" else ways)

    def present(findings: Findings) -> Presentation:
        return accuracies_with(findings, bars(findings, "method", title=chart), caption, notes=notes)

    return Study(
        name=name,
        title=title,
        figures=(),
        varies=varies,
        points=points,
        present=present,
        num_seeds={"laptop": 5},
    )


def points_of_ways(preset: Preset, ways: Ways) -> list[Point]:
    """ResNet18 at the settings that the paper found best for TB, trained in several ways; no number of the paper's.

    Args:
        preset: On a laptop, Fashion-MNIST in place of CIFAR-10 and half the preset's width.
        ways: Options by what the way is called, which stands in the place of a method; the smallest preset has the
            first three.
    """
    found = best_points("main", datasets=("cifar10", "cifar100"), models=("resnet18",), methods=("tb",))
    small = reduced(found, preset, {"cifar10": "fashion_mnist"})
    return [
        replace(
            point,
            cell={**point.cell, "method": name},
            options={"method": "tb", **point.options, **_SMALLER.get(preset.name, {}), **options},
            paper=None,
            is_best=False,
        )
        for point in small
        for name, options in list(ways.items())[: 3 if preset.name == "smoke" else None]
    ]
