from pathlib import Path

import pytest

from tempbalance.lab.language.recipe import LanguageRecipe
from tempbalance.lab.recipe import make_recipe, recipe_dict
from tests.cases import raises


def test_defaults_are_the_papers() -> None:
    recipe = LanguageRecipe()
    assert (recipe.layers, recipe.width, recipe.head, recipe.inner) == (3, 256, 40, 2100)
    assert (recipe.dropout, recipe.sequence, recipe.batch_size, recipe.iterations) == (0.3, 32, 120, 40_000)
    assert (recipe.betas, recipe.eps) == ((0.9, 0.999), 1e-8)
    assert recipe.causal  # but for this: the published form looks ahead
    assert recipe.num_epochs == 80


def test_a_recipe_survives_its_options() -> None:
    recipe = LanguageRecipe(dataset="pydoc", tokens="characters", scale_range=(1.0, 2.0), causal=False)
    assert make_recipe(recipe_dict(recipe)) == recipe
    assert recipe_dict(recipe)["kind"] == "language"


def test_the_last_epoch_may_be_shorter() -> None:
    assert LanguageRecipe(iterations=1001, evaluate_every=500).num_epochs == 3


def test_options_of_balancing_tell_no_runs_apart_without_it() -> None:
    plain, other = (LanguageRecipe(method="adam", interval=each, scale_range=(0.1, each)) for each in (10, 25))
    assert plain.id == other.id
    assert LanguageRecipe(interval=10).id != LanguageRecipe(interval=25).id
    assert LanguageRecipe(causal=False).id != LanguageRecipe().id


@pytest.mark.parametrize(
    ("options", "carried"),
    [
        ({"model": "lstm"}, ["model", "'lstm'", "tensorized", "gpt"]),
        ({"method": "tb"}, ["method", "'tb'"]),
        ({"tokens": "letters"}, ["tokens", "'letters'"]),
        ({"dropout": 1.0}, ["dropout", 0, 1.0]),
        ({"iterations": 0}, ["iterations", 1, 0]),
        ({"betas": (0.9, 1.0)}, ["betas", (0.9, 1.0)]),
        ({"width": 0.5}, ["width", 0.5]),
        ({"heads": 2}, ["'heads'", "'head'"]),
    ],
)
def test_an_option_out_of_range_is_refused_by_name(options: dict[str, object], carried: list[object]) -> None:
    with raises(ValueError, *carried):
        LanguageRecipe.from_dict(options)


def test_texts_are_checked_before_anything_is_started(tmp_path: Path) -> None:
    with raises(ValueError, "dataset", "none.txt"):
        LanguageRecipe(dataset=str(tmp_path / "none.txt")).check_data()
    (tmp_path / "empty.txt").touch()
    with raises(ValueError, "empty.txt", 0):
        LanguageRecipe(dataset=str(tmp_path / "empty.txt")).check_data()
    (tmp_path / "short.txt").write_text("a b c d e f\n" * 10)
    with raises(ValueError, "short.txt", 3872, 56):
        LanguageRecipe(dataset=str(tmp_path / "short.txt")).check_data()
    LanguageRecipe(dataset="pydoc").check_data()
    LanguageRecipe(dataset="penn_treebank").check_data()  # is downloaded when it is trained with


def test_a_text_that_can_change_has_a_digest(tmp_path: Path) -> None:
    (tmp_path / "own.txt").write_text("a b c d e f\n" * 10)
    assert LanguageRecipe(dataset=str(tmp_path / "own.txt")).own_digest()
    assert LanguageRecipe(dataset="pydoc").own_digest()
    assert LanguageRecipe(dataset=str(tmp_path / "none.txt")).own_digest() is None
    assert LanguageRecipe().own_digest() is None


def test_data_and_size_are_told_in_words() -> None:
    assert LanguageRecipe(dataset="pydoc", tokens="characters").data_text == "Python's help, characters"
    assert LanguageRecipe().size_text == "width 256; 40,000 iterations"
