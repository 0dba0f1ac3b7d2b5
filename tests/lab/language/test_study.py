from collections import Counter
from pathlib import Path

import pytest

from tempbalance.lab.language.recipe import LanguageRecipe
from tempbalance.lab.points import find_preset
from tempbalance.lab.study import find_study

STUDY = find_study("language")
PUBLISHED = "tensorized (published)"


def test_the_papers_preset_has_its_grids_for_three_networks() -> None:
    points = STUDY.points(find_preset("paper"))
    counts = Counter((point.cell["model"], point.cell["method"]) for point in points)
    for model in (PUBLISHED, "tensorized", "gpt"):
        assert counts[model, "adam"] == 7
        assert counts[model, "tb+adam"] == 7 * 2 * 2 * 3
    recipes = [point.recipe(43) for point in points]
    assert len({recipe.id for recipe in recipes}) == len(recipes)
    for recipe in recipes:
        assert isinstance(recipe, LanguageRecipe)
        assert (recipe.iterations, recipe.batch_size, recipe.width) == (40_000, 120, 256)
    balanced = [recipe for recipe in recipes if recipe.method == "tb+adam"]
    assert {recipe.interval for recipe in balanced} == {10, 25, 50}
    assert {recipe.scale_range for recipe in balanced} == {(0.5, 1.5), (1.0, 2.0)}
    for network, fractions in (("published", {0.5, 0.2}), ("tensorized", {0.5, 0.8})):  # k = n / 1.25, read twice
        assert {recipe.tail_fraction for recipe in balanced if recipe.model == network} == fractions
    published = [recipe for recipe in balanced if recipe.model == "published"]
    assert {(each.clip, each.hold_rates, each.tail, each.score_first) for each in published} == {
        (0.25, True, "median_published", True)
    }


def test_only_the_published_network_stands_beside_the_paper() -> None:
    for point in STUDY.points(find_preset("paper")):
        is_published = point.cell["model"] == PUBLISHED
        expected = {"adam": 49.94, "tb+adam": 47.30}[point.cell["method"]]
        assert (None if point.paper is None else point.paper.mean) == (expected if is_published else None)
        assert point.options["causal"] is not is_published


@pytest.mark.parametrize("name", ["laptop", "smoke"])
def test_small_presets_train_adam_alone_and_balanced_at_the_same_rate(name: str, tmp_path: Path) -> None:
    points = STUDY.points(find_preset(name))
    pairs = {}
    for point in points:
        pairs.setdefault(point.cell["model"], {})[point.cell["method"]] = point.recipe(43)
    assert set(pairs) >= {"tensorized", "gpt"}
    for pair in pairs.values():
        plain, balanced = pair["adam"], pair["tb+adam"]
        assert isinstance(plain, LanguageRecipe)
        assert isinstance(balanced, LanguageRecipe)
        assert (plain.lr, plain.dataset, plain.iterations) == (balanced.lr, "pydoc", balanced.iterations)
        assert balanced.scale_range == (0.5, 1.5)
        plain.check_data()
    assert len(STUDY.jobs(find_preset("laptop"), STUDY.points(find_preset("laptop")), tmp_path)) == 2 * 2 * 5


def test_another_text_takes_the_place_of_pythons_help(tmp_path: Path) -> None:
    path = tmp_path / "own.txt"
    path.write_text("words " * 9000)
    points = STUDY.points(find_preset("laptop", dataset=str(path)))
    assert {point.cell["dataset"] for point in points} == {str(path)}
    assert {point.stands_for for point in points} == {"penn_treebank"}
