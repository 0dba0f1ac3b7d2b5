"""The part that recipes of so many iterations have in common."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from tempbalance.lab.balancing import BALANCING_RULES, UNUSED_ALONE, BalancingTask
from tempbalance.lab.methods import find_method
from tempbalance.lab.options import ASSIGNMENTS, RULES, SCORES, TAILS

COUNT = ("at least 1", lambda value: value >= 1)
_SHARED = ("seed", "lr", "batch_size", "scale_range", "interval", "tail_fraction", "min_eigenvalues")


@dataclass(frozen=True)
class IterationsTask(BalancingTask):
    """Base of recipes that count in iterations.

    Attributes:
        method: An optimizer, alone or with ``tb+`` before it, with a cosine.
        seed: All randomness of the training follows from it.
        iterations: How long, in steps of the optimizer.
        lr: Initial rate.
        batch_size: Examples a step.
        scale_range: Smallest and largest scale of a balanced method.
        interval: Iterations between balancings; without balancing layers are scored with every evaluation.
        tail, tail_fraction, score, assignment, score_first, score_last, min_eigenvalues: As for
            `tempbalance.TempBalance`.
        evaluate_every: Iterations between evaluations, each of which is an epoch in the run's logs.
    """

    rules: ClassVar = {
        **{name: RULES[name] for name in _SHARED},
        **BALANCING_RULES,
        **dict.fromkeys(("iterations", "evaluate_every"), COUNT),
    }
    choices: ClassVar = {"tail": TAILS, "score": SCORES, "assignment": ASSIGNMENTS}

    method: str = "tb+adam"
    seed: int = 43
    iterations: int = 1000
    lr: float = 1e-3
    batch_size: int = 16
    scale_range: tuple[float, float] = (0.5, 1.5)
    interval: int = 50
    tail: str = "median"
    tail_fraction: float = 0.5
    score: str = "alpha"
    assignment: str = "linear"
    score_first: bool = False
    score_last: bool = False
    min_eigenvalues: int = 50
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
