"""Comparisons: what is planned, what was measured, and the processes that train."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from rich.console import Console

from tempbalance.lab import sweep
from tempbalance.lab.compare import (
    Comparison,
    comparison_table,
    doubts,
    headline,
    plan,
    summarize,
    verdict,
    write_comparison,
)
from tempbalance.lab.images.recipe import ImageRecipe
from tempbalance.lab.jobs import Job
from tempbalance.lab.runs import OtherRunError
from tempbalance.lab.sweep import check_all
from tempbalance.runlog import RunFolder
from tests.cases import assert_carries, raises


def finished(folder: Path, recipe: ImageRecipe, accuracy: float, alphas: list[float]) -> None:
    run = RunFolder(folder / recipe.name)
    run.write_recipe({"recipe": recipe.to_dict(), "versions": {}})
    run.append(layers=[{"epoch": 5, "layer": str(i), "alpha": alpha} for i, alpha in enumerate(alphas)])
    run.write_result({"test_accuracy": accuracy, "best_accuracy": accuracy, "best_epoch": 1, "seconds": 1.0})


def jobs(recipes: list[ImageRecipe], folder: Path) -> list[Job]:
    return [Job(recipe, folder / recipe.name) for recipe in recipes]


def three_seeds(folder: Path) -> tuple[list[ImageRecipe], list[Comparison]]:
    recipes = plan({"dataset": "digits"}, ["cal", "tb"], [43, 37, 13])
    for recipe in recipes:
        gain = {43: 1.0, 37: 2.0, 13: 3.0}[recipe.seed] if recipe.method == "tb" else 0.0
        finished(folder, recipe, 90 + recipe.seed / 10 + gain, [2.0, 4.0])
    return recipes, summarize(recipes, folder)


def test_the_interval_of_the_paired_difference_is_students(tmp_path):
    _, (cal, tb) = three_seeds(tmp_path)
    assert cal.difference == 0
    assert tb.difference == pytest.approx(2.0)
    assert tb.interval == pytest.approx(4.302652730 * 1.0 / 3**0.5, rel=1e-6)  # t(0.975, 2), standard deviation 1
    assert tb.alpha_spread == 1.0


def test_a_comparison_is_left_beside_its_runs(tmp_path):
    recipes, comparisons = three_seeds(tmp_path)
    write_comparison(comparisons, recipes, tmp_path)
    content = json.loads((tmp_path / "comparison.json").read_text())
    assert (content["dataset"], content["epochs"], content["width"]) == ("digits", 12, 0.25)
    assert content["seeds"] == [43, 37, 13]
    assert [each["method"] for each in content["methods"]] == ["cal", "tb"]
    assert content["methods"][0]["accuracies"] == pytest.approx([94.3, 93.7, 91.3])
    assert content["methods"][1]["difference"] == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("difference", "interval", "carried"),
    [
        (0.19, 1.06, ["+0.19 points", "-0.87 to +1.25", "3 seeds", "not show"]),
        (1.0, 0.5, ["+1.00 points", "+0.50 to +1.50"]),
        (-1.0, 0.5, ["-1.00 points", "-1.50 to -0.50"]),
        (0.0, 0.0, ["+0.00 points", "3 seeds", "no test"]),
        (0.5, None, ["+0.50 points", "one seed"]),
    ],
)
def test_what_was_measured_is_said_also_where_the_method_loses(difference, interval, carried):
    cal = Comparison("cal", (90.0,) * 3, 90.0, 0.0, 0.0, interval, 0.1)
    (told,) = verdict([cal, Comparison("tb", (91.0,) * 3, 91.0, 0.0, difference, interval, 0.1)])
    assert_carries(told, "tb - cal", *carried)
    assert ("not show" in told) == ("not show" in carried)


def printed(*comparisons: Comparison) -> str:
    console = Console(width=120, record=True, quiet=True)
    with console.capture() as capture:
        console.quiet = False
        console.print(comparison_table(comparisons))
    return capture.get()


def test_a_table_says_no_more_than_was_measured():
    cal, tb = Comparison("cal", (90.0,), 90.0, None, 0.0, None, None), Comparison("tb", (91.0,), 91.0, None, 1, None, 2)
    one_seed = printed(cal, tb)
    assert "±" not in one_seed
    assert "+1.00" in one_seed
    alone = printed(cal)
    assert "against" not in alone.lower()
    several = printed(
        Comparison("cal", (9.0, 7.0), 8.0, 1.4, 0, 0, 1), Comparison("tb", (9.0, 8.0), 8.5, 0.7, 0.5, 6, 1)
    )
    assert "8.00 ± 1.40" in several
    assert "+0.50 ± 6.00" in several
    assert "half the 95 % interval" in several


def test_a_plan_gives_each_method_its_own_rate():
    recipes = plan({"model": "vgg16"}, ["cal", "adam"], [43])
    assert [recipe.lr for recipe in recipes] == [0.05, 1e-3]


@pytest.mark.parametrize(
    ("options", "epochs", "width"),
    [
        ({}, 12, 0.25),
        ({"dataset": "digits"}, 12, 0.25),
        ({"model": "mlp", "epochs": 3}, 3, 0.25),
        ({"dataset": "cifar10"}, 200, 1.0),
        ({"dataset": "cifar10", "width": 0.5}, 200, 0.5),
    ],
)
def test_small_settings_go_with_the_digits_however_they_are_asked_for(options, epochs, width):
    (recipe,) = plan(options, ["cal"], [43])
    assert (recipe.epochs, recipe.width) == (epochs, width)


def test_a_method_is_compared_once():
    with raises(ValueError, "methods", "'tb'"):
        plan({}, ["tb", "cal", "tb"], [43])


def test_what_may_not_have_been_meant_is_told():
    rate = {"lr": 0.1}
    assert doubts(rate, plan(rate, ["cal", "tb"], [43])) == []
    (told,) = doubts(rate, plan(rate, ["cal", "adam"], [43]))
    assert_carries(told, "lr 0.1", "cal 0.1", "adam 0.001")
    span = {"scale_range": (0.6, 1.4)}
    assert doubts(span, plan(span, ["cal", "tb"], [43])) == []
    (told,) = doubts(span, plan(span, ["cal"], [43]))
    assert_carries(told, "scale_range", "cal")


def test_old_results_do_not_pass_for_those_of_a_new_recipe(tmp_path):
    recipes, _ = three_seeds(tmp_path)
    check_all(jobs(recipes, tmp_path), precision="32-true")
    with raises(OtherRunError, "epochs", 12, 13):
        check_all(jobs(plan({"epochs": 13}, ["cal", "tb"], [43]), tmp_path), precision="32-true")


def test_missing_packages_and_datasets_are_told_before_anything_is_written(tmp_path, monkeypatch):
    recipes = plan({"dataset": "cifar11"}, ["cal"], [43])
    with raises(ValueError, "dataset", "'cifar11'", "'cifar10'"):
        check_all(jobs(recipes, tmp_path / "runs"), precision="32-true")
    monkeypatch.setattr(sweep, "find_spec", lambda name: None if name in ("yaml", "PIL") else find_spec(name))
    with raises(ModuleNotFoundError, "PIL", "yaml"):
        check_all(jobs(recipes, tmp_path / "runs"), precision="32-true")
    assert list(tmp_path.iterdir()) == []


def test_a_comparison_begins_with_what_it_trains():
    recipes = plan({"model": "mlp"}, ["cal", "tb"], [43, 37])
    assert headline(recipes) == "digits, mlp, width 0.25, 12 epochs, cal, tb, seeds 43, 37"
