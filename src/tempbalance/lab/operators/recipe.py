"""Recipes of Fourier neural operators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from tempbalance.lab.operators.data import GRIDS
from tempbalance.lab.options import (
    Count,
    IterationInterval,
    Iterations,
    LearningRate,
    Rule,
    Seed,
    Size,
    WeightDecay,
    pretty,
)
from tempbalance.lab.recipe import IterationsRecipe, Measure


class OperatorRecipe(IterationsRecipe):
    """Training of a Fourier neural operator, which maps an equation's initial condition to its solution."""

    kind = "operator"
    measure = Measure("test_nrmse", "nRMSE", "%", "points", is_lower_better=True)
    is_float32 = True
    result_names = ("test_nrmse", "train_loss", "num_balancings", "seconds")

    dataset: Annotated[Literal["burgers", "advection"], Field(description="Equation, which the run solves itself.")] = (
        "burgers"
    )
    model: Annotated[Literal["fno"], Field(description="Network.")] = "fno"
    method: Annotated[
        Literal["adam", "tb+adam", "adamw", "tb+adamw"], Field(description="Optimizer, alone or balanced.")
    ] = "tb+adam"
    data_seed: Annotated[Seed, Field(description="Seed of the initial conditions.")] = 0
    limit: Annotated[Count, Field(description="Solutions for training; fewer are the first of more.")] = 64
    test_limit: Annotated[Count, Field(description="Solutions for the test.")] = 200
    grid: Annotated[
        int,
        Rule(f"one of {', '.join(map(str, GRIDS))}", lambda value: value in GRIDS),
        Field(description="Grid points."),
    ] = 64
    width: Annotated[Size, Field(description="Channels of a block.")] = 64
    modes: Annotated[Size, Field(description="Waves in a block's spectral convolution, at most half of grid.")] = 12
    blocks: Annotated[int, Field(ge=1, le=1000, description="Number of blocks.")] = 4
    weight_decay: WeightDecay = 0.0
    iterations: Iterations = 500
    lr: LearningRate = 2e-3  # best for Adam alone, on other data
    interval: IterationInterval = 20

    def resolved(self) -> Mapping[str, Any]:
        """Refuse more waves than the grid holds."""
        if self.modes > self.grid // 2:
            raise ValueError(f"modes must be at most half of grid, which is {self.grid}, got {self.modes!r}")
        return {}

    @property
    def pace(self) -> tuple[Any, ...]:
        """Options that determine the time of an epoch."""
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
        """Do nothing: a run solves its equation itself."""
