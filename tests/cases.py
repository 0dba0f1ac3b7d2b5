"""Small models and weights that many tests share."""

import json
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

if TYPE_CHECKING:
    from typer.testing import Result

GOLDEN = json.loads((Path(__file__).parent / "golden" / "reference.json").read_text())


def golden_weight(entry: dict) -> torch.Tensor:
    """Rebuild one of the eight recorded weights."""
    state, shape = np.random.RandomState(entry["seed"]), entry["shape"]
    size = int(np.prod(shape[1:]))
    draw = state.standard_t(3, shape) if entry["kind"] == "student_t3" else state.standard_normal(shape)
    weight = draw / np.sqrt(size)
    if entry["kind"] == "spiked":
        left, right = state.standard_normal(shape[0]), state.standard_normal(size)
        outer = np.outer(left / np.linalg.norm(left), right / np.linalg.norm(right))
        weight = weight + 3 * outer.reshape(shape)
    return torch.from_numpy(weight)


def mlp(sizes: tuple[int, ...] = (64, 96, 80, 72, 60), seed: int = 0) -> nn.Sequential:
    """Linear layers with LayerNorms between them; with the default sizes the two in the middle are scored."""
    torch.manual_seed(seed)
    modules: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes[:-1]):
        modules += [nn.Linear(inputs, outputs), nn.LayerNorm(outputs), nn.ReLU()]
    return nn.Sequential(*modules, nn.Linear(sizes[-2], sizes[-1]))


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor) -> None:
    """One step on a loss that moves every layer."""
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()


def assert_bad_usage(result: "Result", message: str) -> None:
    """A command was refused as it stands: one line, exit code 2, nothing else."""
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert result.stdout == ""
    assert len(result.stderr.strip().splitlines()) == 1
