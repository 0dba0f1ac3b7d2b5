"""Two checkpoints side by side, or a series of them: how alpha moved, and how far the weights did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from tempbalance.diagnosis import Diagnosis
from tempbalance.errors import WeightError
from tempbalance.layers import Layer


@dataclass(frozen=True)
class Movement:
    """How one layer differs between checkpoints.

    Attributes:
        name: The layer.
        shape: Of its weight in the first checkpoint that has it.
        alphas: Alpha in each checkpoint; ``None`` where it has none.
        change: The last alpha less the first; ``None`` without both.
        distance: Frobenius norm of the difference between the last weight and the first; ``None`` without both, or if
            their shapes differ.
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
    names = dict.fromkeys(row.name for each in diagnoses for row in each.scored)
    return [_movement(name, diagnoses) for name in names]


def _movement(name: str, diagnoses: Sequence[Diagnosis]) -> Movement:
    rows = [{row.name: row for row in each.diagnoses}.get(name) for each in diagnoses]
    alphas = tuple(None if row is None else row.alpha for row in rows)
    shape = next(row.shape for row in rows if row is not None)
    change = alphas[-1] - alphas[0] if alphas[0] is not None and alphas[-1] is not None else None
    first, last = (each.layers.get(name) for each in (diagnoses[0], diagnoses[-1]))
    distance, relative = _distance(first, last) if first and last and first.shape == last.shape else (None, None)
    return Movement(name, shape, alphas, change, distance, relative)


def _distance(first: Layer, last: Layer) -> tuple[float | None, float | None]:
    try:
        before, after = first.weight().flatten(), last.weight().flatten()
    except WeightError:  # the rows say why
        return None, None
    before = before.to(torch.promote_types(before.dtype, torch.float32))
    norm = float(torch.linalg.vector_norm(before))
    distance = float(torch.linalg.vector_norm(after.to(before) - before))
    return distance, distance / norm if norm else None


def to_dict(diagnoses: Sequence[Diagnosis]) -> dict[str, Any]:
    """What ``tempbalance diagnose A --against B --format json`` prints."""
    found = movements(diagnoses)
    return {
        "models": [each.model for each in diagnoses],
        "tail": diagnoses[0].tail,
        "layers": [{**asdict(each), "shape": list(each.shape), "alphas": list(each.alphas)} for each in found],
        "summaries": [each.summary() for each in diagnoses],
    }
