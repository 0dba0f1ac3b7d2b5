"""A run that is killed, and how it goes on."""

import re
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lightning.fabric import Fabric

from tempbalance.lab.recipe import BaseRecipe, training_module
from tempbalance.lab.train import train
from tempbalance.runlog import RunFolder


def cpu() -> Fabric:
    """Fabric with one process on the CPU."""
    return Fabric(accelerator="cpu", devices=1)


def resumed_after(said: str) -> list[int]:
    """The epochs after which a run says that it goes on. No other test knows this sentence."""
    return [int(epoch) for epoch in re.findall(r"going on after epoch (\d+)", said)]


class _StoppedError(Exception):
    """As if the process had been killed."""


def train_one_epoch(folder: Path, recipe: BaseRecipe, **settings: Any) -> None:
    """Train in a folder until the second epoch begins."""
    module = import_module(training_module(recipe.kind))

    def build(*given):
        training = module.build(*given)
        go_on = training.epoch

        def stop_at_two(number):
            if number == 2:
                raise _StoppedError
            return go_on(number)

        training.epoch = stop_at_two
        return training

    with pytest.raises(_StoppedError):
        train(recipe, folder, kind=SimpleNamespace(build=build), device="cpu", **settings)
    assert len(RunFolder(folder).metrics) == 1
