"""TB with scores as they are, and drawn toward the layers' mean as far as they are uncertain."""

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
    "tb, shrink": {"shrink": True},
    "tb, fair": FAIR,
    "tb, fair, shrink": {**FAIR, "shrink": True},
    "tb, smooth": {"smooth": 0.9},
}
# the laptop has time for these
_FEW = ("cal", "tb", "tb, fair", "tb, fair, shrink")


def points(preset: Preset) -> list[Point]:
    """CAL, TB, and TB with less noise in its scores."""
    ways = {name: way for name, way in _WAYS.items() if preset.name != "laptop" or name in _FEW}
    return variants(preset, ways)


def present(findings: Findings) -> Presentation:
    """A bar for each way."""
    return accuracies_with(
        findings,
        bars(findings, "method", title="TB with uncertain scores drawn together"),
        "Accuracy with scores as they are, and calmed.",
        notes=[FAIR_NOTE],
    )


STUDY = Study(
    name="shrink",
    title="Does it help to keep noise out of the rates?",
    figures=(),
    varies="scores as they are, shrunk or averaged over time; layers compared fairly or not",
    points=points,
    present=present,
    num_seeds={"laptop": 5},
)
