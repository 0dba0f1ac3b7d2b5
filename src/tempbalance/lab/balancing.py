"""Balancing options of a recipe, converted to TempBalance's arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tempbalance
from tempbalance.lab.options import Rule
from tempbalance.lab.task import Task

_SCORING = ("tail", "tail_fraction", "score", "score_first", "score_last", "min_eigenvalues", "interval", "start")
_SCALING = ("scale_range", "assignment")
_COMPARISON = ("keep_mean", "shrink", "smooth", "blend", "group_by")

REFERENCES = ("random",)  # a test holds them to those of the library
BALANCING_RULES: dict[str, Rule] = {
    "reference": ("random", lambda value: value in REFERENCES),
    "windows": ("'square' or a whole number of at least 2", lambda value: value == "square" or _is_side(value)),
    "smooth": ("at least 0 and below 1", lambda value: 0 <= value < 1),
    "blend": ("at least 1", lambda value: value >= 1),
    "group_by": ("a name pattern", bool),
    "decay_range": ("two numbers above 0", lambda value: min(value) > 0),
}


def _is_side(text: str) -> bool:
    return text.isdecimal() and int(text) >= 2


@dataclass(frozen=True)
class BalancingTask(Task):
    """Base of recipes whose layers can be balanced in ways that the paper does not have.

    Attributes:
        reference, keep_mean, shrink, smooth, blend, group_by: As in `tempbalance.Comparison`.
        windows: The same; a number as text.
        decay_range: Balance the weight decay too: its scales at the smallest and at the largest score.
    """

    reference: str | None = None
    windows: str | None = None
    keep_mean: bool = False
    shrink: bool = False
    smooth: float = 0.0
    blend: int = 1
    group_by: str | None = None
    decay_range: tuple[float, float] | None = None

    @classmethod
    def checked(cls, options: Mapping[str, Any], *, where: str = "") -> dict[str, Any]:
        """As of every recipe; windows may be a number."""
        if type(options.get("windows")) is int:
            options = {**options, "windows": str(options["windows"])}
        return super().checked(options, where=where)


UNUSED_ALONE = {"scale_range", "assignment", "keep_mean", "shrink", "smooth", "blend", "group_by", "decay_range"}


def scheduler_options(task: BalancingTask, *, balanced: bool) -> dict[str, Any]:
    """The options of `tempbalance.TempBalance` for a recipe; a recipe that is not balanced only scores its layers."""
    options: dict[str, Any] = {name: getattr(task, name) for name in _SCORING if hasattr(task, name)}
    windows = int(task.windows) if task.windows is not None and _is_side(task.windows) else task.windows
    comparison: dict[str, Any] = {"reference": task.reference, "windows": windows}
    if not balanced:
        return {**options, "scale_range": (1.0, 1.0), "comparison": tempbalance.Comparison(**comparison)}
    comparison |= {name: getattr(task, name) for name in _COMPARISON}
    options |= {name: getattr(task, name) for name in _SCALING if hasattr(task, name)}
    options["comparison"] = tempbalance.Comparison(**comparison)
    if task.decay_range is not None:
        options["balance"] = {"lr": options.pop("scale_range"), "weight_decay": task.decay_range}
    return options
