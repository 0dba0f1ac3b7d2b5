"""Small models and weights that many tests share."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from torch import nn

from tempbalance import Comparison, Execution

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


def nested(options: dict) -> dict:
    """Keywords of TempBalance, those of Comparison and Execution put into them."""
    names = {"comparison": Comparison, "execution": Execution}
    parts = {key: {each.name for each in fields(kind)} & set(options) for key, kind in names.items()}
    made = {key: names[key](**{name: options[name] for name in held}) for key, held in parts.items() if held}
    return {name: value for name, value in options.items() if not any(name in held for held in parts.values())} | made


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor) -> None:
    """One step on a loss that moves every layer."""
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()


@contextmanager
def raises(error: type[Exception], *carried: object) -> Iterator[pytest.ExceptionInfo[Exception]]:
    """Expect an error whose text carries each of these names and values, however the sentence is worded."""
    with pytest.raises(error) as caught:
        yield caught
    assert_carries(str(caught.value), *carried)


@contextmanager
def warns(category: type[Warning], *carried: object) -> Iterator[None]:
    """Expect one warning of a category, whose text carries each of these names and values."""
    with pytest.warns(category) as caught:
        yield
    texts = [str(each.message) for each in caught if issubclass(each.category, category)]
    assert any(all(str(part) in text for part in carried) for text in texts), f"{carried} not in {texts}"


def assert_carries(text: str, *carried: object) -> None:
    missing = [str(part) for part in carried if str(part) not in text]
    assert not missing, f"{missing} not in {text!r}"


def assert_bad_usage(result: "Result", *carried: object) -> None:
    """A command was refused: one line on stderr that carries these names and values, exit code 2, nothing else."""
    assert result.exit_code == 2, result.output
    assert_carries(result.stderr, *carried)
    assert result.stdout == ""
    assert len(result.stderr.strip().splitlines()) == 1


def changed(recipe, **options):
    """The recipe with other options."""
    return type(recipe)(**{**vars(recipe), **options})
