"""Adam, AdamW, AdamP and LAMB beside CAL and TB."""

from __future__ import annotations

from tempbalance.lab.findings import Findings
from tempbalance.lab.images.recipe import ImageRecipe
from tempbalance.lab.paper.statements import paper_statements
from tempbalance.lab.point import Point, Preset
from tempbalance.lab.points import best_points, common_settings, reduced
from tempbalance.lab.present import accuracies_with, bars
from tempbalance.lab.study import Presentation, Study

_NETWORKS = ("resnet18", "resnet34")
_RATES = {"adam": "adam_rates", "adamw": "adam_rates", "adamp": "adam_rates", "lamb": "lamb_rates"}


def points(preset: Preset) -> list[Point]:
    """The grids that the text states; of AdamW and AdamP, of which it states none, Adam's."""
    found = best_points("optimizers", methods=("cal", "tb"))
    for model in _NETWORKS:
        for method, statement in _RATES.items():
            names = {"dataset": "cifar100", "model": model, "method": method}
            usual = ImageRecipe(method=method).lr
            for rate in paper_statements()[statement].value:
                options = {**common_settings(), **names, "lr": rate}
                found.append(Point(names, options, is_best=rate == usual))
    return reduced(found, preset, {"cifar100": "digits"}, models=("resnet18",))


def present(findings: Findings) -> Presentation:
    """Bars of the methods, with a cross for each rate."""
    chart = bars(findings, "method", title="Temperature balancing beside rates for each parameter")
    return accuracies_with(findings, chart, "Accuracy of each method at its best rate.")


STUDY = Study(
    name="adam",
    title="Does balancing do better than Adam and its relatives?",
    figures=("strong-baseline-app",),
    varies="Adam, LAMB, beside them AdamW, AdamP; their rates",
    points=points,
    present=present,
)
