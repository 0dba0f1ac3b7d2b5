"""Alpha of spectra that are made to be hard, against that of singular values in float64."""

import pytest
import torch
from torch import nn

from tempbalance.model.layers import find_layers
from tempbalance.ranking.scoring import Scoring, score_layers
from tempbalance.spectral import workers
from tempbalance.spectral.tail import fit_tail
from tests.spectral.hard import KINDS, hard_weight
from tests.spectral.reference import svd_spectrum

TAILS = ("median", "median_published", "goodness_of_fit", "peak")


def errors(seeds: range, tail: str) -> dict[int, float]:
    """The relative error of alpha, by seed."""
    weights = [hard_weight(seed) for seed in seeds]
    model = nn.ModuleList(nn.Linear(*weight.shape[::-1], bias=False) for weight in weights)
    for module, weight in zip(model, weights, strict=True):
        module.weight.data = weight
    rows = score_layers(find_layers(model), Scoring(tail=tail, score_first=True, score_last=True))
    found = {}
    for seed, row, weight in zip(seeds, rows, weights, strict=True):
        assert row.reason == "", (seed, row.reason)
        exact = fit_tail(torch.from_numpy(svd_spectrum(weight)), tail=tail)
        found[seed] = abs(row.alpha / exact.alpha - 1)
    return found


@pytest.mark.parametrize("tail", TAILS)
def test_alpha_is_that_of_float64_to_a_millionth(tail):
    found = errors(range(4 * len(KINDS)), tail)
    assert {seed: error for seed, error in found.items() if error > 1e-6} == {}


@pytest.mark.slow
@pytest.mark.parametrize("tail", TAILS)
def test_alpha_of_500_hard_spectra_is_that_of_float64_to_a_millionth(tail):
    found = errors(range(1000, 1500), tail)
    assert {seed: error for seed, error in found.items() if error > 1e-6} == {}


def test_a_layer_is_solved_again_only_where_float32_may_move_alpha(monkeypatch):
    solved, solve = [], workers.Gathered.solve

    def noted_solve(self, slices, double, lapack):
        solved.append((double, len(slices[0])))
        return solve(self, slices, double, lapack)

    monkeypatch.setattr(workers.Gathered, "solve", noted_solve)
    generator = torch.Generator().manual_seed(0)
    usual, far = nn.Linear(140, 140, bias=False), nn.Linear(140, 150, bias=False)
    for module in (usual, far):
        module.weight.data = torch.randn(module.weight.shape, generator=generator)
    far.weight.data[:3] *= 100
    score_layers(find_layers(nn.ModuleList([usual, far])), Scoring(score_first=True, score_last=True))
    assert sorted(solved) == [(False, 140), (False, 150), (True, 150)]
