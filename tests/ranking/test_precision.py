"""Alpha of spectra that are made to be hard, against that of singular values in float64."""

import pytest
import torch
from torch import nn

from tempbalance.model.layers import find_layers
from tempbalance.ranking.scoring import Scoring, score_layers
from tempbalance.spectral import repair, workers
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


@pytest.mark.parametrize("tail", ["median", "goodness_of_fit", "peak"])
def test_most_hard_spectra_are_repaired_and_few_solved_again(tail, monkeypatch):
    solved = note_solves(monkeypatch)
    errors(range(4 * len(KINDS)), tail)
    assert sum(solved) <= 4 * len(KINDS) / 4


@pytest.mark.parametrize(("factor", "num_repaired", "num_solved_again"), [(1, 0, 0), (100, 1, 0), (1e5, 0, 1)])
def test_a_layer_is_repaired_or_solved_again_only_where_float32_may_move_alpha(
    factor, num_repaired, num_solved_again, monkeypatch
):
    solved, repaired, first_repair = note_solves(monkeypatch), [], repair.repair
    monkeypatch.setattr(repair, "repair", lambda *arguments: repaired.append(1) or first_repair(*arguments))
    layer = nn.Linear(140, 150, bias=False)
    layer.weight.data = torch.randn(layer.weight.shape, generator=torch.Generator().manual_seed(0))
    layer.weight.data[:3] *= factor
    score_layers(find_layers(layer), Scoring(score_first=True, score_last=True))
    assert (len(repaired), sum(solved), len(solved)) == (num_repaired, num_solved_again, 1 + num_solved_again)


def note_solves(monkeypatch) -> list[bool]:
    """Return a list that will have whether each solve was in float64."""
    solved, solve = [], workers.Gathered.solve

    def noted_solve(self, slices, double, lapack):
        solved.append(double)
        return solve(self, slices, double, lapack)

    monkeypatch.setattr(workers.Gathered, "solve", noted_solve)
    return solved
