"""Training a Fourier neural operator, an epoch being the iterations up to the next evaluation."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from lightning.fabric import Fabric
from torch import Tensor

from tempbalance.lab.balancing import IterationsTraining
from tempbalance.lab.methods import find_method
from tempbalance.lab.operators.data import OperatorData, make_data
from tempbalance.lab.operators.network import FourierOperator
from tempbalance.lab.operators.recipe import OperatorRecipe
from tempbalance.runlog import Line

_OPTIMIZERS = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
_WEIGHTS, _BATCHES = range(2)  # what is drawn from a seed


def relative_errors(found: Tensor, wanted: Tensor) -> Tensor:
    """Return the relative error of each function in the L2 norm, from two tensors of shape ``(samples, grid)``."""
    errors: Tensor = torch.linalg.vector_norm(found - wanted, dim=1) / torch.linalg.vector_norm(wanted, dim=1)
    return errors


class OperatorTraining(IterationsTraining[OperatorRecipe]):
    """An operator in training. The loss is the mean relative error.

    Args:
        recipe: What to train.
        data: On what.
        fabric: Gives the device.
    """

    def __init__(self, recipe: OperatorRecipe, data: OperatorData, fabric: Fabric) -> None:
        self.train_pair, self.test_pair = (
            tuple(torch.from_numpy(getattr(data, f"{part}_{name}")).to(fabric.device) for name in ("inputs", "targets"))
            for part in ("train", "test")
        )
        self._pass = -1, torch.empty(0)  # its number and order
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_seed(recipe, _WEIGHTS))
            network = bare_network(recipe)
        make = _OPTIMIZERS[find_method(recipe.method).optimizer]
        options = {"lr": recipe.lr, "weight_decay": recipe.weight_decay}
        super().__init__(recipe, network, lambda groups: make(groups, **options), fabric)

    def batch(self, iteration: int) -> Tensor:
        """Return the solutions of an iteration; each is read once in a pass, in an order that the pass is drawn."""
        num_samples = len(self.train_pair[0])
        number, step = divmod(iteration, math.ceil(num_samples / self.recipe.batch_size))
        if number != self._pass[0]:
            generator = torch.Generator().manual_seed(_seed(self.recipe, _BATCHES, number))
            self._pass = number, torch.randperm(num_samples, generator=generator).to(self.fabric.device)
        return self._pass[1][step * self.recipe.batch_size :][: self.recipe.batch_size]

    def loss(self, batch: int) -> Tensor:
        """Return the mean relative error over the batch of an iteration."""
        chosen = self.batch(batch)
        inputs, targets = (each[chosen] for each in self.train_pair)
        return relative_errors(self.model(inputs), targets).mean()

    @torch.no_grad()
    def evaluate(self) -> Line:
        """Return the mean relative error over the test set, in percent.

        Raises:
            TrainingError: If it is not finite.
        """
        inputs, targets = self.test_pair
        error = 100 * float(relative_errors(self.model(inputs), targets).mean())
        return {"test_nrmse": self.finite("test error", error)}


def _seed(recipe: OperatorRecipe, *drawn: int) -> int:
    return int(np.random.SeedSequence((recipe.seed, *drawn)).generate_state(1, np.uint64)[0] >> np.uint64(1))


def bare_network(recipe: OperatorRecipe) -> FourierOperator:
    """Return a recipe's network."""
    return FourierOperator(width=recipe.width, modes=recipe.modes, blocks=recipe.blocks)


def load(recipe: OperatorRecipe, cache: Path | None) -> OperatorData:
    """Return the solutions that a recipe learns from."""
    return make_data(
        recipe.dataset, limit=recipe.limit, test_limit=recipe.test_limit, grid=recipe.grid, seed=recipe.data_seed
    )


build = OperatorTraining
