"""Spectra as charts draw them: counts in bins that are equally wide on a log axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tempbalance.report.text import finite

MOST_BINS = 60
DRAWN_RANGE = 1e-10  # values this much below the largest are rounding noise, and would stretch the axis


@dataclass(frozen=True)
class Histogram:
    """Counts of values in bins.

    Attributes:
        start: log10 of where the first bin begins.
        step: Width of each bin, in decades.
        counts: Values in each bin.
        size: All values, those that are not drawn too.
    """

    start: float
    step: float
    counts: tuple[int, ...]
    size: int

    @property
    def num_hidden(self) -> int:
        """Values that are zero, or too small to be drawn."""
        return self.size - sum(self.counts)

    def densities(self) -> list[float]:
        """Share of all values in each bin over the bin's width."""
        edges = [10 ** (self.start + self.step * index) for index in range(len(self.counts) + 1)]
        return [
            count / (self.size * (right - left))
            for count, left, right in zip(self.counts, edges, edges[1:], strict=False)
        ]


def drawn(values: Sequence[float]) -> NDArray[np.float64]:
    """The values that a log axis has a place for, without those far below the largest."""
    array = np.asarray(values, dtype=np.float64)
    array = array[(array > 1e-300) & (array < 1e300)]
    return array[array >= array.max() * DRAWN_RANGE] if len(array) else array


def log_histogram(values: Sequence[float]) -> Histogram | None:
    """Count values in bins of equal width in log10, more bins for more values.

    Returns:
        ``None`` if no value can be drawn.
    """
    logs = np.log10(drawn(values))
    if len(logs) == 0:
        return None
    low, high = float(logs.min()), float(logs.max())
    if high - low < 1e-3:
        low, high = low - 0.01, high + 0.01
    num_bins = min(MOST_BINS, max(12, round(2 * math.sqrt(len(logs)))))
    counts, _ = np.histogram(logs, bins=num_bins, range=(low, high))
    return Histogram(low, (high - low) / num_bins, tuple(int(count) for count in counts), len(values))


def spectrum_datum(
    values: Sequence[float],
    *,
    alpha: float | None = None,
    xmin: float | None = None,
    num_tail: int | None = None,
    edge: float | None = None,
) -> dict[str, Any] | None:
    """A spectrum and its fit as one datum of the spectrum chart; ``None`` if there is nothing to draw."""
    histogram = log_histogram(values)
    if histogram is None:
        return None
    end = 10 ** (histogram.start + histogram.step * len(histogram.counts))
    tail_x, tail_y = _tail(alpha, xmin, num_tail, histogram.size, end)
    datum: dict[str, Any] = {
        "start": finite(histogram.start, 7),
        "step": finite(histogram.step, 7),
        "counts": list(histogram.counts),
        "size": histogram.size,
        "floor": finite(min(each for each in (*histogram.densities(), *tail_y) if each) / 1.5),
        "xmin": finite(xmin),
        "edge": finite(edge),
        "tail_x": tail_x,
        "tail_y": tail_y,
    }
    hidden = f"{histogram.num_hidden} of {histogram.size} values too small to draw" if histogram.num_hidden else ""
    datum["note"] = ", ".join(filter(None, [f"alpha {alpha:.3f}" if finite(alpha) is not None else "", hidden]))
    return datum


def _tail(
    alpha: float | None, xmin: float | None, num_tail: int | None, size: int, end: float
) -> tuple[list[float | None], list[float | None]]:
    """The two ends of the fitted density, a line on log axes, scaled by the share of values that are in the tail."""
    if alpha is None or xmin is None or not num_tail or not (alpha > 1 and 0 < xmin < end):
        return [], []
    # p(x) = (k / n) x (alpha - 1) / xmin x (x / xmin)^-alpha
    top = num_tail / size * (alpha - 1) / xmin
    line = [finite(each) for each in (xmin, end, top, top * (end / xmin) ** -alpha)]
    return (line[:2], line[2:]) if all(line) else ([], [])
