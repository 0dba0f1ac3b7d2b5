"""Training a language model, an epoch being the iterations up to the next evaluation."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import CosineAnnealingLR

import tempbalance
from tempbalance.lab.balancing import scheduler_options
from tempbalance.lab.errors import TrainingError
from tempbalance.lab.language.batches import TrainingBatches, evaluation_batches
from tempbalance.lab.language.networks import Size, build_language_model
from tempbalance.lab.language.recipe import LanguageRecipe
from tempbalance.lab.language.text import TextData, load_text
from tempbalance.lab.loop import run_plainly
from tempbalance.runlog import Line

_EVALUATED = 120  # sequences at a time
_MOST = 700  # of a loss whose exponential is a number


class LanguageTraining:
    """A language model, its optimizer and its scheduler, as the loop trains them.

    Args:
        task: What to train.
        data: On what.
        device: Where.

    Raises:
        ValueError: If the text is too short for a batch.
    """

    def __init__(self, task: LanguageRecipe, data: TextData, *, device: torch.device | str = "cpu") -> None:
        self.task, self.device = task, torch.device(device)
        self.parts = {part: torch.from_numpy(getattr(data, part)).to(device) for part in ("train", "valid", "test")}
        self.batches = TrainingBatches(
            self.parts["train"], batch_size=task.batch_size, sequence=task.sequence, seed=task.seed, name=data.name
        )
        size = Size(task.layers, task.width, task.head, task.inner, task.sequence, task.dropout)
        with self._seeded(0):
            self.network = build_language_model(
                task.model, num_tokens=len(data.vocabulary), size=size, causal=task.causal
            ).to(self.device)
        groups = tempbalance.param_groups(self.network)
        self.optimizer = torch.optim.Adam(groups, lr=task.lr, betas=task.betas, eps=task.eps)
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
            TrainingError: If the loss or the perplexity is not finite.
        """
        rates = [float(rate) for rate in self.scheduler.get_last_lr()]
        first, end = (each * self.task.evaluate_every for each in (number - 1, number))
        started, balanced = time.monotonic(), sum(self.timings["balancing"])
        with self._seeded(number):
            losses = [self._train_on(each) for each in range(first, min(end, self.task.iterations))]
        self.timings["epoch"].append(time.monotonic() - started - sum(self.timings["balancing"]) + balanced)
        self.metrics = {
            "epoch": number,
            "lr_min": min(rates),
            "lr_max": max(rates),
            "train_loss": fmean(losses),
            **{f"{part}_perplexity": self._perplexity(part) for part in ("valid", "test")},
        }
        return self.metrics, self._layer_lines(number)

    def result(self) -> Line:
        """Perplexities after the last iteration, and times; an epoch's are of training alone, without balancing."""
        perplexities = {name: self.metrics[name] for name in ("test_perplexity", "valid_perplexity")}
        means = {f"{name}_seconds": fmean(each) for name, each in self.timings.items() if each}
        spreads = {f"{name}_seconds_std": stdev(each) for name, each in self.timings.items() if len(each) > 1}
        return {**perplexities, **means, **spreads, "num_balancings": len(self.timings["balancing"])}

    def state_dict(self) -> dict[str, Any]:
        """All that training needs to go on; randomness follows from the seed and the epoch."""
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

    @contextmanager
    def _seeded(self, epoch: int) -> Iterator[None]:
        """Draw weights and dropout from the seed and an epoch, and nobody else's numbers."""
        state = np.random.SeedSequence((self.task.seed, epoch)).generate_state(1, np.uint64)
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(int(state[0]))
            yield

    def _train_on(self, iteration: int) -> float:
        """Take a step, and the scheduler's.

        Returns:
            The loss.

        Raises:
            TrainingError: If it is not finite.
        """
        self.network.train()
        inputs, targets = self.batches[iteration]
        loss = cross_entropy(self.network(inputs).flatten(0, 1), targets.flatten())
        value = self._finite("loss", loss.item(), iteration)
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
    def _perplexity(self, part: str) -> float:
        """The exponential of the mean loss over a part's tokens but the first.

        Raises:
            TrainingError: If it is not finite.
        """
        self.network.eval()
        tokens, total = self.parts[part], 0.0
        for inputs, targets in evaluation_batches(tokens, batch_size=_EVALUATED, sequence=self.task.sequence):
            total += cross_entropy(self.network(inputs).flatten(0, 1), targets.flatten(), reduction="sum").item()
        iteration = len(self.timings["epoch"]) * self.task.evaluate_every - 1
        mean = self._finite(f"{part} loss", total / (len(tokens) - 1), iteration)
        return self._finite(f"{part} perplexity", math.exp(mean) if mean < _MOST else math.inf, iteration)

    def _finite(self, what: str, value: float, iteration: int) -> float:
        if math.isfinite(value):
            return value
        rate = max(float(rate) for rate in self.scheduler.get_last_lr())
        raise TrainingError(f"the {what} is {value} in iteration {iteration + 1}, at rates up to {rate:.3g}")

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


def run(task: LanguageRecipe, folder: Path, **settings: Any) -> Line:
    """Train a recipe for a sweep; ``settings`` as for `tempbalance.lab.loop.run_plainly`."""
    return run_plainly(
        task,
        folder,
        lambda cache: load_text(task.dataset, tokens=task.tokens, cache=cache),
        lambda data, device: LanguageTraining(task, data, device=device),
        **settings,
    )
