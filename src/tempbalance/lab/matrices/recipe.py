"""Recipes of small networks whose covariance, Hessian and tangent kernel are measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from tempbalance.lab import options
from tempbalance.lab.images.recipe import Images, OnImages
from tempbalance.lab.options import METHOD, Count


class MatricesRecipe(OnImages):
    """Training of a network with one hidden layer.

    Width, data and epochs are the paper's; the other defaults are those of Nassar et al. (2020).
    """

    kind = "matrices"
    is_float32 = True
    result_names = ("test_accuracy", "seconds")

    dataset: Images = "mnist"
    model: Annotated[Literal["mlp"], "Network with one hidden layer and tanh."] = "mlp"
    method: Annotated[
        Literal["plain", "regularized"],
        "Plain loss, or with a penalty on the eigenvalues of the hidden layer's covariance.",
    ] = "regularized"
    hidden: Annotated[options.Size, "Neurons in the hidden layer."] = 2000
    epochs: options.Epochs = 50
    lr: options.LearningRate = 1e-3
    batch_size: options.BatchSize = 2500
    beta: Annotated[options.NotNegative, "Strength of the penalty.", METHOD] = 1.0
    tau: Annotated[Count, "First eigenvalue that the penalty makes decay as 1 / n.", METHOD] = 10
    measure_every: Annotated[Count, "Epochs between measurements; the first and the last epoch are measured too."] = 10
    num_samples: Annotated[Count, "Measure on at most this many training images."] = 5000
    num_eigenvalues: Annotated[
        int, Field(ge=2, le=100_000), "Number of eigenvalues of the Hessian and of the tangent kernel."
    ] = 20
    limit: options.Limit = None
    test_limit: options.TestLimit = None

    def resolved(self) -> Mapping[str, Any]:
        if self.tau > self.hidden:
            raise ValueError(f"tau must be at most hidden, which is {self.hidden}, got {self.tau!r}")
        if self.is_regularized and self.tau >= self.batch_size:
            raise ValueError(f"tau must be below batch_size, which is {self.batch_size}, got {self.tau!r}")
        return {}

    @property
    def is_regularized(self) -> bool:
        return self.method == "regularized"

    @property
    def unused(self) -> set[str]:
        return set() if self.is_regularized else {"beta", "tau"}

    def is_measured(self, epoch: int) -> bool:
        return epoch in (1, self.epochs) or epoch % self.measure_every == 0

    @property
    def pace(self) -> tuple[Any, ...]:
        measured = (self.measure_every, self.num_samples, self.num_eigenvalues)
        return self.dataset, self.limit, self.method, self.hidden, self.batch_size, self.epochs, *measured

    @property
    def size_text(self) -> str:
        return f"{self.hidden:,} neurons; {self.epochs} epochs"
