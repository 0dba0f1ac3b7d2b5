"""What the law gives against simulated matrices, the integral, and known values."""

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from tempbalance.errors import TailError
from tempbalance.spectral import random_matrix as module
from tempbalance.spectral.random_matrix import random_alpha, random_eigenvalues
from tempbalance.spectral.tail import TailFit, fit_hill, fit_tail
from tests.cases import raises


def simulated_alphas(rows, columns, num_slices, num_weights, *, uniform=False, **options) -> np.ndarray:
    """Fits of matrices with independent entries, their eigenvalues by a full solve."""
    generator = torch.Generator().manual_seed(rows + columns)
    alphas = []
    for _ in range(num_weights):
        draw = torch.rand if uniform else torch.randn
        weight = draw(num_slices, rows, columns, generator=generator, dtype=torch.float64) - (0.5 if uniform else 0)
        gram = weight @ weight.mT if rows <= columns else weight.mT @ weight
        spectrum = torch.linalg.eigvalsh(gram).flatten().clamp(min=1e-300).sort().values
        alphas.append(fit_tail(spectrum, **options).alpha)
    return np.array(alphas)


def integral(ratio: float) -> float:
    """1 + 1 / E[log(x / median) | x > median] for the density of the Marchenko-Pastur law, by the midpoint rule."""
    low, high = (1 - math.sqrt(ratio)) ** 2, (1 + math.sqrt(ratio)) ** 2
    edges = low + (high - low) * np.linspace(0, 1, 2_000_001) ** 2  # finer where the density may be infinite
    x = (edges[1:] + edges[:-1]) / 2
    mass = np.sqrt((high - x) * (x - low)) / (2 * math.pi * ratio * x) * np.diff(edges)
    assert mass.sum() == pytest.approx(1, abs=1e-5)
    above = np.cumsum(mass) > 0.5
    return 1 + mass[above].sum() / float((mass[above] * np.log(x[above] / x[above][0])).sum())


@pytest.mark.parametrize(
    ("rows", "columns", "num_slices", "num_weights"),
    [(50, 50, 1, 300), (50, 200, 1, 300), (1600, 50, 1, 150), (128, 512, 1, 40), (300, 300, 1, 20)]
    + [(64, 64, 9, 20), (16, 64, 9, 200), (12, 12, 9, 400), (8, 8, 9, 500), (3, 64, 49, 200), (1, 1, 576, 200)],
)
def test_the_median_fit_is_the_mean_over_gaussian_matrices_to_one_percent(rows, columns, num_slices, num_weights):
    alphas = simulated_alphas(rows, columns, num_slices, num_weights)
    assert random_alpha(rows=rows, columns=columns, num_slices=num_slices) == pytest.approx(alphas.mean(), rel=0.01)


def test_uniform_entries_obey_the_same_law():
    alphas = simulated_alphas(60, 120, 1, 300, uniform=True)
    assert random_alpha(rows=60, columns=120) == pytest.approx(alphas.mean(), rel=0.01)


@pytest.mark.parametrize("tail_fraction", [0.2, 0.8])
def test_other_fractions_agree_too(tail_fraction):
    alphas = simulated_alphas(80, 160, 1, 300, tail_fraction=tail_fraction)
    assert random_alpha(rows=80, columns=160, tail_fraction=tail_fraction) == pytest.approx(alphas.mean(), rel=0.01)


@pytest.mark.parametrize("ratio", [1, 2, 4, 32])
def test_a_large_matrix_has_the_alpha_of_the_integral(ratio):
    assert random_alpha(rows=8192, columns=8192 * ratio) == pytest.approx(integral(1 / ratio), rel=1e-3)


@pytest.mark.parametrize(("rows", "columns", "alpha"), [(512, 512, 2.1), (128, 512, 3.4), (50, 1600, 7.6)])
def test_known_values(rows, columns, alpha):
    assert random_alpha(rows=rows, columns=columns) == pytest.approx(alpha, rel=0.01)


def test_alpha_grows_with_the_aspect_ratio():
    alphas = [random_alpha(rows=64, columns=64 + extra) for extra in (0, 1, 2, 8, 32, 64, 192, 448, 2000, 10_000)]
    assert alphas == sorted(alphas)
    assert len(set(alphas)) == len(alphas)


@pytest.mark.parametrize("tail", ["median", "goodness_of_fit", "peak"])
@pytest.mark.parametrize(("rows", "columns", "num_slices"), [(50, 200, 1), (64, 64, 4), (8, 16, 9)])
def test_a_matrix_and_its_transpose_have_the_same_alpha_to_the_bit(tail, rows, columns, num_slices):
    alpha = random_alpha(rows=rows, columns=columns, num_slices=num_slices, tail=tail)
    module._alpha.cache_clear()
    assert random_alpha(rows=columns, columns=rows, num_slices=num_slices, tail=tail) == alpha


@pytest.mark.parametrize("tail", ["goodness_of_fit", "peak"])
@pytest.mark.parametrize(
    ("rows", "columns", "num_slices", "num_weights"),
    [(50, 50, 1, 200), (50, 200, 1, 200), (128, 512, 1, 60), (64, 64, 9, 40), (8, 16, 9, 200)],
)
def test_a_search_finds_what_it_finds_in_simulated_matrices_but_for_scatter(
    tail, rows, columns, num_slices, num_weights
):
    logs = np.log(simulated_alphas(rows, columns, num_slices, num_weights, tail=tail))
    difference = math.log(random_alpha(rows=rows, columns=columns, num_slices=num_slices, tail=tail)) - logs.mean()
    assert abs(difference) < 0.2
    assert abs(difference) < 0.6 * logs.std()  # of a single matrix


def test_quantiles_are_as_many_as_the_eigenvalues_between_the_edges_of_the_law_with_its_mean():
    for rows, columns, num_slices in [(100, 400, 1), (64, 64, 9), (300, 20, 3), (8, 64, 9)]:
        values = random_eigenvalues(rows=rows, columns=columns, num_slices=num_slices)
        assert values.dtype == torch.float64
        assert values.shape == (num_slices * min(rows, columns),)
        assert (values.diff() > 0).all()
        assert values[0] > 0
        assert float(values.mean()) == pytest.approx(max(rows, columns), rel=0.01)
    values = random_eigenvalues(rows=100, columns=400)
    assert 100 < float(values[0]) < 115
    assert 870 < float(values[-1]) < 900


def test_random_spectra_fluctuate_as_those_of_matrices_do():
    generator = np.random.default_rng(1)
    drawn = np.sort(module._Law(60, 120).draw(1000, generator), axis=1)
    simulated = module._simulate(1000, 60, 120, generator)
    for each in (-1, -2, -5, 30, 10):
        assert drawn[:, each].mean() == pytest.approx(simulated[:, each].mean(), rel=0.02)
        assert drawn[:, each].std() == pytest.approx(simulated[:, each].std(), rel=0.15)


def test_the_bidiagonal_model_has_the_eigenvalues_of_gaussian_matrices():
    generator = np.random.default_rng(2)
    weights = generator.standard_normal((4000, 5, 9))
    expected = np.linalg.eigvalsh(weights @ weights.swapaxes(1, 2))
    values = module._simulate(4000, 5, 9, generator)
    assert values.mean(axis=0) == pytest.approx(expected.mean(axis=0), rel=0.04)
    assert values.std(axis=0) == pytest.approx(expected.std(axis=0), rel=0.08)


def test_sines_summed_by_a_transform_are_those_summed_one_by_one():
    waves = np.random.default_rng(3).standard_normal((2, 8))
    angles = np.linspace(0, math.pi, 50)
    expected = sum(waves[:, j, None] * np.sin((8 + j) * angles) for j in range(8))
    assert module._sum_of_sines(waves, 8, angles) == pytest.approx(expected, abs=0.1)


def test_a_function_of_ones_own_is_called_once_for_a_shape_with_the_quantiles():
    seen = []

    def tail(spectrum: torch.Tensor) -> TailFit:
        seen.append(spectrum)
        return fit_hill(spectrum, num_tail=10)

    alphas = {random_alpha(rows=40, columns=90, num_slices=2, tail=tail) for _ in range(3)}
    assert len(seen) == 1
    assert torch.equal(seen[0], random_eigenvalues(rows=40, columns=90, num_slices=2))
    assert alphas == {fit_hill(seen[0], num_tail=10).alpha}


def test_threads_that_ask_at_once_get_the_same_bits():
    module._alpha.cache_clear()
    with ThreadPoolExecutor(4) as pool:
        alphas = list(pool.map(lambda _: random_alpha(rows=50, columns=70, tail="peak"), range(8)))
    module._alpha.cache_clear()
    assert set(alphas) == {random_alpha(rows=50, columns=70, tail="peak")}


def test_what_has_no_fit_is_refused():
    for tail in ("median", "goodness_of_fit", "peak"):
        with pytest.raises(TailError):
            random_alpha(rows=1, columns=5, tail=tail)
    with raises(ValueError, "rows", "columns", "num_slices", 0, 5, 1):
        random_alpha(rows=0, columns=5)
    with raises(ValueError, "tail", "'mean'"):
        random_alpha(rows=50, columns=50, tail="mean")
    with raises(ValueError, "tail_fraction", 1.5):
        random_alpha(rows=50, columns=50, tail_fraction=1.5)
