"""One contract for every trainer: a trainer's file says how to train with it, the tests are the same for all.

What a trainer did is told by the rate of every parameter at each step of the optimizer, noted by a hook of torch's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.optim.lr_scheduler import LambdaLR

import tempbalance
from tests.cases import mlp, nested

SIZES = (64, 80, 96, 72, 80, 64, 8)
NUM_EPOCHS, BATCHES_PER_EPOCH, BATCH = 3, 4, 16
OPTIONS: dict[str, Any] = {"scale_range": (0.6, 1.4)}

Rates = list[dict[str, float]]
Groups = Callable[[nn.Module], list[dict[str, Any]]]


@dataclass(frozen=True)
class Setting:
    """What a trainer is asked to do, and the plain loop beside it.

    Attributes:
        per: When the schedule is stepped.
        interval: Steps of the schedule between scorings.
        accumulate: Batches an optimizer step.
        optimizer: From groups to an optimizer.
        shape: The schedule, a factor on the rate by steps of it.
        groups: The groups that the optimizer would have without balancing.
    """

    per: str = "epoch"
    interval: int = 1
    accumulate: int = 1
    optimizer: Callable[[Any], torch.optim.Optimizer] = lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    shape: Callable[[int], float] = lambda step: 0.5 * (1 + math.cos(math.pi * step / 13))
    groups: Groups = lambda model: [{"params": list(model.parameters())}]

    @property
    def num_steps(self) -> int:
        """Optimizer steps of a whole training."""
        return NUM_EPOCHS * BATCHES_PER_EPOCH // self.accumulate


def make_net() -> nn.Sequential:
    return mlp(SIZES)


def batches() -> list[tuple[Tensor, Tensor]]:
    """The batches of an epoch, the same in each."""
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(BATCH, SIZES[0], generator=generator), torch.randn(BATCH, SIZES[-1], generator=generator))
        for _ in range(BATCHES_PER_EPOCH)
    ]


def loss_of(net: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return mse_loss(net(batch[0]), batch[1])


def note_rates(optimizer: torch.optim.Optimizer, net: nn.Module, noted: Rates) -> None:
    """Note the rate of every parameter of the bare net whenever the optimizer steps."""
    names = {parameter: name for name, parameter in net.named_parameters()}

    def hook(stepped: torch.optim.Optimizer, *_: Any) -> None:
        noted.append(
            {
                names[each]: float(group["lr"])
                for group in stepped.param_groups
                for each in group["params"]
                if each in names
            }
        )

    optimizer.register_step_pre_hook(hook)


def plain_loop(setting: Setting, *, balanced: bool = True, remove_after: int | None = None) -> Rates:
    """The training that every trainer is compared with."""
    net, noted = make_net(), Rates()
    optimizer = setting.optimizer(tempbalance.param_groups(net, setting.groups(net)))
    schedule = LambdaLR(optimizer, setting.shape)
    options = {**OPTIONS, "interval": setting.interval}
    scheduler = tempbalance.TempBalance(optimizer, net, schedule, **nested(options)) if balanced else schedule
    note_rates(optimizer, net, noted)
    for _ in range(NUM_EPOCHS):
        for index, batch in enumerate(batches()):
            (loss_of(net, batch) / setting.accumulate).backward()
            if (index + 1) % setting.accumulate:
                continue
            optimizer.step()
            optimizer.zero_grad()
            if setting.per == "step":
                scheduler.step()
            if len(noted) == remove_after:
                scheduler.restore()
                scheduler = schedule
        if setting.per == "epoch":
            scheduler.step()
    return noted


def base_rates(setting: Setting) -> Rates:
    """The rates of the schedule alone."""
    return plain_loop(setting, balanced=False)


def assert_same(found: Rates, expected: Rates) -> None:
    """Rates equal to 1e-12 at every step, parameter by parameter."""
    assert len(found) == len(expected) > 0
    for step, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert one.keys() == other.keys()
        for name in one:
            assert one[name] == pytest.approx(other[name], rel=1e-12, abs=1e-12), (step, name)


class Contract:
    """What holds for every trainer. A subclass says how to train with it.

    Rates are noted over all optimizer steps, before and after a stop.
    """

    setting = Setting()
    stop_after = 4  # optimizer steps before the stop, and before the integration is removed

    def train(self, folder: Path, *, stop: bool = False, remove: bool = False) -> Rates:
        """Train to the end.

        Args:
            folder: Where checkpoints go.
            stop: Whether to stop after `stop_after` steps, forget everything and go on from a checkpoint.
            remove: Whether to take the integration away after as many.
        """
        raise NotImplementedError

    def expected(self) -> Rates:
        return plain_loop(self.setting)

    def test_rates_are_those_of_the_plain_loop_at_every_step(self, tmp_path):
        found, expected = self.train(tmp_path), self.expected()
        assert_same(found, expected)
        base = base_rates(self.setting)
        scales = [
            {name: one[name] / own[name] for name in own if own[name]} for one, own in zip(found, base, strict=True)
        ]
        seen = {name: {round(each[name], 9) for each in scales if each} for name in base[0]}
        assert any(len(values) > 2 for values in seen.values()), "scales never move: nothing is compared"
        assert seen["0.weight"] == {1.0}  # the first layer is left out
        assert min(min(each.values()) for each in scales if each) == pytest.approx(0.6)
        assert max(max(each.values()) for each in scales if each) == pytest.approx(1.4)

    def test_stopping_and_resuming_in_the_middle_changes_nothing(self, tmp_path):
        assert_same(self.train(tmp_path, stop=True), self.expected())

    def test_taking_it_away_restores_the_trainers_own_rates(self, tmp_path):
        found, base = self.train(tmp_path, remove=True), base_rates(self.setting)
        assert found[self.stop_after - 1] != base[self.stop_after - 1]
        assert_same(found[self.stop_after :], base[self.stop_after :])
