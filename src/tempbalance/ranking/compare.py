"""Rows with scores to rows with scales: groups of layers, shrinkage, averages over time, and blending."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Literal, get_args

from tempbalance.errors import ScoreError, check_count, check_flag, check_fraction
from tempbalance.ranking.assign import Assignment, ScaleRange, assign
from tempbalance.ranking.table import LayerRow, PartRow
from tempbalance.spectral.matrices import Windows, check_windows

ReferenceName = Literal["random"]
GroupFunction = Callable[[str], str | None]
KeepMean = bool | Literal["parameters"]
Scales = Mapping[str, Mapping[str, float]]  # by target, then by layer


@dataclass(frozen=True)
class Comparison:
    """How layers are compared beyond the paper, which uses none of these options.

    Attributes:
        reference: ``random`` divides alpha by the alpha of a random matrix of the same shape, so that layers of
            different shapes can be compared. It needs the score ``alpha``.
        windows: Pool the eigenvalues of square windows of each matrix, so that all have one aspect ratio: ``square``
            for windows as wide as the smaller side, or the side as a number.
        keep_mean: Divide scales by their mean over the scored layers; with ``parameters``, each layer counts as often
            as its weight has entries. Scales may then leave ``scale_range``.
        shrink: Move each score toward the mean of all, by how large its standard error is against the spread between
            layers (`shrunk`). It needs the score ``alpha``.
        smooth: Weight of the earlier scores when layers are scored again, 0 <= smooth < 1.
        blend: Calls of ``step`` over which new scales are reached, in equal parts.
        group_by: Give several layers one score, their mean: a pattern of the first words of their names, such as
            ``transformer.h.*`` for the blocks of a GPT-2, or a function from a layer's name to a group's or None.
    """

    reference: ReferenceName | None = None
    windows: Windows | None = None
    keep_mean: KeepMean = False
    shrink: bool = False
    smooth: float = 0.0
    blend: int = 1
    group_by: str | GroupFunction | None = None

    def __post_init__(self) -> None:
        if self.reference not in (None, *get_args(ReferenceName)):
            raise ValueError(f"reference must be 'random' or None, got {self.reference!r}")
        check_windows(self.windows)
        if not isinstance(self.keep_mean, bool) and self.keep_mean != "parameters":
            raise ValueError(f"keep_mean must be True, False or 'parameters', got {self.keep_mean!r}")
        check_flag("shrink", self.shrink)
        check_fraction("smooth", self.smooth, zero=True)
        check_count("blend", self.blend, least=1)
        check_group_by(self.group_by)


def check_group_by(group_by: object, names: Sequence[str] | None = None) -> None:
    """Refuse anything but a pattern, a function or None, and a pattern that groups none of the names."""
    if group_by is not None and not callable(group_by) and not isinstance(group_by, str):
        raise TypeError(f"group_by must be a name pattern or a function, got {group_by!r}")
    if names is not None and isinstance(group_by, str) and all(unit_of(name, group_by) == name for name in names):
        raise ValueError(f"group_by pattern {group_by!r} puts no layers together, of {list(names)}")


@dataclass(frozen=True)
class Scaling:
    """Turns scores into scales: for each target, between those of the smallest and the largest score."""

    assignment: Assignment
    targets: Mapping[str, ScaleRange]
    comparison: Comparison

    def compared(self, rows: Sequence[LayerRow], earlier: Sequence[LayerRow] = ()) -> list[LayerRow]:
        """Add to each row the score it is compared by, and its scales; smooth with the rows of the scoring before."""
        found: dict[str, LayerRow] = {}
        for root in dict.fromkeys(row.root for row in rows):
            scored = [row for row in rows if row.root == root and row.score is not None]
            found |= {row.name: row for row in self._within_root(scored, earlier)}
        return [found.get(row.name, row) for row in rows]

    def _within_root(self, rows: Sequence[LayerRow], earlier: Iterable[LayerRow]) -> Iterator[LayerRow]:
        units = {row.name: unit_of(row.name, self.comparison.group_by) for row in rows}
        scores = self._unit_scores(rows, units)
        smooth = self.comparison.smooth
        before = {units[row.name]: row.compared for row in earlier if row.name in units and row.compared is not None}
        for unit, old in before.items() if smooth else ():
            scores[unit] = smooth * old + (1 - smooth) * scores[unit]
        sizes = {row.name: math.prod(row.shape) if self.comparison.keep_mean == "parameters" else 1 for row in rows}
        scales: dict[str, dict[str, float]] = {}
        for target, ends in self.targets.items():
            by_kind = isinstance(self.assignment, Mapping)  # whose scores are scales
            assigned = scores if by_kind else assign(scores, assignment=self.assignment, scale_range=ends, turned=True)
            of_layers = {name: assigned[unit] for name, unit in units.items()}
            scales[target] = _with_mean_1(of_layers, sizes) if self.comparison.keep_mean else of_layers
        for row in rows:
            of_row = {target: each[row.name] for target, each in scales.items()}
            scale = of_row.pop("lr", 1.0)
            yield replace(row, compared=scores[units[row.name]], scale=scale, scales=of_row)

    def _unit_scores(self, rows: Sequence[LayerRow], units: Mapping[str, str]) -> dict[str, float]:
        members: dict[str, list[LayerRow]] = {unit: [] for unit in units.values()}
        for row in rows:
            members[units[row.name]].append(row)
        scores = {unit: _mean([row.score for row in each if row.score is not None]) for unit, each in members.items()}
        if not self.comparison.shrink:
            return scores
        errors = [math.hypot(*map(score_error, each)) / len(each) for each in members.values()]
        return dict(zip(scores, shrunk(list(scores.values()), errors), strict=True))


def unit_of(name: str, group_by: str | GroupFunction | None) -> str:
    """Return the name under which a layer is compared: that of its group, or its own.

    Example:
        >>> unit_of("model.layers.10.mlp.up_proj", "model.layers.*"), unit_of("lm_head", "model.layers.*")
        ('model.layers.10', 'lm_head')
    """
    if group_by is None:
        return name
    if callable(group_by):
        group = group_by(name)
        if group is not None and not isinstance(group, str):
            raise ScoreError(f"layer {name!r}: group_by must return a name or None, got {group!r}")
        return name if group is None else group
    patterns, words = group_by.split("."), name.split(".")
    is_in = len(words) >= len(patterns) and all(map(fnmatchcase, words, patterns))
    return ".".join(words[: len(patterns)]) if is_in else name


def shrunk(scores: Sequence[float], errors: Sequence[float]) -> list[float]:
    """Move scores toward their mean, by how large their errors are against the spread between layers.

    Empirical Bayes, with normal scores and normal errors. With x_i the scores of L layers and e_i their standard errors

        t^2 = max(0, sum_i (x_i - mean(x))^2 / (L - 1) - mean(e^2))     the spread that errors do not explain
        m   = sum_i w_i x_i / sum_i w_i,  w_i = 1 / (t^2 + e_i^2)       the mean, weighted by certainty
        x_i becomes m + t^2 / (t^2 + e_i^2) (x_i - m)

    Where errors explain all of the spread, every score becomes m. Without errors nothing moves.

    Example:
        >>> [round(each, 2) for each in shrunk([2.0, 3.0, 7.0], [0.1, 0.1, 3.0])]
        [2.0, 3.0, 4.3]
    """
    unit = max(map(abs, [*scores, *errors]), default=0.0)
    if len(scores) < 2 or max(errors) == 0:
        return list(scores)
    values, squares = [score / unit for score in scores], [(error / unit) ** 2 for error in errors]
    center = _mean(values)
    spread = max(0.0, math.fsum((value - center) ** 2 for value in values) / (len(values) - 1) - _mean(squares))
    least = spread + min(squares)  # if 0, the certain ones say it all
    weights = [least / (spread + square) if least else float(square == 0) for square in squares]
    mean = math.fsum(weight * value for weight, value in zip(weights, values, strict=True)) / math.fsum(weights)
    kept = [spread / (spread + square) if spread else 0.0 for square in squares]
    return [unit * (mean + share * (value - mean)) for share, value in zip(kept, values, strict=True)]


def score_error(row: LayerRow | PartRow) -> float:
    """Return the standard error of a score that is alpha, or alpha over a constant; of parts combined in quadrature."""
    parts = [part for part in getattr(row, "parts", ()) if part.score is not None]
    if parts:
        return math.hypot(*map(score_error, parts)) / len(parts)
    if row.score is None or not row.alpha or row.alpha_stderr is None or not math.isfinite(row.alpha_stderr):
        raise ScoreError(f"layer {row.name!r}: shrink needs an alpha with a finite error, got {row.alpha}")
    return row.alpha_stderr * (row.score / row.alpha)


def _with_mean_1(scales: Mapping[str, float], sizes: Mapping[str, int]) -> dict[str, float]:
    total = math.fsum(sizes[name] for name in scales)
    mean = math.fsum(scale * (sizes[name] / total) for name, scale in scales.items())
    if scales and mean == 0:
        raise ScoreError("keep_mean needs a scale above 0, the assignment gave 0 to every layer")
    return {name: scale / mean for name, scale in scales.items()}


def _mean(values: Sequence[float]) -> float:
    return math.fsum(value / len(values) for value in values)  # divided first: a sum may overflow


@dataclass(frozen=True)
class Blending:
    """A change from earlier scales to new ones in equal parts."""

    since: int = 0  # the call of ``step`` that makes the first part of it
    start: Scales = field(default_factory=dict)
    aim: Scales = field(default_factory=dict)

    def at(self, call: int, *, steps: int) -> Scales:
        """Return the scales at a call, where the change takes this many steps."""
        share, blended = (call - self.since + 1) / steps, {}
        if share >= 1:
            return self.aim
        for target, new in self.aim.items():
            old = self.start.get(target, {})
            either = {**new, **old}  # a layer that is skipped by now goes back to 1
            blended[target] = {name: (1 - share) * old.get(name, 1.0) + share * new.get(name, 1.0) for name in either}
        return blended


def scales_of(rows: Sequence[LayerRow], targets: Iterable[str]) -> dict[str, dict[str, float]]:
    """Return the scales of the scored layers, by target; the learning rate is always among the targets."""
    scored = [row for row in rows if row.score is not None]
    others = {target: {row.name: row.scales[target] for row in scored} for target in targets if target != "lr"}
    return {"lr": {row.name: row.scale for row in scored}, **others}
