"""transformers' Trainer with a balanced learning rate for each layer.

The Trainer makes its optimizer and its schedule as usual. Then the groups are split and TempBalance wraps the schedule.
Saving, resuming, warm-up and gradient accumulation are the Trainer's.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK
from transformers.trainer import SCHEDULER_NAME

from tempbalance.integrations.logs import MAX_LAYERS, LayerLog, log_table, table_text
from tempbalance.integrations.options import check_options
from tempbalance.optim.param_groups import split_param_groups
from tempbalance.optim.scheduler import TempBalance
from tempbalance.optim.state import is_state


class TempBalanceMixin:
    """Mixin that balances any Trainer: ``class Mine(TempBalanceMixin, SFTTrainer)``.

    Args:
        *args: Arguments of the Trainer.
        balance: Options of `TempBalance`. ``interval``, the optimizer steps between scorings, is required.
        max_layers: Number of layers whose values are logged.
        **kwargs: Arguments of the Trainer.

    Raises:
        TypeError: If an option does not exist, or ``interval`` is missing.
    """

    model: Any
    optimizer: Any
    lr_scheduler: Any
    callback_handler: Any

    def __init__(self, *args: Any, balance: Mapping[str, Any], max_layers: int = MAX_LAYERS, **kwargs: Any) -> None:
        self.balance = check_options(dict(balance), required=("interval",))
        self._balanced: TempBalance | None = None
        super().__init__(*args, **kwargs)
        self.callback_handler.add_callback(LayerLogCallback(self.callback_handler.callbacks, max_layers=max_layers))

    def create_optimizer(self, model: Any = None) -> Optimizer:
        """Create the Trainer's optimizer, or take the given one, and split its groups by layer."""
        optimizer: Optimizer = super().create_optimizer(model)  # type: ignore[misc]
        schedules = [] if isinstance(self.lr_scheduler, TempBalance | None) else [self.lr_scheduler]
        split_param_groups(optimizer, self.model if model is None else model, schedulers=schedules)
        return optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Optimizer | None = None) -> LRScheduler:
        """Wrap the Trainer's schedule, or the given one, in TempBalance."""
        if self._balanced is not None and self.lr_scheduler is None:  # a second training
            self._balanced.restore()
        schedule: Any = super().create_scheduler(num_training_steps, optimizer)  # type: ignore[misc]
        if isinstance(schedule, TempBalance):
            return schedule
        if isinstance(schedule, ReduceLROnPlateau):
            raise ValueError(
                "ReduceLROnPlateau can't be balanced here: the Trainer steps it after evaluations only if it finds "
                "this type, and TempBalance around it hides the type"
            )
        self.lr_scheduler = self._balanced = TempBalance(schedule.optimizer, self.model, schedule, **self.balance)
        return self._balanced

    def restore_rates(self) -> None:
        """Restore the base learning rates and continue with the Trainer's own schedule."""
        if self._balanced is None:
            raise RuntimeError(
                "there is nothing to restore: no training has started, or its rates are restored already"
            )
        self._balanced.restore()
        self.lr_scheduler = self.callback_handler.lr_scheduler = self._balanced.schedule
        self._balanced = None

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Refuse a checkpoint saved without balancing, because its optimizer has other groups."""
        file = None if checkpoint is None else Path(checkpoint) / SCHEDULER_NAME
        if file is not None and file.exists() and not is_state(torch.load(file, weights_only=True)):
            raise ValueError(
                f"{checkpoint} was saved without balancing: start anew from its weights, or resume it with a Trainer "
                "that is not balanced"
            )
        super()._load_optimizer_and_scheduler(checkpoint)  # type: ignore[misc]

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        """Wait on every process before the first one saves the scheduler."""
        if self._balanced is not None:
            self._balanced.wait()
        super()._save_checkpoint(*args, **kwargs)  # type: ignore[misc]


class TempBalanceTrainer(TempBalanceMixin, Trainer):
    """transformers' own Trainer, balanced."""


class LayerLogCallback(TrainerCallback):
    """Send each layer's numbers and a table to the Trainer's reporters (TensorBoard, Weights & Biases, ...).

    They bypass the Trainer's log, which is printed and saved in every checkpoint. The callbacks are the Trainer's.
    """

    def __init__(self, callbacks: list[TrainerCallback], *, max_layers: int = MAX_LAYERS) -> None:
        self.callbacks = callbacks
        self._news = LayerLog(max_layers=max_layers)

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: Any = None, **kwargs: Any
    ) -> None:
        """Report new scores whenever the Trainer logs, and the table with its last log."""
        scheduler = kwargs.get("lr_scheduler")
        if not isinstance(scheduler, TempBalance):
            return
        values: dict[str, Any] = dict(self._news.news(scheduler))
        if "train_runtime" in (logs or {}):
            values["tempbalance"] = table_text(scheduler)
            if state.is_world_process_zero:
                log_table(scheduler)
        for reporter in self.callbacks if values else ():
            if isinstance(reporter, tuple(INTEGRATION_TO_CALLBACK.values())):
                reporter.on_log(args, state, control, logs=dict(values), **kwargs)
