"""Recipes of Fourier neural operators."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from tempbalance.lab import options
from tempbalance.lab.operators.data import EQUATIONS, GRIDS, OperatorData, make_data
from tempbalance.lab.options import Count, Size
from tempbalance.lab.recipe import IterationsRecipe, Measure


class OperatorRecipe(IterationsRecipe):
    """Training of a Fourier neural operator, which maps an equation's initial condition to its solution."""

    kind = "operator"
    known_data = EQUATIONS
    measure = Measure("test_nrmse", "nRMSE", "%", "points", is_lower_better=True)
    is_float32 = True
    result_names = ("test_nrmse", "train_loss", "num_balancings", "seconds")

    dataset: Annotated[Literal["burgers", "advection"], "Equation, which the run solves itself."] = "burgers"
    model: Annotated[Literal["fno"], "Network."] = "fno"
    method: Annotated[Literal["adam", "tb+adam", "adamw", "tb+adamw"], "Optimizer, alone or balanced."] = "tb+adam"
    data_seed: Annotated[options.Seed, "Seed of the initial conditions."] = 0
    limit: Annotated[Count, "Solutions for training; fewer are the first of more."] = 64
    test_limit: Annotated[Count, "Solutions for the test."] = 200
    grid: Annotated[
        int, options.Rule(f"one of {', '.join(map(str, GRIDS))}", lambda value: value in GRIDS), "Grid points."
    ] = 64
    width: Annotated[Size, "Channels of a block."] = 64
    modes: Annotated[Size, "Waves in a block's spectral convolution, at most half of grid."] = 12
    blocks: Annotated[int, Field(ge=1, le=1000), "Number of blocks."] = 4
    weight_decay: options.WeightDecay = 0.0
    iterations: options.Iterations = 500
    lr: options.LearningRate = 2e-3  # best for Adam alone, on other data
    interval: options.IterationInterval = 20

    def resolved(self) -> Mapping[str, Any]:
        if self.modes > self.grid // 2:
            raise ValueError(f"modes must be at most half of grid, which is {self.grid}, got {self.modes!r}")
        return {}

    @property
    def pace(self) -> tuple[Any, ...]:
        size = (self.width, self.modes, self.blocks, self.grid, min(self.batch_size, self.limit), self.test_limit)
        return self.model, *size, self.evaluate_every, self.is_balanced and self.interval

    @property
    def data_text(self) -> str:
        return f"{options.pretty(self.dataset)} on {self.grid} points"

    @property
    def size_text(self) -> str:
        return f"{self.limit:,} solutions; width {self.width}; {self.iterations:,} iterations"

    def check_data(self) -> None:
        """Do nothing: a run solves its equation itself."""

    def load(self, cache: Path | None = None) -> OperatorData:
        sizes = {"limit": self.limit, "test_limit": self.test_limit, "grid": self.grid}
        return make_data(self.dataset, **sizes, seed=self.data_seed)
