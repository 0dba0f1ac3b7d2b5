"""The Fourier neural operator, and what balancing sees of it."""

import math

import pytest
import torch

import tempbalance
from tempbalance.lab.operators.training import FourierOperator, SpectralConvolution


def network(**options):
    torch.manual_seed(0)
    return FourierOperator(**{"width": 64, "modes": 12, "blocks": 4, **options})


def test_functions_become_functions_on_whatever_grid():
    operator = network(width=8, modes=5, blocks=2)
    for grid in (16, 64):
        assert operator(torch.randn(3, grid)).shape == (3, grid)


def test_a_spectral_convolution_maps_each_wave_by_its_own_matrix():
    torch.manual_seed(1)
    layer = SpectralConvolution(3, 4).double()
    values = torch.randn(2, 16, 3, dtype=torch.float64)
    places = torch.arange(16, dtype=torch.float64) / 16
    expected = torch.zeros_like(values)
    for wave in range(4):
        turn = torch.exp(2j * math.pi * wave * places)
        amplitude = (values * turn.conj()[:, None]).mean(1)  # of each sample and channel
        matrix = torch.complex(*layer.weight[:, :, wave].unbind(-1))
        mapped = torch.einsum("oi,bi->bo", matrix, amplitude)
        twice = 1 if wave == 0 else 2  # the wave that goes the other way
        expected += twice * (mapped[:, None] * turn[:, None]).real
    torch.testing.assert_close(layer(values), expected)


def test_one_function_on_two_grids_is_convolved_to_one_function():
    layer = SpectralConvolution(2, 5)
    waves = [torch.sin(2 * math.pi * torch.arange(grid) / grid)[None, :, None].repeat(1, 1, 2) for grid in (16, 32)]
    coarse, fine = map(layer, waves)
    torch.testing.assert_close(coarse, fine[:, ::2])


def scored(operator):
    optimizer = torch.optim.Adam(tempbalance.param_groups(operator), lr=1e-3)
    return {row.name: row for row in tempbalance.TempBalance(optimizer, operator).table()}


def test_every_layer_of_every_block_is_scored():
    rows = scored(network())
    inner = {f"blocks.{block}.{part}" for block in range(4) for part in ("spectral", "pointwise")}
    assert {name for name, row in rows.items() if row.score is not None} == {*inner, "project.0"}
    assert rows["blocks.0.spectral"].num_eigenvalues == 64 * 12 * 2
    assert {rows[name].reason for name in ("lift", "project.2")} == {"first layer", "last layer"}


def test_the_eigenvalues_of_a_spectral_convolution_are_those_of_its_real_and_imaginary_matrices():
    operator = network(blocks=1)
    weight = operator.blocks[0].spectral.weight.detach()
    pooled = torch.cat(
        [torch.linalg.svdvals(weight[:, :, wave, part]) ** 2 for wave in range(12) for part in range(2)]
    ).sort()[0]
    tail, below = pooled[-len(pooled) // 2 :], pooled[-len(pooled) // 2 - 1]
    assert scored(operator)["blocks.0.spectral"].alpha == pytest.approx(
        1 + len(tail) / float((tail / below).log().sum()), rel=1e-3
    )


def test_a_wave_keeps_its_mean_square_at_first():
    torch.manual_seed(0)
    layer = SpectralConvolution(64, 12)
    waves = torch.randn(200, 12, 64, dtype=torch.complex64)
    waves[:, 0] = waves[:, 0].real.to(waves.dtype)  # the constant one has no direction
    before = torch.fft.irfft(waves, n=64, dim=1, norm="forward")
    assert float(layer(before).detach().var() / before.var()) == pytest.approx(1, rel=0.05)
