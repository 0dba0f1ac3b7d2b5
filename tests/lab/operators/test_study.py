"""The study of operators: what it trains, its table and its chart."""

import json

import pytest

pytest.importorskip("altair", reason="charts need the extra report")

from tempbalance.lab.points import PRESETS, find_preset
from tempbalance.lab.study import find_study
from tests.cases import raises

STUDY = find_study("operator")
PAPER, LAPTOP, SMOKE = PRESETS.values()
SIZES = {"paper": [16, 32, 64, 128, 256, 512], "laptop": [16, 64, 256]}


def write_run(folder, task, error):
    run = folder / task.id
    run.mkdir(parents=True)
    (run / "recipe.json").write_text(json.dumps({"recipe": {"kind": "operator", **task.to_dict()}, "data": "none"}))
    (run / "result.json").write_text(
        json.dumps({"test_nrmse": error, "train_loss": 0.1, "num_balancings": 2, "seconds": 1.0, "epochs": 2})
    )


@pytest.mark.parametrize("name", SIZES)
def test_each_equation_is_learned_from_few_and_from_many_solutions(name):
    points = STUDY.points(PRESETS[name])
    for dataset in ("burgers", "advection"):
        for method in {point.cell["method"] for point in points}:
            found = [
                point.recipe(43)
                for point in points
                if (point.cell["dataset"], point.cell["method"]) == (dataset, method)
            ]
            assert [task.limit for task in found] == SIZES[name]
    tasks = [point.recipe(43) for point in points]
    assert len({task.id for task in tasks}) == len(tasks)
    assert len({(task.iterations, task.lr, task.data_seed, task.test_limit) for task in tasks}) == 1
    assert len(STUDY.seeds(PRESETS[name])) == 5


def test_one_equation_alone_is_asked_for_by_its_name():
    points = STUDY.points(find_preset("laptop", dataset="advection"))
    assert {point.recipe(43).dataset for point in points} == {"advection"}
    with raises(ValueError, "dataset", "'digits'", "burgers", "advection"):
        STUDY.points(find_preset("laptop", dataset="digits"))[0].recipe(43)


def test_the_table_tests_balanced_runs_against_adam_seed_by_seed(tmp_path):
    points = STUDY.points(SMOKE)
    for point in points:
        for seed in STUDY.seeds(SMOKE):
            task = point.recipe(seed)
            write_run(tmp_path, task, 10 + seed / 10 - 2 * (point.cell["method"] != "adam") + task.limit / 4)
    shown = STUDY.present(STUDY.find(SMOKE, points, tmp_path))
    (table,) = shown.tables
    columns = list(table.columns)
    assert columns[:6] == ["data", "network", "method", "solutions", "nRMSE, %", "best epoch"]
    for row in table.rows:
        difference = row[columns.index("against Adam")]
        assert (difference is None) == (row[2] == "Adam")
        assert difference is None or difference.value == pytest.approx(-2)
    assert set(shown.charts) == {"operator"}
    methods = {point.cell["method"] for point in points} - {"adam"}
    assert len([note for note in shown.notes if "against Adam" in note]) == len(methods)
    subtitle = STUDY.find(SMOKE, points, tmp_path).subtitle
    assert "4 solutions, 8 solutions; width 8; 4 iterations" in subtitle
