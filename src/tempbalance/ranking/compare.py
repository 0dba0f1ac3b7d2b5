"""Scores to scales: layers compared with each other, and what is made of it for each target."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Literal

from tempbalance.errors import ScoreError
from tempbalance.ranking.assign import AssignmentFunction, AssignmentName, ScaleRange, assign, check_assignment
from tempbalance.ranking.table import LayerRow, PartRow

GroupFunction = Callable[[str], str | None]
KeepMean = bool | Literal["parameters"]


@dataclass(frozen=True)
class Comparing:
    """How layers are compared: the options of `TempBalance` that say so, described there."""

    scale_range: ScaleRange = (0.5, 1.5)
    assignment: AssignmentName | AssignmentFunction = "linear"
    keep_mean: KeepMean = False
    shrink: bool = False
    smooth: float = 0.0
    group_by: str | GroupFunction | None = None
    balance: Mapping[str, ScaleRange] | None = None

    def __post_init__(self) -> None:
        check_assignment(self.assignment, self.scale_range)
        object.__setattr__(self, "scale_range", tuple(self.scale_range))
        if not isinstance(self.keep_mean, bool) and self.keep_mean != "parameters":
            raise ValueError(f"keep_mean must be True, False or 'parameters', got {self.keep_mean!r}")
        if not isinstance(self.shrink, bool):
            raise TypeError(f"shrink must be True or False, got {self.shrink!r}")
        if isinstance(self.smooth, bool) or not isinstance(self.smooth, int | float) or not 0 <= self.smooth < 1:
            raise ValueError(f"smooth must satisfy 0 <= smooth < 1, got {self.smooth!r}")
        if self.group_by is not None and not callable(self.group_by) and not isinstance(self.group_by, str):
            raise TypeError(f"group_by must be a name pattern or a function, got {self.group_by!r}")
        self._check_balance()

    def _check_balance(self) -> None:
        if self.balance is None:
            return
        if not isinstance(self.balance, Mapping) or not self.balance:
            raise ValueError(f"balance must map what is balanced to two scales, got {self.balance!r}")
        if self.scale_range != Comparing.scale_range:
            raise ValueError(
                f"give the range of lr in balance, beside the others, or as scale_range, not both: got "
                f"scale_range={self.scale_range!r} and balance={self.balance!r}"
            )
        for name, ends in self.balance.items():
            check_assignment(self.assignment, ends, name=f"balance[{name!r}]", turned=True)
        object.__setattr__(self, "balance", {name: tuple(ends) for name, ends in self.balance.items()})

    @property
    def targets(self) -> Mapping[str, ScaleRange]:
        """What is balanced, with the scales of the smallest and of the largest score."""
        return {"lr": self.scale_range} if self.balance is None else self.balance

    def check_names(self, names: Sequence[str]) -> None:
        """Refuse a pattern that says nothing about a model.

        Raises:
            ValueError: If ``group_by`` matches none of its layers' names.
        """
        if isinstance(self.group_by, str) and all(unit_of(name, self.group_by) == name for name in names):
            raise ValueError(f"group_by pattern {self.group_by!r} puts no layers together, of {list(names)}")

    def compared(self, rows: Sequence[LayerRow], earlier: Iterable[LayerRow] = ()) -> list[LayerRow]:
        """Rows with what their layers are compared by, and their scales.

        Args:
            rows: Of one scoring.
            earlier: Of the one before.

        Raises:
            ScoreError: If a score does not suit the assignment, or a function gives what is no scale or no group.
        """
        units = {row.name: unit_of(row.name, self.group_by) for row in rows if row.score is not None}
        scores = self._smoothed(self._unit_scores(rows, units), units, earlier)
        sizes = {row.name: math.prod(row.shape) if self.keep_mean == "parameters" else 1 for row in rows}
        scales: dict[str, dict[str, float]] = {}
        for target, ends in self.targets.items():
            assigned = assign(scores, assignment=self.assignment, scale_range=ends, turned=True)
            of_layers = {name: assigned[unit] for name, unit in units.items()}
            scales[target] = _with_mean_1(of_layers, sizes) if self.keep_mean else of_layers
        return [
            replace(
                row,
                compared=scores[units[row.name]] if row.name in units else None,
                scale=scales.get("lr", {}).get(row.name, 1.0),
                scales={
                    target: each[row.name] for target, each in scales.items() if target != "lr" and row.name in each
                },
            )
            for row in rows
        ]

    def _unit_scores(self, rows: Sequence[LayerRow], units: Mapping[str, str]) -> dict[str, float]:
        """The mean score of each unit, drawn toward that of all if so wanted."""
        members: dict[str, list[LayerRow]] = {}
        for row in rows:
            if row.name in units:
                members.setdefault(units[row.name], []).append(row)
        scores = {unit: _mean([row.score for row in each if row.score is not None]) for unit, each in members.items()}
        if not self.shrink:
            return scores
        errors = [math.hypot(*map(score_error, each)) / len(each) for each in members.values()]
        return dict(zip(scores, shrunk(list(scores.values()), errors), strict=True))

    def _smoothed(
        self, scores: dict[str, float], units: Mapping[str, str], earlier: Iterable[LayerRow]
    ) -> dict[str, float]:
        """The scores averaged with those of before."""
        if self.smooth == 0:
            return scores
        before = {units[row.name]: row.compared for row in earlier if row.compared is not None and row.name in units}
        return {
            unit: score if (old := before.get(unit)) is None else self.smooth * old + (1 - self.smooth) * score
            for unit, score in scores.items()
        }


def unit_of(name: str, group_by: str | GroupFunction | None) -> str:
    """What a layer is compared as: a group that it belongs to, or itself.

    Args:
        name: The layer.
        group_by: A pattern of the first words of names, or a function that gives a layer's group or ``None``.

    Raises:
        ScoreError: If the function gives what is no name.

    Example:
        >>> unit_of("model.layers.10.mlp.up_proj", "model.layers.*"), unit_of("lm_head", "model.layers.*")
        ('model.layers.10', 'lm_head')
    """
    if group_by is None:
        return name
    if callable(group_by):
        group = group_by(name)
        if group is not None and not isinstance(group, str):
            raise ScoreError(f"layer {name!r}: group_by must give a name or None, got {group!r}")
        return name if group is None else group
    patterns, words = group_by.split("."), name.split(".")
    is_in = len(words) >= len(patterns) and all(map(fnmatchcase, words, patterns))
    return ".".join(words[: len(patterns)]) if is_in else name


def shrunk(scores: Sequence[float], errors: Sequence[float]) -> list[float]:
    """Scores drawn toward their mean as far as their errors are large against the spread between layers.

    Empirical Bayes, with normal scores and normal errors. With x_i the scores of L layers and e_i their standard errors

        t^2 = max(0, sum_i (x_i - mean(x))^2 / (L - 1) - mean(e^2))     the spread that errors do not explain
        m   = sum_i w_i x_i / sum_i w_i,  w_i = 1 / (t^2 + e_i^2)       the layers' mean, each counted as it is certain
        x_i becomes m + t^2 / (t^2 + e_i^2) (x_i - m)

    Where errors explain all of the spread, every score becomes m. Without errors nothing moves.

    Args:
        scores: Of the layers.
        errors: Their standard errors, >= 0.

    Example:
        >>> [round(each, 2) for each in shrunk([2.0, 3.0, 7.0], [0.1, 0.1, 3.0])]
        [2.0, 3.0, 4.3]
    """
    unit = max(map(abs, [*scores, *errors]), default=0.0)
    if len(scores) < 2 or max(errors) == 0:
        return list(scores)
    values, squares = [score / unit for score in scores], [(error / unit) ** 2 for error in errors]
    center = _mean(values)
    spread = math.fsum((value - center) ** 2 for value in values) / (len(values) - 1) - _mean(squares)
    spread = max(spread, 0.0)
    least = spread + min(squares)
    if least == 0:  # the certain ones say it all
        weights = [float(square == 0) for square in squares]
    else:
        weights = [least / (spread + square) for square in squares]
    mean = math.fsum(weight * value for weight, value in zip(weights, values, strict=True)) / math.fsum(weights)
    kept = [spread / (spread + square) if spread else 0.0 for square in squares]
    return [unit * (mean + share * (value - mean)) for share, value in zip(kept, values, strict=True)]


def score_error(row: LayerRow | PartRow) -> float:
    """The standard error of a score that is alpha, or alpha over a constant; of parts combined in quadrature."""
    parts = [part for part in getattr(row, "parts", ()) if part.score is not None]
    if parts:
        return math.hypot(*map(score_error, parts)) / len(parts)
    if row.score is None or not row.alpha or row.alpha_stderr is None or not math.isfinite(row.alpha_stderr):
        raise ScoreError(f"layer {row.name!r}: shrink needs an alpha with a finite error, got {row.alpha}")
    return row.alpha_stderr * (row.score / row.alpha)


def _with_mean_1(scales: Mapping[str, float], sizes: Mapping[str, int]) -> dict[str, float]:
    """Scales divided by their mean.

    Raises:
        ScoreError: If all are 0.
    """
    if not scales:
        return {}
    total = math.fsum(sizes[name] for name in scales)
    mean = math.fsum(scale * (sizes[name] / total) for name, scale in scales.items())
    if mean == 0:
        raise ScoreError("keep_mean needs a scale above 0, the assignment gave 0 to every layer")
    return {name: scale / mean for name, scale in scales.items()}


def _mean(values: Sequence[float]) -> float:
    if len(values) == 1:
        return values[0]  # to the bit
    return math.fsum(value / len(values) for value in values)


Scales = Mapping[str, Mapping[str, float]]  # by target, then by layer


@dataclass(frozen=True)
class Blending:
    """A passage from some scales to others, in equal parts.

    Attributes:
        since: The call of ``step`` that takes the first part.
        start: The scales before it; 1 where there is none.
        aim: Those at the end.
    """

    since: int = 0
    start: Scales = field(default_factory=dict)
    aim: Scales = field(default_factory=dict)

    def at(self, call: int, *, steps: int) -> dict[str, dict[str, float]]:
        """The scales at a call, where the passage takes so many."""
        taken = call - self.since + 1
        if taken >= steps:
            return {target: dict(scales) for target, scales in self.aim.items()}
        share = taken / steps
        return {
            target: {
                layer: (1 - share) * before.get(layer, 1.0) + share * scales.get(layer, 1.0)
                for layer in {**scales, **before}  # one that is left out since is on its way to 1
            }
            for target, scales in self.aim.items()
            for before in [self.start.get(target, {})]
        }


def scales_of(rows: Sequence[LayerRow], targets: Sequence[str]) -> dict[str, dict[str, float]]:
    """What the scored layers' rows ask for, by target; the rate is always among them."""
    scored = [row for row in rows if row.score is not None]
    others = {target: {row.name: row.scales[target] for row in scored} for target in targets if target != "lr"}
    return {"lr": {row.name: row.scale for row in scored}, **others}
