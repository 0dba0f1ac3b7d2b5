"""Training a Fourier neural operator, an epoch being the iterations up to the next evaluation."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import tempbalance
from tempbalance.lab.iterations.training import IterationsTraining
from tempbalance.lab.loop import run_plainly
from tempbalance.lab.methods import find_method
from tempbalance.lab.operators.data import OperatorData, make_data
from tempbalance.lab.operators.network import FourierOperator
from tempbalance.lab.operators.recipe import OperatorRecipe
from tempbalance.runlog import Line

_OPTIMIZERS = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
_WEIGHTS, _BATCHES = range(2)  # what is drawn from a seed


def relative_errors(found: Tensor, wanted: Tensor) -> Tensor:
    """The norm of each function's error over that of the function, both of shape ``(samples, grid)``."""
    errors: Tensor = torch.linalg.vector_norm(found - wanted, dim=1) / torch.linalg.vector_norm(wanted, dim=1)
    return errors


class OperatorTraining(IterationsTraining[OperatorRecipe]):
    """An operator in training. The loss is the mean relative error.

    Args:
        task: What to train.
        data: On what.
        device: Where.
    """

    def __init__(self, task: OperatorRecipe, data: OperatorData, *, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self.train_pair, self.test_pair = (
            tuple(torch.from_numpy(getattr(data, f"{part}_{name}")).to(device) for name in ("inputs", "targets"))
            for part in ("train", "test")
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_seed(task, _WEIGHTS))
            network = FourierOperator(width=task.width, modes=task.modes, blocks=task.blocks).to(self.device)
        make = _OPTIMIZERS[find_method(task.method).optimizer]
        groups = tempbalance.param_groups(network)
        super().__init__(task, network, make(groups, lr=task.lr, weight_decay=task.weight_decay))

    def batch(self, iteration: int) -> Tensor:
        """Which solutions an iteration reads; each is read once in a pass, in an order that the pass is drawn."""
        num_samples = len(self.train_pair[0])
        number, step = divmod(iteration, math.ceil(num_samples / self.task.batch_size))
        generator = torch.Generator().manual_seed(_seed(self.task, _BATCHES, number))
        chosen = torch.randperm(num_samples, generator=generator)[step * self.task.batch_size :]
        return chosen[: self.task.batch_size].to(self.device)

    def loss(self, iteration: int) -> Tensor:
        """The mean relative error over a batch."""
        inputs, targets = (each[self.batch(iteration)] for each in self.train_pair)
        return relative_errors(self.network(inputs), targets).mean()

    @torch.no_grad()
    def evaluate(self) -> Line:
        """The mean relative error over the test set, in percent.

        Raises:
            TrainingError: If it is not finite.
        """
        inputs, targets = self.test_pair
        error = 100 * float(relative_errors(self.network(inputs), targets).mean())
        return {"test_nrmse": self.finite("test error", error)}


def _seed(task: OperatorRecipe, *drawn: int) -> int:
    return int(np.random.SeedSequence((task.seed, *drawn)).generate_state(1, np.uint64)[0] >> np.uint64(1))


def run(task: OperatorRecipe, folder: Path, **settings: Any) -> Line:
    """Train a recipe for a sweep; ``settings`` as for `tempbalance.lab.loop.run_plainly`."""
    return run_plainly(
        task,
        folder,
        lambda _: make_data(
            task.dataset, limit=task.limit, test_limit=task.test_limit, grid=task.grid, seed=task.data_seed
        ),
        lambda data, device: OperatorTraining(task, data, device=device),
        **settings,
    )
