"""Training an operator in a folder."""

import json
import math

import numpy as np
import pytest
import torch
from rich.console import Console

from tempbalance.lab.operators.data import make_data
from tempbalance.lab.operators.recipe import OperatorRecipe
from tempbalance.lab.operators.training import OperatorTraining, relative_errors
from tempbalance.lab.runs import TrainingError
from tempbalance.lab.train import train as train_recipe
from tempbalance.runlog import RunFolder
from tests.cases import changed, raises
from tests.lab.cut import cpu, train_one_epoch

TASK = OperatorRecipe(
    dataset="advection", limit=10, test_limit=6, grid=16, width=8, modes=4, blocks=2, iterations=10, evaluate_every=4,
    interval=2, batch_size=4, min_eigenvalues=8,
)  # fmt: skip
DATA = make_data("advection", limit=10, test_limit=6, grid=16, seed=0)


def training(**options):
    return OperatorTraining(changed(TASK, **options), DATA, cpu())


def train(folder, task=TASK):
    return train_recipe(task, folder, console=Console(quiet=True), device="cpu", threads=1)


def test_the_error_is_the_mean_over_functions_of_the_errors_norm_over_the_functions():
    found = training()
    metrics = found.epoch(1).metrics
    errors = []
    for inputs, targets in zip(DATA.test_inputs, DATA.test_targets, strict=True):
        with torch.no_grad():
            told = found.network(torch.from_numpy(inputs)[None])[0].numpy()
        errors.append(np.sqrt(np.sum((told - targets) ** 2)) / np.sqrt(np.sum(targets**2)))
    assert metrics["test_nrmse"] == pytest.approx(100 * np.mean(errors), rel=1e-5)


def test_nothing_told_is_an_error_of_one():
    wanted = torch.randn(3, 16)
    torch.testing.assert_close(relative_errors(torch.zeros(3, 16), wanted), torch.ones(3))


@pytest.mark.parametrize(
    "options",
    [
        {"method": "adam"},
        {"method": "tb+adam"},
        {"method": "tb+adamw", "weight_decay": 1e-3},
        {"method": "tb+adam", "reference": "random", "keep_mean": True, "shrink": True, "smooth": 0.5},
    ],
    ids=["adam", "balanced", "decay", "reference"],
)
def test_a_resumed_run_equals_an_uninterrupted_one_to_the_bit(tmp_path, options):
    task = changed(TASK, **options)
    train(tmp_path / "whole", task)
    train_one_epoch(tmp_path / "cut", task)
    torch.rand(7)  # what others draw moves nothing
    train(tmp_path / "cut", task)
    cut, whole = RunFolder(tmp_path / "cut"), RunFolder(tmp_path / "whole")
    assert cut.metrics == whole.metrics
    assert cut.layers == whole.layers


def test_a_pass_reads_every_solution_once_and_no_two_passes_in_one_order():
    found = training()
    passes = [torch.cat([found.batch(3 * number + step) for step in range(3)]).tolist() for number in range(2)]
    assert [len(found.batch(step)) for step in range(3)] == [4, 4, 2]
    assert sorted(passes[0]) == sorted(passes[1]) == [*range(10)]
    assert passes[0] != passes[1]
    assert len(training(batch_size=99).batch(5)) == 10


def test_rates_are_the_cosine_times_each_layers_scale():
    found = training()
    found.epoch(1)
    cosine = TASK.lr * (1 + math.cos(math.pi * 4 / 10)) / 2
    scales = found.scheduler.last_scales
    assert (min(scales.values()), max(scales.values())) == pytest.approx((0.5, 1.5))
    for group in found.optimizer.param_groups:
        assert group["lr"] == pytest.approx(cosine * scales.get(group.get("layer"), 1.0))


def test_the_mean_scale_is_kept_where_that_is_asked_for():
    found = training(reference="random", keep_mean=True)
    found.epoch(1)
    scales = [row.scale for row in found.scheduler.table() if row.score is not None]
    assert np.mean(scales) == pytest.approx(1)
    assert max(scales) > min(scales)


def test_without_balancing_all_train_at_the_cosine_and_layers_are_scored_with_each_epoch():
    found = training(method="adam")
    lines = found.epoch(1).layers
    assert {line["scale"] for line in lines} == {1.0}
    assert all(line["rate"] == pytest.approx(TASK.lr * (1 + math.cos(math.pi * 4 / 10)) / 2) for line in lines)
    assert len(found.timings["balancing"]) == 1


def test_training_learns_to_shift():
    options = {"limit": 32, "test_limit": 20, "grid": 32}
    task = changed(TASK, **options, modes=14, width=16, iterations=50, evaluate_every=50, lr=0.01)
    found = OperatorTraining(task, make_data("advection", **options, seed=0), cpu())
    metrics = found.epoch(1).metrics
    assert metrics["test_nrmse"] < 15
    assert OperatorTraining(task, make_data("advection", **options, seed=0), cpu()).evaluate()["test_nrmse"] > 50


def test_seeds_give_other_weights_and_batches_of_the_same_data():
    first, again, other = (training(seed=seed).epoch(1).metrics for seed in (5, 5, 6))
    assert first == again
    assert first["train_loss"] != other["train_loss"]


def test_a_run_writes_what_reports_read_and_says_what_it_found(tmp_path):
    result = train(tmp_path)
    folder = RunFolder(tmp_path)
    assert [line["epoch"] for line in folder.metrics] == [1, 2, 3]
    assert result["test_nrmse"] == folder.metrics[-1]["test_nrmse"]
    assert result["num_balancings"] == 5
    assert all(math.isfinite(result[name]) for name in TASK.result_names)
    assert {line["epoch"] for line in folder.layers} == {0, 1, 2, 3}
    assert set(folder.layers[0]) == {"epoch", "layer", "alpha", "score", "scale", "rate"}
    assert json.loads((tmp_path / "recipe.json").read_text())["recipe"]["kind"] == "operator"
    assert train(tmp_path) == result


def test_a_loss_that_is_not_finite_ends_the_run():
    found = training(method="adam")
    with torch.no_grad():
        found.network.lift.bias.fill_(float("inf"))
    with raises(TrainingError, "nan", "iteration 1", "'lift'", "learning rate"):
        found.epoch(1)


def test_other_precisions_are_refused(tmp_path):
    with raises(ValueError, "precision", "32-true", "'bf16-mixed'"):
        train_recipe(TASK, tmp_path, console=Console(quiet=True), device="cpu", precision="bf16-mixed")
