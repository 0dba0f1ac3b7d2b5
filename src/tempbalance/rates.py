"""The rates of an optimizer's groups: read, written, and told apart from those that somebody else has written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

Rate = float | Tensor
Group = dict[str, Any]

_WRITTEN = "balanced_lr"  # key of a group: its rate before and after scaling, as they were written last


def read_rates(optimizer: Optimizer) -> list[Rate]:
    """The present rate of each group, Tensors copied."""
    return [
        rate.clone() if isinstance(rate := group["lr"], Tensor) else float(rate) for group in optimizer.param_groups
    ]


def write_rates(optimizer: Optimizer, rates: Sequence[Rate]) -> None:
    """Set the rates; a Tensor one in place, each group's own: torch shares one among all that are built together."""
    shared = {id(optimizer.defaults.get("lr"))}
    for group, rate in zip(optimizer.param_groups, rates, strict=False):
        if isinstance(group["lr"], Tensor) and id(group["lr"]) in shared:
            group["lr"] = group["lr"].clone()
        shared.add(id(group["lr"]))
        _set_rate(group, rate)


def note_written(optimizer: Optimizer, base: Sequence[Rate]) -> None:
    """Keep in the groups, and so in the optimizer's state, what each rate is now and what it is without its scale."""
    for group, rate in zip(optimizer.param_groups, base, strict=True):
        group[_WRITTEN] = (float(rate), float(group["lr"]))


def was_changed(group: Group) -> bool:
    """Whether a noted rate is no longer the one in the group."""
    return _WRITTEN in group and float(group["lr"]) != group[_WRITTEN][1]


def put_back(optimizer: Optimizer) -> None:
    """Set noted rates that nobody has changed since to what they are without their scale, and forget what was noted."""
    for group in optimizer.param_groups:
        if _WRITTEN in group and not was_changed(group):
            _set_rate(group, group[_WRITTEN][0])
        group.pop(_WRITTEN, None)


def _set_rate(group: Group, rate: Rate) -> None:
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(float(rate))
    else:
        group["lr"] = float(rate)
