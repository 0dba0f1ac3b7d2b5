"""A Fourier neural operator from few solutions of an equation: Adam with a cosine alone, and balanced."""

from __future__ import annotations

from typing import Any

from tempbalance.lab.findings import Findings
from tempbalance.lab.point import Point, Preset
from tempbalance.lab.present import accuracies_with, lines
from tempbalance.lab.study import Presentation, Study
from tempbalance.lab.ways import FAIR, FAIR_NOTE

_EQUATIONS = ("burgers", "advection")
_VARIANTS: dict[str, dict[str, Any]] = {
    "adam": {"method": "adam"},
    "tb+adam": {"method": "tb+adam"},
    "tb+adam, keep mean": {"method": "tb+adam", "keep_mean": True},
    "tb+adam, fair": {"method": "tb+adam", **FAIR},
    "tb+adam, fair, shrink": {"method": "tb+adam", **FAIR, "shrink": True},
}
_SAMPLES = {"paper": (16, 32, 64, 128, 256, 512), "laptop": (16, 64, 256), "smoke": (4, 8)}
_SIZES: dict[str, dict[str, Any]] = {
    "paper": {"grid": 128, "width": 128, "modes": 16, "iterations": 5000, "evaluate_every": 500, "interval": 50},
    "laptop": {},
    "smoke": {
        "test_limit": 8, "grid": 16, "width": 8, "modes": 4, "blocks": 2, "iterations": 4, "evaluate_every": 2,
        "interval": 2, "batch_size": 4, "min_eigenvalues": 8,
    },
}  # fmt: skip


def points(preset: Preset) -> list[Point]:
    """Each equation and number of solutions, for Adam alone and balanced; all train as many steps, at one rate."""
    return [
        Point(
            {"dataset": dataset, "model": "fno", "method": name, "solutions": limit},
            {"kind": "operator", "dataset": dataset, "model": "fno", "limit": limit, **_SIZES[preset.name], **variant},
        )
        for dataset in ([preset.dataset] if preset.dataset else _EQUATIONS)
        for limit in _SAMPLES[preset.name]
        for name, variant in _VARIANTS.items()
    ]


def present(findings: Findings) -> Presentation:
    """Error against the number of solutions, a panel for each equation."""
    chart = lines(
        findings,
        "solutions",
        title="Temperature balancing of a Fourier neural operator",
        x_title="solutions to train on",
        log_x=True,
        log_y=True,
    )
    notes = [
        FAIR_NOTE,
        "All train as many steps, whatever there is to train on; the rate was chosen for Adam alone, in the size of "
        "laptop and on other data of the same kind.",
    ]
    return accuracies_with(findings, chart, "Error against the number of solutions; lower is better.", notes=notes)


STUDY = Study(
    name="operator",
    title="Does balancing help where data are few?",
    figures=(),
    varies="Adam alone and balanced; solutions of Burgers' equation and of advection to train on",
    points=points,
    present=present,
    num_seeds={"laptop": 5},
    reference={"method": "adam"},
)
