"""Scales on their way from what they were to what the last scoring asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tempbalance.table import LayerRow

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
