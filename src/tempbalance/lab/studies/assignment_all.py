"""TB with all six ways from scores to scales, on alpha and on alpha beside that of a random matrix."""

from __future__ import annotations

from tempbalance.lab.options import ASSIGNMENTS
from tempbalance.lab.ways import FAIR, study_of_ways

STUDY = study_of_ways(
    "assignment_all",
    {
        "cal": {"method": "cal"},
        **{f"tb, {name}": {"assignment": name} for name in ASSIGNMENTS},
        # log2 needs scores above 1, which alpha over that of a random matrix need not be
        **{f"tb, fair, {name}": {**FAIR, "assignment": name} for name in ASSIGNMENTS if name != "log2"},
    },
    title="How should scores become scales, beyond the paper's four?",
    varies="linear, sqrt, log2, step, sigmoid, power; layers compared fairly or not",
    chart="TB with every assignment of rates",
    caption="Accuracy with each way from scores to scales.",
)
