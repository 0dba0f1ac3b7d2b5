"""What a detection writes into its folder while it trains, and what it reads there when it goes on."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

import tempbalance
from tempbalance.integrations.ultralytics import balance
from tempbalance.lab.detection.recipe import DetectionRecipe
from tempbalance.lab.errors import TrainingError
from tempbalance.runlog import Line, RunFolder, RunFolderError, write_whole

_BALANCE = (
    "tail", "tail_fraction", "score", "assignment", "interval", "start", "score_first", "score_last",
    "min_eigenvalues",
)  # fmt: skip
_MAP, _MAP50 = "metrics/mAP50-95(B)", "metrics/mAP50(B)"  # ultralytics' names


@dataclass(frozen=True)
class Progress:
    """Where a run stands.

    Attributes:
        epoch: How many epochs are finished.
        seconds: What they took.
        checkpoint: What ultralytics goes on from; ``None`` at the beginning.
    """

    epoch: int = 0
    seconds: float = 0.0
    checkpoint: Path | None = None


def go_on(run: RunFolder, own_files: Path, begun: Line, say: Callable[[str], None]) -> Progress:
    """Put back what the newest whole checkpoint has, or begin.

    Args:
        run: The run's folder.
        own_files: That of ultralytics in it.
        begun: What is noted when a run begins.
        say: Is given sentences for a person.

    Raises:
        RunFolderError: If there is not a line for each finished epoch.
    """
    checkpoint = run.checkpoint()
    if checkpoint is None:
        if run.damaged:
            say(f"{' and '.join(run.damaged)} in {run.path} damaged: starting again")
        shutil.rmtree(own_files, ignore_errors=True)
        run.rewind(-1)
        run.write_recipe(begun)
        return Progress()
    state = torch.load(checkpoint, map_location="cpu", weights_only=True)
    epoch, last = state["epoch"], own_files / "weights" / "last.pt"
    run.rewind(epoch)
    if (noted := [line["epoch"] for line in run.metrics]) != [*range(1, epoch + 1)]:
        raise RunFolderError(
            f"{run.path / 'metrics.jsonl'}: must have a line for each of the {epoch} finished epochs, got {noted[:9]}: "
            "put it back, or remove the folder to start again"
        )
    write_whole(last, state["file"].numpy().tobytes())
    say(f"going on after epoch {epoch} in {run.path}")
    return Progress(epoch, state["seconds"], last)


class Recorder:
    """Callbacks that balance, and write each epoch into the run's folder when ultralytics has saved it.

    Args:
        recipe: What is trained.
        run: The run's folder.
        progress: Where the run stands.
        say: Is given sentences for a person.
        threads: Of torch; ultralytics takes its own number of them when it starts.
    """

    def __init__(
        self,
        recipe: DetectionRecipe,
        run: RunFolder,
        progress: Progress,
        *,
        say: Callable[[str], None],
        threads: int | None,
    ) -> None:
        self.recipe, self.run, self.progress, self.say, self.threads = recipe, run, progress, say, threads
        self._noted_scores: dict[str, float] = {}
        self._loss = math.nan
        self._started = time.monotonic() - progress.seconds

    def attach(self, model: Any) -> None:
        """Add the callbacks to a model of ultralytics, before its ``train``."""
        options = {name: getattr(self.recipe, name) for name in _BALANCE}
        scale_range = self.recipe.scale_range if self.recipe.is_balanced else (1.0, 1.0)
        self.balance = balance(model, scale_range=scale_range, **options)
        model.add_callback("on_pretrain_routine_end", self.on_pretrain_routine_end)
        model.add_callback("on_train_epoch_end", self.on_train_epoch_end)
        model.add_callback("on_model_save", self.on_model_save)

    def on_pretrain_routine_end(self, trainer: Any) -> None:
        """Set what ultralytics has no options for."""
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        for group in trainer.optimizer.param_groups:
            group.update(betas=self.recipe.betas, eps=self.recipe.eps)
        self._started = time.monotonic() - self.progress.seconds

    def on_train_epoch_end(self, trainer: Any) -> None:
        """Stop where ultralytics would go back an epoch, or go on with smaller batches.

        Raises:
            TrainingError: With the epoch and the rates.
        """
        epoch = trainer.epoch + 1
        if trainer.batch_size != self.recipe.batch_size:
            raise TrainingError(
                f"batch_size must fit into the memory, {self.recipe.batch_size} images of {self.recipe.image_size} "
                f"pixels do not: ultralytics went on with {trainer.batch_size}"
            )
        self._loss = sum(trainer.label_loss_items(trainer.tloss).values())
        if not math.isfinite(self._loss):
            raise TrainingError(
                f"the loss is {self._loss} in epoch {epoch}; rates are up to {self._rates(trainer)[1]:.3g}"
            )

    def on_model_save(self, trainer: Any) -> None:
        """Write the epoch, which has been tested and saved by now.

        Raises:
            TrainingError: If the disk does not take it.
        """
        epoch = trainer.epoch + 1
        low, high = self._rates(trainer)
        metrics: Line = {"epoch": epoch, "lr_min": low, "lr_max": high, "train_loss": self._loss}
        metrics |= {"test_map": 100 * float(trainer.metrics[_MAP]), "test_map50": 100 * float(trainer.metrics[_MAP50])}
        seconds = time.monotonic() - self._started
        try:
            self.run.append([metrics], self._layer_lines(trainer))
            file = torch.frombuffer(bytearray(trainer.last.read_bytes()), dtype=torch.uint8)
            self.run.save_checkpoint(partial(_save, {"epoch": epoch, "seconds": seconds, "file": file}))
        except OSError as err:
            raise TrainingError(f"epoch {epoch} cannot be written to {self.run.path}: {err}") from err
        self.progress = Progress(epoch, seconds, trainer.last)
        self.say(f"epoch {epoch} of {self.recipe.num_epochs}: {self.recipe.measure.text(metrics['test_map'])}")

    def result(self) -> Line:
        """What the complete run came to: after the last epoch, and beside that its best, which the test set chose."""
        metrics = self.run.metrics
        best = max(metrics, key=lambda line: line["test_map"])
        last = {name: metrics[-1][name] for name in ("test_map", "test_map50")}
        best_ones = {"best_map": best["test_map"], "best_epoch": best["epoch"]}
        return {**last, **best_ones, "seconds": self.progress.seconds, "epochs": self.progress.epoch}

    def _rates(self, trainer: Any) -> tuple[float, float]:
        assert self.balance.scheduler is not None
        rates = [float(group["lr"]) for group in trainer.optimizer.param_groups]
        scales = [*self.balance.scheduler.last_scales.values(), 1.0]
        return min(rates) * min(scales), max(rates) * max(scales)

    def _layer_lines(self, trainer: Any) -> list[Line]:
        """What the latest scoring said, with the number of epochs before it, unless it is in the log."""
        assert self.balance.scheduler is not None
        scores, epoch = dict(self.balance.scheduler.last_scores), trainer.epoch
        if scores == self._noted_scores or any(line["epoch"] == epoch for line in self.run.layers):
            return []
        self._noted_scores = scores
        rates = {id(each): float(group["lr"]) for group in trainer.optimizer.param_groups for each in group["params"]}
        weights = {layer.name: layer.parameters[0] for layer in tempbalance.find_layers(trainer.model)}
        lines: list[Line] = []
        for row in self.balance.scheduler.table():
            if row.score is not None and row.scale is not None:
                line = {"epoch": epoch, "layer": row.name, "alpha": row.alpha, "score": row.score, "scale": row.scale}
                lines.append({**line, "rate": rates[id(weights[row.name])] * row.scale})
        return lines


def _save(state: dict[str, Any], path: Path) -> None:
    with path.open("wb") as file:
        torch.save(state, file)
