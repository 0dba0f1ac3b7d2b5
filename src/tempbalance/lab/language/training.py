"""Training a language model, an epoch being the iterations up to the next evaluation."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import tempbalance
from tempbalance.lab.iterations.training import IterationsTraining
from tempbalance.lab.language.batches import TrainingBatches, evaluation_batches
from tempbalance.lab.language.networks import Size, build_language_model
from tempbalance.lab.language.recipe import LanguageRecipe
from tempbalance.lab.language.text import TextData, load_text
from tempbalance.lab.loop import run_plainly
from tempbalance.runlog import Line

_EVALUATED = 120  # sequences at a time
_MOST = 700  # of a loss whose exponential is a number


class LanguageTraining(IterationsTraining[LanguageRecipe]):
    """A language model in training.

    Args:
        task: What to train.
        data: On what.
        device: Where.

    Raises:
        ValueError: If the text is too short for a batch.
    """

    def __init__(self, task: LanguageRecipe, data: TextData, *, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self.parts = {part: torch.from_numpy(getattr(data, part)).to(device) for part in ("train", "valid", "test")}
        self.batches = TrainingBatches(
            self.parts["train"], batch_size=task.batch_size, sequence=task.sequence, seed=task.seed, name=data.name
        )
        size = Size(task.layers, task.width, task.head, task.inner, task.sequence, task.dropout)
        with _seeded(task, 0, self.device):
            network = build_language_model(
                task.model, num_tokens=len(data.vocabulary), size=size, causal=task.causal
            ).to(self.device)
        groups = tempbalance.param_groups(network)
        super().__init__(task, network, torch.optim.Adam(groups, lr=task.lr, betas=task.betas, eps=task.eps))

    def epoch(self, number: int) -> tuple[Line, list[Line]]:
        """Train the iterations of an epoch, then evaluate; dropout follows from the seed and the epoch.

        Raises:
            TrainingError: If the loss, a weight or a perplexity is not finite.
        """
        with _seeded(self.task, number, self.device):
            return super().epoch(number)

    def loss(self, iteration: int) -> Tensor:
        """The mean cross entropy over a batch's tokens."""
        self.network.train()
        inputs, targets = self.batches[iteration]
        return cross_entropy(self.network(inputs).flatten(0, 1), targets.flatten())

    def evaluate(self) -> Line:
        """The perplexity over each part that is not trained on.

        Raises:
            TrainingError: If one is not finite.
        """
        return {f"{part}_perplexity": self.perplexity(part) for part in ("valid", "test")}

    @torch.no_grad()
    def perplexity(self, part: str) -> float:
        """The exponential of the mean loss over a part's tokens but the first.

        Raises:
            TrainingError: If it is not finite.
        """
        self.network.eval()
        tokens, total = self.parts[part], 0.0
        for inputs, targets in evaluation_batches(tokens, batch_size=_EVALUATED, sequence=self.task.sequence):
            total += cross_entropy(self.network(inputs).flatten(0, 1), targets.flatten(), reduction="sum").item()
        mean = self.finite(f"{part} loss", total / (len(tokens) - 1))
        return self.finite(f"{part} perplexity", math.exp(mean) if mean < _MOST else math.inf)


@contextmanager
def _seeded(task: LanguageRecipe, epoch: int, device: torch.device) -> Iterator[None]:
    """Draw weights and dropout from the seed and an epoch, and nobody else's numbers."""
    state = np.random.SeedSequence((task.seed, epoch)).generate_state(1, np.uint64)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(int(state[0]))
        yield


def run(task: LanguageRecipe, folder: Path, **settings: Any) -> Line:
    """Train a recipe for a sweep; ``settings`` as for `tempbalance.lab.loop.run_plainly`."""
    return run_plainly(
        task,
        folder,
        lambda cache: load_text(task.dataset, tokens=task.tokens, cache=cache),
        lambda data, device: LanguageTraining(task, data, device=device),
        **settings,
    )
