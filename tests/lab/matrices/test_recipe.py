"""The recipe of the study of matrices: its options, and when it measures."""

import numpy as np
import pytest

from tempbalance.lab.matrices.recipe import MatricesRecipe
from tempbalance.lab.paper import paper_statements
from tempbalance.lab.recipe import make_recipe, recipe_dict
from tests.cases import raises


def test_the_defaults_are_the_papers():
    task, said = MatricesRecipe(), paper_statements()
    assert (task.dataset, task.hidden, task.epochs) == ("mnist", 2000, 50)
    measured = tuple(epoch for epoch in range(1, task.epochs + 1) if task.is_measured(epoch))
    assert measured == said["matrices_epochs"].value
    assert task.num_samples <= 5000


def test_the_last_epoch_is_always_measured():
    task = MatricesRecipe(epochs=5, measure_every=3)
    assert [epoch for epoch in range(1, 6) if task.is_measured(epoch)] == [1, 3, 5]


def test_a_recipe_comes_back_from_its_options():
    task = MatricesRecipe(dataset="digits", method="plain", hidden=64, seed=7)
    assert make_recipe(recipe_dict(task)) == task


def test_options_of_the_penalty_do_not_tell_plain_runs_apart():
    plain = MatricesRecipe(method="plain")
    assert plain.id == MatricesRecipe(method="plain", beta=3.0, tau=4).id
    assert MatricesRecipe(beta=3.0).id != MatricesRecipe().id


def test_data_and_size_are_told():
    task = MatricesRecipe(dataset="fashion_mnist", limit=10_000, test_limit=2_000, hidden=500)
    assert task.data_text == "Fashion-MNIST, 10,000 + 2,000 images"
    assert task.size_text == "500 neurons; 50 epochs"


@pytest.mark.parametrize(
    ("option", "value", "carried"),
    [
        ("method", "tb", ["method", "'tb'"]),
        ("hidden", 0, ["hidden", 1, 0]),
        ("beta", -1.0, ["beta", 0, -1.0]),
        ("tau", 40, ["tau", "hidden", 32, 40]),
        ("batch_size", 10, ["tau", "batch_size", 10]),
        ("num_eigenvalues", 1, ["num_eigenvalues", 2, 1]),
        ("measure_every", 0, ["measure_every", 1, 0]),
        ("depth", 2, ["'depth'"]),
    ],
)
def test_an_option_out_of_range_is_refused(option, value, carried):
    with raises(ValueError, *carried):
        MatricesRecipe.from_dict({"hidden": 32, option: value})


def test_data_that_are_not_there_are_refused_before_anything_starts():
    with raises(ValueError, "dataset", "'mnits'", "'mnist'"):
        MatricesRecipe(dataset="mnits").check_data()


def test_own_images_are_known_by_their_checksum(tmp_path):
    assert MatricesRecipe(dataset="digits").own_digest() is None
    images, labels = np.zeros((4, 3, 3), np.uint8), np.array([0, 1, 0, 1])
    path = tmp_path / "own.npz"
    np.savez(path, train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    assert len(MatricesRecipe(dataset=str(path)).own_digest()) == 64
