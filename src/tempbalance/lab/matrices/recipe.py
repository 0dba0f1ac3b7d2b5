"""What small network to train on which images, and what to measure of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from tempbalance.lab.images.recipe import ImageRecipe
from tempbalance.lab.names import ACCURACY, Measure
from tempbalance.lab.options import RULES
from tempbalance.lab.recipe import BaseRecipe

_SHARED = ("dataset", "seed", "lr", "batch_size", "epochs", "limit", "test_limit")
_COUNT = ("at least 1", lambda value: value >= 1)


@dataclass(frozen=True)
class MatricesRecipe(BaseRecipe):
    """A network with one hidden layer. Width, data and epochs are the paper's, all else is as of Nassar et al. (2020).

    Attributes:
        dataset: A known name, an .npz file or a folder.
        model: ``mlp``: one hidden layer with tanh.
        method: ``plain``, or ``regularized`` by a penalty on the eigenvalues of the hidden layer's covariance.
        seed: All randomness follows from it and the epoch.
        hidden: Neurons in the hidden layer.
        epochs: How long.
        lr: Of Adam.
        batch_size: Images a step.
        beta: Strength of the penalty.
        tau: The eigenvalue from which on it asks for a decay of 1 / n.
        measure_every: Eigenvalues are measured after the first epoch, after every so many and after the last.
        num_samples: Of how many training images at most.
        num_eigenvalues: How many of the Hessian and of the tangent kernel.
        limit: Use only so many images of the training and of the test set; ``None`` for all.
        test_limit: Use only so many images of the test set; ``None`` for ``limit``.
    """

    kind: ClassVar[str] = "matrices"
    measure: ClassVar[Measure] = ACCURACY
    is_float32: ClassVar[bool] = True
    rules: ClassVar = {
        **{name: RULES[name] for name in _SHARED},
        **dict.fromkeys(("hidden", "tau", "measure_every", "num_samples"), _COUNT),
        "num_eigenvalues": ("at least 2", lambda value: value >= 2),
        "beta": ("at least 0", lambda value: value >= 0),
    }
    choices: ClassVar = {"model": ("mlp",), "method": ("plain", "regularized")}
    result_names: ClassVar[tuple[str, ...]] = ("test_accuracy", "seconds")

    dataset: str = "mnist"
    model: str = "mlp"
    method: str = "regularized"
    seed: int = 43
    hidden: int = 2000
    epochs: int = 50
    lr: float = 1e-3
    batch_size: int = 2500
    beta: float = 1.0
    tau: int = 10
    measure_every: int = 10
    num_samples: int = 5000
    num_eigenvalues: int = 20
    limit: int | None = None
    test_limit: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tau > self.hidden:
            raise ValueError(f"tau must be at most hidden, which is {self.hidden}, got {self.tau!r}")
        if self.is_regularized and self.tau >= self.batch_size:
            raise ValueError(f"tau must be below batch_size, which is {self.batch_size}, got {self.tau!r}")

    @property
    def num_epochs(self) -> int:
        """How many epochs are trained."""
        return self.epochs

    @property
    def is_regularized(self) -> bool:
        """Whether the loss has the penalty."""
        return self.method == "regularized"

    @property
    def unused(self) -> set[str]:
        """Options of the penalty, where there is none."""
        return set() if self.is_regularized else {"beta", "tau"}

    def is_measured(self, epoch: int) -> bool:
        """Whether eigenvalues are measured after an epoch."""
        return epoch in (1, self.epochs) or epoch % self.measure_every == 0

    @property
    def pace(self) -> tuple[Any, ...]:
        """What an epoch's time depends on."""
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
        """Refuse a dataset that is neither known nor the path of anything.

        Raises:
            ValueError: It names the closest known ones.
        """
        self._images.check_data()

    @property
    def has_own_data(self) -> bool:
        """Whether the images are somebody's own, which can change, and are there."""
        return self._images.has_own_data

    def own_digest(self) -> str | None:
        """The checksum of somebody's own images that are there."""
        return self._images.own_digest()

    @property
    def _images(self) -> ImageRecipe:
        """A recipe of the same images."""
        return ImageRecipe(dataset=self.dataset, limit=self.limit, test_limit=self.test_limit)
