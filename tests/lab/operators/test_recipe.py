"""The options of an operator's run."""

import pytest

from tempbalance.lab.operators.recipe import OperatorRecipe
from tempbalance.lab.recipe import make_recipe, recipe_dict
from tests.cases import raises


def test_a_recipe_survives_its_options():
    recipe = OperatorRecipe(dataset="advection", limit=16, scale_range=(1.0, 2.0))
    assert make_recipe(recipe_dict(recipe)) == recipe
    assert recipe_dict(recipe)["kind"] == "operator"


def test_the_last_epoch_may_be_shorter():
    assert OperatorRecipe(iterations=201, evaluate_every=100).num_epochs == 3


def test_options_of_balancing_tell_no_runs_apart_without_it():
    plain, other = (OperatorRecipe(method="adam", interval=each, scale_range=(0.1, each)) for each in (10, 25))
    assert plain.id == other.id
    assert OperatorRecipe(interval=10).id != OperatorRecipe(interval=25).id
    assert OperatorRecipe(limit=16).id != OperatorRecipe(limit=32).id
    assert OperatorRecipe(data_seed=1).id != OperatorRecipe().id


@pytest.mark.parametrize(
    ("options", "carried"),
    [
        ({"dataset": "burger"}, ["dataset", "'burger'", "'burgers'"]),
        ({"model": "unet"}, ["model", "'unet'"]),
        ({"method": "tb"}, ["method", "'tb'"]),
        ({"grid": 100}, ["grid", 16, 256, 100]),
        ({"limit": 0}, ["limit", 1, 0]),
        ({"limit": None}, ["limit", None]),
        ({"modes": 0}, ["modes", 1, 0]),
        ({"modes": 33}, ["modes", "grid", 64, 33]),
        ({"data_seed": -1}, ["data_seed", 0, -1]),
        ({"lr": 0}, ["lr", 0]),
        ({"reference": "uniform"}, ["reference", "random", "'uniform'"]),
        ({"samples": 2}, ["'samples'"]),
    ],
)
def test_an_option_out_of_range_is_refused_by_name(options, carried):
    with raises(ValueError, *carried):
        OperatorRecipe.from_dict(options)


def test_data_and_size_are_told_in_words():
    recipe = OperatorRecipe(dataset="advection", limit=16)
    assert recipe.data_text == "advection on 64 points"
    assert recipe.size_text == "16 solutions; width 64; 500 iterations"
    recipe.check_data()
    assert recipe.own_digest() is None


def test_smaller_errors_are_better():
    assert OperatorRecipe.measure.is_lower_better
    assert OperatorRecipe.measure.text(2.25) == "test nRMSE 2.25 %"
