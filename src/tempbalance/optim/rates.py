"""What is balanced in an optimizer's groups, rates above all: read, written, and told apart from what others wrote.

A group keeps what was written last, in a key of its own and so in the optimizer's state: the value without its scale
and the value with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

Rate = float | Tensor
Group = dict[str, Any]

_WRITTEN = "balanced_"  # with the target's name: the key of what was written


def check_target(optimizer: Optimizer, target: str) -> None:
    """Refuse a target that is not a number in every group.

    Raises:
        ValueError: If it is not; it names what there is.
    """
    for index, group in enumerate(optimizer.param_groups):
        value = group.get(target)
        if target != "lr" and type(value) is int and value != 0:
            raise ValueError(
                f"balance: {target!r} of param group {index} is a whole number, {value}, which a scale would make a "
                f"fraction: write {value}.0 if that is meant"
            )
        if isinstance(value, bool) or not isinstance(value, int | float | Tensor):
            names = [key for key, each in group.items() if type(each) in (int, float)]
            raise ValueError(
                f"balance: param group {index} must have a number {target!r}, got {value!r}; its numbers are {names}"
            )


def read_rates(optimizer: Optimizer, target: str = "lr") -> list[Rate]:
    """The present rate of each group, or another target's value; Tensors copied."""
    return [
        rate.clone() if isinstance(rate := group[target], Tensor) else float(rate) for group in optimizer.param_groups
    ]


def own_rates(optimizer: Optimizer, target: str) -> list[Rate]:
    """The present values of a target, after each group got a Tensor of its own in place of one that others may hold."""
    for group in optimizer.param_groups:
        if isinstance(group[target], Tensor):
            group[target] = group[target].clone()
    return read_rates(optimizer, target)


def write_rates(optimizer: Optimizer, rates: Sequence[Rate], target: str = "lr") -> None:
    """Set the rates; a Tensor one in place, each group's own: torch shares one among all that are built together."""
    shared = {id(optimizer.defaults.get(target))}
    for group, rate in zip(optimizer.param_groups, rates, strict=False):
        if isinstance(group[target], Tensor) and id(group[target]) in shared:
            group[target] = group[target].clone()
        shared.add(id(group[target]))
        _set_rate(group, target, rate)


def note_written(optimizer: Optimizer, base: Sequence[Rate], target: str = "lr") -> None:
    """Keep in the groups, and so in the optimizer's state, what each rate is now and what it is without its scale."""
    for group, rate in zip(optimizer.param_groups, base, strict=True):
        group[_WRITTEN + target] = (float(rate), float(group[target]))


def was_changed(group: Group, target: str = "lr") -> bool:
    """Whether a noted value is no longer the one in the group."""
    key = _WRITTEN + target
    return key in group and float(group[target]) != group[key][1]


def read_bases(optimizer: Optimizer, bases: Sequence[Rate], target: str) -> list[Rate]:
    """Values without their scale: those noted, but where somebody has set another, that one."""
    present = read_rates(optimizer, target)
    known = [*bases, *present[len(bases) :]]  # of groups that were added since
    groups = zip(optimizer.param_groups, known, present, strict=True)
    return [new if was_changed(group, target) else old for group, old, new in groups]


def put_back(optimizer: Optimizer) -> None:
    """Set noted values that nobody has changed since to what they are without scale, and forget what was noted."""
    for group in optimizer.param_groups:
        for target in [name for name in group if _WRITTEN + name in group]:
            key = _WRITTEN + target
            if not was_changed(group, target):
                _set_rate(group, target, group[key][0])
            del group[key]


def _set_rate(group: Group, target: str, rate: Rate) -> None:
    if isinstance(group[target], Tensor):
        group[target].fill_(float(rate))
    else:
        group[target] = float(rate)
