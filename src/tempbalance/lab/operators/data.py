"""Pairs of functions on a ring of length 1: an equation's initial condition, and its solution some time later.

Solutions are worked out in Fourier space and in double precision; nothing is read or downloaded.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Field = NDArray[np.float64]
Spectrum = NDArray[np.complex128]
Samples = NDArray[np.float32]

SOLVED = 256  # points of the grid on which equations are solved
GRIDS = (16, 32, 64, 128, SOLVED)  # those that are a part of it
NUM_WAVES = 10  # of an initial condition
SMOOTH = 3.0  # the wave from which on amplitudes fall as k^-2
TIME = 0.2
SPEED = 1.5  # of advection, which so goes 0.3 of the way around
VISCOSITY = 0.02
NUM_STEPS = 256  # in time; stable for initial conditions of up to 5 standard deviations


def advect(initial: Field, *, speed: float = SPEED, time: float = TIME) -> Field:
    """Solve u_t + speed u_x = 0, exactly: every wave turns.

    The grid of n points is even, and has no wave of n / 2, which has no direction.
    """
    turn = np.exp(-1j * _wave_numbers(initial) * speed * time)
    return np.fft.irfft(np.fft.rfft(initial) * turn, n=initial.shape[-1])


def solve_burgers(
    initial: Field, *, viscosity: float = VISCOSITY, time: float = TIME, num_steps: int = NUM_STEPS
) -> Field:
    """Solve u_t + u u_x = viscosity u_xx on an even grid.

    Products are taken on the grid, without the upper third of the waves, into which they would fold. Viscosity is
    solved exactly, the rest by Runge and Kutta's method of order four, in steps of equal length whatever the values
    are: a solution does not depend on those beside it.
    """
    n, step = initial.shape[-1], time / num_steps
    waves = _wave_numbers(initial)
    kept = 3 * np.arange(len(waves)) < n
    half = np.exp(-viscosity * waves**2 * step / 2)
    whole = half**2
    slope = -0.5j * step * waves * kept

    def change(spectrum: Spectrum) -> Spectrum:
        found: Spectrum = slope * np.fft.rfft(np.fft.irfft(spectrum, n=n) ** 2)
        return found

    spectrum = np.fft.rfft(initial) * kept
    for _ in range(num_steps):
        first = change(spectrum)
        second = change(half * (spectrum + first / 2))
        third = change(half * spectrum + second / 2)
        fourth = change(whole * spectrum + half * third)
        spectrum = whole * spectrum + (whole * first + 2 * half * (second + third) + fourth) / 6
    return np.fft.irfft(spectrum, n=n)


def _wave_numbers(values: Field) -> Field:
    return 2 * np.pi * np.arange(values.shape[-1] // 2 + 1)


EQUATIONS: Mapping[str, Callable[[Field], Field]] = {"burgers": solve_burgers, "advection": advect}


def random_fields(generator: np.random.Generator, num_fields: int) -> Field:
    """Functions drawn from a smooth Gaussian field with mean 0 and variance 1, shape ``(num_fields, SOLVED)``.

    They are drawn one after the other: the first of many are those of a few.
    """
    drawn = generator.standard_normal((num_fields, NUM_WAVES, 2))
    amplitudes = 1 / (1 + (np.arange(1, NUM_WAVES + 1) / SMOOTH) ** 2)
    amplitudes /= np.sqrt(np.sum(amplitudes**2))
    spectrum = np.zeros((num_fields, SOLVED // 2 + 1), dtype=np.complex128)
    spectrum[:, 1 : NUM_WAVES + 1] = SOLVED / 2 * amplitudes * (drawn[..., 0] - 1j * drawn[..., 1])
    return np.fft.irfft(spectrum, n=SOLVED)


@dataclass(frozen=True, eq=False)
class OperatorData:
    """Initial conditions and solutions, each of shape ``(samples, grid)``, and all that they follow from."""

    train_inputs: Samples
    train_targets: Samples
    test_inputs: Samples
    test_targets: Samples
    made_of: Mapping[str, Any]

    def digest(self) -> str:
        """Return a checksum of the options of the data, because last bits of a solution depend on the machine."""
        return hashlib.sha256(json.dumps(self.made_of, sort_keys=True).encode()).hexdigest()


def make_data(dataset: str, *, limit: int, test_limit: int, grid: int, seed: int) -> OperatorData:
    """Draw initial conditions and solve an equation for them; test data do not depend on the training data."""
    parts: dict[str, Samples] = {}
    for number, (part, size) in enumerate({"train": limit, "test": test_limit}.items()):
        inputs = random_fields(np.random.default_rng((seed, number)), size)
        for name, values in {"inputs": inputs, "targets": EQUATIONS[dataset](inputs)}.items():
            parts[f"{part}_{name}"] = values[:, :: SOLVED // grid].astype(np.float32)
    asked = {"dataset": dataset, "limit": limit, "test_limit": test_limit, "grid": grid, "seed": seed}
    drawn = {"solved": SOLVED, "waves": NUM_WAVES, "smooth": SMOOTH}
    solved = {"time": TIME, "speed": SPEED, "viscosity": VISCOSITY, "steps": NUM_STEPS}
    return OperatorData(**parts, made_of={**asked, **drawn, **solved})
