"""Slow, literal formulas to compare the fast code with, and the spectra to compare them on."""

import itertools
import math

import numpy as np
import torch
from torch import Tensor


def convolution_slices(weight: Tensor, groups: int = 1) -> list[Tensor]:
    """One matrix per kernel position and group, cut out one at a time."""
    size = weight.shape[0] // groups
    return [
        weight[(slice(group * size, (group + 1) * size), slice(None), *position)]
        for position in itertools.product(*map(range, weight.shape[2:]))
        for group in range(groups)
    ]


def svd_spectrum(weight: Tensor, groups: int = 1) -> np.ndarray:
    """Squared singular values in float64; those of a convolution's slices halved and pooled."""
    slices = [weight] if weight.dim() == 2 else convolution_slices(weight, groups)
    factor = 1.0 if weight.dim() == 2 else 0.5
    return np.sort(
        np.concatenate([factor * np.linalg.svd(each.double().numpy(), compute_uv=False) ** 2 for each in slices])
    )


def hill_alpha(values: np.ndarray, num_tail: int) -> float:
    """Eq. 3: alpha = 1 + k / sum_{i=1}^{k} ln(x_{n-i+1} / x_{n-k}), x_1 <= ... <= x_n."""
    n, k = len(values), num_tail

    def x(i: int) -> float:
        return float(values[i - 1])

    return 1 + k / sum(math.log(x(n - i + 1) / x(n - k)) for i in range(1, k + 1))


def likelihood_alpha(tail: np.ndarray) -> float:
    """The maximum-likelihood form, whose threshold is the smallest of the values and counts as one of them."""
    return 1 + len(tail) / sum(math.log(x / tail[0]) for x in tail.tolist())


def ks_distance(tail: np.ndarray, xmin: float, alpha: float) -> float:
    """max_i |P(X < x_i) - i / k|, i = 0, ..., k - 1 counting the values that stand before x_i."""
    return max(abs(1 - (x / xmin) ** (1 - alpha) - i / len(tail)) for i, x in enumerate(tail.tolist()))


def density_peak(values: np.ndarray) -> float:
    """The lower edge of the fullest of 100 bins of log10 of the values, the lowest such bin."""
    logs = [math.log10(x) for x in values.tolist()]
    edges = np.linspace(min(logs), max(logs), 101).tolist()
    counts = [sum(low <= each < high for each in logs) for low, high in itertools.pairwise(edges)]
    counts[-1] += sum(each == edges[-1] for each in logs)
    return 10 ** edges[counts.index(max(counts))]


def search(values: np.ndarray, low: float = 0.0, high: float = math.inf) -> tuple[float, float, float, int]:
    """Alpha, xmin, KS distance and tail length at the threshold in [low, high] with the smallest distance."""
    best = (math.nan, math.nan, math.inf, 0)
    for xmin in sorted(set(values.tolist())):
        tail = values[values >= xmin]
        if not low <= xmin <= high or tail[-1] == xmin:
            continue
        alpha = likelihood_alpha(tail)
        ks = ks_distance(tail, xmin, alpha)
        if ks < best[2]:
            best = (alpha, xmin, ks, len(tail))
    return best


def search_peak(values: np.ndarray) -> tuple[float, float, float, int]:
    """As `search`, among thresholds within [0.95, 1.5] x the peak of the density."""
    peak = density_peak(values)
    return search(values, 0.95 * peak, 1.5 * peak)


KINDS = ("pareto", "lognormal", "marchenko_pastur", "uniform", "exponential", "outliers", "ties", "two_clusters")


def random_spectrum(kind: str, size: int, seed: int) -> np.ndarray:
    """Positive values, ascending, of one of `KINDS`."""
    state = np.random.RandomState(seed)
    if kind == "pareto":
        values = state.pareto(state.uniform(0.5, 4), size) + 1
    elif kind == "lognormal":
        values = state.lognormal(0, state.uniform(0.3, 2), size)
    elif kind == "marchenko_pastur":
        values = np.linalg.eigvalsh(np.cov(state.standard_normal((size, 2 * size))))
    elif kind == "uniform":
        values = state.uniform(0.1, 1, size)
    elif kind == "exponential":
        values = state.exponential(3, size)
    elif kind == "outliers":
        values = np.concatenate([state.uniform(0.5, 1.5, size - 2), state.uniform(20, 200, 2)])
    elif kind == "ties":
        values = np.ceil(state.pareto(1.2, size) * 3) + 1
    else:
        values = np.concatenate([state.lognormal(-3, 0.4, size // 2), state.lognormal(3, 0.4, size - size // 2)])
    return np.sort(values)


def to_tensor(values: np.ndarray) -> Tensor:
    """The values as the spectrum that the fits take."""
    return torch.from_numpy(np.array(values, dtype=np.float64))
