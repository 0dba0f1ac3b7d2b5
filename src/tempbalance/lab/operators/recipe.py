"""What operator is learned from how many solutions, and how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from tempbalance.lab.names import Measure, pretty
from tempbalance.lab.operators.data import EQUATIONS, GRIDS
from tempbalance.lab.options import RULES
from tempbalance.lab.recipe import COUNT, IterationsRecipe


@dataclass(frozen=True)
class OperatorRecipe(IterationsRecipe):
    """A Fourier neural operator that learns what an equation makes of its initial condition.

    Attributes:
        dataset: ``burgers`` or ``advection``, solved by the run itself.
        model: ``fno``.
        method: ``adam`` or ``adamw``, alone or with ``tb+`` before it, all with a cosine.
        seed: Weights and batches follow from it and the iteration.
        data_seed: What initial conditions are drawn from.
        limit: Solutions to train on; fewer are the first of more.
        test_limit: Others to test on.
        grid: Points of a function.
        width: Channels of a block.
        modes: Waves that a block's spectral convolution sees, the constant among them; at most half the grid.
        blocks: How many.
        iterations: How long, in steps of the optimizer, whatever there is to train on.
        lr: Initial rate; the default was best for Adam alone, on other data.
        batch_size: Solutions a step; all of them where there are fewer.
        weight_decay: Of the optimizer.
        interval, evaluate_every: In iterations; these and all others are as of `IterationsRecipe`.
    """

    kind: ClassVar[str] = "operator"
    measure: ClassVar[Measure] = Measure("test_nrmse", "nRMSE", "%", "points", is_lower_better=True)
    is_float32: ClassVar[bool] = True
    rules: ClassVar = {
        **IterationsRecipe.rules,
        **{name: RULES[name] for name in ("weight_decay", "limit", "test_limit")},
        **dict.fromkeys(("width", "modes", "blocks"), COUNT),
        "data_seed": RULES["seed"],
        "grid": (f"one of {', '.join(map(str, GRIDS))}", lambda value: value in GRIDS),
    }
    choices: ClassVar = {
        **IterationsRecipe.choices,
        "dataset": tuple(EQUATIONS),
        "model": ("fno",),
        "method": ("adam", "tb+adam", "adamw", "tb+adamw"),
    }
    result_names: ClassVar[tuple[str, ...]] = ("test_nrmse", "train_loss", "num_balancings", "seconds")

    dataset: str = "burgers"
    model: str = "fno"
    method: str = "tb+adam"
    seed: int = 43
    data_seed: int = 0
    limit: int = 64
    test_limit: int = 200
    grid: int = 64
    width: int = 64
    modes: int = 12
    blocks: int = 4
    iterations: int = 500
    lr: float = 2e-3
    weight_decay: float = 0.0
    interval: int = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.modes > self.grid // 2:
            raise ValueError(f"modes must be at most half of grid, which is {self.grid}, got {self.modes!r}")

    @property
    def pace(self) -> tuple[Any, ...]:
        """What an epoch's time depends on."""
        size = (self.width, self.modes, self.blocks, self.grid, min(self.batch_size, self.limit), self.test_limit)
        return self.model, *size, self.evaluate_every, self.is_balanced and self.interval

    @property
    def data_text(self) -> str:
        """The equation and the grid."""
        return f"{pretty(self.dataset)} on {self.grid} points"

    @property
    def size_text(self) -> str:
        """Solutions to train on, width and iterations."""
        return f"{self.limit:,} solutions; width {self.width}; {self.iterations:,} iterations"

    def check_data(self) -> None:
        """Nothing can be missing: a run solves its equation itself."""
