"""Paired tests: differences between runs with the same seeds, tested by scipy.stats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, stdev
from typing import Any

LEVEL = 0.05  # p-values below it count


@dataclass(frozen=True)
class Paired:
    """Differences seed by seed, at least one, and Student's t-test of their mean."""

    differences: tuple[float, ...]

    @property
    def num_pairs(self) -> int:
        return len(self.differences)

    @property
    def mean(self) -> float:
        return fmean(self.differences)

    @property
    def std(self) -> float | None:
        """Sample standard deviation of the differences; ``None`` for fewer than two."""
        return stdev(self.differences) if self.num_pairs > 1 else None

    @property
    def interval(self) -> float | None:
        """Half the width of the 95 % interval of the mean; ``None`` for fewer than two seeds."""
        if not self.std:
            return self.std
        low, high = self._test.confidence_interval(0.95)
        return float(high - low) / 2

    @property
    def p_value(self) -> float | None:
        """P-value, two-sided; ``None`` for fewer than two seeds or if all differences are equal."""
        return float(self._test.pvalue) if self.std else None

    @cached_property
    def _test(self) -> Any:
        from scipy.stats import ttest_1samp  # type: ignore[import-untyped]

        return ttest_1samp(self.differences, 0.0)  # of differences: the paired test


def paired(ours: Mapping[Any, float], theirs: Mapping[Any, float]) -> Paired | None:
    """Pair values by seed; ``None`` without a common seed."""
    differences = tuple(value - theirs[seed] for seed, value in ours.items() if seed in theirs)
    return Paired(differences) if differences else None


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Correct p-values for their number by Holm's method; ``None`` counts as no test.

    Example:
        >>> holm([0.01, None, 0.5, 0.02])
        [0.03, None, 0.5, 0.04]
    """
    there = sorted((p, place) for place, p in enumerate(p_values) if p is not None)
    found: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, place) in enumerate(there):
        largest = max(largest, min(1.0, p * (len(there) - rank)))
        found[place] = largest
    return found


def correlation_limit(num_points: int) -> float:
    """Return the correlation that independent points without any exceed, in size, once in twenty."""
    from scipy.stats import t

    bound = float(t.ppf(0.975, num_points - 2))
    return bound / float((bound**2 + num_points - 2) ** 0.5)


def verdict_text(difference: float, interval: float | None, *, num_seeds: int, points: str = "points") -> str:
    """Describe a mean of paired differences, also where it shows nothing.

    Example:
        >>> verdict_text(1.0, 0.5, num_seeds=3)
        '+1.00 points, 95 % interval +0.50 to +1.50: a difference.'
    """
    value = f"{difference:+.2f} {points}".rstrip()
    if interval is None:
        return f"{value} with one seed, which shows no spread."
    if interval == 0:
        return f"{value} with each of {num_seeds} seeds: differences that are all equal allow no test."
    low, high = difference - interval, difference + interval
    shown = "a difference" if low > 0 or high < 0 else f"{num_seeds} seeds do not show a difference"
    return f"{value}, 95 % interval {low:+.2f} to {high:+.2f}: {shown}."
