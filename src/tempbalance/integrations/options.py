"""Checks of the options that a trainer passes on, and a scheduler for trainers with their own learning rates."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from tempbalance.errors import check_count
from tempbalance.execution.inline import Execution
from tempbalance.optim.param_groups import LABEL
from tempbalance.optim.scheduler import TempBalance
from tempbalance.ranking.compare import Comparison


def check_options(options: dict[str, Any], *, required: Sequence[str] = ()) -> dict[str, Any]:
    """Refuse options that `TempBalance` does not have, and missing ones that are required, before training starts."""
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


class ScalesAlone:
    """Balancing of a trainer that keeps its own learning rates, by a `TempBalance` that changes none.

    Options that depend on calls of ``step`` or on the optimizer's own groups are refused.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = dict(check_options(options))
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
        self.interval, self.start = self.options.pop("interval", 1), self.options.pop("start", 0)
        check_count("interval", self.interval, least=1)
        check_count("start", self.start, least=0)

    def make_scheduler(self, groups: Sequence[dict[str, Any]], model: nn.Module) -> TempBalance:
        """Return a scheduler of an optimizer that never steps; it scores when its ``rescore`` is called."""
        held = [{key: group[key] for key in ("params", LABEL) if key in group} for group in groups]
        return TempBalance(torch.optim.SGD(held, lr=1.0), model, start=1, **self.options)

    def is_due(self, time: int) -> bool:
        return bool(time >= self.start and (time - self.start) % self.interval == 0)
