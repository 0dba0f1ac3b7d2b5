"""TB with scores as they are, and drawn toward the layers' mean as far as they are uncertain."""

from __future__ import annotations

from tempbalance.lab.ways import FAIR, study_of_ways

STUDY = study_of_ways(
    "shrink",
    {
        "cal": {"method": "cal"},
        "tb": {},
        "tb, shrink": {"shrink": True},
        "tb, fair": FAIR,
        "tb, fair, shrink": {**FAIR, "shrink": True},
        "tb, smooth": {"smooth": 0.9},
    },
    title="Does it help to keep noise out of the rates?",
    varies="scores as they are, shrunk or averaged over time; layers compared fairly or not",
    chart="TB with uncertain scores drawn together",
    caption="Accuracy with scores as they are, and calmed.",
    on_laptop=("cal", "tb", "tb, fair", "tb, fair, shrink"),
)
