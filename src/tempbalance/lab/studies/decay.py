"""The weight decay balanced in place of the rate, or with it."""

from __future__ import annotations

from typing import Any

from tempbalance.lab.findings import Findings
from tempbalance.lab.point import Point, Preset
from tempbalance.lab.points import variants
from tempbalance.lab.present import accuracies_with, bars
from tempbalance.lab.study import Presentation, Study

_UP, _DOWN = (0.5, 1.5), (1.5, 0.5)
_WAYS: dict[str, dict[str, Any]] = {
    "cal": {"method": "cal"},
    "tb": {},
    "tb, decay alone": {"scale_range": (1.0, 1.0), "decay_range": _UP},
    "tb, decay turned": {"scale_range": (1.0, 1.0), "decay_range": _DOWN},
    "tb, both": {"decay_range": _UP},
}


def points(preset: Preset) -> list[Point]:
    """CAL, TB, and the decay of layers with heavier tails lowered, or raised, with the rates alike or balanced."""
    return variants(preset, _WAYS)


def present(findings: Findings) -> Presentation:
    """A bar for each way."""
    return accuracies_with(
        findings,
        bars(findings, "method", title="Balancing the weight decay"),
        "Accuracy with the rate, the weight decay, both or none balanced.",
    )


STUDY = Study(
    name="decay",
    title="Does it help to balance the weight decay?",
    figures=(),
    varies="the rate, the weight decay in either direction, or both",
    points=points,
    present=present,
    num_seeds={"laptop": 5},
)
