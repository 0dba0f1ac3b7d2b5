"""A spectrum and its fit to the number a layer is ranked by."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor

from tempbalance.errors import ScoreError
from tempbalance.spectral.tail import TailFit

ScoreName = Literal[
    "alpha", "alpha_weighted", "log_alpha_norm", "spectral_norm", "stable_rank", "frobenius_norm", "entropy"
]
ScoreFunction = Callable[[Tensor, TailFit], float]

NEEDS_FIT = ("alpha", "alpha_weighted", "log_alpha_norm")


def check_score(score: str | Callable[..., object]) -> None:
    """Refuse an unknown name."""
    if not callable(score) and score not in get_args(ScoreName):
        raise ValueError(f"score must be one of {', '.join(get_args(ScoreName))} or a callable, got {score!r}")


def compute_score(spectrum: Tensor, fit: TailFit | None, *, score: ScoreName | ScoreFunction = "alpha") -> float:
    """Return the score of a spectrum.

    Args:
        spectrum: Eigenvalues, shape ``(n,)``, ascending, >= 0, not all zero.
        fit: Its tail fit; ``None`` serves for a score that does not look at it.
        score: ``alpha``; ``alpha_weighted``, alpha x log10 of the largest eigenvalue; ``log_alpha_norm``, log10 of the
            sum of the eigenvalues to the power alpha; ``spectral_norm``, the largest eigenvalue, as the paper has it;
            ``stable_rank``, the sum of the eigenvalues over the largest; ``frobenius_norm``, the root of their sum;
            ``entropy``, that of the eigenvalues as shares of their sum, over its largest value log n, 0 to 1.
            A callable is given the spectrum and the fit.

    Raises:
        ScoreError: If the score is not finite, or needs a fit and there is none.
    """
    check_score(score)
    if fit is None and (callable(score) or score in NEEDS_FIT):
        raise ScoreError(f"{score!r} needs a tail fit")
    value = score(spectrum, fit) if callable(score) else _FUNCTIONS[score](spectrum, fit)  # type: ignore[arg-type]
    try:
        number = float(value)
    except (TypeError, ValueError) as err:
        raise ScoreError(f"score must be a number, got {value!r} from {score!r}") from err
    if not math.isfinite(number):
        raise ScoreError(f"score must be finite, got {number} from {score!r}")
    return number


def _entropy(spectrum: Tensor, _: TailFit) -> float:
    # -sum_i p_i log p_i / log n with p_i = x_i / sum_j x_j
    shares = spectrum / spectrum.sum()
    return float(-torch.xlogy(shares, shares).sum()) / math.log(len(spectrum)) if len(spectrum) > 1 else 0.0


_FUNCTIONS: dict[str, ScoreFunction] = {
    "alpha": lambda _, fit: fit.alpha,
    "alpha_weighted": lambda spectrum, fit: fit.alpha * float(spectrum[-1].log10()),
    # log10 sum_i x_i^alpha, in logarithms because x^alpha may overflow; a zero adds exp(-inf)
    "log_alpha_norm": lambda spectrum, fit: float((spectrum.log() * fit.alpha).logsumexp(0)) / math.log(10),
    "spectral_norm": lambda spectrum, _: float(spectrum[-1]),
    "stable_rank": lambda spectrum, _: float(spectrum.sum() / spectrum[-1]),
    "frobenius_norm": lambda spectrum, _: float(spectrum.sum().sqrt()),
    "entropy": _entropy,
}
