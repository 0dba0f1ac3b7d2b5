"""accelerate: a prepared scheduler whose interval means optimizer steps, on any number of processes."""

from __future__ import annotations

import math
from typing import Any

from accelerate import Accelerator
from accelerate.scheduler import AcceleratedScheduler
from torch.optim.lr_scheduler import LambdaLR

from tempbalance.optim.scheduler import TempBalance


def prepare_scheduler(accelerator: Accelerator, scheduler: TempBalance) -> BalancedScheduler:
    """Prepare a `TempBalance`, in place of ``accelerator.prepare``; it is saved and loaded with the rest.

    After each optimizer step, accelerate steps a scheduler once per process, so that the base schedule counts samples.
    The base schedule still does, while ``interval``, ``start`` and ``lag`` count optimizer steps.

    Args:
        accelerator: The accelerator, after ``prepare`` of the model and the optimizer.
        scheduler: A scheduler of the prepared optimizer.

    Raises:
        TypeError: If the scheduler is not a `TempBalance`.
    """
    if not isinstance(scheduler, TempBalance):
        raise TypeError(f"scheduler must be TempBalance, got {type(scheduler).__name__}")
    prepared = BalancedScheduler(
        scheduler,
        accelerator._optimizers,
        step_with_optimizer=accelerator.step_scheduler_with_optimizer,
        split_batches=accelerator.split_batches,
    )
    prepared.count(accelerator.num_processes)
    accelerator.register_save_state_pre_hook(lambda *_: prepared.wait())  # runs on every process
    found: BalancedScheduler = accelerator.prepare_scheduler(prepared)  # returned unchanged
    return found


class BalancedScheduler(AcceleratedScheduler):  # type: ignore[misc]
    """Scheduler of `prepare_scheduler`; step it after each ``optimizer.step()``, also under ``accumulate``."""

    _is_accelerate_prepared = True
    scheduler: Any
    split_batches: bool

    def count(self, num_processes: int) -> None:
        """Step the scheduler once per optimizer step, and its base schedule as often as accelerate would."""
        self._is_repeated = self.step_with_optimizer and not self.split_batches
        self._num_steps = num_processes if self._is_repeated else 1
        self.split_batches = True

    def step(self, *args: Any, **kwargs: Any) -> None:
        if isinstance(self.scheduler, TempBalance):
            schedule = self.scheduler.schedule
            # accelerate does not step OneCycleLR beyond its end
            left = getattr(schedule, "total_steps", math.inf) - getattr(schedule, "last_epoch", 0)
            self.scheduler._schedule_steps = int(max(0, min(self._num_steps, left)))
        super().step(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        """Return any other attribute of `TempBalance`, such as ``table``."""
        if name == "scheduler":  # not set yet
            raise AttributeError(name)
        return getattr(self.scheduler, name)

    def wait(self) -> None:
        """Wait on every process for a scoring in the background; ``accelerator.save_state`` calls this."""
        if isinstance(self.scheduler, TempBalance):
            self.scheduler.wait()

    def restore(self) -> None:
        """Restore the base learning rates and continue with the base schedule alone."""
        self.scheduler.restore()
        self.split_batches = not self._is_repeated
        optimizer, schedule = self.scheduler.optimizer, self.scheduler.schedule
        self.scheduler = LambdaLR(optimizer, lambda _: 1.0) if schedule is None else schedule
