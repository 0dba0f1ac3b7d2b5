"""Rows of a diagnosis -> a verdict on each layer, and what they come to together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean, median
from typing import Any

from tempbalance.ranking.table import DiagnosisRow

# Martin and Mahoney's theory of heavy-tailed self-regularisation, for thresholds found by goodness of fit
OVER_TRAINED, UNDER_TRAINED = 2.0, 6.0
# how many robust standard deviations from the median of the layers is out of balance
_FAR = 2.0
_MEANS = ("alpha", "log_norm", "alpha_weighted", "log_alpha_norm", "spectral_norm", "stable_rank", "entropy", "ks")
_NUM_WORST = 5


def judge(rows: Sequence[DiagnosisRow], tail: str) -> list[DiagnosisRow]:
    """Give each scored layer its verdict.

    ``random-like`` is a layer with no eigenvalue beyond the edge of a random matrix. Otherwise, with
    ``goodness_of_fit`` a layer is over-trained below 2 and under-trained above 6. With the other fits alpha depends on
    the shape of a matrix, so a layer is judged beside the others: out of balance more than two robust standard
    deviations, 1.4826 x the median absolute deviation, and two standard errors from the median of the layers' alphas.
    """
    distances = _distances(rows)
    return [
        replace(row, verdict=_verdict(row, tail, distances[row.name])) if row.alpha is not None else row for row in rows
    ]


def _verdict(row: DiagnosisRow, tail: str, distance: float) -> str:
    assert row.alpha is not None
    if row.num_beyond == 0:
        return "random-like"
    if tail == "goodness_of_fit":
        if row.alpha < OVER_TRAINED:
            return "over-trained"
        return "under-trained" if row.alpha > UNDER_TRAINED else "well-trained"
    if abs(distance) <= _FAR:
        return "balanced"
    return "under-trained beside the others" if distance > 0 else "over-trained beside the others"


def _distances(rows: Sequence[DiagnosisRow]) -> dict[str, float]:
    """How far each scored layer's alpha is from the others', in robust standard deviations; 0 within its own error."""
    alphas = {row.name: row.alpha for row in rows if row.alpha is not None}
    if not alphas:
        return {}
    middle = median(alphas.values())
    spread = 1.4826 * median(abs(alpha - middle) for alpha in alphas.values())
    errors = {row.name: row.alpha_stderr or 0.0 for row in rows}
    return {
        name: (alpha - middle) / spread if spread > 0 and abs(alpha - middle) > 2 * errors[name] else 0.0
        for name, alpha in alphas.items()
    }


def summarize(rows: Sequence[DiagnosisRow]) -> dict[str, Any]:
    """Means over the scored layers, the number of each verdict, and the layers most out of balance.

    Args:
        rows: The scored layers.
    """
    summary: dict[str, Any] = {"num_layers": len(rows)}
    for name in _MEANS:
        values = [value for row in rows if (value := getattr(row, name)) is not None]
        summary[name] = fmean(values) if values else None
    summary["verdicts"] = dict(Counter(row.verdict for row in rows))
    judged = [row for row in rows if row.verdict.startswith(("over-trained", "under-trained"))]
    summary["most_out_of_balance"] = [row.name for row in sorted(judged, key=_imbalance(rows))[:_NUM_WORST]]
    return summary


def _imbalance(rows: Sequence[DiagnosisRow]) -> Callable[[DiagnosisRow], float]:
    """Smallest for the layer that is furthest out: beside the others, or beyond the levels of the theory."""
    distances = _distances(rows)

    def key(row: DiagnosisRow) -> float:
        assert row.alpha is not None
        if row.verdict.endswith("beside the others"):
            return -abs(distances[row.name])
        return -max(row.alpha / UNDER_TRAINED, OVER_TRAINED / row.alpha)

    return key
