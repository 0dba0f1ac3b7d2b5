"""TB with alpha as it is and beside that of a random matrix, with scales as they are and around 1."""

from __future__ import annotations

from typing import Any

from tempbalance.lab.findings import Findings
from tempbalance.lab.point import Point, Preset
from tempbalance.lab.points import FAIR, FAIR_NOTE, variants
from tempbalance.lab.present import accuracies_with, bars
from tempbalance.lab.study import Presentation, Study

_WAYS: dict[str, dict[str, Any]] = {
    "cal": {"method": "cal"},
    "tb": {},
    "tb, reference": {"reference": "random"},
    "tb, keep mean": {"keep_mean": True},
    "tb, fair": FAIR,
    "tb, windows": {"windows": "square"},
}
# the laptop has time for these
_FEW = ("cal", "tb", "tb, fair")


def points(preset: Preset) -> list[Point]:
    """CAL, TB, and TB with layers compared by what training did to them."""
    ways = {name: way for name, way in _WAYS.items() if preset.name != "laptop" or name in _FEW}
    return variants(preset, ways)


def present(findings: Findings) -> Presentation:
    """A bar for each way."""
    return accuracies_with(
        findings,
        bars(findings, "method", title="TB with layers compared fairly"),
        "Accuracy with each way to compare layers.",
        notes=[FAIR_NOTE],
    )


STUDY = Study(
    name="reference",
    title="Does it help to compare layers of different shapes fairly?",
    figures=(),
    varies="alpha or alpha over that of a random matrix; scales as they are or around 1; windows",
    points=points,
    present=present,
    num_seeds={"laptop": 5},
)
