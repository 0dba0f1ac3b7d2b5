"""Progress of a run, for a person: a bar in a terminal, a line an epoch elsewhere."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from tempbalance.lab.module import RecipeModule
from tempbalance.runlog import Line

NARROW = 100  # columns of a terminal below which the rates are not shown


class ShowProgress(Callback):
    """Loss, accuracy, the range of the rates and the time left.

    Args:
        console: Where to; a bar if it is a terminal, otherwise a line for each epoch.
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
        """Show how the epoch before has ended, and the rates of this one."""
        self._tell(pl_module)
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
        rates = self.rates if self.console.width >= NARROW else ""
        status = ", ".join(part for part in (self.loss, self.accuracy, rates) if part)
        self.progress.update(self.task, advance=1, description=description, status=status)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Close the bar."""
        self._tell(pl_module)
        self.progress.stop()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Give the terminal back."""
        self.progress.stop()

    def _tell(self, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, RecipeModule)
        if pl_module.metrics and not self.console.is_terminal:
            self.console.print(epoch_text(pl_module.metrics), soft_wrap=True, highlight=False)


def epoch_text(metrics: Line) -> str:
    """An epoch in one line."""
    return (
        f"epoch {metrics['epoch']}: train loss {metrics['train_loss']:.4f}, "
        f"train accuracy {metrics['train_accuracy']:.2f} %, test accuracy {metrics['test_accuracy']:.2f} %, "
        f"rate {metrics['lr_min']:.3g} to {metrics['lr_max']:.3g}"
    )
