"""timm's schedulers, balanced through the key that they multiply by: a group's ``lr_scale``.

Layer decay may be in that key already; a layer's scale is multiplied to it. timm itself is not needed here.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from tempbalance.errors import check_count
from tempbalance.integrations.options import check_timeless, scales_alone
from tempbalance.optim.param_groups import LABEL

_FIELD, _OWN = "lr_scale", "lr_scale_without_balance"


class BalancedSchedule:
    """A scheduler of timm with a balanced rate for each layer; stepped like it.

    As timm's own, it is told the time, epochs or updates, and keeps none: scales are in the optimizer's groups, and so
    in its state. To resume, load the optimizer and then call ``step`` or ``step_update`` with where the training is.

    Args:
        schedule: Of timm. Its optimizer is built from `param_groups`, or split before the schedule is built.
        model: The model whose layers are ranked.
        **options: Of `TempBalance`. ``interval`` and ``start`` are in the schedule's own time: epochs, or updates if
            that is what it goes by.

    Attributes:
        scheduler: A `TempBalance` with the last scores and the table.

    Raises:
        TypeError: If it is no scheduler of timm, or one that does not multiply by ``lr_scale`` (PlateauLRScheduler).
        ValueError: If the groups were split after the schedule was built, or are not split.
    """

    def __init__(self, schedule: Any, model: nn.Module, **options: Any) -> None:
        options = check_timeless(options)
        self.interval, self.start = options.pop("interval", 1), options.pop("start", 0)
        check_count("interval", self.interval, least=1)
        check_count("start", self.start, least=0)
        _check_schedule(schedule)
        self.schedule = schedule
        self.scheduler = scales_alone(schedule.optimizer.param_groups, model, **options)
        is_resumed = any(_OWN in group for group in schedule.optimizer.param_groups)
        if self.start == 0 and not is_resumed:
            self._score()

    def step(self, epoch: int, metric: float | None = None) -> None:
        """At the end of an epoch, with the number of the next."""
        if self.schedule.t_in_epochs:
            self._score_if_due(epoch)
        self.schedule.step(epoch, metric)

    def step_update(self, num_updates: int, metric: float | None = None) -> None:
        """After an update, with the number of updates so far."""
        if not self.schedule.t_in_epochs:
            self._score_if_due(num_updates)
        self.schedule.step_update(num_updates, metric)

    def state_dict(self) -> dict[str, Any]:
        """The schedule's; the scales are in the optimizer's."""
        state: dict[str, Any] = self.schedule.state_dict()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Hand the state on to the schedule."""
        self.schedule.load_state_dict(state_dict)

    def restore(self) -> None:
        """Put the groups' own ``lr_scale`` and rates back; the schedule may then be stepped alone."""
        for group in self.schedule.optimizer.param_groups:
            if _OWN in group:
                _set_scale(group, group.pop(_OWN))

    def _score_if_due(self, time: int) -> None:
        if time >= self.start and (time - self.start) % self.interval == 0:
            self._score()

    def _score(self) -> None:
        self.scheduler.rescore()
        for group in self.schedule.optimizer.param_groups:
            own = group.setdefault(_OWN, group.get(_FIELD, 1.0))
            _set_scale(group, own * self.scheduler.last_scales.get(group.get(LABEL, ""), 1.0))


def _set_scale(group: dict[str, Any], scale: float) -> None:
    """Set what timm multiplies by next, and the rate that it has multiplied already."""
    group["lr"] = group["lr"] * (scale / group.get(_FIELD, 1.0))
    group[_FIELD] = scale


def _check_schedule(schedule: Any) -> None:
    kind = type(schedule).__name__
    if not all(hasattr(schedule, name) for name in ("optimizer", "update_groups", "t_in_epochs", "base_values")):
        raise TypeError(f"schedule must be a scheduler of timm, got {kind}; for torch's there is TempBalance")
    if hasattr(schedule, "lr_scheduler"):
        raise TypeError(
            f"{kind} goes on from the present rates instead of multiplying by {_FIELD!r}: it can't be balanced"
        )
    num_groups = len(schedule.optimizer.param_groups)
    if len(schedule.base_values) != num_groups:
        raise ValueError(
            f"{kind} was built for {len(schedule.base_values)} param groups, the optimizer has {num_groups}: split the "
            "groups first, then build it"
        )
