"""Eigenvalues that are repaired, and fits that float32 cannot decide."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from tempbalance.errors import TailError
from tempbalance.spectral import workers
from tempbalance.spectral.eigenvalues import Spectrum
from tempbalance.spectral.matrices import cut_by_shape
from tempbalance.spectral.repair import fit_spectrum, repair
from tempbalance.spectral.tail import fit_goodness_of_fit, fit_peak, fit_tail
from tempbalance.spectral.workers import spectra
from tests.cases import raises
from tests.spectral.reference import svd_spectrum
from tests.spectral.test_eigenvalues import gauss

WEIGHTS = {
    "wide": lambda: gauss(140, 300).float(),
    "tall": lambda: gauss(300, 140).float(),
    "square": lambda: gauss(150, 150).float(),
    "bfloat16": lambda: gauss(140, 200).bfloat16(),
    "tiny": lambda: (gauss(140, 200) * 1e-41).float(),
    "huge": lambda: (gauss(140, 200) * 1e30).float(),
    "kernel": lambda: gauss(140, 150, 3, 1).float(),
    "kernel of many jobs": lambda: gauss(330, 340, 2, 1).float() * torch.tensor([1.0, 3.0]).reshape(2, 1),
    "transposed view": lambda: gauss(200, 140).float().t(),
    "far spikes": lambda: (gauss(140, 150) + 3 * gauss(140, 2, seed=1) @ gauss(2, 150, seed=2)).float(),
}


def reduced(weight: torch.Tensor) -> Spectrum:
    """Return the spectrum in float32 that a fit is given."""
    seen = []
    spectra(cut_by_shape(weight), then=lambda _, spectrum: seen.append(spectrum))
    assert not seen[0].precise
    return seen[0]


def exact(spectrum: Spectrum, weight: torch.Tensor) -> np.ndarray:
    return svd_spectrum(weight.double() * 2.0 ** (-spectrum.exponent // 2))


@pytest.mark.parametrize("name", WEIGHTS)
def test_repaired_values_are_those_of_float64(name):
    weight = WEIGHTS[name]()
    before = reduced(weight)
    num = len(before.values)
    expected = exact(before, weight)
    for chosen in (np.arange(num - 20, num), np.arange(num // 2, num // 2 + 3), np.array([num - 1])):
        after = repair(before, chosen)
        errors = np.abs(after.values.numpy() - expected)
        assert errors[chosen].max() <= 1e-10 * expected[-1]
        assert (errors[chosen] <= after.errors[chosen] + 1e-13 * expected[-1]).all()
        assert (after.errors[chosen] < before.errors[chosen] / 10).all()
        others = np.setdiff1d(np.arange(num), chosen)
        assert np.array_equal(after.values[others], before.values[others])


def test_the_smallest_value_of_a_square_matrix_can_be_repaired():
    weight = gauss(300, 300).float()
    before = reduced(weight)
    after, expected = repair(before, np.arange(32)), exact(before, weight)
    assert before.errors[0] > 1e-2 * expected[0]
    assert float(after.values[0]) == pytest.approx(expected[0], rel=1e-4)
    assert abs(float(after.values[0]) - expected[0]) <= after.errors[0]


def test_values_can_be_repaired_one_after_the_other():
    weight = WEIGHTS["kernel"]()
    before = reduced(weight)
    after = repair(repair(before, np.arange(30)), np.arange(300, 350))
    assert np.abs(after.values.numpy() - exact(before, weight))[300:350].max() < 1e-10
    assert (np.diff(after.values.numpy()) >= 0).all()


def test_eigenvectors_of_another_matrix_are_noticed():
    before = reduced(gauss(140, 150).float())
    other = reduced(gauss(140, 150, seed=1).float())
    with raises(TailError, "eigenvectors"):
        repair(replace(before, slices=other.slices), np.arange(10))


@pytest.mark.parametrize("tail", ["median", "median_published", "goodness_of_fit", "peak"])
def test_a_pooled_convolution_has_the_alpha_of_float64(tail):
    for seed in range(4):
        weight = gauss(140, 150, 3, 3, seed=seed).float()
        fit = fit_spectrum(reduced(weight), tail=tail, tail_fraction=0.5, min_eigenvalues=50)
        expected = fit_tail(torch.from_numpy(svd_spectrum(weight)), tail=tail)
        assert fit.num_tail == expected.num_tail
        assert fit.alpha == pytest.approx(expected.alpha, rel=1e-6)
        assert fit.ks == pytest.approx(expected.ks, abs=1e-5)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("tail", ["median", "goodness_of_fit", "peak"])
@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e-12])
def test_a_slice_without_weights_gives_the_fit_of_float64_or_none(tail, scale):
    weight = gauss(140, 150, 3, 3).float()
    weight[:, :, 1, 1] *= scale
    try:
        fit = fit_spectrum(reduced(weight), tail=tail, tail_fraction=0.5, min_eigenvalues=50)
    except TailError:
        return
    (precise,) = spectra(cut_by_shape(weight), double=True)
    expected = fit_spectrum(precise, tail=tail, tail_fraction=0.5, min_eigenvalues=50)
    assert fit.num_tail == expected.num_tail
    assert fit.alpha == pytest.approx(expected.alpha, rel=1e-6)


@pytest.mark.filterwarnings("error")
def test_a_matrix_with_rows_of_zeros_has_no_smallest_value_to_repair():
    weight = gauss(300, 400).float()
    weight[:100] = 0
    with raises(TailError, "noise"):
        fit_spectrum(reduced(weight), tail="peak", tail_fraction=0.5, min_eigenvalues=50)


def test_a_second_repair_of_a_value_does_not_lower_its_error_again():
    before = reduced(gauss(140, 300).float())
    once = repair(before, np.arange(20))
    assert np.allclose(repair(once, np.arange(20)).errors, once.errors, rtol=1e-3, atol=0)


def test_without_eigenvectors_a_fit_that_needs_them_fails():
    spectrum = reduced(gauss(140, 2000).float())
    for tail in ("goodness_of_fit", "peak"):
        with raises(TailError, "eigenvectors"):
            fit_spectrum(replace(spectrum, slices=None), tail=tail, tail_fraction=0.5, min_eigenvalues=50)


def test_eigenvectors_are_not_kept_for_longer_or_larger_than_needed(monkeypatch):
    seen = []
    weight = gauss(330, 330, 2).float()  # each slice is a job of its own
    (result,) = spectra(cut_by_shape(weight), then=lambda _, spectrum: seen.append(spectrum.slices is not None))
    assert result.slices is None
    monkeypatch.setattr(workers, "_KEPT_BYTES", 4 * 330**2)
    spectra(cut_by_shape(weight), then=lambda _, spectrum: seen.append(spectrum.slices is not None))
    spectra(cut_by_shape(weight[..., 0]), then=lambda _, spectrum: seen.append(spectrum.slices is not None))
    assert seen == [True, False, True]


# searches among values with errors


def pareto(size: int = 400, alpha: float = 3.0, seed: int = 0) -> np.ndarray:
    return np.sort(np.random.default_rng(seed).pareto(alpha - 1, size) + 1)


@pytest.mark.parametrize("search", [fit_goodness_of_fit, fit_peak])
def test_small_errors_leave_a_search_as_it_is(search):
    for seed in range(20):
        values = pareto(seed=seed)
        assert search(values, errors=1e-9 * values) == search(values)


@pytest.mark.parametrize("search", [fit_goodness_of_fit, fit_peak])
def test_a_search_that_its_errors_may_change_fails(search):
    changed = 0
    for seed in range(60):
        values, generator = pareto(seed=seed), np.random.default_rng(seed)
        errors = 3e-4 * values
        moved = np.sort(values + errors * generator.uniform(-1, 1, len(values)))
        if search(moved).num_tail != search(values).num_tail:
            changed += 1
            with pytest.raises(TailError):
                search(values, errors=errors)
    assert changed > 3


@pytest.mark.parametrize("search", [fit_goodness_of_fit, fit_peak])
def test_a_search_fails_if_errors_above_an_exact_threshold_may_change_it(search):
    changed = 0
    for seed in range(60):
        values, generator = pareto(seed=seed), np.random.default_rng(seed)
        errors = 1e-3 * values
        errors[:100] = 1e-12 * values[:100]  # repaired
        moved = np.sort(values + errors * generator.uniform(-1, 1, len(values)))
        if search(moved).num_tail != search(values).num_tail:
            changed += 1
            with pytest.raises(TailError):
                search(values, errors=errors)
    assert changed > 3


def test_a_peak_fails_where_an_edge_may_pass_a_value():
    values = pareto()
    errors = 1e-9 * values
    errors[0] = 0.05 * values[0]  # moves all edges
    with raises(TailError, "rounding"):
        fit_peak(values, errors=errors)


def test_a_search_fails_where_noise_may_be_the_threshold():
    values = np.concatenate([np.full(3, 1e-9), np.exp(np.linspace(0, 20, 100))])  # a power law down to the noise
    errors = np.full(len(values), 1e-9)
    with raises(TailError, "noise"):
        fit_goodness_of_fit(values, errors=errors)
    assert math.isfinite(fit_goodness_of_fit(values).alpha)
