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

from tempbalance.optim.param_groups import LABEL, Group, copy_value

Rate = float | Tensor

_NOTE = "balanced_"  # with the target's name: the key of the note
_SAME = 1e-6  # factors that differ by less are one factor, in float32 too


class Balanced:
    """One value of an optimizer's param groups, such as the learning rate."""

    def __init__(self, optimizer: Optimizer, target: str, bases: Sequence[Rate] = ()) -> None:
        """Take base values from a state, or, by default, the present values."""
        self.optimizer, self.target = optimizer, target
        self.bases = [_like(group[target], base) for group, base in zip(optimizer.param_groups, bases, strict=False)]
        self._written: list[Rate] = []
        self._versions: list[int | None] = []  # if there are Tensors among them
        self._groups: list[Group] = []  # which were written
        self._by_layer: Mapping[str, float] = {}
        self._scales: list[float] = []  # of the groups, by these scales of layers
        self._add_groups()

    def scaled(self, by_layer: Mapping[str, float]) -> list[Rate]:
        groups = self.optimizer.param_groups
        if self._by_layer is not by_layer or len(self._scales) != len(groups):  # once for each scoring
            self._by_layer, self._scales = by_layer, [by_layer.get(group.get(LABEL, ""), 1.0) for group in groups]
        return list(map(operator.mul, self.bases, self._scales))

    def refresh(self) -> tuple[list[int], bool]:
        """Read the base values of new groups, and of those whose values something else has set.

        Where all of them were multiplied by one factor, as in a decay by hand, the base values are. Otherwise a value
        that was set is the new base value. Loading the optimizer's state brings its own base values.

        Returns:
            The numbers of the groups that were set, and whether by one factor.
        """
        self._add_groups()
        groups, target = self.optimizer.param_groups, self.target
        present = [group[target] for group in groups]
        is_same = len(present) == len(self._written) and all(map(operator.is_, present, self._written))
        if is_same and (not self._versions or _versions(present) == self._versions):
            return [], False
        if len(groups) == len(self._groups) and all(map(operator.is_, groups, self._groups)):
            # an identity and a version show a change without reading a Tensor
            known = zip(self._written, self._versions or _versions(present), strict=True)
            now = zip(present, _versions(self._written), strict=True)
            changed = [i for i, (x, y) in enumerate(zip(known, now, strict=True)) if x[0] is not y[0] or x[1] != y[1]]
        else:
            self._take_notes()
            changed = [index for index, group in enumerate(groups) if was_changed(group, target)]
        bases, is_decay = _new_bases([groups[index] for index in changed], target)
        for index, base in zip(changed, bases, strict=True):
            self.bases[index] = base
        return changed, is_decay

    def unscale(self) -> None:
        """Write the base values, for a schedule to continue from."""
        target = self.target
        for group, base in zip(self.optimizer.param_groups, self.bases, strict=True):
            group[target] = base if type(base) is float else group[target].copy_(base)

    def read(self) -> None:
        present = [group[self.target] for group in self.optimizer.param_groups]
        if set(map(type, present)) != {float}:  # Tensors, or numbers of numpy that a schedule has written
            present = [_own(value, base) for value, base in zip(present, self.bases, strict=True)]
        self.bases = present

    def write(self, by_layer: Mapping[str, float]) -> list[Rate]:
        """Write the base values times the scales of the groups' layers, note both, and return the values."""
        self._add_groups()
        target, note, groups = self.target, _NOTE + self.target, self.optimizer.param_groups
        written, self._versions = self.scaled(by_layer), []
        if set(map(type, written)) != {float}:
            written = [_in_place(group[target], value) for group, value in zip(groups, written, strict=True)]
            self._versions = _versions(written)
        for group, value, used in zip(groups, written, zip(self.bases, self._scales)):  # noqa: B905  # the hot loop
            group[target] = value
            group[note] = used
        self._groups, self._written = groups[:], written
        return [copy_value(rate) for rate in written] if self._versions else written[:]

    def _add_groups(self) -> None:
        groups, known = self.optimizer.param_groups, len(self.bases)
        if known != len(groups):
            self._separate()
            self.bases += [_own(group[self.target], None) for group in groups[known:]]

    def _separate(self) -> None:
        """Give each group its own Tensor; torch shares one among all groups that are built together."""
        shared = {id(self.optimizer.defaults.get(self.target))}
        for group in self.optimizer.param_groups:
            if isinstance(group[self.target], Tensor) and id(group[self.target]) in shared:
                group[self.target] = group[self.target].clone()
            shared.add(id(group[self.target]))

    def _take_notes(self) -> None:
        """Take the base values of groups that came with the optimizer's state."""
        self._separate()
        known = {id(group) for group in self._groups}
        for index, group in enumerate(self.optimizer.param_groups):
            if known and id(group) not in known:
                base, _ = group.get(_NOTE + self.target, (group[self.target], 1.0))
                self.bases[index] = _like(group[self.target], base)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_groups": [], "_written": []}  # identity and versions are not copied


def _versions(values: Sequence[Rate]) -> list[int | None]:
    """Return how often each Tensor was changed in place; None for numbers."""
    return [getattr(each, "_version", None) for each in values]


def _in_place(held: Any, value: Rate) -> Rate:
    return held.copy_(value) if isinstance(held, Tensor) and isinstance(value, Tensor) else value


def _own(value: Any, base: Rate | None) -> Rate:
    """Return an unshared copy of a value: a float or a Tensor, that of the base value if there is one."""
    if not isinstance(value, Tensor):
        return float(value)
    return base.copy_(value) if isinstance(base, Tensor) and base is not value else value.clone()


def _like(value: Rate, base: Rate) -> Rate:
    """Return a base value as a Tensor where the group holds one, else as a number."""
    return torch.full_like(value, float(base)) if isinstance(value, Tensor) else float(base)


def check_target(optimizer: Optimizer, target: str) -> None:
    for index, group in enumerate(optimizer.param_groups):
        value = group.get(target)
        if target != "lr" and type(value) is int and value != 0:
            raise ValueError(f"balance: {target!r} of param group {index} is a whole number, {value}: write {value}.0")
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
        found: dict[float, float] = {}
        for value, base in () if is_decay else zip(values, bases, strict=True):
            if not math.isclose(found.setdefault(base, value), value, rel_tol=_SAME):
                raise RuntimeError(
                    f"something else set {target!r} of param groups with base value {base:.6g} to {found[base]:.6g}, "
                    f"{value:.6g}, so scales would compound: set one value, or give TempBalance a `schedule` that does"
                )
    return [_like(group[target], value) for group, value in zip(groups, values, strict=True)], is_decay
