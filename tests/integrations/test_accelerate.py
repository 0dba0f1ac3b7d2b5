"""accelerate: it steps a scheduler once per process, and an interval still means optimizer steps."""

import json

import pytest
import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DataLoaderConfiguration, GradientAccumulationPlugin
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR

import tempbalance
from tempbalance.integrations.accelerate import prepare_scheduler
from tests.cases import nested, raises, warns
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
from tests.processes import end, in_forks


class Loop:
    """A training loop with accelerate."""

    def __init__(self, setting, accelerator):
        self.setting, self.accelerator, self.net = setting, accelerator, make_net()
        groups = tempbalance.param_groups(self.net, setting.groups(self.net))
        self.model, self.optimizer = accelerator.prepare(self.net, setting.optimizer(groups))
        schedule = LambdaLR(self.optimizer, setting.shape)
        options = {**OPTIONS, "interval": setting.interval}
        self.balance = tempbalance.TempBalance(self.optimizer, self.model, schedule, **nested(options))
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


def found_by_one_of_two(*, split_batches):
    """The rates of a training on two processes, and the options that it would save."""
    noted = Rates()
    config = DataLoaderConfiguration(split_batches=split_batches)
    loop = Loop(Setting(per="step", interval=3), Accelerator(cpu=True, dataloader_config=config))
    assert loop.accelerator.num_processes == 2
    loop.train(noted)
    options = loop.scheduler.state_dict()["options"]
    loop.scheduler.load_state_dict(loop.scheduler.state_dict())
    assert loop.balance.options.interval == 3
    return noted, {name: options[name] for name in ("interval", "start", "execution.lag")}


def train_on_one_of_two(folder):
    AcceleratorState._reset_state(reset_partial_state=True)  # a fork has that of the process that tests
    per_process, saved = found_by_one_of_two(split_batches=False)
    split_batches, _ = found_by_one_of_two(split_batches=True)
    found = {"per process": per_process, "split batches": split_batches, "saved": saved}
    (folder / f"{dist.get_rank()}.json").write_text(json.dumps(found))
    end()


@pytest.fixture(scope="module")
def of_two_processes(tmp_path_factory):
    """What two processes did; both get the same batches, so that gradients are those of one."""
    folder = tmp_path_factory.mktemp("two")
    assert in_forks(2, train_on_one_of_two, folder) == [0, 0]
    one, other = (json.loads((folder / f"{rank}.json").read_text()) for rank in range(2))
    assert one == other
    return one


def test_on_two_processes_the_schedule_takes_two_steps_and_the_interval_counts_optimizer_steps(of_two_processes):
    setting = Setting(per="step", interval=3)
    twice = Setting(per="step", interval=3, shape=lambda step: setting.shape(2 * step))
    assert_same(of_two_processes["per process"], plain_loop(twice))


def test_with_split_batches_the_schedule_takes_one_step(of_two_processes):
    assert_same(of_two_processes["split batches"], plain_loop(Setting(per="step", interval=3)))


def test_a_state_of_two_processes_tells_the_interval_in_optimizer_steps(of_two_processes):
    assert of_two_processes["saved"] == {"interval": 3, "start": 0, "execution.lag": 1}


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
    with warns(UserWarning, "optimizer.step()"):
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


def test_a_prepared_scheduler_has_the_table_and_everything_else_of_tempbalance():
    net = make_net()
    balance = tempbalance.TempBalance(torch.optim.SGD(tempbalance.param_groups(net), lr=0.1), net)
    scheduler = prepare_scheduler(Accelerator(cpu=True), balance)
    assert str(scheduler.table()) == str(balance.table())
    assert scheduler.last_scales == balance.last_scales
    with raises(AttributeError, "nothing"):
        _ = scheduler.nothing


def test_something_else_than_tempbalance_is_refused():
    optimizer = torch.optim.SGD(make_net().parameters(), lr=0.1)
    with raises(TypeError, "TempBalance", "LambdaLR"):
        prepare_scheduler(Accelerator(cpu=True), LambdaLR(optimizer, lambda _: 1.0))


def test_a_schedule_that_is_prepared_and_stepped_too_is_told():
    accelerator = Accelerator(cpu=True)
    loop = Loop(Setting(per="step"), accelerator)
    other = accelerator.prepare(loop.balance.schedule)
    loop.optimizer.step()
    other.step()
    with raises(RuntimeError, "schedule", "restore()"):
        loop.scheduler.step()
