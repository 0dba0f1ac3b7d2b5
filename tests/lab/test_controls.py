"""Controls in the lab: points, words about what remains over controls, base rates, and the page of results."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("altair", reason="charts need the extra report")

from benchmarks import results

from tempbalance.lab.compare import plan, summarize, verdict
from tempbalance.lab.findings import effect_text
from tempbalance.lab.points import PRESETS, with_controls
from tempbalance.lab.recipe import ACCURACY, Measure
from tempbalance.lab.study import find_study
from tempbalance.runlog import RunFolder
from tests.cases import assert_carries
from tests.lab.test_compare import finished

SMOKE = PRESETS["smoke"]
ERROR = Measure("test_nrmse", "nRMSE", "%", "points", is_lower_better=True)


@pytest.mark.parametrize("name", ["main", "tail", "assignment", "reference", "operator", "language"])
def test_controls_are_added_once_to_every_balanced_point_of_a_study(name):
    study = find_study(name)
    points, controlled = study.choose(SMOKE, {}), study.choose(SMOKE, {}, controls=True)
    recipes = [point.recipe(43) for point in points]
    num_balanced = sum(recipe.is_balanced for recipe in recipes)
    added = [point for point in controlled if point not in points]
    assert len(added) >= 2 * num_balanced > 0
    assert {point.recipe(43).control for point in added} == {
        "shuffled",
        "mean",
        *(["by type"] if name == "language" else []),
    }
    assert not any(point.is_paper for point in added)
    assert len({point.recipe(43).id for point in controlled}) == len(controlled)
    assert with_controls(added) == added


def test_a_study_that_has_its_controls_gets_no_second_ones():
    study = find_study("operators")
    assert study.choose(SMOKE, {}, controls=True) == study.choose(SMOKE, {})


@pytest.mark.parametrize("name", ["llama", "few_labels", "operators", "images"])
@pytest.mark.parametrize("preset", PRESETS)
def test_all_methods_of_a_setting_are_tried_at_the_same_base_rates(name, preset):
    rates = {}
    for point in find_study(name).points(PRESETS[preset]):
        labels = {label: value for label, value in point.cell.items() if label != "method"}
        rates.setdefault(str(labels), {}).setdefault(point.cell["method"], []).append(point.options["lr"])
    for methods in rates.values():
        assert len(methods) >= 4
        assert len({tuple(each) for each in methods.values()}) == 1
        assert len(next(iter(methods.values()))) > 1


def values(*numbers: float) -> dict[int, float]:
    return dict(enumerate(numbers))


BASE = values(10.0, 11.0, 12.0)


@pytest.mark.parametrize(
    ("tb", "shuffled", "mean", "carried"),
    [
        (
            values(8.0, 9.1, 10.0),
            values(9.5, 10.5, 11.6),
            values(9.0, 10.2, 11.0),
            ["better", "gain is shown over every"],
        ),
        (
            values(8.0, 9.1, 10.0),
            values(8.1, 9.0, 10.0),
            values(9.0, 10.2, 11.0),
            ["gain is not shown over its scales"],
        ),
        (
            values(12.0, 13.1, 14.0),
            values(11.0, 12.0, 13.1),
            values(12.1, 13.0, 14.0),
            ["worse", "not shown over their mean"],
        ),
        (
            values(10.5, 10.5, 12.0),
            values(8.1, 9.0, 10.0),
            values(9.0, 10.2, 11.0),
            ["not shown", "no effect to explain"],
        ),
    ],
)
def test_words_say_what_remains_of_an_effect_over_each_control(tb, shuffled, mean, carried):
    outcomes = {"adam": BASE, "tb+adam": tb, "tb+adam, shuffled": shuffled, "tb+adam, mean": mean}
    assert_carries(effect_text(outcomes, "tb+adam", "adam", ERROR), "TB+Adam against Adam", "points", *carried)
    assert effect_text(outcomes, "adam", "adam", ERROR) == ""
    turned = {name: {seed: -each for seed, each in found.items()} for name, found in outcomes.items()}
    text = effect_text(turned, "tb+adam", "adam", replace(ACCURACY, unit=""))
    assert_carries(text, *carried)


def test_the_best_base_rate_is_chosen_on_validation_data_and_drawn_over_all(tmp_path):
    study = find_study("llama")
    points = [point for point in study.points(SMOKE) if point.cell["method"] in ("adam", "tb+adam")]
    for point in points:
        for seed in study.seeds(SMOKE):
            recipe, low = point.recipe(seed), point.options["lr"] == 1e-3
            run = RunFolder(tmp_path / recipe.id)
            run.write_recipe({"recipe": {"kind": "language", **recipe.to_dict()}, "data": "none"})
            # the lower rate is better on the validation text and worse on the test text
            run.append(
                [{"epoch": 1, "valid_perplexity": 50.0 if low else 60.0, "test_perplexity": 70.0 if low else 65.0}]
            )
            perplexity = 70.0 if low else 65.0
            run.write_result(
                {"test_perplexity": perplexity, "best_perplexity": perplexity, "valid_perplexity": 1.0, "epochs": 2}
                | {"num_balancings": 1, "seconds": 1.0, "best_epoch": 1}
            )
    findings = study.find(SMOKE, points, tmp_path)
    assert [cell.best.point.options["lr"] for cell in findings.cells] == [1e-3, 1e-3]
    shown = study.present(findings)
    assert set(shown.charts) == {"llama", "llama_rates"}
    assert_carries(shown.tables[0].caption, "mean on validation data", "same base rates")
    raw = json.loads(findings.raw("tempbalance study run llama"))
    assert len(raw["runs"]) == 2 * 2 * len(study.seeds(SMOKE))
    (setting,) = results.read_settings(raw)
    assert {row.rate for row in setting.rows} == {1e-3}


def test_a_comparison_has_the_controls_of_balanced_methods_alone(tmp_path):
    recipes = plan({"dataset": "digits"}, ["cal", "tb"], [43, 37, 13], controls=True)
    assert len({recipe.name for recipe in recipes}) == len(recipes) == 12
    for recipe in recipes:
        gain = {"": 2.0, "shuffled": 1.9, "mean": 0.1}[recipe.control] if recipe.method == "tb" else 0.0
        finished(tmp_path, recipe, 90 + recipe.seed / 10 + gain + (recipe.seed == 13) * gain / 10, [2.0, 4.0])
    comparisons = summarize(recipes, tmp_path)
    assert [each.method for each in comparisons] == ["cal", "tb", "tb, shuffled", "tb, mean"]
    assert_carries(verdict(comparisons)[-1], "TB against CAL", "gain", "its scales shuffled", "their mean")


def test_the_page_and_its_chart_are_those_of_the_raw_results(tmp_path):
    raw = tmp_path / "results"
    raw.mkdir()
    for path in (results.DOCS / "results").glob("*.json"):
        (raw / path.name).write_text(path.read_text())
    results.main(tmp_path)
    for name in ("does-it-help.md", "images/does-it-help.svg"):
        assert (tmp_path / name).read_text() == (results.DOCS / name).read_text(), f"{name}: run make results"
    page = (results.DOCS / "does-it-help.md").read_text()
    for path in sorted((results.DOCS / "results").glob("*.json")):
        content = json.loads(path.read_text())
        assert content["command"] in page
        assert all(setting.name in page for setting in results.read_settings(content))
    assert not any(str(Path.home()) in text for text in (page, *(each.read_text() for each in raw.iterdir())))
