"""Layers to rows: which are scored and which left out, their spectra, fits and scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from itertools import groupby
from operator import methodcaller
from statistics import fmean
from typing import Literal, get_args

import torch
from torch import Tensor

from tempbalance.errors import ScoreError, TailError, TempBalanceError
from tempbalance.model.layers import Layer
from tempbalance.ranking.table import LayerRow, PartRow
from tempbalance.spectral.eigenvalues import FLAT, Spectrum, check_weight
from tempbalance.spectral.matrices import Cut, Part, Windows, check_windows, cut_fused, cut_windows
from tempbalance.spectral.random_matrix import random_alpha
from tempbalance.spectral.score import NEEDS_FIT, ScoreFunction, ScoreName, check_score, compute_score
from tempbalance.spectral.tail import TailFit, TailFunction, TailName, check_tail, fit_tail
from tempbalance.spectral.workers import spectra

ReferenceName = Literal["random"]
TOLERANCE = 1e-6  # of alpha, relative; a layer that may miss it in float32 is solved again in float64


@dataclass(frozen=True)
class Scoring:
    """How layers are scored: the options of `TempBalance` that say so, described there."""

    tail: TailName | TailFunction = "median"
    tail_fraction: float = 0.5
    score: ScoreName | ScoreFunction = "alpha"
    score_first: bool = False
    score_last: bool = False
    min_eigenvalues: int = 50
    exclude: Sequence[str] = ()
    fused: Mapping[str, int | Sequence[int]] = field(default_factory=dict)
    reference: ReferenceName | None = None
    windows: Windows | None = None

    def __post_init__(self) -> None:
        check_tail(self.tail, self.tail_fraction)
        check_score(self.score)
        check_windows(self.windows)
        if self.reference not in (None, *get_args(ReferenceName)):
            raise ValueError(f"reference must be 'random' or None, got {self.reference!r}")
        if self.reference is not None and self.score != "alpha":
            raise ValueError(f"reference is what alpha is divided by: it needs score 'alpha', got {self.score!r}")
        check_count("min_eigenvalues", self.min_eigenvalues, least=3)
        if isinstance(self.exclude, str):
            raise TypeError(f"exclude must be a list of name patterns, got the string {self.exclude!r}")
        object.__setattr__(self, "exclude", tuple(self.exclude))
        if not isinstance(self.fused, Mapping):
            raise TypeError(f"fused must map name patterns to parts, got {self.fused!r}")
        for pattern, sizes in self.fused.items():
            if not all(isinstance(size, int) for size in (sizes if isinstance(sizes, list | tuple) else [sizes])):
                raise ValueError(f"fused must give a number of parts or their sizes, got {sizes!r} for {pattern!r}")


def check_count(name: str, value: int, *, least: int) -> None:
    """Refuse an option that is not a whole number, or too small a one.

    Raises:
        ValueError: If it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")


@dataclass(eq=False)
class Job:
    """One part of a layer on its way through spectrum, fit and score."""

    layer: Layer
    cut: Cut
    index: int
    name: str
    cost: int
    shape: tuple[int, int, int]
    num_eigenvalues: int
    reason: str = ""
    fit: TailFit | None = None
    score: float | None = None


@dataclass(frozen=True)
class Plan:
    """What there is to do for a model.

    Attributes:
        layers: All of them.
        reasons: Why a layer is left out before its weight is looked at, by its name; empty if it is not.
        jobs: The parts of those that are not, by the layer's name.
    """

    layers: Sequence[Layer]
    reasons: dict[str, str]
    jobs: dict[str, list[Job]]

    def rows(self) -> list[LayerRow]:
        """A row for each layer, once the jobs are done."""
        return [make_row(layer, self.jobs.get(layer.name, []), self.reasons[layer.name]) for layer in self.layers]


def score_layers(
    layers: Sequence[Layer], scoring: Scoring, *, device: str | torch.device | None = None
) -> list[LayerRow]:
    """Return a row for each layer: its score, or why it is skipped.

    Args:
        layers: The layers of a model.
        scoring: How to score them.
        device: Where to solve; by default where each weight is.

    Raises:
        ValueError: If a pattern of ``fused`` matches no layer.
        TempBalanceError: If a weight has no spectrum (NaN, meta, complex, ...) or a score is not finite; it names the
            layer.
    """
    plan = plan_layers(layers, scoring)
    solve([job for each in plan.jobs.values() for job in each], scoring, device=device)
    return plan.rows()


def plan_layers(layers: Sequence[Layer], scoring: Scoring) -> Plan:
    """Which layers are scored, and the parts that they are cut into.

    Raises:
        ValueError: If a pattern of ``fused`` matches no layer.
        TempBalanceError: If a weight is lazy or cannot be cut; it names the layer.
    """
    for pattern in scoring.fused:
        if not any(fnmatchcase(layer.name, pattern) for layer in layers):
            raise ValueError(f"fused pattern {pattern!r} matches no layer, of {[layer.name for layer in layers]}")
    first, last = ends(layers)
    reasons = {layer.name: _reason(layer, scoring, layer is first, layer is last) for layer in layers}
    jobs = {layer.name: jobs_of(layer, scoring) for layer in layers if not reasons[layer.name]}
    return Plan(layers, reasons, jobs)


def ends(layers: Sequence[Layer]) -> tuple[Layer | None, Layer | None]:
    """The first and the last layer; an embedding counts, a parameter outside any known module only among its like."""
    candidates = [layer for layer in layers if not layer.bare] or layers
    return (candidates[0], candidates[-1]) if candidates else (None, None)


def _reason(layer: Layer, scoring: Scoring, is_first: bool, is_last: bool) -> str:
    """Why a layer is left out before its weight is looked at; empty if it is not."""
    pattern = next((each for each in scoring.exclude if fnmatchcase(layer.name, each)), None)
    if pattern is not None:
        return f"name matches exclude pattern {pattern!r}"
    if layer.left_out:
        return layer.left_out
    if is_first and not scoring.score_first:
        return "first layer"
    if is_last and not scoring.score_last:
        return "last layer"
    return "frozen" if layer.is_frozen else ""


def jobs_of(layer: Layer, scoring: Scoring) -> list[Job]:
    """The parts of a layer, known from its shape alone.

    Raises:
        TempBalanceError: If the weight is lazy or cannot be cut; it names the layer.
    """
    sizes = next((each for pattern, each in scoring.fused.items() if fnmatchcase(layer.name, pattern)), None)
    cut = layer.cut if sizes is None else partial(cut_fused, sizes=sizes, dim=layer.out_dim)
    if scoring.windows is not None:
        cut = partial(_cut_windows, cut, scoring.windows)
    jobs = []
    with naming(layer):
        if not layer.shape:
            layer.weight()
        for index, part in enumerate(cut(torch.empty(layer.shape, device="meta"))):
            num_slices, rows, columns = part.slices.shape
            side = min(rows, columns)
            # the Gram matrix, and its eigenvalues, which take four times as long for a square one
            cost = num_slices * side**2 * (max(rows, columns) + 4 * side)
            job = Job(layer, cut, index, part.name, cost, (num_slices, rows, columns), part.num_eigenvalues)
            if job.num_eigenvalues < scoring.min_eigenvalues:
                job.reason = f"{job.num_eigenvalues} eigenvalues, min_eigenvalues is {scoring.min_eigenvalues}"
            jobs.append(job)
    return jobs


def _cut_windows(cut: Cut, windows: Windows, weight: Tensor) -> list[Part]:
    return [cut_windows(part, windows) for part in cut(weight)]


Refuse = Callable[[Job, TempBalanceError], None]


def _raise(job: Job, error: TempBalanceError) -> None:
    with naming(job.layer):
        raise error


def solve(
    jobs: list[Job],
    scoring: Scoring,
    *,
    see: Callable[[Job, Spectrum], None] | None = None,
    refuse: Refuse = _raise,
    memory: float = math.inf,
    load: Callable[[Layer], Tensor] = methodcaller("weight"),
    beside: bool = False,
    double: bool = False,
    device: str | torch.device | None = None,
) -> None:
    """Fit and score each job; solve it again in float64 where float32 is not accurate enough.

    Args:
        jobs: The jobs to solve; a job that already has a reason is passed over.
        scoring: How to fit and score.
        see: Called with each job and its spectrum once it is scored.
        refuse: Called with a job and its error; by default the error is raised with the layer's name.
        memory: Bytes that weights under way may take.
        load: Returns a layer's weight.
        beside: As in `spectra`.
        double: Work in float64 from the start.
        device: As in `spectra`.
    """
    own = callable(scoring.tail) or callable(scoring.score)
    # float32 moves most searches: they end near the largest values, or depend on the smallest (docs/decisions/0002)
    double = double or own or scoring.tail != "median"
    jobs = [job for job in jobs if not job.reason]
    for in_double in (True,) if double else (False, True):
        loaded: list[Job] = []
        verdicts: dict[int, bool | TempBalanceError] = {}
        judge = partial(_judge, verdicts, loaded, scoring)
        parts = _load(sorted(jobs, key=_by_cost), loaded, refuse, load)
        # a user's function is called in the calling thread, the library's own fits beside the solves
        then = None if own else judge
        results = spectra(parts, double=in_double, memory=memory, beside=beside, device=device, then=then)
        jobs = []
        for index, (job, spectrum) in enumerate(zip(loaded, results, strict=True)):
            if own and isinstance(spectrum, Spectrum):
                judge(index, spectrum)
            verdict = spectrum if isinstance(spectrum, TempBalanceError) else verdicts[index]
            if isinstance(verdict, TempBalanceError):
                refuse(job, verdict)
            elif not verdict:
                jobs.append(job)
            elif see is not None and isinstance(spectrum, Spectrum):
                see(job, spectrum)


def _by_cost(job: Job) -> int:
    return -job.cost


def _load(jobs: list[Job], loaded: list[Job], refuse: Refuse, load: Callable[[Layer], Tensor]) -> Iterator[Part]:
    """Yield the parts of jobs; load a weight once for jobs in a row, and hold it no longer than needed."""
    for layer, run in groupby(jobs, lambda job: job.layer):
        of_layer = list(run)
        try:
            weight = load(layer)
            check_weight(weight)
            parts = of_layer[0].cut(weight)
            del weight
        except TempBalanceError as err:
            for job in of_layer:
                refuse(job, err)
            continue
        for job in of_layer:
            loaded.append(job)
            yield parts[job.index]
        del parts


def _judge(
    verdicts: dict[int, bool | TempBalanceError], jobs: list[Job], scoring: Scoring, index: int, spectrum: Spectrum
) -> None:
    """Note whether a job is scored, has to wait for a solve in float64, or fails with an error."""
    try:
        verdicts[index] = _score(jobs[index], spectrum, scoring)
    except TempBalanceError as err:
        verdicts[index] = err


def _score(job: Job, spectrum: Spectrum, scoring: Scoring) -> bool:
    """Fit and score a spectrum; return False if that has to wait for a solve in float64."""
    try:
        fit = _fit(spectrum, scoring)
    except TailError as err:
        if not spectrum.precise and spectrum.largest > 0:
            return False
        job.reason = str(err)
        if spectrum.largest == 0 or callable(scoring.score) or scoring.score in NEEDS_FIT:
            return True
    else:
        if _is_doubtful(fit, spectrum):
            return False
        job.fit = fit
    job.reason = ""  # a score that does not look at the tail does not need a fit
    job.score = compute_score(spectrum.eigenvalues, job.fit, score=scoring.score)
    if scoring.reference is not None:
        job.score /= _random_alpha(job, scoring)
    return True


def _random_alpha(job: Job, scoring: Scoring) -> float:
    """What the same fit gives for random matrices of the shape of a job's."""
    num_slices, rows, columns = job.shape
    return random_alpha(
        rows=rows, columns=columns, num_slices=num_slices, tail=scoring.tail, tail_fraction=scoring.tail_fraction
    )


def _is_doubtful(fit: TailFit, spectrum: Spectrum) -> bool:
    """Return whether the error of the eigenvalues may move alpha by more than the tolerance."""
    if spectrum.precise:
        return False
    lowest = spectrum.from_units(fit.xmin)
    # alpha - 1 = k / sum_i log(x_i / xmin): the errors of the x_i cancel, that of xmin counts k times
    return (fit.alpha - 1) ** 2 / fit.alpha * spectrum.error(lowest) / lowest > TOLERANCE


def _fit(spectrum: Spectrum, scoring: Scoring) -> TailFit:
    """Return the tail fit of a spectrum, in the weight's units.

    Raises:
        TailError: If the spectrum is zero, its tail flat, or its threshold rounding noise.
    """
    if spectrum.largest == 0:
        raise TailError("all eigenvalues are zero")
    if callable(scoring.tail):
        fit = scoring.tail(spectrum.eigenvalues)
        if not isinstance(fit, TailFit) or not math.isfinite(fit.xmin) or fit.num_tail < 1:
            raise ScoreError(f"a tail function must return a finite TailFit, got {fit!r} from {scoring.tail!r}")
        xmin = spectrum.from_units(fit.xmin)
        lowest = xmin
    else:
        values, significant = spectrum.values, spectrum.significant()
        if scoring.tail != "median":
            if len(significant) < scoring.min_eigenvalues:
                raise TailError(f"rank too low: {len(significant)} of {len(values)} eigenvalues exceed rounding noise")
            values = significant
        fit = fit_tail(values, tail=scoring.tail, tail_fraction=scoring.tail_fraction)
        xmin = fit.xmin
        lowest = xmin if scoring.tail == "median" else float(values[0])  # a search may end right below the largest
        fit = replace(fit, xmin=spectrum.in_units(xmin))
    if xmin <= spectrum.uncertainty(xmin):
        raise TailError(f"rank too low: the threshold, {xmin / spectrum.largest:.1e} of the largest, is rounding noise")
    is_noise = spectrum.largest - xmin <= spectrum.uncertainty(spectrum.largest)
    if is_noise or spectrum.largest - lowest <= FLAT * spectrum.largest:
        raise TailError("flat tail: its eigenvalues are equal but for rounding")
    return fit


def make_row(layer: Layer, jobs: list[Job], reason: str) -> LayerRow:
    """A layer's row: the mean of the parts that are scored, or why none is."""
    scores = [job.score for job in jobs if job.score is not None]
    fits = [job.fit for job in jobs if job.fit is not None]
    return LayerRow(
        layer.name,
        layer.shape,
        sum(job.num_eigenvalues for job in jobs),
        alpha=fmean(fit.alpha for fit in fits) if fits else None,
        alpha_stderr=math.hypot(*(fit.alpha_stderr for fit in fits)) / len(fits) if fits else None,
        xmin=fits[0].xmin if len(jobs) == len(fits) == 1 else None,
        ks=max(fit.ks for fit in fits) if fits else None,
        num_tail=sum(fit.num_tail for fit in fits) if fits else None,
        score=fmean(scores) if scores else None,
        reason=reason if reason or scores else jobs[0].reason if jobs else "it has no matrices",
        parts=tuple(map(_part_row, jobs)) if len(jobs) > 1 else (),
    )


def _part_row(job: Job) -> PartRow:
    fit = job.fit
    if fit is None:
        return PartRow(job.name, job.num_eigenvalues, score=job.score, reason=job.reason)
    return PartRow(
        job.name, job.num_eigenvalues, fit.alpha, fit.alpha_stderr, fit.xmin, fit.ks, fit.num_tail, job.score
    )


@contextmanager
def naming(layer: Layer) -> Iterator[None]:
    """Add the layer to an error, where it is known."""
    try:
        yield
    except TempBalanceError as err:
        raise type(err)(f"layer {layer.name!r}, weight {layer.shape}: {err}") from err
