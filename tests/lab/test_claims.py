"""The paper's claims: tests seed by seed, corrected for their number, and the verdicts that follow."""

import pytest
from scipy.stats import ttest_rel

from tempbalance.lab.claims import Claim, judge_claims
from tempbalance.lab.findings import Findings, find_cells
from tempbalance.lab.paper.statements import paper_statements
from tempbalance.lab.points import PRESETS
from tempbalance.lab.study import all_studies, claims_report, find_study
from tempbalance.report.statistics import holm
from tempbalance.runlog import RunFolder
from tests.cases import assert_carries

LAPTOP = PRESETS["laptop"]
STUDY = find_study("assignment")
BEST = Claim("linear_is_best", "assignment", "linear")
NOISE = {43: 0.0, 37: 0.3, 13: 0.7}


def found(folder, accuracies) -> Findings:
    """Findings of runs of ResNet18 with these accuracies by assignment and seed."""
    points = STUDY.choose(LAPTOP, {"model": ["resnet18"]})
    for point in points:
        for seed, accuracy in accuracies.get(point.cell["assignment"], {}).items():
            result = {"test_accuracy": accuracy, "best_accuracy": accuracy, "best_epoch": 1, "seconds": 1.0}
            RunFolder(folder / point.recipe(seed).id).write_result(result)
    return STUDY.find(LAPTOP, points, folder)


def around(mean, factor=1.0):
    return {seed: mean + factor * each for seed, each in NOISE.items()}


def test_holm_multiplies_the_smallest_by_their_number_and_never_falls():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.4, None, 0.9]) == [0.8, None, 0.9]
    assert holm([]) == []


def test_a_claim_holds_if_every_test_is_in_favour_with_a_small_corrected_p(tmp_path):
    others = {"sqrt": around(85, 1.1), "log2": around(80, 1.2), "step": around(70, 1.3)}
    (tested,) = judge_claims([BEST], found(tmp_path, {"linear": around(90), **others}))
    assert (tested.verdict, tested.num_runs, len(tested.tests)) == ("holds", 12, 3)
    plain = [ttest_rel(list(around(90).values()), list(each.values())).pvalue for each in others.values()]
    assert tested.p_values == pytest.approx(holm(plain))
    assert [tested.row[place] for place in (0, 2, 3)] == ["holds", "3 of 3", "0"]


def test_one_test_against_it_is_enough_for_a_claim_not_to_hold(tmp_path):
    outcomes = {"linear": around(90), "sqrt": around(95, 1.1), "log2": around(80, 1.2), "step": around(70, 1.3)}
    (tested,) = judge_claims([BEST], found(tmp_path, outcomes))
    assert [tested.row[place] for place in (0, 2, 3)] == ["does not hold", "2 of 3", "1"]
    assert tested.row[4].value == tested.p_values[0]


@pytest.mark.parametrize(
    "outcomes",
    [
        {},
        {"linear": around(90)},
        {"linear": {43: 90.0}, "sqrt": {43: 80.0}, "log2": {43: 80.0}, "step": {43: 80.0}},
        {"linear": around(90), "sqrt": around(90, -1.0), "log2": around(80, 1.1), "step": around(80, 1.2)},
        {
            "linear": around(90),
            "sqrt": around(80),
            "log2": around(80),
            "step": around(80),
        },  # equal differences: no test
    ],
    ids=["no run", "no other", "one seed", "noise", "no spread"],
)
def test_a_claim_is_undecided_as_long_as_a_test_is(outcomes, tmp_path):
    (tested,) = judge_claims([BEST], found(tmp_path, outcomes))
    assert tested.verdict == "undecided"
    assert tested.num_runs == sum(map(len, outcomes.values()))


def test_p_values_are_corrected_for_all_claims_of_a_study(tmp_path):
    findings = found(tmp_path, {"linear": around(90), "sqrt": around(85, 1.1), "log2": around(80, 1.2)})
    alone, two = Claim("linear_is_best", "assignment", "linear", ("sqrt",)), ("sqrt", "log2")
    (only,) = judge_claims([alone], findings)
    first, _ = judge_claims([alone, Claim("linear_is_best", "assignment", "linear", two)], findings)
    assert first.p_values[0] == pytest.approx(3 * only.p_values[0])


def test_a_number_of_runs_can_be_claimed_to_be_smaller(tmp_path):
    outcomes = {"linear": around(10), "sqrt": around(20, 1.1), "log2": around(30, 1.2), "step": around(40, 1.3)}
    smaller = Claim("linear_is_best", "assignment", "linear", value=lambda run: run.result["test_accuracy"])
    findings = found(tmp_path, outcomes)
    assert [each.verdict for each in judge_claims([BEST], findings)] == ["does not hold"]
    assert [each.verdict for each in judge_claims([smaller], findings)] == ["holds"]


def test_every_claim_is_a_statement_of_the_paper_about_cells_of_its_study(tmp_path):
    claims = {}
    for study in all_studies().values():
        if study.claims:
            cells = find_cells(study.points(PRESETS["paper"]), (43,), tmp_path)
            findings = Findings(study.name, PRESETS["paper"], (43,), study.reference, cells)
            for claim in study.claims:
                assert claim.statement in paper_statements()
                claims[claim.statement] = [
                    (ours.labels["dataset"], ours.labels["model"]) for ours, _ in claim.pairs(findings)
                ]
    assert len(claims) == 14
    assert len(claims["tb_beats_cal"]) == 12
    assert len(claims["tb_snr_is_best"]) == 36
    assert set(claims["tb_beats_cal"]) - set(claims["tb_beats_snr"]) == {
        ("cifar100", "vgg19"),
        ("cifar100", "resnet34"),
    }
    assert all(claims.values())


def test_a_report_has_its_claims_and_one_page_has_all(tmp_path):
    outcomes = {"linear": around(90), "sqrt": around(85, 1.1), "log2": around(80, 1.2), "step": around(70, 1.3)}
    report = STUDY.report(found(tmp_path, outcomes))
    _, table = report.tables
    assert [row[:2] for row in table.rows] == [["holds", "The linear assignment does better than sqrt, log2 and step."]]
    assert_carries(table.caption, "Holm", "0.05", "other data")
    every = claims_report(LAPTOP, tmp_path)
    names = [row[0] for row in every.tables[0].rows]
    assert names == sorted(names)
    assert len(names) == sum(len(study.claims) for study in all_studies().values())
    assert any("ResNet101" in note for note in every.notes)
