"""The published procedure, written out plainly, to be measured against.

A layer's spectrum is found from the singular values of all its kernel slices in one batch, and its threshold in a loop
over the candidates, one Kolmogorov-Smirnov distance each. Precision and device are those of the weight.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from tempbalance.spectral.tail import TailName


def reference_spectrum(weight: Tensor) -> Tensor:
    """The squared singular values of a matrix, or of the slices of a kernel, each times sqrt(1/2); pooled, ascending.

    Args:
        weight: Shape ``(out, in)``, or ``(out, in, *positions)`` of a convolution without groups.
    """
    slices = weight if weight.dim() == 2 else weight.flatten(2).permute(2, 0, 1) * math.sqrt(0.5)
    values: Tensor = torch.linalg.svdvals(slices).square().flatten()
    return values.sort().values


def reference_alpha(values: Tensor, tail: TailName) -> float:
    """The exponent of a spectrum's tail.

    Args:
        values: Eigenvalues, ascending, > 0.
        tail: As in `tempbalance.fit_tail`.
    """
    if tail == "median":
        num_tail = len(values) // 2
        # Eq. 3: alpha = 1 + k / sum_i log(x_i / xmin), x_i the k largest, xmin the next one down
        return float(1 + num_tail / (values[-num_tail:] / values[-num_tail - 1]).log().sum())
    if tail == "goodness_of_fit":
        return _search(values, 0.0, math.inf)
    counts, edges = np.histogram(values.log10().cpu().double().numpy(), 100)
    peak = 10 ** float(edges[counts.argmax()])
    return _search(values, 0.95 * peak, 1.5 * peak)


def _search(values: Tensor, low: float, high: float) -> float:
    """Alpha at the threshold in [low, high] with the smallest distance."""
    logs = values.log()
    best, nearest = math.nan, math.inf
    for start, xmin in enumerate(values[:-1]):
        if xmin < low:
            continue
        if xmin > high:
            break
        num_tail = len(values) - start
        alpha = 1 + num_tail / (logs[start:].sum() - num_tail * logs[start])
        model = 1 - (values[start:] / xmin) ** (1 - alpha)
        before = torch.arange(num_tail, dtype=values.dtype, device=values.device) / num_tail
        distance = float((model - before).abs().max())
        if distance < nearest:
            best, nearest = float(alpha), distance
    return best


def reference_alphas(weights: Iterable[Tensor], tail: TailName) -> list[float]:
    """The exponent of each weight."""
    return [reference_alpha(reference_spectrum(weight), tail) for weight in weights]
