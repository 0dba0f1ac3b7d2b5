"""A weight cut into the 2-D matrices that count.

A `Part` is fitted separately: a projection of a fused weight, a gate, an expert, or a whole
convolution, whose slices are pooled because they belong to one operator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from tempbalance.errors import WeightError

# The authors' code and WeightWatcher multiply each convolution slice by sqrt(1/2): no alpha moves.
CONV_FACTOR = 0.5


@dataclass(frozen=True)
class Part:
    """Matrices whose eigenvalues are pooled and fitted together."""

    name: str  # within its layer: ``q``, ``expert 3``; empty if it is all of it
    slices: Tensor  # shape (num_slices, rows, columns), a view of the weight where that is possible
    factor: float = 1.0  # multiplies every eigenvalue

    @property
    def num_eigenvalues(self) -> int:
        """Size of the pooled spectrum."""
        return self.slices.shape[0] * min(self.slices.shape[1:])


Cut = Callable[[Tensor], list[Part]]
Windows = Literal["square"] | int


def cut_matrix(weight: Tensor) -> list[Part]:
    """Return a 2-D weight as one matrix."""
    _check_dimensions(weight, 2, 2)
    return [Part("", weight.unsqueeze(0))]


def cut_convolution(weight: Tensor, *, groups: int = 1) -> list[Part]:
    """Cut a kernel into one matrix per position and group, pooled.

    A kernel has the shape ``(out, in / groups, *positions)``, or transposed ``(in, out / groups, *positions)``: both
    are grouped along their first dimension.
    """
    _check_dimensions(weight, 3, 5)
    first, second = weight.shape[:2]
    if groups < 1 or first % groups:
        raise WeightError(f"groups must divide the first dimension, got {groups} groups of {first}")
    num_positions = math.prod(weight.shape[2:])
    grouped = weight.reshape(groups, first // groups, second, num_positions)
    slices = grouped.permute(3, 0, 1, 2).reshape(num_positions * groups, first // groups, second)
    return [Part("", slices, CONV_FACTOR)]


def cut_stack(weight: Tensor) -> list[Part]:
    """Cut a stack of matrices, ``(experts, rows, columns)``, into one part per expert."""
    _check_dimensions(weight, 3, 3)
    return [Part(f"expert {i}", weight[i : i + 1]) for i in range(weight.shape[0])]


def cut_fused(weight: Tensor, *, sizes: int | Sequence[int], names: Sequence[str] = (), dim: int = 0) -> list[Part]:
    """Cut a 2-D weight that holds several projections side by side into one part per projection.

    ``sizes`` is the number of equal parts or the size of each along ``dim``, the output dimension.
    """
    _check_dimensions(weight, 2, 2)
    length = weight.shape[dim]
    if isinstance(sizes, int):
        if sizes < 1 or length % sizes:
            raise WeightError(f"fused into {sizes} equal parts, but dimension {dim} has {length} entries")
        sizes = [length // sizes] * sizes
    if sum(sizes) != length or min(sizes) < 1:
        raise WeightError(f"fused parts {list(sizes)} must be positive and add up to {length}, dimension {dim}")
    names = names or [str(i) for i in range(len(sizes))]
    parts = torch.split(weight, list(sizes), dim)
    return [Part(name, part.unsqueeze(0)) for name, part in zip(names, parts, strict=True)]


def _check_dimensions(weight: Tensor, least: int, most: int) -> None:
    if not least <= weight.dim() <= most:
        wanted = f"{least} dimensions" if least == most else f"{least} to {most} dimensions"
        raise WeightError(f"must have {wanted} to be cut into matrices, got {weight.dim()}")


def cut_by_shape(weight: Tensor, *, groups: int = 1) -> list[Part]:
    """Cut a 2-D weight as a matrix, and a weight of more dimensions as a convolution kernel."""
    if weight.dim() < 2:
        raise WeightError(f"a weight has two or more dimensions, got {weight.dim()}")
    return cut_matrix(weight) if weight.dim() == 2 else cut_convolution(weight, groups=groups)


def check_windows(windows: object) -> None:
    """Refuse anything but None, ``square`` and a side."""
    is_side = isinstance(windows, int) and not isinstance(windows, bool) and windows >= 2
    if not (windows is None or windows == "square" or is_side):
        raise ValueError(f"windows must be None, 'square' or a whole number of at least 2, got {windows!r}")


def cut_windows(part: Part, windows: Windows) -> Part:
    """Replace matrices by square windows of them, so that all have one aspect ratio (Hu et al. 2025).

    As few windows as cover a matrix are evenly spaced along each dimension, and overlap where they do not divide it.
    Their side is the given one or, if that is shorter or not given, the shorter side of the matrix. Windows are views
    where strides allow; overlapping copies take up to four times the memory of the matrix.
    """
    if part.slices.numel() == 0:
        return part
    shorter = min(part.slices.shape[1:])
    side = min(windows, shorter) if isinstance(windows, int) else shorter
    # (num_slices, windows down, windows across, side, side)
    grid = _windows_along(_windows_along(part.slices, 1, side), 2, side)
    return replace(part, slices=grid.reshape(-1, side, side))


def _windows_along(slices: Tensor, dim: int, side: int) -> Tensor:
    """Replace a dimension by the number of the window along it; the place in the window is added as the last one."""
    length = slices.shape[dim]
    num_windows = -(-length // side)
    num_steps = max(1, num_windows - 1)
    if (length - side) % num_steps == 0:
        return slices.unfold(dim, side, max(1, (length - side) // num_steps))
    starts = [i * (length - side) // num_steps for i in range(num_windows)]
    return torch.stack([slices.narrow(dim, start, side).movedim(dim, -1) for start in starts], dim)
