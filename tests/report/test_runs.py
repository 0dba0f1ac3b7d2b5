import json
import os

import pytest

from tempbalance.report.runs import (
    against_first,
    curves,
    find_runs,
    last_alphas,
    method_table,
    read_groups,
    recorded_spectra,
    shown_epochs,
    tracks,
)
from tempbalance.report.tables import entry_text
from tempbalance.runlog import RunFolder, RunFolderError
from tests.cases import raises
from tests.report.cases import write_run


def two_methods(folder, **options):
    accuracies = {("cal", 1): 90.0, ("cal", 2): 92.0, ("tb", 1): 91.0, ("tb", 2): 94.0, ("tb", 3): 50.0}
    return [
        write_run(folder / f"{method}-{seed}", method=method, seed=seed, accuracy=accuracy, **options)
        for (method, seed), accuracy in accuracies.items()
    ]


def rows_of(groups):
    return [[entry_text(entry) for entry in row] for row in method_table(groups).rows]


def test_a_method_has_mean_deviation_and_the_difference_over_common_seeds(tmp_path):
    groups = read_groups(two_methods(tmp_path))
    cal, tb = rows_of(groups)
    assert cal == ["cal", "2", "91.00 ± 1.41", "", ""]
    assert tb[:2] == ["tb", "3"]
    assert tb[3].startswith("+1.50")
    assert tb[3].endswith("(2 of 3 seeds)")
    assert against_first(groups[1], groups).std == pytest.approx(0.5**0.5)


def test_a_run_that_is_not_complete_is_counted_apart(tmp_path):
    runs = [write_run(tmp_path / "a", seed=1), write_run(tmp_path / "b", seed=2)]
    (tmp_path / "b" / "result.json").unlink()
    assert rows_of(read_groups(runs)) == [["tb", "1 of 2", "90.00", "", ""]]


def test_one_method_with_two_options_is_two_methods_that_say_in_what_they_differ(tmp_path):
    runs = [write_run(tmp_path / str(lr), method="tb", lr=lr) for lr in (0.1, 0.05)]
    runs.append(write_run(tmp_path / "adam", method="adam", lr=0.001))
    assert [group.label for group in read_groups(runs)] == ["tb, lr 0.1", "tb, lr 0.05", "adam"]


def test_networks_are_always_said_and_compared_each_with_its_own_kind(tmp_path):
    runs = [
        write_run(tmp_path / f"{model}-{method}", method=method, model=model, accuracy=accuracy)
        for model, method, accuracy in (
            ("vgg", "cal", 80.0),
            ("vgg", "tb", 81.0),
            ("wrn", "cal", 90.0),
            ("wrn", "tb", 93.0),
        )
    ]
    groups = read_groups(runs)
    assert [each.label for each in groups] == ["cal, model vgg", "tb, model vgg", "cal, model wrn", "tb, model wrn"]
    tests = [against_first(each, groups) for each in groups]
    assert [test and test.mean for test in tests] == [None, 1.0, None, 3.0]


def test_recording_more_is_not_another_method(tmp_path):
    runs = [write_run(tmp_path / str(seed), seed=seed, log_eigenvalues=bool(seed)) for seed in (0, 1)]
    assert [len(group.runs) for group in read_groups(runs)] == [2]


def test_no_runs_and_folders_without_one_are_refused_by_name(tmp_path):
    with raises(ValueError, "run"):
        read_groups([])
    with raises(RunFolderError, tmp_path / "nothing", "recipe.json"):
        read_groups([RunFolder(tmp_path / "nothing")])


@pytest.mark.parametrize(
    "line",
    [
        {"epoch": 1, "alpha": 2.0},
        {"epoch": 1, "layer": "a", "alpha": 2.0, "eigenvalues": "many"},
        {"epoch": 1, "layer": "a", "alpha": 2.0, "eigenvalues": [1.0, None]},
        {"epoch": 1, "layer": "a", "alpha": 2.0, "eigenvalues": [10**400]},
    ],
    ids=["no layer", "text", "nothing", "huge"],
)
def test_damaged_lines_are_refused_by_name(line, tmp_path):
    run = write_run(tmp_path / "run")
    with (run.path / "layers.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    with raises(RunFolderError, run.path, "layers.jsonl"):
        read_groups([run])


def test_numbers_too_large_to_draw_are_left_out(tmp_path):
    run = write_run(tmp_path / "run")
    with (run.path / "layers.jsonl").open("a") as file:
        for layer in ("a", "b"):
            file.write(json.dumps({"epoch": 9, "layer": layer, "alpha": 10**400, "rate": 1e308}) + "\n")
    run.write_result(run.result)
    assert [each.values for each in last_alphas(read_groups([run]))] == [()]


def test_what_is_no_regular_file_is_refused_before_it_is_read(tmp_path):
    run = write_run(tmp_path / "run")
    (run.path / "layers.jsonl").unlink()
    os.mkfifo(run.path / "layers.jsonl")
    with raises(RunFolderError, run.path / "layers.jsonl"):
        read_groups([run])


def test_curves_are_the_mean_and_the_ends_over_the_seeds(tmp_path):
    groups = read_groups(two_methods(tmp_path))
    (last,) = [each for each in curves(groups, "accuracy") if each["epoch"] == 3 and each["method"] == 1][:1]
    assert last == {
        "method": 1, "stage": "test", "epoch": 3, "mean": 78.333, "low": 50.0, "high": 94.0, "n": 3
    }  # fmt: skip


def test_tracks_are_means_over_the_seeds(tmp_path):
    cal, tb = tracks(read_groups(two_methods(tmp_path)))
    assert (cal.panel, cal.epochs, cal.layers) == ("cal", (0, 1, 2, 3), ("a", "b"))
    assert (tb.alpha[1][3], tb.rate[1][3]) == (3.3, 0.2)


def test_numbers_that_are_not_finite_are_left_out(tmp_path):
    run = write_run(tmp_path / "a", epochs=1, layers=("a",))
    for name, line in (
        ("metrics.jsonl", '{"epoch": 2, "test_loss": 1e999, "test_accuracy": null}'),
        ("layers.jsonl", '{"epoch": 2, "layer": "a", "alpha": null, "rate": -1e999}'),
    ):
        with (run.path / name).open("a") as file:
            file.write(line + "\n")
    run.write_result(run.result)
    groups = read_groups([run])
    assert {each["epoch"] for each in curves(groups, "loss")} == {1}
    assert tracks(groups)[0].epochs == (0, 1)
    assert last_alphas(groups)[0].values == ()


def test_the_last_alphas_are_those_of_each_run_and_layer(tmp_path):
    alphas = last_alphas(read_groups(two_methods(tmp_path)))
    assert [each.values for each in alphas] == [(2.3, 3.3) * 2, (2.3, 3.3) * 3]


@pytest.mark.parametrize("content", ["[]", '{"recipe": [1]}', '{"recipe": "text"}'])
def test_a_recipe_that_is_no_object_is_refused_by_name(content, tmp_path):
    run = write_run(tmp_path / "run")
    (run.path / "recipe.json").write_text(content)
    with raises(RunFolderError, run.path):
        read_groups(find_runs([tmp_path]))


def test_of_many_epochs_an_even_choice_is_shown_that_stands_for_all(tmp_path):
    groups = read_groups([write_run(tmp_path / "a", epochs=100, eigenvalues=False)])
    chosen = shown_epochs(groups, 11)
    assert [first for first, _ in chosen] == list(range(0, 101, 10))
    assert [epoch for first, last in chosen for epoch in range(first, last + 1)] == list(range(101))


def test_a_recorded_spectrum_has_the_median_as_threshold(tmp_path):
    groups = read_groups([write_run(tmp_path / "a", epochs=1)])
    first = recorded_spectra(groups)[0][0]
    assert (first["epoch"], first["until"], first["layer"]) == (0, 0, 0)
    assert first["xmin"] == 32.0  # of 1 to 64, the 33rd largest
    assert len(first["tail_x"]) == 2


def test_without_a_known_threshold_there_is_no_line(tmp_path):
    groups = read_groups([write_run(tmp_path / "a", epochs=1, tail="goodness_of_fit")])
    first = recorded_spectra(groups)[0][0]
    assert (first["xmin"], first["tail_x"], first["note"]) == (None, [], "alpha 2.000")


def test_the_data_of_charts_are_plain_json(tmp_path):
    groups = read_groups(two_methods(tmp_path))
    for data in (curves(groups, "loss"), recorded_spectra(groups)[0]):
        assert json.loads(json.dumps(data, allow_nan=False)) == data
