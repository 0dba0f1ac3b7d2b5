"""A spectrum of float32 to the fit that float64 would give.

Alpha depends on one eigenvalue much more than on the others: the threshold, whose error counts as often as the tail has
values. `peak` depends on the smallest one too. These few are computed again from their eigenvectors, in float64. A
TailError says that the fit may still differ: then the layer has to be solved in float64.
"""

from __future__ import annotations

import ctypes
from dataclasses import replace

import numpy as np
import torch

from tempbalance.errors import TailError
from tempbalance.spectral.eigenvalues import Array, IntArray, Reduction, Spectrum, ldexp
from tempbalance.spectral.lapack import BLOCK, load_lapack
from tempbalance.spectral.tail import FIXED_TAILS, TailFit, TailName, fit_goodness_of_fit, fit_hill, fit_peak, fit_tail

_TOLERANCE = 1e-6  # of alpha, relative
_MEAN = 0.15  # error of the mean of a tail over the mean of its values' errors: see docs/decisions/0002
_MOST = 128  # eigenvalues to repair; more take as long as a solve in float64
_NUM_SMALLEST = 16
_SMALL_ERROR = 1e-5  # of the smallest eigenvalue, relative: less does not move the bins of `peak` past an eigenvalue
_PIECE = 64  # rows of a matrix that are converted to float64 at a time


def fit_spectrum(spectrum: Spectrum, *, tail: TailName, tail_fraction: float, min_eigenvalues: int) -> TailFit:
    """Return the fit of a spectrum in its own units, with alpha as in float64 to a millionth."""
    if tail in FIXED_TAILS:
        fit = fit_tail(spectrum.values, tail=tail, tail_fraction=tail_fraction)
    else:
        significant = spectrum.significant()
        if len(significant) < min_eigenvalues:
            num = len(spectrum.values)
            raise TailError(f"rank too low: {len(significant)} of {num} eigenvalues exceed rounding noise")
        if spectrum.precise:
            return fit_tail(significant, tail=tail)
        if tail == "peak":
            spectrum = _repair_smallest(spectrum)
        search = fit_peak if tail == "peak" else fit_goodness_of_fit
        fit = search(spectrum.values, errors=spectrum.errors)
    for is_repaired in (False, True):
        values, relative = spectrum.values.numpy(), spectrum.errors / spectrum.values.numpy().clip(min=1e-300)
        at = len(values) - fit.num_tail - (tail == "median")  # of the threshold
        # alpha - 1 = k / sum_i log(x_i / xmin): the errors of the x_i cancel for the most part, that of xmin adds up
        weight = (fit.alpha - 1) ** 2 / fit.alpha
        by_tail = weight * _MEAN * float(relative[-fit.num_tail :].mean())
        if spectrum.precise or max(weight * relative[at], by_tail) <= _TOLERANCE:
            return fit
        # the gap that leaves a quarter of the tolerance to the error of the threshold
        width = 8 * weight * relative[at] * spectrum.errors[at] / _TOLERANCE
        first, last = values.searchsorted([values[at] - width, values[at] + width])
        chosen = np.arange(first, len(values) if by_tail > _TOLERANCE else max(last, at + 1))
        if is_repaired or len(chosen) > _MOST:
            break
        spectrum = repair(spectrum, chosen)
        fit = fit_hill(spectrum.values, num_tail=fit.num_tail, counts_threshold=tail != "median")
    raise TailError("alpha depends on the rounding of too many eigenvalues")


def _repair_smallest(spectrum: Spectrum) -> Spectrum:
    """Repair the smallest eigenvalue, with others next to it in every slice that may have it."""
    values, errors = spectrum.values.numpy(), spectrum.errors
    if spectrum.slices is not None and errors[0] > _SMALL_ERROR * values[0]:
        of_slice = spectrum.slices.places // spectrum.slices.values.shape[1]
        found, firsts = np.unique(of_slice, return_index=True)
        may_have_it = found[values[firsts] <= values[0] + 2 * errors[0]]
        chosen = [np.flatnonzero(of_slice == each)[:_NUM_SMALLEST] for each in may_have_it]
        spectrum = repair(spectrum, np.sort(np.concatenate(chosen)))
    in_double = replace(spectrum, noise=spectrum.noise * np.finfo(np.float64).eps / np.finfo(np.float32).eps)
    if len(in_double.significant()) < len(values):
        raise TailError("the smallest eigenvalue is rounding noise")
    return spectrum


def repair(spectrum: Spectrum, chosen: IntArray) -> Spectrum:
    """Compute the values at the chosen indices, which are neighbours in each slice, from eigenvectors in float64.

    A value that was off by e is then off by 2 e^2 / gap at most: the gap is that to the other values of its slice.
    """
    slices = spectrum.slices
    if slices is None:
        raise TailError("its eigenvectors are not known")
    values, errors = spectrum.values.numpy().copy(), spectrum.errors.copy()
    of_slice, within = np.divmod(slices.places[chosen], slices.values.shape[1])
    for index in np.unique(of_slice):
        here, first = chosen[of_slice == index], int(within[of_slice == index].min())
        if within[of_slice == index].max() - first >= len(here):  # an earlier repair has changed their order
            raise TailError("its eigenvalues are closer to each other than their errors")
        found = _ritz_values(slices.reductions[index], first, len(here))
        values[here] = ldexp(found * slices.factor, -spectrum.exponent)
        ends = np.concatenate([[-np.inf], slices.values[index], [np.inf]])[[first, first + 1 + len(here)]]
        gaps = np.abs(values[here, None] - ends).min(axis=1)
        before = slices.errors[slices.places[here]]
        errors[here] = np.minimum(before, 2 * before**2 / np.maximum(gaps, before))
    if (np.abs(values - spectrum.values.numpy()) > spectrum.noise).any():
        raise TailError("its eigenvectors are not those of its eigenvalues")
    order = np.argsort(values, kind="stable")
    return replace(
        spectrum,
        values=torch.from_numpy(values[order]),
        errors=errors[order],
        slices=replace(slices, places=slices.places[order]),
    )


@torch.no_grad()
def _ritz_values(reduction: Reduction, first: int, num: int) -> Array:
    """Return eigenvalues of M M' from ``first`` on: those of V' M M' V, where V has the eigenvectors of the reduction.

    Their errors are the squares of those of the eigenvectors.
    """
    lapack, side = load_lapack(), len(reduction.values)
    assert lapack is not None
    diagonal, beside = reduction.lines[:2].double()
    vectors, work = diagonal.new_empty(num, side), diagonal.new_empty(5 * side)
    one_block, integers = torch.ones(side, dtype=torch.int32), torch.empty(side + num, dtype=torch.int32)
    info = ctypes.c_int()
    lapack.stein(
        *(side, diagonal, beside, num, reduction.values[first:], one_block, one_block * side),
        *(vectors, side, work, integers, integers[side:], ctypes.byref(info)),
    )
    if info.value or not vectors.isfinite().all():  # as in a matrix of zeros
        raise TailError("its eigenvectors cannot be found")
    rotated, work = vectors.float(), reduction.lines.new_empty(BLOCK * (side + 65))
    lapack.ormtr(
        *(b"L", b"U", b"N", side, num, reduction.reflections, side, reduction.lines[2]),
        *(rotated, side, work, len(work), ctypes.byref(info)),
    )
    basis, product = torch.linalg.qr(rotated.double().mT).Q, vectors.new_zeros(num, num)
    rows, columns = reduction.matrix.shape
    tall = reduction.matrix if rows > columns else reduction.matrix.mT
    for piece in torch.split(tall, _PIECE):  # all of it in float64 would take twice its memory
        projected = piece.double() @ basis
        product.addmm_(projected.mT, projected)
    return np.asarray(torch.linalg.eigvalsh(product))
