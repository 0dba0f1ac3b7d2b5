"""Tail fits of random matrices of a shape, because alpha depends on the shape as much as on training.

The eigenvalues of a random n x m matrix follow the Marchenko-Pastur law, x = (sqrt(m) - sqrt(n))^2 +
4 sqrt(n m) sin^2(t / 2) for an angle t of 0 to pi, in units of the entries' mean square. A matrix of finite size has

    n F(t) + 1/4 - t / (2 pi),   pi F(t) = t + sin(t) / r - (1 - r^2) / r^2 atan2(r sin t, 1 - r cos t),   r^2 = n / m

of them below, in the mean and but for terms of order 1 / n: the second term is the one that real matrices have.

The medians, and any function, are fitted to the quantiles of that; the medians of sides below 12 are averaged over
simulated matrices. The searches scatter from one random matrix to the next, so the geometric mean over a fixed set of
random spectra is taken. docs/decisions/0014 says how exact each is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from statistics import fmean

import numpy as np
import torch
from torch import Tensor

from tempbalance.errors import ScoreError
from tempbalance.spectral.eigenvalues import gram_matrices
from tempbalance.spectral.lapack import load_lapack
from tempbalance.spectral.matrices import Part
from tempbalance.spectral.tail import FIXED_TAILS, Array, TailFit, TailFunction, TailName, fit_tail

_SMALL_SIDE = 12  # below it the law is off by 1 to 20 %, and simulating costs little
_NUM_ANGLES = 2**16  # at which the law is tabulated: quantiles to 1e-6
_SMALL_SIZE = 2**17  # entries of the Gram matrices that are simulated below it: alpha to 0.4 %
_NUM_SPECTRA = 64
_LEAST_SPECTRA = 8
_NUM_DRAWN = 2**18  # eigenvalues in all spectra together, beyond which there are fewer spectra
_NUM_POOLED = 2**16  # largest number of pooled eigenvalues; more slices are treated as this many
_SEED = 0
_PER_WAVE = 16  # points at which a wave is computed, straight lines between them


def random_alpha(
    *,
    rows: int,
    columns: int,
    num_slices: int = 1,
    tail: TailName | TailFunction = "median",
    tail_fraction: float = 0.5,
) -> float:
    """Return the alpha of ``num_slices`` pooled random matrices, computed once; options as in `fit_tail`.

    A function is called with `random_eigenvalues`.
    """
    side, length = _sides(rows, columns, num_slices)
    return _alpha(side, length, num_slices, _Function(tail) if callable(tail) else tail, tail_fraction)


class _Function:
    """A tail function that equals itself alone, whatever it is."""

    def __init__(self, tail: TailFunction) -> None:
        self.tail = tail

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Function) and other.tail is self.tail

    def __hash__(self) -> int:
        return id(self.tail)


def random_eigenvalues(*, rows: int, columns: int, num_slices: int = 1) -> Tensor:
    """Return as many quantiles as ``num_slices`` pooled random matrices with entries of mean square 1 have eigenvalues.

    They are ascending, positive, in float64.
    """
    side, length = _sides(rows, columns, num_slices)
    positions = (np.arange(num_slices * side) + 0.5) / num_slices  # of 0 to side
    if side >= _SMALL_SIDE:
        return torch.from_numpy(_Law(side, length).values(positions))
    simulated = np.sort(_simulate(_SMALL_SIZE // side**2, side, length, np.random.default_rng(_SEED)), axis=None)
    return torch.from_numpy(np.quantile(simulated, positions / side))


def _sides(rows: int, columns: int, num_slices: int) -> tuple[int, int]:
    if min(rows, columns, num_slices) < 1:
        raise ValueError(f"rows, columns, num_slices must be at least 1, got {rows!r}, {columns!r}, {num_slices!r}")
    return min(rows, columns), max(rows, columns)


@lru_cache(maxsize=4096)
def _alpha(side: int, length: int, num_slices: int, tail: TailName | _Function, tail_fraction: float) -> float:
    num_slices = min(num_slices, max(1, _NUM_POOLED // side))
    if isinstance(tail, _Function) or (tail in FIXED_TAILS and side >= _SMALL_SIDE):
        spectrum = random_eigenvalues(rows=side, columns=length, num_slices=num_slices)
        function = tail.tail if isinstance(tail, _Function) else tail
        fit = fit_tail(spectrum, tail=function, tail_fraction=tail_fraction)
        if not isinstance(fit, TailFit) or not 0 < fit.alpha < math.inf:
            raise ScoreError(f"a tail function must return a TailFit with alpha > 0, got {fit!r} of random eigenvalues")
        return fit.alpha
    if tail in FIXED_TAILS:
        num_spectra = max(1, _SMALL_SIZE // (num_slices * side**2))
    else:
        num_spectra = max(_LEAST_SPECTRA, min(_NUM_SPECTRA, _NUM_DRAWN // (num_slices * side)))
    spectra = _draw_spectra(num_spectra, side, length, num_slices)
    fits = (fit_tail(each, tail=tail, tail_fraction=tail_fraction) for each in spectra)
    return math.exp(fmean(math.log(fit.alpha) for fit in fits))


def _draw_spectra(num_spectra: int, side: int, length: int, num_slices: int) -> Iterator[Tensor]:
    """Yield random spectra from a fixed seed; each pools the eigenvalues of new random matrices."""
    generator = np.random.default_rng(_SEED)
    law = _Law(side, length)
    for _ in range(num_spectra):
        is_small = side < _SMALL_SIDE
        values = _simulate(num_slices, side, length, generator) if is_small else law.draw(num_slices, generator)
        yield torch.from_numpy(np.sort(values, axis=None))


def _simulate(num_matrices: int, side: int, length: int, generator: np.random.Generator) -> Array:
    """Return the eigenvalues of Gaussian matrices, shape ``(num_matrices, side)``.

    Rotations make a Gaussian matrix bidiagonal, with squares that are independent and chi-squared (Dumitriu, Edelman
    2002). So the cost does not depend on the longer side.
    """
    diagonal = generator.chisquare(np.arange(length, length - side, -1), (num_matrices, side))
    below = generator.chisquare(np.arange(side - 1, 0, -1), (num_matrices, side - 1))
    gram = np.zeros((num_matrices, side, side))
    index = np.arange(side)
    gram[:, index, index] = diagonal
    gram[:, index[1:], index[1:]] += below
    gram[:, index[1:], index[:-1]] = np.sqrt(diagonal[:, :-1] * below)  # LAPACK does not look above the diagonal
    return np.asarray(np.linalg.eigvalsh(gram).clip(min=np.finfo(np.float64).tiny))


@dataclass(frozen=True)
class _Law:
    """Eigenvalues of a random matrix by their position among all, 0 to `side`."""

    side: int
    length: int

    @cached_property
    def _table(self) -> tuple[Array, Array]:
        """Number of eigenvalues below each angle, and the angles."""
        angles = np.linspace(0, math.pi, _NUM_ANGLES + 1)
        ratio = math.sqrt(self.side / self.length)
        turned = np.arctan2(ratio * np.sin(angles), 1 - ratio * np.cos(angles))
        law = angles + np.sin(angles) / ratio - (1 - ratio**2) / ratio**2 * turned
        num_below = self.side * law / math.pi + 0.25 - angles / (2 * math.pi)
        return np.maximum.accumulate(num_below), angles  # it dips by less than 1/4 at the ends

    def _angles(self, positions: Array) -> Array:
        within = np.clip(positions, 0.5, self.side - 0.5)
        angles = np.interp(within, *self._table)
        # the outer half of the first and of the last eigenvalue is spread evenly
        angles = np.where(positions < within, angles * positions / 0.5, angles)
        return np.where(positions > within, math.pi - (math.pi - angles) * (self.side - positions) / 0.5, angles)

    def values(self, positions: Array) -> Array:
        """Return the eigenvalues at positions; beyond the last eigenvalue the curve is mirrored."""
        inside = np.where(positions > self.side, 2 * self.side - positions, np.abs(positions))
        lowest = (math.sqrt(self.length) - math.sqrt(self.side)) ** 2
        width = 4 * math.sqrt(self.side * self.length)
        values = lowest + width * np.sin(self._angles(inside) / 2) ** 2
        return np.where(positions > self.side, 2 * (lowest + width) - values, values)

    def draw(self, num_matrices: int, generator: np.random.Generator) -> Array:
        """Return random spectra, shape ``(num_matrices, side)``, in time n log n.

        The number of eigenvalues below an angle fluctuates as sqrt(2) / pi x the sum over k of g_k sin(k t) / sqrt(k),
        with normal g_k (Johansson 1998), up to the k at which there is one eigenvalue to a half wave.
        """
        positions: Array = np.arange(self.side, dtype=np.float64) + 0.5
        angles = self._angles(positions)
        ratio = math.sqrt(self.side / self.length)
        # pi x the density of the law
        finest = 2 * self.side * np.sin(angles) ** 2 / (1 + ratio**2 - 2 * ratio * np.cos(angles))
        shifts = np.zeros((num_matrices, self.side))
        octave = 1
        while octave <= finest.max():
            waves = generator.standard_normal((num_matrices, octave)) / np.sqrt(np.arange(octave, 2 * octave))
            shifts += np.where(finest >= octave * math.sqrt(2), _sum_of_sines(waves, octave, angles), 0)
            octave *= 2
        return self.values(positions + math.sqrt(2) / math.pi * shifts)


def _sum_of_sines(waves: Array, first: int, angles: Array) -> Array:
    """Return the sum over j of ``waves[:, j] * sin((first + j) * angles)``, by a Fourier transform."""
    num_points = _PER_WAVE * (first + waves.shape[1])
    terms = np.zeros((len(waves), num_points // 2 + 1), dtype=np.complex128)
    terms[:, first : first + waves.shape[1]] = -0.5j * num_points * waves
    sums = np.fft.irfft(terms, num_points)
    places = angles * num_points / (2 * math.pi)
    before = places.astype(np.int64)  # at most half way around
    return np.asarray(sums[:, before] + (places - before) * (sums[:, before + 1] - sums[:, before]))


_RISK = 1e-3  # that a random weight has an eigenvalue beyond the edge
_BLOCK = 2**25  # entries shuffled together; more are shuffled in blocks taken at equal strides, to bound memory


def random_edge(mean_square: float, *, rows: int, columns: int, num_slices: int = 1) -> float:
    """Return a value that the largest eigenvalue of random matrices exceeds for one weight in a thousand.

    The Marchenko-Pastur law ends at v (sqrt(n) + sqrt(m))^2 for a large n x m matrix of independent entries of mean
    square v. In a matrix of finite size the largest eigenvalue fluctuates around that by the Tracy-Widom law, on the
    scale v (sqrt(n) + sqrt(m)) (1 / sqrt(n) + 1 / sqrt(m))^(1/3), which is allowed for.
    """
    root_n, root_m = math.sqrt(rows), math.sqrt(columns)
    fluctuation = (root_n + root_m) * math.pow(1 / root_n + 1 / root_m, 1 / 3)
    return mean_square * ((root_n + root_m) ** 2 + _tracy_widom_quantile(_RISK / num_slices) * fluctuation)


def _tracy_widom_quantile(risk: float) -> float:
    """Return the point that the Tracy-Widom law (beta = 1) exceeds with this risk, from its leading asymptotics."""
    # risk = exp(-2/3 s^(3/2)) / (4 sqrt(pi) s^(3/4)), solved for s by iteration
    point = 3.0
    for _ in range(30):
        point = math.pow(-1.5 * math.log(risk * 4 * math.sqrt(math.pi) * math.pow(point, 0.75)), 2 / 3)
    return point


def count_beyond_shuffled(part: Part, *, edge: float, seed: int) -> int:
    """Return how many eigenvalues of a part exceed an edge after its entries are shuffled among all matrices."""
    gram, exponent = gram_matrices(_shuffled(part.slices.cpu(), seed), lapack=load_lapack())
    bound = math.ldexp(edge / part.factor, -exponent)
    # bound x 1 - gram has a Cholesky factor if and only if no eigenvalue is beyond: a quarter of a solve's time
    gram.neg_().diagonal(dim1=1, dim2=2).add_(bound)
    beyond = torch.linalg.cholesky_ex(gram).info != 0
    return int((torch.linalg.eigvalsh(gram[beyond]) < 0).sum()) if beyond.any() else 0


def _shuffled(slices: Tensor, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    entries = slices.reshape(-1)
    num_blocks = -(-entries.numel() // _BLOCK)
    shuffled = torch.empty_like(entries)
    for start in range(num_blocks):
        block = entries[start::num_blocks]
        shuffled[start::num_blocks] = block[torch.randperm(len(block), generator=generator)]
    return shuffled.reshape(slices.shape)
