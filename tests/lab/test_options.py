"""Options one by one: types, ranges, and files that hold them."""

import json
from typing import get_args

import pytest

from tempbalance.lab import flags
from tempbalance.lab.images.recipe import ImageRecipe
from tempbalance.lab.options import ASSIGNMENTS, SCORES, TAILS, check_dataset
from tempbalance.lab.recipe import read_recipe
from tempbalance.ranking.assign import AssignmentName
from tempbalance.spectral.score import ScoreName
from tempbalance.spectral.tail import TailName
from tests.cases import raises


def test_the_names_that_options_know_are_those_of_the_library():
    assert get_args(TailName) == TAILS
    assert get_args(ScoreName) == SCORES
    assert get_args(AssignmentName) == ASSIGNMENTS
    assert set(flags._TEXTS) == set(ImageRecipe.hints())


@pytest.mark.parametrize(
    ("name", "value", "carried"),
    [
        ("epochs", 2.5, [2.5]),
        ("epochs", True, [True]),
        ("epochs", "3", ["'3'"]),
        ("epochs", None, [None]),
        ("epochs", 0, [1, 0]),
        ("batch_size", 0, [1, 0]),
        ("limit", 0, [1, 0]),
        ("interval", 0, [1, 0]),
        ("min_eigenvalues", 0, [1, 0]),
        ("restart_epochs", 0, [1, 0]),
        ("restart_factor", 0, [1, 0]),
        ("lookahead_steps", 0, [1, 0]),
        ("start", -1, [0, -1]),
        ("seed", -1, ["2**64", -1]),
        ("seed", 2**64, ["2**64", 2**64]),
        ("lr", 0.0, ["> 0", 0.0]),
        ("lr", -0.1, ["> 0", -0.1]),
        ("lr", float("nan"), ["finite", "nan"]),
        ("lr", "inf", ["finite", "'inf'"]),
        ("lr", "fast", ["'fast'"]),
        ("lr", True, [True]),
        ("lr", 10**400, ["finite"]),
        ("width", 0, ["> 0", 0]),
        ("momentum", 1, [0, 1]),
        ("weight_decay", -1e-4, [0, -0.0001]),
        ("snr", -1, [0, -1]),
        ("tail_fraction", 1, [0, 1]),
        ("lookahead_alpha", 0, [0, 1]),
        ("scale_range", [0.5], ["0.5"]),
        ("scale_range", "ab", ["'ab'"]),
        ("scale_range", [1.5, 0.5], ["0 < low <= high", "1.5, 0.5"]),
        ("scale_range", [0, 1], ["0 < low <= high", "0.0, 1.0"]),
        ("method", 3, [3]),
        ("model", None, [None]),
        ("dataset", "", ["''"]),
        ("score_first", 1, [1]),
    ],
)
def test_a_value_of_another_type_or_out_of_range_is_named_with_the_rule(name, value, carried, tmp_path):
    with raises(ValueError, name, *carried):
        ImageRecipe.from_dict({name: value})
    path = tmp_path / "r.json"
    path.write_text(json.dumps({name: value}))
    with raises(ValueError, path, name):
        read_recipe(path, ImageRecipe)


@pytest.mark.parametrize(
    ("name", "value", "carried"),
    [
        ("model", "ResNet18", ["model", "'ResNet18'", "'resnet18'"]),
        ("tail", "medan", ["tail", "'medan'", "'median'"]),
        ("score", "alhpa", ["score", "'alhpa'", "'alpha'"]),
        ("assignment", "cubic", ["assignment", "'cubic'", *ASSIGNMENTS]),
        ("method", "CAL", ["method", "'CAL'", "'cal'"]),
        ("method", "tb+tb", ["method", "'tb+tb'", "'tb'"]),
        ("method", "tb+cal", ["method", "'tb+cal'", "'tb'"]),
        ("method", "tb+tb+snr", ["method", "'tb+tb+snr'", "'tb+snr'"]),
        ("nothing_like_it", 1, ["'nothing_like_it'", *ImageRecipe.hints()]),
    ],
)
def test_an_unknown_name_is_answered_with_near_ones_or_all(name, value, carried):
    with raises(ValueError, *carried):
        ImageRecipe.from_dict({name: value})


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
    assert read_recipe(tmp_path / "r", ImageRecipe) == {"lr": 5e-5, "weight_decay": 0.1}


@pytest.mark.parametrize(
    ("text", "carried"),
    [
        ("", ["nothing"]),
        ("- a\n- b\n", ["list"]),
        ('{"recipe": 3}', ["int"]),
        ("lr: [1\n", ["JSON", "YAML"]),
        ("? [a, b]\n: 1\n", ["JSON", "YAML"]),
        ("lr: 1\nlr: 2\n", ["'lr' twice"]),
        ('{"lr": 1, "lr": 2}', ["'lr' twice"]),
        ("methd: tb\n", ["'methd'", "'method'"]),
        ("1: 2\n", ["'1'"]),
        (b"\xff\xfe\x00", ["0xff"]),
    ],
)
def test_a_file_that_holds_something_else_is_named(tmp_path, text, carried):
    path = tmp_path / "r.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with raises(ValueError, path, *carried) as caught:
        read_recipe(path, ImageRecipe)
    assert "\n" not in str(caught.value)


def test_a_dataset_is_written_in_one_way():
    assert ImageRecipe(dataset="pics/").dataset == ImageRecipe(dataset="./pics").dataset == "pics"
    assert ImageRecipe(width=1).width == 1.0
    assert isinstance(ImageRecipe(width=1).width, float)


def test_a_dataset_must_be_known_or_there(tmp_path):
    check_dataset("digits")
    check_dataset(str(tmp_path))
    with raises(ValueError, "dataset", "'Cifar-10'", "'cifar10'"):
        check_dataset("Cifar-10")
