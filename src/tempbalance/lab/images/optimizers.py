"""The optimizers of the paper's methods, in the forms that the published code tuned.

SGD, Adam and AdamW are torch's; LAMB and Lookahead are pytorch_optimizer's. LARS, SGDP and AdamP are written here:
pytorch_optimizer's LARS gives vectors no trust ratio, its SGDP keeps a momentum that is not projected, and its AdamP
reads values in each step.
``docs/numbers.md`` lists the differences; ``tests/lab/images/reference.py`` has the formulas.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity
from torch.optim import Optimizer

from tempbalance.lab.images.recipe import ImageRecipe
from tempbalance.lab.recipe import find_method

Groups = list[dict[str, Any]]


def build_optimizer(groups: Groups, recipe: ImageRecipe) -> Optimizer:
    """Return the optimizer of a recipe's method."""
    return OPTIMIZERS[find_method(recipe.method).optimizer](groups, recipe)


class _Optimizer(Optimizer):
    """An optimizer that updates one parameter after the other."""

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        self.update(parameter, parameter.grad, group)
        return loss

    def update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        """Update one parameter."""
        raise NotImplementedError

    def accumulated(self, parameter: Tensor, gradient: Tensor, momentum: float) -> Tensor:
        """Return the momentum buffer of a parameter, with the gradient added."""
        buffer = self.state[parameter].setdefault("momentum_buffer", torch.zeros_like(parameter))
        found: Tensor = buffer.mul_(momentum).add_(gradient)
        return found


class LARS(_Optimizer):
    """SGD whose every tensor, vectors included, steps in proportion to its own norm.

    Args:
        params: Parameters or groups of them.
        lr: Learning rate.
        momentum: The published code has none.
        weight_decay: Added to the gradient.
    """

    trust, eps, most, clip = 1e-3, 1e-5, 50.0, 10.0  # coefficient, added to the norm, largest ratio, largest gradient

    def __init__(self, params: Any, *, lr: float, momentum: float = 0.0, weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    def update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        """Update one parameter."""
        norm, decay = parameter.norm(), group["weight_decay"]
        slope = gradient.norm()
        ratio = (self.trust * norm / (slope + decay * norm + self.eps)).clamp(max=self.most)
        ratio = torch.where((norm > 0) & (slope > 0), ratio, 1.0)
        change = gradient.add(parameter, alpha=decay).clamp(-self.clip, self.clip)
        if group["momentum"] > 0:
            change = self.accumulated(parameter, change, group["momentum"])
        parameter.sub_(change * (group["lr"] * ratio))


def projected(weight: Tensor, gradient: Tensor, change: Tensor) -> tuple[Tensor, Tensor]:
    """Remove the part of a change along the weight if the weight is scale-invariant, without reading a value.

    The weight counts as scale-invariant if the gradient is orthogonal to it in every output channel, or else as a
    whole.

    Returns:
        The change, and the factor on the weight decay: 0.1 where something was removed, otherwise 1.
    """
    delta, share, eps = 0.1, 0.1, 1e-8  # the defaults of the package ``adamp``
    found, factor = change, torch.ones((), device=weight.device, dtype=weight.dtype)
    for num_rows in (1, len(weight)):  # the output channels come last and count if both apply
        w, g, c = (each.reshape(num_rows, -1) for each in (weight, gradient, change))
        is_orthogonal = cosine_similarity(g, w, dim=1, eps=eps).abs().max() < delta / math.sqrt(w.shape[1])
        unit = w / (w.norm(dim=1, keepdim=True) + eps)
        rest = (c - unit * (unit * c).sum(dim=1, keepdim=True)).reshape(weight.shape)
        found, factor = torch.where(is_orthogonal, rest, found), torch.where(is_orthogonal, share, factor)
    return found, factor


class SGDP(_Optimizer):
    """SGD with momentum, from which the part along the weight is removed where the weight is scale-invariant.

    The momentum itself is projected, as in the package ``adamp``.

    Args:
        params: Parameters or groups of them.
        lr: Learning rate.
        momentum: Below 1.
        weight_decay: Multiplied by 0.1 where the momentum is projected.
    """

    def __init__(self, params: Any, *, lr: float, momentum: float, weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    def update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        """Update one parameter."""
        buffer = self.accumulated(parameter, gradient, group["momentum"])
        decay = group["lr"] * group["weight_decay"] / (1 - group["momentum"])
        if parameter.dim() > 1:
            change, share = projected(parameter, gradient, buffer)
            buffer.copy_(change)
            parameter.mul_(1 - decay * share)
        else:
            parameter.mul_(1 - decay)
        parameter.add_(buffer, alpha=-group["lr"])


class AdamP(_Optimizer):
    """Adam with decoupled weight decay, whose step has no part along a scale-invariant weight.

    Args:
        params: Parameters or groups of them.
        lr: Learning rate.
        weight_decay: Multiplied by 0.1 where the step is projected.
    """

    betas, eps = (0.9, 0.999), 1e-8

    def __init__(self, params: Any, *, lr: float, weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    def update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        """Update one parameter."""
        state = self.state[parameter]
        if not state:
            state.update(step=0, exp_avg=torch.zeros_like(parameter), exp_avg_sq=torch.zeros_like(parameter))
        state["step"] += 1
        first, second = (1 - beta ** state["step"] for beta in self.betas)
        mean = state["exp_avg"].lerp_(gradient, 1 - self.betas[0])
        square = state["exp_avg_sq"].mul_(self.betas[1]).addcmul_(gradient, gradient, value=1 - self.betas[1])
        change, decay = mean / (square.sqrt() / math.sqrt(second) + self.eps), group["lr"] * group["weight_decay"]
        if parameter.dim() > 1:
            change, share = projected(parameter, gradient, change)
            parameter.mul_(1 - decay * share)
        else:
            parameter.mul_(1 - decay)
        parameter.add_(change, alpha=-group["lr"] / first)


def _optimizer(
    package: str, name: str, *, momentum: str = "", **more: Any
) -> Callable[[Groups, ImageRecipe], Optimizer]:
    """Return a builder of an optimizer, with its own defaults except for the recipe's options and ``more``.

    ``momentum`` is the recipe's option of that; empty for none.
    """

    def build(groups: Groups, recipe: ImageRecipe) -> Optimizer:
        options = {"momentum": getattr(recipe, momentum)} if momentum else {}
        kind = getattr(import_module(package), name)
        optimizer: Optimizer = kind(groups, lr=recipe.lr, weight_decay=recipe.weight_decay, **options, **more)
        return optimizer

    return build


def _lamb(groups: Groups, recipe: ImageRecipe) -> Optimizer:
    """Return LAMB without bias correction, with decay inside the trust ratio and gradients clipped to norm 1."""
    options: dict[str, Any] = {"weight_decouple": False, "adam_debias": True, "pre_norm": True, "max_grad_norm": 1.0}
    optimizer = _optimizer("pytorch_optimizer", "Lamb", **options)(groups, recipe)
    optimizer.clamp = math.inf  # type: ignore[attr-defined]  # of the weight norm, 10 in the package
    return optimizer


def _lookahead(groups: Groups, recipe: ImageRecipe) -> Optimizer:
    """Return Lookahead whose slow weights start after the first step, as in the package ``torch_optimizer``."""
    inner = OPTIMIZERS["sgd"](groups, recipe)
    outer: Any = import_module("pytorch_optimizer").Lookahead(
        inner, k=recipe.lookahead_steps, alpha=recipe.lookahead_alpha
    )
    for group in inner.param_groups:
        group["counter"] = -1

    def start(stepped: Optimizer, *_: Any) -> None:
        for group in stepped.param_groups:
            for parameter in group["params"] if group["counter"] < 0 else ():
                outer.state[parameter]["slow_params"].copy_(parameter.detach())

    inner.register_step_post_hook(start)
    optimizer: Optimizer = outer
    return optimizer


OPTIMIZERS: dict[str, Callable[[Groups, ImageRecipe], Optimizer]] = {
    "sgd": _optimizer("torch.optim", "SGD", momentum="momentum"),
    "adam": _optimizer("torch.optim", "Adam"),
    "adamw": _optimizer("torch.optim", "AdamW"),
    "lookahead": _lookahead,
    "sgdp": _optimizer(__name__, "SGDP", momentum="momentum"),
    "lars": _optimizer(__name__, "LARS", momentum="lars_momentum"),
    "adamp": _optimizer(__name__, "AdamP"),
    "lamb": _lamb,
}
