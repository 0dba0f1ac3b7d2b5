"""The weight decay balanced in place of the rate, or with it."""

from __future__ import annotations

from tempbalance.lab.ways import study_of_ways

_UP, _DOWN = (0.5, 1.5), (1.5, 0.5)

STUDY = study_of_ways(
    "decay",
    {
        "cal": {"method": "cal"},
        "tb": {},
        "tb, decay alone": {"scale_range": (1.0, 1.0), "decay_range": _UP},
        "tb, decay turned": {"scale_range": (1.0, 1.0), "decay_range": _DOWN},
        "tb, both": {"decay_range": _UP},
    },
    title="Does it help to balance the weight decay?",
    varies="the rate, the weight decay in either direction, or both",
    chart="Balancing the weight decay",
    caption="Accuracy with the rate, the weight decay, both or none balanced.",
)
