"""Lightning: a callback that balances a module which one can't change.

A module that one can change needs none of it: TempBalance is returned from ``configure_optimizers`` like any scheduler.
"""

from __future__ import annotations

import logging
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.types import LRSchedulerConfig
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.optim import Optimizer

from tempbalance.integrations.logs import MAX_LAYERS, LayerLog, table_text
from tempbalance.integrations.options import check_options
from tempbalance.optim.param_groups import LABEL, split_param_groups
from tempbalance.optim.scheduler import TempBalance

_log = logging.getLogger("tempbalance")


class TempBalanceCallback(Callback):
    """Splits the groups of the module's optimizers, and puts TempBalance around the schedulers that are there.

    Lightning then steps, saves and restores it as it would have the module's own. A checkpoint from before is taken up.
    Alphas, scales and rates go to the trainer's loggers after each scoring, and a table at the end.

    Args:
        max_layers: Of how many layers numbers are logged.
        **options: Of `TempBalance`. ``interval`` and ``start`` count steps of the module's scheduler, which Lightning
            takes every epoch or every optimizer step, as the module says; epochs, if it has none.

    Attributes:
        schedulers: One `TempBalance` for each optimizer, once the training has started.
    """

    def __init__(self, *, max_layers: int = MAX_LAYERS, **options: Any) -> None:
        self.max_layers, self.options = max_layers, check_options(options)
        self.schedulers: list[TempBalance] = []
        self._logs: list[LayerLog] = []
        self._is_late = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Forget an earlier training."""
        if stage == "fit":
            self.schedulers, self._logs, self._is_late = [], [], False

    def state_dict(self) -> dict[str, Any]:
        """Nothing; but Lightning asks every process for it before it saves the schedulers."""
        for scheduler in self.schedulers:
            scheduler.wait()
        return {}

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """See whether the optimizers were split when they were saved; if not, they are loaded first and split then."""
        groups = [group for state in checkpoint.get("optimizer_states", ()) for group in state["param_groups"]]
        self._is_late = bool(groups) and not any(LABEL in group for group in groups)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take over the schedulers, before Lightning loads their states."""
        if not self._is_late:
            self._take_over(trainer, pl_module)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the scores that the training starts with."""
        if self._is_late:
            self._take_over(trainer, pl_module)
        self._tell_loggers(trainer)

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """Log scores that are new."""
        self._tell_loggers(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Tell the last table, also to loggers that take text."""
        for scheduler in self.schedulers if trainer.is_global_zero else ():
            _log.info("layers at the end of the training\n%s", scheduler.table())
            for logger in trainer.loggers:
                if callable(add_text := getattr(getattr(logger, "experiment", None), "add_text", None)):
                    add_text("tempbalance/table", table_text(scheduler), trainer.global_step)

    def _take_over(self, trainer: Trainer, pl_module: LightningModule) -> None:
        configs, model = trainer.strategy.lr_scheduler_configs, _balanced_model(trainer, pl_module)
        for optimizer in trainer.optimizers:
            config = _config_of(optimizer, configs)
            if config is None:
                _check_is_stepped(pl_module, optimizer)
            schedule: Any = None if config is None else config.scheduler
            split_param_groups(optimizer, model, schedulers=[] if schedule is None else [schedule])
            scheduler = TempBalance(optimizer, model, schedule, **self.options)
            if config is None:
                configs.append(LRSchedulerConfig(scheduler))
            else:
                config.scheduler = scheduler
            self.schedulers.append(scheduler)
            self._logs.append(LayerLog(max_layers=self.max_layers))

    def _tell_loggers(self, trainer: Trainer) -> None:
        for log, scheduler in zip(self._logs, self.schedulers, strict=True):
            if trainer.is_global_zero and (values := log.news(scheduler)):
                for logger in trainer.loggers:
                    logger.log_metrics(values, step=trainer.fit_loop.epoch_loop._batches_that_stepped)


def restore_rates(trainer: Trainer) -> None:
    """Put the base rates back and leave the schedulers that TempBalance was around, for the rest of the training."""
    configs = trainer.strategy.lr_scheduler_configs
    for config in list(configs):
        if isinstance(scheduler := config.scheduler, TempBalance):
            scheduler.restore()
            if scheduler.schedule is None:
                configs.remove(config)
            else:
                config.scheduler = scheduler.schedule


def _balanced_model(trainer: Trainer, module: LightningModule) -> nn.Module:
    """The module, or FSDP1 around it, which alone knows its pieces."""
    whole = trainer.strategy.model
    return whole if isinstance(whole, FullyShardedDataParallel) else module


def _config_of(optimizer: Optimizer, configs: list[LRSchedulerConfig]) -> LRSchedulerConfig | None:
    own = [config for config in configs if config.scheduler.optimizer is optimizer]
    if any(isinstance(config.scheduler, TempBalance) for config in own):
        raise TypeError("the module returns TempBalance already: leave TempBalanceCallback out")
    if len(own) > 1:
        raise ValueError(
            f"{type(optimizer).__name__} has {len(own)} schedulers: return one, such as a ChainedScheduler of them"
        )
    return own[0] if own else None


def _check_is_stepped(module: LightningModule, optimizer: Optimizer) -> None:
    if not module.automatic_optimization:
        raise ValueError(
            f"{type(optimizer).__name__} has no scheduler, and the module optimizes by hand, so nothing would step "
            "TempBalance: return a scheduler with it, such as LambdaLR(optimizer, lambda step: 1.0), and step that"
        )
