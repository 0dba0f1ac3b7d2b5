"""Scales for trainers that keep their rates to themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from tempbalance.optim.param_groups import LABEL
from tempbalance.optim.scheduler import TempBalance

# options of TempBalance that go by its own calls of `step`, by its own state or by its own optimizer's groups, none of
# which a trainer has that keeps its rates to itself
TAKES_TIME = ("background", "lag", "smooth", "blend", "balance")


def scales_alone(groups: Sequence[dict[str, Any]], model: nn.Module, **options: Any) -> TempBalance:
    """A `TempBalance` that touches no trainer's rates, on an optimizer of its own that never steps.

    It scores when its ``rescore`` is called, and the scales are in its ``last_scales``.

    Args:
        groups: As `param_groups` gives them.
        model: The model.
        **options: Of `TempBalance`, but for ``interval``, ``start`` and `TAKES_TIME`.
    """
    held = [{key: group[key] for key in ("params", LABEL) if key in group} for group in groups]
    return TempBalance(torch.optim.SGD(held, lr=1.0), model, start=1, **options)
