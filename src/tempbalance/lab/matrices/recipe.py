"""Recipes of small networks whose covariance, Hessian and tangent kernel are measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from tempbalance.lab.images.recipe import ImageData, ImageRecipe
from tempbalance.lab.options import METHOD, BatchSize, Count, Epochs, LearningRate, Limit, NotNegative, Size, TestLimit
from tempbalance.lab.recipe import ACCURACY, BaseRecipe


class MatricesRecipe(BaseRecipe):
    """Training of a network with one hidden layer.

    Width, data and epochs are the paper's; the other defaults are those of Nassar et al. (2020).
    """

    kind = "matrices"
    measure = ACCURACY
    is_float32 = True
    result_names = ("test_accuracy", "seconds")

    dataset: ImageData = "mnist"
    model: Annotated[Literal["mlp"], Field(description="Network with one hidden layer and tanh.")] = "mlp"
    method: Annotated[
        Literal["plain", "regularized"],
        Field(description="Plain loss, or with a penalty on the eigenvalues of the hidden layer's covariance."),
    ] = "regularized"
    hidden: Annotated[Size, Field(description="Neurons in the hidden layer.")] = 2000
    epochs: Epochs = 50
    lr: LearningRate = 1e-3
    batch_size: BatchSize = 2500
    beta: Annotated[NotNegative, Field(description="Strength of the penalty."), METHOD] = 1.0
    tau: Annotated[Count, Field(description="First eigenvalue that the penalty makes decay as 1 / n."), METHOD] = 10
    measure_every: Annotated[
        Count, Field(description="Epochs between measurements; the first and the last epoch are measured too.")
    ] = 10
    num_samples: Annotated[Count, Field(description="Measure on at most this many training images.")] = 5000
    num_eigenvalues: Annotated[
        int, Field(ge=2, le=100_000, description="Number of eigenvalues of the Hessian and of the tangent kernel.")
    ] = 20
    limit: Limit = None
    test_limit: TestLimit = None

    def resolved(self) -> Mapping[str, Any]:
        """Refuse a penalty on more eigenvalues than there are."""
        if self.tau > self.hidden:
            raise ValueError(f"tau must be at most hidden, which is {self.hidden}, got {self.tau!r}")
        if self.is_regularized and self.tau >= self.batch_size:
            raise ValueError(f"tau must be below batch_size, which is {self.batch_size}, got {self.tau!r}")
        return {}

    @property
    def num_epochs(self) -> int:
        """Number of epochs."""
        return self.epochs

    @property
    def is_regularized(self) -> bool:
        """Whether the loss has the penalty."""
        return self.method == "regularized"

    @property
    def unused(self) -> set[str]:
        """Options of the penalty, for the plain loss."""
        return set() if self.is_regularized else {"beta", "tau"}

    def is_measured(self, epoch: int) -> bool:
        """Whether eigenvalues are measured after an epoch."""
        return epoch in (1, self.epochs) or epoch % self.measure_every == 0

    @property
    def pace(self) -> tuple[Any, ...]:
        """Options that determine the time of an epoch."""
        measured = (self.measure_every, self.num_samples, self.num_eigenvalues)
        return self.dataset, self.limit, self.method, self.hidden, self.batch_size, self.epochs, *measured

    @property
    def data_text(self) -> str:
        """The data with the number of images."""
        return self._images.data_text

    @property
    def size_text(self) -> str:
        """Neurons and epochs."""
        return f"{self.hidden:,} neurons; {self.epochs} epochs"

    def check_data(self) -> None:
        """Refuse a dataset that is neither known nor a path.

        Raises:
            ValueError: With the closest known names.
        """
        self._images.check_data()

    @property
    def has_own_data(self) -> bool:
        """Whether the images are a user's own, which can change, and exist."""
        return self._images.has_own_data

    def own_digest(self) -> str | None:
        """Return the checksum of a user's own images."""
        return self._images.own_digest()

    @property
    def _images(self) -> ImageRecipe:
        """A recipe of the same images."""
        return ImageRecipe(dataset=self.dataset, limit=self.limit, test_limit=self.test_limit)
