import math
import tracemalloc

import numpy as np
import pytest
import torch

from tempbalance.errors import TailError
from tempbalance.spectral.tail import TailFit, check_tail, fit_goodness_of_fit, fit_hill, fit_peak, fit_tail
from tests.cases import raises
from tests.spectral.reference import (
    KINDS,
    density_peak,
    hill_alpha,
    ks_distance,
    likelihood_alpha,
    random_spectrum,
    search,
    search_peak,
    to_tensor,
)


def pareto_quantiles(alpha: float, size: int) -> torch.Tensor:
    """The values below which lie (i + 1/2) / size of a Pareto distribution with density x^-alpha."""
    below = (torch.arange(size, dtype=torch.float64) + 0.5) / size
    return (1 - below) ** (-1 / (alpha - 1))


def assert_fit(fit: TailFit, expected: tuple[float, float, float, int]) -> None:
    alpha, xmin, ks, num_tail = expected
    assert math.isfinite(alpha)
    assert fit.num_tail == num_tail
    assert fit.xmin == xmin
    assert fit.alpha == pytest.approx(alpha, rel=1e-9)
    assert fit.ks == pytest.approx(ks, rel=1e-9)


def random_sizes(kind: str, count: int) -> list[int]:
    """Sizes from 5 to 400, both ends among them."""
    state = np.random.RandomState(KINDS.index(kind))
    return [5, 400, *state.randint(5, 401, count - 2).tolist()]


# median


@pytest.mark.parametrize("alpha", [1.5, 2.0, 4.0, 6.0])
def test_hill_recovers_alpha_from_exact_pareto_quantiles(alpha):
    fit = fit_hill(pareto_quantiles(alpha, size=20_000), num_tail=10_000)
    assert fit.alpha == pytest.approx(alpha, rel=1e-3)
    assert fit.ks < 1e-3


@pytest.mark.parametrize(("ratio", "num_tail"), [(1.5, 2), (2.0, 10), (1.01, 50)])
def test_hill_on_a_geometric_sequence_is_its_closed_form(ratio, num_tail):
    values = to_tensor(0.3 * ratio ** np.arange(60))
    fit = fit_hill(values, num_tail=num_tail)
    # sum_{i=1}^{k} i ln r = k (k + 1) / 2 ln r
    assert fit.alpha == pytest.approx(1 + 2 / ((num_tail + 1) * math.log(ratio)), rel=1e-12)
    assert fit.xmin == values[-num_tail - 1]
    assert fit.num_tail == num_tail


@pytest.mark.parametrize("kind", KINDS)
def test_hill_is_equation_3_to_the_letter(kind):
    for seed, size in enumerate(random_sizes(kind, 10)):
        values = random_spectrum(kind, size, seed)
        num_tail = size // 2
        alpha, xmin = hill_alpha(values, num_tail), values[-num_tail - 1]
        fit = fit_hill(to_tensor(values), num_tail=num_tail)
        assert_fit(fit, (alpha, xmin, ks_distance(values[-num_tail:], xmin, alpha), num_tail))


@pytest.mark.parametrize(
    ("size", "fraction", "num_tail"),
    [(50, 0.58, 29), (50, 0.5, 25), (51, 0.5, 25), (100, 0.29, 29), (7, 0.99, 6), (10, 0.2, 2), (1000, 0.001 * 3, 3)],
)
def test_the_tail_is_the_floor_of_its_fraction(size, fraction, num_tail):
    values = random_spectrum("pareto", size, 0)
    fit = fit_tail(to_tensor(values), tail="median", tail_fraction=fraction)
    assert fit.num_tail == num_tail
    assert fit.alpha == pytest.approx(hill_alpha(values, num_tail), rel=1e-12)


def test_ties_across_the_threshold_count_as_values_like_others():
    # k = 3: 2, 2, 4 over 2
    fit = fit_hill(to_tensor([1.0, 2.0, 2.0, 2.0, 4.0]), num_tail=3)
    assert fit.alpha == pytest.approx(1 + 3 / math.log(2), rel=1e-12)
    assert fit.xmin == 2.0


def test_zeros_below_the_threshold_do_not_matter_to_the_median():
    values = [0.0, 0.0, 0.0, 1.0, 2.0, 3.0, 5.0]
    assert fit_tail(to_tensor(values)).alpha == pytest.approx(hill_alpha(np.array(values), 3), rel=1e-12)


# goodness_of_fit and peak


@pytest.mark.parametrize("kind", KINDS)
def test_goodness_of_fit_agrees_with_a_loop_over_all_thresholds(kind):
    for seed, size in enumerate(random_sizes(kind, 8)):
        values = random_spectrum(kind, size, seed)
        assert_fit(fit_goodness_of_fit(to_tensor(values)), search(values))


@pytest.mark.parametrize("kind", KINDS)
def test_goodness_of_fit_agrees_where_most_thresholds_are_ruled_out_by_their_bound(kind, monkeypatch):
    monkeypatch.setattr(
        "tempbalance.spectral.tail._BLOCK_SIZE", 1000
    )  # a few candidates at a time, as at 20,000 values
    for seed, size in enumerate(random_sizes(kind, 5)):
        values = random_spectrum(kind, size, seed)
        assert_fit(fit_goodness_of_fit(to_tensor(values)), search(values))


@pytest.mark.parametrize("kind", ["pareto", "ties"])
def test_goodness_of_fit_agrees_with_the_loop_on_a_long_spectrum(kind):
    values = random_spectrum(kind, 1000, 0)
    assert_fit(fit_goodness_of_fit(to_tensor(values)), search(values))


@pytest.mark.parametrize("kind", KINDS)
def test_peak_agrees_with_a_loop_over_thresholds_near_the_peak(kind):
    for seed, size in enumerate(random_sizes(kind, 10)):
        values = random_spectrum(kind, size, seed)
        assert_fit(fit_peak(to_tensor(values)), search_peak(values))


@pytest.mark.parametrize("alpha", [1.5, 2.0, 4.0])
@pytest.mark.parametrize("fit", [fit_goodness_of_fit, fit_peak])
def test_both_searches_recover_alpha_from_exact_pareto_quantiles(fit, alpha):
    result = fit(pareto_quantiles(alpha, size=2_000))
    assert result.alpha == pytest.approx(alpha, rel=0.02)
    assert result.ks < 0.01


def test_goodness_of_fit_finds_where_the_power_law_begins():
    state = np.random.RandomState(0)
    body, tail = state.uniform(0.01, 1, 1000), state.pareto(2.0, 1000) + 1
    fit = fit_goodness_of_fit(to_tensor(np.sort(np.concatenate([body, tail]))))
    assert fit.xmin == pytest.approx(1.0, abs=0.1)
    assert fit.alpha == pytest.approx(3.0, abs=0.2)


def test_equal_values_are_all_in_the_tail_that_starts_at_them():
    values = np.array([1.0, 3.0, 3.0, 3.0, 4.0, 9.0])
    fits = [
        (ks_distance(tail, tail[0], likelihood_alpha(tail)), len(tail)) for tail in (values, values[1:], values[4:])
    ]
    fit = fit_goodness_of_fit(to_tensor(values))
    assert (fit.ks, fit.num_tail) == pytest.approx(min(fits), rel=1e-12)
    assert fit.num_tail != 3  # the tail that would start at the last 3


def test_two_values_have_a_fit_in_closed_form():
    # alpha = 1 + 2 / ln(e) and ks = 1 - exp(-2) - 1/2
    fit = fit_goodness_of_fit(to_tensor(np.exp([0.0, 1.0])))
    assert (fit.alpha, fit.ks) == pytest.approx((3.0, 0.5 - math.exp(-2)), rel=1e-12)
    assert (fit.xmin, fit.num_tail) == (1.0, 2)


def test_of_two_equal_distances_the_lower_threshold_wins():
    # both candidates are at exactly 1/2, because of the values equal to them: 11 of 22 come before the last 1, 5 of 10
    # before the last 2, where the power law has none
    values = np.repeat([1.0, 2.0, 4.0], [12, 6, 4])
    for tail in (values, values[12:]):
        assert ks_distance(tail, tail[0], likelihood_alpha(tail)) == 0.5
    fit = fit_goodness_of_fit(to_tensor(values))
    assert (fit.xmin, fit.ks, fit.num_tail) == (1.0, 0.5, 22)


def test_the_peak_is_the_densest_place():
    state = np.random.RandomState(0)
    values = np.sort(np.concatenate([state.lognormal(0, 0.05, 300), state.uniform(5, 50, 100)]))
    peak = density_peak(values)
    assert 0.9 < peak < 1.1
    fit = fit_peak(to_tensor(values))
    assert 0.95 * peak <= fit.xmin <= 1.5 * peak
    assert fit_goodness_of_fit(to_tensor(values)).xmin > 1.5 * peak


@pytest.mark.parametrize("fit", [fit_goodness_of_fit, fit_peak])
def test_zeros_are_passed_over(fit):
    values = random_spectrum("pareto", 60, 0)
    assert fit(to_tensor(np.concatenate([np.zeros(9), values]))) == fit(to_tensor(values))


@pytest.mark.parametrize("kind", [pytest.param("pareto", marks=pytest.mark.slow), "lognormal"])
def test_the_search_stays_below_100_megabytes_at_20000_eigenvalues(kind):
    values = to_tensor(random_spectrum(kind, 20_000, 0))
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        fit_goodness_of_fit(values)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 20_000 * 8 < peak - before < 100e6  # numpy reports what it holds: more than the values themselves


# all three


@pytest.mark.parametrize("tail", ["median", "goodness_of_fit", "peak"])
def test_fit_tail_finds_each_fit_by_its_name(tail):
    values = to_tensor(random_spectrum("lognormal", 80, 1))
    expected = {
        "median": fit_hill(values, num_tail=40),
        "goodness_of_fit": fit_goodness_of_fit(values),
        "peak": fit_peak(values),
    }
    assert len({fit.xmin for fit in expected.values()}) == 3
    assert fit_tail(values, tail=tail) == expected[tail]


@pytest.mark.parametrize("tail", ["median", "goodness_of_fit", "peak"])
def test_a_spectrum_may_be_float32_or_require_grad(tail):
    values = to_tensor(random_spectrum("pareto", 60, 0)).float()
    expected = fit_tail(values.double(), tail=tail)
    assert fit_tail(values, tail=tail) == expected
    assert fit_tail(values.clone().requires_grad_(), tail=tail) == expected


@pytest.mark.parametrize("tail", ["median", "goodness_of_fit", "peak"])
def test_a_fit_leaves_the_spectrum_as_it_was(tail):
    values = to_tensor(random_spectrum("pareto", 60, 0))
    before = values.clone()
    fit_tail(values, tail=tail)
    assert torch.equal(values, before)


def test_the_standard_error_is_alpha_less_one_over_the_root_of_the_tails_length():
    assert TailFit(alpha=3.0, xmin=1.0, ks=0.1, num_tail=16).alpha_stderr == 0.5


def test_the_standard_error_is_the_spread_of_hill_over_many_samples():
    state = np.random.RandomState(0)
    fits = [fit_hill(to_tensor(np.sort(state.pareto(2.0, 400) + 1)), num_tail=200) for _ in range(2000)]
    spread = float(np.std([fit.alpha for fit in fits]))
    assert np.mean([fit.alpha_stderr for fit in fits]) == pytest.approx(spread, rel=0.06)


# what is refused


@pytest.mark.parametrize(("size", "num_tail"), [(0, 0), (1, 0), (2, 1), (3, 1), (3, 3), (5, 6), (5, -2)])
def test_hill_takes_two_values_and_one_below_them(size, num_tail):
    with raises(TailError, num_tail, size):
        fit_hill(to_tensor(np.arange(1.0, size + 1)), num_tail=num_tail)


@pytest.mark.parametrize("size", [0, 1, 2, 3])
def test_a_spectrum_too_short_for_a_median_is_refused(size):
    with raises(TailError, size // 2, size):
        fit_tail(to_tensor(np.arange(1.0, size + 1)))


@pytest.mark.parametrize("values", [[], [2.0], [0.0, 0.0, 2.0], [3.0, 3.0, 3.0], [0.0, 3.0, 3.0]])
def test_a_search_takes_two_different_positive_values(values):
    for tail in ("goodness_of_fit", "peak"):
        with raises(TailError, np.count_nonzero(values)):
            fit_tail(to_tensor(values), tail=tail)


@pytest.mark.parametrize("tail", ["median", "goodness_of_fit", "peak"])
def test_a_flat_spectrum_is_refused(tail):
    for value in (0.0, 0.1, 1.0, 3.0, 1e-300):
        with pytest.raises(TailError):
            fit_tail(torch.full((60,), value, dtype=torch.float64), tail=tail)


def test_a_flat_tail_over_a_lower_body_is_refused_by_the_median():
    with raises(TailError, 3):
        fit_tail(to_tensor([1.0, 2.0, 5.0, 5.0, 5.0, 5.0]))


def test_a_threshold_of_zero_is_refused():
    with raises(TailError, "zero"):
        fit_tail(to_tensor([0.0, 0.0, 1.0, 2.0]))


@pytest.mark.parametrize("values", [[1e-30, 1e-15, 1.0, 1.0, 1.0], [0.9, 1.0, 1.0, 1.0]])
def test_a_peak_with_no_threshold_near_it_below_the_largest_value_is_refused(values):
    with pytest.raises(TailError):
        fit_peak(to_tensor(values))


@pytest.mark.parametrize(
    ("spread", "level"), [(1e-15, 9.0), (1e-15, 1e-5), (1e-14, 0.5625), (1e-14, 1.0), (1e-12, 9.0), (1e-12, 1.0)]
)
@pytest.mark.parametrize("tail", ["median", "goodness_of_fit", "peak"])
def test_values_that_differ_by_rounding_alone_are_fitted_or_refused(tail, spread, level):
    values = level * (1 + spread * np.sort(np.random.RandomState(0).standard_normal(80)))
    try:
        fit = fit_tail(to_tensor(values), tail=tail)
    except TailError:
        return
    assert fit.alpha > 1e9
    assert math.isfinite(fit.alpha)
    assert 0 <= fit.ks <= 1


@pytest.mark.parametrize("tail", ["median", "goodness_of_fit", "peak"])
def test_values_hundreds_of_orders_of_magnitude_apart_are_fitted_or_refused(tail):
    values = to_tensor([1e-320, 2e-320, 1e10, 2e10])
    try:
        fit = fit_tail(values, tail=tail)
    except TailError:
        return
    assert math.isfinite(fit.alpha)
    assert fit.alpha > 1
    assert 0 <= fit.ks <= 1


@pytest.mark.parametrize("tail", ["median", "goodness_of_fit", "peak"])
@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_a_spectrum_that_is_not_finite_is_refused(value, tail):
    with pytest.raises(TailError):
        fit_tail(to_tensor([1.0, 1.5, 2.0, 3.0, 4.0, value]), tail=tail)


@pytest.mark.parametrize("tail", ["mean", "", "Median", None, 2])
def test_an_unknown_tail_is_refused(tail):
    with raises(ValueError, "tail", "median", "goodness_of_fit", "peak", repr(tail)):
        fit_tail(to_tensor([1.0, 2.0, 3.0, 4.0]), tail=tail)


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.5, 1.5, math.nan, math.inf])
def test_a_tail_fraction_out_of_range_is_refused(fraction):
    with raises(ValueError, "tail_fraction", fraction):
        fit_tail(to_tensor([1.0, 2.0, 3.0, 4.0]), tail_fraction=fraction)


@pytest.mark.parametrize("tail", ["median", "goodness_of_fit", "peak"])
def test_a_spectrum_that_is_not_an_ascending_row_is_refused(tail):
    for values in ([1.0, 3.0, 2.0, 4.0, 5.0], [5.0, 4.0, 3.0, 2.0, 1.0], [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]):
        with pytest.raises((ValueError, TailError)):
            fit_tail(to_tensor(values), tail=tail)


def test_fit_tail_gives_the_spectrum_to_a_callable():
    values = to_tensor([1.0, 2.0, 3.0, 4.0])
    assert fit_tail(values, tail=lambda spectrum: TailFit(float(spectrum.sum()), 1.0, 0.1, 4)).alpha == 10.0


def test_a_callable_is_a_tail():
    check_tail(lambda spectrum: TailFit(2.0, 1.0, 0.1, 5), 0.5)
    with raises(ValueError, "tail_fraction", 2.0):
        check_tail(lambda spectrum: TailFit(2.0, 1.0, 0.1, 5), 2.0)
