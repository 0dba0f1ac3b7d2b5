"""Checks of the options that a trainer passes on, and a scheduler for trainers with their own learning rates."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from tempbalance.execution.inline import Execution
from tempbalance.optim.param_groups import LABEL
from tempbalance.optim.scheduler import TempBalance
from tempbalance.ranking.compare import Comparison


def check_options(options: dict[str, Any], *, required: Sequence[str] = ()) -> dict[str, Any]:
    """Refuse options that `TempBalance` does not have, before training starts.

    Args:
        options: Options by name.
        required: Names of required options.

    Raises:
        TypeError: If there is no such option, or a required one is missing.
    """
    parameters = inspect.signature(TempBalance).parameters
    known = [name for name, each in parameters.items() if each.kind is each.KEYWORD_ONLY]
    if unknown := [name for name in options if name not in known]:
        raise TypeError(f"there is no option {unknown[0]!r} here: there are {', '.join(known)}")
    if missing := [name for name in required if name not in options]:
        raise TypeError(
            f"option {missing[0]!r} is needed: this trainer steps its scheduler after every optimizer step, and "
            "scoring that often takes longer than training; 'interval' counts optimizer steps between scorings"
        )
    return options


def check_timeless(options: dict[str, Any]) -> dict[str, Any]:
    """Refuse options that depend on calls of ``step`` or on the optimizer's own groups, which `scales_alone` lacks.

    Raises:
        TypeError: If one is given, or there is no such option.
    """
    check_options(options)
    comparison, execution = options.get("comparison", Comparison()), options.get("execution", Execution())
    given = {
        "balance": "balance" in options,
        "stop": "stop" in options,
        "comparison.smooth": comparison.smooth != 0,
        "comparison.blend": comparison.blend != 1,
        "execution.background": execution.background,
        "execution.budget": execution.budget is not None,
    }
    if refused := [name for name, is_given in given.items() if is_given]:
        raise TypeError(f"option {refused[0]!r} does not work here: this trainer keeps its own learning rates")
    return options


def scales_alone(groups: Sequence[dict[str, Any]], model: nn.Module, **options: Any) -> TempBalance:
    """A `TempBalance` on an optimizer that never steps, so that it changes no trainer's learning rates.

    It scores when its ``rescore`` is called, and the scales are in its ``last_scales``.

    Args:
        groups: From `param_groups`.
        model: The model.
        **options: Of `TempBalance`, without ``interval``, ``start`` and those that `check_timeless` refuses.
    """
    held = [{key: group[key] for key in ("params", LABEL) if key in group} for group in groups]
    return TempBalance(torch.optim.SGD(held, lr=1.0), model, start=1, **options)
