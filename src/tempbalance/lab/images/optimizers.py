"""The optimizers of the paper's methods, in the forms that the published code tuned, and its regulariser.

SGD, Adam and AdamW are torch's; LAMB and Lookahead are pytorch_optimizer's. LARS, SGDP and AdamP are written here:
pytorch_optimizer's LARS gives vectors no trust ratio, its SGDP keeps a momentum that is not projected, and its AdamP
reads values in each step. ``docs/numbers.md`` lists the differences.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, normalize
from torch.optim import SGD, Adam, AdamW, Optimizer

from tempbalance.lab.images.recipe import ImageRecipe
from tempbalance.lab.recipe import find_method

Groups = list[dict[str, Any]]


def build_optimizer(groups: Groups, recipe: ImageRecipe) -> Optimizer:
    """Return the optimizer of a recipe's method."""
    options: dict[str, Any] = {"lr": recipe.lr, "weight_decay": recipe.weight_decay}
    name = find_method(recipe.method).optimizer
    if name in ("lamb", "lookahead"):
        return _lamb(groups, options) if name == "lamb" else _lookahead(groups, options, recipe)
    if name in ("sgd", "sgdp", "lars"):
        options["momentum"] = recipe.lars_momentum if name == "lars" else recipe.momentum
    kinds: Any = {"sgd": SGD, "adam": Adam, "adamw": AdamW, "sgdp": SGDP, "lars": LARS, "adamp": AdamP}
    optimizer: Optimizer = kinds[name](groups, **options)
    return optimizer


class _Optimizer(Optimizer):
    """An optimizer that updates one parameter after the other."""

    def __init__(self, params: Any, **defaults: float) -> None:
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.update(parameter, parameter.grad, group)

    def update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        raise NotImplementedError

    def accumulated(self, parameter: Tensor, gradient: Tensor, momentum: float) -> Tensor:
        """Return the momentum buffer of a parameter, with the gradient added."""
        buffer = self.state[parameter].setdefault("momentum_buffer", torch.zeros_like(parameter))
        found: Tensor = buffer.mul_(momentum).add_(gradient)
        return found


class LARS(_Optimizer):
    """SGD whose every tensor, vectors included, steps in proportion to its own norm."""

    trust, eps, most, clip = 1e-3, 1e-5, 50.0, 10.0  # coefficient, added to the norm, largest ratio, largest gradient

    def update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        norm, slope, decay = parameter.norm(), gradient.norm(), group["weight_decay"]
        ratio = (self.trust * norm / (slope + decay * norm + self.eps)).clamp(max=self.most)
        ratio = torch.where((norm > 0) & (slope > 0), ratio, 1.0)
        change = gradient.add(parameter, alpha=decay).clamp(-self.clip, self.clip)
        if group["momentum"] > 0:
            change = self.accumulated(parameter, change, group["momentum"])
        parameter.sub_(change * (group["lr"] * ratio))


def _decayed(parameter: Tensor, gradient: Tensor, change: Tensor, decay: float) -> Tensor:
    """Decay a parameter, and return its change without the part along a scale-invariant weight.

    A weight counts as scale-invariant if the gradient is orthogonal to it in every output channel, or else as a whole;
    its decay is multiplied by 0.1. No value is read.
    """
    if parameter.dim() < 2:
        parameter.mul_(1 - decay)
        return change
    delta, share, eps = 0.1, 0.1, 1e-8  # the defaults of the package ``adamp``
    found, factor = change, torch.ones((), device=parameter.device, dtype=parameter.dtype)
    for num_rows in (1, len(parameter)):  # the output channels come last and count if both apply
        w, g, c = (each.reshape(num_rows, -1) for each in (parameter, gradient, change))
        is_orthogonal = cosine_similarity(g, w, dim=1, eps=eps).abs().max() < delta / math.sqrt(w.shape[1])
        unit = w / (w.norm(dim=1, keepdim=True) + eps)
        rest = (c - unit * (unit * c).sum(dim=1, keepdim=True)).reshape(parameter.shape)
        found, factor = torch.where(is_orthogonal, rest, found), torch.where(is_orthogonal, share, factor)
    parameter.mul_(1 - decay * factor)
    return found


class SGDP(_Optimizer):
    """SGD whose momentum has no part along a scale-invariant weight: it is projected itself, as in ``adamp``."""

    def update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        buffer = self.accumulated(parameter, gradient, group["momentum"])
        decay = group["lr"] * group["weight_decay"] / (1 - group["momentum"])
        buffer.copy_(_decayed(parameter, gradient, buffer, decay))
        parameter.add_(buffer, alpha=-group["lr"])


class AdamP(_Optimizer):
    """Adam with decoupled weight decay, whose step has no part along a scale-invariant weight."""

    betas, eps = (0.9, 0.999), 1e-8

    def update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state.update(step=0, exp_avg=torch.zeros_like(parameter), exp_avg_sq=torch.zeros_like(parameter))
        state["step"] += 1
        first, second = (1 - beta ** state["step"] for beta in self.betas)
        mean = state["exp_avg"].lerp_(gradient, 1 - self.betas[0])
        square = state["exp_avg_sq"].mul_(self.betas[1]).addcmul_(gradient, gradient, value=1 - self.betas[1])
        change = mean / (square.sqrt() / math.sqrt(second) + self.eps)
        change = _decayed(parameter, gradient, change, group["lr"] * group["weight_decay"])
        parameter.add_(change, alpha=-group["lr"] / first)


def _lamb(groups: Groups, options: dict[str, Any]) -> Optimizer:
    """Return LAMB without bias correction, with decay inside the trust ratio and gradients clipped to norm 1."""
    from pytorch_optimizer import Lamb

    options |= {"weight_decouple": False, "adam_debias": True, "pre_norm": True, "max_grad_norm": 1.0}
    optimizer: Any = Lamb(groups, **options)
    optimizer.clamp = math.inf  # of the weight norm, 10 in the package
    found: Optimizer = optimizer
    return found


def _lookahead(groups: Groups, options: dict[str, Any], recipe: ImageRecipe) -> Optimizer:
    """Return Lookahead whose slow weights start after the first step, as in the package ``torch_optimizer``."""
    from pytorch_optimizer import Lookahead

    inner = SGD(groups, momentum=recipe.momentum, **options)
    outer: Any = Lookahead(inner, k=recipe.lookahead_steps, alpha=recipe.lookahead_alpha)
    for group in inner.param_groups:
        group["counter"] = -1

    def start(stepped: Optimizer, *_: Any) -> None:
        for group in stepped.param_groups:
            for parameter in group["params"] if group["counter"] < 0 else ():
                outer.state[parameter]["slow_params"].copy_(parameter.detach())

    inner.register_step_post_hook(start)
    optimizer: Optimizer = outer
    return optimizer


class SpectralNormRegularizer:
    """Adds the gradient of the penalty (strength / 2) sum_l sigma(W_l)^2 to the gradients of a network's weights.

    The penalty is that of Yoshida and Miyato (2017), on top of any weight decay. The weights are the parameters of two
    or more dimensions, each as a matrix of its first dimension x the rest, tied ones once. A left singular vector of
    each is kept, which every step brings nearer to the leading one: while a weight moves slowly one iteration a step is
    enough. With ``fresh`` each call starts from new random vectors, as the published code does with 5 iterations.
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
            matrix = weight.flatten(1)
            left, tiny = self._vectors[name].to(matrix), torch.finfo(matrix.dtype).tiny  # zero vectors stay zero
            for _ in range(self.num_iterations):
                # v = W'u / |W'u|, sigma u = W v
                right = normalize(matrix.T @ left, dim=0, eps=tiny)
                scaled = matrix @ right
                # a zero weight has no direction
                left = torch.where(scaled.norm() > 0, normalize(scaled, dim=0, eps=tiny), left)
            self._vectors[name] = left
            # d/dW (strength / 2) sigma^2 = strength sigma u v'
            column = scaled.view(-1, *(1,) * (weight.dim() - 1))
            weight.grad.addcmul_(column, right.view(weight.shape[1:]), value=self.strength)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the vectors by parameter name, and with ``fresh`` the state of the random generator."""
        return {**self._vectors, **({"random state": self._generator.get_state()} if self.fresh else {})}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        if self.fresh:
            self._generator.set_state(state["random state"].cpu())
        self._vectors = {name: state[name].detach().to(weight, copy=True) for name, weight in self._weights.items()}
