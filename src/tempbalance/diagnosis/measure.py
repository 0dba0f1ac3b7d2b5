"""Measure the spectra of layers within a bounded amount of memory."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from itertools import groupby
from statistics import fmean
from typing import Any

from torch import Tensor

from tempbalance.checkpoint.layers import Inferred
from tempbalance.errors import CheckpointError, ScoreError, TailError, TempBalanceError
from tempbalance.model.layers import Layer
from tempbalance.ranking.scoring import Job, Scoring, jobs_of, make_row, solve
from tempbalance.ranking.table import DiagnosisRow
from tempbalance.spectral.eigenvalues import Spectrum
from tempbalance.spectral.matrices import Part
from tempbalance.spectral.random_matrix import count_beyond_shuffled, random_alpha, random_edge
from tempbalance.spectral.score import NEEDS_FIT, ScoreName, compute_score
from tempbalance.spectral.tail import fit_hill
from tempbalance.spectral.workers import Call, side_by_side

MIN_ADAPTER_EIGENVALUES = 8  # a product of LoRA factors has r eigenvalues, and r is rarely as large as 50
# Bytes of weights, copies and Gram matrices under way at a time, beside twice the largest weight: with torch itself,
# 250 MB, a weight that waits and what the allocator keeps, this stays below 512 MB and four times the largest
_MEMORY = 176 * 2**20
_SCORES: tuple[ScoreName, ...] = ("spectral_norm", "stable_rank", "alpha_weighted", "log_alpha_norm", "entropy")
_MEANS = (*_SCORES, "log_norm", "upper_over_random", "excess")
_FLAT = 0.9  # the smallest eigenvalue over the largest, from which a spectrum without a fit is flat as a whole
# Random eigenvalues hold each other in place: alpha of their larger half scatters by this over the shorter side, for
# all shapes, where as many independent values would scatter by 1 / sqrt(side)
_SCATTER = 2.2


@dataclass
class _Measured:
    """Numbers from a part's spectrum."""

    eigenvalues: list[float]
    scores: dict[str, float | None]
    edge: float | None
    num_beyond: int | None
    is_flat: bool
    num_shuffled: int | None = None


class Measuring:
    """Measurement of the layers of a model, which gives the rows of the table."""

    def __init__(
        self,
        found: Inferred,
        scoring: Scoring,
        *,
        include: Sequence[str] = (),
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        for option, patterns in {"include": include, "exclude": scoring.exclude, "fused": scoring.fused}.items():
            for pattern in patterns:
                if not any(fnmatchcase(layer.name, pattern) for layer in found.layers):
                    raise ValueError(f"{option} pattern {pattern!r} matches no layer")
        self.layers, self.adapters, self.progress = found.layers, found.ranks, progress
        least = min(MIN_ADAPTER_EIGENVALUES, scoring.min_eigenvalues)
        self.scorings = {False: scoring, True: replace(scoring, min_eigenvalues=least)}  # whether of adapters
        self.reasons: dict[str, str] = {}
        self.jobs: dict[str, list[Job]] = {}
        self.measured: dict[Job, _Measured] = {}
        self.memory = _MEMORY + 2 * found.largest
        self.loaded: set[tuple[str, str]] = set()
        self.phase, self.num_loads = "solve", 0
        for layer in found.layers:
            self._plan(layer, include)

    def _plan(self, layer: Layer, include: Sequence[str]) -> None:
        """Say why a layer is skipped before its weight is loaded, or make its jobs."""
        scoring, reason = self.scorings[layer.name in self.adapters], layer.skipped
        if any(fnmatchcase(layer.name, pattern) for pattern in scoring.exclude):
            reason = "excluded by name"
        elif include and not any(fnmatchcase(layer.name, pattern) for pattern in include):
            reason = "not included by name"
        if not reason:
            try:
                self.jobs[layer.name] = jobs_of(layer, scoring)
            except TempBalanceError as err:
                reason = str(err.__cause__ or err)
        self.reasons[layer.name] = reason
        if self.progress is not None and any(not job.reason for job in self.jobs.get(layer.name, [])):
            self.num_loads += 2
            layer.load = partial(self._loading, layer.name, layer.load)

    def _loading(self, name: str, load: Callable[[], Tensor]) -> Tensor:
        """Load a weight; the first time in each phase counts as progress."""
        if self.progress is not None and (self.phase, name) not in self.loaded:
            self.loaded.add((self.phase, name))
            self.progress(len(self.loaded), self.num_loads)
        return load()

    def solve(self) -> None:
        """Compute the spectra and their fits."""
        for is_adapter, scoring in self.scorings.items():
            names = [name for name in self.jobs if (name in self.adapters) is is_adapter]
            if jobs := [job for name in names for job in self.jobs[name]]:
                solve(jobs, scoring, see=partial(self._see, is_adapter), refuse=self._refuse, memory=self.memory)

    def _see(self, is_adapter: bool, job: Job, spectrum: Spectrum) -> None:
        if spectrum.largest == 0:
            return
        values = spectrum.eigenvalues
        scores: dict[str, float | None] = {name: _score(values, job, name) for name in _SCORES}
        scores["log_norm"] = _finite(math.log10(float(spectrum.values.sum())) + spectrum.exponent * math.log10(2))
        is_flat = job.fit is None and float(spectrum.values[0]) >= _FLAT * spectrum.largest
        edge = num_beyond = None
        if is_adapter:
            job.score = None  # the eigenvalues of a product are not those of a random matrix
            scores |= {"upper_over_random": None, "excess": None}
        else:
            ascending = spectrum.values.numpy()
            num_slices, rows, columns = job.shape
            variance = float(spectrum.values.sum()) / math.prod(job.shape)
            bound = random_edge(variance, rows=rows, columns=columns, num_slices=num_slices)
            beyond = ascending[ascending.searchsorted(bound, side="right") :]
            scores["excess"] = float((beyond - bound).sum() / ascending.sum())
            scores["upper_over_random"] = None if job.fit is None else _upper_over_random(job, spectrum.values)
            edge = _finite(spectrum.in_units(bound)) or None
            num_beyond = None if edge is None else len(beyond)
        self.measured[job] = _Measured(values.tolist(), scores, edge, num_beyond, is_flat)

    def _refuse(self, job: Job, error: TempBalanceError) -> None:
        if isinstance(error, CheckpointError):  # broken, or changed while it was read: not one layer's error
            raise error
        job.reason = str(error)

    def shuffle(self) -> None:
        """Count eigenvalues beyond the edge after shuffling the entries."""
        self.phase = "shuffle"
        side_by_side(self._shuffle_calls(), memory=self.memory)

    def _shuffle_calls(self) -> Iterator[Call]:
        jobs = [job for job, measured in self.measured.items() if measured.edge is not None and job.fit is not None]
        for layer, run in groupby(jobs, lambda job: job.layer):
            of_layer = list(run)
            weight = layer.weight()
            parts = of_layer[0].cut(weight)
            for job in of_layer:
                part = parts[job.index]
                # the weight, a part's shuffled copy, the order (blocks of 2^25) or a float32 copy, two Gram matrices
                num_bytes = weight.nbytes + part.slices.nbytes + 8 * min(part.slices.numel(), 2**25)
                num_bytes += 8 * part.num_eigenvalues * min(part.slices.shape[1:])
                yield Call(partial(_shuffle, job, part, self.measured[job]), num_bytes)
                del part
            del weight, parts

    def rows(self) -> list[DiagnosisRow]:
        """Return the rows."""
        return [self._row(layer) for layer in self.layers]

    def _row(self, layer: Layer) -> DiagnosisRow:
        jobs = self.jobs.get(layer.name, [])
        row = make_row(layer, jobs, self.reasons[layer.name])
        values: dict[str, Any] = {**asdict(row), "parts": row.parts}
        measured = {job: each for job in jobs if (each := self.measured.get(job)) and (job.fit or each.is_flat)}
        if not measured:
            return DiagnosisRow(**values)
        values["xmin"] = _finite(row.xmin) if row.xmin is not None else None
        for name in _MEANS:
            combine = max if name == "spectral_norm" else fmean
            values[name] = _combine([each.scores[name] for each in measured.values()], combine)
        return DiagnosisRow(
            **values,
            alpha_over_random=row.score,
            upper_stderr=math.hypot(*map(_upper_scatter, measured)) / len(measured),
            mp_edge=next(iter(measured.values())).edge if len(jobs) == 1 else None,
            num_beyond=_combine([each.num_beyond for each in measured.values()], sum),
            num_beyond_shuffled=_combine([each.num_shuffled for each in measured.values()], sum),
            spectra={job.name: each.eigenvalues for job, each in measured.items()},
        )


def _score(values: Tensor, job: Job, name: ScoreName) -> float | None:
    """Return a score; ``None`` if it overflows or there is no fit."""
    if job.fit is None and name in NEEDS_FIT:
        return None
    try:
        return compute_score(values, job.fit, score=name)
    except ScoreError:
        return None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _upper_over_random(job: Job, values: Tensor) -> float | None:
    """Return alpha of the larger half of a spectrum over that of a random matrix of the shape."""
    num_slices, rows, columns = job.shape
    try:
        fit = fit_hill(values, num_tail=len(values) // 2)
    except TailError:  # more than half of the eigenvalues are zero
        return 0.0
    return fit.alpha / random_alpha(rows=rows, columns=columns, num_slices=num_slices)


def _upper_scatter(job: Job) -> float:
    """Return how much `_upper_over_random` scatters among random matrices of the shape."""
    return _SCATTER / (min(job.shape[1:]) * math.sqrt(job.shape[0]))


def _shuffle(job: Job, part: Part, measured: _Measured) -> None:
    assert measured.edge is not None
    seed = zlib.crc32(f"{job.layer.name} {job.index}".encode("utf-8", "surrogatepass"))
    measured.num_shuffled = count_beyond_shuffled(part, edge=measured.edge, seed=seed)


def _combine(values: Iterable[float | None], combine: Callable[[list[Any]], Any]) -> Any:
    """A layer's value from those of its parts; ``None`` if one has none."""
    known = list(values)
    return None if None in known else combine(known)
