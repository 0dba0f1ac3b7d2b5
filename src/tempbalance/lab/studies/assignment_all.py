"""TB with all six ways from scores to scales, on alpha and on alpha beside that of a random matrix."""

from __future__ import annotations

from typing import Any

from tempbalance.lab.findings import Findings
from tempbalance.lab.options import ASSIGNMENTS
from tempbalance.lab.point import Point, Preset
from tempbalance.lab.points import FAIR, FAIR_NOTE, variants
from tempbalance.lab.present import accuracies_with, bars
from tempbalance.lab.study import Presentation, Study

_WAYS: dict[str, dict[str, Any]] = {
    "cal": {"method": "cal"},
    **{f"tb, {name}": {"assignment": name} for name in ASSIGNMENTS},
    # log2 needs scores above 1, which alpha over that of a random matrix need not be
    **{f"tb, fair, {name}": {**FAIR, "assignment": name} for name in ASSIGNMENTS if name != "log2"},
}


def points(preset: Preset) -> list[Point]:
    """CAL, and TB with each assignment."""
    return variants(preset, _WAYS)


def present(findings: Findings) -> Presentation:
    """A bar for each way."""
    return accuracies_with(
        findings,
        bars(findings, "method", title="TB with every assignment of rates"),
        "Accuracy with each way from scores to scales.",
        notes=[FAIR_NOTE],
    )


STUDY = Study(
    name="assignment_all",
    title="How should scores become scales, beyond the paper's four?",
    figures=(),
    varies="linear, sqrt, log2, step, sigmoid, power; layers compared fairly or not",
    points=points,
    present=present,
    num_seeds={"laptop": 5},
)
