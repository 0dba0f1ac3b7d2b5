"""transformers' Trainer: its groups, its schedules, its checkpoints, and a balanced rate for each layer."""

import logging

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from transformers import Trainer, TrainerCallback, TrainingArguments

from tempbalance.integrations.transformers import TempBalanceMixin, TempBalanceTrainer
from tests.cases import assert_carries, raises
from tests.integrations.contract import (
    NUM_EPOCHS,
    OPTIONS,
    Contract,
    Rates,
    Setting,
    assert_same,
    batches,
    make_net,
    note_rates,
    plain_loop,
)
from tests.integrations.events import read_events

WARMUP = 2


class WithLoss(nn.Module):
    """A model as the Trainer wants it."""

    def __init__(self):
        super().__init__()
        self.net = make_net()

    def forward(self, x, y):
        return {"loss": nn.functional.mse_loss(self.net(x), y)}


def samples():
    return [{"x": x, "y": y} for xs, ys in batches() for x, y in zip(xs, ys, strict=True)]


def decay_groups(net):
    """What the Trainer makes: no decay for biases and normalisations."""
    matrices = [each for each in net.parameters() if each.dim() > 1]
    vectors = [each for each in net.parameters() if each.dim() < 2]
    return [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]


def adamw(groups):
    return torch.optim.AdamW(groups, lr=0.01, fused=False)


def linear(num_steps):
    """The Trainer's default schedule, after a warm-up."""
    return lambda step: step / WARMUP if step < WARMUP else max(0.0, (num_steps - step) / (num_steps - WARMUP))


def args_for(folder, setting, **options):
    return TrainingArguments(
        **{
            "output_dir": str(folder),
            "num_train_epochs": NUM_EPOCHS,
            "per_device_train_batch_size": 16,
            "gradient_accumulation_steps": setting.accumulate,
            "train_sampling_strategy": "sequential",
            "learning_rate": 0.01,
            "weight_decay": 0.1,
            "warmup_steps": WARMUP,
            "optim": "adamw_torch",
            "max_grad_norm": 0.0,
            "save_strategy": "no",
            "report_to": "none",
            "disable_tqdm": True,
            "logging_steps": 1,
            "use_cpu": True,
            "remove_unused_columns": False,
            **options,
        }
    )


def raw(optimizer):
    """The optimizer that accelerate has wrapped."""
    return getattr(optimizer, "optimizer", optimizer)


class Noting(TrainerCallback):
    """Notes the rates, and stops or restores after so many steps."""

    def __init__(self, noted, *, stop_after=None, restore_after=None):
        self.noted, self.stop_after, self.restore_after = noted, stop_after, restore_after
        self.is_noting = False

    def on_train_begin(self, args, state, control, model, optimizer, **_):
        if not self.is_noting:  # at a second training of the same Trainer it is
            note_rates(raw(optimizer), model.net, self.noted)
            self.is_noting = True

    def on_step_end(self, args, state, control, **_):
        if state.global_step == self.restore_after:
            self.trainer.restore_rates()
        if state.global_step == self.stop_after:
            control.should_save = control.should_training_stop = True


def build(folder, setting, *callbacks, model=None, balance=None, **options):
    optimizers = options.pop("optimizers", (None, None))
    trainer = TempBalanceTrainer(
        model=model or WithLoss(),
        args=args_for(folder, setting, **options),
        train_dataset=samples(),
        eval_dataset=samples(),
        callbacks=list(callbacks),
        optimizers=optimizers,
        balance=balance or {**OPTIONS, "interval": setting.interval},
    )
    for callback in callbacks:
        callback.trainer = trainer
    return trainer


def setting_for(**options):
    setting = Setting(per="step", optimizer=adamw, groups=decay_groups, **options)
    return Setting(**{**vars(setting), "shape": linear(setting.num_steps)})


class TestTrainer(Contract):
    setting, stop_after = setting_for(interval=3), 5

    def train(self, folder, *, stop=False, remove=False):
        noted = Rates()
        if not stop:
            build(folder, self.setting, Noting(noted, restore_after=self.stop_after if remove else None)).train()
            return noted
        build(folder, self.setting, Noting(noted, stop_after=self.stop_after)).train()
        assert len(noted) == self.stop_after
        checkpoint = folder / f"checkpoint-{self.stop_after}"
        build(folder, self.setting, Noting(noted)).train(resume_from_checkpoint=str(checkpoint))
        return noted


class TestTrainerWithAccumulation(TestTrainer):
    setting, stop_after = setting_for(interval=2, accumulate=2), 3


class TestTrainerWithOptimizerAndScheduleOfOnesOwn(TestTrainer):
    """Both are given to the Trainer, unsplit."""

    def train(self, folder, *, stop=False, remove=False):
        noted = Rates()
        if stop:
            self._train(folder, Noting(noted, stop_after=self.stop_after))
            self._train(folder, Noting(noted), resume_from_checkpoint=str(folder / f"checkpoint-{self.stop_after}"))
        else:
            self._train(folder, Noting(noted, restore_after=self.stop_after if remove else None))
        return noted

    def _train(self, folder, callback, **options):
        model = WithLoss()
        optimizer = adamw(decay_groups(model.net))
        schedule = LambdaLR(optimizer, self.setting.shape)
        build(folder, self.setting, callback, model=model, optimizers=(optimizer, schedule)).train(**options)


def test_the_mixin_goes_with_any_trainer(tmp_path):
    class Own(Trainer):
        def compute_loss(self, model, inputs, **options):
            self.was_asked = True
            return super().compute_loss(model, inputs, **options)

    class BalancedOwn(TempBalanceMixin, Own):
        pass

    noted, setting = Rates(), setting_for(interval=3)
    trainer = BalancedOwn(
        model=WithLoss(),
        args=args_for(tmp_path, setting),
        train_dataset=samples(),
        callbacks=[Noting(noted)],
        balance={**OPTIONS, "interval": 3},
    )
    trainer.train()
    assert trainer.was_asked
    assert_same(noted, plain_loop(setting))


def test_a_second_training_starts_from_the_base_rates_again(tmp_path):
    noted, setting = Rates(), setting_for(interval=3)
    trainer = build(tmp_path, setting, Noting(noted), lr_scheduler_type="constant_with_warmup")
    trainer.train()
    first = len(noted)
    trainer.train()
    assert noted[first + WARMUP]["0.weight"] == pytest.approx(0.01)
    assert max(noted[first + WARMUP].values()) == pytest.approx(0.014)


def test_after_its_rates_are_restored_a_trainer_can_train_again(tmp_path):
    setting = setting_for(interval=3)
    trainer = build(tmp_path, setting)
    trainer.train()
    trainer.restore_rates()
    with raises(RuntimeError, "restore"):
        trainer.restore_rates()
    trainer.train()
    assert max(trainer._balanced.last_scales.values()) == pytest.approx(1.4)


def test_a_checkpoint_from_before_balancing_is_refused_with_what_to_do(tmp_path):
    setting = setting_for(interval=3)
    plain = Trainer(model=WithLoss(), args=args_for(tmp_path, setting), train_dataset=samples(), eval_dataset=samples())
    plain.add_callback(Noting(Rates(), stop_after=3))
    plain.train()
    with raises(ValueError, tmp_path / "checkpoint-3"):
        build(tmp_path, setting).train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))


def test_alphas_and_rates_go_where_the_rest_is_logged_and_a_table_at_the_end(tmp_path, monkeypatch, caplog, capsys):
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "board"))
    trainer = build(tmp_path, setting_for(interval=4), report_to="tensorboard")
    with caplog.at_level(logging.INFO, logger="tempbalance"):
        trainer.train()
    scalars, texts = read_events(tmp_path / "board")
    assert [step for step, _ in scalars["train/alpha/net.3"]] == [1, 4, 8, 12]
    assert scalars["train/alpha/net.3"][-1][1] == pytest.approx(trainer.lr_scheduler.last_scores["net.3"], rel=1e-6)
    alpha = f"{trainer.lr_scheduler.table()['net.3'].alpha:.3f}"
    assert_carries(texts["train/tempbalance"], "net.3", alpha)
    assert_carries(caplog.text, "net.3", alpha)
    assert "alpha/net.3" not in capsys.readouterr().out  # hundreds of numbers are for loggers, not for people
    assert not any("alpha/net.3" in line for line in trainer.state.log_history)


def test_an_interval_has_to_be_given(tmp_path):
    with raises(TypeError, "'interval'"):
        build(tmp_path, setting_for(), balance={"start": 2})


def test_an_option_that_does_not_exist_is_refused(tmp_path):
    with raises(TypeError, "'scales'"):
        build(tmp_path, setting_for(), balance={"interval": 3, "scales": (0.5, 1.5)})


def test_before_the_training_there_is_nothing_to_restore(tmp_path):
    with raises(RuntimeError, "restore"):
        build(tmp_path, setting_for()).restore_rates()


def test_an_optimizer_of_another_model_is_refused(tmp_path):
    optimizer = adamw(make_net().parameters())
    with raises(ValueError, "optimizer", "model"):
        build(tmp_path, setting_for(), optimizers=(optimizer, None)).train()


def test_a_schedule_that_somebody_else_steps_too_is_told(tmp_path):
    class Twice(TrainerCallback):
        def on_step_end(self, args, state, control, lr_scheduler, **_):
            lr_scheduler.schedule.step()

    with raises(RuntimeError, "schedule", "restore()"):
        build(tmp_path, setting_for(), Twice()).train()


@pytest.mark.parametrize(
    ("kind", "error", "told"),
    [("reduce_lr_on_plateau", ValueError, "ReduceLROnPlateau"), ("greedy", TypeError, "GreedyLR")],
)
def test_a_schedule_that_the_trainer_steps_by_its_type_is_refused(tmp_path, kind, error, told):
    options = {"lr_scheduler_type": kind, "warmup_steps": 0, "metric_for_best_model": "loss", "eval_strategy": "epoch"}
    with raises(error, told):
        build(tmp_path, setting_for(), **options).train()


@pytest.mark.parametrize(
    "kind",
    ["cosine", *(pytest.param(kind, marks=pytest.mark.slow) for kind in
                 ("constant_with_warmup", "cosine_with_restarts", "inverse_sqrt", "polynomial"))],
)  # fmt: skip
def test_the_trainers_other_schedules_are_wrapped_too(tmp_path, kind):
    noted, base = Rates(), Rates()
    build(tmp_path, setting_for(interval=3), Noting(noted), lr_scheduler_type=kind, max_steps=4).train()
    build(
        tmp_path, setting_for(), Noting(base), lr_scheduler_type=kind, max_steps=4, balance={"interval": 3, "start": 99}
    ).train()
    for one, own in zip(noted, base, strict=True):
        assert one["0.weight"] == own["0.weight"]
        assert min(one.values()) == pytest.approx(0.6 * own["0.weight"])
