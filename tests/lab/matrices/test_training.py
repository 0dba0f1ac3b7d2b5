"""Training a small network and measuring its matrices, in a folder."""

import json

import numpy as np
import pytest
import torch
from rich.console import Console
from torch.func import functional_call, hessian
from torch.nn.functional import cross_entropy

from tempbalance.lab.images.data import load_data
from tempbalance.lab.matrices.curvature import decay_exponent
from tempbalance.lab.matrices.recipe import MatricesRecipe
from tempbalance.lab.matrices.training import MatricesTraining, covariance_eigenvalues, decay_penalty
from tempbalance.lab.runs import TrainingError
from tempbalance.lab.train import train as train_recipe
from tempbalance.runlog import RunFolder
from tests.cases import changed, raises
from tests.lab.cut import cpu, train_one_epoch

TASK = MatricesRecipe(
    dataset="digits", hidden=12, epochs=3, measure_every=2, batch_size=40, num_samples=60, num_eigenvalues=4, tau=3,
    limit=120, test_limit=60,
)  # fmt: skip
DATA = load_data("digits", limit=120, test_limit=60)
NAMES = ["output_covariance", "hidden_covariance", "hessian", "fisher", "ntk"]


def train(folder, task=TASK):
    return train_recipe(task, folder, console=Console(quiet=True), device="cpu", threads=1)


def test_a_run_measures_after_its_epochs_and_says_what_it_found(tmp_path):
    result = train(tmp_path)
    lines = RunFolder(tmp_path).metrics
    assert [line["epoch"] for line in lines if "exponents" in line] == [1, 2, 3]
    for line in lines:
        assert list(line["exponents"]) == list(line["eigenvalues"]) == NAMES
        assert [len(values) for values in line["eigenvalues"].values()] == [10, 12, 4, 4, 4]
        for name, values in line["eigenvalues"].items():
            assert values == sorted(values, reverse=True)
            assert line["exponents"][name] == pytest.approx(decay_exponent(values))
        np.testing.assert_allclose(np.array(line["eigenvalues"]["fisher"]) * 60, line["eigenvalues"]["ntk"])
    assert result["test_accuracy"] == lines[-1]["test_accuracy"]
    assert result["hessian_exponent"] == lines[-1]["exponents"]["hessian"]
    assert set(TASK.result_names) <= set(result)
    assert json.loads((tmp_path / "recipe.json").read_text())["recipe"]["kind"] == "matrices"


def test_the_hessian_is_that_of_the_training_loss_without_the_penalty():
    training = MatricesTraining(TASK, DATA, cpu())
    metrics = training.epoch(1).metrics
    chosen = torch.linspace(0, 119, 60).long()
    network, images, labels = training.network.double(), training.images[chosen].double(), training.labels[chosen]
    shapes = {name: each.shape for name, each in network.named_parameters()}

    def loss(flat):
        parts = flat.split([shape.numel() for shape in shapes.values()])
        by_name = {name: part.view(shapes[name]) for name, part in zip(shapes, parts, strict=True)}
        return cross_entropy(functional_call(network, by_name, (images,)), labels)

    matrix = hessian(loss)(torch.cat([each.detach().flatten() for each in network.parameters()]))
    expected = torch.linalg.eigvalsh(matrix).flip(0)[:4]
    np.testing.assert_allclose(metrics["eigenvalues"]["hessian"], expected, rtol=1e-4)


def test_a_resumed_run_equals_an_uninterrupted_one_to_the_bit(tmp_path):
    train(tmp_path / "whole")
    train_one_epoch(tmp_path / "cut", TASK)
    train(tmp_path / "cut")
    assert RunFolder(tmp_path / "cut").metrics == RunFolder(tmp_path / "whole").metrics


def test_the_penalty_brings_the_hidden_spectrum_nearer_to_one_over_n():
    found = {}
    for method in ("plain", "regularized"):
        task = changed(TASK, method=method, hidden=40, lr=0.01, epochs=99, measure_every=99)
        training = MatricesTraining(task, DATA, cpu())
        metrics = [training.epoch(epoch).metrics for epoch in range(2, 23)][-1]
        assert ("penalty" in metrics) == (method == "regularized")
        eigenvalues = covariance_eigenvalues(training.network[:2](training.images).detach())
        found[method] = float(decay_penalty(eigenvalues, tau=3))
    assert found["regularized"] < 0.5 * found["plain"]


def test_seeds_differ_and_repeat():
    first, again, other = (
        MatricesTraining(changed(TASK, seed=seed), DATA, cpu()).epoch(1).metrics for seed in (5, 5, 6)
    )
    assert first == again
    assert first["train_loss"] != other["train_loss"]


def test_a_loss_that_is_not_finite_ends_the_run():
    training = MatricesTraining(TASK, DATA, cpu())
    with torch.no_grad():
        training.network[2].bias.fill_(float("inf"))
    with raises(TrainingError, "epoch 1", 0.001):
        training.epoch(1)


def test_other_precisions_are_refused(tmp_path):
    with raises(ValueError, "precision", "32-true", "'bf16-mixed'"):
        train_recipe(TASK, tmp_path, console=Console(quiet=True), device="cpu", precision="bf16-mixed")


def test_a_last_batch_with_fewer_images_than_tau_joins_the_one_before():
    data = load_data("digits", limit=121, test_limit=60)
    training = MatricesTraining(TASK, data, cpu())
    sizes = []
    training._train_on = lambda batch: sizes.append(len(batch)) or torch.zeros(2)
    training.epoch(1)
    assert sizes == [40, 40, 41]
    with raises(ValueError, "tau", 3):
        MatricesTraining(TASK, load_data("digits", limit=3, test_limit=3), cpu())
