"""Runs independent solves side by side: one thread each, in full precision, within a bound on memory, on any device.

At the sizes of layers, two single-threaded solves are faster than one on two threads, and their bits do not depend on
the number of threads. Weights on a device are solved there in batches, across layers.
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tempbalance.errors import WeightError
from tempbalance.spectral import eigenvalues
from tempbalance.spectral.eigenvalues import Solved, Spectrum, check_weight
from tempbalance.spectral.lapack import Lapack, load_lapack
from tempbalance.spectral.matrices import Part, cut_by_shape

_CHUNK_COST = 2**25  # multiplications in one job, a few milliseconds; a larger matrix is one job
_CHUNK_SIZE = 2**22  # entries in one job
_KEPT_BYTES = 2**25  # of reduced Gram matrices that wait for the other slices of their part
_BATCH_BYTES = 2**28  # of Gram matrices that wait on a device to be solved together
_lock = threading.Lock()  # held during a solve, which changes settings of the process
_settings = ExitStack()  # restores them


def spectrum(weight: Tensor, *, groups: int = 1) -> Tensor:
    """Return the eigenvalues of a weight, ascending, as float64 on the CPU.

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
    (result,) = spectra(cut_by_shape(weight, groups=groups), double=True)
    if isinstance(result, WeightError):
        raise result
    return result.eigenvalues


def spectra(
    parts: Iterable[Part],
    *,
    double: bool = False,
    memory: float = math.inf,
    beside: bool = False,
    device: str | torch.device | None = None,
    then: Callable[[int, Spectrum], None] | None = None,
) -> list[Spectrum | WeightError]:
    """Return the spectrum of each part, in their order, or the reason why it has none; best the most expensive first.

    ``double`` is float64 on the CPU. ``memory`` bounds the bytes of solves under way; a larger one runs alone.
    ``beside`` works in the calling thread, in float64 with torch's solver, and changes no setting of the process. The
    default ``device`` is where each weight is, or the CPU if that has no solver. ``then`` gets the index of a part and
    its spectrum, which can be repaired meanwhile, in the thread that solved its last job.
    """
    gathered: list[Gathered] = []
    lapack = None if beside else load_lapack()
    batches = _Batches(min(memory, _BATCH_BYTES))

    def calls() -> Iterator[Call]:
        for part in parts:
            slices = part.slices.detach()
            target = slices.device if device is None else torch.device(device)
            on_device = solves_on(target) and not double and slices.dtype != torch.float64
            slices = slices.to(target if on_device else "cpu")
            chunks = split_jobs(slices)
            on_meta = replace(part, slices=slices.to("meta"))
            of_part = Gathered(on_meta, len(chunks), partial(then, len(gathered)) if then else None)
            gathered.append(of_part)
            for chunk in chunks:
                if on_device:
                    batches.add(of_part, chunk)
                else:
                    in_double = double or beside or lapack is None
                    run = partial(of_part.solve, chunk, in_double, lapack)
                    yield Call(run, eigenvalues.num_solve_bytes(chunk, double=in_double))
                    del run
                del chunk
            del part, chunks, slices
        batches.solve_all()

    if beside:
        for call in calls():
            call.run()
    else:
        side_by_side(calls(), memory=memory)
    return [of_part.spectrum for of_part in gathered]


def split_jobs(slices: Tensor) -> tuple[Tensor, ...]:
    """Split a part into jobs by the cost of its matrices alone, so that the jobs are the same on any machine."""
    if slices.numel() == 0:
        return ()
    size = slices[0].numel()
    return torch.split(slices, max(1, min(_CHUNK_COST // (size * min(slices.shape[1:])), _CHUNK_SIZE // size)))


class Gathered:
    """Collects the eigenvalues of one part from its jobs; the last job pools them."""

    spectrum: Spectrum | WeightError

    def __init__(self, part: Part, num_jobs: int, then: Callable[[Spectrum], None] | None) -> None:
        self.part, self.num_jobs, self.then = part, num_jobs, then
        self.solved: list[Solved | WeightError] = []
        num_slices, rows, columns = part.slices.shape
        # reductions are kept until all jobs are done, so that `then` can repair values
        self.keeps = then is not None and (num_jobs == 1 or 4 * num_slices * min(rows, columns) ** 2 <= _KEPT_BYTES)
        self.lock = threading.Lock()
        if num_jobs == 0:
            self.finish()

    def solve(self, slices: Tensor, double: bool, lapack: Lapack | None) -> None:
        try:
            solved = eigenvalues.solve_on_cpu(slices, double=double, lapack=lapack)
            self.add(solved if self.keeps else replace(solved, reductions=()))
        except WeightError as err:
            self.add(err)

    def add(self, solved: Solved | WeightError) -> None:
        with self.lock:
            self.solved.append(solved)
            is_last = len(self.solved) == self.num_jobs
        if is_last:
            self.finish()

    def finish(self) -> None:
        """Pool the eigenvalues and pass them to ``then``."""
        self.spectrum = eigenvalues.pool_eigenvalues(self.part, self.solved)
        self.solved.clear()
        if self.then is not None and isinstance(self.spectrum, Spectrum):
            self.then(self.spectrum)
            if self.spectrum.slices is not None:  # they hold the weight
                self.spectrum = replace(self.spectrum, slices=None)


def solves_on(device: torch.device) -> bool:
    """Return whether the device has an eigenvalue solver; weights on others, such as MPS, go to the CPU."""
    return device.type == "cuda"


class _Batches:
    """Gram matrices on a device that wait for others of the same side; each batch is read from the device once."""

    def __init__(self, max_bytes: float) -> None:
        self.max_bytes = max_bytes
        self.waiting: defaultdict[tuple[torch.device, int], list[tuple[Gathered, Tensor, Tensor]]] = defaultdict(list)

    def add(self, of_part: Gathered, slices: Tensor) -> None:
        gram, largest = eigenvalues.gram_matrices_on_device(slices)
        key = (gram.device, gram.shape[-1])
        if sum(each.nbytes for _, each, _ in self.waiting[key]) + gram.nbytes > self.max_bytes:
            self.solve(self.waiting.pop(key))
        self.waiting[key].append((of_part, gram, largest))

    def solve_all(self) -> None:
        while self.waiting:
            self.solve(self.waiting.popitem()[1])

    def solve(self, batch: list[tuple[Gathered, Tensor, Tensor]]) -> None:
        found = eigenvalues.solve_on_device([gram for _, gram, _ in batch], [largest for *_, largest in batch])
        for (of_part, *_), solved in zip(batch, found, strict=True):
            of_part.add(solved)


@dataclass(frozen=True)
class Call:
    """Work for one thread, and the memory that it holds until it is done."""

    run: Callable[[], None]
    num_bytes: int


def side_by_side(calls: Iterable[Call], *, memory: float = math.inf) -> None:
    """Run the calls on all of torch's threads, each on one thread.

    A call is taken from the iterable when calls under way leave room for it in ``memory``; a larger one runs alone.
    """
    with (
        _lock,
        _one_thread_each() as num_workers,
        ThreadPoolExecutor(num_workers, initializer=torch.set_num_threads, initargs=(1,)) as pool,
    ):
        under_way: deque[tuple[Future[None], int]] = deque()
        held = 0

        def wait_until(most: float) -> None:
            nonlocal held
            while under_way and held > most:
                future, num_bytes = under_way.popleft()
                future.result()
                held -= num_bytes

        for call in calls:
            wait_until(memory - call.num_bytes)
            under_way.append((pool.submit(call.run), call.num_bytes))
            held += call.num_bytes
            del call
            wait_until(memory)  # before the next one is even made
            if memory < math.inf:
                _trim_heap()
        wait_until(-1)


def _trim_heap() -> None:
    """Return free memory to the system: glibc keeps blocks of up to 32 MB."""
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)


@contextmanager
def _one_thread_each() -> Iterator[int]:
    """Limit torch and BLAS to one thread and to full precision, restore both, and yield torch's number of threads."""
    num_threads, lapack = torch.get_num_threads(), load_lapack()
    with _settings:
        if lapack is not None:
            _settings.enter_context(lapack.pools.limit(limits=1))
        _settings.callback(torch.set_num_threads, num_threads)
        torch.set_num_threads(1)
        for backend in _matmul_backends():
            _settings.callback(setattr, backend, "fp32_precision", backend.fp32_precision)
            backend.fp32_precision = "ieee"
        yield num_threads


def _after_fork() -> None:
    """Release the lock and restore the settings of a solve that was under way when the process forked."""
    global _lock
    _lock = threading.Lock()
    _settings.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _matmul_backends() -> list[Any]:
    """Return the switches that allow TF32 or bfloat16 in place of float32."""
    # torch.get_float32_matmul_precision, the older switch, raises where somebody has used these
    return [torch.backends.mkldnn.matmul, torch.backends.cuda.matmul]  # type: ignore[attr-defined]
