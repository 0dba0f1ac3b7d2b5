"""Alphas -> how much of each layer is pruned, or the rank of its adapter, within a budget that is kept exactly."""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from statistics import fmean
from typing import Any, Literal, get_args

from tempbalance.ranking.compare import GroupFunction, check_group_by, unit_of
from tempbalance.ranking.table import LayerRow, LayerTable

Target = Literal["sparsity", "lora-rank"]
TARGETS: tuple[str, ...] = get_args(Target)
By = Literal["alpha", "score"]
SPREAD = 0.3  # AlphaPruning's scripts have 0.2 and 0.3


@dataclass(frozen=True)
class Share:
    """What one layer gets.

    Attributes:
        name: The layer.
        shape: Of its weight.
        alpha: Of the layer.
        compared: What its share follows from: alpha or the score, averaged over its group.
        num_pruned: How many of its weights are pruned; ``None`` for ranks.
        rank: Of its adapter; ``None`` for sparsity.
    """

    name: str
    shape: tuple[int, ...]
    alpha: float
    compared: float
    num_pruned: int | None = None
    rank: int | None = None

    @property
    def num_parameters(self) -> int:
        """Of the weight."""
        return math.prod(self.shape)

    @property
    def sparsity(self) -> float | None:
        """The part of the weight that is pruned, 0 to less than 1."""
        return None if self.num_pruned is None else self.num_pruned / self.num_parameters

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, strings and lists."""
        values = {"name": self.name, "shape": list(self.shape), "num_parameters": self.num_parameters}
        given = {"num_pruned": self.num_pruned, "sparsity": self.sparsity, "rank": self.rank}
        given = {name: value for name, value in given.items() if value is not None}
        return {**values, "alpha": self.alpha, "compared": self.compared, **given}


@dataclass(frozen=True)
class Allocation:
    """A budget shared out among the layers of a model.

    Attributes:
        target: ``sparsity`` or ``lora-rank``.
        value: The mean: over the weights for sparsity, over the layers for ranks.
        spread: How far shares go from it; ``None`` where they are in proportion to alpha.
        layers: The layers with an alpha, in the table's order.
        left_out: Why each other layer has no share.
        lora_alpha: That of a layer with the mean rank; ``None`` for sparsity.
    """

    target: Target
    value: float
    spread: float | None
    layers: tuple[Share, ...]
    left_out: dict[str, str] = field(default_factory=dict)
    lora_alpha: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values: the layers one by one, and in the form that tools for pruning, or peft, take."""
        target = {"name": self.target, "value": self.value, "spread": self.spread}
        return {
            "target": target if self.lora_alpha is None else {**target, "lora_alpha": self.lora_alpha},
            "layers": [layer.to_dict() for layer in self.layers],
            "left_out": [{"name": name, "reason": reason} for name, reason in self.left_out.items()],
            **(self._for_pruning() if self.target == "sparsity" else self._for_peft()),
        }

    def _for_pruning(self) -> dict[str, Any]:
        return {"sparsity": {layer.name: layer.sparsity for layer in self.layers}}

    def _for_peft(self) -> dict[str, Any]:
        """Options of ``LoraConfig``; peft takes names as expressions that match ends of names, hence the anchors."""
        assert self.lora_alpha is not None
        ranks = {re.escape(layer.name): layer.rank for layer in self.layers if layer.rank is not None}
        scaling = Fraction(self.lora_alpha) / Fraction(self.value)
        return {
            "target_modules": "|".join(ranks),
            "rank_pattern": {f"^{name}": rank for name, rank in ranks.items()},
            "alpha_pattern": {f"^{name}": _plain(rank * scaling) for name, rank in ranks.items()},
        }


def allocate(
    table: LayerTable,
    *,
    target: Target,
    value: float,
    spread: float | None = None,
    lora_alpha: float | None = None,
    by: By = "alpha",
    group_by: str | GroupFunction | None = None,
) -> Allocation:
    """Share a budget out among layers: those with a larger alpha, less well trained, get more of it.

    ``sparsity`` is AlphaPruning's (Lu et al., 2024): a line through the alphas, from 1 - ``spread`` at the smallest to
    1 + ``spread`` at the largest, times the level at which ``round(value x weights)`` weights are pruned. ``lora-rank``
    is in proportion to alpha, or on such a line, and the ranks sum to ``value`` x layers. What a layer cannot take,
    because at least one weight stays and a rank is from 1 to the smaller side, is shared out among the others. Whole
    numbers are found by largest remainder, the first layer first among equal ones.

    Args:
        table: Of `diagnose`, or of a scheduler; layers without an alpha are left out.
        target: What is shared out, ``sparsity`` or ``lora-rank``.
        value: The mean: a sparsity between 0 and 1 over all weights, or a whole rank over the layers.
        spread: Half the width of the line, 0 to less than 1; ``None`` is 0.3 for sparsity, as in scripts of
            AlphaPruning, and ranks in proportion to alpha.
        lora_alpha: For ranks, peft's ``lora_alpha`` at the mean rank; each layer has the same ``lora_alpha / r``.
            ``None`` makes that 1.
        by: What layers are compared by, ``alpha`` or ``score``: in a diagnosis that is alpha over the alpha of a
            random matrix of the same shape.
        group_by: Gives all layers of a group the mean of what they are compared by, as AlphaPruning does for blocks of
            transformers: a pattern of the first words of their names, such as ``model.layers.*``, or a function that
            gives a layer's group or ``None``.

    Raises:
        ValueError: If an option is out of range, no layer has an alpha, the pattern puts no layers together, or the
            layers cannot take the budget.
        ScoreError: If ``group_by`` gives what is no name.

    Example:
        >>> rows = [LayerRow("a", (10, 10), alpha=2.0), LayerRow("b", (10, 10), alpha=4.0)]
        >>> [layer.sparsity for layer in allocate(LayerTable(rows), target="sparsity", value=0.5).layers]
        [0.35, 0.65]
    """
    check_target(target, value, spread=spread, lora_alpha=lora_alpha)
    if by not in get_args(By):
        raise ValueError(f"by must be one of {', '.join(get_args(By))}, got {by!r}")
    rows = [row for row in table if row.alpha is not None and getattr(row, by) is not None]
    allocated = {row.name for row in rows}
    left_out = {row.name: row.reason or f"it has no {by}" for row in table if row.name not in allocated}
    if not rows:
        raise ValueError(f"no layer has {'an alpha' if by == 'alpha' else 'a score'}: all {len(left_out)} are left out")
    rows = _compared(rows, by, group_by)
    if target == "sparsity":
        spread = SPREAD if spread is None else spread
        return Allocation(target, value, spread, _prune(rows, value, spread), left_out)
    value = int(value)
    lora_alpha = value if lora_alpha is None else lora_alpha
    return Allocation(target, value, spread, _rank(rows, value, spread), left_out, _plain(lora_alpha))


def check_target(target: str, value: float, *, spread: float | None, lora_alpha: float | None) -> None:
    """Refuse options that no table could be allocated with.

    Raises:
        ValueError: If one is out of range, or does not go with the target.
    """
    if target not in TARGETS:
        raise ValueError(f"target must be one of {', '.join(TARGETS)}, got {target!r}")
    if target == "sparsity" and not 0 < value < 1:
        raise ValueError(f"sparsity must satisfy 0 < sparsity < 1, got {value}")
    if target == "lora-rank" and not (value >= 1 and float(value).is_integer()):
        raise ValueError(f"lora-rank must be a whole number of at least 1, got {value}")
    if spread is not None and not 0 <= spread < 1:
        raise ValueError(f"spread must satisfy 0 <= spread < 1, got {spread}")
    if lora_alpha is not None and target != "lora-rank":
        raise ValueError(f"lora_alpha goes with lora-rank, the target is {target}")
    if lora_alpha is not None and not 0 < lora_alpha < math.inf:
        raise ValueError(f"lora_alpha must be a number above 0, got {lora_alpha}")


def _compared(rows: Sequence[LayerRow], by: By, group_by: str | GroupFunction | None) -> list[LayerRow]:
    """Rows with what they are compared by: their own, or the mean over their group."""
    check_group_by(group_by, [row.name for row in rows])
    units = [unit_of(row.name, group_by) for row in rows]
    members: dict[str, list[float]] = {}
    for unit, row in zip(units, rows, strict=True):
        members.setdefault(unit, []).append(getattr(row, by))
    return [replace(row, compared=fmean(members[unit])) for unit, row in zip(units, rows, strict=True)]


def _prune(rows: Sequence[LayerRow], value: float, spread: float) -> tuple[Share, ...]:
    sizes = [math.prod(row.shape) for row in rows]
    total, most = round(value * sum(sizes)), sum(sizes) - len(sizes)
    if total > most:
        rule = f"sparsity must leave a weight in each layer, so prune at most {most} of the {sum(sizes)} weights"
        raise ValueError(f"{rule}, got {value}, which is {total}")
    parts = [each * size for each, size in zip(_parts(rows, spread), sizes, strict=True)]
    counts = apportion(parts, [(0, size - 1) for size in sizes], total)
    return tuple(_share(row, num_pruned=count) for row, count in zip(rows, counts, strict=True))


def _rank(rows: Sequence[LayerRow], value: int, spread: float | None) -> tuple[Share, ...]:
    bounds = [(1, _smaller_side(row)) for row in rows]
    most = sum(high for _, high in bounds)
    if value * len(rows) > most:
        rule = f"lora-rank must be at most {most // len(rows)} for the smaller sides of these {len(rows)} layers"
        raise ValueError(f"{rule}, got {value}")
    ranks = apportion(_parts(rows, spread), bounds, value * len(rows))
    return tuple(_share(row, rank=rank) for row, rank in zip(rows, ranks, strict=True))


def _share(row: LayerRow, **given: int) -> Share:
    assert row.alpha is not None
    assert row.compared is not None
    return Share(row.name, row.shape, row.alpha, row.compared, **given)


def _smaller_side(row: LayerRow) -> int:
    """Of the matrix that an adapter's product is: one for each expert of a stack, or outputs x all else."""
    is_stack = len(row.shape) == 3 and row.parts
    return min(row.shape[1:]) if is_stack else min(row.shape[0], math.prod(row.shape[1:]))


def _parts(rows: Sequence[LayerRow], spread: float | None) -> list[Fraction]:
    """The layers' parts before the budget: what they are compared by, or 1 - spread to 1 + spread on a line."""
    values = [Fraction(row.compared) for row in rows if row.compared is not None]
    low, width = min(values), max(values) - min(values)
    if spread is not None:
        return [1 + Fraction(spread) * (2 * (value - low) / width - 1) if width else Fraction(1) for value in values]
    if low <= 0:
        raise ValueError(f"shares in proportion need scores above 0, got {float(low)}: give a spread")
    return values


def apportion(parts: Sequence[Fraction], bounds: Sequence[tuple[int, int]], total: int) -> list[int]:
    """Whole numbers with a given sum, as nearly as possible in proportion to parts, each within its bounds.

    Args:
        parts: Above 0.
        bounds: The least and the most of each.
        total: Between the sums of these.

    Example:
        >>> apportion([Fraction(1), Fraction(2), Fraction(9)], [(0, 9), (0, 9), (0, 6)], 12)
        [2, 4, 6]
    """
    pairs = list(zip(parts, bounds, strict=True))

    def at(level: Fraction) -> list[Fraction]:
        return [min(max(level * part, Fraction(low)), Fraction(high)) for part, (low, high) in pairs]

    levels = sorted({bound / part for part, pair in pairs for bound in pair})
    index = bisect_left(levels, Fraction(total), key=lambda level: sum(at(level), Fraction(0)))
    above = at(levels[index])
    below = at(levels[index - 1]) if index else above
    gap = sum(above) - sum(below)  # between two levels where a bound is met, all of it is linear
    step = (total - sum(below)) / gap if gap else Fraction(0)
    exact = [low + step * (high - low) for low, high in zip(below, above, strict=True)]
    whole = [math.floor(each) for each in exact]
    by_remainder = sorted(range(len(exact)), key=lambda place: whole[place] - exact[place])
    for place in by_remainder[: total - sum(whole)]:
        whole[place] += 1
    return whole


def _plain(number: Fraction | float) -> float:
    """A whole number as such."""
    return int(number) if number == int(number) else float(number)
