"""The edge against simulated random matrices, the count against a full solve."""

import pytest
import torch

from tempbalance.spectral import random_matrix
from tempbalance.spectral.matrices import CONV_FACTOR, Part, cut_convolution, cut_matrix
from tempbalance.spectral.random_matrix import _tracy_widom_quantile, count_beyond_shuffled, random_edge
from tempbalance.spectral.workers import spectra


def eigenvalues(part: Part) -> torch.Tensor:
    (spectrum,) = spectra([part], double=True)
    return spectrum.eigenvalues


def edge_of(part: Part) -> float:
    num_slices, rows, columns = part.slices.shape
    mean_square = float(part.slices.double().square().mean()) * part.factor
    return random_edge(mean_square, rows=rows, columns=columns, num_slices=num_slices)


@pytest.mark.parametrize(("risk", "point"), [(0.01, 2.0234), (0.001, 3.2724)])
def test_the_tail_of_the_tracy_widom_law_is_that_of_published_tables(risk, point):
    assert _tracy_widom_quantile(risk) == pytest.approx(point, abs=0.12)


@pytest.mark.parametrize(("rows", "columns"), [(50, 50), (64, 512), (300, 200), (8, 2000)])
def test_random_matrices_stay_below_the_edge_and_come_near_it(rows, columns):
    largest = []
    for seed in range(60):
        weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        largest.append(float(torch.linalg.matrix_norm(weight, 2)) ** 2)
    edge = random_edge(1.0, rows=rows, columns=columns)
    assert sum(each > edge for each in largest) <= 1
    assert max(largest) > 0.85 * edge


def test_an_initialised_convolution_has_nothing_beyond_the_edge_and_a_spike_is_counted():
    torch.manual_seed(0)
    for _ in range(20):
        (part,) = cut_convolution(torch.nn.Conv2d(64, 128, 3).weight.detach())
        assert part.factor == CONV_FACTOR
        assert int((eigenvalues(part) > edge_of(part)).sum()) == 0
    weight = torch.randn(200, 300) + 0.5 * torch.randn(200, 1) @ torch.randn(1, 300)
    (part,) = cut_matrix(weight)
    assert int((eigenvalues(part) > edge_of(part)).sum()) == 1


def test_shuffling_removes_what_is_due_to_order_and_keeps_what_is_due_to_large_entries():
    torch.manual_seed(0)
    correlated = torch.randn(200, 300) + torch.randn(200, 5) @ torch.randn(5, 300)
    (part,) = cut_matrix(correlated)
    assert int((eigenvalues(part) > edge_of(part)).sum()) == 5
    assert count_beyond_shuffled(part, edge=edge_of(part), seed=1) == 0
    trapped = torch.randn(200, 300)
    trapped[17, 33] = trapped[99, 101] = 100.0
    (part,) = cut_matrix(trapped)
    assert count_beyond_shuffled(part, edge=edge_of(part), seed=1) == 2


@pytest.mark.parametrize("scale", [1e-18, 1.0, 1e18])
def test_the_count_equals_that_of_a_full_solve_of_the_same_shuffled_entries(scale):
    weight = torch.distributions.StudentT(2.5).sample((24, 24, 3, 3)) * scale
    (part,) = cut_convolution(weight)
    shuffled = Part("", random_matrix._shuffled(part.slices, 5), part.factor)
    assert sorted(shuffled.slices.flatten().tolist()) == sorted(part.slices.flatten().tolist())
    edge = edge_of(part)
    expected = int((eigenvalues(shuffled) > edge).sum())
    assert expected > 0
    assert count_beyond_shuffled(part, edge=edge, seed=5) == expected


def test_a_large_weight_is_shuffled_in_blocks_that_keep_every_entry(monkeypatch):
    monkeypatch.setattr(random_matrix, "_BLOCK", 1000)
    slices = torch.arange(60 * 70.0).reshape(1, 60, 70)
    shuffled = random_matrix._shuffled(slices, 0)
    assert torch.equal(shuffled.flatten().sort().values, slices.flatten())
    assert (shuffled == slices).float().mean() < 0.01
