"""Two checkpoints side by side, or a series of them: how alpha moved, and how far the weights did."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from tempbalance.diagnosis.diagnose import Diagnosis
from tempbalance.model.layers import Layer


@dataclass(frozen=True)
class Movement:
    """How one layer differs between checkpoints.

    Attributes:
        name: The layer.
        shape: Of its weight in the first checkpoint that has it.
        alphas: Alpha in each checkpoint; ``None`` where it has none.
        change: The last alpha less the first; ``None`` without both.
        distance: Frobenius norm of the difference between the last weight and the first; ``None`` without both alphas,
            if their shapes differ, and for adapters.
        relative_distance: The distance over the norm of the first weight.
    """

    name: str
    shape: tuple[int, ...]
    alphas: tuple[float | None, ...]
    change: float | None
    distance: float | None
    relative_distance: float | None


def movements(diagnoses: Sequence[Diagnosis]) -> list[Movement]:
    """Match the layers of checkpoints by name; those that have an alpha in none are passed over.

    Args:
        diagnoses: Of at least two checkpoints, the earliest first.
    """
    rows = [{row.name: row for row in each.diagnoses} for each in diagnoses]
    names = dict.fromkeys(row.name for each in diagnoses for row in each.scored)
    first, last = diagnoses[0].layers, diagnoses[-1].layers
    found = []
    for name in names:
        of_layer = [each.get(name) for each in rows]
        alphas = tuple(None if row is None else row.alpha for row in of_layer)
        shape = next(row.shape for row in of_layer if row is not None)
        change = distance = relative = None
        if alphas[0] is not None and alphas[-1] is not None:
            change = alphas[-1] - alphas[0]
            distance, relative = _distance(first[name], last[name])
        found.append(Movement(name, shape, alphas, change, distance, relative))
    return found


def _distance(first: Layer, last: Layer) -> tuple[float | None, float | None]:
    """The distance between two weights, and that over the norm of the first."""
    before, after = first.weight(), last.weight()
    if first.shape != last.shape or before.shape != first.shape or after.shape != last.shape:
        return None, None  # the factors of adapters are known only by the eigenvalues of their product
    before, after = before.flatten().double(), after.flatten().double()
    largest = max(float(before.abs().max()), float(after.abs().max()))  # so that squares neither overflow nor vanish
    before, after = before / largest, after / largest
    distance, norm = float(torch.linalg.vector_norm(after - before)), float(torch.linalg.vector_norm(before))
    return _finite(distance * largest), _finite(distance / norm) if norm else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def to_dict(diagnoses: Sequence[Diagnosis]) -> dict[str, Any]:
    """What ``tempbalance diagnose A --against B --format json`` prints."""
    found = movements(diagnoses)
    return {
        "models": [each.model for each in diagnoses],
        "tail": diagnoses[0].tail,
        "layers": [{**asdict(each), "shape": list(each.shape), "alphas": list(each.alphas)} for each in found],
        "summaries": [each.summary() for each in diagnoses],
    }
