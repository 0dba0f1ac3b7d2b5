"""What differences between seeds amount to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev


@dataclass(frozen=True)
class Paired:
    """Differences seed by seed.

    Attributes:
        mean: Of the differences.
        interval: Half the width of its 95 % interval by Student's t; ``None`` with fewer than two seeds.
        p_value: Of the two-sided paired t-test; ``None`` with fewer than two seeds or where all differences are equal.
        num_pairs: How many seeds both have.
    """

    mean: float
    interval: float | None
    p_value: float | None
    num_pairs: int


def paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Paired | None:
    """The test of values against others with the same seeds; ``None`` without any in common."""
    differences = [value - theirs[seed] for seed, value in ours.items() if seed in theirs]
    if not differences:
        return None
    half = half_interval(differences)
    return Paired(fmean(differences), half, _p_value(differences), len(differences))


def half_interval(differences: Sequence[float]) -> float | None:
    """Half the width of the 95 % interval of a mean, by Student's t; ``None`` for fewer than two values."""
    if len(differences) < 2:
        return None
    from scipy.stats import t  # type: ignore[import-untyped]

    factor = float(t.ppf(0.975, len(differences) - 1))
    return factor * stdev(differences) / math.sqrt(len(differences))


def _p_value(differences: Sequence[float]) -> float | None:
    if len(differences) < 2 or stdev(differences) == 0:
        return None
    from scipy.stats import t

    statistic = fmean(differences) / (stdev(differences) / math.sqrt(len(differences)))
    return 2 * float(t.sf(abs(statistic), len(differences) - 1))


def verdict_text(difference: float, interval: float | None, *, num_seeds: int, points: str = "points") -> str:
    """A mean of paired differences in words, also where it tells nothing.

    Example:
        >>> verdict_text(1.0, 0.5, num_seeds=3)
        '+1.00 points, 95 % interval +0.50 to +1.50: a difference.'
    """
    told = f"{difference:+.2f} {points}".rstrip()
    if interval is None:
        return f"{told} with one seed, which tells nothing about the spread."
    if interval == 0:
        return f"{told} with each of {num_seeds} seeds: differences that are all equal allow no test."
    low, high = difference - interval, difference + interval
    shown = "a difference" if low > 0 or high < 0 else f"{num_seeds} seeds do not show a difference"
    return f"{told}, 95 % interval {low:+.2f} to {high:+.2f}: {shown}."
