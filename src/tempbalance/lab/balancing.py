"""Balancing options of a recipe, converted to TempBalance's arguments."""

from __future__ import annotations

from typing import Any

import tempbalance
from tempbalance.lab.recipe import BalancingRecipe, is_side

_SCORING = ("tail", "tail_fraction", "score", "score_first", "score_last", "min_eigenvalues", "interval", "start")
_SCALING = ("scale_range", "assignment")
_COMPARISON = ("keep_mean", "shrink", "smooth", "blend", "group_by")


def scheduler_options(recipe: BalancingRecipe, *, balanced: bool) -> dict[str, Any]:
    """The options of `tempbalance.TempBalance` for a recipe; a recipe that is not balanced only scores its layers."""
    options: dict[str, Any] = {name: getattr(recipe, name) for name in _SCORING if hasattr(recipe, name)}
    windows = int(recipe.windows) if recipe.windows is not None and is_side(recipe.windows) else recipe.windows
    comparison: dict[str, Any] = {"reference": recipe.reference, "windows": windows}
    if not balanced:
        return {**options, "scale_range": (1.0, 1.0), "comparison": tempbalance.Comparison(**comparison)}
    comparison |= {name: getattr(recipe, name) for name in _COMPARISON}
    options |= {name: getattr(recipe, name) for name in _SCALING if hasattr(recipe, name)}
    options["comparison"] = tempbalance.Comparison(**comparison)
    if recipe.decay_range is not None:
        options["balance"] = {"lr": options.pop("scale_range"), "weight_decay": recipe.decay_range}
    return options
