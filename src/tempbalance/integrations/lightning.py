"""Lightning: a callback that balances a module without changing it.

A module that you can change needs no callback: return TempBalance from ``configure_optimizers`` like any scheduler.
"""

from __future__ import annotations

import math
from typing import Any, Literal

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.types import LRSchedulerConfig
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.optim import Optimizer

from tempbalance.errors import check_count
from tempbalance.integrations.logs import MAX_LAYERS, LayerLog, log_table, table_text
from tempbalance.integrations.options import check_options
from tempbalance.optim.param_groups import LABEL, split_param_groups
from tempbalance.optim.scheduler import TempBalance
from tempbalance.optim.state import is_state

_COUNTED = ("interval", "start", "stop")


class TempBalanceCallback(Callback):
    """Split the param groups of the module's optimizers, and put TempBalance around their schedulers.

    Lightning then steps, saves and restores it like the module's own scheduler. Training can continue from a checkpoint
    that was saved without the callback. Alphas, scales and learning rates go to the trainer's loggers after each
    scoring, and a table at the end.

    Args:
        unit: What ``interval``, ``start`` and ``stop`` count: ``epoch``, or ``step`` for optimizer steps, where the
            module's scheduler is stepped after each of them. With manual optimization they count the module's own
            calls of ``scheduler.step()``.
        max_layers: Number of layers whose values are logged.
        **options: Of `TempBalance`.

    Attributes:
        schedulers: One `TempBalance` for each optimizer, once training has started.

    Raises:
        TypeError: If an option does not exist, or ``interval`` is missing with the unit ``step``.
    """

    def __init__(
        self, *, unit: Literal["epoch", "step"] = "epoch", max_layers: int = MAX_LAYERS, **options: Any
    ) -> None:
        if unit not in ("epoch", "step"):
            raise ValueError(f"unit must be 'epoch' or 'step', got {unit!r}")
        self.unit, self.max_layers = unit, max_layers
        self.options = check_options(options, required=["interval"] if unit == "step" else [])
        self.schedulers: list[TempBalance] = []
        self._logs: list[LayerLog] = []
        self._saved: list[dict[str, Any]] = []
        self._is_late = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit":  # forget an earlier training
            self.schedulers, self._logs, self._saved, self._is_late = [], [], [], False

    def state_dict(self) -> dict[str, Any]:
        """Wait for the schedulers; Lightning calls this on every process before it saves them."""
        for scheduler in self.schedulers:
            scheduler.wait()
        return {}

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Check whether the saved optimizers are split; if not, they are loaded before they are split."""
        groups = [group for state in checkpoint.get("optimizer_states", ()) for group in state["param_groups"]]
        self._is_late = bool(groups) and not any(LABEL in group for group in groups)
        states = [state for state in checkpoint.get("lr_schedulers", ()) if is_state(state)]
        self._saved = [{name: state["options"][name] for name in _COUNTED} for state in states]

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take over the schedulers, before Lightning loads their states."""
        if not self._is_late:
            self._take_over(trainer, pl_module)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._is_late:
            self._take_over(trainer, pl_module)
        self._log_scores(trainer)

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        self._log_scores(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the last table, also to loggers that accept text."""
        for scheduler in self.schedulers if trainer.is_global_zero else ():
            log_table(scheduler)
            for logger in trainer.loggers:
                if callable(add_text := getattr(getattr(logger, "experiment", None), "add_text", None)):
                    add_text("tempbalance/table", table_text(scheduler), trainer.global_step)

    def _take_over(self, trainer: Trainer, pl_module: LightningModule) -> None:
        configs, model = trainer.strategy.lr_scheduler_configs, _balanced_model(trainer, pl_module)
        for optimizer in trainer.optimizers:
            config = _config_of(optimizer, configs)
            if config is None and not pl_module.automatic_optimization:
                raise ValueError(
                    f"{type(optimizer).__name__} has no scheduler, and the module uses manual optimization, so nothing "
                    "steps TempBalance: return a scheduler with it, such as LambdaLR(optimizer, lambda step: 1.0), and "
                    "step that"
                )
            schedule: Any = None if config is None else config.scheduler
            split_param_groups(optimizer, model, schedulers=[] if schedule is None else [schedule])
            options = self.options
            if self._saved:  # the length of an epoch is not known before Lightning has restored the loaders
                options = {**options, **self._saved[min(len(self.schedulers), len(self._saved) - 1)]}
            elif pl_module.automatic_optimization:
                options = self._in_calls(trainer, config)
            scheduler = TempBalance(optimizer, model, schedule, **options)
            if config is None:
                configs.append(LRSchedulerConfig(scheduler))
            else:
                config.scheduler = scheduler
            self.schedulers.append(scheduler)
            self._logs.append(LayerLog(max_layers=self.max_layers))

    def _in_calls(self, trainer: Trainer, config: LRSchedulerConfig | None) -> dict[str, Any]:
        """Convert epochs or optimizer steps in the options to calls of the scheduler's ``step``."""
        if self.unit == "step" and (config is None or config.interval != "step"):
            raise ValueError(
                "unit='step' needs a scheduler that Lightning steps after each optimizer step, the module's is stepped "
                'each epoch: return it with "interval": "step", or count epochs'
            )
        per_unit = 1.0 if config is None else 1 / config.frequency
        if self.unit == "epoch" and config is not None:
            per_unit = _calls_per_epoch(trainer, config)
        if not math.isfinite(per_unit):
            raise ValueError(
                "the number of batches in an epoch is not known, so TempBalance cannot score once an epoch: give "
                "TempBalanceCallback unit='step' and the interval in optimizer steps"
            )
        given = {"interval": 1, "start": 0, **self.options}
        counted = {name: given[name] for name in _COUNTED if given.get(name) is not None}
        for name, value in counted.items():
            check_count(name, value, least=0 if name == "start" else 1)
        return given | {
            name: max(0 if name == "start" else 1, round(value * per_unit)) for name, value in counted.items()
        }

    def _log_scores(self, trainer: Trainer) -> None:
        for log, scheduler in zip(self._logs, self.schedulers, strict=True):
            if trainer.is_global_zero and (values := log.news(scheduler)):
                for logger in trainer.loggers:
                    logger.log_metrics(values, step=trainer.fit_loop.epoch_loop._batches_that_stepped)


def restore_rates(trainer: Trainer) -> None:
    """Restore the base learning rates and continue with the module's own schedulers."""
    configs = trainer.strategy.lr_scheduler_configs
    for config in list(configs):
        if isinstance(scheduler := config.scheduler, TempBalance):
            scheduler.restore()
            if scheduler.schedule is None:
                configs.remove(config)
            else:
                config.scheduler = scheduler.schedule


def _balanced_model(trainer: Trainer, module: LightningModule) -> nn.Module:
    """Return the module, or the FSDP1 wrapper around it, which knows the shards."""
    whole = trainer.strategy.model
    return whole if isinstance(whole, FullyShardedDataParallel) else module


def _calls_per_epoch(trainer: Trainer, config: LRSchedulerConfig) -> float:
    """Return the calls of a scheduler's ``step`` per epoch; infinite if the length of an epoch is not known."""
    if config.interval == "epoch":
        return 1 / config.frequency
    if trainer.train_dataloader is None:
        trainer.fit_loop.setup_data()
    return trainer.num_training_batches / trainer.accumulate_grad_batches / config.frequency


def _config_of(optimizer: Optimizer, configs: list[LRSchedulerConfig]) -> LRSchedulerConfig | None:
    own = [config for config in configs if config.scheduler.optimizer is optimizer]
    if any(isinstance(config.scheduler, TempBalance) for config in own):
        raise TypeError("the module returns TempBalance already: remove TempBalanceCallback")
    if len(own) > 1:
        raise ValueError(
            f"{type(optimizer).__name__} has {len(own)} schedulers: return one, such as a ChainedScheduler of them"
        )
    return own[0] if own else None
