"""ultralytics' callbacks, in a trainer of ours that behaves like its own; the real one is tested in `tests/vision`."""

import copy
import logging
import pickle

import pytest
import torch

import tempbalance
from tempbalance.integrations.ultralytics import balance
from tests.cases import assert_carries, raises
from tests.integrations.contract import OPTIONS, assert_same, batches, loss_of, make_net, note_rates
from tests.integrations.stand_ins import YoloTrainer, collector


class Watched:
    """A training with what it did at each step, and the weights that it held at the start of each epoch."""

    def __init__(self, *, balanced=True, **options):
        model, self.callbacks = collector()
        self.balance = balance(model, **{**OPTIONS, **options}) if balanced else None
        self.noted, self.held = [], {}
        model.add_callback("on_train_start", lambda trainer: note_rates(trainer.optimizer, trainer.model, self.noted))
        model.add_callback("on_train_epoch_start", self._keep)

    def _keep(self, trainer):
        self.held[trainer.epoch] = copy.deepcopy(trainer.model)

    def train(self, *, checkpoint=None, **options):
        self.trainer = YoloTrainer(self.callbacks, checkpoint=checkpoint)
        return self.trainer.train(**options)


def recomputed(model, base):
    """A step's own rates times the scales of the weights it was scored with."""
    scheduler = tempbalance.TempBalance(torch.optim.SGD(tempbalance.param_groups(model), lr=1.0), model, **OPTIONS)
    names = {parameter: name for name, parameter in model.named_parameters()}
    scales = {names[each]: group["lr"] for group in scheduler.optimizer.param_groups for each in group["params"]}
    return {name: rate * scales.get(name, 1.0) for name, rate in base.items()}  # without: frozen


def own_rates():
    plain = Watched(balanced=False)
    plain.train()
    return plain.noted


def test_each_step_is_at_the_trainers_own_rate_times_the_scales_of_the_weights_it_held():
    watched = Watched()
    watched.train()
    expected = [recomputed(watched.held[step // 4], base) for step, base in enumerate(own_rates())]
    assert_same(watched.noted, expected)
    bias = [one["3.bias"] for one in own_rates()[:8]]
    assert bias[0] == pytest.approx(0.1)  # a warm-up that starts high, which scales go through too


def test_stopped_and_resumed_from_half_precision_averages_it_goes_on_from_the_weights_it_holds():
    first = Watched()
    checkpoint = first.train(stop_after=1)
    second = Watched()
    second.train(checkpoint=checkpoint)
    base = own_rates()
    expected = [recomputed({**first.held, **second.held}[step // 4], each) for step, each in enumerate(base)]
    assert_same(first.noted + second.noted, expected)


def test_layers_are_scored_every_interval_epochs_from_the_start_on_and_at_once_after_a_resume():
    watched = Watched(interval=2, start=1)
    checkpoint = watched.train(stop_after=2)
    base = own_rates()
    assert_same(watched.noted[:4], base[:4])
    assert_same(watched.noted[8:], [recomputed(watched.held[1], each) for each in base[8:12]])
    resumed = Watched(interval=3, start=1)
    resumed.train(checkpoint=checkpoint)
    assert_same(resumed.noted, [recomputed(resumed.held[3], each) for each in base[12:]])


def test_groups_states_and_checkpoints_are_the_trainers_own():
    balanced, plain = Watched(), Watched(balanced=False)
    found, expected = balanced.train(), plain.train()
    for one, other in zip(found["optimizer"]["param_groups"], expected["optimizer"]["param_groups"], strict=True):
        assert one == other
    resumed = Watched(balanced=False)
    resumed.train(checkpoint=Watched().train(stop_after=1))
    assert_same(resumed.noted, own_rates()[8:])


def test_when_the_training_ends_or_fails_the_optimizer_steps_at_its_own_rates_again():
    watched = Watched()
    with pytest.raises(TypeError):
        watched.train(fail_at=(1, 2))
    optimizer = watched.trainer.optimizer
    assert [group["param_group"] for group in optimizer.param_groups] == ["bias", "weight", "bn"]
    optimizer.param_groups[0]["momentum"] = 0.9
    num_noted = len(watched.noted)
    optimizer.step()
    assert len(watched.noted) == num_noted + 1
    assert set(watched.noted[-1].values()) == {group["lr"] for group in optimizer.param_groups}


def test_weights_move_as_in_an_optimizer_that_is_split_for_good():
    watched = Watched()
    watched.train()
    net, rates = make_net(), iter(watched.noted)
    names = {parameter: name for name, parameter in net.named_parameters()}
    optimizer = torch.optim.SGD([{"params": [each]} for each in net.parameters()], lr=1.0, momentum=0.9, nesterov=True)
    for batch in batches() * YoloTrainer.epochs:
        now = next(rates)
        for group in optimizer.param_groups:
            group["lr"] = now[names[group["params"][0]]]
        loss_of(net, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    for one, other in zip(net.parameters(), watched.trainer.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_the_table_is_told_at_the_end(caplog):
    with caplog.at_level(logging.INFO, logger="tempbalance"):
        (watched := Watched()).train()
    assert_carries(caplog.text, f"{watched.balance.scheduler.table()['3'].alpha:.3f}")


def test_a_second_training_with_the_same_callbacks_starts_anew():
    watched = Watched()
    watched.train()
    first = list(watched.noted)
    watched.noted.clear()
    watched.train()
    assert_same(watched.noted, first)


def test_a_training_that_starts_again_without_having_been_torn_down_is_scaled_once():
    watched = Watched()
    del watched.callbacks["teardown"]
    trainer = YoloTrainer(watched.callbacks)
    watched.balance.on_train_start(trainer)
    trainer.train()
    expected = [recomputed(watched.held[step // 4], base) for step, base in enumerate(own_rates())]
    assert_same(watched.noted, expected)


def test_the_callbacks_can_be_handed_to_another_process():
    model, callbacks = collector()
    balance(model, **OPTIONS)
    noted = []
    handed = pickle.loads(pickle.dumps(callbacks))
    handed["on_train_start"].append(lambda trainer: note_rates(trainer.optimizer, trainer.model, noted))
    YoloTrainer(handed).train()
    watched = Watched()
    watched.train()
    assert_same(noted, watched.noted)


def test_wrong_options_are_refused_at_once():
    with raises(TypeError, "'epochs'"):
        balance(collector()[0], epochs=3)
    with raises(ValueError, "interval", 0):
        balance(collector()[0], interval=0)
