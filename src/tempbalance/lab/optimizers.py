"""A recipe's optimizer and base schedule."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, CosineAnnealingWarmRestarts, LRScheduler

from tempbalance.lab.images.recipe import ImageRecipe
from tempbalance.lab.methods import find_method

Groups = list[dict[str, Any]]

_TRUST = 1e-3  # trust coefficient of LARS, its default


def build_optimizer(groups: Groups, recipe: ImageRecipe) -> Optimizer:
    """The optimizer of a recipe's method."""
    return OPTIMIZERS[find_method(recipe.method).optimizer](groups, recipe)


def build_schedule(optimizer: Optimizer, recipe: ImageRecipe) -> LRScheduler:
    """The base schedule of a recipe's method: a cosine to zero, with restarts for SGDR."""
    assert recipe.restart_epochs is not None
    if find_method(recipe.method).restarts:
        return CosineAnnealingWarmRestarts(optimizer, T_0=recipe.restart_epochs, T_mult=recipe.restart_factor)
    return CosineAnnealingLR(optimizer, T_max=recipe.epochs)


def _optimizer(package: str, name: str, *, momentum: bool = False) -> Callable[[Groups, ImageRecipe], Optimizer]:
    """A builder of an optimizer with its own defaults but for what a recipe says."""

    def build(groups: Groups, recipe: ImageRecipe) -> Optimizer:
        options = {"momentum": recipe.momentum} if momentum else {}
        kind = getattr(import_module(package), name)
        optimizer: Optimizer = kind(groups, lr=recipe.lr, weight_decay=recipe.weight_decay, **options)
        return optimizer

    return build


def _lars(groups: Groups, recipe: ImageRecipe) -> Optimizer:
    """LARS for the matrices; vectors, to which it gives no trust ratio, at the rate times its trust coefficient."""
    assert recipe.lr is not None
    split = []
    for group in groups:
        for is_matrix in (True, False):
            params = [each for each in group["params"] if (each.dim() > 1) == is_matrix]
            rate = {} if is_matrix else {"lr": recipe.lr * _TRUST}
            split += [{**group, "params": params, **rate}] if params else []
    return _optimizer("pytorch_optimizer", "LARS", momentum=True)(split, recipe)


def _lookahead(groups: Groups, recipe: ImageRecipe) -> Optimizer:
    kind = import_module("pytorch_optimizer").Lookahead
    inner = OPTIMIZERS["sgd"](groups, recipe)
    optimizer: Optimizer = kind(inner, k=recipe.lookahead_steps, alpha=recipe.lookahead_alpha)
    return optimizer


OPTIMIZERS: dict[str, Callable[[Groups, ImageRecipe], Optimizer]] = {
    "sgd": _optimizer("torch.optim", "SGD", momentum=True),
    "adam": _optimizer("torch.optim", "Adam"),
    "adamw": _optimizer("torch.optim", "AdamW"),
    "lookahead": _lookahead,
    "sgdp": _optimizer("pytorch_optimizer", "SGDP", momentum=True),
    "lars": _lars,
    "adamp": _optimizer("pytorch_optimizer", "AdamP"),
    "lamb": _optimizer("pytorch_optimizer", "Lamb"),
}
