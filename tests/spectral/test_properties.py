import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import tempbalance
from tempbalance.ranking.assign import assign
from tempbalance.spectral.matrices import cut_by_shape
from tempbalance.spectral.tail import TailFit, fit_hill, fit_tail
from tempbalance.spectral.workers import spectra, spectrum
from tests.cases import mlp
from tests.spectral.reference import KINDS, random_spectrum, to_tensor

NAMES = ("linear", "sqrt", "log2", "step")
TAILS = ("median", "median_published", "goodness_of_fit", "peak")

quick = settings(max_examples=25, deadline=None)
thorough = settings(max_examples=60, deadline=None)
seeds = st.integers(0, 2**32 - 1)


# weights: drawn by seed, so that none lies on the edge between two fits


@st.composite
def weights_and_tails(draw) -> tuple[torch.Tensor, str]:
    """Matrices and kernels; oblong for the searches, whose threshold may be the smallest eigenvalue.

    That of a square matrix may be so small that rounding is a large part of it.
    """
    tail = draw(st.sampled_from(TAILS))
    is_kernel = draw(st.booleans())
    short = draw(st.integers(3, 12) if is_kernel else st.integers(6, 40))
    long = short + draw(st.integers(0 if tail == "median" else 8, 24))
    positions = (draw(st.integers(2, 3)), draw(st.integers(1, 3))) if is_kernel else ()
    shape = (short, long, *positions) if draw(st.booleans()) else (long, short, *positions)
    state = np.random.RandomState(draw(seeds))
    return torch.from_numpy(state.standard_normal(shape) if draw(st.booleans()) else state.standard_t(3, shape)), tail


cases = weights_and_tails()
spectra_by_kind = st.builds(
    random_spectrum, st.sampled_from([kind for kind in KINDS if kind != "ties"]), st.integers(5, 200), seeds
).map(to_tensor)


def fit(weight: torch.Tensor, tail: str) -> TailFit:
    return fit_tail(spectrum(weight), tail=tail)


def assert_same_fit(one: TailFit, other: TailFit) -> None:
    assert one.num_tail == other.num_tail
    assert one.alpha == pytest.approx(other.alpha, rel=1e-9)
    assert one.xmin == pytest.approx(other.xmin, rel=1e-9)
    assert one.ks == pytest.approx(other.ks, rel=1e-6, abs=1e-9)


def orthogonal(size: int, seed: int) -> torch.Tensor:
    gauss = np.random.RandomState(seed).standard_normal((size, size))
    return torch.from_numpy(np.linalg.qr(gauss)[0])


def permuted(weight: torch.Tensor, dim: int, seed: int) -> torch.Tensor:
    return weight.index_select(dim, torch.from_numpy(np.random.RandomState(seed).permutation(weight.shape[dim])))


@quick
@given(cases, st.floats(-30, 30))
def test_alpha_does_not_change_with_scale_over_sixty_orders_of_magnitude(case, exponent):
    weight, tail = case
    factor = 10.0**exponent
    scaled, plain = fit(weight * factor, tail), fit(weight, tail)
    assert_same_fit(replace(scaled, xmin=scaled.xmin / factor**2), plain)


@quick
@given(cases, st.integers(-400, 400))
def test_scaling_a_weight_by_a_power_of_two_moves_no_bit_of_its_spectrum(case, exponent):
    weight, _ = case
    (plain,), (scaled,) = spectra(cut_by_shape(weight)), spectra(cut_by_shape(weight * 2.0**exponent))
    assert torch.equal(scaled.values, plain.values)
    assert scaled.exponent == plain.exponent + 2 * exponent


@quick
@given(spectra_by_kind, st.integers(-200, 200))
def test_scaling_a_spectrum_by_a_power_of_two_moves_no_bit_of_median_and_goodness_of_fit(values, exponent):
    for tail in ("median", "goodness_of_fit"):
        plain, scaled = fit_tail(values, tail=tail), fit_tail(values * 2.0**exponent, tail=tail)
        assert scaled == replace(plain, xmin=plain.xmin * 2.0**exponent)


@quick
@given(spectra_by_kind, st.integers(-200, 200))
def test_scaling_a_spectrum_by_a_power_of_two_does_not_move_the_peak(values, exponent):
    # but for rounding, because its bins are those of logarithms
    plain, scaled = fit_tail(values, tail="peak"), fit_tail(values * 2.0**exponent, tail="peak")
    assert_same_fit(scaled, replace(plain, xmin=plain.xmin * 2.0**exponent))


@quick
@given(cases, st.integers(0, 3), seeds)
def test_alpha_does_not_change_when_rows_columns_channels_or_positions_are_permuted(case, dim, seed):
    weight, tail = case
    assert_same_fit(fit(permuted(weight, dim % weight.dim(), seed), tail), fit(weight, tail))


@quick
@given(cases)
def test_alpha_does_not_change_when_a_weight_is_transposed(case):
    weight, tail = case
    assert_same_fit(fit(weight.transpose(0, 1), tail), fit(weight, tail))


@quick
@given(cases, seeds, seeds)
def test_alpha_does_not_change_with_an_orthogonal_change_of_basis(case, left_seed, right_seed):
    weight, tail = case
    left, right = orthogonal(weight.shape[0], left_seed), orthogonal(weight.shape[1], right_seed)
    turned = torch.einsum("or,rc...,ci->oi...", left, weight, right)
    assert_same_fit(fit(turned, tail), fit(weight, tail))


@quick
@given(cases)
def test_alpha_does_not_change_when_signs_do(case):
    weight, tail = case
    assert fit(-weight, tail) == fit(weight, tail)


# fits


@pytest.mark.parametrize(
    ("alpha", "size", "num_tail"), [(1.5, 40, 20), (2.0, 101, 50), (3.0, 60, 2), (4.0, 20, 19), (6.0, 400, 40)]
)
def test_hill_on_pareto_samples_follows_its_exact_law(alpha, size, num_tail):
    # 2 k (alpha - 1) / (alpha_hat - 1) ~ chi-square with 2 k degrees of freedom
    state = np.random.RandomState(size)
    samples = np.sort(state.pareto(alpha - 1, (1000, size)) + 1, axis=1)
    estimates = np.array([fit_hill(to_tensor(sample), num_tail=num_tail).alpha for sample in samples])
    test = stats.kstest(2 * num_tail * (alpha - 1) / (estimates - 1), stats.chi2(2 * num_tail).cdf)
    assert test.pvalue > 0.001


@quick
@given(spectra_by_kind, st.sampled_from(TAILS))
def test_a_fit_is_within_its_bounds(values, tail):
    result = fit_tail(values, tail=tail)
    assert 1 < result.alpha < math.inf
    assert 0 <= result.ks <= 1
    assert 2 <= result.num_tail <= len(values)
    assert result.xmin in values


@quick
@given(spectra_by_kind)
def test_no_threshold_near_the_peak_is_nearer_than_the_best_of_all(values):
    assert fit_tail(values, tail="goodness_of_fit").ks <= fit_tail(values, tail="peak").ks


# assignments

ranges = st.tuples(st.floats(0.01, 10), st.floats(0.01, 10)).map(lambda pair: tuple(sorted(pair)))
any_scores = st.lists(st.one_of(st.floats(-1e308, 1e308), st.integers(-3, 3).map(float)), min_size=1, max_size=30)


def scores_for(name: str) -> st.SearchStrategy:
    """Scores that an assignment takes, equal and nearly equal ones among them."""
    if name in ("linear", "step"):
        return any_scores
    least = 0.0 if name == "sqrt" else math.nextafter(1.0, 2.0)
    return st.lists(st.one_of(st.floats(least, 1e308), st.integers(2, 5).map(float)), min_size=1, max_size=30)


@st.composite
def assignments(draw, names=NAMES):
    """The name of an assignment, its scores and the scales it gives them."""
    name = draw(st.sampled_from(names))
    scores = {str(i): score for i, score in enumerate(draw(scores_for(name)))}
    scale_range = draw(ranges)
    return scores, assign(scores, assignment=name, scale_range=scale_range), scale_range


@thorough
@given(assignments(["linear", "step"]))
def test_linear_and_step_stay_within_the_range(case):
    scores, scales, (low, high) = case
    assert scales.keys() == scores.keys()
    assert all(low <= scale <= high for scale in scales.values())


@thorough
@given(assignments(["linear", "step"]))
def test_a_lowest_score_alone_gets_the_lowest_scale_and_a_highest_the_highest(case):
    scores, scales, (low, high) = case
    ordered = sorted(scores, key=scores.get)
    if len(scores) > 1 and scores[ordered[0]] < scores[ordered[1]]:
        assert scales[ordered[0]] == low
    if len(scores) > 1 and scores[ordered[-2]] < scores[ordered[-1]]:
        assert scales[ordered[-1]] == pytest.approx(high, rel=1e-12)


@thorough
@given(assignments(["sqrt", "log2"]))
def test_sqrt_and_log2_keep_the_mean_rate(case):
    scores, scales, _ = case
    assert scales.keys() == scores.keys()
    assert math.fsum(scales.values()) / len(scales) == pytest.approx(1.0, rel=1e-12)


@thorough
@given(assignments())
def test_no_higher_score_gets_a_lower_scale_and_equal_ones_the_same(case):
    scores, scales, _ = case
    ordered = sorted(scores, key=scores.get)
    for lower, higher in itertools.pairwise(ordered):
        assert scales[lower] <= scales[higher]
        if scores[lower] == scores[higher]:
            assert scales[lower] == scales[higher]


@thorough
@given(assignments(), st.randoms(use_true_random=False), st.sampled_from(NAMES))
def test_the_order_of_the_layers_does_not_matter(case, random, name):
    scores, _, scale_range = case
    layers = list(scores)
    random.shuffle(layers)
    valid = {layer: 2.0 + abs(scores[layer]) % 7 for layer in layers}  # that every assignment takes
    shuffled = assign(valid, assignment=name, scale_range=scale_range)
    ordered = assign({layer: valid[layer] for layer in scores}, assignment=name, scale_range=scale_range)
    assert shuffled == ordered


@settings(max_examples=8, deadline=None)
@given(st.sampled_from(NAMES), st.floats(1e-6, 10), st.floats(1e-3, 1e3))
def test_rates_are_homogeneous_in_the_base_rate(name, base, factor):
    def rates(lr: float) -> list[float]:
        model = mlp()
        optimizer = torch.optim.SGD(tempbalance.param_groups(model), lr=lr)
        tempbalance.TempBalance(optimizer, model, assignment=name)
        return [group["lr"] for group in optimizer.param_groups]

    plain = rates(base)
    assert len(set(plain)) > 2  # two layers are scored, the others keep the base rate
    assert rates(base * factor) == pytest.approx([factor * rate for rate in plain], rel=1e-12)
    assert rates(base * 4) == [4 * rate for rate in plain]
