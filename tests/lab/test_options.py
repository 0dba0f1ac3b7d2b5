"""Options one by one: types, ranges, and files that hold them."""

import json
from typing import get_args

import pytest

from tempbalance.core.assign import AssignmentName
from tempbalance.core.score import ScoreName
from tempbalance.core.tail import TailName
from tempbalance.lab import flags
from tempbalance.lab.options import ASSIGNMENTS, SCORES, TAILS, check_dataset
from tempbalance.lab.recipe import Recipe
from tempbalance.lab.task import read_recipe


def test_the_names_that_options_know_are_those_of_the_library():
    assert get_args(TailName) == TAILS
    assert get_args(ScoreName) == SCORES
    assert get_args(AssignmentName) == ASSIGNMENTS
    assert set(flags._TEXTS) == set(Recipe.hints())


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("epochs", 2.5, "a whole number"),
        ("epochs", True, "a whole number"),
        ("epochs", "3", "a whole number"),
        ("epochs", None, "a whole number"),
        ("epochs", 0, "at least 1"),
        ("batch_size", 0, "at least 1"),
        ("limit", 0, "at least 1"),
        ("interval", 0, "at least 1"),
        ("min_eigenvalues", 0, "at least 1"),
        ("restart_epochs", 0, "at least 1"),
        ("restart_factor", 0, "at least 1"),
        ("lookahead_steps", 0, "at least 1"),
        ("start", -1, "at least 0"),
        ("seed", -1, "at least 0 and below 2**64"),
        ("seed", 2**64, "at least 0 and below 2**64"),
        ("lr", 0.0, "> 0"),
        ("lr", -0.1, "> 0"),
        ("lr", float("nan"), "a finite number"),
        ("lr", "inf", "a finite number"),
        ("lr", "fast", "a finite number"),
        ("lr", True, "a finite number"),
        ("lr", 10**400, "a finite number"),
        ("width", 0, "> 0"),
        ("momentum", 1, "at least 0 and below 1"),
        ("weight_decay", -1e-4, "at least 0"),
        ("snr", -1, "at least 0"),
        ("tail_fraction", 1, "above 0 and below 1"),
        ("lookahead_alpha", 0, "above 0 and below 1"),
        ("scale_range", [0.5], "two numbers"),
        ("scale_range", "ab", "two numbers"),
        ("scale_range", [1.5, 0.5], "two numbers with 0 < low <= high"),
        ("scale_range", [0, 1], "two numbers with 0 < low <= high"),
        ("method", 3, "text"),
        ("model", None, "text"),
        ("dataset", "", "a name or a path"),
        ("score_first", 1, "true or false"),
    ],
)
def test_a_value_of_another_type_or_out_of_range_is_named_with_the_rule(name, value, rule, tmp_path):
    with pytest.raises(ValueError, match=f"^{name} must be ") as caught:
        Recipe.from_dict({name: value})
    assert f"must be {rule}, got " in str(caught.value)
    path = tmp_path / "r.json"
    path.write_text(json.dumps({name: value}))
    with pytest.raises(ValueError, match=rf"r\.json: {name} must be "):
        read_recipe(path, Recipe)


@pytest.mark.parametrize(
    ("name", "value", "answer"),
    [
        ("model", "ResNet18", "unknown model 'ResNet18': did you mean 'resnet18'"),
        ("tail", "medan", "unknown tail 'medan': did you mean 'median'?"),
        ("score", "alhpa", "unknown score 'alhpa': did you mean 'alpha'"),
        ("assignment", "cubic", "unknown assignment 'cubic': known are linear, sqrt, log2, step"),
        ("method", "CAL", "unknown method 'CAL': did you mean 'cal'"),
        ("method", "tb+tb", "unknown method 'tb+tb': that is 'tb'"),
        ("method", "tb+cal", "unknown method 'tb+cal': that is 'tb'"),
        ("method", "tb+tb+snr", "unknown method 'tb+tb+snr': that is 'tb+snr'"),
        ("nothing_like_it", 1, "unknown option 'nothing_like_it': known are dataset, model"),
    ],
)
def test_an_unknown_name_is_answered_with_near_ones_or_all(name, value, answer):
    with pytest.raises(ValueError, match="unknown") as caught:
        Recipe.from_dict({name: value})
    assert str(caught.value).startswith(answer)


@pytest.mark.parametrize(
    "text",
    [
        '{"lr": 5e-05, "weight_decay": 1e-1}',
        "lr: 5e-5\nweight_decay: 1e-1\n",
        "lr: '5e-5'\nweight_decay: 0.1\n",
        "{lr: 0.00005, weight_decay: 1.0e-1}",
        '{"recipe": {"lr": 5e-05, "weight_decay": 0.1}, "versions": {}}',
    ],
)
def test_small_numbers_are_read_however_they_are_written(tmp_path, text):
    (tmp_path / "r").write_text(text)
    assert read_recipe(tmp_path / "r", Recipe) == {"lr": 5e-5, "weight_decay": 0.1}


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("", "a recipe must be options by name, got nothing"),
        ("- a\n- b\n", "a recipe must be options by name, got list"),
        ('{"recipe": 3}', "a recipe must be options by name, got int"),
        ("lr: [1\n", "neither JSON nor YAML"),
        ("? [a, b]\n: 1\n", "neither JSON nor YAML"),
        ("lr: 1\nlr: 2\n", "an option must be given once, got 'lr' twice"),
        ('{"lr": 1, "lr": 2}', "an option must be given once, got 'lr' twice"),
        ("methd: tb\n", "unknown option 'methd': did you mean 'method'"),
        ("1: 2\n", "unknown option '1'"),
        (b"\xff\xfe\x00", "codec can't decode"),
    ],
)
def test_a_file_that_holds_something_else_is_named(tmp_path, text, answer):
    path = tmp_path / "r.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=r"r\.yaml: ") as caught:
        read_recipe(path, Recipe)
    assert answer in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_dataset_is_written_in_one_way():
    assert Recipe(dataset="pics/").dataset == Recipe(dataset="./pics").dataset == "pics"
    assert Recipe(width=1).width == 1.0
    assert isinstance(Recipe(width=1).width, float)


def test_a_dataset_must_be_known_or_there(tmp_path):
    check_dataset("digits")
    check_dataset(str(tmp_path))
    with pytest.raises(ValueError, match="unknown dataset 'Cifar-10': did you mean 'cifar10'"):
        check_dataset("Cifar-10")
