"""Training a network with one hidden layer, and measuring its matrices."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tempbalance.curvature import decay_exponent, hessian_eigenvalues, ntk_eigenvalues, output_covariance
from tempbalance.errors import TempBalanceError
from tempbalance.lab.errors import TrainingError
from tempbalance.lab.images.batches import batch_bounds
from tempbalance.lab.images.data import ImageData, load_data
from tempbalance.lab.loop import run_plainly
from tempbalance.lab.matrices.penalty import covariance_eigenvalues, decay_penalty
from tempbalance.lab.matrices.recipe import MatricesRecipe
from tempbalance.runlog import Line

_PART = 500  # images at a time in measuring and testing
_MOST_HIDDEN = 200  # eigenvalues of the hidden layer's covariance that are kept
_TOLERANCE = 1e-4  # of Lanczos, whose eigenvalues are far better than that


class MatricesTraining:
    """A network and its optimizer, as the loop trains them.

    Args:
        task: What to train.
        data: On what.
        device: Where.
    """

    def __init__(self, task: MatricesRecipe, data: ImageData, *, device: torch.device | str = "cpu") -> None:
        self.task = task
        if task.is_regularized and len(data.train_images) <= task.tau:
            raise ValueError(f"there must be more training images than tau, {task.tau}, got {len(data.train_images)}")
        self.images, self.test_images = (
            _standardized(each, data).to(device) for each in (data.train_images, data.test_images)
        )
        self.labels, self.test_labels = data.train_labels.to(device), data.test_labels.to(device)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_seed(task, 0))
            self.network = nn.Sequential(
                nn.Linear(self.images.shape[1], task.hidden), nn.Tanh(), nn.Linear(task.hidden, data.num_classes)
            ).to(device)
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=task.lr, amsgrad=True)
        self.metrics: Line = {}

    def first_lines(self) -> list[Line]:
        """None: layers are not scored."""
        return []

    def epoch(self, number: int) -> tuple[Line, list[Line]]:
        """Train an epoch; after some, measure.

        Raises:
            TrainingError: If the loss is not finite, or a matrix has no exponent.
        """
        order = torch.randperm(len(self.images), generator=torch.Generator().manual_seed(_seed(self.task, number)))
        # a covariance of fewer images than tau has no eigenvalue there: a last batch that small joins the one before
        bounds = batch_bounds(len(order), self.task.batch_size, least=min(2 * self.task.tau, self.task.batch_size))
        batches = [order[start:end].to(self.images.device) for start, end in bounds]
        losses, penalties = zip(*(self._train_on(batch, number) for batch in batches), strict=True)
        self.metrics = {"epoch": number, "train_loss": fmean(losses), "test_accuracy": self._accuracy()}
        if self.task.is_regularized:
            self.metrics["penalty"] = fmean(penalties)
        if self.task.is_measured(number):
            self.metrics.update(self._measure(number))
        return self.metrics, []

    def result(self) -> Line:
        """Loss, accuracy and the exponents after the last epoch."""
        numbers = {name: self.metrics[name] for name in ("test_accuracy", "train_loss")}
        return {**numbers, **{f"{name}_exponent": value for name, value in self.metrics["exponents"].items()}}

    def state_dict(self) -> dict[str, Any]:
        """All that training needs to go on; randomness follows from the seed and the epoch."""
        states = {"network": self.network.state_dict(), "optimizer": self.optimizer.state_dict()}
        return {**states, "metrics": self.metrics}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.metrics = state["metrics"]

    def _train_on(self, batch: Tensor, epoch: int) -> tuple[float, float]:
        """Take a step; the loss without the penalty, and the penalty."""
        hidden = self.network[:2](self.images[batch])
        loss = cross_entropy(self.network[2](hidden), self.labels[batch])
        penalty = torch.zeros((), device=loss.device)
        if self.task.is_regularized:
            penalty = decay_penalty(covariance_eigenvalues(hidden), tau=self.task.tau)
        total = loss + self.task.beta * penalty
        if not math.isfinite(total.item()):
            raise TrainingError(f"the loss is {total.item()} in epoch {epoch}, at a rate of {self.task.lr:g}")
        self.optimizer.zero_grad()
        torch.autograd.backward(total)
        self.optimizer.step()
        return loss.item(), penalty.item()

    @torch.no_grad()
    def _accuracy(self) -> float:
        """On the test set, in percent."""
        found = torch.cat([self.network(part).argmax(1) for part in torch.split(self.test_images, _PART)])
        return 100 * float((found == self.test_labels).double().mean())

    def _measure(self, epoch: int) -> Line:
        """The largest eigenvalues of each matrix and how they decay.

        Raises:
            TrainingError: If a matrix has no exponent.
        """
        try:
            found = self._eigenvalues()
            exponents = {name: decay_exponent(values) for name, values in found.items()}
        except TempBalanceError as err:
            raise TrainingError(f"the matrices after epoch {epoch} cannot be measured: {err}") from err
        return {"eigenvalues": {name: values.tolist() for name, values in found.items()}, "exponents": exponents}

    def _eigenvalues(self) -> dict[str, Tensor]:
        chosen = torch.linspace(0, len(self.images) - 1, min(len(self.images), self.task.num_samples)).long()
        parts = [part.to(self.images.device) for part in torch.split(chosen, _PART)]
        data = [(self.images[part], self.labels[part]) for part in parts]
        options: dict[str, Any] = {"k": self.task.num_eigenvalues, "seed": self.task.seed, "tolerance": _TOLERANCE}
        kernel = ntk_eigenvalues(self.network, data, **options)
        return {
            "output_covariance": _covariance_eigenvalues(self.network, data),
            "hidden_covariance": _covariance_eigenvalues(self.network[:2], data)[:_MOST_HIDDEN],
            "hessian": hessian_eigenvalues(self.network, cross_entropy, data, **options),
            "fisher": kernel / len(chosen),  # which shares the kernel's spectrum
            "ntk": kernel,
        }


def _covariance_eigenvalues(network: nn.Module, data: list[tuple[Tensor, Tensor]]) -> Tensor:
    values: Tensor = torch.linalg.eigvalsh(output_covariance(network, data))
    return values.flip(0)


def _standardized(images: Tensor, data: ImageData) -> Tensor:
    """A row of numbers for each image, each channel with the mean and deviation of the training images removed."""
    mean, std = (torch.tensor(each)[:, None, None] for each in (data.mean, data.std))
    return ((images / 255 - mean) / std).flatten(1)


def _seed(task: MatricesRecipe, epoch: int) -> int:
    return int(np.random.SeedSequence((task.seed, epoch)).generate_state(1, np.uint64)[0] >> np.uint64(1))


def run(task: MatricesRecipe, folder: Path, **settings: Any) -> Line:
    """Train a recipe for a sweep; ``settings`` as for `tempbalance.lab.loop.run_plainly`."""
    return run_plainly(
        task,
        folder,
        lambda cache: load_data(task.dataset, cache=cache, limit=task.limit, test_limit=task.test_limit),
        lambda data, device: MatricesTraining(task, data, device=device),
        **settings,
    )
