"""TB with alpha as it is and beside that of a random matrix, with scales as they are and around 1."""

from __future__ import annotations

from tempbalance.lab.ways import FAIR, study_of_ways

STUDY = study_of_ways(
    "reference",
    {
        "cal": {"method": "cal"},
        "tb": {},
        "tb, reference": {"reference": "random"},
        "tb, keep mean": {"keep_mean": True},
        "tb, fair": FAIR,
        "tb, windows": {"windows": "square"},
    },
    title="Does it help to compare layers of different shapes fairly?",
    varies="alpha or alpha over that of a random matrix; scales as they are or around 1; windows",
    chart="TB with layers compared fairly",
    caption="Accuracy with each way to compare layers.",
    on_laptop=("cal", "tb", "tb, fair"),
)
