"""Layers to rows: which are scored and which skipped, their spectra, fits and scores."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from itertools import groupby
from operator import methodcaller
from statistics import correlation, fmean

import torch
from torch import Tensor

from tempbalance.errors import ScoreError, TailError, TempBalanceError, check_count, check_flag
from tempbalance.model.layers import Layer
from tempbalance.ranking.compare import Comparison
from tempbalance.ranking.table import LayerRow, PartRow
from tempbalance.spectral.eigenvalues import FLAT, Spectrum, check_weight
from tempbalance.spectral.matrices import Cut, Part, Windows, cut_fused, cut_windows
from tempbalance.spectral.random_matrix import random_alpha
from tempbalance.spectral.repair import fit_spectrum
from tempbalance.spectral.score import NEEDS_FIT, ScoreFunction, ScoreName, check_score, compute_score
from tempbalance.spectral.tail import FIXED_TAILS, TailFit, TailFunction, TailName, check_tail
from tempbalance.spectral.workers import spectra

Device = str | torch.device | None


@dataclass(frozen=True)
class Scoring:
    """How layers are scored: options of `TempBalance`, which describes them."""

    tail: TailName | TailFunction = "median"
    tail_fraction: float = 0.5
    score: ScoreName | ScoreFunction = "alpha"
    score_first: bool = False
    score_last: bool = False
    min_eigenvalues: int = 50
    exclude: Sequence[str] = ()
    fused: Mapping[str, int | Sequence[int]] = field(default_factory=dict)
    score_embeddings: bool = False
    roots: Sequence[str] = ()
    comparison: Comparison = field(default_factory=Comparison)

    @property
    def by_kind(self) -> Mapping[str, float] | None:
        """Scales by kind of layer, an assignment that needs no spectra; None if layers are scored."""
        assignment = getattr(self, "assignment", None)
        return assignment if isinstance(assignment, Mapping) else None

    def __post_init__(self) -> None:
        check_tail(self.tail, self.tail_fraction)
        check_score(self.score)
        if not isinstance(self.comparison, Comparison):
            raise TypeError(f"comparison must be a tempbalance.Comparison, got {self.comparison!r}")
        for name in ("reference", "shrink"):
            if getattr(self.comparison, name) and self.score != "alpha":
                raise ValueError(f"{name} needs score 'alpha', got {self.score!r}")
        check_count("min_eigenvalues", self.min_eigenvalues, least=3)
        for name, items in (("exclude", "name patterns"), ("roots", "names of submodules")):
            value = getattr(self, name)
            if isinstance(value, str) or not isinstance(value, Iterable) or not all(isinstance(x, str) for x in value):
                raise TypeError(f"{name} must be a list of {items}, got {value!r}")
            object.__setattr__(self, name, tuple(value))
        for root in self.roots:
            is_outer = any(each.startswith(f"{root}.") for each in self.roots)
            if not root or is_outer or self.roots.count(root) > 1:
                raise ValueError(f"roots must be names of submodules that do not overlap, got {self.roots}")
        if not isinstance(self.fused, Mapping):
            raise TypeError(f"fused must map name patterns to parts, got {self.fused!r}")
        for pattern, sizes in self.fused.items():
            given = sizes if isinstance(sizes, list | tuple) else [sizes]
            if not isinstance(pattern, str) or not all(type(size) is int for size in given):
                raise ValueError(f"fused must give a number of parts or their sizes, got {sizes!r} for {pattern!r}")
        for name in ("score_first", "score_last", "score_embeddings"):
            check_flag(name, getattr(self, name))


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
    """The layers of a model; by name, why each is skipped, the jobs of the others, and the root that each is in."""

    layers: Sequence[Layer]
    reasons: dict[str, str]
    jobs: dict[str, list[Job]]
    roots: dict[str, str]
    scales: Mapping[str, float] = field(default_factory=dict)  # by kind of layer

    def rows(self) -> list[LayerRow]:
        named = [(layer.name, layer) for layer in self.layers]
        reasons, roots, scales = self.reasons, self.roots, self.scales
        return [make_row(x, self.jobs.get(name, []), reasons[name], roots[name], scales.get(name)) for name, x in named]


def score_layers(layers: Sequence[Layer], scoring: Scoring, *, device: Device = None) -> list[LayerRow]:
    """Return a row for each layer: its score, or why it is skipped. Solve on the device, or where each weight is."""
    plan = plan_layers(layers, scoring)
    solve([job for each in plan.jobs.values() for job in each], scoring, device=device)
    return plan.rows()


def plan_layers(layers: Sequence[Layer], scoring: Scoring) -> Plan:
    names = [layer.name for layer in layers]
    for pattern in scoring.fused:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ValueError(f"fused pattern {pattern!r} matches no layer, of {names}")
    roots = {name: next((root for root in scoring.roots if f"{name}.".startswith(f"{root}.")), "") for name in names}
    for root in scoring.roots:
        if root not in roots.values():
            raise ValueError(f"root {root!r} contains no layer, of {names}")
    at_ends = {root: ends([layer for layer in layers if roots[layer.name] == root]) for root in set(roots.values())}
    reasons = {layer.name: _reason(layer, scoring, roots[layer.name], *at_ends[roots[layer.name]]) for layer in layers}
    if scoring.by_kind is not None:
        lasts = [last for _, last in at_ends.values()]
        kinds = {layer.name: kind_of(layer, is_last=layer in lasts) for layer in layers if not reasons[layer.name]}
        return Plan(layers, reasons, {}, roots, {name: scoring.by_kind.get(kind, 1.0) for name, kind in kinds.items()})
    return Plan(layers, reasons, {x.name: jobs_of(x, scoring) for x in layers if not reasons[x.name]}, roots)


def kind_of(layer: Layer, *, is_last: bool) -> str:
    """Return the kind of a layer, by its type, place and name; a matrix is feed-forward if nothing else fits."""
    if layer.is_embedding or len(layer.shape) > 3:
        return "embedding" if layer.is_embedding else "convolution"
    if is_last:
        return "head"
    return "attention" if _ATTENTION.search(layer.name) else "feed-forward"


def ends(layers: Sequence[Layer]) -> tuple[Layer | None, Layer | None]:
    """Return the first and the last layer. Embeddings count; bare parameters count only if there is nothing else."""
    candidates = [layer for layer in layers if not layer.bare] or layers
    return (candidates[0], candidates[-1]) if candidates else (None, None)


def _reason(layer: Layer, scoring: Scoring, root: str, first: Layer | None, last: Layer | None) -> str:
    """Say why a layer is skipped before its weight is loaded; empty if it is not."""
    pattern = next((each for each in scoring.exclude if fnmatchcase(layer.name, each)), None)
    if pattern is not None:
        return f"name matches exclude pattern {pattern!r}"
    if scoring.roots and not root:
        return "outside roots"
    by_kind = scoring.by_kind is not None
    if not ((scoring.score_embeddings or by_kind) and layer.is_own_embedding):
        if layer.skipped:
            return layer.skipped
        if layer is first and not scoring.score_first and not by_kind:
            return "first layer"
        if layer is last and not scoring.score_last and not by_kind:
            return "last layer"
    return "frozen" if layer.is_frozen else ""


def jobs_of(layer: Layer, scoring: Scoring) -> list[Job]:
    """Return a job for each part of a layer; one is skipped if its matrices have a side below ``min_eigenvalues``."""
    sizes = next((each for pattern, each in scoring.fused.items() if fnmatchcase(layer.name, pattern)), None)
    cut = layer.cut if sizes is None else partial(cut_fused, sizes=sizes, dim=layer.out_dim)
    if scoring.comparison.windows is not None:
        cut = partial(_cut_windows, cut, scoring.comparison.windows)
    jobs = []
    with naming(layer):
        if not layer.shape:
            layer.weight()
        for index, part in enumerate(cut(torch.empty(layer.shape, device="meta"))):
            num_slices, rows, columns = part.slices.shape
            side = min(rows, columns) if num_slices else 0
            # the Gram matrix, and its eigenvalues, which take four times as long for a square one
            cost = num_slices * side**2 * (max(rows, columns) + 4 * side)
            job = Job(layer, cut, index, part.name, cost, (num_slices, rows, columns), part.num_eigenvalues)
            if side < scoring.min_eigenvalues:
                found = f"{side} eigenvalue{'' if side == 1 else 's'}"
                found = f"{num_slices} matrices of {found} each" if num_slices > 1 else found
                job.reason = f"{found}, min_eigenvalues is {scoring.min_eigenvalues}"
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
    device: Device = None,
) -> None:
    """Fit and score each job without a reason; solve it again in float64 where float32 is not accurate enough.

    ``see`` is called with each scored job and its spectrum, ``refuse`` with a failed one and its error, which it raises
    with the layer's name by default. The other options are those of `spectra`.
    """
    own = callable(scoring.tail) or callable(scoring.score)
    if scoring.tail not in FIXED_TAILS:
        device = "cpu"  # a device does not keep what it takes to repair eigenvalues
    jobs = [job for job in jobs if not job.reason]
    for in_double in (True,) if double or own else (False, True):
        loaded: list[Job] = []
        verdicts: dict[int, bool | TempBalanceError] = {}
        judge = partial(_judge, verdicts, loaded, scoring)
        parts = _load(sorted(jobs, key=lambda job: -job.cost), loaded, refuse, load)
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
        job.fit = fit
    job.reason = ""  # a score that does not look at the tail does not need a fit
    job.score = compute_score(spectrum.eigenvalues, job.fit, score=scoring.score)
    if scoring.comparison.reference is not None:
        job.score /= _random_alpha(job, scoring)
    return True


def _random_alpha(job: Job, scoring: Scoring) -> float:
    num_slices, rows, columns = job.shape
    return random_alpha(
        rows=rows, columns=columns, num_slices=num_slices, tail=scoring.tail, tail_fraction=scoring.tail_fraction
    )


def _fit(spectrum: Spectrum, scoring: Scoring) -> TailFit:
    """Return the tail fit of a spectrum, in the weight's units."""
    if spectrum.largest == 0:
        raise TailError("all eigenvalues are zero")
    if callable(scoring.tail):
        fit = scoring.tail(spectrum.eigenvalues)
        if not isinstance(fit, TailFit) or not math.isfinite(fit.xmin) or fit.num_tail < 1:
            raise ScoreError(f"a tail function must return a finite TailFit, got {fit!r} from {scoring.tail!r}")
        xmin = spectrum.from_units(fit.xmin)
        lowest = xmin
    else:
        fit = fit_spectrum(
            spectrum,
            tail=scoring.tail,
            tail_fraction=scoring.tail_fraction,
            min_eigenvalues=scoring.min_eigenvalues,
        )
        xmin = fit.xmin
        # a search may end right below the largest
        lowest = xmin if scoring.tail in FIXED_TAILS else float(spectrum.significant()[0])
        fit = replace(fit, xmin=spectrum.in_units(xmin))
    if xmin <= spectrum.uncertainty(xmin):
        raise TailError(f"rank too low: the threshold, {xmin / spectrum.largest:.1e} of the largest, is rounding noise")
    is_noise = spectrum.largest - xmin <= spectrum.uncertainty(spectrum.largest)
    if is_noise or spectrum.largest - lowest <= FLAT * spectrum.largest:
        raise TailError("flat tail: its eigenvalues are equal but for rounding")
    return fit


def make_row(layer: Layer, jobs: Sequence[Job], reason: str, root: str = "", scale: float | None = None) -> LayerRow:
    """Return a layer's row: the mean over its scored parts, or why none is scored. A fixed scale is its score."""
    scores = [job.score for job in jobs if job.score is not None] if scale is None else [scale]
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
        parts=tuple(_part_row(job) for job in jobs) if len(jobs) > 1 else (),
        root=root,
    )


def _part_row(job: Job) -> PartRow:
    names = ("alpha", "alpha_stderr", "xmin", "ks", "num_tail")
    fitted = {} if job.fit is None else {name: getattr(job.fit, name) for name in names}
    return PartRow(job.name, job.num_eigenvalues, **fitted, score=job.score, reason=job.reason)


@contextmanager
def naming(layer: Layer) -> Iterator[None]:
    """Add the layer to an error."""
    try:
        yield
    except TempBalanceError as err:
        raise type(err)(f"layer {layer.name!r}, weight {layer.shape}: {err}") from err


_ATTENTION = re.compile(r"attn|attention|qkv|[qkv]_proj|query|key|value|in_proj|out_proj", re.IGNORECASE)
_FUSED = re.compile(r"(qkv|c_attn|in_proj)[^.]*$", re.IGNORECASE)
_MIN_EXPLAINED = 0.6  # share of alpha's variance
_MIN_SPREAD = 1.05  # the largest alpha of random matrices over the smallest
_MIN_LAYERS = 4


def hints(rows: Sequence[LayerRow], layers: Sequence[Layer], scoring: Scoring) -> list[str]:
    """Name the options that the shapes and names of a model's layers suggest, at most one line about each."""
    alphas = {row.name: row.alpha for row in rows if row.alpha is not None}
    jobs = {layer: jobs_of(layer, scoring) for layer in layers if layer.name in alphas}
    unused = [each for each in scoring.exclude if not any(fnmatchcase(layer.name, each) for layer in layers)]
    lines = [f"exclude pattern {pattern!r} matches no layer" for pattern in unused]
    share = _explained_by_shape(list(alphas.values()), jobs, scoring)
    if share >= _MIN_EXPLAINED:
        lines.append(
            f"the shapes of the layers explain {share:.0%} of the variance of alpha: Comparison(reference='random') "
            "compares each alpha with that of a random matrix of the same shape"
        )
    whole = []
    for layer, parts in jobs.items():
        sides = layer.shape[layer.out_dim], 3 * layer.shape[1 - layer.out_dim]
        if len(parts) == 1 and len(layer.shape) == 2 and sides[0] == sides[1] and _FUSED.search(layer.name):
            whole.append(layer.name)
    patterns = {}
    for name in whole:
        pattern = f"*{name.rpartition('.')[2]}"
        patterns[pattern if all(each in whole for each in alphas if fnmatchcase(each, pattern)) else name] = 3
    if patterns:
        lines.append(f"weights look like three projections in one: fused={patterns!r} scores each")
    return lines


def _explained_by_shape(alphas: list[float], jobs: Mapping[Layer, list[Job]], scoring: Scoring) -> float:
    """Return R^2 of alpha against the alpha of random matrices of the same shape; 0 where it says nothing."""
    is_plain = scoring.comparison.reference is None and scoring.score == "alpha"
    if not is_plain or scoring.tail not in FIXED_TAILS or len(alphas) < _MIN_LAYERS:  # a search takes a second a shape
        return 0.0
    expected = [fmean(_random_alpha(job, scoring) for job in each if not job.reason) for each in jobs.values()]
    if max(expected) < _MIN_SPREAD * min(expected) or max(alphas) == min(alphas):
        return 0.0
    return correlation(alphas, expected) ** 2
