"""Weights whose spectra are hard on a solver: heavy tails, far spikes, decay by powers, several bulks."""

import math

import torch
from torch import Tensor

KINDS = ("gauss", "uniform", "student", "spiked", "far_spikes", "power", "two_bulks", "narrow", "steps", "rows")


def hard_weight(seed: int, *, sides: tuple[int, int] = (130, 300)) -> Tensor:
    """Return a float32 weight; the seed chooses its kind, its shape and its numbers."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(low: float, high: float) -> float:
        return low + (high - low) * float(torch.rand((), generator=generator, dtype=torch.float64))

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    kind = KINDS[seed % len(KINDS)]
    rows = round(uniform(*sides))
    columns = rows if seed % 3 == 0 else round(rows * uniform(1, 4))
    weight = normal(rows, columns)
    if kind == "uniform":
        weight = torch.rand(rows, columns, generator=generator, dtype=torch.float64) * 2 - 1
    elif kind == "student":
        freedom = round(uniform(2, 6))
        weight = weight / normal(freedom, rows, columns).square().mean(0).sqrt()
    elif kind in ("spiked", "far_spikes"):
        size = math.sqrt(rows) * (uniform(0.01, 0.1) if kind == "spiked" else uniform(0.1, 10))
        weight = weight + size * normal(rows, 4) @ normal(4, columns) / math.sqrt(rows)
    elif kind == "rows":
        weight = weight * torch.exp(uniform(0.3, 1.5) * normal(rows, 1))
    elif kind in ("power", "two_bulks", "narrow", "steps"):
        left, right = torch.linalg.qr(normal(rows, rows)).Q, torch.linalg.qr(normal(columns, rows)).Q
        values = torch.linspace(1, rows, rows, dtype=torch.float64) ** -uniform(0.2, 2)
        if kind == "two_bulks":
            values = torch.rand(rows, generator=generator, dtype=torch.float64) + 1
            values[: rows // 2] *= 10 ** -uniform(0.5, 3)
        elif kind == "narrow":
            values = 1 + uniform(0.01, 0.5) * torch.rand(rows, generator=generator, dtype=torch.float64)
        elif kind == "steps":
            values = 2.0 ** -torch.arange(rows).div(max(1, rows // 8), rounding_mode="floor").double()
            values = values * (1 + 0.1 * torch.rand(rows, generator=generator, dtype=torch.float64))
        weight = (left * values) @ right.T
    weight = weight.float()
    return weight if seed % 2 else weight.T.contiguous()
