"""Start of a run on the command line: threads, progress, loggers."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_only
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from tempbalance.lab.loop import say
from tempbalance.lab.module import RecipeModule
from tempbalance.lab.recipe import Recipe
from tempbalance.lab.training import train
from tempbalance.runlog import Line

_NARROW = 100  # columns of a terminal below which the rates are not shown


def start(
    recipe: Recipe,
    folder: Path,
    *,
    cache: Path | None,
    threads: int | None,
    console: Console,
    log_every: int,
    tensorboard: bool,
    **trainer_options: Any,
) -> Line | None:
    """Train a recipe and show how it goes.

    Returns:
        The run's result; ``None`` in all processes of several but the first, which alone tells anything.
    """
    is_first = rank_zero_only.rank == 0  # type: ignore[attr-defined]
    console = console if is_first else Console(quiet=True)
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", module="lightning")
    warnings.showwarning = lambda message, *_: say(console, f"warning: {message}")
    if threads is not None:
        torch.set_num_threads(threads)
    logger: Any = False
    if tensorboard:
        from lightning.pytorch.loggers import TensorBoardLogger

        logger = TensorBoardLogger(folder, name="", version="tensorboard")
    result = train(
        recipe,
        folder,
        cache=cache,
        callbacks=[ShowProgress(console, log_every=log_every)],
        tell=lambda text: say(console, text),
        logger=logger,
        log_every_n_steps=log_every,
        **trainer_options,
    )
    return result if is_first else None


def run(recipe: Recipe, folder: Path, *, device: str, **options: Any) -> Line | None:
    """Train a recipe for a sweep; ``options`` as for `start`."""
    return start(recipe, folder, accelerator=device, **options)


class ShowProgress(Callback):
    """Shows loss, accuracy, the range of the rates and the time left.

    Args:
        console: Shows a bar if it is a terminal, otherwise a line for each epoch.
        log_every: Steps between two readings of the loss.
    """

    def __init__(self, console: Console, *, log_every: int = 10) -> None:
        self.console, self.log_every = console, log_every
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[status]},"))
        time = (TimeRemainingColumn(), TextColumn("left"))
        self.progress = Progress(*columns, *time, console=console, disable=not console.is_terminal, transient=True)
        self.task = TaskID(0)
        self.loss, self.accuracy, self.rates = "", "", ""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Open the bar."""
        num_batches, num_epochs = int(trainer.num_training_batches), trainer.max_epochs or 0
        done = pl_module.current_epoch * num_batches
        self.task = self.progress.add_task("", total=num_batches * num_epochs, completed=done, status="")
        self.progress.start()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show the result of the epoch before, and the rates of this one."""
        self._print_epoch(pl_module)
        assert isinstance(pl_module, RecipeModule)
        rates = [float(rate) for rate in pl_module.scheduler.get_last_lr()]
        self.accuracy = f"test {pl_module.metrics['test_accuracy']:.1f} %" if pl_module.metrics else ""
        self.rates = f"rate {min(rates):.2g} to {max(rates):.2g}"

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Move the bar."""
        if batch_idx % self.log_every == 0:
            self.loss = f"loss {float(outputs['loss']):.3f}"
        description = f"epoch {pl_module.current_epoch + 1} of {trainer.max_epochs}"
        rates = self.rates if self.console.width >= _NARROW else ""
        status = ", ".join(part for part in (self.loss, self.accuracy, rates) if part)
        self.progress.update(self.task, advance=1, description=description, status=status)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Close the bar."""
        self._print_epoch(pl_module)
        self.progress.stop()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Remove the bar from the terminal."""
        self.progress.stop()

    def _print_epoch(self, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, RecipeModule)
        if pl_module.metrics and not self.console.is_terminal:
            self.console.print(_epoch_text(pl_module.metrics), soft_wrap=True, highlight=False)


def _epoch_text(metrics: Line) -> str:
    """Return an epoch in one line."""
    return (
        f"epoch {metrics['epoch']}: train loss {metrics['train_loss']:.4f}, "
        f"train accuracy {metrics['train_accuracy']:.2f} %, test accuracy {metrics['test_accuracy']:.2f} %, "
        f"rate {metrics['lr_min']:.3g} to {metrics['lr_max']:.3g}"
    )
