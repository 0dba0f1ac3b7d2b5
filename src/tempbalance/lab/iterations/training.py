"""Training so many iterations, an epoch being those up to the next evaluation."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from statistics import fmean, stdev
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR

import tempbalance
from tempbalance.lab.balancing import scheduler_options
from tempbalance.lab.errors import TrainingError
from tempbalance.lab.recipe import IterationsRecipe
from tempbalance.runlog import Line

T = TypeVar("T", bound=IterationsRecipe)

_COUNTED = ("num_balancings", "seconds")  # of a result, by the training and by the loop


class IterationsTraining(ABC, Generic[T]):
    """A network, its optimizer and its scheduler, as the loop trains them.

    Args:
        task: What to train.
        network: On its device.
        optimizer: Of its param groups.
    """

    def __init__(self, task: T, network: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.task, self.network, self.optimizer = task, network, optimizer
        self.interval = task.interval if task.is_balanced else task.evaluate_every
        self.scheduler = tempbalance.TempBalance(
            optimizer,
            network,
            CosineAnnealingLR(optimizer, T_max=task.iterations),
            **{**scheduler_options(task, balanced=task.is_balanced), "interval": self.interval},
        )
        self.metrics: Line = {}
        self.timings: dict[str, list[float]] = {"epoch": [], "balancing": []}
        self._iteration = 0  # the latest, the first being 1

    @abstractmethod
    def loss(self, iteration: int) -> Tensor:
        """What an iteration's step makes smaller; the first is 0."""

    @abstractmethod
    def evaluate(self) -> Line:
        """What the network is worth by now.

        Raises:
            TrainingError: If a number is not finite.
        """

    def first_lines(self) -> list[Line]:
        """What the scoring before training said of each layer."""
        return self._layer_lines(0)

    def epoch(self, number: int) -> tuple[Line, list[Line]]:
        """Train the iterations of an epoch, then evaluate.

        Raises:
            TrainingError: If the loss, a weight or a number of the evaluation is not finite.
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
            **self.evaluate(),
        }
        return self.metrics, self._layer_lines(number)

    def result(self) -> Line:
        """What came out after the last iteration, and times; an epoch's are of training alone, without balancing."""
        measured = {name: self.metrics[name] for name in self.task.result_names if name not in _COUNTED}
        means = {f"{name}_seconds": fmean(each) for name, each in self.timings.items() if each}
        spreads = {f"{name}_seconds_std": stdev(each) for name, each in self.timings.items() if len(each) > 1}
        return {**measured, **means, **spreads, "num_balancings": len(self.timings["balancing"])}

    def state_dict(self) -> dict[str, Any]:
        """All that training needs to go on; randomness follows from the seed and the epoch or the iteration."""
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

    def finite(self, what: str, value: float) -> float:
        """A number, as long as it is one.

        Raises:
            TrainingError: If it is not; it names the iteration.
        """
        if math.isfinite(value):
            return value
        rate = max(float(rate) for rate in self.scheduler.get_last_lr())
        raise TrainingError(f"the {what} is {value} in iteration {self._iteration}, at rates up to {rate:.3g}")

    def _train_on(self, iteration: int) -> float:
        """Take a step, and the scheduler's; the loss.

        Raises:
            TrainingError: If it is not finite, or a weight.
        """
        self._iteration = iteration + 1
        loss = self.loss(iteration)
        value = self.finite("loss", loss.item())
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        self.optimizer.step()
        started = time.monotonic()
        try:
            self.scheduler.step()
        except tempbalance.TempBalanceError as err:
            raise TrainingError(f"layers cannot be scored after iteration {self._iteration}: {err}") from err
        if self._iteration % self.interval == 0:
            self.timings["balancing"].append(time.monotonic() - started)
        return value

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
