"""Scores to scales: what multiplies each layer's learning rate."""

from __future__ import annotations

import math
import sys
from bisect import bisect_left
from collections.abc import Callable, Mapping
from numbers import Real
from random import Random
from typing import Any, Literal, get_args

from tempbalance.errors import ScoreError

AssignmentName = Literal["linear", "sqrt", "log2", "step", "sigmoid", "power"]
ScaleRange = tuple[float, float]
AssignmentFunction = Callable[[dict[str, float], ScaleRange], Mapping[str, float]]
KINDS = ("embedding", "attention", "feed-forward", "head", "convolution")
# a name, a control such as "shuffled", "mean:sqrt" or "shuffled:linear:7", a function, or scales by kind of layer
Assignment = AssignmentName | str | AssignmentFunction | Mapping[str, float]

_CLIPPED = ("linear", "step", "power")  # that map onto the range; the others only look at its width, or not at it
_STEEPNESS = 10.0  # tau of the sigmoid
_LARGEST = 300.0  # exponent of ten, far from where floats end


def check_assignment(
    assignment: Assignment, scale_range: ScaleRange, *, name: str = "scale_range", turned: bool = False
) -> None:
    """Refuse an unknown assignment, and a range that is not 0 < low <= high; ``turned`` lets the low end be larger."""
    for kind, scale in assignment.items() if isinstance(assignment, Mapping) else ():
        if kind not in KINDS or not _is_scale(scale):
            raise ValueError(f"assignment must map {', '.join(KINDS)} to scales above 0, got {kind!r}: {scale!r}")
    only_up = parse(assignment)[1] in ("sqrt", "log2")
    is_pair = isinstance(scale_range, tuple | list) and len(scale_range) == 2 and all(map(_is_scale, scale_range))
    if not is_pair or ((only_up or not turned) and scale_range[0] > scale_range[1]):
        rule = "two numbers above 0" if turned and not only_up else "a pair with 0 < low <= high"
        where = f" with assignment {assignment!r}" if only_up else ""
        raise ValueError(f"{name} must be {rule}{where}, got {scale_range!r}")


def parse(assignment: Assignment) -> tuple[str, AssignmentName | AssignmentFunction, int]:
    """Return the control (empty, ``shuffled`` or ``mean``), the assignment that it is a control of, and its seed."""
    names = get_args(AssignmentName)
    if isinstance(assignment, Mapping) or callable(assignment) or assignment in names:
        return "", "linear" if isinstance(assignment, Mapping) else assignment, 0  # type: ignore[return-value]
    words = str(assignment).split(":")
    control, base, seed = (*words, *("", "linear", "0")[len(words) :])[:3]
    is_seed = seed.isascii() and seed.isdecimal() and len(seed) < 19
    if len(words) > 3 or control not in ("shuffled", "mean") or base not in names or not is_seed:
        known = f"{', '.join(names)}, a callable, scales by kind of layer, or a control such as 'shuffled:sqrt:7'"
        raise ValueError(f"assignment must be one of {known}, got {assignment!r}")
    return control, base, int(seed)  # type: ignore[return-value]


def _is_scale(value: Any) -> bool:
    is_number = type(value) is not bool and isinstance(value, Real)
    return is_number and 0 < value <= sys.float_info.max  # an int above the largest float cannot become one


def assign(
    scores: Mapping[str, float],
    *,
    assignment: Assignment = "linear",
    scale_range: ScaleRange = (0.5, 1.5),
    turned: bool = False,
) -> dict[str, float]:
    """Return the scale of each layer.

    Args:
        scores: Layer name to score.
        assignment: ``linear`` maps the scores onto ``scale_range`` (Eq. 2), ``step`` their ranks, equal scores sharing
            their mean rank, ``power`` their logarithms onto that of the range, so that a scale is a power of the score;
            ``sqrt`` and ``log2`` divide the root or logarithm of a score by its mean over the layers, whatever
            ``scale_range`` is; ``sigmoid`` is 10^(s (sigmoid(10 (score - mean)) - 1/2)) with s = log10(high / low), so
            around 1, within the root of the range's ratio. A function is given the scores and the range and returns
            scales by layer. Where all scores are equal, as with one layer alone, every scale is 1, clipped to
            ``scale_range`` by those that map onto it. ``shuffled`` permutes the linear scales among the layers, and
            ``mean`` gives every layer their mean; ``shuffled:sqrt:7`` permutes those of ``sqrt``, by seed 7.
        scale_range: The scales of the smallest and of the largest score, 0 < low <= high; the paper uses (0.5, 1.5).
        turned: Whether the first may be the larger one: the larger a score, the smaller its scale.

    Raises:
        ValueError: If an option is out of range.
        ScoreError: If a score is not finite, below 0 for ``sqrt``, not above 0 for ``power`` or not above 1 for
            ``log2``; or if a callable gives a layer no scale, or one that is negative or not finite.

    Example:
        >>> assign({"conv1": 2.0, "conv2": 4.0, "fc": 3.0})
        {'conv1': 0.5, 'conv2': 1.5, 'fc': 1.0}
    """
    check_assignment(assignment, scale_range, turned=turned)
    if isinstance(assignment, Mapping):
        raise ValueError("scales by kind of layer need layers, not scores: give them to TempBalance")
    control, assignment, seed = parse(assignment)
    for name, score in scores.items():
        if not math.isfinite(score):
            raise ScoreError(f"layer {name!r}: a score must be finite, got {score}")
        limits = (("sqrt", ">= 0", score < 0), ("power", "> 0", score <= 0), ("log2", "> 1", score <= 1))
        for kind, limit, is_beyond in limits:
            if assignment == kind and is_beyond:
                raise ScoreError(f"layer {name!r}: assignment {kind!r} needs scores {limit}, got {score:.6g}")
    if not scores:
        return {}
    if callable(assignment):
        return _checked_scales(assignment(dict(scores), scale_range), scores)
    values = list(scores.values())
    if min(values) < max(values):
        scales = _FUNCTIONS[assignment](values, scale_range)
    else:
        scales = [_clip(1.0, scale_range) if assignment in _CLIPPED else 1.0] * len(values)
    if control == "shuffled":
        Random(seed).shuffle(scales)
    elif control == "mean":
        scales = [math.fsum(scales) / len(scales)] * len(scales)
    return dict(zip(scores, scales, strict=True))


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
    return min(max(scale, min(scale_range)), max(scale_range))


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


def _power(scores: list[float], scale_range: ScaleRange) -> list[float]:
    # c a^p through both ends: linear in the logarithms
    ends = (math.log(scale_range[0]), math.log(scale_range[1]))
    logs = [math.log(score) for score in scores]
    if min(logs) == max(logs):  # of scores that differ in the last bit
        return [_clip(1.0, scale_range)] * len(scores)
    return [_clip(math.exp(each), scale_range) for each in _linear(logs, ends)]


def _sigmoid(scores: list[float], scale_range: ScaleRange) -> list[float]:
    strength = math.log10(scale_range[1]) - math.log10(scale_range[0])
    mean = math.fsum(score / len(scores) for score in scores)  # divided first: a sum may overflow
    # sigmoid(x) - 1/2 = tanh(x / 2) / 2, which no x overflows
    exponents = [strength * math.tanh(_STEEPNESS * (score / 2 - mean / 2)) / 2 for score in scores]
    return [math.pow(10, min(max(each, -_LARGEST), _LARGEST)) for each in exponents]


_FUNCTIONS: dict[str, Callable[[list[float], ScaleRange], list[float]]] = {
    "linear": _linear,
    "sqrt": lambda scores, _: _over_mean([math.sqrt(score) for score in scores]),
    "log2": lambda scores, _: _over_mean([math.log2(score) for score in scores]),
    "step": _step,
    "sigmoid": _sigmoid,
    "power": _power,
}
