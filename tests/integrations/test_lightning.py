"""Lightning: TempBalance from configure_optimizers, and a callback for a module that one can't change."""

import csv
import logging
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau

import tempbalance
from tempbalance.integrations.lightning import TempBalanceCallback, _balanced_model, restore_rates
from tests.cases import assert_carries, raises
from tests.integrations.contract import (
    NUM_EPOCHS,
    OPTIONS,
    Contract,
    Rates,
    Setting,
    batches,
    loss_of,
    make_net,
    note_rates,
)
from tests.integrations.events import read_events

PER_STEP = Setting(per="step", interval=3)


class Batches:
    """An epoch's batches, which Lightning can wind on to where it stopped."""

    def __init__(self):
        self.at = 0

    def __len__(self):
        return len(batches())

    def __iter__(self):
        for index, batch in list(enumerate(batches()))[self.at :]:
            self.at = (index + 1) % len(self)
            yield batch

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class Plain(LightningModule):
    """A module as people have it, without balancing."""

    def __init__(self, setting):
        super().__init__()
        self.net, self.setting = make_net(), setting

    def training_step(self, batch, _):
        return loss_of(self.net, batch)

    def configure_optimizers(self):
        optimizer = self.setting.optimizer(self.setting.groups(self.net))
        return self.plan(optimizer, LambdaLR(optimizer, self.setting.shape))

    def plan(self, optimizer, scheduler):
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": self.setting.per}}


class Balanced(Plain):
    """The same, with TempBalance as its scheduler."""

    def configure_optimizers(self):
        optimizer = self.setting.optimizer(tempbalance.param_groups(self.net, self.setting.groups(self.net)))
        schedule = LambdaLR(optimizer, self.setting.shape)
        return self.plan(
            optimizer,
            tempbalance.TempBalance(optimizer, self.net, schedule, **OPTIONS, interval=self.setting.interval),
        )


class Noting(Callback):
    """Notes the rates, and stops or restores after so many steps."""

    def __init__(self, noted, path, *, stop_after=None, restore_after=None):
        self.noted, self.path = noted, path
        self.stop_after, self.restore_after = stop_after, restore_after

    def on_train_start(self, trainer, pl_module):
        note_rates(trainer.optimizers[0], pl_module.net, self.noted)

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == self.restore_after:
            restore_rates(trainer)
        if trainer.global_step == self.stop_after:
            trainer.save_checkpoint(self.path)
            raise KeyboardInterrupt


def fit(module, *callbacks, checkpoint=None, logger=False, epochs=NUM_EPOCHS, accumulate=1):
    trainer = Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        callbacks=list(callbacks),
        logger=logger,
        log_every_n_steps=1,
        accumulate_grad_batches=accumulate,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, Batches(), ckpt_path=checkpoint, weights_only=True)
    return trainer


class LightningContract(Contract):
    """How both ways of using it are trained."""

    def module(self):
        return Balanced(self.setting)

    def callbacks(self):
        return []

    def train(self, folder, *, stop=False, remove=False):
        noted, path = Rates(), folder / "last.ckpt"
        options = {"restore_after": self.stop_after} if remove else {"stop_after": self.stop_after} if stop else {}
        if not stop:
            self.fit(Noting(noted, path, **options))
            return noted
        with pytest.raises(SystemExit):  # Lightning's answer to KeyboardInterrupt
            self.fit(Noting(noted, path, **options))
        assert len(noted) == self.stop_after
        self.fit(Noting(noted, path), checkpoint=path)
        return noted

    def fit(self, *callbacks, checkpoint=None):
        fit(self.module(), *self.callbacks(), *callbacks, checkpoint=checkpoint, accumulate=self.setting.accumulate)


class TestSchedulerPerEpoch(LightningContract):
    pass


class TestSchedulerPerStep(LightningContract):
    setting, stop_after = PER_STEP, 5


class TestCallbackPerEpoch(LightningContract):
    def module(self):
        return Plain(self.setting)

    def callbacks(self):
        return [TempBalanceCallback(unit=self.setting.per, interval=self.setting.interval, **OPTIONS)]


class TestCallbackPerStepWithAccumulation(TestCallbackPerEpoch):
    setting, stop_after = Setting(per="step", interval=2, accumulate=2), 3


class TestCallbackPerEpochOfASchedulePerStep(TestCallbackPerEpoch):
    """Scored once an epoch, while learning rates change at each step."""

    setting, stop_after = Setting(per="step", interval=len(batches())), len(batches()) + 2

    def callbacks(self):
        return [TempBalanceCallback(**OPTIONS)]


class TestCallbackWithoutSchedule(TestCallbackPerEpoch):
    setting = Setting(shape=lambda _: 1.0)

    def module(self):
        module = Plain(self.setting)
        module.plan = lambda optimizer, _: optimizer
        return module


def test_a_checkpoint_from_before_the_callback_is_taken_up(tmp_path):
    setting, path, noted = Setting(), tmp_path / "last.ckpt", Rates()
    with pytest.raises(SystemExit):
        fit(Plain(setting), Noting(noted, path, stop_after=4))
    callback = TempBalanceCallback(**OPTIONS)
    fit(Plain(setting), callback, Noting(noted, path), checkpoint=path)
    base = setting.shape(1) * 0.1
    assert noted[4]["0.weight"] == pytest.approx(base)
    assert min(noted[4].values()) == pytest.approx(0.6 * base)
    assert callback.schedulers[0].last_epoch == 2


def test_alphas_and_rates_reach_every_logger_after_each_scoring(tmp_path):
    loggers = [CSVLogger(tmp_path, name="csv"), TensorBoardLogger(tmp_path, name="board")]
    callback = TempBalanceCallback(interval=2, **OPTIONS)
    fit(Plain(Setting()), callback, logger=loggers)
    with open(f"{loggers[0].log_dir}/metrics.csv") as file:
        rows = [row for row in csv.DictReader(file) if row.get("alpha/net.3")]
    scalars, texts = read_events(loggers[1].log_dir)
    assert [step for step, _ in scalars["alpha/net.3"]] == [int(row["step"]) for row in rows] == [0, 7]
    last = scalars["alpha/net.3"][-1][1]
    assert last == pytest.approx(callback.schedulers[0].last_scores["net.3"], rel=1e-6)
    assert float(rows[-1]["alpha/net.3"]) == pytest.approx(last, rel=1e-6)
    assert float(rows[0]["lr/net.3"]) / 0.1 == pytest.approx(float(rows[0]["scale/net.3"]))
    assert f"{callback.schedulers[0].table()['net.3'].alpha:.3f}" in texts["tempbalance/table"]


def test_what_the_training_did_is_still_there_after_a_test():
    class Tested(Plain):
        def test_step(self, batch, index):
            return self.training_step(batch, index)

    callback = TempBalanceCallback(**OPTIONS)
    trainer = fit(Tested(Setting()), callback, epochs=1)
    trainer.test(trainer.lightning_module, Batches(), verbose=False)
    assert callback.schedulers[0].table()["net.3"].alpha > 1


def test_fsdp1_around_the_module_is_what_is_balanced():
    whole, module = MagicMock(spec=FullyShardedDataParallel), Plain(Setting())
    whole.__class__ = FullyShardedDataParallel
    trainer = SimpleNamespace(strategy=SimpleNamespace(model=whole))
    assert _balanced_model(trainer, module) is whole
    trainer.strategy.model = module
    assert _balanced_model(trainer, module) is module


def test_the_table_is_told_at_the_end(caplog):
    with caplog.at_level(logging.INFO, logger="tempbalance"):
        fit(Plain(Setting()), callback := TempBalanceCallback(), epochs=1)
    assert_carries(caplog.text, "net.3", f"{callback.schedulers[0].table()['net.3'].alpha:.3f}")


def test_a_plateau_is_wrapped_and_watches_its_metric():
    class Watching(Plain):
        def training_step(self, batch, _):
            loss = super().training_step(batch, _)
            self.log("loss", 1.0)
            return loss

        def plan(self, optimizer, _):
            plateau = ReduceLROnPlateau(optimizer, factor=0.1, patience=0)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "loss"}}

    callback = TempBalanceCallback()
    fit(Watching(Setting()), callback, epochs=2)
    assert callback.schedulers[0].optimizer.param_groups[0]["lr"] == pytest.approx(0.01)


def test_two_optimizers_of_a_module_that_steps_by_hand_are_both_balanced():
    class ByHand(Plain):
        automatic_optimization = False

        def configure_optimizers(self):
            matrices = [each for each in self.net.parameters() if each.dim() == 2]
            rest = [each for each in self.net.parameters() if each.dim() < 2]
            optimizers = [torch.optim.SGD(matrices, lr=0.1), torch.optim.AdamW(rest, lr=0.01)]
            return optimizers, [LambdaLR(each, lambda _: 1.0) for each in optimizers]

        def training_step(self, batch, index):
            for optimizer in self.optimizers():
                optimizer.zero_grad()
            self.manual_backward(loss_of(self.net, batch))
            for optimizer, scheduler in zip(self.optimizers(), self.lr_schedulers(), strict=True):
                optimizer.step()
                scheduler.step()

    callback = TempBalanceCallback(interval=4)
    fit(ByHand(Setting()), callback, epochs=1)
    first, second = callback.schedulers
    assert first.last_scales == second.last_scales
    assert first.last_epoch == second.last_epoch == 4
    rates = {group["layer"]: group["lr"] for group in second.optimizer.param_groups if "layer" in group}
    assert rates["net.3"] == pytest.approx(0.01 * second.last_scales["net.3"])


def test_a_module_that_steps_by_hand_and_has_no_scheduler_is_told_so():
    module = Plain(Setting())
    module.automatic_optimization = False
    module.plan = lambda optimizer, _: optimizer
    with raises(ValueError, "SGD", "LambdaLR"):
        fit(module, TempBalanceCallback(), epochs=1)


def test_a_callback_beside_a_module_that_is_balanced_already_is_refused():
    with raises(TypeError, "TempBalanceCallback"):
        fit(Balanced(Setting()), TempBalanceCallback(), epochs=1)


def test_an_optimizer_of_another_model_is_refused():
    class Elsewhere(Plain):
        def configure_optimizers(self):
            return torch.optim.SGD(make_net().parameters(), lr=0.1)

    with raises(ValueError, "optimizer", "model"):
        fit(Elsewhere(Setting()), TempBalanceCallback(), epochs=1)


def test_a_schedule_that_lightning_steps_too_is_told():
    class Twice(Balanced):
        def plan(self, optimizer, scheduler):
            return [optimizer], [scheduler.schedule, scheduler]

    with raises(RuntimeError, "schedule", "restore()"):
        fit(Twice(Setting()), epochs=2)


def test_two_schedulers_of_one_optimizer_are_refused():
    class Two(Plain):
        def plan(self, optimizer, scheduler):
            return [optimizer], [scheduler, LambdaLR(optimizer, lambda _: 1.0)]

    with raises(ValueError, "SGD", 2):
        fit(Two(Setting()), TempBalanceCallback(), epochs=1)


@pytest.mark.parametrize(
    ("per", "frequency", "accumulate"), [("step", 1, 1), ("step", 2, 1), ("step", 1, 2), ("epoch", 1, 1)]
)
def test_the_callback_scores_once_an_epoch_whatever_unit_the_scheduler_has(per, frequency, accumulate):
    class Often(Plain):
        def plan(self, optimizer, scheduler):
            config = {"scheduler": scheduler, "interval": per, "frequency": frequency}
            return {"optimizer": optimizer, "lr_scheduler": config}

    class Counting(Callback):
        def __init__(self):
            self.scores = []

        def on_train_batch_end(self, trainer, pl_module, *_):
            if (found := callback.schedulers[0].last_scores) not in self.scores:
                self.scores.append(found)

    callback, counting = TempBalanceCallback(**OPTIONS), Counting()
    fit(Often(Setting()), callback, counting, accumulate=accumulate)
    assert len(counting.scores) == NUM_EPOCHS + 1  # and on construction


def test_steps_as_a_unit_need_an_interval_and_a_scheduler_that_is_stepped_so_often():
    with raises(TypeError, "'interval'"):
        TempBalanceCallback(unit="step")
    with raises(ValueError, "unit", "'batch'"):
        TempBalanceCallback(unit="batch")
    with raises(ValueError, "unit='step'", "epoch"):
        fit(Plain(Setting()), TempBalanceCallback(unit="step", interval=3), epochs=1)


def test_an_epoch_of_unknown_length_is_refused_with_what_to_do():
    class Endless(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(batches())

    trainer = Trainer(max_epochs=1, accelerator="cpu", callbacks=[TempBalanceCallback()], logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)  # fmt: skip
    with raises(ValueError, "unit='step'", "interval"):
        trainer.fit(Plain(PER_STEP), torch.utils.data.DataLoader(Endless(), batch_size=None))


def test_an_option_that_does_not_exist_is_refused_when_the_callback_is_built():
    with raises(TypeError, "'intervall'"):
        TempBalanceCallback(intervall=3)
