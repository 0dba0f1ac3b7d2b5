"""The part that recipes of so many iterations have in common."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tempbalance.lab.balancing import UNUSED_ALONE, BalancingTask
from tempbalance.lab.methods import find_method


@dataclass(frozen=True)
class IterationsTask(BalancingTask):
    """Base of recipes that count in iterations.

    Attributes:
        method: An optimizer, alone or with ``tb+`` before it, with a cosine.
        lr: Initial rate.
        iterations: How long, in steps of the optimizer.
        interval: Iterations between balancings; without balancing layers are scored with every evaluation.
        evaluate_every: Iterations between evaluations, each of which is an epoch in the run's logs.
    """

    method: str = "tb+adam"
    lr: float = 1e-3
    iterations: int = 1000
    interval: int = 50
    evaluate_every: int = 100

    @property
    def num_epochs(self) -> int:
        """How many evaluations there are."""
        return math.ceil(self.iterations / self.evaluate_every)

    @property
    def is_balanced(self) -> bool:
        """Whether layers get scales; otherwise they are only scored."""
        return find_method(self.method).balanced

    @property
    def unused(self) -> set[str]:
        """Options of balancing, where there is none."""
        return set() if self.is_balanced else {"interval", *UNUSED_ALONE}
