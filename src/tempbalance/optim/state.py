"""Options of TempBalance, checked in one place, and its state: plain values to save, and checks before loading."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from tempbalance.errors import check_count, check_finite, quoted
from tempbalance.execution.inline import Execution
from tempbalance.optim.param_groups import LABEL, flatten
from tempbalance.optim.rates import check_target
from tempbalance.ranking.assign import Assignment, ScaleRange, check_assignment
from tempbalance.ranking.compare import Blending, Scaling
from tempbalance.ranking.scoring import Scoring
from tempbalance.ranking.table import LayerRow, from_plain

VERSION = 1
_KEYS = ("last_epoch", "step_count", "options", "groups", "bases", "base_lrs", "driven", "scored", "schedule_types")
_OF_MACHINE = ("share", "device")  # options of Execution that say nothing about a run
_FUNCTION = "<function>"  # saved in place of one


@dataclass(frozen=True)
class Options(Scoring):
    """The keywords of `TempBalance`, which describes them."""

    scale_range: ScaleRange = (0.5, 1.5)
    assignment: Assignment = "linear"
    balance: Mapping[str, ScaleRange] | None = None
    interval: int = 1
    start: int = 0
    stop: int | None = None
    execution: Execution = field(default_factory=Execution)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("interval", self.interval, least=1)
        check_count("start", self.start, least=0)
        if self.stop is not None:
            check_count("stop", self.stop, least=1)
            if self.stop <= self.start:
                raise ValueError(f"stop must be above start, {self.start}, or None, got {self.stop}")
        if not isinstance(self.execution, Execution):
            raise TypeError(f"execution must be a tempbalance.Execution, got {self.execution!r}")
        if self.execution.background and self.execution.lag > self.interval:
            raise ValueError(f"lag must be at most interval, {self.interval}, got {self.execution.lag}")
        _ = self.scaling  # which checks the others

    @cached_property
    def scaling(self) -> Scaling:
        check_assignment(self.assignment, self.scale_range)
        if self.by_kind is not None and (self.balance or self.comparison.reference or self.comparison.shrink):
            raise ValueError(f"scales by kind of layer need no balance, reference or shrink, got {self.assignment!r}")
        if self.balance is None:
            return Scaling(self.assignment, {"lr": (self.scale_range[0], self.scale_range[1])}, self.comparison)
        if not isinstance(self.balance, Mapping) or not self.balance:
            raise ValueError(f"balance must map values of a param group to two scales, got {self.balance!r}")
        if tuple(self.scale_range) != Options.scale_range:
            both = f"scale_range={self.scale_range!r} and balance={self.balance!r}"
            raise ValueError(f"give the range of lr in balance or as scale_range, not both: got {both}")
        for name, ends in self.balance.items():
            check_assignment(self.assignment, ends, name=f"balance[{name!r}]", turned=True)
        return Scaling(self.assignment, self.balance, self.comparison)

    def is_due(self, call: int) -> bool:
        lag = self.execution.lag if self.execution.background else 0
        is_on = self.start <= call and (self.stop is None or call + lag < self.stop)
        return is_on and (call - self.start) % self.interval == 0

    def to_state(self) -> dict[str, Any]:
        return {name: _FUNCTION if callable(value) else value for name, value in _flat(self).items()}

    def from_state(self, saved: Mapping[str, Any]) -> Options:
        """Return saved options, with these options' functions and settings of the machine."""
        own = _flat(self)
        if not isinstance(saved, Mapping) or saved.keys() != own.keys():
            raise ValueError(f"the state's options must be {sorted(own)}, got {saved!r}")
        values: dict[str, Any] = {}
        nested: dict[str, dict[str, Any]] = {"comparison": {}, "execution": {}}
        for name, value in saved.items():
            if value == _FUNCTION and not callable(own[name]):
                raise ValueError(f"the state has a function as {name}: build TempBalance with it, got {own[name]!r}")
            part, _, key = name.rpartition(".")
            nested.get(part, values)[key] = own[name] if callable(own[name]) else value
        try:
            comparison, execution = (replace(getattr(self, part), **given) for part, given in nested.items())
            return replace(self, **values, comparison=comparison, execution=execution)
        except TypeError as err:
            raise ValueError(f"the state's options: {err}") from err

    def differences(self, other: Options) -> list[str]:
        ours, others = _flat(self), _flat(other)
        return [f"{name}={ours[name]!r} (given {others[name]!r})" for name in ours if ours[name] != others[name]]


def _flat(options: Options) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for each in fields(options):
        value = getattr(options, each.name)
        if is_dataclass(value):
            own = [one.name for one in fields(value) if one.name not in _OF_MACHINE]
            flat |= {f"{each.name}.{name}": getattr(value, name) for name in own}
        else:
            flat[each.name] = dict(value) if isinstance(value, Mapping) else value
    return {name: tuple(value) if isinstance(value, list) else value for name, value in flat.items()}


def is_state(state: Any) -> bool:
    return isinstance(state, Mapping) and state.get("version") == VERSION and all(key in state for key in _KEYS)


@dataclass(frozen=True)
class Scored:
    """Results of the last scoring, as they are saved."""

    rows: tuple[LayerRow, ...]
    scores: Mapping[str, float]
    blending: Blending
    source: Any

    def to_text(self) -> str:
        """Return one text: torch.distributed.checkpoint loads only into a state of the same shape."""
        return json.dumps(plain(asdict(self)))


def make_state(values: Mapping[str, Any], optimizer: Optimizer, schedule: LRScheduler | None) -> dict[str, Any]:
    # values that OneCycleLR and CyclicLR write besides the learning rate
    cycles = any(getattr(each, "cycle_momentum", False) for each in flatten([schedule]))
    keys = [key for key in ("momentum", "betas") if cycles and key in optimizer.defaults]
    state: dict[str, Any] = plain(
        {
            **values,
            "version": VERSION,
            "groups": labels_of(optimizer),
            "driven": [{key: group.get(key) for key in keys} for group in optimizer.param_groups],
            "schedule_types": [type(each).__name__ for each in flatten([schedule])],
            "schedule": schedule.state_dict() if schedule is not None else None,
        }
    )
    return state


def check_state(state: dict[str, Any], present: Mapping[str, Any], optimizer: Optimizer) -> Scored:
    """Refuse a state that is not like the present one, with other options and numbers, and return its results."""
    if not is_state(state):
        missing = [key for key in _KEYS if key not in state]
        raise ValueError(f"not a state of TempBalance: version {state.get('version')!r}, missing {missing}")
    for key, name in (("groups", "param groups"), ("schedule_types", "schedule")):
        if state[key] != present[key]:
            raise ValueError(f"the state has {name} {state[key]}, this scheduler {present[key]}")
    for key in ("last_epoch", "step_count", "bases", "base_lrs", "driven", "schedule"):
        _check_like(state.get(key), present[key], key)
    for target in state["bases"]:
        check_target(optimizer, target)
        _check_like(state["bases"][target], [group[target] for group in optimizer.param_groups], f"bases.{target}")
    for name in ("bases", "base_lrs", "driven"):
        check_finite(state[name], f"the state's {name}")
    if any(len(values) != len(state["groups"]) for values in (state["driven"], *state["bases"].values())):
        raise ValueError(f"the state's bases and driven must have values for all of {state['groups']}")
    try:
        values = json.loads(state["scored"])
    except (TypeError, ValueError) as err:
        raise ValueError(f"the state's scored is no JSON: {err}") from err
    scored: Scored = from_plain(Scored, values, "the state's scored")
    check_finite([scored.scores, asdict(scored.blending)], "the state's scores and scales")
    check_finite([(row.score, row.compared, row.scale, row.scales) for row in scored.rows], "the state's rows")
    return scored


def _check_like(saved: Any, present: Any, name: str) -> None:
    """Refuse a value of another kind than the present one, and NaN."""
    if type(present) is dict:
        needed = present.keys() if name == "driven" else present.keys() & {"last_epoch", "lr"}
        if not isinstance(saved, Mapping) or needed - saved.keys() or (name == "driven" and saved.keys() - needed):
            raise ValueError(f"the state's {name} must have {sorted(map(str, present))}, got {saved!r}")
        for key in present.keys() & saved.keys():
            _check_like(saved[key], present[key], f"{name}.{key}")
    elif isinstance(present, list | tuple):
        is_pair = isinstance(present, tuple)  # betas; a list has a value for each group, to which some may be added
        if not isinstance(saved, list | tuple) or (is_pair and len(saved) != len(present)):
            raise ValueError(f"the state's {name} must be a list, got {saved!r}")
        for each, now in zip(saved, present, strict=False):
            _check_like(each, now, name)
    elif name.endswith(("last_epoch", "step_count")):
        check_count(f"the state's {name}", saved, least=-1 if "." in name else 0)
    elif isinstance(present, bool | str) and type(saved) is not type(present):
        raise ValueError(f"the state's {name} must be like {present!r}, got {saved!r}")
    elif isinstance(present, int | float | Tensor) and not isinstance(present, bool):
        is_whole = isinstance(saved, int) and not isinstance(saved, bool) and abs(saved) < 2**63
        is_number = is_whole or isinstance(saved, float) or (isinstance(saved, Tensor) and saved.numel() == 1)
        if not is_number or bool(saved != saved):
            raise ValueError(f"the state's {name} must be a number, got {quoted(saved)}")


def labels_of(optimizer: Optimizer) -> list[str | None]:
    return [group.get(LABEL) for group in optimizer.param_groups]


def plain(value: Any) -> Any:
    """Return a copy with Python's numbers in place of numpy's, which ``weights_only=True`` loads."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, np.generic):
        return value.item()
    if type(value) is dict:
        return {key: plain(each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(plain(each) for each in value)
    return copy.deepcopy(value)
