"""Compare checkpoints of a model: the change of alpha and of the weights in each layer."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from itertools import takewhile
from typing import Any

import torch

from tempbalance.diagnosis.diagnose import Diagnosis
from tempbalance.model.layers import Layer
from tempbalance.report.text import short

_MOST_NAMED = 5  # layers that an error names before it only counts them


@dataclass(frozen=True)
class Movement:
    """Change of one layer, by its name and shape in the first of several checkpoints."""

    name: str
    shape: tuple[int, ...]
    alphas: tuple[float | None, ...]  # in each checkpoint
    alpha_stderrs: tuple[float | None, ...]
    change: float | None  # the last alpha less the first
    change_stderr: float | None  # as if the checkpoints were independent
    distance: float | None  # Frobenius norm of the last weight less the first, if both have an alpha and one shape
    relative_distance: float | None  # over the norm of the first weight


def pair_layers(
    first: Sequence[str], second: Sequence[str], *, required: Collection[str] | None = None
) -> dict[str, str]:
    """Pair the layers of two models by the ends of their names, in whole words between dots.

    If one prefix, added to or taken from all names of the first model, gives names of the second, these are the pairs.
    Otherwise words that all names of a model begin with are passed over, unless they have different numbers. Then equal
    names are a pair, and so are two of which one ends with the other: ``encoder.0.fc`` and ``bert.encoder.0.fc``.
    Names of either that are required, or all, must have one partner.

    Example:
        >>> pair_layers(["encoder.0.fc", "pooler"], ["bert.encoder.0.fc", "bert.pooler"])
        {'encoder.0.fc': 'bert.encoder.0.fc', 'pooler': 'bert.pooler'}
    """
    paired = _pair_by_prefix(first, second, required) or _pair_by_end(first, second)
    known = {*paired, *paired.values()}
    needed = dict.fromkeys(name for name in (*first, *second) if required is None or name in required)
    alone = [name for name in needed if name not in known]
    if alone:
        more = f" and {len(alone) - _MOST_NAMED} more" if len(alone) > _MOST_NAMED else ""
        names = ", ".join(map(short, alone[:_MOST_NAMED]))
        raise ValueError(f"each layer must have a partner in the other model, got none for {names}{more}")
    return paired


def _pair_by_prefix(first: Sequence[str], second: Sequence[str], required: Collection[str] | None) -> dict[str, str]:
    """Pair names that differ by one prefix; empty if none serves all names of ``first`` that have to be paired."""
    needed = [name for name in first if required is None or name in required]
    if not needed:
        return {}
    known, start = set(second), needed[0]
    added = [each.removesuffix(start) for each in second if each == start or each.endswith(f".{start}")]
    taken = [start.removesuffix(each) for each in second if start.endswith(f".{each}")]

    def renamed(name: str, new: str, old: str) -> str | None:
        other = new + name.removeprefix(old)
        return other if name.startswith(old) and other in known else None

    changes = [(each, "") for each in sorted(added, key=len)] + [("", each) for each in taken]
    fitting = [each for each in changes if all(renamed(name, *each) is not None for name in needed)]
    if not fitting:
        return {}
    if fitting[0][0] or fitting[0][1]:
        _check_one(start, [str(renamed(start, *each)) for each in fitting])
    return {name: other for name in first if (other := renamed(name, *fitting[0])) is not None}


def _pair_by_end(first: Sequence[str], second: Sequence[str]) -> dict[str, str]:
    """Pair names of which one ends with the other, without the words that all names of a model begin with."""
    starts = [_common_start(names) for names in (first, second)]
    if len({tuple(word for word in start.split(".") if word.isdecimal()) for start in starts}) > 1:
        starts = ["", ""]  # blocks of different numbers are not the same block
    ends_of = [
        {name.removeprefix(start): name for name in names} for start, names in zip(starts, (first, second), strict=True)
    ]
    by_end: dict[str, list[str]] = {}
    for end in ends_of[1]:
        words = end.split(".")
        for place in range(len(words)):
            by_end.setdefault(".".join(words[place:]), []).append(end)
    pairs: dict[str, list[str]] = {}
    for end in ends_of[0]:
        words = end.split(".")
        shorter = (".".join(words[place:]) for place in range(1, len(words)))
        found = [end] if end in ends_of[1] else by_end.get(end) or [each for each in shorter if each in ends_of[1]][:1]
        if found:
            pairs[ends_of[0][end]] = [ends_of[1][each] for each in found]
    of_second: dict[str, list[str]] = {}
    for name, found in pairs.items():
        of_second.setdefault(found[0], []).append(name)
    for name, found in (*pairs.items(), *of_second.items()):
        _check_one(name, found)
    return {name: found[0] for name, found in pairs.items()}


def _check_one(name: str, partners: Sequence[str]) -> None:
    if len(partners) > 1:
        both = " and ".join(map(short, partners[:2]))
        raise ValueError(f"each layer must have one partner in the other model, {short(name)} has {both}")


def _common_start(names: Sequence[str]) -> str:
    """Return the words that all names begin with, each with its dot; never the last word of a name."""
    levels = zip(*(name.split(".")[:-1] for name in names), strict=False)
    return "".join(f"{level[0]}." for level in takewhile(lambda level: len(set(level)) == 1, levels))


def movements(diagnoses: Sequence[Diagnosis]) -> list[Movement]:
    """Compare the layers that have an alpha in any of at least two checkpoints, the earliest first."""
    first, last = diagnoses[0], diagnoses[-1]
    rows_of = [{row.name: row for row in each} for each in diagnoses]
    scored = {row.name for each in diagnoses for row in each if row.alpha is not None}
    pairs = [pair_layers(list(rows_of[0]), list(rows), required=scored) for rows in rows_of[1:]]
    found = []
    for row in first:
        partners = [each.get(row.name) for each in pairs]
        rows = [row, *(each[name] if name else None for each, name in zip(rows_of[1:], partners, strict=True))]
        alphas = tuple(None if each is None else each.alpha for each in rows)
        stderrs = tuple(None if each is None else each.alpha_stderr for each in rows)
        if all(alpha is None for alpha in alphas):
            continue
        moved: tuple[float | None, ...] = (None,) * 4
        if alphas[0] is not None and alphas[-1] is not None:
            error = math.hypot(stderrs[0] or 0.0, stderrs[-1] or 0.0)
            distances = _distances(first.layers[row.name], last.layers[partners[-1] or ""])
            moved = (alphas[-1] - alphas[0], error, *distances)
        found.append(Movement(row.name, row.shape, alphas, stderrs, *moved))
    return found


def _distances(first: Layer, last: Layer) -> tuple[float | None, float | None]:
    """Return the distance between two weights, and that over the norm of the first."""
    before, after = first.weight(), last.weight()
    if first.shape != last.shape or before.shape != first.shape or after.shape != last.shape:
        return None, None  # the factors of adapters are known only by the eigenvalues of their product
    before, after = before.flatten().double(), after.flatten().double()
    largest = max(float(before.abs().max()), float(after.abs().max()))  # so that squares neither overflow nor vanish
    before, after = before / largest, after / largest
    distance, norm = float(torch.linalg.vector_norm(after - before)), float(torch.linalg.vector_norm(before))
    found = (distance * largest, distance / norm if norm else math.inf)
    whole, relative = (value if math.isfinite(value) else None for value in found)
    return whole, relative


def to_dict(diagnoses: Sequence[Diagnosis]) -> dict[str, Any]:
    """Return the values that ``tempbalance diagnose A --against B --format json`` prints."""
    return {
        "models": [each.model for each in diagnoses],
        "tail": diagnoses[0].tail,
        "layers": [
            {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(each).items()}
            for each in movements(diagnoses)
        ],
        "summaries": [each.summary() for each in diagnoses],
    }
