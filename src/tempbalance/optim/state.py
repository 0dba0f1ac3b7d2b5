"""States of TempBalance: plain values to save, and what has to fit when they are loaded."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from tempbalance.optim.param_groups import LABEL, flatten
from tempbalance.optim.rates import check_target

VERSIONS = (1, 2, 3)  # of states that are read; the last one is written
_DRIVEN = ("momentum", "betas")  # what OneCycleLR and CyclicLR write besides the rate


def is_state(state: Mapping[str, Any]) -> bool:
    """Whether a state is one of TempBalance that this version reads."""
    return state.get("version") in VERSIONS


def check_state(state: dict[str, Any], optimizer: Optimizer, schedule: LRScheduler | None) -> None:
    """Refuse a state of something else.

    Raises:
        ValueError: If it belongs to another version, other groups or another kind of schedule.
    """
    if not is_state(state):
        raise ValueError(f"not a state of TempBalance that this version reads: version {state.get('version')!r}")
    if state["groups"] != labels_of(optimizer):
        raise ValueError(f"the state has param groups {state['groups']}, the optimizer {labels_of(optimizer)}")
    for target in state.get("bases", ()):
        check_target(optimizer, target)
    types = schedule_types(schedule)
    if state["schedule_types"] != types:
        raise ValueError(f"the state has schedule {state['schedule_types']}, this scheduler {types}")


def loaded_options(saved: Mapping[str, Any], built: Any, functions: Sequence[str] | None) -> dict[str, Any]:
    """Options after loading: the saved ones, or the functions that stand for them here.

    Args:
        saved: By name.
        built: Has those that the scheduler was built with as attributes.
        functions: Which were functions; before version 3, those that are None.

    Raises:
        ValueError: If one was saved as a function and none stands for it.
    """
    loaded = {}
    for name, value in saved.items():
        own, was_function = getattr(built, name), value is None if functions is None else name in functions
        if was_function and not callable(own):
            raise ValueError(f"the state was saved with a function as {name}: build TempBalance with it, got {own!r}")
        loaded[name] = own if callable(own) else value
    return loaded


def labels_of(optimizer: Optimizer) -> list[str | None]:
    """The layer of each group, if it has one."""
    return [group.get(LABEL) for group in optimizer.param_groups]


def schedule_types(schedule: LRScheduler | None) -> list[str]:
    """What kind of schedule it is, with those inside it."""
    return [type(each).__name__ for each in flatten([schedule])]


def mark_of(schedule: LRScheduler | None) -> list[tuple[Any, ...]]:
    """Changes when the schedule, or one inside it, is stepped."""
    return [tuple(getattr(each, key, None) for key in ("last_epoch", "T_cur")) for each in flatten([schedule])]


def driven_by(schedule: LRScheduler | None, optimizer: Optimizer) -> list[dict[str, Any]]:
    """What the schedule writes into each group besides the rate, as it is now."""
    cycles = any(getattr(each, "cycle_momentum", False) for each in flatten([schedule]))
    keys = [key for key in _DRIVEN if cycles and key in optimizer.defaults]
    return [{key: group.get(key) for key in keys} for group in optimizer.param_groups]


def plain(value: Any) -> Any:
    """A copy in which numpy's numbers are Python's, which ``weights_only=True`` loads."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, np.generic):
        return value.item()
    if type(value) is dict:
        return {key: plain(each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(plain(each) for each in value)
    return copy.deepcopy(value)
