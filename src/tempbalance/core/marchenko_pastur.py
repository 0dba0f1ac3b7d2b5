"""Where the spectrum of a random matrix ends, and how much of a layer's lies beyond."""

from __future__ import annotations

import math

import torch

from tempbalance.core.matrices import Part
from tempbalance.core.spectrum import gram_matrices

_RISK = 1e-3  # that a random weight has an eigenvalue beyond the edge
_BLOCK = 2**25  # entries shuffled together; more are shuffled in blocks taken at equal strides, to bound memory


def random_edge(mean_square: float, *, rows: int, columns: int, num_slices: int = 1) -> float:
    """The value that the largest eigenvalue of random matrices stays below, but for one weight in a thousand.

    The Marchenko-Pastur law ends at v (sqrt(n) + sqrt(m))^2 for a large n x m matrix of independent entries of mean
    square v. In a matrix of finite size the largest eigenvalue fluctuates around that by the Tracy-Widom law, on the
    scale v (sqrt(n) + sqrt(m)) (1 / sqrt(n) + 1 / sqrt(m))^(1/3), which is allowed for.

    Args:
        mean_square: Of the entries.
        rows: Of a matrix.
        columns: Of a matrix.
        num_slices: How many matrices the weight has.

    Example:
        >>> round(random_edge(1.0, rows=1000, columns=1000) / 4000, 3)
        1.021
    """
    root_n, root_m = math.sqrt(rows), math.sqrt(columns)
    fluctuation = (root_n + root_m) * math.pow(1 / root_n + 1 / root_m, 1 / 3)
    return mean_square * ((root_n + root_m) ** 2 + _tracy_widom_quantile(_RISK / num_slices) * fluctuation)


def _tracy_widom_quantile(risk: float) -> float:
    """The point beyond which the Tracy-Widom law (beta = 1) has so little weight, from its leading asymptotics."""
    # risk = exp(-2/3 s^(3/2)) / (4 sqrt(pi) s^(3/4)), solved for s by iteration
    point = 3.0
    for _ in range(30):
        point = math.pow(-1.5 * math.log(risk * 4 * math.sqrt(math.pi) * math.pow(point, 0.75)), 2 / 3)
    return point


def count_beyond_shuffled(part: Part, *, edge: float, seed: int) -> int:
    """How many eigenvalues of a part lie beyond an edge once its entries are shuffled.

    Args:
        part: The matrices; entries change places among all of them.
        edge: In the units of the part's spectrum.
        seed: Decides the order.

    Raises:
        WeightError: If an entry is NaN or infinite.
    """
    gram, exponent = gram_matrices(_shuffled(part.slices, seed))
    bound = math.ldexp(edge / part.factor, -exponent)
    # bound x 1 - gram has a Cholesky factor if and only if no eigenvalue is beyond: a quarter of a solve's time
    gram.neg_().diagonal(dim1=1, dim2=2).add_(bound)
    beyond = torch.linalg.cholesky_ex(gram).info != 0
    return int((torch.linalg.eigvalsh(gram[beyond]) < 0).sum()) if beyond.any() else 0


def _shuffled(slices: torch.Tensor, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    entries = slices.reshape(-1)
    num_blocks = -(-entries.numel() // _BLOCK)
    shuffled = torch.empty_like(entries)
    for start in range(num_blocks):
        block = entries[start::num_blocks]
        shuffled[start::num_blocks] = block[torch.randperm(len(block), generator=generator).to(block.device)]
    return shuffled.reshape(slices.shape)
