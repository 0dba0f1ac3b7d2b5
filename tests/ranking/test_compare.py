"""Scores to scales: groups, error bars, averages over time, mean scales, several targets."""

import math
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tempbalance.errors import ScoreError
from tempbalance.optim.state import Options
from tempbalance.ranking.assign import assign
from tempbalance.ranking.compare import check_group_by, score_error, shrunk, unit_of
from tempbalance.ranking.table import LayerRow, PartRow
from tests.cases import nested, raises


def row(name, score, *, error=0.1, shape=(64, 64), alpha=None):
    alpha = score if alpha is None else alpha
    return LayerRow(name, shape, 64, alpha=alpha, alpha_stderr=error, score=score)


ROWS = [row("h.0.q", 2.0), row("h.0.o", 4.0), row("h.1.q", 5.0), row("h.1.o", 3.0), row("head", 6.0), LayerRow("norm")]
SCORES = {each.name: each.score for each in ROWS if each.score is not None}


def scaling(**options):
    return Options(**nested(options)).scaling


def scales_of(comparing, rows=ROWS, earlier=()):
    return {each.name: each.scale for each in comparing.compared(rows, earlier) if each.score is not None}


def test_by_default_scales_are_those_of_the_assignment_to_the_bit_and_rows_are_compared_by_their_score():
    rows = scaling().compared(ROWS)
    assert {each.name: each.scale for each in rows[:-1]} == assign(SCORES)
    assert {each.name: each.compared for each in rows[:-1]} == SCORES
    assert (rows[-1].compared, rows[-1].scale, rows[-1].scales) == (None, 1.0, {})
    assert all(each.scales == {} for each in rows)


def literal_shrunk(scores, errors):
    """The docstring's formula, term by term."""
    number, mean = len(scores), sum(scores) / len(scores)
    spread = sum((score - mean) ** 2 for score in scores) / (number - 1) - sum(each**2 for each in errors) / number
    spread = max(0.0, spread)
    weights = [1 / (spread + error**2) for error in errors]
    center = sum(map(float.__mul__, weights, scores)) / sum(weights)
    return [
        center + spread / (spread + error**2) * (score - center) for score, error in zip(scores, errors, strict=True)
    ]


@given(st.lists(st.tuples(st.floats(1, 20), st.floats(0.01, 5)), min_size=2, max_size=12))
def test_shrinking_is_its_formula_and_never_takes_a_score_past_the_others(pairs):
    scores, errors = ([*each] for each in zip(*pairs, strict=True))
    drawn = shrunk(scores, errors)
    assert drawn == pytest.approx(literal_shrunk(scores, errors), rel=1e-9, abs=1e-9)
    slack = 1e-9 * max(scores)
    assert min(scores) - slack <= min(drawn) <= max(drawn) <= max(scores) + slack


@given(st.lists(st.tuples(st.floats(-1e308, 1e308), st.floats(0, 1e308)), max_size=6))
def test_what_is_shrunk_is_finite_whatever_the_numbers(pairs):
    scores, errors = [score for score, _ in pairs], [error for _, error in pairs]
    assert all(map(math.isfinite, shrunk(scores, errors)))


def test_scores_that_differ_by_no_more_than_their_errors_become_equal_and_scales_1():
    rows = [row(name, score, error=2.0) for name, score in SCORES.items()]
    assert set(scales_of(scaling(shrink=True), rows).values()) == {1.0}


def test_without_errors_nothing_is_shrunk_and_one_layer_alone_stays():
    assert shrunk([2.0, 3.0, 9.0], [0.0, 0.0, 0.0]) == [2.0, 3.0, 9.0]
    assert shrunk([2.0], [5.0]) == [2.0]
    assert shrunk([], []) == []


def test_a_noisy_layer_no_longer_sets_the_range_for_all_others():
    rows = [row("a", 2.0), row("b", 3.0), row("noisy", 12.0, error=9.0)]
    plain, drawn = scales_of(scaling(), rows), scales_of(scaling(shrink=True), rows)
    assert plain["b"] == pytest.approx(0.6)
    assert drawn["b"] > 0.9


def test_the_error_of_a_score_is_alphas_over_the_same_constant_and_parts_count_in_quadrature():
    assert score_error(row("a", 1.5, error=0.3, alpha=3.0)) == pytest.approx(0.15)
    parts = (
        PartRow("q", 64, alpha=4.0, alpha_stderr=0.4, score=2.0),
        PartRow("k", 64, alpha=3.0, alpha_stderr=0.3, score=3.0),
        PartRow("v", 8, reason="too small"),
    )
    whole = LayerRow("qkv", (192, 64), 136, alpha=3.5, alpha_stderr=0.25, score=2.5, parts=parts)
    assert score_error(whole) == pytest.approx(math.hypot(0.2, 0.3) / 2)


@pytest.mark.parametrize("assignment", ["linear", "sqrt", "log2", "step", "sigmoid", "power"])
def test_kept_means_are_1_whatever_the_assignment(assignment):
    comparing = scaling(assignment=assignment, keep_mean=True)
    scales = scales_of(comparing)
    assert sum(scales.values()) / len(scales) == pytest.approx(1, rel=1e-12)
    plain = assign(SCORES, assignment=assignment)
    ratios = [scales[name] / plain[name] for name in scales]
    assert ratios == pytest.approx([ratios[0]] * len(ratios))


def test_the_mean_may_count_each_layer_as_often_as_it_has_parameters():
    rows = [row("small", 2.0, shape=(64, 64)), row("large", 4.0, shape=(64, 64, 3, 3))]
    scales = scales_of(scaling(keep_mean="parameters"), rows)
    assert (scales["small"] + 9 * scales["large"]) / 10 == pytest.approx(1)
    assert scales["large"] == pytest.approx(3 * scales["small"])


def test_a_mean_of_0_cannot_be_kept():
    comparing = scaling(assignment=lambda scores, _: dict.fromkeys(scores, 0.0), keep_mean=True)
    with raises(ScoreError, "keep_mean", 0):
        comparing.compared(ROWS)


BLOCKS = {"h.0.q": 3.0, "h.0.o": 3.0, "h.1.q": 4.0, "h.1.o": 4.0, "head": 6.0}


@pytest.mark.parametrize(
    "group_by", ["h.*", "[gh].?", lambda name: name[:3] if name.startswith("h.") else None], ids=["*", "?", "function"]
)
def test_layers_of_a_group_get_the_scale_of_their_mean_score(group_by):
    rows = scaling(group_by=group_by).compared(ROWS)
    assert {each.name: each.compared for each in rows[:-1]} == BLOCKS
    blocks = assign({"h.0": 3.0, "h.1": 4.0, "head": 6.0})
    assert {each.name: each.scale for each in rows[:-1]} == {name: blocks.get(name[:3], 1.5) for name in BLOCKS}


def test_a_pattern_is_of_whole_words_at_the_front_of_a_name():
    names = ["model.layers.0.mlp.up", "model.layers.10.mlp.up", "model.layers", "layers.0.mlp"]
    assert [unit_of(name, "model.layers.*") for name in names] == [
        "model.layers.0", "model.layers.10", "model.layers", "layers.0.mlp",
    ]  # fmt: skip


def test_a_pattern_that_puts_nothing_together_is_refused():
    with raises(ValueError, "group_by", "'blocks.*'", "'h.0'"):
        check_group_by("blocks.*", ["h.0"])


def test_a_group_must_be_a_name_or_none():
    with raises(ScoreError, "'h.0.q'", "group_by", 3):
        scaling(group_by=lambda _: 3).compared(ROWS)


def test_scores_are_averaged_over_time_and_a_layer_that_is_new_begins_with_its_own():
    comparing = scaling(smooth=0.9)
    first = comparing.compared(ROWS[1:])
    assert {each.name: each.compared for each in first[:-1]} == {
        name: SCORES[name] for name in SCORES if name != "h.0.q"
    }
    later = [row(name, score + 10) for name, score in SCORES.items()]
    second = comparing.compared(later, first)
    expected = {name: score + (10 if name == "h.0.q" else 1) for name, score in SCORES.items()}
    assert {each.name: each.compared for each in second} == pytest.approx(expected)
    assert {each.name: each.score for each in second} == {name: score + 10 for name, score in SCORES.items()}


def test_each_target_has_its_own_range_and_direction():
    comparing = scaling(balance={"lr": (0.5, 1.5), "weight_decay": (3.0, 1.0), "eps": (1.0, 2.0)})
    rows = comparing.compared(ROWS)[:-1]
    assert {each.name: each.scale for each in rows} == assign(SCORES)
    assert {each.name: each.scales["weight_decay"] for each in rows} == pytest.approx(
        {name: 3.5 - score / 2 + 0.5 for name, score in SCORES.items()}
    )
    assert rows[0].scales["eps"] == 1.0
    assert rows[4].scales["eps"] == 2.0


def test_without_lr_among_the_targets_rates_are_left_alone():
    rows = scaling(balance={"weight_decay": (0.5, 2.0)}).compared(ROWS)
    assert {each.scale for each in rows} == {1.0}
    assert [each.scales for each in rows[:-1]] != [{}] * 5


def test_all_options_together_give_finite_scales_with_mean_1():
    comparing = scaling(
        assignment="power", keep_mean=True, shrink=True, smooth=0.5, group_by="h.*",
        balance={"lr": (0.1, 2.0), "weight_decay": (2.0, 0.1)},
    )  # fmt: skip
    rows = comparing.compared(comparing.compared(ROWS), comparing.compared(ROWS))[:-1]
    for scales in ([each.scale for each in rows], [each.scales["weight_decay"] for each in rows]):
        assert sum(scales) / 5 == pytest.approx(1)
        assert min(scales) > 0
    assert rows[0].scale == rows[1].scale < rows[4].scale
    assert rows[0].scales["weight_decay"] > rows[4].scales["weight_decay"]


def test_no_scored_layer_no_scale_whatever_the_options():
    for keep_mean, shrink, smooth in product((False, True, "parameters"), (False, True), (0.0, 0.9)):
        (only,) = scaling(keep_mean=keep_mean, shrink=shrink, smooth=smooth).compared([LayerRow("norm")])
        assert only.scale == 1.0


@pytest.mark.parametrize(
    ("options", "error", "carried"),
    [
        ({"keep_mean": "all"}, ValueError, ["keep_mean", "'all'"]),
        ({"keep_mean": 1}, ValueError, ["keep_mean", 1]),
        ({"shrink": "yes"}, TypeError, ["shrink", "'yes'"]),
        ({"smooth": 1.0}, ValueError, ["smooth", 1.0]),
        ({"smooth": -0.1}, ValueError, ["smooth", -0.1]),
        ({"smooth": math.nan}, ValueError, ["smooth", "nan"]),
        ({"smooth": True}, ValueError, ["smooth", True]),
        ({"group_by": ["h.*"]}, TypeError, ["group_by", ["h.*"]]),
        ({"balance": {}}, ValueError, ["balance", {}]),
        ({"balance": ["lr"]}, ValueError, ["balance", ["lr"]]),
        ({"balance": {"lr": (0.0, 1.0)}}, ValueError, ["balance['lr']", (0.0, 1.0)]),
        ({"balance": {"lr": (1.0, math.inf)}}, ValueError, ["balance['lr']", "inf"]),
        ({"balance": {"eps": (2.0, 1.0)}, "assignment": "sqrt"}, ValueError, ["balance['eps']", "'sqrt'", (2.0, 1.0)]),
        (
            {"balance": {"lr": (0.5, 1.0)}, "scale_range": (0.5, 2.0)},
            ValueError,
            ["scale_range", "balance", (0.5, 2.0)],
        ),
    ],
)
def test_options_out_of_range_are_refused(options, error, carried):
    with raises(error, *carried):
        scaling(**options)
