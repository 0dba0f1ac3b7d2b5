"""What runs come to: the best point of a grid, tests over seeds, and tables in three forms."""

import csv
import io
from pathlib import Path
from statistics import fmean, stdev

import pytest
from rich.console import Console
from scipy.stats import ttest_rel

from tempbalance.lab.accuracy import accuracy_table
from tempbalance.lab.findings import Findings, Tried
from tempbalance.lab.paper import PaperResult
from tempbalance.lab.points import Point, Preset
from tempbalance.lab.runs import DivergedError
from tempbalance.lab.study import Study
from tempbalance.report.statistics import paired, verdict_text
from tempbalance.report.tables import Number, Report, ResultTable, to_csv, to_latex, to_rich
from tempbalance.runlog import RunFolder
from tests.cases import assert_carries

SEEDS = (43, 37, 13)
PRESET = Preset("laptop", SEEDS, "", {"epochs": 12})
RATES = (0.05, 0.1)
PAPER = {"cal": PaperResult({}, {}, 95.5, 0.1), "tb": PaperResult({}, {}, 95.6, 0.1)}


def points(preset: Preset) -> list[Point]:
    return [
        Point(
            {"dataset": "digits", "model": "mlp", "method": method},
            {"dataset": "digits", "model": "mlp", "method": method, "epochs": 12, "lr": rate},
            PAPER[method],
            stands_for="cifar10",
        )
        for method in ("cal", "tb")
        for rate in RATES
    ]


STUDY = Study(name="study", title="", varies="", points=points, present=lambda findings: Report([], {}, {}))


def trained(folder: Path, accuracies: dict[tuple[str, float, int], float]) -> Findings:
    """Findings from runs with these accuracies by method, rate and seed."""
    for point in points(PRESET):
        for seed in SEEDS:
            accuracy = accuracies.get((point.cell["method"], point.options["lr"], seed))
            if accuracy is not None:
                result = {"test_accuracy": accuracy, "best_accuracy": accuracy, "best_epoch": 1, "seconds": 60.0}
                RunFolder(folder / point.recipe(seed).id).write_result({**result, "balancing_seconds": 0.5})
    return STUDY.find(PRESET, points(PRESET), folder)


CAL = {("cal", 0.05, seed): 90.0 + i for i, seed in enumerate(SEEDS)}
CAL_BETTER = {("cal", 0.1, seed): 92.0 + i / 2 for i, seed in enumerate(SEEDS)}
TB = {("tb", 0.05, 43): 93.0, ("tb", 0.05, 37): 93.0, ("tb", 0.05, 13): 94.0}
TB_INCOMPLETE = {("tb", 0.1, 43): 99.0}


def test_the_best_mean_over_seeds_wins_among_the_points_with_the_most_seeds(tmp_path):
    cal, tb = trained(tmp_path, CAL | CAL_BETTER | TB | TB_INCOMPLETE).cells
    assert cal.best.point.options["lr"] == 0.1
    assert (cal.best.mean, cal.best.std) == (fmean([92, 92.5, 93]), stdev([92, 92.5, 93]))
    assert tb.best.point.options["lr"] == 0.05
    assert tb.best.seconds("balancing") == (0.5, None)
    assert tb.best.seconds("epoch") is None


def diverge(folder: Path, method: str, rate: float, *seeds: int) -> Findings:
    """Findings in which these runs have diverged in epoch 3."""
    for point in points(PRESET):
        if (point.cell["method"], point.options["lr"]) == (method, rate):
            for seed in seeds:
                RunFolder(folder / point.recipe(seed).id).write_result(DivergedError("the loss is nan", 3).result)
    return STUDY.find(PRESET, points(PRESET), folder)


def test_a_diverged_run_is_a_result_and_its_setting_is_the_worst(tmp_path):
    trained(tmp_path, CAL | CAL_BETTER | TB | TB_INCOMPLETE)
    findings = diverge(tmp_path, "tb", 0.1, 37, 13)
    tb = findings.cells[1]
    assert tb.is_complete
    assert (tb.best.point.options["lr"], tb.best.diverged) == (0.05, {})  # though the other run with 0.1 has 99 %
    assert findings.num_runs == (12, 12)
    assert any("2 runs diverged" in note for note in findings.notes)
    assert accuracy_table(findings).rows[1][-1] == "lr 0.05 (best of 2, at the end of the rates)"


def test_a_diverged_run_of_the_best_setting_counts_as_the_worst_outcome_in_tests(tmp_path):
    trained(tmp_path, CAL | CAL_BETTER | TB)
    diverge(tmp_path, "tb", 0.05, 43)
    findings = diverge(tmp_path, "tb", 0.1, *SEEDS)
    cell = findings.cells[1]
    assert (cell.best.point.options["lr"], cell.best.diverged, cell.best.mean) == (0.05, {43: 3}, 93.5)
    assert findings.against(cell).differences == (0.5, 1.0, 90.0 - 92.0)  # 90 is the worst of all runs
    row = dict(zip(accuracy_table(findings).columns, accuracy_table(findings).rows[1], strict=True))
    assert row["seeds"] == "2 of 3, 1 diverged in epoch 3"
    all_diverged = diverge(tmp_path, "tb", 0.05, *SEEDS)
    row = dict(zip(accuracy_table(all_diverged).columns, accuracy_table(all_diverged).rows[1], strict=True))
    assert row["accuracy, %"] == "diverged in epoch 3"


def test_balancing_is_tested_against_the_baseline_seed_by_seed(tmp_path):
    findings = trained(tmp_path, CAL | CAL_BETTER | TB)
    test = findings.against(findings.cells[1])
    expected = ttest_rel([93.0, 93.0, 94.0], [92.0, 92.5, 93.0])
    assert test.p_value == pytest.approx(expected.pvalue, rel=1e-12)
    low, high = expected.confidence_interval(0.95)
    assert (test.mean - test.interval, test.mean + test.interval) == pytest.approx((low, high), rel=1e-12)
    assert findings.against(findings.cells[0]) is None
    (sentence,) = findings.verdicts
    found = ("TB against CAL", "better in 1 of 1 cells", "worse in 0", "corrected", "+0.83 points")
    assert_carries(sentence, *found, "so far")
    (whole,) = trained(tmp_path, {("tb", 0.1, seed): 10.0 for seed in SEEDS}).verdicts
    assert_carries(whole, *found)
    assert "so far" not in whole


def test_seeds_are_paired_by_their_number():
    assert paired({43: 2.0, 37: 1.0}, {37: 0.5, 13: 9.0}) == paired({37: 1.0}, {37: 0.5})
    assert paired({43: 1.0}, {37: 1.0}) is None
    one = paired({43: 1.0}, {43: 0.5})
    assert (one.mean, one.interval, one.p_value, one.num_pairs) == (0.5, None, None, 1)
    same = paired({43: 1.0, 37: 2.0}, {43: 0.5, 37: 1.5})
    assert (same.interval, same.p_value) == (0.0, None)
    told = verdict_text(same.mean, same.interval, num_seeds=2)
    assert_carries(told, "+0.50 points", "2 seeds", "no test")


def test_a_table_tells_what_was_found_where_it_was_best_and_what_the_paper_has(tmp_path):
    findings = trained(tmp_path, CAL | CAL_BETTER | TB | TB_INCOMPLETE)
    table = accuracy_table(findings, seconds="balancing")
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert [str(rows[0][name]) for name in ("data", "network", "method", "seeds", "setting")] == [
        "digits", "MLP", "CAL", "3 of 3", "lr 0.1 (best of 2, at the end of the rates)",
    ]  # fmt: skip
    assert rows[0]["accuracy, %"] == Number(92.5, 0.5)
    assert str(rows[1]["paper, %"]) == "95.60 ± 0.10 (CIFAR-10)"
    assert rows[1]["setting"] == "lr 0.05 (best of 2 so far, at the end of the rates)"
    assert rows[0]["difference"] is None  # the paper's number is of other data
    assert str(rows[1]["against CAL"]) == "+0.83 ± 0.72"
    assert str(rows[1]["seconds a balancing"]) == "0.500"
    assert rows[0]["against CAL"] is None
    assert findings.subtitle == (
        "preset laptop: digits, 1,438 + 359 images; width 1; 12 epochs; seeds 43, 37, 13; 10 of 12 runs complete"
    )


def test_a_study_without_a_run_has_an_empty_table(tmp_path):
    findings = trained(tmp_path, {})
    table = accuracy_table(findings)
    assert [row[3] for row in table.rows] == [None, None]
    assert [row[5] for row in table.rows] == ["0 of 3", "0 of 3"]
    assert findings.verdicts == []
    assert findings.num_runs == (0, 12)


def test_the_last_epoch_counts_and_the_best_stands_beside_it(tmp_path):
    findings = trained(tmp_path, CAL)
    for seed in SEEDS:
        run = RunFolder(tmp_path / points(PRESET)[0].recipe(seed).id)
        run.write_result({"test_accuracy": 90.0, "best_accuracy": 91.5, "best_epoch": 7, "seconds": 60.0})
    table = accuracy_table(STUDY.find(PRESET, points(PRESET), tmp_path))
    assert table.columns[3:5] == [findings.measure.title, "best epoch"]
    assert [each.value for each in table.rows[0][3:5]] == [90.0, 91.5]
    assert "after the last epoch" in table.caption
    assert "best epoch: the best of all" in table.caption


def test_columns_are_the_same_from_the_first_run_to_the_last(tmp_path):
    empty = to_csv(accuracy_table(trained(tmp_path, {}))).splitlines()[0]
    assert empty == to_csv(accuracy_table(trained(tmp_path, CAL | CAL_BETTER | TB))).splitlines()[0]
    assert '"paper, %","paper, % ±","paper, % of"' in empty


@pytest.mark.parametrize("content", ["", "{", "{}", '{"test_accuracy": NaN}', '{"test_accuracy": true}', "[]"])
def test_a_damaged_run_is_left_out_and_named(tmp_path, content):
    findings = trained(tmp_path, CAL | CAL_BETTER | TB)
    damaged = next(iter(findings.cells[0].best.runs.values())).path
    (damaged / "result.json").write_text(content)
    after = trained(tmp_path, {})
    assert after.num_runs == (8, 12)
    (told,) = after.notes
    assert str(damaged / "result.json") in told


def test_seconds_of_balancing_are_told_for_an_epoch_too():
    result = {"test_accuracy": 1.0, "balancing_seconds": 0.5, "balancing_seconds_std": 0.1, "num_balancings": 30}
    tried = Tried(points(PRESET)[0], {}, {43: {**result, "epochs": 10}})
    assert tried.seconds("balancing") == (0.5, 0.1)
    assert tried.seconds("balancing_an_epoch") == pytest.approx((1.5, 0.3))


def test_what_all_rows_share_stands_above_them_and_nothing_is_taken_for_markup():
    table = ResultTable("", ["data", "name"], [["digits", "[bold]a"], ["digits", "b"]])
    console = Console(file=io.StringIO(), width=40)
    console.print(to_rich(table))
    lines = console.file.getvalue().splitlines()
    assert lines[0].strip() == "data digits"
    assert any("[bold]a" in line for line in lines)
    assert not any("digits" in line for line in lines[1:])


def test_what_a_point_sets_is_told_once():
    point = Point({"method": "tb", "tail": "peak"}, {"lr": 0.1, "tail": "peak", "scale_range": (0.5, 1.5)})
    assert point.settings_text() == "lr 0.1, scale_range (0.5, 1.5), tail peak"
    assert point.settings_text(skip=point.cell) == "lr 0.1, scale_range (0.5, 1.5)"


TABLE = ResultTable(
    "Of 50 % & more.",
    ["name", "accuracy, %", "gain"],
    [["a_b", Number(78.9712, 0.291), None], ["c\\{}", Number(1 / 3), Number(-0.5, signed=True, note="(CIFAR-10)")]],
    spread=("accuracy, %",),
    noted=("gain",),
)


@pytest.mark.parametrize(
    ("p_value", "text"), [(0.5, "0.500"), (0.001, "0.001"), (0.00099, "< 0.001"), (0.0, "< 0.001")]
)
def test_small_p_values_are_bounds_except_in_csv(p_value, text):
    table = ResultTable("", ["p"], [[Number(p_value, digits=3, least=0.001)]])
    assert str(table.rows[0][0]) == text
    assert f"${text}$" in to_latex(table, "", label="")
    assert to_csv(table) == f"p\n{p_value!r}\n"


def test_the_p_value_of_a_table_is_that_of_the_paired_test(tmp_path):
    sure = {("tb", 0.05, seed): 93.0 + i / 2 + i / 1e5 for i, seed in enumerate(SEEDS)}
    table = accuracy_table(trained(tmp_path, CAL | CAL_BETTER | sure))
    entry = table.rows[1][table.columns.index("p")]
    expected = ttest_rel([sure["tb", 0.05, seed] for seed in SEEDS], [CAL_BETTER["cal", 0.1, seed] for seed in SEEDS])
    assert entry.value == pytest.approx(expected.pvalue, rel=1e-6)
    assert str(entry) == "< 0.001"


def test_csv_has_all_digits_and_a_column_for_each_number():
    rows = list(csv.reader(io.StringIO(to_csv(TABLE, study="main", preset="laptop"))))
    assert rows == [
        ["study", "preset", "name", "accuracy, %", "accuracy, % ±", "gain", "gain of"],
        ["main", "laptop", "a_b", "78.9712", "0.291", "", ""],
        ["main", "laptop", "c\\{}", repr(1 / 3), "", "-0.5", "CIFAR-10"],
    ]


def test_latex_escapes_what_it_must():
    assert to_latex(TABLE, "preset laptop: own_data", label="main-laptop").splitlines() == [
        r"\begin{table}",
        r"\centering",
        r"\caption{preset laptop: own\_data. Of 50 \% \& more.}",
        r"\label{tab:main-laptop}",
        r"\begin{tabular}{lrr}",
        r"name & accuracy, \% & gain \\ \hline",
        r"a\_b & $78.97 \pm 0.29$ &  \\",
        r"c\textbackslash{}\{\} & $0.33$ & $-0.50$ (CIFAR-10) \\",
        r"\end{tabular}",
        r"\end{table}",
    ]


def test_a_terminal_shows_numbers_with_their_spread():
    console = Console(width=100, record=True, quiet=True)
    with console.capture() as capture:
        console.quiet = False
        console.print(to_rich(TABLE))
    assert "78.97 ± 0.29" in capture.get()
    assert "-0.50 (CIFAR-10)" in capture.get()
