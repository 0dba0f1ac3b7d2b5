"""The paper's claims: each form with made-up runs whose verdict is known, and every claim of the text."""

from math import atanh

import pytest
from scipy.stats import ttest_1samp, ttest_rel

from tempbalance.lab.claims import Better, Bounded, Correlated, Equivalent, Order, claims_table, judge_claims
from tempbalance.lab.findings import Findings, find_cells
from tempbalance.lab.paper import paper_statements
from tempbalance.lab.points import PRESETS
from tempbalance.lab.recipe import SEEDS
from tempbalance.lab.study import all_studies, claims_report, find_study
from tempbalance.report.statistics import holm
from tempbalance.report.tables import folded
from tempbalance.runlog import RunFolder
from tests.cases import assert_carries

LAPTOP = PRESETS["laptop"]
STUDY = find_study("assignment")
OTHERS = ("sqrt", "log2", "step")


def better(than=OTHERS, **options):
    return Better(says="linear_is_best", label="assignment", best="linear", than=than, **options)


BEST = better()
NOISE = dict(zip(SEEDS, (0.0, 0.3, 0.7, 0.1, 0.5), strict=True))
THREE = SEEDS[:3]


def found(folder, accuracies, **numbers) -> Findings:
    """Findings of runs of ResNet18 with these accuracies by assignment and seed, and more numbers in each result."""
    points = STUDY.choose(LAPTOP, {"model": ["resnet18"]})
    for point in points:
        for seed, accuracy in accuracies.get(point.cell["assignment"], {}).items():
            result = {"test_accuracy": accuracy, "best_accuracy": accuracy, "best_epoch": 1, "seconds": 1.0, **numbers}
            RunFolder(folder / point.recipe(seed).id).write_result(result)
    cells = find_cells(points, SEEDS, folder)
    return Findings("assignment", LAPTOP, SEEDS, STUDY.reference, cells)


def around(mean, factor=1.0, seeds=THREE):
    return {seed: mean + factor * NOISE[seed] for seed in seeds}


def accuracy(run):
    return run.result["test_accuracy"]


def judged(claim, findings):
    (tested,) = judge_claims([claim], findings)
    return tested


def test_holm_multiplies_the_smallest_by_their_number_and_never_falls():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.4, None, 0.9]) == [0.8, None, 0.9]
    assert holm([]) == []


def test_better_holds_if_every_test_is_in_favour_with_a_small_corrected_p(tmp_path):
    others = {"sqrt": around(85, 1.1), "log2": around(80, 1.2), "step": around(70, 1.3)}
    tested = judged(BEST, found(tmp_path, {"linear": around(90), **others}))
    assert (tested.verdict, tested.num_runs, len(tested.tests)) == ("holds", 12, 3)
    plain = [ttest_rel(list(around(90).values()), list(each.values())).pvalue for each in others.values()]
    assert tested.p_values == pytest.approx(holm(plain))
    assert [tested.row[place] for place in (0, 3)] == ["holds", "3 of 3"]


def test_one_test_against_it_is_enough_for_better_not_to_hold(tmp_path):
    outcomes = {"linear": around(90), "sqrt": around(95, 1.1), "log2": around(80, 1.2), "step": around(70, 1.3)}
    tested = judged(BEST, found(tmp_path, outcomes))
    assert [tested.row[place] for place in (0, 3)] == ["does not hold", "2 of 3, 1 against"]
    assert tested.row[4].value == tested.p_values[0]


@pytest.mark.parametrize(
    "outcomes",
    [
        {},
        {"linear": around(90)},
        {"linear": {43: 90.0}, "sqrt": {43: 80.0}, "log2": {43: 80.0}, "step": {43: 80.0}},
        {"linear": around(90), "sqrt": around(90, -1.0), "log2": around(80, 1.1), "step": around(80, 1.2)},
        {"linear": around(90), **dict.fromkeys(OTHERS, around(80))},
    ],
    ids=["no run", "no other", "one seed", "noise", "equal differences"],
)
def test_better_is_undecided_as_long_as_a_test_is(outcomes, tmp_path):
    tested = judged(BEST, found(tmp_path, outcomes))
    assert tested.verdict == "undecided"
    assert tested.num_runs == sum(map(len, outcomes.values()))


def test_p_values_are_corrected_for_all_claims_of_a_study(tmp_path):
    findings = found(tmp_path, {"linear": around(90), "sqrt": around(85, 1.1), "log2": around(80, 1.2)})
    alone, two = better(("sqrt",)), better(("sqrt", "log2"))
    only = judged(alone, findings)
    first, _ = judge_claims([alone, two], findings)
    assert first.p_values[0] == pytest.approx(3 * only.p_values[0])


def test_better_takes_a_number_of_runs_that_is_claimed_to_be_smaller(tmp_path):
    outcomes = {"linear": around(10), "sqrt": around(20, 1.1), "log2": around(30, 1.2), "step": around(40, 1.3)}
    smaller = better(value=accuracy)
    findings = found(tmp_path, outcomes)
    assert judged(BEST, findings).verdict == "does not hold"
    assert judged(smaller, findings).verdict == "holds"


def same(**options):
    named = {"label": "assignment", "best": "linear", "than": ("sqrt",)}
    return Equivalent(says="late_start_changes_nothing", margin=1.0, **named, **options)


@pytest.mark.parametrize(
    ("other", "verdict"),
    [
        (around(90.1, 1.1, SEEDS), "holds"),  # differences of 0.10 to 0.17
        (around(92, 1.1, SEEDS), "does not hold"),  # of 2.00 to 2.07
        (around(87.5, 0.9, SEEDS), "does not hold"),
        (around(91, 1.1, SEEDS), "undecided"),  # at the margin
        (around(90, -3.0, SEEDS), "undecided"),  # a small mean with a large spread
        (around(90, 1.1, SEEDS[:1]), "undecided"),
    ],
)
def test_equivalent_cells_differ_by_less_than_a_margin(tmp_path, other, verdict):
    tested = judged(same(), found(tmp_path, {"linear": around(90, 1.0, SEEDS), "sqrt": other}))
    assert tested.verdict == verdict
    assert_carries(tested.claim.text, "1 points")


def test_the_p_value_of_equivalence_is_the_larger_of_two_one_sided_tests(tmp_path):
    ours, theirs = around(90, 1.0, SEEDS), around(90.2, 1.4, SEEDS)
    tested = judged(same(), found(tmp_path, {"linear": ours, "sqrt": theirs}))
    differences = [ours[seed] - theirs[seed] for seed in SEEDS]
    one_sided = (
        ttest_1samp(differences, -1.0, alternative="greater").pvalue,
        ttest_1samp(differences, 1.0, alternative="less").pvalue,
    )
    assert tested.p_values[0] == pytest.approx(max(one_sided))


def test_gains_over_another_cell_are_compared_seed_by_seed(tmp_path):
    minus_step = same(minus={"assignment": "step"})
    # Both cells lie far apart, and the cell that is subtracted is the same: the gains are as far apart.
    outcomes = {"linear": around(90, 1.0, SEEDS), "sqrt": around(90.1, 1.1, SEEDS), "step": around(50, 5.0, SEEDS)}
    findings = found(tmp_path, outcomes)
    (linear,) = [cell for cell in findings.cells if cell.labels["assignment"] == "linear"]
    gains = minus_step.values(linear, findings)
    assert gains == pytest.approx({seed: 40 - 4 * NOISE[seed] for seed in SEEDS})
    assert judged(minus_step, findings).verdict == "holds"


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        (around(8, 0.5), "holds"),
        (around(11, 0.5), "does not hold"),
        (around(9.7, 1.0), "undecided"),
        ({43: 1.0}, "undecided"),
        ({}, "undecided"),
    ],
)
def test_bounded_values_are_below_a_limit(tmp_path, values, verdict):
    where = {"assignment": "linear"}
    findings = found(tmp_path, {"linear": values})
    assert judged(Bounded(says="overhead_limit", limit=10.0, value=accuracy, where=where), findings).verdict == verdict
    opposite = {"holds": "does not hold", "does not hold": "holds", "undecided": "undecided"}
    above = Bounded(says="overhead_limit", limit=10.0, is_above=True, value=accuracy, where=where)
    assert judged(above, findings).verdict == opposite[verdict]


def ordered(then):
    return Order(says="explosion_iterations", first=accuracy, then=lambda run: then, where={"assignment": "linear"})


@pytest.mark.parametrize(
    ("steps", "verdict"),
    [
        (around(60, 30, SEEDS), "holds"),
        (around(400, 30, SEEDS), "does not hold"),
        (around(195, 20, SEEDS), "undecided"),
        (dict.fromkeys(SEEDS, 30.0), "holds"),  # five of five: 1 / 32
        (dict.fromkeys(SEEDS, 300.0), "does not hold"),
        (dict.fromkeys(SEEDS[:4], 30.0), "undecided"),  # four of four: 1 / 16
        ({}, "undecided"),
    ],
)
def test_order_has_one_event_before_another_in_every_run(tmp_path, steps, verdict):
    assert judged(ordered(200.0), found(tmp_path, {"linear": steps})).verdict == verdict


def test_a_run_without_the_first_event_says_nothing_about_the_order(tmp_path):
    findings = found(tmp_path, {"linear": dict.fromkeys(SEEDS, 30.0)})
    never = Order(says="explosion_iterations", first=lambda run: None, then=lambda run: 200.0)
    assert (judged(never, findings).verdict, judged(never, findings).num_runs) == ("undecided", 0)


def line_of(slope):
    """Pairs on a line, and one that the run moves off it."""
    return lambda run: [*((x, slope * x) for x in range(6)), (6.0, 6 * slope + accuracy(run))]


@pytest.mark.parametrize(
    ("pairs", "verdict"),
    [
        (line_of(10.0), "holds"),
        (line_of(-10.0), "does not hold"),
        (lambda run: [(0.0, 0.0), (1.0, 1.0 if accuracy(run) > 0.4 else -1.0), (2.0, 0.0), (3.0, 0.1)], "undecided"),
        (lambda run: [(x, 2.0 * x) for x in range(6)], "holds"),  # the same in five runs: 1 / 32
        (lambda run: [(0.0, 0.0), (1.0, 1.0)], "undecided"),  # two points
        (lambda run: [(x, 1.0) for x in range(6)], "undecided"),  # one value
    ],
)
def test_correlated_numbers_have_the_claimed_sign(tmp_path, pairs, verdict):
    findings = found(tmp_path, {"linear": around(0.0, 1.0, SEEDS)})
    assert judged(Correlated(says="exponents_correlate", pairs=pairs), findings).verdict == verdict
    opposite = {"holds": "does not hold", "does not hold": "holds", "undecided": "undecided"}
    negative = Correlated(says="exponents_correlate", pairs=pairs, is_positive=False)
    assert judged(negative, findings).verdict == opposite[verdict]


def test_the_p_value_of_a_correlation_is_of_fishers_z(tmp_path):
    findings = found(tmp_path, {"linear": around(1.0, 1.0, SEEDS)})
    three = lambda run: [(0.0, 0.0), (1.0, accuracy(run)), (2.0, 1.0)]  # noqa: E731
    tested = judged(Correlated(says="exponents_correlate", pairs=three), findings)
    # of (0, 0), (1, y), (2, 1): covariance 1, variances 2 and 2 (y^2 - y + 1) / 3
    r = [1 / (2 * 2 / 3 * (y * y - y + 1)) ** 0.5 for y in around(1.0, 1.0, SEEDS).values()]
    assert tested.p_values[0] == pytest.approx(ttest_1samp([atanh(each) for each in r], 0).pvalue)


def test_computed_pairs_need_no_run(tmp_path):
    falls = Correlated(says="alpha_follows_s", computed=lambda: [(x, -x) for x in range(8)], is_positive=False)
    assert judged(falls, found(tmp_path, {})).verdict == "holds"
    rises = Correlated(says="alpha_follows_s", computed=lambda: [(x, -x) for x in range(8)])
    assert judged(rises, found(tmp_path, {})).verdict == "does not hold"
    few = Correlated(says="alpha_follows_s", computed=lambda: [(0, 0), (1, 1), (2, 0.5), (3, 0.7)])
    assert judged(few, found(tmp_path, {})).verdict == "undecided"


def test_every_claim_of_the_text_is_tested_by_a_study_or_says_why_not():
    claims = {name for name, each in paper_statements().items() if each.is_claim}
    untested = {name for name, each in paper_statements().items() if each.untested}
    tested = {claim.says for study in all_studies().values() for claim in study.claims}
    assert tested | untested == claims
    assert not tested & untested
    assert all(each.is_claim for each in paper_statements().values() if each.value is None)


def test_every_claim_has_tests_in_the_papers_preset(tmp_path):
    places, claims = {}, [(study, claim) for study in all_studies().values() for claim in study.claims]
    for study, claim in claims:
        cells = find_cells(study.points(PRESETS["paper"]), (43,), tmp_path)
        findings = Findings(study.name, PRESETS["paper"], (43,), study.reference, cells)
        assert claim.tests(findings), claim
        if isinstance(claim, Better):
            places[claim.says] = [(ours.labels["dataset"], ours.labels["model"]) for ours, _ in claim.pairs(findings)]
    assert len(places["tb_beats_cal"]) == 12
    assert len(places["tb_snr_is_best"]) == 36
    assert set(places["tb_beats_cal"]) - set(places["tb_beats_snr"]) == {
        ("cifar100", "vgg19"),
        ("cifar100", "resnet34"),
    }


def test_a_report_has_its_claims_and_one_page_has_all(tmp_path):
    outcomes = {"linear": around(90), "sqrt": around(85, 1.1), "log2": around(80, 1.2), "step": around(70, 1.3)}
    report = STUDY.report(found(tmp_path, outcomes))
    _, table = report.tables
    assert [row[:2] for row in table.rows] == [["holds", "The linear assignment does better than sqrt, log2 and step."]]
    assert_carries(table.caption, "Holm", "0.05", "other data")
    assert (
        folded(claims_table([each.row for each in judge_claims([BEST] * 2, found(tmp_path, {}))], is_paper=True))[0]
        == ""
    )
    every = claims_report(LAPTOP, tmp_path)
    names = [row[0] for row in every.tables[0].rows]
    assert names == sorted(names)
    assert len(names) == sum(len(study.claims) for study in all_studies().values())
    assert any("Not tested: Alpha correlates" in note for note in every.notes)
    num_undecided = sum(row[1] == "undecided" for row in every.tables[0].rows)
    num_holding = len(names) - num_undecided  # of the study that trains nothing
    assert num_holding > 1
    assert {*every.notes[0].removesuffix(".").split("; ")} == {f"{num_undecided} undecided", f"{num_holding} hold"}


def logged(folder, name, lines):
    """Verdicts of a study of the first epochs whose runs have logged these numbers in three epochs."""
    study, point = find_study(name), find_study(name).points(LAPTOP)[0]
    for noise, seed in enumerate(SEEDS):
        recipe = point.recipe(seed)
        run = RunFolder(folder / recipe.id)
        run.write_recipe({"recipe": {"log_steps": recipe.log_steps}})
        place = {"layer": "layer4.0.conv2"}
        run.append(steps=[{**place, "epoch": step // 11 + 1, "step": step, **lines(step, noise)} for step in range(33)])
        run.write_result({"test_accuracy": 1.0, "best_accuracy": 1.0, "best_epoch": 1, "seconds": 1.0})
    return {claim.says: judged(claim, study.find(LAPTOP, [point], folder)).verdict for claim in study.claims}


def test_gradients_that_explode_at_first_do_so_within_200_iterations(tmp_path):
    """A step of the laptop stands for about 30 of the paper's iterations."""
    verdicts = logged(
        tmp_path / "a", "gradients", lambda step, noise: {"gradient_norm": 9.0 if step == 1 else 1 + noise / 9}
    )
    assert (verdicts["explosion_iterations"], verdicts["explosion_peak"]) == ("holds", "holds")
    late = logged(
        tmp_path / "b", "gradients", lambda step, noise: {"gradient_norm": 9.0 if step == 20 else 1 + step / 99}
    )
    assert (late["explosion_iterations"], late["explosion_peak"]) == ("does not hold", "does not hold")


def test_spikes_of_the_first_epoch_are_told_from_later_ones(tmp_path):
    bulk = [1 + place / 100 for place in range(100)]
    early = logged(
        tmp_path / "a", "rank_one", lambda step, noise: {"eigenvalues": [*bulk, 90 - step + noise], "gradient_norm": 1}
    )
    assert set(early.values()) == {"holds"}
    late = logged(
        tmp_path / "b", "rank_one", lambda step, noise: {"eigenvalues": [*bulk, 9 + step + noise], "gradient_norm": 1}
    )
    assert set(late.values()) == {"does not hold"}
