"""Train Fourier neural operators on a ring, after Li et al., "Fourier neural operator for parametric PDEs" (2021)."""

from __future__ import annotations

import math

import numpy as np
import torch
from lightning.fabric import Fabric
from torch import Tensor, nn

from tempbalance.lab.balancing import IterationsTraining
from tempbalance.lab.operators.data import OperatorData
from tempbalance.lab.operators.recipe import OperatorRecipe
from tempbalance.runlog import Line

_WEIGHTS, _BATCHES = range(2)  # parts of a seed
_PROJECTED = 2  # widths between the last block and the output


class SpectralConvolution(nn.Module):
    """Spectral convolution: a linear map of the channels for each of the lowest waves; higher waves are dropped.

    The weight has shape ``(width, width, modes, 2)``, the last dimension being real and imaginary part: complex weights
    have no place in TempBalance, and optimizers would see these very numbers. Anything of four dimensions is cut as the
    kernel of a convolution, one square matrix for each wave and part, whose eigenvalues are pooled. So a layer is one
    operator with one score, from 2 x modes x width eigenvalues, and its matrices have the shape of those of the
    pointwise map beside it. The matrix of real numbers that acts as a complex one does, [[Re, -Im], [Im, Re]], would
    hold every number twice.
    """

    def __init__(self, width: int, modes: int) -> None:
        super().__init__()
        self.modes = modes
        # a wave of the output has the mean square of the input's
        self.weight = nn.Parameter(torch.randn(width, width, modes, 2) / math.sqrt(2 * width))

    def forward(self, values: Tensor) -> Tensor:
        """Map functions of shape ``(batch, grid, width)`` to such; a grid has at least two points for each wave."""
        waves = torch.fft.rfft(values, dim=1, norm="forward")[:, : self.modes].transpose(0, 1)
        mapped = waves @ torch.view_as_complex(self.weight).permute(2, 1, 0)
        out: Tensor = torch.fft.irfft(mapped.transpose(0, 1), n=values.shape[1], dim=1, norm="forward")
        return out


class Block(nn.Module):
    """A spectral convolution beside a pointwise map; their sum goes through a GELU, but for the last block's."""

    def __init__(self, width: int, modes: int, *, is_last: bool) -> None:
        super().__init__()
        self.spectral = SpectralConvolution(width, modes)
        self.pointwise = nn.Linear(width, width)
        self.activation = nn.Identity() if is_last else nn.GELU()

    def forward(self, values: Tensor) -> Tensor:
        out: Tensor = self.activation(self.spectral(values) + self.pointwise(values))
        return out


class FourierOperator(nn.Module):
    """Fourier neural operator on a ring: channels are lifted, pass through blocks, and are projected."""

    def __init__(self, *, width: int, modes: int, blocks: int) -> None:
        super().__init__()
        self.lift = nn.Linear(2, width)
        self.blocks = nn.Sequential(*(Block(width, modes, is_last=each == blocks - 1) for each in range(blocks)))
        self.project = nn.Sequential(nn.Linear(width, _PROJECTED * width), nn.GELU(), nn.Linear(_PROJECTED * width, 1))

    def forward(self, inputs: Tensor) -> Tensor:
        """Map functions on a grid, shape ``(batch, grid)``; where a point is goes in beside the function's value."""
        places = torch.linspace(0, 1, inputs.shape[1] + 1, device=inputs.device)[:-1].expand_as(inputs)
        out: Tensor = self.project(self.blocks(self.lift(torch.stack([inputs, places], 2))))
        return out[..., 0]


def relative_errors(found: Tensor, wanted: Tensor) -> Tensor:
    """Return the relative error of each function in the L2 norm, from two tensors of shape ``(samples, grid)``."""
    errors: Tensor = torch.linalg.vector_norm(found - wanted, dim=1) / torch.linalg.vector_norm(wanted, dim=1)
    return errors


class OperatorTraining(IterationsTraining[OperatorRecipe]):
    """An operator in training. The loss is the mean relative error."""

    def __init__(self, recipe: OperatorRecipe, data: OperatorData, fabric: Fabric) -> None:
        self.train_pair, self.test_pair = (
            tuple(torch.from_numpy(getattr(data, f"{part}_{name}")).to(fabric.device) for name in ("inputs", "targets"))
            for part in ("train", "test")
        )
        self._pass = -1, torch.empty(0)  # its number and order
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_seed(recipe, _WEIGHTS))
            network = bare_network(recipe)
        super().__init__(recipe, network, fabric)

    def batch(self, iteration: int) -> Tensor:
        """Return the solutions of an iteration; each is read once in a pass, in an order that the pass is drawn."""
        num_samples = len(self.train_pair[0])
        number, step = divmod(iteration, math.ceil(num_samples / self.recipe.batch_size))
        if number != self._pass[0]:
            generator = torch.Generator().manual_seed(_seed(self.recipe, _BATCHES, number))
            self._pass = number, torch.randperm(num_samples, generator=generator).to(self.fabric.device)
        return self._pass[1][step * self.recipe.batch_size :][: self.recipe.batch_size]

    def loss(self, batch: int) -> Tensor:
        chosen = self.batch(batch)
        inputs, targets = (each[chosen] for each in self.train_pair)
        return relative_errors(self.model(inputs), targets).mean()

    @torch.no_grad()
    def evaluate(self) -> Line:
        """Return the mean relative error over the test set, in percent."""
        inputs, targets = self.test_pair
        error = 100 * float(relative_errors(self.model(inputs), targets).mean())
        return {"test_nrmse": self.finite("test error", error)}


def _seed(recipe: OperatorRecipe, *drawn: int) -> int:
    return int(np.random.SeedSequence((recipe.seed, *drawn)).generate_state(1, np.uint64)[0] >> np.uint64(1))


def bare_network(recipe: OperatorRecipe) -> FourierOperator:
    """Return a recipe's network."""
    return FourierOperator(width=recipe.width, modes=recipe.modes, blocks=recipe.blocks)


build = OperatorTraining
