"""Values of param groups that are balanced, learning rates above all: read without their scale, written with it.

Each group keeps the base value and the scale of the last write under its own key, so the optimizer's state has them.
Tensors are read only after something else has changed them, so that a step costs no device synchronisation.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from tempbalance.optim.param_groups import LABEL, copy_value
from tempbalance.ranking.compare import Scales

Rate = float | Tensor
Group = dict[str, Any]

_NOTE = "balanced_"  # with the target's name: the key of the note
_NONE: Mapping[str, float] = {}
_SAME = 1e-6  # factors that differ by less are one factor, in float32 too


class BaseValues:
    """Base values of an optimizer's param groups, by target; the learning rate is always among them."""

    def __init__(self, optimizer: Optimizer, targets: Sequence[str]) -> None:
        self.optimizer = optimizer
        self.values: dict[str, list[Rate]] = {target: [] for target in dict.fromkeys(("lr", *targets))}
        self._written: dict[str, list[Rate]] = {}
        self._versions: dict[str, list[int]] = {}  # of the Tensors among them
        self._groups: list[Group] = []  # which were written
        self._scales: dict[str, tuple[Mapping[str, float], list[float]]] = {}  # by layer, and by group
        self._add_groups()

    def load(self, values: Mapping[str, Sequence[Rate]]) -> None:
        """Take base values from a state."""
        groups = self.optimizer.param_groups
        self.values = {
            target: [_like(group[target], base) for group, base in zip(groups, bases, strict=True)]
            for target, bases in values.items()
        }
        self._groups, self._scales = [], {}

    def scaled(self, scales: Scales) -> list[Rate]:
        """Return each group's base learning rate times the scale of its layer."""
        return [base * scale for base, scale in zip(self.values["lr"], self._by_group("lr", scales), strict=True)]

    def refresh(self) -> dict[str, tuple[list[int], bool]]:
        """Read the base values of new groups, and of those whose values something else has set.

        Where all of them were multiplied by one factor, as in a decay by hand, the base values are. Otherwise a value
        that was set is the new base value. Loading the optimizer's state brings its own base values.

        Returns:
            By target, the numbers of the groups that were set, and whether by one factor.
        """
        self._add_groups()
        found, new = {}, []
        for target in self.values:
            if changed := self._changed(target):
                bases, is_decay = _new_bases([self.optimizer.param_groups[index] for index in changed], target)
                new += [(target, index, base) for index, base in zip(changed, bases, strict=True)]
                found[target] = changed, is_decay
        for target, index, base in new:
            self.values[target][index] = base
        return found

    def unscale(self) -> None:
        """Write the base values, for a schedule to continue from."""
        for target, bases in self.values.items():
            for group, base in zip(self.optimizer.param_groups, bases, strict=True):
                group[target] = base if type(base) is float else group[target].copy_(base)

    def read(self) -> None:
        """Take the present values as base values."""
        for target, bases in self.values.items():
            present = [group[target] for group in self.optimizer.param_groups]
            if set(map(type, present)) != {float}:  # Tensors, or numbers of numpy that a schedule has written
                present = [_own(value, base) for value, base in zip(present, bases, strict=True)]
            self.values[target] = present

    def write(self, scales: Scales) -> list[Rate]:
        """Write the base values times the scales of the groups' layers, note both, and return the learning rates."""
        self._add_groups()
        groups = self.optimizer.param_groups
        self._groups = list(groups)
        for target, bases in self.values.items():
            key = _NOTE + target
            written: list[Rate] = []
            for group, base, scale in zip(groups, bases, self._by_group(target, scales), strict=True):
                held = group[target]
                in_place = type(base) is not float and isinstance(held, Tensor) and held is not base
                value = torch.mul(base, scale, out=held) if in_place else base * scale
                group[target] = value
                group[key] = (base, scale)
                written.append(value)
            self._written[target] = written
            self._versions[target] = _versions(written)
        return [rate if type(rate) is float else copy_value(rate) for rate in self._written["lr"]]

    def _by_group(self, target: str, scales: Scales) -> list[float]:
        """Return the scale of each group, computed once for each scoring."""
        by_layer = scales.get(target, _NONE)
        known = self._scales.get(target)
        if known is None or known[0] is not by_layer or len(known[1]) != len(self.optimizer.param_groups):
            groups = self.optimizer.param_groups
            known = self._scales[target] = by_layer, [by_layer.get(group.get(LABEL, ""), 1.0) for group in groups]
        return known[1]

    def _add_groups(self) -> None:
        """Read the base values of groups that were added."""
        for target, bases in self.values.items():
            if len(bases) != len(self.optimizer.param_groups):
                self._separate(target)
                present = [group[target] for group in self.optimizer.param_groups[len(bases) :]]
                bases += [value.clone() if isinstance(value, Tensor) else float(value) for value in present]

    def _separate(self, target: str) -> None:
        """Give each group its own Tensor; torch shares one among all groups that are built together."""
        shared = {id(self.optimizer.defaults.get(target))}
        for group in self.optimizer.param_groups:
            if isinstance(group[target], Tensor) and id(group[target]) in shared:
                group[target] = group[target].clone()
            shared.add(id(group[target]))

    def _changed(self, target: str) -> list[int]:
        """Return the groups that something else has written to, recognised by identity and the version of Tensors."""
        groups = self.optimizer.param_groups
        if len(groups) != len(self._groups) or not all(map(operator.is_, groups, self._groups)):
            return self._replaced(target)
        written = self._written[target]
        is_same = all(map(operator.is_, (group[target] for group in groups), written))
        if is_same and _versions(written) == self._versions[target]:
            return []
        versions = iter(self._versions[target])
        return [
            index
            for index, (group, value) in enumerate(zip(groups, written, strict=True))
            if (isinstance(value, Tensor) and next(versions) != value._version) or group[target] is not value
        ]

    def _replaced(self, target: str) -> list[int]:
        """Take the base values of groups that came with the optimizer's state; return those changed since the note."""
        self._separate(target)
        groups, known = self.optimizer.param_groups, {id(group) for group in self._groups}
        for index, group in enumerate(groups):
            if known and id(group) not in known:
                base, _ = group.get(_NOTE + target, (group[target], 1.0))
                self.values[target][index] = _like(group[target], base)
        return [index for index, group in enumerate(groups) if was_changed(group, target)]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_groups": [], "_scales": {}}  # identity and versions are not copied


def _versions(values: Sequence[Rate]) -> list[int]:
    """Return how often each Tensor was changed in place; numbers are passed over."""
    return [each._version for each in values if type(each) is not float]  # type: ignore[union-attr]


def _own(value: Any, base: Rate) -> Rate:
    """Return an unshared copy of a base value: a float or a Tensor."""
    if not isinstance(value, Tensor):
        return float(value)
    return base.copy_(value) if isinstance(base, Tensor) and base is not value else value.clone()


def _like(value: Rate, base: Rate) -> Rate:
    """Return a base value as a Tensor where the group holds one, else as a number."""
    return torch.full_like(value, float(base)) if isinstance(value, Tensor) else float(base)


def check_target(optimizer: Optimizer, target: str) -> None:
    """Refuse a target that is not a number in every group."""
    for index, group in enumerate(optimizer.param_groups):
        value = group.get(target)
        if target != "lr" and type(value) is int and value != 0:
            raise ValueError(
                f"balance: {target!r} of param group {index} is a whole number, {value}: to scale it, write {value}.0"
            )
        if isinstance(value, bool) or not isinstance(value, int | float | Tensor):
            names = [key for key, each in group.items() if type(each) in (int, float)]
            raise ValueError(f"balance: param group {index} has no number {target!r} but {names}, got {value!r}")


def was_changed(group: Group, target: str = "lr") -> bool:
    """Whether a group's value is not the one that its note says was written."""
    note = group.get(_NOTE + target)
    return note is not None and float(group[target]) != float(note[0] * note[1])


def put_back(optimizer: Optimizer) -> None:
    """Set values that nothing else has changed to their base values, and remove the notes."""
    for group in optimizer.param_groups:
        for target in [name for name in group if _NOTE + name in group]:
            is_changed = was_changed(group, target)
            base = float(group.pop(_NOTE + target)[0])
            if not is_changed:
                group[target] = group[target].fill_(base) if isinstance(group[target], Tensor) else base


def _new_bases(groups: Sequence[Group], target: str) -> tuple[list[Rate], bool]:
    """Return the base values of groups whose values something else has set, and whether by one factor for all."""
    notes = [group[_NOTE + target] for group in groups]
    bases, values = [float(base) for base, _ in notes], [float(group[target]) for group in groups]
    is_decay = False
    if len({scale for _, scale in notes}) > 1:
        written = [base * scale for base, (_, scale) in zip(bases, notes, strict=True)]
        factors = [value / before if before else math.nan for value, before in zip(values, written, strict=True)]
        is_decay = all(math.isclose(factor, factors[0], rel_tol=_SAME) for factor in factors)
        if is_decay:
            values = [base * factors[0] for base in bases]
        else:
            _check_unscaled(values, bases, target)
    return [_like(group[target], value) for group, value in zip(groups, values, strict=True)], is_decay


def _check_unscaled(values: Sequence[float], bases: Sequence[float], target: str) -> None:
    """Refuse values that differ between groups of one base value: made of scaled values, scales would compound."""
    found: dict[float, float] = {}
    for value, base in zip(values, bases, strict=True):
        if not math.isclose(found.setdefault(base, value), value, rel_tol=_SAME):
            raise RuntimeError(
                f"something else set {target!r} of param groups with base value {base:.6g} to {found[base]:.6g} and "
                f"{value:.6g}, so scales would compound: set it by the `schedule` of TempBalance, or to one value"
            )
