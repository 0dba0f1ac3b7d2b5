"""The study of matrices: what it trains, its tables of exponents and correlations, and its charts."""

import json

import pytest

pytest.importorskip("altair", reason="charts need the extra report")

from tempbalance.lab.points import PRESETS, find_preset
from tempbalance.lab.study import find_study
from tempbalance.report.study_charts import ExponentPair, MatrixSpectrum, decay_chart, pair_chart
from tests.cases import assert_carries, raises

STUDY = find_study("matrices")
PAPER, LAPTOP, SMOKE = PRESETS.values()
TEXTS = {"title": "a title", "subtitle": "preset and data"}
NAMES = ("output_covariance", "hidden_covariance", "hessian", "fisher", "ntk")


def write_run(folder, point, seed, exponents):
    """A complete run whose exponents of Hessian and output covariance are these, epoch by epoch."""
    task = point.recipe(seed)
    run = folder / task.id
    run.mkdir(parents=True)
    lines = []
    for epoch, (output, hessian) in enumerate(exponents, 1):
        by_name = {**dict.fromkeys(NAMES, 1.0 + epoch), "output_covariance": output, "hessian": hessian}
        values = {name: [1.0, 0.5, 0.25] for name in NAMES}
        lines.append({"epoch": epoch, "test_accuracy": 50.0 + epoch, "exponents": by_name, "eigenvalues": values})
    (run / "recipe.json").write_text(json.dumps({"recipe": {"kind": "matrices", **task.to_dict()}, "data": "none"}))
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (run / "result.json").write_text(
        json.dumps({"test_accuracy": 53.0, "seconds": 1.0, "epochs": task.epochs, "train_loss": 1.0})
    )


def shown(folder, exponents_by_seed, method="regularized"):
    points = STUDY.points(SMOKE)
    (point,) = [each for each in points if each.cell["method"] == method]
    for seed, exponents in exponents_by_seed.items():
        write_run(folder, point, seed, exponents)
    return STUDY.present(STUDY.find(SMOKE, points, folder))


def test_the_paper_trains_its_network_on_mnist_with_and_without_the_penalty():
    tasks = [point.recipe(43) for point in STUDY.points(PAPER)]
    assert {(task.dataset, task.hidden, task.epochs) for task in tasks} == {("mnist", 2000, 50)}
    assert [task.method for task in tasks] == ["regularized", "plain"]


def test_small_presets_have_small_data():
    assert {point.recipe(43).data_text for point in STUDY.points(LAPTOP)} == {"Fashion-MNIST, 10,000 + 2,000 images"}
    assert {point.recipe(43).data_text for point in STUDY.points(SMOKE)} == {"digits, 256 + 128 images"}
    other = STUDY.points(find_preset("laptop", dataset="mnist"))
    assert {point.recipe(43).dataset for point in other} == {"mnist"}
    assert all(STUDY.seeds(preset) == preset.seeds for preset in PRESETS.values())


def test_exponents_are_means_over_seeds_epoch_by_epoch(tmp_path):
    found = shown(tmp_path, {43: [(1.0, 2.0), (2.0, 3.0), (3.0, 4.0)], 37: [(1.5, 2.0), (2.0, 3.0), (3.0, 4.0)]})
    table, _ = found.tables
    first = dict(zip(table.columns, table.rows[0], strict=True))
    assert (first["epoch"], first["seeds"]) == ("1", "2")
    assert (first["s, output covariance"].value, first["s, output covariance"].spread) == pytest.approx(
        (1.25, 0.353553), rel=1e-5
    )
    assert (first["s, Hessian"].value, first["accuracy, %"].value) == (2.0, 51.0)
    assert len(table.rows) == 3


def test_correlations_are_of_the_means_and_of_each_seed(tmp_path):
    found = shown(tmp_path, {43: [(1.0, 2.0), (2.0, 4.0), (3.0, 6.0)], 37: [(3.0, 2.0), (2.0, 4.0), (1.0, 6.0)]})
    _, table = found.tables
    rows = {row[1]: row for row in table.rows}
    assert [each.value for each in rows["output covariance"][3:5]] == pytest.approx([-1.0, 1.0])
    assert rows["output covariance"][2] is None  # the means do not change
    assert rows["hidden covariance"][2].value == pytest.approx(1.0)


@pytest.mark.parametrize(("last", "is_above"), [(2.0, False), (3.001, True)])
def test_a_correlation_is_told_with_what_chance_gives(tmp_path, last, is_above):
    found = shown(tmp_path, {43: [(1.0, 1.0), (2.0, 2.0), (3.0, last)]})
    assert_carries(found.notes[0], "above the 1.00", "3 epochs")
    assert ("not above" in found.notes[0]) is not is_above
    assert len(found.notes) > 1


def test_two_epochs_have_no_correlation(tmp_path):
    found = shown(tmp_path, {43: [(1.0, 2.0), (2.0, 4.0)]})
    assert all(row[2] is None for row in found.tables[1].rows)
    assert found.notes == []


def test_without_a_run_there_are_empty_tables_and_no_charts(tmp_path):
    found = shown(tmp_path, {})
    assert [list(table.rows) for table in found.tables] == [[], []]
    assert found.charts == {}


def test_charts_are_the_pairs_and_the_spectra(tmp_path):
    found = shown(tmp_path, {43: [(1.0, 2.0), (2.0, 3.0), (3.0, 4.0)]})
    assert set(found.charts) == set(STUDY.captions) == {"matrices", "spectra"}


def data_of(chart):
    return chart.to_dict()["datasets"]["main"]


def test_a_pair_chart_has_each_seed_and_the_means():
    pairs = [ExponentPair("plain", 1, seed, x, 2.0) for seed, x in ((43, 1.0), (37, 3.0))]
    chart = pair_chart(pairs, **TEXTS, x_title="x", y_title="y")
    assert [(each["mean"], each["x"]) for each in data_of(chart)] == [(False, 1.0), (False, 3.0), (True, 2.0)]
    with raises(ValueError):
        pair_chart([*pairs, pairs[0]], **TEXTS, x_title="x", y_title="y")


def test_a_decay_chart_leaves_out_what_a_log_axis_has_no_place_for():
    spectra = [MatrixSpectrum("plain", "Hessian", epoch, (4.0, 1.0, 0.0, -1.0, float("nan"))) for epoch in (1, 10)]
    chart = decay_chart(spectra, **TEXTS)
    assert [(each["rank"], each["value"]) for each in data_of(chart)] == [(1, 4.0), (2, 1.0)] * 2
    with raises(ValueError, "1 spectra"):
        decay_chart([MatrixSpectrum("plain", "Hessian", 1, (0.0,))], **TEXTS)
