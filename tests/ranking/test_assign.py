import math
import os
import subprocess
import sys

import numpy as np
import pytest

from tempbalance.errors import ScoreError
from tempbalance.ranking.assign import assign, check_assignment
from tests.cases import raises

NAMES = ("linear", "sqrt", "log2", "step", "sigmoid", "power")
RANGES = ((0.5, 1.5), (0.1, 1.9), (0.9, 1.0), (1.0, 7.0))
SCORES = {"a": 2.0, "b": 3.5, "c": 2.5, "d": 6.0, "e": 4.0}


def literal(name: str, scores: list[float], low: float, high: float) -> list[float]:
    """Eq. 2, the three of the paper's appendix, the sigmoid of Liu et al. and a power, for scores that all differ."""
    if name == "linear":
        least, most = min(scores), max(scores)
        return [low + (score - least) / (most - least) * (high - low) for score in scores]
    if name == "sqrt":
        return [math.sqrt(score) / (sum(map(math.sqrt, scores)) / len(scores)) for score in scores]
    if name == "log2":
        return [math.log2(score) / (sum(map(math.log2, scores)) / len(scores)) for score in scores]
    if name == "sigmoid":
        mean, strength = sum(scores) / len(scores), math.log10(high / low)
        return [10 ** (strength * (1 / (1 + math.exp(-10 * (score - mean))) - 1 / 2)) for score in scores]
    if name == "power":
        exponent = math.log(high / low) / math.log(max(scores) / min(scores))
        return [low * (score / min(scores)) ** exponent for score in scores]
    # the layer with the k-th minimum of L gets s1 + (k - 1) (s2 - s1) / (L - 1)
    return [low + sorted(scores).index(score) * (high - low) / (len(scores) - 1) for score in scores]


@pytest.mark.parametrize("name", NAMES)
def test_an_assignment_is_its_formula(name):
    for seed in range(20):
        scale_range = RANGES[seed % len(RANGES)]
        scores = (1 + np.random.RandomState(seed).pareto(1.5, 2 + seed)).tolist()
        layers = [f"layer {i}" for i in range(len(scores))]
        scales = assign(dict(zip(layers, scores, strict=True)), assignment=name, scale_range=scale_range)
        assert list(scales) == layers
        assert list(scales.values()) == pytest.approx(literal(name, scores, *scale_range), rel=1e-12)


def test_linear_within_a_half_and_one_and_a_half_is_the_default():
    assert assign(SCORES) == pytest.approx({"a": 0.5, "b": 0.875, "c": 0.625, "d": 1.5, "e": 1.0}, rel=1e-12)


def test_equal_scores_share_their_mean_rank_in_step():
    scores = {"a": 2.0, "b": 2.0, "c": 1.0, "d": 2.0, "e": 9.0, "f": 9.0}
    # ranks 0 | 1 2 3 | 4 5 of six, over five steps of 0.2
    expected = {"a": 0.9, "b": 0.9, "c": 0.5, "d": 0.9, "e": 1.4, "f": 1.4}
    assert assign(scores, assignment="step") == pytest.approx(expected, rel=1e-12)


def test_the_mean_of_step_is_the_middle_of_its_range_with_ties_too():
    scores = {str(i): float(score) for i, score in enumerate([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5])}
    scales = assign(scores, assignment="step", scale_range=(0.2, 1.0))
    assert sum(scales.values()) / len(scales) == pytest.approx(0.6, rel=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_equal_scores_and_one_alone_give_scales_of_1(name):
    for scores in ({"a": 3.0}, {"a": 3.0, "b": 3.0, "c": 3.0}):
        assert assign(scores, assignment=name) == dict.fromkeys(scores, 1.0)


@pytest.mark.parametrize(
    ("scale_range", "clipped"), [((0.2, 0.8), 0.8), ((1.2, 2.0), 1.2), ((0.5, 0.5), 0.5), ((0.5, 1.0), 1.0)]
)
def test_equal_scores_are_clipped_by_the_assignments_that_map_onto_the_range(scale_range, clipped):
    scores = {"a": 3.0, "b": 3.0}
    for name in ("linear", "step", "power"):
        assert assign(scores, assignment=name, scale_range=scale_range) == dict.fromkeys(scores, clipped)
    for name in ("sqrt", "log2", "sigmoid"):
        assert assign(scores, assignment=name, scale_range=scale_range) == dict.fromkeys(scores, 1.0)


def test_sqrt_of_scores_that_are_all_zero_gives_scales_of_1():
    assert assign({"a": 0.0, "b": 0.0}, assignment="sqrt") == {"a": 1.0, "b": 1.0}


def test_sqrt_takes_a_zero_among_others():
    assert assign({"a": 0.0, "b": 4.0}, assignment="sqrt") == {"a": 0.0, "b": 2.0}


@pytest.mark.parametrize("name", ["linear", "step"])
def test_negative_scores_and_scores_far_apart_stay_in_the_range(name):
    scores = {"a": -1.7e308, "b": 0.0, "c": 1.7e308}
    assert assign(scores, assignment=name) == pytest.approx({"a": 0.5, "b": 1.0, "c": 1.5}, rel=1e-12)


@pytest.mark.parametrize("name", ["linear", "step", "sigmoid", "power"])
def test_a_range_that_is_turned_turns_the_order_of_the_scales(name):
    up = assign(SCORES, assignment=name, scale_range=(0.5, 2.0))
    down = assign(SCORES, assignment=name, scale_range=(2.0, 0.5), turned=True)
    ranked = sorted(SCORES, key=SCORES.__getitem__)
    assert sorted(up, key=up.__getitem__) == ranked
    assert sorted(down, key=down.__getitem__) == ranked[::-1]
    if name != "sigmoid":
        assert (down["a"], down["d"]) == (2.0, 0.5)
    if name in ("sigmoid", "power"):
        assert {layer: 1 / scale for layer, scale in down.items()} == pytest.approx(up, rel=1e-12)


@pytest.mark.parametrize("name", ["sqrt", "log2"])
def test_what_does_not_look_at_the_range_cannot_be_turned(name):
    with raises(ValueError, "scale_range", f"'{name}'", (2.0, 0.5)):
        assign(SCORES, assignment=name, scale_range=(2.0, 0.5), turned=True)


def test_sigmoid_stays_finite_for_scores_far_apart_and_around_1():
    scales = assign({"a": -1.7e308, "b": 0.0, "c": 1.7e308}, assignment="sigmoid", scale_range=(0.1, 10.0))
    assert scales == pytest.approx({"a": 0.1, "b": 1.0, "c": 10.0}, rel=1e-12)


def test_sigmoid_stays_finite_for_ranges_as_wide_as_floats_go():
    for ends in ((1e-200, 1e200), (5e-324, 1.7e308), (1.7e308, 5e-324)):
        scales = assign(SCORES, assignment="sigmoid", scale_range=ends, turned=True)
        assert all(0 < scale < math.inf for scale in scales.values())


def test_power_of_scores_that_differ_in_the_last_bit_gives_1():
    assert assign({"a": 3.0, "b": math.nextafter(3.0, 9.0)}, assignment="power") == {"a": 1.0, "b": 1.0}


@pytest.mark.parametrize("score", [0.0, -3.0])
def test_power_of_a_score_not_above_0_is_refused_with_its_layer(score):
    with raises(ScoreError, "'bad'", "'power'", f"{score:.6g}"):
        assign({"good": 2.0, "bad": score}, assignment="power")


def test_without_layers_there_are_no_scales():
    assert [assign({}, assignment=name) for name in NAMES] == [{}] * len(NAMES)


def test_assigning_does_not_change_the_scores():
    scores = dict(SCORES)
    for name in NAMES:
        assign(scores, assignment=name)
        assert scores == SCORES


# what is refused


@pytest.mark.parametrize("name", [*NAMES, lambda scores, scale_range: dict.fromkeys(scores, 1.0)])
def test_a_score_that_is_not_finite_is_refused_with_its_layer(name):
    for score in (math.nan, math.inf, -math.inf):
        with raises(ScoreError, "'bad'", score):
            assign({"good": 2.0, "bad": score}, assignment=name)


@pytest.mark.parametrize("others", [{}, {"good": 2.0}])
@pytest.mark.parametrize(
    ("name", "score"), [("sqrt", -0.5), ("log2", 1.0), ("log2", 0.5), ("log2", 0.0), ("log2", -3.0)]
)
def test_a_score_outside_the_domain_of_an_assignment_is_refused_with_its_layer(name, score, others):
    with raises(ScoreError, "'bad'", f"'{name}'", f"{score:.6g}"):
        assign({**others, "bad": score}, assignment=name)


@pytest.mark.parametrize(
    "scale_range",
    [
        (0.0, 1.0),
        (-0.5, 1.5),
        (1.5, 0.5),
        (0.5, math.inf),
        (0.5, math.nan),
        (math.nan, 1.0),
        (0.5,),
        (0.5, 1.0, 1.5),
        (),
        None,
        0.5,
        ("a", "b"),
    ],
    ids=str,
)
def test_a_range_that_is_not_positive_and_ascending_is_refused(scale_range):
    for scores in ({}, SCORES):
        with raises(ValueError, "scale_range", repr(scale_range)):
            assign(scores, scale_range=scale_range)
    with raises(ValueError, "scale_range", repr(scale_range)):
        check_assignment("linear", scale_range)


@pytest.mark.parametrize("name", ["cubic", "", "Linear", None])
def test_an_unknown_assignment_is_refused(name):
    with raises(ValueError, "assignment", *NAMES, repr(name)):
        assign(SCORES, assignment=name)


# callables


def test_a_callable_is_given_the_scores_and_the_range():
    given = []

    def halves(scores, scale_range):
        given.append((scores, scale_range))
        return {name: score / 2 for name, score in scores.items()}

    assert assign(SCORES, assignment=halves, scale_range=(0.3, 0.7)) == {
        "a": 1.0,
        "b": 1.75,
        "c": 1.25,
        "d": 3.0,
        "e": 2.0,
    }
    assert given == [(SCORES, (0.3, 0.7))]


def test_a_callable_cannot_change_the_scores_it_is_given():
    def emptying(scores, scale_range):
        scales = dict.fromkeys(scores, 1.0)
        scores.clear()
        return scales

    scores = dict(SCORES)
    assert assign(scores, assignment=emptying) == dict.fromkeys(SCORES, 1.0)
    assert scores == SCORES


def test_what_a_callable_gives_to_others_is_passed_over_and_the_order_is_that_of_the_scores():
    scales = assign({"a": 1.0, "b": 2.0}, assignment=lambda scores, _: {"z": -1.0, "b": 1, "a": np.float32(0.5)})
    assert list(scales.items()) == [("a", 0.5), ("b", 1.0)]
    assert all(type(scale) is float for scale in scales.values())


def test_a_layer_that_a_callable_leaves_out_is_refused_by_name():
    with raises(ScoreError, "'b'"):
        assign({"a": 1.0, "b": 2.0}, assignment=lambda scores, _: {"a": 1.0})


@pytest.mark.parametrize("scale", [-0.1, math.nan, math.inf, -math.inf])
def test_a_scale_that_is_negative_or_not_finite_is_refused_by_name(scale):
    with raises(ScoreError, "'b'", scale):
        assign({"a": 1.0, "b": 2.0}, assignment=lambda scores, _: {"a": 1.0, "b": scale})


@pytest.mark.parametrize("scales", [None, [1.0, 1.0], 1.0])
def test_what_a_callable_gives_must_be_scales_by_layer(scales):
    with raises(ScoreError, scales):
        assign({"a": 1.0, "b": 2.0}, assignment=lambda scores, _: scales)


def test_a_callable_may_give_a_scale_of_zero():
    assert assign({"a": 1.0}, assignment=lambda scores, _: {"a": 0.0}) == {"a": 0.0}


@pytest.mark.parametrize("base", NAMES)
def test_shuffled_keeps_the_scales_and_gives_them_to_other_layers(base):
    scales, real = assign(SCORES, assignment=f"shuffled:{base}"), assign(SCORES, assignment=base)
    assert sorted(scales.values()) == sorted(real.values())
    assert scales != real
    assert scales == assign(SCORES, assignment=f"shuffled:{base}:0")
    assert len({tuple(assign(SCORES, assignment=f"shuffled:{base}:{seed}").values()) for seed in range(9)}) > 4


def test_shuffled_moves_the_scales_of_other_scores_in_the_same_way():
    turned = dict(zip(SCORES, reversed(SCORES.values()), strict=True))
    places = []
    for scores in (SCORES, turned):
        shuffled = list(assign(scores, assignment="shuffled").values())
        places.append({name: shuffled.index(scale) for name, scale in assign(scores).items()})
    assert places[0] == places[1]


@pytest.mark.parametrize("base", NAMES)
def test_mean_keeps_the_mean_of_the_scales_and_has_none_of_their_spread(base):
    scales, real = assign(SCORES, assignment=f"mean:{base}"), assign(SCORES, assignment=base)
    assert len(set(scales.values())) == 1
    assert scales["a"] == pytest.approx(sum(real.values()) / len(real), rel=1e-15)


def test_a_control_is_that_of_linear_where_nothing_else_is_said():
    for control in ("shuffled", "mean"):
        assert assign(SCORES, assignment=control) == assign(SCORES, assignment=f"{control}:linear")


@pytest.mark.parametrize(
    "assignment",
    ["shuffled:", "mean:cubic", "shuffled:linear:x", "shuffled:linear:1:2", "linear:1", {"norm": 2.0}, {"head": 0}],
)
def test_a_control_that_is_not_known_is_refused(assignment):
    with raises(ValueError, repr(assignment).strip("{}")):
        check_assignment(assignment, (0.5, 1.5))


def test_the_permutation_is_the_same_in_every_process():
    call = "assign({str(i): i for i in range(9)}, assignment='shuffled')"
    code = f"from tempbalance.ranking.assign import assign; print({call})"
    here = str(assign({str(i): i for i in range(9)}, assignment="shuffled"))
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        found = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
        )
        assert found.stdout.strip() == here
