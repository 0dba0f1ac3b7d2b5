"""Train a language model; an epoch is the iterations up to the next evaluation."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from lightning.fabric import Fabric
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from tempbalance.lab.balancing import IterationsTraining, seeded
from tempbalance.lab.language.data import PARTS, TextData, count_steps
from tempbalance.lab.language.network import Size, build_language_model
from tempbalance.lab.language.recipe import LanguageRecipe
from tempbalance.runlog import Line

_EVALUATED = 120  # sequences at a time
_MOST = 700  # of a loss whose exponential is a number

Batch = tuple[Tensor, Tensor]


class TrainingBatches:
    """Training batches of a text, which is split into ``batch_size`` columns.

    Each iteration reads the next ``sequence`` tokens of every column; a pass ends where too few are left. Every pass
    begins at a random one of the first ``sequence`` tokens, so that sequences are not always cut at the same places.
    The tokens of an iteration depend only on the seed and the number of the iteration.
    """

    def __init__(self, tokens: Tensor, *, batch_size: int, sequence: int, seed: int, name: str) -> None:
        self.tokens, self.batch_size, self.sequence, self.seed = tokens, batch_size, sequence, seed
        self.num_steps = count_steps(len(tokens), batch_size=batch_size, sequence=sequence, name=name)

    def __getitem__(self, iteration: int) -> Batch:
        """Inputs and the tokens that come next, each of shape ``(batch_size, sequence)``; the first iteration is 0."""
        number, step = divmod(iteration, self.num_steps)
        begin = int(np.random.default_rng((self.seed, number)).integers(self.sequence))
        rows = self.num_steps * self.sequence
        columns = self.tokens[begin : begin + self.batch_size * rows + 1]
        starts = torch.arange(self.batch_size, device=columns.device) * rows + step * self.sequence
        places = starts[:, None] + torch.arange(self.sequence + 1, device=columns.device)
        read = columns[places]
        return read[:, :-1], read[:, 1:]


def evaluation_batches(tokens: Tensor, *, batch_size: int, sequence: int) -> Iterator[Batch]:
    """Yield batches of consecutive sequences without shared context; every token but the first is predicted once."""
    num_whole = (len(tokens) - 1) // sequence
    end = num_whole * sequence
    inputs, targets = (tokens[first : first + end].view(-1, sequence) for first in (0, 1))
    if num_whole:
        yield from zip(torch.split(inputs, batch_size), torch.split(targets, batch_size), strict=True)
    if end < len(tokens) - 1:
        yield tokens[None, end:-1], tokens[None, end + 1 :]


class LanguageTraining(IterationsTraining[LanguageRecipe]):
    """A language model in training."""

    def __init__(self, recipe: LanguageRecipe, data: TextData, fabric: Fabric) -> None:
        self.parts = {part: torch.from_numpy(getattr(data, part)).to(fabric.device) for part in PARTS}
        sizes = {"batch_size": recipe.batch_size, "sequence": recipe.sequence}
        self.text = TrainingBatches(self.parts["train"], **sizes, seed=recipe.seed, name=data.name)
        with seeded(recipe.seed, 0, fabric.device):
            network = bare_network(recipe, num_tokens=len(data.vocabulary))
        super().__init__(recipe, network, fabric)

    def schedule(self, optimizer: torch.optim.Optimizer) -> LRScheduler:
        """Return the cosine; with ``hold_rates`` a balanced method follows it in steps, at each balancing."""
        recipe = self.recipe
        if not (recipe.hold_rates and recipe.is_balanced):
            return super().schedule(optimizer)
        every, total = recipe.interval, recipe.iterations
        return LambdaLR(optimizer, lambda step: (1 + math.cos(math.pi * (step // every * every) / total)) / 2)

    def before_step(self) -> None:
        if self.recipe.clip is not None:
            nn.utils.clip_grad_norm_(self.network.parameters(), self.recipe.clip)

    def loss(self, batch: int) -> Tensor:
        inputs, targets = self.text[batch]
        return cross_entropy(self.model(inputs).flatten(0, 1), targets.flatten())

    def evaluate(self) -> Line:
        return {f"{part}_perplexity": self.perplexity(part) for part in ("valid", "test")}

    @torch.no_grad()
    def perplexity(self, part: str) -> float:
        """Return the exponential of the mean loss over a part's tokens but the first."""
        self.model.eval()
        tokens, total = self.parts[part], 0.0
        for inputs, targets in evaluation_batches(tokens, batch_size=_EVALUATED, sequence=self.recipe.sequence):
            total += cross_entropy(self.model(inputs).flatten(0, 1), targets.flatten(), reduction="sum").item()
        mean = self.finite(f"{part} loss", total / (len(tokens) - 1))
        return self.finite(f"{part} perplexity", math.exp(mean) if mean < _MOST else math.inf)


def bare_network(recipe: LanguageRecipe, num_tokens: int = 10_000) -> nn.Module:
    """Return a recipe's network; Penn Treebank has 10,000 tokens."""
    size = Size(recipe.layers, recipe.width, recipe.head, recipe.inner, recipe.sequence, recipe.dropout)
    return build_language_model(recipe.model, num_tokens=num_tokens, size=size, causal=recipe.causal)


build = LanguageTraining
