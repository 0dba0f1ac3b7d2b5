"""The options of an operator's run."""

import pytest

from tempbalance.lab.kinds import make_task, task_options
from tempbalance.lab.operator.recipe import OperatorRecipe


def test_a_recipe_survives_its_options():
    recipe = OperatorRecipe(dataset="advection", limit=16, scale_range=(1.0, 2.0))
    assert make_task(task_options(recipe)) == recipe
    assert task_options(recipe)["kind"] == "operator"


def test_the_last_epoch_may_be_shorter():
    assert OperatorRecipe(iterations=201, evaluate_every=100).num_epochs == 3


def test_options_of_balancing_tell_no_runs_apart_without_it():
    plain, other = (OperatorRecipe(method="adam", interval=each, scale_range=(0.1, each)) for each in (10, 25))
    assert plain.id == other.id
    assert OperatorRecipe(interval=10).id != OperatorRecipe(interval=25).id
    assert OperatorRecipe(limit=16).id != OperatorRecipe(limit=32).id
    assert OperatorRecipe(data_seed=1).id != OperatorRecipe().id


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataset": "burger"}, "unknown dataset 'burger': did you mean 'burgers'"),
        ({"model": "unet"}, "unknown model 'unet'"),
        ({"method": "tb"}, "unknown method 'tb'"),
        ({"grid": 100}, "grid must be one of 16, 32, 64, 128, 256, got 100"),
        ({"limit": 0}, "limit must be at least 1, got 0"),
        ({"limit": None}, "limit must be a whole number, got None"),
        ({"modes": 0}, "modes must be at least 1, got 0"),
        ({"modes": 33}, "modes must be at most half of grid, which is 64, got 33"),
        ({"data_seed": -1}, "data_seed must be at least 0"),
        ({"lr": 0}, "lr must be > 0"),
        ({"reference": "uniform"}, "reference must be random, got 'uniform'"),
        ({"samples": 2}, "unknown option 'samples'"),
    ],
)
def test_an_option_out_of_range_is_refused_by_name(options, message):
    with pytest.raises(ValueError, match=message):
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
