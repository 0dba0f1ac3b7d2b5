"""Batches of sequences: where in the text each iteration reads."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from tempbalance.lab.language.text import count_steps

Batch = tuple[Tensor, Tensor]


class TrainingBatches:
    """A text in as many columns as a batch has sequences, read from the top down.

    Each iteration reads the next ``sequence`` tokens of every column; a pass ends where they do not suffice any more.
    Every pass begins at another token of the first ``sequence``, drawn from the seed and its number, so that sequences
    are not cut at the same places each time. What an iteration reads follows from the seed and its number alone.

    Args:
        tokens: Shape ``(N,)``.
        batch_size: How many sequences a batch has.
        sequence: How many tokens each has.
        seed: Of the run.
        name: Of the text, for messages.

    Raises:
        ValueError: If the text is too short for one batch.
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
    """A text in sequences one after the other, each read afresh; every token but the first is to be told once.

    Args:
        tokens: Shape ``(N,)``, N at least 2.
        batch_size: How many sequences at a time; it moves no result.
        sequence: How many tokens each has, but for the last.
    """
    num_whole = (len(tokens) - 1) // sequence
    end = num_whole * sequence
    inputs, targets = (tokens[first : first + end].view(-1, sequence) for first in (0, 1))
    if num_whole:
        yield from zip(torch.split(inputs, batch_size), torch.split(targets, batch_size), strict=True)
    if end < len(tokens) - 1:
        yield tokens[None, end:-1], tokens[None, end + 1 :]
