"""What loggers are given: bounded in number, and only when there is something new."""

import math

import pytest
import torch
from torch.utils.tensorboard import SummaryWriter

import tempbalance
from tempbalance.integrations.logs import LayerLog, layer_scalars, table_text
from tests.cases import mlp, nested, raises
from tests.integrations.contract import make_net
from tests.integrations.events import read_events


def make_scheduler(net, **options):
    return tempbalance.TempBalance(torch.optim.SGD(tempbalance.param_groups(net), lr=0.1), net, **nested(options))


def test_every_scored_layer_has_an_alpha_a_scale_and_a_rate():
    scheduler = make_scheduler(make_net())
    values = layer_scalars(scheduler)
    for layer, score in scheduler.last_scores.items():
        assert values[f"alpha/{layer}"] == score
        assert values[f"lr/{layer}"] == pytest.approx(0.1 * values[f"scale/{layer}"])
    alphas = scheduler.last_scores.values()
    assert values["alpha_min"] == min(alphas)
    assert values["alpha_mean"] == pytest.approx(math.fsum(alphas) / len(alphas))
    assert len(values) == 3 * len(alphas) + 3


def test_of_many_layers_so_many_are_logged_spread_over_the_depth():
    scheduler = make_scheduler(mlp((64,) * 14))
    scored = list(scheduler.last_scores)
    assert len(scored) == 11
    names = [tag.removeprefix("scale/") for tag in layer_scalars(scheduler, max_layers=3) if tag.startswith("scale/")]
    assert names == [scored[0], scored[5], scored[10]]
    assert set(layer_scalars(scheduler, max_layers=0)) == {"alpha_min", "alpha_mean", "alpha_max"}
    with raises(ValueError, "max_layers", -1):
        layer_scalars(scheduler, max_layers=-1)


def test_the_rate_of_a_layer_is_that_of_its_weight_where_its_bias_has_another():
    net = make_net()
    groups = [
        {"params": [each for each in net.parameters() if each.dim() == 2], "lr": 0.2},
        {"params": [each for each in net.parameters() if each.dim() == 1], "lr": 0.01},
    ]
    for given in (groups, groups[::-1]):
        optimizer = torch.optim.SGD(tempbalance.param_groups(net, given), lr=0.1)
        values = layer_scalars(tempbalance.TempBalance(optimizer, net))
        assert values["lr/3"] == pytest.approx(0.2 * values["scale/3"])


def test_layers_of_another_optimizer_are_left_to_its_own_scheduler():
    net = make_net()
    optimizer = torch.optim.SGD(tempbalance.param_groups(net, list(net[:6].parameters())), lr=0.1)
    values = layer_scalars(tempbalance.TempBalance(optimizer, net))
    assert [tag for tag in values if tag.startswith("lr/")] == ["lr/3"]


def test_a_scoring_is_news_once(tmp_path):
    scheduler, log = make_scheduler(make_net(), interval=2), LayerLog(max_layers=1)
    writer = SummaryWriter(str(tmp_path))
    scheduler.optimizer.step()
    for step in range(5):
        for tag, value in log.news(scheduler).items():
            writer.add_scalar(tag, value, step)
        scheduler.step()
    writer.close()
    scalars, _ = read_events(tmp_path)
    assert [step for step, _ in scalars["alpha_mean"]] == [0, 2, 4]


def test_before_the_first_scoring_there_is_nothing_to_log():
    assert layer_scalars(make_scheduler(make_net(), start=2)) == {}


def test_the_table_is_indented_so_that_columns_stay_columns():
    lines = table_text(make_scheduler(make_net())).splitlines()
    assert lines[0].startswith("    layer")
    assert all(line.startswith("    ") for line in lines)
