"""Trainings whose layers are scored, and balanced where the method says so."""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from statistics import fmean, stdev
from typing import Any, TypeVar

import numpy as np
import torch
from lightning.fabric import Fabric
from torch import Tensor, nn
from torch.optim import Adam, AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler

import tempbalance
from tempbalance.lab.options import is_side
from tempbalance.lab.recipe import BalancingRecipe, IterationsRecipe, find_method
from tempbalance.lab.runs import Epoch, TrainingError
from tempbalance.lab.train import Training
from tempbalance.runlog import Line

B = TypeVar("B", bound=BalancingRecipe)
I = TypeVar("I", bound=IterationsRecipe)  # noqa: E741

_SCORING = (
    "tail", "tail_fraction", "score", "score_first", "score_last", "score_embeddings", "min_eigenvalues", "interval",
    "start", "stop",
)  # fmt: skip
_ADAM = ("lr", "betas", "eps", "weight_decay")
_COMPARISON = ("keep_mean", "shrink", "smooth", "blend", "group_by")


def scheduler_options(recipe: BalancingRecipe) -> dict[str, Any]:
    """Return a recipe's options of `tempbalance.TempBalance`; without balancing layers are only scored."""
    options: dict[str, Any] = {name: getattr(recipe, name) for name in _SCORING if hasattr(recipe, name)}
    windows = int(recipe.windows) if recipe.windows is not None and is_side(recipe.windows) else recipe.windows
    comparison: dict[str, Any] = {"reference": recipe.reference, "windows": windows}
    if not recipe.is_balanced:
        return {**options, "scale_range": (1.0, 1.0), "comparison": tempbalance.Comparison(**comparison)}
    comparison |= {name: getattr(recipe, name) for name in _COMPARISON}
    options |= {"scale_range": recipe.scale_range, "assignment": recipe.library_assignment}
    options["comparison"] = tempbalance.Comparison(**comparison)
    if recipe.decay_range is not None:
        options["balance"] = {"lr": options.pop("scale_range"), "weight_decay": recipe.decay_range}
    return options


def scored_layers(
    scheduler: tempbalance.TempBalance, network: nn.Module, optimizer: torch.optim.Optimizer, epoch: int
) -> list[Line]:
    """Return a line for each scored layer: the latest scoring, and its weight's learning rate in the optimizer."""
    groups = optimizer.param_groups
    by_parameter = {id(parameter): float(group["lr"]) for group in groups for parameter in group["params"]}
    rates = {
        layer.name: by_parameter[id(parameter)]
        for layer in tempbalance.find_layers(network)
        for parameter in reversed(layer.parameters)  # the weight comes first, and an adapter's is frozen
        if id(parameter) in by_parameter
    }
    lines = []
    for row in scheduler.table():
        if row.score is not None:
            line: Line = {"epoch": epoch, "layer": row.name, "alpha": row.alpha, "score": row.score, "scale": row.scale}
            scales = {f"{target}_scale": scale for target, scale in row.scales.items()}
            lines.append({**line, **scales, "rate": rates[row.name]})
    return lines


@contextmanager
def seeded(seed: int, epoch: int, device: torch.device) -> Iterator[None]:
    """Draw weights and dropout from the seed and an epoch, and nobody else's numbers."""
    state = np.random.SeedSequence((seed, epoch)).generate_state(1, np.uint64)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(int(state[0]))
        yield


class BalancedTraining(Training[B]):
    """A training with one param group a layer, driven by `tempbalance.TempBalance` if layers are scored.

    ``interval`` is between scorings, in place of the recipe's.
    """

    def __init__(
        self,
        recipe: B,
        network: nn.Module,
        optimizer: Callable[[list[dict[str, Any]]], torch.optim.Optimizer],
        schedule: Callable[[torch.optim.Optimizer], LRScheduler],
        fabric: Fabric,
        *,
        interval: int | None = None,
    ) -> None:
        super().__init__(recipe, network, optimizer(tempbalance.param_groups(network)), fabric)
        self.scheduler = schedule(self.optimizer)
        if recipe.is_scored:
            options = scheduler_options(recipe) | ({} if interval is None else {"interval": interval})
            self.scheduler = tempbalance.TempBalance(self.optimizer, network, self.scheduler, **options)
        self.timings: dict[str, list[float]] = {"epoch": [], "balancing": []}
        self.step_lines: list[Line] = []

    @abstractmethod
    def batches(self, number: int) -> Iterable[Any]:
        """Return the batches of an epoch."""

    @abstractmethod
    def loss(self, batch: Any) -> Tensor:
        """Return the loss that a step makes smaller."""

    @abstractmethod
    def evaluate(self) -> Line:
        """Return the metrics of the network as it is."""

    def training_metrics(self, losses: list[float]) -> Line:
        return {"train_loss": fmean(losses)}

    def after_step(self) -> None:
        """Run after each step of the optimizer."""

    def after_epoch(self) -> None:
        """Run after an epoch and its evaluation."""

    def epoch(self, number: int) -> Epoch:
        self.number, self.step_lines = number, []
        rates = [float(rate) for rate in self.scheduler.get_last_lr()]
        started, balanced = time.monotonic(), sum(self.timings["balancing"])
        self.model.train()
        self.losses: list[float] = []
        for batch in self.batches(number):
            self.step(self.loss(batch))
            self.after_step()
        self.losses += self.read_losses()
        self.timings["epoch"].append(time.monotonic() - started - (sum(self.timings["balancing"]) - balanced))
        self.metrics = {"epoch": number, "lr_min": min(rates), "lr_max": max(rates)}
        self.metrics |= self.training_metrics(self.losses)
        self.model.eval()
        with torch.no_grad():
            self.metrics |= self.evaluate()
        self.after_epoch()
        layers = self.layer_lines(number) if self.recipe.scores_after(number) else ()
        return Epoch(self.metrics, layers, self.step_lines)

    def first_lines(self) -> list[Line]:
        return self.layer_lines(0)

    def balance(self, call: Callable[[], None]) -> None:
        """Balance and record the time."""
        self.losses += self.read_losses()
        started = time.monotonic()
        self.advance(call)
        self.timings["balancing"].append(time.monotonic() - started)

    def advance(self, call: Callable[[], None]) -> None:
        """Call the scheduler, unless layers cannot be scored."""
        try:
            call()
        except tempbalance.TempBalanceError as err:
            raise TrainingError(f"layers cannot be scored after iteration {self.iteration}: {err}") from err

    def result(self) -> Line:
        """Return metrics and times; an epoch's are of training alone, without balancing."""
        means = {f"{name}_seconds": fmean(each) for name, each in self.timings.items() if each}
        spreads = {f"{name}_seconds_std": stdev(each) for name, each in self.timings.items() if len(each) > 1}
        return {**super().result(), **means, **spreads, "num_balancings": len(self.timings["balancing"])}

    def stateful(self) -> dict[str, Any]:
        """Return the objects whose state a checkpoint holds; the scheduler comes after its optimizer."""
        return {**super().stateful(), "scheduler": self.scheduler}

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "timings": self.timings}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.timings = state["timings"]

    def layer_lines(self, epoch: int) -> list[Line]:
        """Return a line for each layer: the latest scoring, and the learning rate of its weight now."""
        if not isinstance(self.scheduler, tempbalance.TempBalance):
            return []
        lines = scored_layers(self.scheduler, self.network, self.optimizer, epoch)
        return [{**line, **self.layer_extras(line["layer"])} for line in lines]

    def layer_extras(self, layer: str) -> Line:
        """Return more values for the line of a layer."""
        return {}


class IterationsTraining(BalancedTraining[I]):
    """Training by iterations with Adam or AdamW under a cosine; an epoch lasts until the next evaluation."""

    def __init__(self, recipe: I, network: nn.Module, fabric: Fabric) -> None:
        kind = {"adam": Adam, "adamw": AdamW}[find_method(recipe.method).optimizer]
        options = {name: getattr(recipe, name) for name in _ADAM if hasattr(recipe, name)}
        self.interval = recipe.interval if recipe.is_balanced else recipe.evaluate_every
        super().__init__(
            recipe, network, lambda groups: kind(groups, **options), self.schedule, fabric, interval=self.interval
        )

    def epoch(self, number: int) -> Epoch:
        """Train the iterations of an epoch, then evaluate; dropout follows from the seed and the epoch."""
        with seeded(self.recipe.seed, number, self.fabric.device):
            return super().epoch(number)

    def schedule(self, optimizer: torch.optim.Optimizer) -> LRScheduler:
        return CosineAnnealingLR(optimizer, T_max=self.recipe.iterations)

    @property
    def num_steps(self) -> int:
        return self.recipe.iterations

    def batches(self, number: int) -> range:
        """Return the iterations of an epoch, the first of all being 0."""
        first, end = (each * self.recipe.evaluate_every for each in (number - 1, number))
        self.iteration = first
        return range(first, min(end, self.recipe.iterations))

    def after_step(self) -> None:
        """Step the scheduler, which balances when that is due."""
        is_due = self.recipe.is_scored and self.iteration % self.interval == 0
        call = self.balance if is_due else self.advance
        call(self.scheduler.step)


def gradient_norm(weight: Tensor) -> float | None:
    """Return the norm of a weight's gradient; ``None`` if it is not finite."""
    assert weight.grad is not None
    norm = float(weight.grad.norm())
    return norm if math.isfinite(norm) else None
