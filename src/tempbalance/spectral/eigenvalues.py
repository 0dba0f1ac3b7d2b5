"""Matrices to eigenvalues: exact, fast, on all cores, the same bits for any number of them.

For a matrix with sides n <= m the spectrum is the n eigenvalues of its n x n Gram matrix. Matrices are solved side by
side, each on one thread: at the sizes of layers two single-threaded solves beat one on two threads, and what a solve
returns does not depend on how many there are.
"""

from __future__ import annotations

import ctypes
import math
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tempbalance.errors import WeightError
from tempbalance.spectral.matrices import Part, cut_by_shape, cut_convolution

# float32 resolves an eigenvalue to a few 1e-7 of the largest one. A threshold or a spread below this fraction of the
# largest, times alpha - 1 where that is above 1, is worked out again in float64; above it, alpha in float32 is off by
# up to 1e-6 (docs/decisions/0002).
DOUBT = 1e-2
# So is an alpha above this: the shorter the tail on the scale of logarithms, the more its errors count.
STEEP = 3.5
# And a threshold so many times below the eigenvalues' mean, half of which float32 takes them from.
FAR = 5
# A tail that spreads over less than this fraction is flat. A random matrix would have to be ten million times as long
# as wide for that; in an orthogonal one, as initialisations make it in float32, eigenvalues are equal to about 1e-6.
FLAT = 1e-3

_CHUNK_COST = 2**25  # multiplications in one job, a few milliseconds; a larger matrix is a job of its own
_CHUNK_SIZE = 2**22  # entries in one job
_BLOCK_ROWS = 256  # of a Gram matrix, multiplied at once; below twice as many the blocks cost more than they spare
_SMALL_SIDE = 128  # up to here float64 takes hardly longer than float32
_NOTHING = -(10**6)  # exponent of a job that is all zero
_SAFE_EXPONENT = 20  # a weight up to 2**20 or down to 2**-20 can be squared and summed as it is
_lock = threading.Lock()  # settings of the whole process are changed during a solve


@dataclass(frozen=True)
class Spectrum:
    """The eigenvalues of one part, pooled.

    Attributes:
        values: Eigenvalues divided by ``2**exponent``, shape ``(n,)``, ascending, >= 0, float64, on the CPU.
        exponent: Keeps weights of any magnitude from overflowing or vanishing when squared.
        noise: What arithmetic may have added to a value.
        rounding: The spectral norm of what storing the weight in its own precision may have added to it.
        precise: Whether the solve was in float64.
    """

    values: Tensor
    exponent: int
    noise: float
    rounding: float
    precise: bool

    @property
    def eigenvalues(self) -> Tensor:
        """The values in the units of the squared weight; infinite or zero where float64 ends."""
        return torch.from_numpy(_ldexp(self.values.numpy(), self.exponent))

    def in_units(self, value: float) -> float:
        """A value in the units of the squared weight."""
        return float(_ldexp(value, self.exponent))

    def from_units(self, eigenvalue: float) -> float:
        """The inverse of `in_units`."""
        return float(_ldexp(eigenvalue, -self.exponent))

    @property
    def largest(self) -> float:
        """The largest value, 0 if there is none."""
        return float(self.values[-1]) if len(self.values) else 0.0

    def uncertainty(self, value: float) -> float:
        """How far rounding may have moved a value: by arithmetic, and by perturbing the weight it is taken from."""
        # (s + r)^2 - s^2, with s = sqrt(value) the singular value and r the perturbation's spectral norm
        return self.noise + self.rounding * (2 * math.sqrt(value) + self.rounding)

    def significant(self) -> Tensor:
        """The values that stand above their own uncertainty."""
        # s^2 = noise + r (2 s + r), solved for s
        threshold = (self.rounding + math.sqrt(2 * self.rounding**2 + self.noise)) ** 2
        return self.values[self.values > threshold]


def spectrum(weight: Tensor, *, groups: int = 1) -> Tensor:
    """The eigenvalues of a weight, ascending, as float64 on the CPU.

    Args:
        weight: A matrix, or a convolution kernel ``(out, in / groups, *positions)``, whose slices, one matrix per
            kernel position and group, are each scaled by sqrt(1/2) and pooled.
        groups: The convolution's groups.

    Raises:
        WeightError: If the weight is not a dense, finite, real floating-point tensor of two or more dimensions.

    Example:
        >>> spectrum(torch.tensor([[3.0, 0.0, 0.0], [0.0, 2.0, 0.0]])).tolist()
        [4.0, 9.0]
    """
    check_weight(weight)
    weight = weight.detach()
    parts = cut_convolution(weight, groups=groups) if weight.dim() > 2 else cut_by_shape(weight)
    (result,) = spectra(parts, double=True)
    if isinstance(result, WeightError):
        raise result
    return result.eigenvalues


def check_weight(weight: Tensor) -> None:
    """Refuse a weight that has no spectrum.

    Raises:
        WeightError: If the weight is meta, sparse, quantized, complex or integer.
        TypeError: If it is no tensor.
    """
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


def spectra(
    parts: Iterable[Part],
    *,
    double: bool = False,
    memory: float = math.inf,
    beside: bool = False,
    then: Callable[[int, Spectrum], None] | None = None,
) -> list[Spectrum | WeightError]:
    """The spectrum of each part, in their order, or why it has none; solved side by side on all of torch's threads.

    Args:
        parts: What to solve, the most expensive first for the shortest time.
        double: Work in float64; otherwise in float32, unless the weight's own precision is higher or it is small.
        memory: As in `side_by_side`.
        beside: Work in the calling thread alone and leave the settings of the process as they are: others are working.
        then: Is called with the number of a part and its spectrum, in the thread that has solved the last of it.
    """
    gathered: list[_Gathered] = []

    def calls() -> Iterator[Call]:
        for part in parts:
            chunks = _chunks(part.slices)
            of_part = _Gathered(
                replace(part, slices=part.slices.to("meta")),
                len(chunks),
                partial(then, len(gathered)) if then else None,
            )
            gathered.append(of_part)
            if not chunks:
                of_part.finish()
            for chunk in chunks:
                yield Call(partial(of_part.solve, chunk, double), chunk.device.type, _num_bytes(chunk, double))
                del chunk
            del part, chunks

    if beside:
        for call in calls():
            call.run()
    else:
        side_by_side(calls(), memory=memory)
    return [of_part.spectrum for of_part in gathered]


@dataclass(frozen=True)
class Call:
    """Work for one thread.

    Attributes:
        run: Does it.
        device: Type of the device that it runs on; others than the CPU order their own work, in the calling thread.
        num_bytes: Memory that it holds until it is done.
    """

    run: Callable[[], None]
    device: str
    num_bytes: int


def side_by_side(calls: Iterable[Call], *, memory: float = math.inf) -> None:
    """Do the calls on all of torch's threads, each on one.

    Args:
        calls: Taken from the iterable as there is room, so that what one holds is soon let go again.
        memory: Bytes that calls under way may hold; one that holds more is done alone.
    """
    with (
        _lock,
        _one_thread_each() as num_workers,
        ThreadPoolExecutor(num_workers, initializer=torch.set_num_threads, initargs=(1,)) as pool,
    ):
        under_way: deque[tuple[Future[None], int]] = deque()
        held = 0
        for call in calls:
            while under_way and held + call.num_bytes > memory:
                held -= _finish_oldest(under_way)
            if call.device == "cpu":
                under_way.append((pool.submit(call.run), call.num_bytes))
                held += call.num_bytes
            else:
                call.run()
            del call
            while held > memory:  # before the next one is even made
                held -= _finish_oldest(under_way)
            if memory < math.inf:
                _give_back()
        while under_way:
            _finish_oldest(under_way)


def _finish_oldest(under_way: deque[tuple[Future[None], int]]) -> int:
    future, num_bytes = under_way.popleft()
    future.result()
    return num_bytes


def _give_back() -> None:
    """Have the allocator return what is free to the system: glibc's keeps blocks of up to 32 MB for later."""
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)


@contextmanager
def _one_thread_each() -> Iterator[int]:
    """Give a solve one thread and all of float32's precision, put both settings back, and tell how many threads."""
    num_threads = torch.get_num_threads()
    precisions = [(backend, backend.fp32_precision) for backend in _matmul_backends()]
    try:
        torch.set_num_threads(1)
        for backend, _ in precisions:
            backend.fp32_precision = "ieee"
        yield num_threads
    finally:
        for backend, precision in precisions:
            backend.fp32_precision = precision
        torch.set_num_threads(num_threads)


def multiplies_in_full() -> bool:
    """Whether float32 matrices are multiplied in float32 on the CPU, as the process is set now."""
    return _matmul_backends()[0].fp32_precision in ("none", "ieee")


def _matmul_backends() -> list[Any]:
    """Where a user may have allowed TF32 or bfloat16 in place of float32.

    torch.get_float32_matmul_precision, the older switch, raises where somebody has used these.
    """
    return [torch.backends.mkldnn.matmul, torch.backends.cuda.matmul]  # type: ignore[attr-defined]


def _chunks(slices: Tensor) -> tuple[Tensor, ...]:
    """Split a part into jobs by the cost of its matrices alone, so that the jobs are the same on any machine."""
    if slices.numel() == 0:
        return ()
    size = slices[0].numel()
    return torch.split(slices, max(1, min(_CHUNK_COST // (size * min(slices.shape[1:])), _CHUNK_SIZE // size)))


def _num_bytes(slices: Tensor, double: bool) -> int:
    """What solving holds: the weight, a copy in the precision of the solve, a Gram matrix and LAPACK's copy of it."""
    dtype = _precision(slices, double)
    num_copied = slices.numel() if slices.dtype != dtype or _is_scattered(slices) else 0
    num_slices, side = slices.shape[0], min(slices.shape[1:])
    return slices.nbytes + dtype.itemsize * (num_copied + 2 * num_slices * side**2)


def _precision(slices: Tensor, double: bool) -> torch.dtype:
    is_small = min(slices.shape[1:]) <= _SMALL_SIDE
    return torch.float64 if double or is_small or slices.dtype == torch.float64 else torch.float32


def _is_scattered(slices: Tensor) -> bool:
    """Whether neither rows nor columns lie in one piece, as in a kernel: a product would copy them time and again."""
    return 1 not in slices.stride()[1:]


@dataclass(frozen=True)
class _Solved:
    values: Tensor
    exponent: int
    eps: float


class _Gathered:
    """What the jobs of one part have found, put together by the last of them."""

    spectrum: Spectrum | WeightError

    def __init__(self, part: Part, num_jobs: int, then: Callable[[Spectrum], None] | None) -> None:
        self.part, self.num_jobs, self.then = part, num_jobs, then
        self.solved: list[_Solved | WeightError] = []
        self.lock = threading.Lock()

    def solve(self, slices: Tensor, double: bool) -> None:
        try:
            solved: _Solved | WeightError = _solve(slices, double)
        except WeightError as err:
            solved = err
        with self.lock:
            self.solved.append(solved)
            is_last = len(self.solved) == self.num_jobs
        if is_last:
            self.finish()

    def finish(self) -> None:
        self.spectrum = _pool(self.part, self.solved)
        if self.then is not None and isinstance(self.spectrum, Spectrum):
            self.then(self.spectrum)


def _solve(slices: Tensor, double: bool) -> _Solved:
    """Eigenvalues of the Gram matrices of slices."""
    gram, exponent = gram_matrices(slices, double=double)
    eps = torch.finfo(gram.dtype).eps
    if exponent == _NOTHING:
        return _Solved(_zeros(gram.shape[0] * gram.shape[1]), _NOTHING, 0.0)
    try:
        values = _eigenvalues(gram)
    except RuntimeError as err:  # torch.linalg.LinAlgError
        raise WeightError(f"has no eigenvalues that LAPACK can find: {err}") from err
    return _Solved(values.flatten(), exponent, eps)


def _eigenvalues(gram: Tensor) -> Tensor:
    """Of each matrix, as float64 on the CPU; what lies above the diagonal is not looked at. One in float32 is changed.

    LAPACK takes the matrix transposed, since it is faster with the half above the diagonal, by up to a quarter. Its
    error grows with what eigenvalues are taken from: in float32 they are taken from half their mean, which is half the
    diagonal's, closer than 0 to the middle of most spectra and not far from the small values of the others.
    """
    origin = gram.new_zeros(1)
    if gram.dtype != torch.float64:
        diagonal = gram.diagonal(dim1=-2, dim2=-1)
        origin = diagonal.mean(dim=-1, keepdim=True) / 2
        diagonal -= origin
    values: Tensor = torch.linalg.eigvalsh(gram.mT, UPLO="U").cpu().double()
    return values.add_(origin.cpu())


@torch.no_grad()
def gram_matrices(slices: Tensor, *, double: bool = False) -> tuple[Tensor, int]:
    """The smaller Gram matrix of each slice, divided by a power of two near the square of their largest magnitude.

    What lies above the diagonal may be left zero: LAPACK does not look at it.

    Args:
        slices: Shape ``(num_slices, rows, columns)``.
        double: Work in float64.

    Returns:
        The matrices and the exponent of the power of two.

    Raises:
        WeightError: If an entry is NaN or infinite.
    """
    if slices.device.type == "mps":  # has neither float64 nor a symmetric eigenvalue solve
        slices = slices.cpu()
    if _is_scattered(slices):
        slices = slices.contiguous()
    slices = slices.to(_precision(slices, double))
    largest = max(abs(float(end)) for end in torch.aminmax(slices))  # a sixth of an infinity norm's time
    if not math.isfinite(largest):
        raise WeightError("must be finite, has an entry that is NaN or infinite")
    exponent = math.frexp(largest)[1]
    if abs(exponent) > _SAFE_EXPONENT:  # in two steps, because 2**-exponent is infinite for a denormal weight
        half = exponent // 2
        slices = (slices * 2.0**-half).mul_(2.0 ** (half - exponent))
    if slices.shape[1] > slices.shape[2]:
        slices = slices.mT
    with torch.autocast(slices.device.type, enabled=False):
        gram = _lower_product(slices)
    if abs(exponent) <= _SAFE_EXPONENT:
        gram.mul_(2.0 ** (-2 * exponent))
    return gram, 2 * exponent if largest > 0 else _NOTHING


def _lower_product(slices: Tensor) -> Tensor:
    """``slices @ slices.mT`` in blocks of rows, without what is to the right of the block on the diagonal."""
    side = slices.shape[1]
    if side < 2 * _BLOCK_ROWS:
        return slices @ slices.mT
    gram = slices.new_zeros(slices.shape[0], side, side)
    for first in range(0, side, _BLOCK_ROWS):
        end = min(first + _BLOCK_ROWS, side)
        gram[:, first:end, :end] = slices[:, first:end] @ slices[:, :end].mT
    return gram


def _pool(part: Part, gathered: list[_Solved | WeightError]) -> Spectrum | WeightError:
    """The sorted eigenvalues of all jobs of a part, in one unit, with what is known about their errors."""
    solved = [each for each in gathered if isinstance(each, _Solved)]
    if len(solved) < len(gathered):
        return next(each for each in gathered if isinstance(each, WeightError))
    if not solved:
        return Spectrum(_zeros(0), 0, 0.0, 0.0, precise=True)
    eps, exponent = max(each.eps for each in solved), max(each.exponent for each in solved)
    values = torch.cat([torch.from_numpy(_ldexp(each.values.numpy(), each.exponent - exponent)) for each in solved])
    values = (values * part.factor).clamp(min=0).sort().values
    _, rows, columns = part.slices.shape
    root_mean_square = math.sqrt(float(values.sum()) / part.slices.numel())
    return Spectrum(
        values,
        exponent,
        # what rank tests take for the error of a symmetric solve
        noise=eps * max(rows, columns) * float(values[-1]),
        # an entry is off by up to eps/2 of itself, in the mean by half of that; a matrix of independent errors of
        # size e has a spectral norm of e (sqrt(rows) + sqrt(columns))
        rounding=torch.finfo(part.slices.dtype).eps / 4 * root_mean_square * (math.sqrt(rows) + math.sqrt(columns)),
        precise=eps == torch.finfo(torch.float64).eps,
    )


def _zeros(length: int) -> Tensor:
    return torch.zeros(length, dtype=torch.float64, device="cpu")


def _ldexp(values: Any, exponent: int) -> Any:
    """``values * 2**exponent`` where ``2**exponent`` itself may be out of range."""
    with np.errstate(over="ignore", under="ignore"):
        return np.ldexp(values, exponent)
