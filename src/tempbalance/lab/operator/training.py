"""Training a Fourier neural operator, an epoch being the iterations up to the next evaluation."""

from __future__ import annotations

import math
import time
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim.lr_scheduler import CosineAnnealingLR

import tempbalance
from tempbalance.lab.balancing import scheduler_options
from tempbalance.lab.errors import TrainingError
from tempbalance.lab.loop import run_plainly
from tempbalance.lab.methods import find_method
from tempbalance.lab.operator.data import OperatorData, make_data
from tempbalance.lab.operator.network import FourierOperator
from tempbalance.lab.operator.recipe import OperatorRecipe
from tempbalance.runlog import Line

_OPTIMIZERS = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
_WEIGHTS, _BATCHES = range(2)  # what is drawn from a seed


def relative_errors(found: Tensor, wanted: Tensor) -> Tensor:
    """The norm of each function's error over that of the function, both of shape ``(samples, grid)``."""
    errors: Tensor = torch.linalg.vector_norm(found - wanted, dim=1) / torch.linalg.vector_norm(wanted, dim=1)
    return errors


class OperatorTraining:
    """An operator, its optimizer and its scheduler, as the loop trains them. The loss is the mean relative error.

    Args:
        task: What to train.
        data: On what.
        device: Where.
    """

    def __init__(self, task: OperatorRecipe, data: OperatorData, *, device: torch.device | str = "cpu") -> None:
        self.task, self.device = task, torch.device(device)
        self.train_pair, self.test_pair = (
            tuple(torch.from_numpy(getattr(data, f"{part}_{name}")).to(device) for name in ("inputs", "targets"))
            for part in ("train", "test")
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_seed(task, _WEIGHTS))
            network = FourierOperator(width=task.width, modes=task.modes, blocks=task.blocks)
        self.network = network.to(self.device)
        groups = tempbalance.param_groups(self.network)
        make = _OPTIMIZERS[find_method(task.method).optimizer]
        self.optimizer = make(groups, lr=task.lr, weight_decay=task.weight_decay)
        self.interval = task.interval if task.is_balanced else task.evaluate_every
        self.scheduler = tempbalance.TempBalance(
            self.optimizer,
            self.network,
            CosineAnnealingLR(self.optimizer, T_max=task.iterations),
            **{**scheduler_options(task, balanced=task.is_balanced), "interval": self.interval},
        )
        self.metrics: Line = {}
        self.timings: dict[str, list[float]] = {"epoch": [], "balancing": []}

    def first_lines(self) -> list[Line]:
        """What the scoring before training said of each layer."""
        return self._layer_lines(0)

    def epoch(self, number: int) -> tuple[Line, list[Line]]:
        """Train the iterations of an epoch, then evaluate.

        Raises:
            TrainingError: If an error is not finite, or a weight.
        """
        rates = [float(rate) for rate in self.scheduler.get_last_lr()]
        first, end = (each * self.task.evaluate_every for each in (number - 1, number))
        started, balanced = time.monotonic(), sum(self.timings["balancing"])
        losses = [self._train_on(each) for each in range(first, min(end, self.task.iterations))]
        self.timings["epoch"].append(time.monotonic() - started - sum(self.timings["balancing"]) + balanced)
        self.metrics = {
            "epoch": number,
            "lr_min": min(rates),
            "lr_max": max(rates),
            "train_loss": fmean(losses),
            "test_nrmse": self._test_error(number),
        }
        return self.metrics, self._layer_lines(number)

    def result(self) -> Line:
        """Errors after the last iteration, and times; an epoch's are of training alone, without balancing."""
        errors = {name: self.metrics[name] for name in ("test_nrmse", "train_loss")}
        means = {f"{name}_seconds": fmean(each) for name, each in self.timings.items() if each}
        spreads = {f"{name}_seconds_std": stdev(each) for name, each in self.timings.items() if len(each) > 1}
        return {**errors, **means, **spreads, "num_balancings": len(self.timings["balancing"])}

    def state_dict(self) -> dict[str, Any]:
        """All that training needs to go on; batches follow from the seed and the iteration."""
        return {
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "metrics": self.metrics,
            "timings": self.timings,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        self.metrics, self.timings = state["metrics"], state["timings"]

    def batch(self, iteration: int) -> Tensor:
        """Which solutions an iteration reads; each is read once in a pass, in an order that the pass is drawn."""
        num_samples = len(self.train_pair[0])
        number, step = divmod(iteration, math.ceil(num_samples / self.task.batch_size))
        generator = torch.Generator().manual_seed(_seed(self.task, _BATCHES, number))
        chosen = torch.randperm(num_samples, generator=generator)[step * self.task.batch_size :]
        return chosen[: self.task.batch_size].to(self.device)

    def _train_on(self, iteration: int) -> float:
        """Take a step, and the scheduler's; the loss.

        Raises:
            TrainingError: If it is not finite.
        """
        inputs, targets = (each[self.batch(iteration)] for each in self.train_pair)
        loss = relative_errors(self.network(inputs), targets).mean()
        if not math.isfinite(value := loss.item()):
            rate = max(float(rate) for rate in self.scheduler.get_last_lr())
            raise TrainingError(f"the loss is {value} in iteration {iteration + 1}, at rates up to {rate:.3g}")
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        self.optimizer.step()
        self._step_scheduler(iteration)
        return value

    def _step_scheduler(self, iteration: int) -> None:
        """Set the next rates; where layers are scored for that, note the seconds.

        Raises:
            TrainingError: If a weight is not finite.
        """
        started = time.monotonic()
        try:
            self.scheduler.step()
        except tempbalance.TempBalanceError as err:
            raise TrainingError(f"layers cannot be scored after iteration {iteration + 1}: {err}") from err
        if (iteration + 1) % self.interval == 0:
            self.timings["balancing"].append(time.monotonic() - started)

    @torch.no_grad()
    def _test_error(self, epoch: int) -> float:
        """The mean relative error over the test set, in percent.

        Raises:
            TrainingError: If it is not finite.
        """
        inputs, targets = self.test_pair
        error = 100 * float(relative_errors(self.network(inputs), targets).mean())
        if not math.isfinite(error):
            raise TrainingError(f"the test error is {error} after epoch {epoch}")
        return error

    def _layer_lines(self, epoch: int) -> list[Line]:
        """What the latest scoring said of each layer, and the rate it has now."""
        rates = {group.get("layer"): float(group["lr"]) for group in self.optimizer.param_groups}
        return [
            {
                "epoch": epoch,
                "layer": row.name,
                "alpha": row.alpha,
                "score": row.score,
                "scale": row.scale,
                "rate": rates[row.name],
            }
            for row in self.scheduler.table()
            if row.score is not None
        ]


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
