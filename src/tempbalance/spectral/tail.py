"""A spectrum to the exponent of its tail.

The tail density is modelled as p(x) ~ x^-alpha for x >= xmin. The fits differ in how they choose xmin.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
from torch import Tensor

from tempbalance.errors import TailError, check_fraction

TailName = Literal["median", "median_published", "goodness_of_fit", "peak"]
FIXED_TAILS = ("median", "median_published")  # whose length does not depend on the values
Array = npt.NDArray[np.float64]

_NUM_BINS = 100  # of the log-binned density, as in the authors' code
_NUM_PROBES = 16  # points at which a candidate's distance is bounded from below
_BLOCK_SIZE = 2**19  # numbers held at once while distances are computed, 4 MB a temporary
_KNOWN = 0.1  # relative error up to which an eigenvalue can be a threshold
_FIRST_BLOCK = 4  # candidates computed before others are ruled out


@dataclass(frozen=True)
class TailFit:
    """A power law fitted to the top of a spectrum.

    Attributes:
        alpha: Exponent of the tail density.
        xmin: Threshold from which the power law holds.
        ks: Kolmogorov-Smirnov distance between the tail and the power law, 0 to 1.
        num_tail: How many values the fit rests on.
    """

    alpha: float
    xmin: float
    ks: float
    num_tail: int

    @property
    def alpha_stderr(self) -> float:
        """(alpha - 1) / sqrt(num_tail): for independent values, which eigenvalues are not."""
        return (self.alpha - 1) / math.sqrt(self.num_tail)


TailFunction = Callable[[Tensor], TailFit]


def fit_tail(spectrum: Tensor, *, tail: TailName | TailFunction = "median", tail_fraction: float = 0.5) -> TailFit:
    """Fit the tail of a spectrum.

    Args:
        spectrum: Eigenvalues, shape ``(n,)``, ascending, >= 0.
        tail: ``median`` takes a fixed fraction of the values (Eq. 3); ``median_published`` does too, and counts the
            threshold among them, as the paper's published code does; ``goodness_of_fit`` takes the threshold whose
            power law is nearest to the values above it; ``peak`` the same among thresholds near the densest place; a
            function is called with the spectrum.
        tail_fraction: With a median, how many of the values are the tail, between 0 and 1; the paper uses 1/2.

    Raises:
        ValueError: If an option is out of range, or the spectrum not one-dimensional and ascending.
        TailError: If the tail has no exponent: too short, flat, or its threshold zero.

    Example:
        >>> import torch
        >>> fit_tail(torch.tensor([1.0, 1.0, 2.0, 4.0])).num_tail
        2
    """
    check_tail(tail, tail_fraction)
    if callable(tail):
        return tail(spectrum)
    if tail == "median":
        # an n x fraction that is a whole number but for rounding counts as that number
        return fit_hill(spectrum, num_tail=math.floor(len(spectrum) * tail_fraction + 1e-9))
    if tail == "median_published":
        position = math.floor(len(spectrum) * (1 - tail_fraction) + 1e-9)  # of the threshold, in ascending order
        return fit_hill(spectrum, num_tail=len(spectrum) - position, counts_threshold=True)
    return fit_goodness_of_fit(spectrum) if tail == "goodness_of_fit" else fit_peak(spectrum)


def check_tail(tail: str | Callable[..., object], tail_fraction: Any) -> None:
    """Refuse an unknown name, and a fraction that is not between 0 and 1."""
    if not callable(tail) and tail not in get_args(TailName):
        raise ValueError(f"tail must be one of {', '.join(get_args(TailName))} or a callable, got {tail!r}")
    check_fraction("tail_fraction", tail_fraction)


def fit_hill(spectrum: Tensor, *, num_tail: int, counts_threshold: bool = False) -> TailFit:
    """Fit the ``num_tail`` largest values of a spectrum, 2 to n - 1 of them, with the Hill estimator.

    The threshold is the next value below them; with ``counts_threshold`` it is the smallest of them.
    """
    if not 2 <= num_tail < len(spectrum):
        raise TailError(f"a tail of {num_tail} of {len(spectrum)} eigenvalues: it takes at least 2 and one below them")
    values = _as_array(spectrum)
    tail = values[-num_tail:]
    xmin = tail[0] if counts_threshold else values[-num_tail - 1]
    if xmin <= 0:
        raise TailError("the threshold is zero: rank too low")
    # Eq. 3: alpha = 1 + k / sum_i log(x_i / xmin), x_i the k largest, xmin the next one down
    with np.errstate(over="ignore"):
        log_ratios = np.log(tail / xmin)
    log_sum = log_ratios.sum()
    if log_sum <= 0:
        raise TailError(f"all {num_tail} tail values equal the threshold")
    if not np.isfinite(log_sum):
        raise TailError("the tail values are too far above the threshold for float64")
    alpha = 1 + num_tail / log_sum
    return TailFit(float(alpha), float(xmin), _distance(log_ratios, alpha), num_tail)


def fit_goodness_of_fit(spectrum: Tensor, *, errors: Array | None = None) -> TailFit:
    """Fit with the threshold that minimises the Kolmogorov-Smirnov distance, over all positive values.

    The threshold is one of the values and counts as part of the tail, as in the maximum-likelihood form.
    If the errors of the values may change the threshold, a TailError is raised.
    """
    values, relative = _positive(spectrum, errors)
    first = int(np.argmax(relative < _KNOWN))
    fit = _search(values, np.arange(first, len(values) - 1), relative)
    if first > 0:
        # a threshold among those below keeps at least this distance from the law at the largest value
        logs = np.log(values[first:] / values[first])
        if math.exp(-logs[-1] * len(spectrum) / logs.sum()) - 1 / len(logs) <= fit.ks + _KNOWN / 10:
            raise TailError("the threshold may be an eigenvalue that is rounding noise")
    return fit


def fit_peak(spectrum: Tensor, *, errors: Array | None = None) -> TailFit:
    """Fit as `fit_goodness_of_fit`, with thresholds near the peak of the log-binned density only.

    Candidates lie within [0.95, 1.5] x the left edge of the fullest of 100 bins, as in the authors' code.
    """
    values, relative = _positive(spectrum, errors)
    logs = np.log10(values)
    if logs[-1] - logs[0] < 1e-12:
        raise TailError(f"all {len(values)} eigenvalues are equal but for rounding: their density has no peak")
    counts, edges = np.histogram(logs, _NUM_BINS)
    best = int(counts.argmax())
    peak = 10 ** edges[best]
    # a bin's edge moves with the smallest and with the largest value
    share = np.linspace(0, 1, _NUM_BINS + 1)
    shifts = (1 - share) * relative[0] + share * relative[-1]
    if errors is not None and not _is_fullest(best, logs, relative, edges, shifts / math.log(10)):
        raise TailError("the peak of the density depends on rounding")
    below, above = 1 - relative[:-1] - shifts[best], 1 + relative[:-1] + shifts[best]
    near = (values[:-1] * above >= 0.95 * peak) & (values[:-1] * below <= 1.5 * peak)
    surely = (values[:-1] * below >= 0.95 * peak) & (values[:-1] * above <= 1.5 * peak)
    if not near.any():
        raise TailError(f"no eigenvalue lies within [0.95, 1.5] x the density's peak at {peak:.3g}")
    fit = _search(values, np.flatnonzero(near), relative)
    if not surely[len(values) - fit.num_tail]:
        raise TailError("whether the threshold is near the peak depends on rounding")
    return fit


def _is_fullest(best: int, logs: Array, relative: Array, edges: Array, shifts: Array) -> bool:
    """Return whether a bin is the first of the fullest ones, however values and edges move within their errors."""
    with np.errstate(divide="ignore", invalid="ignore"):
        lows, highs = logs + np.log10(np.maximum(1 - relative, 0)), logs + np.log10(1 + relative)
    lows, highs = np.sort(lows), np.sort(highs)  # a repaired value is more certain than those above it
    lefts, rights = edges[:-1], edges[1:]
    most = lows.searchsorted(rights + shifts[1:], "right") - highs.searchsorted(lefts - shifts[:-1], "left")
    least = highs.searchsorted(rights - shifts[1:], "left") - lows.searchsorted(lefts + shifts[:-1], "right")
    return bool((most[:best] < least[best]).all() and (most[best + 1 :] <= least[best]).all())


def _as_array(spectrum: Any) -> Array:
    if isinstance(spectrum, Tensor):
        spectrum = spectrum.detach().cpu().double().numpy()
    values = np.asarray(spectrum, dtype=np.float64)
    if not np.isfinite(values).all():
        raise TailError("eigenvalues must be finite, got NaN or infinity")
    if values.ndim != 1 or (np.diff(values) < 0).any():
        raise ValueError(f"spectrum must be one-dimensional and ascending, got one of shape {values.shape}")
    return values


def _positive(spectrum: Tensor, errors: Array | None) -> tuple[Array, Array]:
    """Return the positive values and their relative errors."""
    values = _as_array(spectrum)
    values = values[values > 0]
    values = values[values / values[-1:] > 0]  # without those whose ratio to the largest underflows
    if len(values) < 2 or values[0] == values[-1]:
        raise TailError(f"{len(values)} positive eigenvalues, not two different ones: alpha is undefined")
    return values, np.zeros(len(values)) if errors is None else errors[-len(values) :] / values


def _distance(log_ratios: Array, alpha: float) -> float:
    """Return the Kolmogorov-Smirnov distance of a tail with ascending log(x_i / xmin) from its power law."""
    model = -np.expm1(log_ratios * (1 - alpha))
    return float(np.abs(model - np.arange(len(log_ratios)) / len(log_ratios)).max())


def _search(values: Array, candidates: npt.NDArray[np.int64], relative: Array) -> TailFit:
    """Fit with the candidate threshold of the smallest distance; of equal ones with the lowest threshold.

    A candidate's distance is the largest of its deviations, so a few of them bound it from below. Only candidates whose
    bound does not exceed a distance already found are computed in full.
    """
    # of equal values the first is the threshold: the tail is all that is not below it
    candidates = candidates[(candidates == 0) | (values[candidates] > values[candidates - 1])]
    logs = np.log(values / values[-1])
    num_tails = len(values) - candidates
    log_sums = np.cumsum(logs[::-1])[::-1][candidates] - num_tails * logs[candidates]
    candidates, num_tails, log_sums = (each[log_sums > 0] for each in (candidates, num_tails, log_sums))
    if len(candidates) == 0:
        raise TailError("all eigenvalues that could be the threshold are equal to the largest: alpha is undefined")
    slopes = num_tails / log_sums  # alpha - 1
    # with u = slope log(x / xmin), 1 - exp(-u) moves by exp(-u) (slope d log(x / xmin) + u d slope / slope)
    doubts = (2 + 2 / math.e) * slopes * np.maximum.accumulate(relative[::-1])[::-1][candidates]

    def deviations(rows: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64]) -> Array:
        start, num_tail = candidates[rows, None], num_tails[rows, None]
        ratios = logs[np.minimum(start + offsets, len(logs) - 1)] - logs[start]
        model = -np.expm1(ratios * -slopes[rows, None])
        # beyond the end a row repeats its last value
        return np.asarray(np.abs(model - np.minimum(offsets, num_tail - 1) / num_tail).max(axis=1))

    every = np.arange(len(candidates))
    probes = (num_tails[:, None] - 1) * np.linspace(0, 1, _NUM_PROBES)
    blocks = np.array_split(every, 1 + len(every) * _NUM_PROBES // _BLOCK_SIZE)
    bounds = np.concatenate([deviations(rows, probes[rows].astype(np.int64)) for rows in blocks])
    distances = np.full(len(candidates), np.inf)
    order = np.argsort(bounds - doubts, kind="stable")
    block = max(1, _BLOCK_SIZE // len(values))
    first, size = 0, min(block, _FIRST_BLOCK)
    while first < len(order):  # the first few rule out most others
        rows = np.sort(order[first : first + size])
        best = int(distances.argmin())
        rows = rows[bounds[rows] - doubts[rows] <= distances[best] + doubts[best] + 1e-12]
        if len(rows) == 0:
            break
        distances[rows] = deviations(rows, np.arange(num_tails[rows].max())[None, :])
        first, size = first + size, block
    best = int(distances.argmin())
    if (np.delete(distances - doubts, best) <= distances[best] + doubts[best]).any() and relative.any():
        raise TailError("the threshold depends on the rounding of the eigenvalues")
    xmin = values[candidates[best]]
    return TailFit(float(1 + slopes[best]), float(xmin), float(distances[best]), int(num_tails[best]))
