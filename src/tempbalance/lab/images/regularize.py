"""Spectral norm regularisation: a penalty on the largest singular value of every weight.

The paper's objective adds (strength / 2) sum_l sigma(W_l)^2 to the loss (Yoshida and Miyato, 2017).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

_RANDOM = "random state"  # no parameter has a name with a space


class SpectralNormRegularizer:
    """Adds the gradient of the penalty to the gradients of a network's weights.

    The weights are the parameters of two or more dimensions, each as a matrix of its first dimension x the rest, tied
    ones once. A left singular vector of each is kept, which every step brings nearer to the leading one: while a weight
    moves slowly one iteration a step is enough. The penalty comes on top of any weight decay.

    Args:
        network: All its parameters are trained.
        strength: The paper's lambda_sr, >= 0; it tunes between 0.001 and 0.015, for WideResNets 0.00005 and 0.001.
        seed: Seed of the first vectors, which are drawn without touching torch's global random state.
        num_iterations: Power iterations per call of `add_gradients`.
        fresh: Start each call from new random vectors instead of the kept ones, as the paper's published code does
            with 5 iterations.

    Example:
        >>> network = nn.Linear(3, 2)
        >>> regularizer = SpectralNormRegularizer(network, strength=0.01)
        >>> network(torch.ones(1, 3)).sum().backward()
        >>> regularizer.add_gradients()  # then optimizer.step()
    """

    def __init__(
        self, network: nn.Module, *, strength: float, seed: int = 0, num_iterations: int = 1, fresh: bool = False
    ) -> None:
        self.strength, self.num_iterations, self.fresh = strength, num_iterations, fresh
        self._weights = {name: each for name, each in network.named_parameters() if each.dim() >= 2}
        self._generator = torch.Generator().manual_seed(seed)
        self._vectors = self._draw()

    def _draw(self) -> dict[str, Tensor]:
        return {
            name: normalize(torch.randn(len(weight), generator=self._generator), dim=0).to(weight)
            for name, weight in self._weights.items()
        }

    @torch.no_grad()
    def add_gradients(self) -> None:
        """Add the penalty's gradient to each weight's ``grad``; with several processes each adds the same."""
        if self.fresh:
            self._vectors = self._draw()
        for name, weight in self._weights.items():
            assert weight.grad is not None
            left, right = self._iterate(name)
            # d/dW (strength / 2) sigma^2 = strength sigma u v'
            column = left.view(-1, *(1,) * (weight.dim() - 1))
            weight.grad.addcmul_(column, right.view(weight.shape[1:]), value=self.strength)

    def _iterate(self, name: str) -> tuple[Tensor, Tensor]:
        """Bring a weight's vector nearer to the leading one; return sigma u and v."""
        matrix = self._weights[name].flatten(1)
        left = self._vectors[name].to(matrix)
        for _ in range(self.num_iterations):
            # v = W'u / |W'u|, sigma u = W v
            right = _normalize(matrix.T @ left)
            scaled = matrix @ right
            left = torch.where(scaled.norm() > 0, _normalize(scaled), left)  # a zero weight has no direction
        self._vectors[name] = left
        return scaled, right

    def state_dict(self) -> dict[str, Tensor]:
        """Return the vectors by parameter name, and with ``fresh`` the state of the random generator."""
        return {**self._vectors, **({_RANDOM: self._generator.get_state()} if self.fresh else {})}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load the state of another regularizer of the same network."""
        if self.fresh:
            self._generator.set_state(state[_RANDOM].cpu())
        self._vectors = {name: state[name].detach().to(weight, copy=True) for name, weight in self._weights.items()}


def _normalize(vector: Tensor) -> Tensor:
    """Scale a vector to length 1; a zero vector stays zero."""
    return normalize(vector, dim=0, eps=torch.finfo(vector.dtype).tiny)
