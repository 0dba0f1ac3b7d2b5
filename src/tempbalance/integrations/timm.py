"""timm's schedulers, balanced through ``lr_scale``, the factor of each group.

Layer decay may use ``lr_scale`` already; a layer's scale multiplies it. This module does not import timm.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from tempbalance.integrations.options import ScalesAlone
from tempbalance.optim.param_groups import LABEL

_FIELD, _OWN = "lr_scale", "lr_scale_without_balance"


class BalancedSchedule:
    """A timm scheduler with a balanced learning rate for each layer; step it like the timm scheduler.

    It has no counter: like timm's own, ``step`` takes the epoch and ``step_update`` the number of updates. The scales
    are in the optimizer's groups, so the optimizer's state has them. To resume, load the optimizer, then call ``step``
    or ``step_update`` with the present epoch or update.

    Args:
        schedule: A timm scheduler. Build its optimizer from `param_groups`, or split the groups before you build it.
        model: The model whose layers are ranked.
        **options: Options of `TempBalance`. ``interval`` and ``start`` count what the schedule counts, epochs or
            updates.

    Attributes:
        scheduler: A `TempBalance` with the last scores and the table.

    Raises:
        TypeError: If ``schedule`` is not a timm scheduler, or does not multiply by ``lr_scale`` (PlateauLRScheduler).
        ValueError: If the groups were split after the schedule was built, or are not split.
    """

    def __init__(self, schedule: Any, model: nn.Module, **options: Any) -> None:
        self._scales = ScalesAlone(options)
        _check_schedule(schedule)
        self.schedule = schedule
        self.scheduler = self._scales.make_scheduler(schedule.optimizer.param_groups, model)
        is_resumed = any(_OWN in group for group in schedule.optimizer.param_groups)
        if not is_resumed:
            self._score_if_due(0)

    def step(self, epoch: int, metric: float | None = None) -> None:
        """Score if due and step the schedule; call it at the end of an epoch with the number of the next."""
        if self.schedule.t_in_epochs:
            self._score_if_due(epoch)
        self.schedule.step(epoch, metric)

    def step_update(self, num_updates: int, metric: float | None = None) -> None:
        """Score if due and step the schedule; call it after an update with the number of updates so far."""
        if not self.schedule.t_in_epochs:
            self._score_if_due(num_updates)
        self.schedule.step_update(num_updates, metric)

    def state_dict(self) -> dict[str, Any]:
        """Return the schedule's state; the scales are in the optimizer's state."""
        return dict(self.schedule.state_dict())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.schedule.load_state_dict(state_dict)

    def restore(self) -> None:
        """Restore the groups' own ``lr_scale`` and learning rates; then step the schedule alone."""
        for group in self.schedule.optimizer.param_groups:
            if _OWN in group:
                _set_scale(group, group.pop(_OWN))

    def _score_if_due(self, time: int) -> None:
        if not self._scales.is_due(time):
            return
        self.scheduler.rescore()
        for group in self.schedule.optimizer.param_groups:
            own = group.setdefault(_OWN, group.get(_FIELD, 1.0))
            _set_scale(group, own * self.scheduler.last_scales.get(group.get(LABEL, ""), 1.0))


def _set_scale(group: dict[str, Any], scale: float) -> None:
    """Set the factor of timm's next step, and apply it to the present learning rate."""
    group["lr"] = group["lr"] * (scale / group.get(_FIELD, 1.0))
    group[_FIELD] = scale


def _check_schedule(schedule: Any) -> None:
    kind = type(schedule).__name__
    if not all(hasattr(schedule, name) for name in ("optimizer", "update_groups", "t_in_epochs", "base_values")):
        raise TypeError(f"schedule must be a timm scheduler, got {kind}; use TempBalance with torch's schedulers")
    if hasattr(schedule, "lr_scheduler"):
        raise TypeError(
            f"{kind} changes the present learning rates instead of multiplying by {_FIELD!r}: it can't be balanced"
        )
    num_groups = len(schedule.optimizer.param_groups)
    if len(schedule.base_values) != num_groups:
        raise ValueError(
            f"{kind} was built for {len(schedule.base_values)} param groups, the optimizer has {num_groups}: split the "
            "groups first, then build it"
        )
