"""Equations solved on a ring, and the samples made of their solutions."""

import numpy as np
import pytest

from tempbalance.lab.operators.data import (
    EQUATIONS,
    GRIDS,
    NUM_WAVES,
    SOLVED,
    SPEED,
    TIME,
    VISCOSITY,
    advect,
    make_data,
    random_fields,
    solve_burgers,
)

PLACES = np.arange(SOLVED) / SOLVED


def fields(num_fields=4, seed=3):
    return random_fields(np.random.default_rng(seed), num_fields)


def cole_hopf(initial, *, viscosity, time):
    """Burgers' solution from that of the heat equation; ``initial`` has mean 0."""
    n = initial.shape[-1]
    slopes = 2j * np.pi * np.arange(n // 2 + 1)
    spectrum = np.fft.rfft(initial)
    integral = np.fft.irfft(np.concatenate([spectrum[..., :1] * 0, spectrum[..., 1:] / slopes[1:]], -1), n=n)
    heat = np.fft.rfft(np.exp(-integral / (2 * viscosity))) * np.exp(viscosity * slopes**2 * time)
    return -2 * viscosity * np.fft.irfft(slopes * heat, n=n) / np.fft.irfft(heat, n=n)


def finer(values, n):
    """The same waves on a finer grid."""
    spectrum = np.fft.rfft(values)
    padded = np.zeros((*values.shape[:-1], n // 2 + 1), dtype=complex)
    padded[..., : spectrum.shape[-1]] = spectrum
    return np.fft.irfft(padded, n=n) * n / values.shape[-1]


def test_advection_shifts_a_function_around_the_ring():
    whole = 48 / SOLVED  # places that the grid has
    np.testing.assert_allclose(advect(fields(), speed=whole, time=1.0), np.roll(fields(), 48, axis=1), atol=1e-13)
    waves = np.sin(2 * np.pi * PLACES) + 0.3 * np.cos(6 * np.pi * PLACES) + 2
    moved = PLACES - SPEED * TIME
    expected = np.sin(2 * np.pi * moved) + 0.3 * np.cos(6 * np.pi * moved) + 2
    np.testing.assert_allclose(advect(waves), expected, atol=1e-13)


def test_burgers_is_the_solution_of_cole_and_hopf():
    sine = np.sin(2 * np.pi * PLACES)[None]
    expected = cole_hopf(finer(sine, 1024), viscosity=VISCOSITY, time=TIME)[:, ::4]
    np.testing.assert_allclose(solve_burgers(sine), expected, atol=1e-8)
    initial = fields(20)
    expected = cole_hopf(finer(initial, 1024), viscosity=VISCOSITY, time=TIME)[:, ::4]
    np.testing.assert_allclose(solve_burgers(initial), expected, atol=1e-6)


def test_burgers_errors_fall_with_the_fourth_power_of_the_step():
    initial = fields()
    exact = cole_hopf(finer(initial, 1024), viscosity=0.05, time=0.1)[:, ::4]
    errors = [
        np.abs(solve_burgers(initial, viscosity=0.05, time=0.1, num_steps=each) - exact).max() for each in (100, 200)
    ]
    assert 12 < errors[0] / errors[1] < 20
    assert errors[1] < 1e-8


def test_burgers_keeps_mass_and_loses_energy():
    initial = fields() + 0.5
    times = [solve_burgers(initial, time=each) for each in (0.05, 0.1, 0.2)]
    for values in times:
        np.testing.assert_allclose(values.mean(1), initial.mean(1), atol=1e-14)
    energies = np.stack([(values**2).mean(1) for values in (initial, *times)])
    assert (np.diff(energies, axis=0) < 0).all()


def test_burgers_moves_with_a_constant_added():
    moved = advect(solve_burgers(fields()), speed=0.5)
    np.testing.assert_allclose(solve_burgers(fields() + 0.5), moved + 0.5, atol=1e-6)


@pytest.mark.parametrize("dataset", EQUATIONS)
def test_a_solution_does_not_depend_on_those_beside_it(dataset):
    solve, initial = EQUATIONS[dataset], fields(7)
    np.testing.assert_allclose(np.stack([solve(each) for each in initial]), solve(initial), atol=1e-12)


def test_random_fields_have_mean_0_variance_1_and_few_waves():
    values = fields(3000)
    assert values.mean() == pytest.approx(0, abs=1e-12)
    assert (values**2).mean() == pytest.approx(1, rel=0.02)
    spectrum = np.abs(np.fft.rfft(values))
    assert spectrum[:, NUM_WAVES + 1 :].max() < 1e-10
    power = (spectrum[:, 1 : NUM_WAVES + 1] ** 2).mean(0)
    assert (np.diff(power) < 0).all()


def test_few_samples_are_the_first_of_many_and_the_test_set_is_the_same():
    few, many = (make_data("burgers", limit=each, test_limit=5, grid=64, seed=1) for each in (3, 20))
    np.testing.assert_array_equal(few.train_inputs, many.train_inputs[:3])
    np.testing.assert_allclose(few.train_targets, many.train_targets[:3], atol=1e-6)
    np.testing.assert_array_equal(few.test_inputs, many.test_inputs)
    np.testing.assert_allclose(few.test_targets, many.test_targets, atol=1e-6)
    assert not np.isin(many.test_inputs, many.train_inputs).any()


@pytest.mark.parametrize("grid", GRIDS)
def test_a_coarser_grid_has_the_same_functions(grid):
    fine, coarse = (make_data("advection", limit=2, test_limit=1, grid=each, seed=1) for each in (SOLVED, grid))
    assert coarse.train_targets.shape == (2, grid)
    assert coarse.train_inputs.dtype == np.float32
    np.testing.assert_array_equal(coarse.train_targets, fine.train_targets[:, :: SOLVED // grid])


def test_data_are_known_by_what_they_are_made_of():
    options = {"limit": 2, "test_limit": 1, "grid": 32, "seed": 1}
    made = make_data("advection", **options)
    again = make_data("advection", **options)
    assert made.digest() == again.digest()
    np.testing.assert_array_equal(made.train_targets, again.train_targets)
    for name in options:
        other = {**options, name: 16 if name == "grid" else 7}
        assert make_data("advection", **other).digest() != made.digest()
    assert make_data("burgers", **options).digest() != made.digest()
