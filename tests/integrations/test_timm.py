"""timm's schedulers, on one of ours that behaves like them; timm's own are tested in `tests/vision`."""

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR

import tempbalance
from tempbalance import Comparison, Execution
from tempbalance.integrations.timm import BalancedSchedule
from tests.cases import raises
from tests.integrations.contract import OPTIONS, Setting, make_net
from tests.integrations.stand_ins import LrScaleSchedule
from tests.integrations.timm_contract import TimmContract


class TestPerEpoch(TimmContract):
    def schedule(self, optimizer):
        return LrScaleSchedule(optimizer, self.setting.shape)


class TestPerEpochWithTheOptimizerLoadedFirst(TestPerEpoch):
    loads_optimizer_first = True


class TestPerUpdate(TimmContract):
    setting, stop_after = Setting(per="step", interval=3), 5

    def schedule(self, optimizer):
        return LrScaleSchedule(optimizer, self.setting.shape, t_in_epochs=False)


class TestPerUpdateWithTheOptimizerLoadedFirst(TestPerUpdate):
    loads_optimizer_first = True


def make(net, **options):
    optimizer = torch.optim.SGD(tempbalance.param_groups(net), lr=0.1)
    return optimizer, BalancedSchedule(LrScaleSchedule(optimizer, lambda _: 1.0), net, **options)


def rates(optimizer):
    return {group.get("layer"): group["lr"] for group in optimizer.param_groups}


def test_a_scale_is_multiplied_to_the_layer_decay_that_is_there_and_never_compounds():
    net = make_net()
    groups = tempbalance.param_groups(net)
    decay = {group["layer"]: 0.9**index for index, group in enumerate(groups)}
    for group in groups:
        group["lr_scale"] = decay[group["layer"]]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    schedule = BalancedSchedule(LrScaleSchedule(optimizer, lambda _: 1.0), net, **OPTIONS)
    for epoch in range(4):
        scales = schedule.scheduler.last_scales
        expected = {layer: 0.1 * each * scales.get(layer, 1.0) for layer, each in decay.items()}
        assert rates(optimizer) == pytest.approx(expected, rel=1e-12)
        schedule.step(epoch + 1)
    schedule.restore()
    assert rates(optimizer) == pytest.approx({layer: 0.1 * each for layer, each in decay.items()}, rel=1e-12)
    assert {group["layer"]: group["lr_scale"] for group in optimizer.param_groups} == decay


def test_before_the_start_rates_are_the_schedules_own():
    optimizer, schedule = make(make_net(), start=2)
    schedule.step(1)
    assert set(rates(optimizer).values()) == {0.1}
    schedule.step(2)
    assert min(rates(optimizer).values()) == pytest.approx(0.05)


def test_a_schedule_that_goes_by_updates_is_not_scored_at_the_end_of_epochs():
    net = make_net()
    optimizer = torch.optim.SGD(tempbalance.param_groups(net), lr=0.1)
    schedule = BalancedSchedule(LrScaleSchedule(optimizer, lambda _: 1.0, t_in_epochs=False), net, interval=2)
    before = schedule.scheduler.last_scores
    schedule.step(2)
    assert schedule.scheduler.last_scores is before
    schedule.step_update(2)
    assert schedule.scheduler.last_scores is not before


def test_the_schedules_state_is_handed_on():
    _, schedule = make(make_net())
    state = schedule.state_dict()
    state["base_values"] = [0.2] * len(state["base_values"])
    schedule.load_state_dict(state)
    schedule.step(1)
    assert max(rates(schedule.schedule.optimizer).values()) == pytest.approx(0.3)


def test_a_schedule_built_before_the_split_is_refused():
    net = make_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    schedule = LrScaleSchedule(optimizer, lambda _: 1.0)
    tempbalance.split_param_groups(optimizer, net)
    with raises(ValueError, "LrScaleSchedule", 1, 6):
        BalancedSchedule(schedule, net)


def test_groups_that_are_not_split_are_refused():
    net = make_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with raises(ValueError, "split_param_groups"):
        BalancedSchedule(LrScaleSchedule(optimizer, lambda _: 1.0), net)


def test_an_optimizer_of_another_model_is_refused():
    optimizer = torch.optim.SGD(tempbalance.param_groups(make_net()), lr=0.1)
    with raises(ValueError, "optimizer", "model"):
        BalancedSchedule(LrScaleSchedule(optimizer, lambda _: 1.0), make_net())


def test_a_schedule_of_torch_and_one_that_goes_on_from_present_rates_are_refused():
    net = make_net()
    optimizer = torch.optim.SGD(tempbalance.param_groups(net), lr=0.1)
    with raises(TypeError, "LambdaLR", "TempBalance"):
        BalancedSchedule(LambdaLR(optimizer, lambda _: 1.0), net)
    plateau = LrScaleSchedule(optimizer, lambda _: 1.0)
    plateau.lr_scheduler = object()  # timm's PlateauLRScheduler keeps one of torch's there
    with raises(TypeError, "LrScaleSchedule", "'lr_scale'"):
        BalancedSchedule(plateau, net)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"interval": 0}, ValueError),
        ({"speed": 2}, TypeError),
        ({"execution": Execution(background=True)}, TypeError),
        ({"comparison": Comparison(smooth=0.5)}, TypeError),
        ({"balance": {"lr": (0.5, 1.5)}}, TypeError),
    ],
)
def test_wrong_options_are_refused(options, error):
    with raises(error, *options):
        make(make_net(), **options)
