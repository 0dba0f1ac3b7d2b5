"""What recipes say of balancing, as the library takes it."""

import inspect
from typing import get_args

import pytest

from tempbalance import Comparison, TempBalance
from tempbalance.lab.balancing import scheduler_options
from tempbalance.lab.images.recipe import ImageRecipe
from tempbalance.lab.language.recipe import LanguageRecipe
from tempbalance.lab.operators.recipe import OperatorRecipe
from tempbalance.lab.options import Reference, allowed
from tempbalance.ranking.compare import ReferenceName
from tests.cases import changed, raises

KINDS = (ImageRecipe, LanguageRecipe, OperatorRecipe)


def test_the_names_are_those_of_the_library():
    assert get_args(ReferenceName) == get_args(Reference)


@pytest.mark.parametrize("kind", KINDS)
def test_a_plain_recipe_asks_for_the_paper(kind):
    defaults = {name: each.default for name, each in inspect.signature(TempBalance).parameters.items()}
    defaults["comparison"] = Comparison()
    asked = scheduler_options(kind())
    assert {name: value for name, value in asked.items() if value != defaults[name]}.keys() <= {"interval"}


@pytest.mark.parametrize("kind", KINDS)
def test_options_go_through_and_without_balancing_layers_are_only_scored(kind):
    task = kind(
        reference="random", windows="16", keep_mean=True, shrink=True, smooth=0.5, blend=3, group_by="layer*",
        decay_range=(2.0, 0.5), scale_range=(0.4, 1.2),
    )  # fmt: skip
    asked = scheduler_options(task)
    assert asked["balance"] == {"lr": (0.4, 1.2), "weight_decay": (2.0, 0.5)}
    assert asked["comparison"] == Comparison("random", 16, True, True, 0.5, 3, "layer*")
    alone = scheduler_options(changed(task, method="adam"))
    assert alone["scale_range"] == (1.0, 1.0)
    assert not {"balance", "assignment"} & set(alone)
    assert alone["comparison"] == Comparison("random", 16)


def test_what_does_not_matter_to_a_method_does_not_make_another_run():
    assert (
        ImageRecipe(method="cal", keep_mean=True, decay_range=(1.0, 2.0), smooth=0.9).id == ImageRecipe(method="cal").id
    )
    assert ImageRecipe(keep_mean=True).id != ImageRecipe().id


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("reference", "zero"), ("windows", "1"), ("windows", "round"), ("smooth", 1.0), ("blend", 0), ("group_by", ""),
        ("decay_range", [0.0, 1.0]),
    ],
)  # fmt: skip
def test_values_out_of_range_are_refused_with_the_rule(name, value):
    rule = "random" if name == "reference" else allowed(ImageRecipe.model_fields[name]).removesuffix(", or null")
    with raises(ValueError, name, rule):
        ImageRecipe.from_dict({name: value})


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_the_rules_of_balancing(kind):
    with raises(ValueError, "smooth", allowed(kind.model_fields["smooth"])):
        kind.from_dict({"smooth": 1.0})


def test_windows_may_be_a_number_in_a_file_and_a_range_must_be_two():
    assert ImageRecipe.from_dict({"windows": 8}).windows == "8"
    with raises(ValueError, "decay_range", (0.5,)):
        ImageRecipe(decay_range=(0.5,))
