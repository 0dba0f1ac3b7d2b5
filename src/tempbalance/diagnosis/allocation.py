"""Allocate sparsity, bit widths or adapter ranks to layers by alpha, within a budget over all layers."""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from statistics import fmean
from typing import Any, Literal, get_args

from torch import nn

from tempbalance.diagnosis.against import pair_layers
from tempbalance.errors import warn
from tempbalance.model.layers import find_layers
from tempbalance.ranking.compare import GroupFunction, check_group_by, unit_of
from tempbalance.ranking.table import DiagnosisRow, LayerRow, LayerTable

Target = Literal["sparsity", "bits", "lora-rank"]
TARGETS: tuple[str, ...] = get_args(Target)
By = Literal["alpha", "alpha_over_random"]
MoreWhere = Literal["larger", "smaller"]
SPREAD = 0.3  # AlphaPruning's scripts have 0.2 and 0.3
FEWEST_BITS, MOST_BITS = 2, 8


@dataclass(frozen=True)
class Share:
    """The share of one layer: ``num_pruned``, ``bits`` or ``rank``, whichever is the target."""

    name: str
    shape: tuple[int, ...]
    alpha: float
    compared: float  # the number its share follows from: alpha, or alpha over random, or the mean over its group
    num_pruned: int | None = None
    bits: int | None = None
    rank: int | None = None

    @property
    def num_parameters(self) -> int:
        return math.prod(self.shape)

    @property
    def sparsity(self) -> float | None:
        """Fraction of the weight to prune, 0 to less than 1."""
        return None if self.num_pruned is None else self.num_pruned / self.num_parameters

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers, strings and lists."""
        values = {"name": self.name, "shape": list(self.shape), "num_parameters": self.num_parameters}
        given = {"num_pruned": self.num_pruned, "sparsity": self.sparsity, "bits": self.bits, "rank": self.rank}
        given = {name: value for name, value in given.items() if value is not None}
        return {**values, "alpha": self.alpha, "compared": self.compared, **given}


@dataclass(frozen=True)
class Allocation:
    """A budget shared out among the layers of a model, with the options of `allocate`.

    ``layers`` has the share of each layer, in the table's order; ``skipped``, why each other layer has none.
    """

    target: Target
    value: float
    by: By
    more_where: MoreWhere
    spread: float
    layers: tuple[Share, ...]
    skipped: dict[str, str] = field(default_factory=dict)
    lora_alpha: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values: the layers one by one, and in the form that pruning tools, GPTQModel or peft take."""
        target = {"name": self.target, "value": self.value, "spread": self.spread}
        return {
            "target": target if self.lora_alpha is None else {**target, "lora_alpha": self.lora_alpha},
            "by": self.by,
            "more_where": self.more_where,
            "layers": [layer.to_dict() for layer in self.layers],
            "skipped": [{"name": name, "reason": reason} for name, reason in self.skipped.items()],
            **self._for_tools(),
        }

    def on(self, model: nn.Module) -> dict[str, Share]:
        """Return the shares under the names of their layers in a model, which may add a prefix to all or lack one."""
        layers = {layer.name: layer for layer in find_layers(model)}
        allocated = [share.name for share in self.layers]
        names = pair_layers(allocated, list(layers), required=allocated)
        for share in self.layers:
            if (shape := layers[names[share.name]].shape) != share.shape:
                where = f"layer {names[share.name]!r} of the model must have the shape {share.shape}"
                raise ValueError(f"{where} that the allocation has for {share.name!r}, got {shape}")
        return {names[share.name]: share for share in self.layers}

    def _for_tools(self) -> dict[str, Any]:
        """Return sparsities by name, bits by name and as GPTQModel's ``dynamic``, or options of ``LoraConfig``."""
        if self.target == "sparsity":
            return {"sparsity": {layer.name: layer.sparsity for layer in self.layers}}
        patterns = self._patterns()
        if self.target == "bits":
            return {
                "bits": {layer.name: layer.bits for layer in self.layers},
                # whose patterns match beginnings of names
                "dynamic": {f"{patterns[layer.name]}$": {"bits": layer.bits} for layer in self.layers},
            }
        scaling = Fraction(self.lora_alpha or 0) / Fraction(self.value)
        ranks = {patterns[layer.name]: layer.rank or 0 for layer in self.layers}
        return {
            "target_modules": "|".join(ranks),
            "rank_pattern": ranks,
            "alpha_pattern": {pattern: _plain(rank * scaling) for pattern, rank in ranks.items()},
        }

    def _patterns(self) -> dict[str, str]:
        """A regular expression for each layer: its name, with any prefix, and no longer name of another layer."""
        names = [*(layer.name for layer in self.layers), *self.skipped]
        found = {}
        for layer in self.layers:
            longer = [re.escape(name) for name in names if name.endswith(f".{layer.name}")]
            unlike = rf"(?!(?:.*\.)?(?:{'|'.join(longer)})$)" if longer else ""
            found[layer.name] = rf"^{unlike}(?:.*\.)?{re.escape(layer.name)}"
        return found


def allocate(
    table: LayerTable,
    *,
    target: Target,
    value: float,
    by: By,
    more_where: MoreWhere,
    spread: float = SPREAD,
    lora_alpha: float | None = None,
    group_by: str | GroupFunction | None = None,
) -> Allocation:
    """Share a budget out among layers by the heavy-tailedness of their spectra.

    Shares lie on a line from 1 - ``spread`` to 1 + ``spread``, as in AlphaPruning (Lu et al., 2024), multiplied by
    the level at which the mean is ``value``. A layer keeps at least one weight, has 2 to 8 bits, and a rank from 1 to
    the smaller side of its weight; the other layers take the rest. Whole numbers go to the largest remainders. Pruned
    weights and ranks add up exactly; the mean number of bits is never above ``value``.

    Args:
        table: The table of `diagnose` or of a scheduler. Layers without an alpha are skipped.
        target: ``sparsity``, ``bits`` or ``lora-rank``.
        value: The mean: a sparsity between 0 and 1 or 2 to 8 bits, over all weights, or a whole rank, over layers.
        by: Compare layers by ``alpha``, or by ``alpha_over_random``, alpha divided by the alpha of a random matrix
            of the same shape, which the table of `diagnose` has.
        more_where: Give more sparsity, bits or rank where that number is ``larger``, or where it is ``smaller``.
            There is no default: in the study ``pruning`` no side was better than uniform sparsity for all networks.
        spread: How far shares go from the mean, 0 to less than 1; 0 gives each layer the mean.
        lora_alpha: For ranks, peft's ``lora_alpha`` at the mean rank; each layer has the same ``lora_alpha / r``.
            ``None`` makes that ratio 1.
        group_by: Give all layers of a group the mean of their numbers: a pattern of the first words of their names,
            such as ``model.layers.*``, or a function that returns a layer's group or ``None``.

    Warns if the numbers of the layers differ by no more than their standard errors would make them.

    Raises:
        TypeError: If the table or a number is of another type.
        ValueError: If an option is out of range, no layer has the number, the pattern groups no layers, or the layers
            cannot take the budget.
        ScoreError: If ``group_by`` returns something else than a name or ``None``.

    Example:
        >>> rows = LayerTable([LayerRow("a", (10, 10), alpha=2.0), LayerRow("b", (10, 10), alpha=4.0)])
        >>> found = allocate(rows, target="sparsity", value=0.5, by="alpha", more_where="larger")
        >>> [layer.sparsity for layer in found.layers]
        [0.35, 0.65]
    """
    if not isinstance(table, LayerTable):
        raise TypeError(f"table must be a LayerTable, such as diagnose returns, got {type(table).__name__}")
    check_target(target, value, by=by, more_where=more_where, spread=spread, lora_alpha=lora_alpha)
    numbers = {row.name: _number(row, by) for row in table}
    rows = [row for row in table if row.alpha is not None and numbers[row.name] is not None]
    allocated = {row.name for row in rows}
    skipped = {row.name: row.reason or f"it has no {by}" for row in table if row.name not in allocated}
    if not rows:
        raise ValueError(f"no layer has an {by}: all {len(skipped)} are skipped")
    compared = _compared({row.name: number for row in rows if (number := numbers[row.name]) is not None}, group_by)
    if spread > 0 and _are_alike(rows, compared, numbers):
        warn(f"the layers do not differ in {by} beyond its standard errors: the shares follow noise, spread=0 has none")
    parts = _parts(list(compared.values()), spread, more_where)
    name, find = {"sparsity": ("num_pruned", _prune), "bits": ("bits", _quantize), "lora-rank": ("rank", _rank)}[target]
    layers = tuple(
        Share(row.name, row.shape, row.alpha or 0.0, compared[row.name], **{name: number})
        for row, number in zip(rows, find(rows, parts, value), strict=True)
    )
    if target == "lora-rank":
        lora_alpha = _plain(value if lora_alpha is None else lora_alpha)
    return Allocation(target, _plain(value), by, more_where, spread, layers, skipped, lora_alpha)


def check_target(
    target: str, value: float, *, by: str | None, more_where: str | None, spread: float, lora_alpha: float | None
) -> None:
    """Check options before there is a table; raise ValueError if one is out of range or not of the target."""
    for name, number in (("value", value), ("spread", spread), ("lora_alpha", lora_alpha)):
        is_missing = number is None and name == "lora_alpha"
        if not is_missing and (isinstance(number, bool) or not isinstance(number, int | float)):
            raise TypeError(f"{name} must be a number, got {number!r}")
    for name, given, choices in (
        ("target", target, TARGETS),
        ("by", by, get_args(By)),
        ("more_where", more_where, get_args(MoreWhere)),
    ):
        if given is None:
            raise ValueError(f"{name} must be given: {' or '.join(choices)}")
        if given not in choices:
            raise ValueError(f"{name} must be one of {', '.join(choices)}, got {given!r}")
    if target == "sparsity" and not 0 < value < 1:
        raise ValueError(f"sparsity must satisfy 0 < sparsity < 1, got {value}")
    if target == "bits" and not FEWEST_BITS <= value <= MOST_BITS:
        raise ValueError(f"bits must satisfy {FEWEST_BITS} <= bits <= {MOST_BITS}, got {value}")
    if target == "lora-rank" and not (value >= 1 and float(value).is_integer()):
        raise ValueError(f"lora-rank must be a whole number of at least 1, got {value}")
    if not 0 <= spread < 1:
        raise ValueError(f"spread must satisfy 0 <= spread < 1, got {spread}")
    if lora_alpha is not None and target != "lora-rank":
        raise ValueError(f"lora_alpha goes with lora-rank, the target is {target}")
    if lora_alpha is not None and not 0 < lora_alpha < math.inf:
        raise ValueError(f"lora_alpha must be a number above 0, got {lora_alpha}")


def _number(row: LayerRow, by: By) -> float | None:
    """Return the number that a layer is compared by."""
    if by == "alpha":
        return row.alpha
    if not isinstance(row, DiagnosisRow):
        raise ValueError('by="alpha_over_random" needs the table of diagnose, a scheduler\'s has no such number')
    return row.alpha_over_random


def _compared(numbers: Mapping[str, float], group_by: str | GroupFunction | None) -> dict[str, float]:
    """The number of each layer, or the mean over its group."""
    check_group_by(group_by, list(numbers))
    units = {name: unit_of(name, group_by) for name in numbers}
    members: dict[str, list[float]] = {}
    for name, number in numbers.items():
        members.setdefault(units[name], []).append(number)
    return {name: fmean(members[unit]) for name, unit in units.items()}


def _are_alike(rows: Sequence[LayerRow], compared: Mapping[str, float], numbers: Mapping[str, float | None]) -> bool:
    """Return whether the scatter of layers is what their standard errors alone would give, by Cochran's test at 5 %.

    The errors are those of alpha, relative to it. A group counts once, with the error of its mean.
    """
    squares: dict[float, list[float]] = {}
    for row in rows:
        if not row.alpha or row.alpha_stderr is None:
            return False
        error = row.alpha_stderr / row.alpha * (numbers[row.name] or 0.0)
        squares.setdefault(compared[row.name], []).append(error**2)
    errors = {value: sum(each) / len(each) ** 2 for value, each in squares.items()}
    if len(errors) < 2 or not all(errors.values()):
        return False
    total = sum(1 / error for error in errors.values())
    middle = sum(value / error for value, error in errors.items()) / total
    scatter, free = sum((value - middle) ** 2 / error for value, error in errors.items()), len(errors) - 1
    # Wilson and Hilferty: the cube root of a chi-squared value is close to normal
    return math.pow(scatter / free, 1 / 3) < 1 - 2 / (9 * free) + 1.645 * math.sqrt(2 / (9 * free))


def _parts(numbers: Sequence[float], spread: float, more_where: MoreWhere) -> list[Fraction]:
    """Shares before the budget, on a line from 1 - spread to 1 + spread."""
    values = [Fraction(each) if more_where == "larger" else -Fraction(each) for each in numbers]
    low, width = min(values), max(values) - min(values)
    return [1 + Fraction(spread) * (2 * (value - low) / width - 1) if width else Fraction(1) for value in values]


def _prune(rows: Sequence[LayerRow], parts: Sequence[Fraction], value: float) -> list[int]:
    sizes = [math.prod(row.shape) for row in rows]
    total, most = round(value * sum(sizes)), sum(sizes) - len(sizes)
    if total > most:
        rule = f"sparsity must leave a weight in each layer, so prune at most {most} of the {sum(sizes)} weights"
        raise ValueError(f"{rule}, got {value}, which is {total}")
    return apportion([part * size for part, size in zip(parts, sizes, strict=True)], [(0, s - 1) for s in sizes], total)


def _quantize(rows: Sequence[LayerRow], parts: Sequence[Fraction], value: float) -> list[int]:
    """Round bits down, then add one to the largest remainders while the budget lasts."""
    sizes = [math.prod(row.shape) for row in rows]
    budget = math.floor(Fraction(value) * sum(sizes))
    bounds = [(FEWEST_BITS * size, MOST_BITS * size) for size in sizes]
    amounts = _fill([part * size for part, size in zip(parts, sizes, strict=True)], bounds, budget)
    exact = [amount / size for amount, size in zip(amounts, sizes, strict=True)]
    bits = [max(FEWEST_BITS, math.floor(each)) for each in exact]
    left = budget - sum(each * size for each, size in zip(bits, sizes, strict=True))
    for place in sorted(range(len(exact)), key=lambda place: bits[place] - exact[place]):
        if exact[place] > bits[place] and sizes[place] <= left:
            bits[place] += 1
            left -= sizes[place]
    return bits


def _rank(rows: Sequence[LayerRow], parts: Sequence[Fraction], value: float) -> list[int]:
    # an adapter adds to the matrix of one expert of a stack, or of outputs x all else
    stacks = [len(row.shape) == 3 and bool(row.parts) for row in rows]
    shapes = [
        row.shape[1:] if is_stack else (row.shape[0], math.prod(row.shape[1:]))
        for row, is_stack in zip(rows, stacks, strict=True)
    ]
    bounds = [(1, min(shape)) for shape in shapes]
    most = sum(high for _, high in bounds)
    if value * len(rows) > most:
        rule = f"lora-rank must be at most {most // len(rows)} for the smaller sides of these {len(rows)} layers"
        raise ValueError(f"{rule}, got {value}")
    return apportion(parts, bounds, int(value) * len(rows))


def apportion(parts: Sequence[Fraction], bounds: Sequence[tuple[int, int]], total: int) -> list[int]:
    """Split a total into whole numbers, in proportion to parts as nearly as possible, each within its bounds.

    Example:
        >>> apportion([Fraction(1), Fraction(2), Fraction(9)], [(0, 9), (0, 9), (0, 6)], 12)
        [2, 4, 6]
    """
    exact = _fill(parts, bounds, total)
    whole = [math.floor(each) for each in exact]
    by_remainder = sorted(range(len(exact)), key=lambda place: whole[place] - exact[place])
    for place in by_remainder[: total - sum(whole)]:
        whole[place] += 1
    return whole


def _fill(parts: Sequence[Fraction], bounds: Sequence[tuple[int, int]], total: int) -> list[Fraction]:
    """Split a total in proportion to parts, each within its bounds."""
    pairs = list(zip(parts, bounds, strict=True))

    def at(level: Fraction) -> list[Fraction]:
        return [min(max(level * part, Fraction(low)), Fraction(high)) for part, (low, high) in pairs]

    levels = sorted({bound / part for part, pair in pairs for bound in pair})
    index = bisect_left(levels, Fraction(total), key=lambda level: sum(at(level), Fraction(0)))
    above = at(levels[index])
    below = at(levels[index - 1]) if index else above
    gap = sum(above) - sum(below)  # linear between two levels where a bound is met
    step = Fraction(total - sum(below)) / gap if gap else Fraction(0)
    return [low + step * (high - low) for low, high in zip(below, above, strict=True)]


def _plain(number: Fraction | float) -> float:
    """Return a whole number as an int."""
    return int(number) if number == int(number) else float(number)
