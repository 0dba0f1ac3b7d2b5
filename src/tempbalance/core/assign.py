"""Scores to scales: what multiplies each layer's learning rate."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping
from typing import Literal, get_args

from tempbalance.errors import ScoreError

AssignmentName = Literal["linear", "sqrt", "log2", "step"]
ScaleRange = tuple[float, float]
AssignmentFunction = Callable[[dict[str, float], ScaleRange], Mapping[str, float]]


def check_assignment(assignment: str | Callable[..., object], scale_range: ScaleRange) -> None:
    """Refuse options that no assignment takes.

    Raises:
        ValueError: If the name is unknown or the range is not 0 < low <= high.
    """
    if not callable(assignment) and assignment not in get_args(AssignmentName):
        names = ", ".join(get_args(AssignmentName))
        raise ValueError(f"assignment must be one of {names} or a callable, got {assignment!r}")
    is_pair = isinstance(scale_range, tuple | list) and len(scale_range) == 2
    if not is_pair or not 0 < scale_range[0] <= scale_range[1] < math.inf:
        raise ValueError(f"scale_range must be a pair with 0 < low <= high, got {scale_range!r}")


def assign(
    scores: Mapping[str, float],
    *,
    assignment: AssignmentName | AssignmentFunction = "linear",
    scale_range: ScaleRange = (0.5, 1.5),
) -> dict[str, float]:
    """The scale of each layer.

    Args:
        scores: Layer name to score.
        assignment: ``linear`` maps the scores onto ``scale_range`` (Eq. 2), ``step`` their ranks, equal scores sharing
            their mean rank; ``sqrt`` and ``log2`` divide the root or logarithm of a score by its mean over the layers,
            whatever ``scale_range`` is. A function is given the scores and the range and returns scales by layer.
            Where all scores are equal, as with one layer alone, every scale is 1, clipped to ``scale_range`` by the two
            that map onto it.
        scale_range: The smallest and the largest scale, 0 < low <= high; the paper uses (0.5, 1.5).

    Raises:
        ValueError: If an option is out of range.
        ScoreError: If a score is not finite, below 0 for ``sqrt`` or not above 1 for ``log2``; or if a callable leaves
            out a layer or gives one a scale that is negative or not finite.

    Example:
        >>> assign({"conv1": 2.0, "conv2": 4.0, "fc": 3.0})
        {'conv1': 0.5, 'conv2': 1.5, 'fc': 1.0}
    """
    check_assignment(assignment, scale_range)
    for name, score in scores.items():
        _check_score(name, score, assignment)
    if not scores:
        return {}
    if callable(assignment):
        return _checked_scales(assignment(dict(scores), scale_range), scores)
    values = list(scores.values())
    if min(values) < max(values):
        scales = _FUNCTIONS[assignment](values, scale_range)
    else:
        scales = [_clip(1.0, scale_range) if assignment in ("linear", "step") else 1.0] * len(values)
    return dict(zip(scores, scales, strict=True))


def _check_score(name: str, score: float, assignment: AssignmentName | AssignmentFunction) -> None:
    if not math.isfinite(score):
        raise ScoreError(f"layer {name!r}: a score must be finite, got {score}")
    if assignment == "sqrt" and score < 0:
        raise ScoreError(f"layer {name!r}: assignment 'sqrt' needs scores >= 0, got {score:.6g}")
    if assignment == "log2" and score <= 1:
        raise ScoreError(f"layer {name!r}: assignment 'log2' needs scores > 1, got {score:.6g}")


def _checked_scales(scales: Mapping[str, float], scores: Mapping[str, float]) -> dict[str, float]:
    if not isinstance(scales, Mapping):
        raise ScoreError(f"an assignment function must return scales by layer, got {scales!r}")
    checked = {}
    for name in scores:
        if name not in scales:
            raise ScoreError(f"layer {name!r}: the assignment gave it no scale")
        try:
            checked[name] = float(scales[name])
        except (TypeError, ValueError) as err:
            raise ScoreError(f"layer {name!r}: a scale must be a number, got {scales[name]!r}") from err
        if not 0 <= checked[name] < math.inf:
            raise ScoreError(f"layer {name!r}: a scale must be finite and >= 0, got {checked[name]}")
    return checked


def _clip(scale: float, scale_range: ScaleRange) -> float:
    return min(max(scale, scale_range[0]), scale_range[1])


def _linear(scores: list[float], scale_range: ScaleRange) -> list[float]:
    # Eq. 2: s1 + (a_i - a_min) / (a_max - a_min) (s2 - s1); clipped, because s1 + (s2 - s1) may exceed s2 by a rounding
    (low, high), least, most = scale_range, min(scores), max(scores)
    unit = 1.0 if math.isfinite(most - least) else 0.5
    spread = most * unit - least * unit
    return [_clip(low + (score * unit - least * unit) / spread * (high - low), scale_range) for score in scores]


def _over_mean(values: list[float]) -> list[float]:
    mean = math.fsum(values) / len(values)
    return [value / mean for value in values]


def _step(scores: list[float], scale_range: ScaleRange) -> list[float]:
    # s1 + (k - 1) (s2 - s1) / (L - 1) for the k-th smallest of L; equal scores share the mean of their ranks
    (low, high), ranked = scale_range, sorted(scores)
    ranks = {score: bisect_left(ranked, score) + (ranked.count(score) - 1) / 2 for score in set(scores)}
    return [_clip(low + ranks[score] * (high - low) / (len(scores) - 1), scale_range) for score in scores]


_FUNCTIONS: dict[str, Callable[[list[float], ScaleRange], list[float]]] = {
    "linear": _linear,
    "sqrt": lambda scores, _: _over_mean([math.sqrt(score) for score in scores]),
    "log2": lambda scores, _: _over_mean([math.log2(score) for score in scores]),
    "step": _step,
}
