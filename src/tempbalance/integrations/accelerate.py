"""accelerate: a prepared scheduler whose interval means optimizer steps, on any number of processes."""

from __future__ import annotations

from typing import Any

from accelerate import Accelerator
from accelerate.scheduler import AcceleratedScheduler
from torch.optim.lr_scheduler import LambdaLR

from tempbalance.scheduler import TempBalance

_COUNTS = ("interval", "start", "lag")  # what TempBalance counts in calls of `step`


def prepare_scheduler(accelerator: Accelerator, scheduler: TempBalance) -> BalancedScheduler:
    """Use it for `TempBalance` where ``accelerator.prepare`` would be; it is saved and loaded with the rest.

    accelerate steps a scheduler as often as there are processes after each optimizer step, so that the base schedule
    goes by the number of samples. ``interval``, ``start`` and ``lag`` count optimizer steps all the same, in the saved
    state too.

    Args:
        accelerator: After its ``prepare`` has had the model and the optimizer.
        scheduler: Built on that optimizer.

    Raises:
        TypeError: If the scheduler is another one.
    """
    if not isinstance(scheduler, TempBalance):
        raise TypeError(f"scheduler must be TempBalance, got {type(scheduler).__name__}")
    prepared = BalancedScheduler(
        scheduler,
        accelerator._optimizers,
        step_with_optimizer=accelerator.step_scheduler_with_optimizer,
        split_batches=accelerator.split_batches,
    )
    repeats = prepared.step_with_optimizer and not prepared.split_batches
    prepared.count(accelerator.num_processes if repeats else 1)
    found: BalancedScheduler = accelerator.prepare_scheduler(prepared)  # which keeps it as it is
    return found


class BalancedScheduler(AcceleratedScheduler):  # type: ignore[misc]
    """What `prepare_scheduler` gives; stepped after each ``optimizer.step()``, under ``accumulate`` too."""

    _is_accelerate_prepared = True
    scheduler: Any

    def count(self, num_calls: int) -> None:
        """Have the scheduler count in calls of ``step``, of which there are so many an optimizer step."""
        self.num_calls = num_calls
        for name in _COUNTS:
            setattr(self.scheduler, name, getattr(self.scheduler, name) * num_calls)
        if hasattr(self.scheduler.schedule, "total_steps"):  # accelerate does not step OneCycleLR beyond its end
            self.scheduler.total_steps = self.scheduler.schedule.total_steps

    def state_dict(self) -> dict[str, Any]:
        """The scheduler's, with what it counts in optimizer steps."""
        state: dict[str, Any] = self.scheduler.state_dict()
        if isinstance(self.scheduler, TempBalance):
            for name in _COUNTS:
                state["options"][name] //= self.num_calls
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on, perhaps on another number of processes than it was saved on."""
        self.scheduler.load_state_dict(state_dict)
        if isinstance(self.scheduler, TempBalance):
            self.count(self.num_calls)

    def restore(self) -> None:
        """Put the base rates back and go on with the base schedule alone."""
        self.scheduler.restore()
        optimizer, schedule = self.scheduler.optimizer, self.scheduler.schedule
        self.scheduler = LambdaLR(optimizer, lambda _: 1.0) if schedule is None else schedule
