import math

import pytest
import torch

from tempbalance.ranking.assign import assign
from tempbalance.spectral.eigenvalues import Spectrum
from tempbalance.spectral.matrices import cut_by_shape
from tempbalance.spectral.score import compute_score
from tempbalance.spectral.tail import fit_hill, fit_tail
from tempbalance.spectral.workers import spectra, spectrum
from tests.cases import GOLDEN, golden_weight
from tests.spectral.reference import hill_alpha, ks_distance, likelihood_alpha, search, svd_spectrum

WEIGHTS = {entry["layer"]: entry for entry in GOLDEN["weights"]}
ASSIGNMENTS = ("linear", "sqrt", "log2", "step")


@pytest.fixture(params=WEIGHTS)
def layer(request) -> str:
    return request.param


@pytest.fixture
def weight(layer) -> torch.Tensor:
    return golden_weight(WEIGHTS[layer])


@pytest.fixture
def recorded(layer) -> dict:
    return GOLDEN["expected"][layer]


def test_all_eight_weights_are_recorded():
    assert len(WEIGHTS) == 8
    assert WEIGHTS.keys() == GOLDEN["expected"].keys()


def test_the_median_alpha_is_the_recorded_one(weight, recorded):
    assert fit_tail(spectrum(weight)).alpha == pytest.approx(recorded["eq3_alpha"], rel=1e-9)


def test_goodness_of_fit_is_the_recorded_one(weight, recorded):
    fit, expected = fit_tail(spectrum(weight), tail="goodness_of_fit"), recorded["goodness_of_fit"]
    assert fit.num_tail == expected["num_tail"]
    assert fit.alpha == pytest.approx(expected["alpha"], rel=1e-9)
    assert fit.ks == pytest.approx(expected["ks"], rel=1e-9)
    assert fit.xmin == pytest.approx(expected["xmin"], rel=1e-9)


def test_the_spectrum_has_the_recorded_size_and_norms(weight, recorded):
    values = spectrum(weight)
    assert len(values) == cut_by_shape(weight)[0].num_eigenvalues == recorded["num_eigenvalues"]
    assert compute_score(values, None, score="spectral_norm") == pytest.approx(recorded["spectral_norm"], rel=1e-9)
    assert compute_score(values, None, score="stable_rank") == pytest.approx(recorded["stable_rank"], rel=1e-9)
    frobenius = compute_score(values, None, score="frobenius_norm")
    assert frobenius == pytest.approx(math.sqrt(recorded["frobenius_squared"]), rel=1e-9)


def test_alpha_weighted_is_the_recorded_one(weight, recorded):
    values = spectrum(weight)
    score = compute_score(values, fit_tail(values), score="alpha_weighted")
    assert score == pytest.approx(recorded["alpha_weighted_eq3"], rel=1e-9)


def test_the_literal_reference_gives_the_recorded_figures_too(weight, recorded):
    values, expected = svd_spectrum(weight), recorded["goodness_of_fit"]
    assert hill_alpha(values, len(values) // 2) == pytest.approx(recorded["eq3_alpha"], rel=1e-9)
    assert search(values) == pytest.approx([expected[key] for key in ("alpha", "xmin", "ks", "num_tail")], rel=1e-9)


def test_the_published_code_counts_xmin_among_the_upper_half(weight, recorded):
    values = spectrum(weight)
    upper_half = values[len(values) // 2 :]  # the larger half if their number is odd; its smallest is xmin
    assert likelihood_alpha(upper_half.numpy()) == pytest.approx(recorded["authors_median_alpha"], rel=1e-9)
    fit = fit_tail(values, tail="median_published")
    assert fit.alpha == pytest.approx(recorded["authors_median_alpha"], rel=1e-9)
    assert (fit.num_tail, fit.xmin) == (len(upper_half), upper_half[0])
    assert fit.ks == pytest.approx(ks_distance(upper_half.numpy(), fit.xmin, fit.alpha), rel=1e-9)


@pytest.mark.parametrize("position", [2, 1.25, 4])
def test_a_published_threshold_stands_at_a_position_of_the_ascending_spectrum(weight, position):
    values = spectrum(weight).numpy()
    fit = fit_tail(spectrum(weight), tail="median_published", tail_fraction=1 - 1 / position)
    assert fit.alpha == pytest.approx(likelihood_alpha(values[int(len(values) / position) :]), rel=1e-9)


def test_the_published_alpha_less_one_is_that_of_equation_3_times_k_over_k_less_one(weight, recorded):
    values = spectrum(weight)
    k = len(values) - len(values) // 2
    # xmin adds ln(xmin / xmin) = 0 to the sum and 1 to the count
    alpha = fit_hill(values, num_tail=k - 1).alpha
    assert 1 + (alpha - 1) * k / (k - 1) == pytest.approx(recorded["authors_median_alpha"], rel=1e-9)


def test_float32_weights_solved_in_float32_come_near_the_recorded_alpha(weight, recorded, monkeypatch):
    monkeypatch.setattr("tempbalance.spectral.eigenvalues._SMALL_SIDE", 0)
    (result,) = spectra(cut_by_shape(weight.float()))
    assert isinstance(result, Spectrum)
    assert not result.precise
    assert fit_tail(result.values).alpha == pytest.approx(recorded["eq3_alpha"], rel=1e-5)


@pytest.mark.parametrize("assignment", ASSIGNMENTS)
def test_an_assignment_gives_the_recorded_rates(assignment):
    recorded = GOLDEN["assignments"]
    scores = {str(i): alpha for i, alpha in enumerate(recorded["alphas"])}
    scales = assign(scores, assignment=assignment, scale_range=tuple(recorded["scale_range"]))
    assert list(scales) == list(scores)
    rates = [recorded["eta"] * scale for scale in scales.values()]
    assert rates == pytest.approx(recorded[assignment], rel=1e-12)
