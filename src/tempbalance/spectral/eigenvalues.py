"""Matrices to eigenvalues: Gram matrices, precision and solvers.

For a matrix with sides n <= m the spectrum is the n eigenvalues of its n x n Gram matrix. On the CPU LAPACK reduces the
Gram matrix to tridiagonal form, in float32 where that is enough, and finds the eigenvalues of that form in float64.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tempbalance.errors import WeightError
from tempbalance.spectral.lapack import BLOCK, Lapack
from tempbalance.spectral.matrices import Part

Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

# A tail that spreads over less than this fraction is flat. A random matrix would have to be ten million times as long
# as wide for that; in an orthogonal one, as initialisations make it in float32, eigenvalues are equal to about 1e-6.
FLAT = 1e-3

_ERROR = 2.0  # of an eigenvalue, in units of eps x (value + mean + largest / 10): see docs/decisions/0002
_SMALL_SIDE = 128  # up to here float64 takes hardly longer than float32, and torch solves a batch faster than LAPACK
_LARGE_SIDE = 1024  # above, the MKL of torch solves in float64 faster than a reduction in one stage
_NOTHING = -(10**6)  # exponent of a job that is all zero
_SAFE_EXPONENT = 20  # a weight up to 2**20 or down to 2**-20 can be squared and summed as it is


@dataclass(frozen=True)
class Spectrum:
    """The pooled eigenvalues of one part, with bounds on their errors."""

    values: Tensor  # eigenvalues / 2**exponent, shape (n,), ascending, >= 0, float64, on the CPU
    exponent: int  # keeps weights of any magnitude from overflowing or vanishing when squared
    noise: float  # largest error of a value by arithmetic
    rounding: float  # spectral norm of the errors by storing the weight in its own precision
    errors: Array  # usual error of each value by arithmetic; `noise` bounds the worst case
    precise: bool  # whether the solve was in float64
    slices: Slices | None = None  # if values can be repaired

    @property
    def eigenvalues(self) -> Tensor:
        """Values in the units of the squared weight; infinite or zero where float64 ends."""
        return torch.from_numpy(ldexp(self.values.numpy(), self.exponent))

    def in_units(self, value: float) -> float:
        """Return a value in the units of the squared weight."""
        return float(ldexp(value, self.exponent))

    def from_units(self, eigenvalue: float) -> float:
        """Return the inverse of `in_units`."""
        return float(ldexp(eigenvalue, -self.exponent))

    @property
    def largest(self) -> float:
        """Largest value; 0 without values."""
        return float(self.values[-1]) if len(self.values) else 0.0

    def uncertainty(self, value: float) -> float:
        """Return the largest error of a value, by arithmetic and by storing the weight."""
        # (s + r)^2 - s^2, with s = sqrt(value) the singular value and r the perturbation's spectral norm
        return self.noise + self.rounding * (2 * math.sqrt(value) + self.rounding)

    def significant(self) -> Tensor:
        """Return the values that stand above their own uncertainty."""
        # s^2 = noise + r (2 s + r), solved for s
        threshold = (self.rounding + math.sqrt(2 * self.rounding**2 + self.noise)) ** 2
        return self.values[self.values > threshold]


@dataclass(frozen=True)
class Slices:
    """Where the values of a spectrum come from."""

    values: Array  # of each slice, ascending, in the spectrum's units, shape (num_slices, side)
    errors: Array  # of these values, flat
    places: IntArray  # of each value of the spectrum among these
    reductions: Sequence[Reduction]
    factor: float  # of the part


@dataclass(frozen=True)
class Reduction:
    """The Gram matrix of a matrix in tridiagonal form, reduced in float32."""

    matrix: Tensor
    values: Tensor  # eigenvalues of the tridiagonal form, in float64
    reflections: Tensor  # one a column, as LAPACK keeps them
    lines: Tensor  # the diagonal, the line beside it, factors of the reflections


def check_weight(weight: Tensor) -> None:
    """Refuse a weight that has no spectrum."""
    if not isinstance(weight, Tensor):
        raise TypeError(f"a weight must be a tensor, got {type(weight).__name__}")
    if hasattr(weight, "placements"):
        raise WeightError("must be whole, got a DTensor: sharded weights are not gathered")
    if weight.is_meta:
        raise WeightError("must have values, got one on the meta device: materialise the model first")
    if weight.layout != torch.strided or weight.is_quantized:
        raise WeightError(f"must be dense, got {'a quantized one' if weight.is_quantized else weight.layout}")
    if not weight.is_floating_point():
        raise WeightError(f"must be real and floating-point, got {weight.dtype}")


def num_solve_bytes(slices: Tensor, *, double: bool) -> int:
    """Return the memory of a solve: the weight, a copy in its precision, a Gram matrix and LAPACK's copy of it."""
    dtype = _precision(slices, double)
    num_copied = 0 if slices.dtype == dtype and slices.is_contiguous() else slices.numel()
    num_slices, side = slices.shape[0], min(slices.shape[1:])
    return slices.nbytes + dtype.itemsize * (num_copied + 2 * num_slices * side**2)


def _precision(slices: Tensor, double: bool) -> torch.dtype:
    is_small = min(slices.shape[1:]) <= _SMALL_SIDE
    return torch.float64 if double or is_small or slices.dtype == torch.float64 else torch.float32


@torch.no_grad()
def gram_matrices(slices: Tensor, *, double: bool = False, lapack: Lapack | None = None) -> tuple[Tensor, int]:
    """Return the smaller Gram matrix of each slice over a power of two near the largest squared entry; its exponent.

    ``lapack`` computes the half up to the diagonal and leaves the other undefined; without it torch computes both.
    """
    slices = slices.contiguous().to(_precision(slices, double))
    largest = max(abs(float(end)) for end in torch.aminmax(slices))  # a sixth of an infinity norm's time
    if not math.isfinite(largest):
        raise WeightError("must be finite, has an entry that is NaN or infinite")
    exponent = math.frexp(largest)[1]
    if abs(exponent) <= _SAFE_EXPONENT:
        unit = 2.0 ** (-2 * exponent)
    else:  # in two steps, because 2**-exponent is infinite for a denormal weight
        half, unit = exponent // 2, 1.0
        slices = (slices * 2.0**-half).mul_(2.0 ** (half - exponent))
    if lapack is None or min(slices.shape[1:]) <= _SMALL_SIDE:
        wide = slices if slices.shape[1] <= slices.shape[2] else slices.mT
        with torch.autocast(slices.device.type, enabled=False):
            gram = (wide @ wide.mT).mul_(unit)
    else:
        gram = _half_product(slices, unit, lapack)
    return gram, 2 * exponent if largest > 0 else _NOTHING


def _half_product(slices: Tensor, unit: float, lapack: Lapack) -> Tensor:
    """Return the smaller Gram matrix of each slice times the unit, up to the diagonal."""
    num_slices, rows, columns = slices.shape
    # Fortran sees the transpose of each matrix, and takes the half below the diagonal for that above it
    transposed, side, length = (b"T", rows, columns) if rows <= columns else (b"N", columns, rows)
    number = ctypes.c_float if slices.dtype == torch.float32 else ctypes.c_double
    one, zero = ctypes.byref(number(unit)), ctypes.byref(number(0.0))
    gram = slices.new_empty(num_slices, side, side)
    for matrix, result in zip(slices, gram, strict=True):
        lapack.syrk[slices.dtype](b"U", transposed, side, length, one, matrix, columns, zero, result, side)
    return gram


def solve_on_cpu(slices: Tensor, *, double: bool, lapack: Lapack | None) -> Solved:
    """Return the eigenvalues of the Gram matrices of slices on the CPU by the fastest solver."""
    gram, exponent = gram_matrices(slices, double=double, lapack=lapack)
    num_slices, side, _ = gram.shape
    if lapack is None or side <= _SMALL_SIDE or (gram.dtype == torch.float64 and side > _LARGE_SIDE):
        try:
            values: Tensor = torch.linalg.eigvalsh(gram.mT, UPLO="U")  # LAPACK takes the matrix transposed
        except RuntimeError as err:  # torch.linalg.LinAlgError
            raise WeightError(f"has no eigenvalues that LAPACK can find: {err}") from err
        return Solved(values.flatten().double(), exponent, gram.dtype)
    info = ctypes.c_int()
    lines = gram.new_empty(num_slices, 3, side)
    work = gram.new_empty(BLOCK * side)
    for matrix, of_matrix in zip(gram, lines, strict=True):
        lapack.sytrd[gram.dtype](b"U", side, matrix, side, *of_matrix, work, len(work), ctypes.byref(info))
    values, beside = lines[:, 0].double(), lines[:, 1].double()
    for i in range(num_slices):
        lapack.sterf(side, values[i], beside[i], ctypes.byref(info))
        if info.value:
            raise WeightError(f"has no eigenvalues that LAPACK can find: {info.value} did not converge")
    reductions = [Reduction(*each) for each in zip(slices, values, gram, lines, strict=True)]
    return Solved(values.flatten(), exponent, gram.dtype, reductions if gram.dtype == torch.float32 else [])


@torch.no_grad()
def gram_matrices_on_device(slices: Tensor) -> tuple[Tensor, Tensor]:
    """Return the Gram matrices in float32 and the largest magnitude, without waiting for the device.

    A part with an entry that is not finite gets zeros, so that it does not spoil the others in its batch; the largest
    magnitude shows it.
    """
    slices = slices.float()
    if slices.shape[1] > slices.shape[2]:
        slices = slices.mT
    largest = slices.abs().amax()
    is_finite = largest.isfinite()
    exponent = torch.where(is_finite, largest, 0).frexp().exponent
    half = exponent.div(2, rounding_mode="floor")
    slices = slices * (-half).float().exp2() * (half - exponent).float().exp2()  # see `gram_matrices`
    with torch.autocast(slices.device.type, enabled=False):
        gram = slices @ slices.mT
    return torch.where(is_finite, gram, 0), largest


@torch.no_grad()
def solve_on_device(grams: Sequence[Tensor], largest: Sequence[Tensor]) -> list[Solved | WeightError]:
    """Solve Gram matrices of one side in one call, and copy the results to the host in another.

    The solver's error grows with the magnitude of what it is given: half the mean is taken off the diagonal, which is
    closer than 0 to most eigenvalues, and added to them on the host in float64.
    """
    gram = torch.cat(list(grams))
    diagonal = gram.diagonal(dim1=-2, dim2=-1)
    origin = diagonal.mean(dim=-1, keepdim=True) / 2
    diagonal -= origin
    magnitudes = torch.cat([each.expand(len(matrices), 1) for each, matrices in zip(largest, grams, strict=True)])
    try:
        packed = to_host(torch.cat([torch.linalg.eigvalsh(gram), origin, magnitudes], dim=1))
    except RuntimeError as err:  # torch.linalg.LinAlgError
        return [WeightError(f"has no eigenvalues that the device can find: {err}")] * len(grams)
    found: list[Solved | WeightError] = []
    for rows in np.split(packed, np.cumsum([len(matrices) for matrices in grams])[:-1]):
        magnitude = float(rows[0, -1])
        if math.isfinite(magnitude):
            exponent = 2 * math.frexp(magnitude)[1] if magnitude > 0 else _NOTHING
            values = torch.from_numpy((rows[:, :-2] + rows[:, -2:-1]).flatten())
            found.append(Solved(values, exponent, torch.float32))
        else:
            found.append(WeightError("must be finite, has an entry that is NaN or infinite"))
    return found


def to_host(tensor: Tensor) -> Array:
    """Copy a tensor to the CPU, which waits for the device."""
    return tensor.cpu().numpy().astype(np.float64)


@dataclass(frozen=True)
class Solved:
    """Eigenvalues of one job, divided by ``2**exponent``, in float64 on the CPU, and the precision of the solve."""

    values: Tensor
    exponent: int
    dtype: torch.dtype
    reductions: Sequence[Reduction] = ()


def pool_eigenvalues(part: Part, gathered: Sequence[Solved | WeightError]) -> Spectrum | WeightError:
    """Return the sorted eigenvalues of all jobs of a part in one unit, or the error of a job."""
    solved = []
    for each in gathered:
        if isinstance(each, WeightError):
            return each
        solved.append(each)
    if not solved:
        return Spectrum(torch.zeros(0, dtype=torch.float64, device="cpu"), 0, 0.0, 0.0, np.zeros(0), precise=True)
    eps, exponent = torch.finfo(solved[0].dtype).eps, max(each.exponent for each in solved)
    scaled = [ldexp(each.values.numpy(), each.exponent - exponent) for each in solved]
    pooled = np.maximum(np.concatenate(scaled) * part.factor, 0.0)
    places = np.argsort(pooled, kind="stable")
    values = pooled[places]
    _, rows, columns = part.slices.shape
    root_mean_square = math.sqrt(values.sum() / part.slices.numel())
    reductions = [reduction for each in solved for reduction in each.reductions]
    errors = _ERROR * eps * (pooled + values.mean() + values[-1] / 10)
    in_slices = pooled.reshape(len(reductions) or 1, -1)
    return Spectrum(
        torch.from_numpy(values),
        exponent,
        # as rank tests bound the error of a symmetric solve
        noise=eps * max(rows, columns) * float(values[-1]),
        # an entry is off by up to eps/2 of itself, in the mean by half of that; a matrix of independent errors of
        # size e has a spectral norm of e (sqrt(rows) + sqrt(columns))
        rounding=torch.finfo(part.slices.dtype).eps / 4 * root_mean_square * (math.sqrt(rows) + math.sqrt(columns)),
        errors=errors[places],
        precise=solved[0].dtype == torch.float64,
        slices=Slices(in_slices, errors, places, reductions, part.factor) if reductions else None,
    )


def ldexp(values: Any, exponent: int) -> Any:
    """Return ``values * 2**exponent`` where ``2**exponent`` itself may be out of range."""
    with np.errstate(over="ignore", under="ignore"):
        return np.ldexp(values, exponent)
