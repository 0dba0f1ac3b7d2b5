"""A Fourier neural operator on a ring, after Li et al., "Fourier neural operator for parametric PDEs" (2021)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

_PROJECTED = 2  # widths between the last block and the output


class SpectralConvolution(nn.Module):
    """Spectral convolution: a linear map of the channels for each of the lowest waves; higher waves are dropped.

    The weight has shape ``(width, width, modes, 2)``, the last dimension being real and imaginary part: complex weights
    have no place in TempBalance, and optimizers would see these very numbers. Anything of four dimensions is cut as the
    kernel of a convolution, one square matrix for each wave and part, whose eigenvalues are pooled. So a layer is one
    operator with one score, from 2 x modes x width eigenvalues, and its matrices have the shape of those of the
    pointwise map beside it. The matrix of real numbers that acts as a complex one does, [[Re, -Im], [Im, Re]], would
    hold every number twice.

    Args:
        width: Channels in and out.
        modes: How many waves, the constant one among them.
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
        """Functions of the same shape."""
        out: Tensor = self.activation(self.spectral(values) + self.pointwise(values))
        return out


class FourierOperator(nn.Module):
    """Fourier neural operator on a ring: channels are lifted, pass through blocks, and are projected.

    Args:
        width: Channels of the blocks.
        modes: Waves that spectral convolutions see.
        blocks: How many.
    """

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
