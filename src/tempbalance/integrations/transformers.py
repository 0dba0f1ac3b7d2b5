"""transformers' Trainer with a balanced rate for each layer.

The Trainer makes its optimizer and its schedule as it always does, for the arguments it is given; here the groups are
split and TempBalance goes around the schedule. Saving, resuming, warm-up and gradient accumulation stay the Trainer's.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK
from transformers.trainer import SCHEDULER_NAME

from tempbalance.integrations.logs import MAX_LAYERS, LayerLog, table_text
from tempbalance.integrations.options import check_options
from tempbalance.optim.param_groups import split_param_groups
from tempbalance.optim.scheduler import TempBalance
from tempbalance.optim.state import is_state

_log = logging.getLogger("tempbalance")


class TempBalanceMixin:
    """Put before any Trainer: ``class Mine(TempBalanceMixin, SFTTrainer)``.

    Args:
        *args: Of the Trainer.
        balance: Options of `TempBalance`. ``interval``, optimizer steps between scorings, has to be there.
        max_layers: Of how many layers numbers are logged.
        **kwargs: Of the Trainer.

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
        """The Trainer's optimizer, or the one it was given, with its groups split by layer."""
        optimizer: Optimizer = super().create_optimizer(model)  # type: ignore[misc]
        schedules = [] if isinstance(self.lr_scheduler, TempBalance | None) else [self.lr_scheduler]
        split_param_groups(optimizer, self.model if model is None else model, schedulers=schedules)
        return optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Optimizer | None = None) -> LRScheduler:
        """TempBalance around the Trainer's schedule, or around the one it was given.

        Raises:
            ValueError: If the schedule is ReduceLROnPlateau.
        """
        if self._balanced is not None and self.lr_scheduler is None:  # a second training
            self._balanced.restore()
        schedule: Any = super().create_scheduler(num_training_steps, optimizer)  # type: ignore[misc]
        if isinstance(schedule, TempBalance):
            return schedule
        if isinstance(schedule, ReduceLROnPlateau):
            raise ValueError(
                "ReduceLROnPlateau can't be balanced here: the Trainer steps it after evaluations, which it knows by "
                "the type, and TempBalance around it hides that"
            )
        self.lr_scheduler = self._balanced = TempBalance(schedule.optimizer, self.model, schedule, **self.balance)
        return self._balanced

    def restore_rates(self) -> None:
        """Put the base rates back and leave the Trainer its own schedule, for the rest of this training.

        Raises:
            RuntimeError: If no training has started.
        """
        if self._balanced is None:
            raise RuntimeError(
                "there is nothing to restore: no training has started, or its rates are restored already"
            )
        self._balanced.restore()
        self.lr_scheduler = self.callback_handler.lr_scheduler = self._balanced.schedule
        self._balanced = None

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Refuse a checkpoint of a training without balancing, whose optimizer has other groups.

        Raises:
            ValueError: It says what to do.
        """
        file = None if checkpoint is None else Path(checkpoint) / SCHEDULER_NAME
        if file is not None and file.exists() and not is_state(torch.load(file, weights_only=True)):
            raise ValueError(
                f"{checkpoint} was saved without balancing: start anew from its weights, or resume it with a Trainer "
                "that is not balanced"
            )
        super()._load_optimizer_and_scheduler(checkpoint)  # type: ignore[misc]

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        """Every process comes here, the first alone then saves the scheduler."""
        if self._balanced is not None:
            self._balanced.wait()
        super()._save_checkpoint(*args, **kwargs)  # type: ignore[misc]


class TempBalanceTrainer(TempBalanceMixin, Trainer):
    """transformers' own Trainer, balanced."""


class LayerLogCallback(TrainerCallback):
    """Hands each layer's numbers to what the Trainer reports to (TensorBoard, Weights & Biases, ...), and a table.

    They do not go through the Trainer's log, which is printed and kept in every checkpoint.

    Args:
        callbacks: The Trainer's, among which those are that report.
        max_layers: Of how many layers.
    """

    def __init__(self, callbacks: list[TrainerCallback], *, max_layers: int = MAX_LAYERS) -> None:
        self.callbacks = callbacks
        self._news = LayerLog(max_layers=max_layers)

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: Any = None, **kwargs: Any
    ) -> None:
        """Report what is new where the Trainer logs; its last log, after the last step, gets the table."""
        scheduler = kwargs.get("lr_scheduler")
        if not isinstance(scheduler, TempBalance):
            return
        values: dict[str, Any] = dict(self._news.news(scheduler))
        if "train_runtime" in (logs or {}):
            values["tempbalance"] = table_text(scheduler)
            if state.is_world_process_zero:
                _log.info("layers at the end of the training\n%s", scheduler.table())
        for reporter in self.callbacks if values else ():
            if isinstance(reporter, tuple(INTEGRATION_TO_CALLBACK.values())):
                reporter.on_log(args, state, control, logs=dict(values), **kwargs)
