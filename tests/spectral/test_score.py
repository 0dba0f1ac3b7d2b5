import math
from typing import get_args

import pytest
import torch

from tempbalance.errors import ScoreError
from tempbalance.spectral.score import NEEDS_FIT, ScoreName, check_score, compute_score
from tempbalance.spectral.tail import TailFit, fit_tail
from tests.cases import raises
from tests.spectral.reference import KINDS, random_spectrum, to_tensor


def entropy_of_shares(shares: list[float]) -> float:
    """-sum_i p_i ln p_i, over its largest value ln n."""
    return -math.fsum(share * math.log(share) for share in shares if share > 0) / math.log(len(shares))


LITERAL = {
    "alpha": lambda x, fit: fit.alpha,
    "alpha_weighted": lambda x, fit: fit.alpha * math.log10(max(x)),
    "log_alpha_norm": lambda x, fit: math.log10(math.fsum(each**fit.alpha for each in x)),
    "spectral_norm": lambda x, fit: max(x),
    "stable_rank": lambda x, fit: math.fsum(x) / max(x),
    "frobenius_norm": lambda x, fit: math.sqrt(math.fsum(x)),
    "entropy": lambda x, fit: entropy_of_shares([each / total for total in [math.fsum(x)] for each in x]),
}


def a_fit(alpha: float = 2.5) -> TailFit:
    return TailFit(alpha=alpha, xmin=1.0, ks=0.1, num_tail=10)


def test_every_score_has_its_formula_here():
    assert set(LITERAL) == set(get_args(ScoreName))


@pytest.mark.parametrize("score", LITERAL)
def test_a_score_is_its_formula(score):
    for kind in KINDS:
        values = random_spectrum(kind, 70, 0)
        fit = fit_tail(to_tensor(values))
        expected = LITERAL[score](values.tolist(), fit)
        found = compute_score(to_tensor(values), fit, score=score)
        assert found == pytest.approx(expected, rel=1e-12, abs=1e-12), kind


@pytest.mark.parametrize("score", LITERAL)
def test_zero_eigenvalues_add_nothing_to_a_score(score):
    values = [0.0, 0.0, 0.5, 1.0, 3.0, 7.0]
    expected = LITERAL[score](values, a_fit())
    assert compute_score(to_tensor(values), a_fit(), score=score) == pytest.approx(expected, rel=1e-12)


def test_a_spectrum_is_scored_by_alpha_unless_told_otherwise():
    assert compute_score(to_tensor([1.0, 2.0]), a_fit(3.25)) == 3.25


def test_the_log_alpha_norm_does_not_overflow():
    # log10(2 x (1e100)^50), whose argument float64 cannot hold
    value = compute_score(to_tensor([1e100, 1e100]), a_fit(50.0), score="log_alpha_norm")
    assert value == pytest.approx(5000 + math.log10(2), rel=1e-12)


@pytest.mark.parametrize(("values", "expected"), [([3.0] * 50, 1.0), ([0.0] * 9 + [2.0], 0.0), ([2.0], 0.0)])
def test_entropy_is_1_for_a_flat_spectrum_and_0_for_rank_one(values, expected):
    assert compute_score(to_tensor(values), None, score="entropy") == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_the_default_dtype_does_not_change_a_score(dtype):
    values = to_tensor(random_spectrum("pareto", 4099, 0))  # a length that bfloat16 and float16 cannot hold
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(dtype)
        found = {score: compute_score(values, a_fit(), score=score) for score in LITERAL}
    finally:
        torch.set_default_dtype(before)
    expected = {score: formula(values.tolist(), a_fit()) for score, formula in LITERAL.items()}
    assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("score", [score for score in LITERAL if score not in NEEDS_FIT])
def test_a_score_that_does_not_look_at_the_tail_needs_no_fit(score):
    values = [0.5, 1.0, 3.0, 7.0]
    assert compute_score(to_tensor(values), None, score=score) == pytest.approx(LITERAL[score](values, None), rel=1e-12)


@pytest.mark.parametrize("score", ["alpha", "alpha_weighted", "log_alpha_norm"])
def test_a_score_that_looks_at_the_tail_needs_a_fit(score):
    assert score in NEEDS_FIT
    with raises(ScoreError, f"'{score}'"):
        compute_score(to_tensor([1.0, 2.0]), None, score=score)


def test_a_callable_is_given_the_spectrum_and_the_fit():
    values, fit = to_tensor([1.0, 2.0, 4.0]), a_fit(3.0)
    assert compute_score(values, fit, score=lambda spectrum, fit: spectrum.sum() * fit.alpha) == 21.0


def test_a_callable_needs_a_fit():
    with pytest.raises(ScoreError):
        compute_score(to_tensor([1.0, 2.0]), None, score=lambda spectrum, fit: 1.0)


@pytest.mark.parametrize("value", [None, "high", [1.0, 2.0]])
def test_a_score_that_is_no_number_is_refused(value):
    with raises(ScoreError, repr(value)):
        compute_score(to_tensor([1.0, 2.0]), a_fit(), score=lambda spectrum, fit: value)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_score_that_is_not_finite_is_refused(value):
    with raises(ScoreError, value):
        compute_score(to_tensor([1.0, 2.0]), a_fit(), score=lambda spectrum, fit: value)
    with raises(ScoreError, value, "'alpha'"):
        compute_score(to_tensor([1.0, 2.0]), a_fit(value), score="alpha")


@pytest.mark.parametrize("score", ["alpha_weighted", "log_alpha_norm", "stable_rank", "entropy"])
def test_a_zero_spectrum_has_no_finite_score_of_these(score):
    with raises(ScoreError, f"'{score}'"):
        compute_score(torch.zeros(5, dtype=torch.float64), a_fit(), score=score)


@pytest.mark.parametrize("score", [score for score in LITERAL if score != "alpha"])
def test_an_infinite_eigenvalue_has_no_finite_score(score):
    with raises(ScoreError, f"'{score}'"):
        compute_score(to_tensor([1.0, 2.0, math.inf]), a_fit(), score=score)


@pytest.mark.parametrize("score", ["beta", "", "Alpha", None])
def test_an_unknown_score_is_refused(score):
    with raises(ValueError, "score", *LITERAL, repr(score)):
        compute_score(to_tensor([1.0, 2.0]), a_fit(), score=score)
    with raises(ValueError, "score", repr(score)):
        check_score(score)
