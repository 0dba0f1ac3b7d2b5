"""Estimate what one balancing of a model costs, from the shapes of its layers and a short calibration.

No weight of the model is read or solved. A solve of n x m matrices with n <= m takes ``a(n) + b(n) m`` seconds: the
eigenvalues, and the Gram matrix. Both are measured on random matrices with the sides that the model has, up to
``most_side``, as many at a time as a balancing solves. Beyond, they grow as n^3 and n^2.
"""

from __future__ import annotations

import heapq
import math
import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.filesize import decimal

from tempbalance.bench.contestants import threads
from tempbalance.checkpoint.layers import infer_layers
from tempbalance.checkpoint.read import read_checkpoint
from tempbalance.errors import CheckpointError, TailError
from tempbalance.execution.distributed import share_out
from tempbalance.model.layers import Layer, find_layers
from tempbalance.ranking.scoring import Job, Scoring, plan_layers
from tempbalance.spectral.eigenvalues import Spectrum, num_solve_bytes
from tempbalance.spectral.matrices import Part
from tempbalance.spectral.repair import fit_spectrum
from tempbalance.spectral.tail import fit_tail
from tempbalance.spectral.workers import solves_on, spectra, split_jobs

Clock = Callable[[], float]

_MOST_SIDES = 8  # measured sides; others are interpolated
_LONG = 4  # the second measured length, in sides
_SAMPLE = 256  # side of the matrices that show whether float64 is needed
_SECONDS = 0.1  # least time of a measurement: as many jobs as that takes are solved one after the other
_RESULT = pickle.dumps(("model.layers.10.mlp.down_proj", 0, "", 1.0, (1.0, 1.0, 1.0, 1, 1.0)))  # sent for each part
_SUMS = pickle.dumps([(1.0, 1.0)])  # sent for each weight


@dataclass(frozen=True)
class Estimate:
    """Predicted cost of one balancing; memory and traffic in bytes."""

    num_layers: tuple[int, int]  # scored, and all
    seconds: float  # from the call to the new learning rates, without waiting for the network
    compare_seconds: float  # of these, those in which ranks compare sums of their weights, unless they are sharded
    memory: int  # that the busiest rank needs besides the model
    traffic: int  # that each rank receives where every rank holds all weights
    sharded_traffic: int  # that each rank receives where the weights are sharded over the ranks
    measured_side: int  # the largest; larger ones are extrapolated
    largest_side: int  # of the model


@dataclass(frozen=True)
class Calibration:
    """Seconds of solves on this machine, by the side and by whether they are in float64."""

    costs: Mapping[tuple[int, bool], tuple[float, float]]  # a(n) / n^3 and b(n) / n^2
    pass_seconds: float  # to read a byte of a weight and add it up
    fixed: float  # per part of a balancing that has nothing to solve

    def seconds(self, shape: Sequence[int], *, double: bool) -> float:
        """Return the time of solving matrices, of shape ``(num_slices, rows, columns)``."""
        num_slices, rows, columns = shape
        side, length = sorted((rows, columns))
        known = sorted(each for each, is_double in self.costs if is_double is double)
        costs = np.log([self.costs[each, double] for each in known])
        solve, gram = (math.exp(np.interp(math.log(side), np.log(known), each)) for each in costs.T)
        return num_slices * (solve * side**3 + gram * side**2 * length)


def calibrate(
    sides: Sequence[int],
    *,
    num_at_a_time: int = 1,
    device: str = "cpu",
    most_side: int = 2048,
    rounds: int = 3,
    clock: Clock = time.perf_counter,
) -> Calibration:
    """Measure solves of random matrices with these shorter sides, as many at a time as a balancing has threads.

    Of the rounds the shortest counts: other processes only add time. If they use the cores, give ``time.process_time``
    as the clock, and one solve at a time.
    """
    kept = sorted({min(side, most_side) for side in sides})
    if len(kept) > _MOST_SIDES:
        kept = [kept[round(i * (len(kept) - 1) / (_MOST_SIDES - 1))] for i in range(_MOST_SIDES)]
    costs = {}
    for side in kept:
        for double in (False, True):
            where = "cpu" if double else device
            num_together = num_at_a_time if where == "cpu" else 1
            short, long = (
                _measure(side, length, num_together, double, where, rounds, clock) for length in (side, _LONG * side)
            )
            gram = max(long - short, 0.01 * short) / ((_LONG - 1) * side)  # for each unit of length
            costs[side, double] = max(short - gram * side, 0.01 * short) / side**3, gram / side**2
    weight = torch.ones(2**22)
    passes = [
        _timed(clock, lambda: (float(weight.sum()), float(torch.linalg.vector_norm(weight)))) for _ in range(rounds)
    ]
    tiny = [Part("", torch.randn(1, 16, 16)) for _ in range(64)]
    fixed = min(_timed(clock, partial(spectra, tiny, then=_fit)) for _ in range(rounds)) / len(tiny)
    return Calibration(costs, min(passes) / weight.nbytes, fixed)


def _fit(_: int, spectrum: Spectrum) -> None:
    fit_tail(spectrum.eigenvalues, tail="median", tail_fraction=0.5)


def _measure(side: int, length: int, num_at_a_time: int, double: bool, device: str, rounds: int, clock: Clock) -> float:
    """Return the seconds per matrix while ``num_at_a_time`` jobs are solved together, without starting the threads."""
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(1, side, length, generator=generator).to(device)
    num_slices = len(split_jobs(matrix.expand(2**20 // side, side, length))[0])  # as many as one job has
    part = Part("", matrix.expand(num_slices, side, length).contiguous())

    def run(num_jobs: int) -> float:
        return _timed(clock, partial(spectra, [part] * (num_at_a_time * num_jobs), double=double))

    with threads(num_at_a_time):
        once = run(1) if side < 1024 else _SECONDS  # the first one loads libraries
        num_jobs = max(1, round(_SECONDS / max(once, 1e-4)))
        return min(run(num_jobs) for _ in range(rounds if side < 1024 else 1)) / (num_jobs * num_slices)


def _timed(clock: Clock, function: Callable[[], object]) -> float:
    start = clock()
    function()
    return clock() - start


def read_layers(path: Path) -> list[Layer]:
    """Return the layers of a checkpoint, or of the model that a ``config.json`` of transformers describes."""
    if (path / "config.json").exists():
        try:
            return _stored_layers(path)
        except CheckpointError:
            path = path / "config.json"
    return find_layers(_build(path)) if path.suffix == ".json" and path.is_file() else _stored_layers(path)


def _stored_layers(path: Path) -> list[Layer]:
    tensors = {tensor.name: tensor for tensor in read_checkpoint(path).tensors}
    found = infer_layers(tensors.values())
    names = {layer: name for name, layer in found.tensors.items()}
    for layer in found.layers:
        weight = torch.empty(layer.shape, dtype=tensors[names[layer.name]].dtype, device="meta")
        layer.parameters = [torch.nn.Parameter(weight)] if weight.is_floating_point() else []
    return found.layers


def _build(path: Path) -> torch.nn.Module:
    """Build the model of a configuration without memory for its weights."""
    import transformers

    try:
        config = transformers.AutoConfig.from_pretrained(str(path))
        name = next(iter(config.architectures or []), "")
        kind = getattr(transformers, name, None)
        if not (isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)):
            kind = None
        build: Callable[[Any], torch.nn.Module] = transformers.AutoModel.from_config if kind is None else kind
        with torch.device("meta"):
            model = build(config)
        return model.to(config.dtype) if isinstance(getattr(config, "dtype", None), torch.dtype) else model
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as err:
        raise ValueError(f"{path} must be a transformers configuration: {' '.join(str(err).split())[:300]}") from err


def estimate(
    layers: Sequence[Layer],
    scoring: Scoring | None = None,
    *,
    num_ranks: int = 1,
    num_threads: int | None = None,
    device: str = "cpu",
    calibration: Calibration | None = None,
) -> Estimate:
    """Predict the cost of one balancing by ranks with this many threads each; without a calibration, measure now."""
    scoring = scoring or Scoring()
    if scoring.tail != "median":
        raise ValueError(f"the cost is estimated for tail 'median' alone, got {scoring.tail!r}")
    jobs = _jobs(layers, scoring)
    if not jobs:
        raise ValueError(f"no layer is scored, of {len(layers)}: there is nothing to estimate")
    num_threads = num_threads or torch.get_num_threads()
    if calibration is None:
        calibration = calibrate(sides_of(layers, scoring), num_at_a_time=num_threads, device=device)
    owners = share_out([sum(job.cost for job in each) for each in jobs], num_ranks)
    shares: list[list[Job]] = [[] for _ in range(num_ranks)]
    for owner, each in zip(owners, jobs, strict=True):
        shares[owner] += each
    shapes = {job.shape for share in shares for job in share}
    on_device = solves_on(torch.device(device))  # the CPU repairs single eigenvalues instead, at little cost
    again = {shape for shape in shapes if on_device and _is_solved_again(shape, scoring)}
    rank_seconds = [
        _makespan(share, num_threads, calibration, double=False)
        + _makespan([job for job in share if job.shape in again], num_threads, calibration, double=True)
        + calibration.fixed * len(share)
        for share in shares
    ]
    weights = [each[0].layer for each in jobs]
    num_bytes = sum(math.prod(layer.shape) * _dtype(layer).itemsize for layer in weights)
    compared = calibration.pass_seconds * num_bytes if num_ranks > 1 else 0.0  # each rank adds up all weights
    num_others = num_ranks - 1
    answers = num_others * (len(weights) * len(_SUMS) + len(_RESULT) * sum(map(len, shares)) // num_ranks)
    return Estimate(
        num_layers=(len(jobs), len(layers)),
        seconds=max(rank_seconds) + compared,
        compare_seconds=compared,
        memory=max(_memory(share, num_threads) for share in shares),
        traffic=answers,
        sharded_traffic=answers + num_bytes * num_others // num_ranks,
        measured_side=max(side for side, _ in calibration.costs),
        largest_side=max(min(shape[1:]) for shape in shapes),
    )


def sides_of(layers: Sequence[Layer], scoring: Scoring) -> list[int]:
    """Return the different shorter sides of the matrices that are solved."""
    return sorted({min(job.shape[1:]) for jobs in _jobs(layers, scoring) for job in jobs})


def _jobs(layers: Sequence[Layer], scoring: Scoring) -> list[list[Job]]:
    """Return what is solved for each scored layer."""
    planned = ([job for job in jobs if not job.reason] for jobs in plan_layers(layers, scoring).jobs.values())
    return [jobs for jobs in planned if jobs]


def _is_solved_again(shape: tuple[int, int, int], scoring: Scoring) -> bool:
    """Whether random matrices of these proportions need float64, judged by a small one."""
    side, length = sorted(shape[1:])
    small = min(side, _SAMPLE)
    matrix = torch.randn(1, small, small * length // side, generator=torch.Generator().manual_seed(0))
    (spectrum,) = spectra([Part("", matrix)])
    assert isinstance(spectrum, Spectrum)
    try:
        fit_spectrum(spectrum, tail="median", tail_fraction=scoring.tail_fraction, min_eigenvalues=1)
    except TailError:
        return True
    return False


def _makespan(jobs: Sequence[Job], num_threads: int, calibration: Calibration, *, double: bool) -> float:
    """Return the seconds until all jobs are done if each chunk runs on the first free thread."""
    free = [0.0] * num_threads
    for job in sorted(jobs, key=lambda job: -job.cost):
        for chunk in split_jobs(torch.empty(job.shape, device="meta")):
            heapq.heapreplace(free, free[0] + calibration.seconds(chunk.shape, double=double))
    return max(free)


def _memory(jobs: Sequence[Job], num_threads: int) -> int:
    """Return the bytes of all copied kernels and of the largest simultaneous solves."""
    copied, working = 0, []
    for job in jobs:
        slices = torch.empty(job.shape, dtype=_dtype(job.layer), device="meta")
        copied += slices.nbytes if len(job.layer.shape) > 2 else 0
        working += [num_solve_bytes(chunk, double=False) - chunk.nbytes for chunk in split_jobs(slices)]
    return copied + sum(sorted(working)[-num_threads:])


def _dtype(layer: Layer) -> torch.dtype:
    return layer.parameters[0].dtype if layer.parameters else torch.float32


def estimate_text(found: Estimate, *, num_ranks: int, num_threads: int) -> list[str]:
    """Return an estimate in sentences."""
    scored, number = found.num_layers
    who = "1 process" if num_ranks == 1 else f"{num_ranks} ranks"
    lines = [
        f"{scored} of {number} layers are scored by {who}, {num_threads} thread{'s' * (num_threads != 1)} each",
        f"time: {found.seconds:.3g} s for one balancing",
        f"memory: {decimal(found.memory)} on the busiest rank, besides the model",
    ]
    if num_ranks > 1:
        lines.append(
            f"traffic: each rank receives {decimal(found.traffic)}, or {decimal(found.sharded_traffic)} "
            "if the weights are sharded"
        )
    if found.largest_side > found.measured_side:
        sides = f"sides up to {found.largest_side}, measured up to {found.measured_side}"
        lines.append(f"extrapolated: the model has {sides}")
    return lines
