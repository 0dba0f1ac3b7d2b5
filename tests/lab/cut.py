"""A run that is killed, and how it goes on."""

import re
from pathlib import Path

import pytest

from tempbalance.lab.loop import Training, train_in
from tempbalance.runlog import RunFolder


def resumed_after(said: str) -> list[int]:
    """The epochs after which a run says that it goes on. No other test knows this sentence."""
    return [int(epoch) for epoch in re.findall(r"going on after epoch (\d+)", said)]


class _StoppedError(Exception):
    """As if the process had been killed."""


def train_one_epoch(folder: Path, training: Training, *, digest: str) -> None:
    """Train in a folder until the second epoch begins."""
    go_on = training.epoch

    def stop_at_two(number):
        if number == 2:
            raise _StoppedError
        return go_on(number)

    training.epoch = stop_at_two
    with pytest.raises(_StoppedError):
        train_in(folder, training, digest=digest, say=lambda text: None)
    assert len(RunFolder(folder).metrics) == 1
