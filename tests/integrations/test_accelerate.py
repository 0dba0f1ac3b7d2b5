"""accelerate: it steps a scheduler once per process, and an interval still means optimizer steps."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from accelerate.utils import GradientAccumulationPlugin
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR

import tempbalance
from tempbalance.integrations.accelerate import prepare_scheduler
from tests.integrations.contract import (
    NUM_EPOCHS,
    OPTIONS,
    Contract,
    Rates,
    Setting,
    assert_same,
    batches,
    loss_of,
    make_net,
    note_rates,
    plain_loop,
)

SCRIPT = Path(__file__).parent / "two_processes.py"


class Loop:
    """A training loop with accelerate."""

    def __init__(self, setting, accelerator):
        self.setting, self.accelerator, self.net = setting, accelerator, make_net()
        groups = tempbalance.param_groups(self.net, setting.groups(self.net))
        self.model, self.optimizer = accelerator.prepare(self.net, setting.optimizer(groups))
        schedule = LambdaLR(self.optimizer, setting.shape)
        options = {**OPTIONS, "interval": setting.interval}
        self.balance = tempbalance.TempBalance(self.optimizer, self.model, schedule, **options)
        self.scheduler = prepare_scheduler(accelerator, self.balance)

    def train(self, noted, *, first=0, last=None, restore_after=None):
        note_rates(self.optimizer.optimizer, self.net, noted)
        every = (batches() * NUM_EPOCHS)[first * self.setting.accumulate :]
        for batch in every:
            with self.accelerator.accumulate(self.model):
                self.accelerator.backward(loss_of(self.model, batch))
                self.optimizer.step()
                self.scheduler.step()
                self.optimizer.zero_grad()
            if self.accelerator.sync_gradients and len(noted) == restore_after:
                self.scheduler.restore()
            if self.accelerator.sync_gradients and len(noted) == last:
                return


class TestAccelerate(Contract):
    setting, stop_after = Setting(per="step", interval=3), 5

    def accelerator(self):
        return Accelerator(cpu=True, gradient_accumulation_steps=self.setting.accumulate)

    def train(self, folder, *, stop=False, remove=False):
        noted = Rates()
        loop = Loop(self.setting, self.accelerator())
        if not stop:
            loop.train(noted, restore_after=self.stop_after if remove else None)
            return noted
        loop.train(noted, last=self.stop_after)
        loop.accelerator.save_state(str(folder))
        loop = Loop(self.setting, self.accelerator())
        loop.accelerator.load_state(str(folder))
        loop.train(noted, first=self.stop_after)
        return noted


class TestAccelerateWithAccumulation(TestAccelerate):
    setting, stop_after = Setting(per="step", interval=2, accumulate=2), 3


class TestAccelerateWithUnadjustedAccumulation(TestAccelerateWithAccumulation):
    def accelerator(self):
        plugin = GradientAccumulationPlugin(num_steps=2, adjust_scheduler=False)
        return Accelerator(cpu=True, gradient_accumulation_plugin=plugin)


@pytest.fixture(scope="module")
def of_two_processes(tmp_path_factory):
    """What two processes did, each way of stepping; both get the same batches, so that gradients are those of one."""
    folder = tmp_path_factory.mktemp("two")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run(
        [*command, str(SCRIPT), str(folder)], capture_output=True, text=True, timeout=300, env=environment
    )
    assert result.returncode == 0, result.stderr
    return json.loads((folder / "rates.json").read_text())


def test_on_two_processes_the_schedule_takes_two_steps_and_the_interval_counts_optimizer_steps(of_two_processes):
    setting = Setting(per="step", interval=3)
    twice = Setting(per="step", interval=3, shape=lambda step: setting.shape(2 * step))
    assert_same(of_two_processes["per process"], plain_loop(twice))


def test_with_split_batches_the_schedule_takes_one_step(of_two_processes):
    assert_same(of_two_processes["split batches"], plain_loop(Setting(per="step", interval=3)))


def test_a_state_of_two_processes_tells_the_interval_in_optimizer_steps(of_two_processes):
    assert of_two_processes["saved"] == {"interval": 3, "start": 0, "lag": 1}


def test_a_one_cycle_schedule_is_not_stepped_beyond_its_end():
    net = make_net()
    optimizer = torch.optim.SGD(tempbalance.param_groups(net), lr=0.1, momentum=0.9)
    schedule = OneCycleLR(optimizer, max_lr=0.1, total_steps=3)
    balance = tempbalance.TempBalance(optimizer, net, schedule, interval=9)
    accelerator = Accelerator(cpu=True)
    model, prepared = accelerator.prepare(net, optimizer)
    scheduler = prepare_scheduler(accelerator, balance)
    for batch in batches():
        accelerator.backward(loss_of(model, batch))
        prepared.step()
        scheduler.step()
    assert schedule.last_epoch == 3


def test_a_scheduler_that_is_stepped_before_the_optimizer_is_told():
    net = make_net()
    optimizer = torch.optim.SGD(tempbalance.param_groups(net), lr=0.1)
    scheduler = prepare_scheduler(Accelerator(cpu=True), tempbalance.TempBalance(optimizer, net))
    with pytest.warns(UserWarning, match=r"called before optimizer\.step"):
        scheduler.step()


def test_without_a_schedule_rates_stay_as_they_are_when_it_is_taken_away():
    net = make_net()
    optimizer = torch.optim.SGD(tempbalance.param_groups(net), lr=0.1)
    scheduler = prepare_scheduler(Accelerator(cpu=True), tempbalance.TempBalance(optimizer, net))
    optimizer.step()
    scheduler.step()
    scheduler.restore()
    scheduler.step()
    assert {group["lr"] for group in optimizer.param_groups} == {0.1}
    scheduler.load_state_dict(scheduler.state_dict())


def test_something_else_than_tempbalance_is_refused():
    optimizer = torch.optim.SGD(make_net().parameters(), lr=0.1)
    with pytest.raises(TypeError, match="TempBalance, got LambdaLR"):
        prepare_scheduler(Accelerator(cpu=True), LambdaLR(optimizer, lambda _: 1.0))


def test_a_schedule_that_is_prepared_and_stepped_too_is_told():
    accelerator = Accelerator(cpu=True)
    loop = Loop(Setting(per="step"), accelerator)
    other = accelerator.prepare(loop.balance.schedule)
    loop.optimizer.step()
    other.step()
    with pytest.raises(RuntimeError, match="something else stepped the schedule"):
        loop.scheduler.step()
