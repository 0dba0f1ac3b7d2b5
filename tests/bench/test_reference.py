"""The plain reference against the library, and against the literal formulas of the tests."""

import pytest
import torch

from tempbalance.bench.contestants import TAILS, make_subject, reference_alpha, reference_alphas, reference_spectrum
from tempbalance.model.layers import find_layers
from tempbalance.ranking.scoring import Scoring, score_layers
from tests.spectral.reference import hill_alpha, random_spectrum, search, search_peak, svd_spectrum, to_tensor


@pytest.mark.parametrize("shape", [(40, 30), (20, 30, 3, 3), (30, 20, 5)])
def test_the_spectrum_of_a_weight_is_that_of_its_slices_one_by_one(shape):
    weight = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert reference_spectrum(weight).numpy() == pytest.approx(svd_spectrum(weight), rel=1e-9)


@pytest.mark.parametrize("kind", ["pareto", "lognormal", "marchenko_pastur", "two_clusters"])
def test_alpha_is_that_of_the_literal_formulas(kind):
    values = random_spectrum(kind, 101, seed=3)
    expected = {
        "median": hill_alpha(values, 50),
        "goodness_of_fit": search(values)[0],
        "peak": search_peak(values)[0],
    }
    assert {tail: reference_alpha(to_tensor(values), tail) for tail in TAILS} == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("network", "tail"), [*(("llama_block", tail) for tail in TAILS), ("vgg16", "median")]
)  # fmt: skip
def test_the_library_and_the_reference_agree_on_every_layer(network, tail):
    model = make_subject(network, quick=True).model.double()
    scoring = Scoring(tail=tail, min_eigenvalues=16)  # the quick networks are narrow
    rows = [row for row in score_layers(find_layers(model), scoring) if row.alpha is not None]
    assert len(rows) > 5
    expected = reference_alphas([model.get_submodule(row.name).weight.detach() for row in rows], tail)
    assert [row.alpha for row in rows] == pytest.approx(expected, rel=1e-6)
