"""Spectral norm regularisation: a penalty on the largest singular value of every weight.

The paper's objective adds (strength / 2) sum_l sigma(W_l)^2 to the loss (Yoshida and Miyato, 2017).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.nn.parameter import Parameter, is_lazy

from tempbalance.errors import WeightError
from tempbalance.model.sharded import unwrap

_RANDOM = "random state"  # no parameter has a name with a space


class SpectralNormRegularizer:
    """Adds the gradient of the penalty to the gradients of a model's weights.

    The weights are the parameters of two or more dimensions, each as a matrix of its first dimension x the rest, tied
    ones once. Of each a left singular vector is kept, which every step brings nearer to the leading one: while a weight
    moves slowly one iteration a step is enough. The penalty comes on top of any weight decay.

    Frozen weights are passed over. So are, in a step, weights whose ``grad`` is None: they took no part in the loss,
    and an optimizer leaves them as they are, weight decay or not.

    Args:
        model: Any module; wrappers such as DDP and torch.compile are looked through.
        strength: The paper's lambda_sr, >= 0; it tunes between 0.001 and 0.015, for WideResNets 0.00005 and 0.001.
        seed: Of the first vectors, which are drawn without touching torch's global random state.
        num_iterations: Power iterations per call of `add_gradients`.
        fresh: Start each call from new random vectors instead of the kept ones, as the paper's published code does
            with 5 iterations.

    Raises:
        ValueError: If an option is out of range.
        WeightError: If a weight is lazy and not initialised.

    Example:
        >>> model = nn.Linear(3, 2)
        >>> regularizer = SpectralNormRegularizer(model, strength=0.01)
        >>> model(torch.ones(1, 3)).sum().backward()
        >>> regularizer.add_gradients()  # then optimizer.step()
    """

    def __init__(
        self, model: nn.Module, *, strength: float, seed: int = 0, num_iterations: int = 1, fresh: bool = False
    ) -> None:
        if not (math.isfinite(strength) and strength >= 0):
            raise ValueError(f"strength must be finite and >= 0, got {strength!r}")
        if num_iterations < 1:
            raise ValueError(f"num_iterations must be >= 1, got {num_iterations!r}")
        self.strength = strength
        self.num_iterations = num_iterations
        self._weights = dict(_named_weights("", model, set()))
        self.fresh = fresh
        self._generator = torch.Generator().manual_seed(seed)
        self._vectors = self._draw()

    def _draw(self) -> dict[str, Tensor]:
        return {
            name: normalize(torch.randn(len(weight), generator=self._generator), dim=0).to(weight)
            for name, weight in self._weights.items()
        }

    @torch.no_grad()
    def add_gradients(self) -> None:
        """Add the penalty's gradient to each weight's ``grad``; call it between ``backward()`` and ``step()``.

        With a GradScaler, call it after ``unscale_``; with DDP every rank adds the same.
        """
        if self.fresh:
            self._vectors = self._draw()
        for name, weight in self._weights.items():
            if not weight.requires_grad or weight.grad is None:
                continue
            left, right = self._iterate(name)
            # d/dW (strength / 2) sigma^2 = strength sigma u v'
            column = left.view(-1, *(1,) * (weight.dim() - 1))
            weight.grad.addcmul_(column, right.view(weight.shape[1:]), value=self.strength)

    @torch.no_grad()
    def penalty(self) -> float:
        """(strength / 2) sum sigma^2 over the weights that are not frozen.

        Each sigma is |W'u| with the kept vector u as it is: never above the true one, and near it after some steps.
        """
        norms = (
            (weight.flatten(1).T @ self._vector(name)).norm()
            for name, weight in self._weights.items()
            if weight.requires_grad
        )
        return self.strength / 2 * sum(float(norm) ** 2 for norm in norms)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the vectors by parameter name, and with ``fresh`` the state of the random generator."""
        return {**self._vectors, **({_RANDOM: self._generator.get_state()} if self.fresh else {})}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load the vectors of another regularizer of the same model.

        Raises:
            ValueError: If a parameter's vector is missing, of another shape, or belongs to no weight of the model.
        """
        for name, weight in self._weights.items():
            if name not in state:
                raise ValueError(f"the state has no vector for parameter {name!r}")
            if state[name].shape != weight.shape[:1]:
                raise ValueError(
                    f"parameter {name!r} of shape {tuple(weight.shape)} needs a vector of {len(weight)}, "
                    f"the state's has shape {tuple(state[name].shape)}"
                )
        for name in state:
            if name not in self._weights and name != _RANDOM:
                raise ValueError(f"the state has a vector for parameter {name!r}, which is no weight of the model")
        if self.fresh and _RANDOM in state:
            self._generator.set_state(state[_RANDOM].cpu())
        self._vectors = {name: state[name].detach().to(weight, copy=True) for name, weight in self._weights.items()}

    def _vector(self, name: str) -> Tensor:
        """Return a vector on the present device of its weight."""
        return self._vectors[name].to(self._weights[name])

    def _iterate(self, name: str) -> tuple[Tensor, Tensor]:
        """Bring a weight's vector nearer to the leading one; gives sigma u and v."""
        matrix = self._weights[name].flatten(1)
        left = self._vector(name)
        for _ in range(self.num_iterations):
            # v = W'u / |W'u|, sigma u = W v
            right = _normalize(matrix.T @ left)
            scaled = matrix @ right
            left = torch.where(scaled.norm() > 0, _normalize(scaled), left)  # a zero weight has no direction
        self._vectors[name] = left
        return scaled, right


def _normalize(vector: Tensor) -> Tensor:
    """Scale a vector to length 1; a zero vector stays zero."""
    return normalize(vector, dim=0, eps=torch.finfo(vector.dtype).tiny)


def _named_weights(name: str, module: nn.Module, seen: set[Parameter]) -> Iterator[tuple[str, Parameter]]:
    """Return the parameters of two or more dimensions by name in the bare model; a tied one by its first name."""
    module = unwrap(module)
    for key, parameter in module.named_parameters(recurse=False):
        if is_lazy(parameter):
            raise WeightError(f"parameter {name + key!r} is not initialised yet: run the model once on a batch first")
        if parameter.dim() >= 2 and parameter not in seen:
            seen.add(parameter)
            yield name + key, parameter
    for key, child in module.named_children():
        yield from _named_weights(f"{name}{key}.", child, seen)
