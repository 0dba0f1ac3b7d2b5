"""What a run writes into its folder while it trains, and what it reads there when it goes on."""

from __future__ import annotations

import io
import json
import math
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint

import tempbalance
from tempbalance.lab.errors import TrainingError
from tempbalance.lab.module import RecipeModule, eigenvalues
from tempbalance.lab.versions import versions
from tempbalance.runlog import Line, RunFolder, RunFolderError, write_whole


class StraightIO(TorchCheckpointIO):
    """Writes a checkpoint where it belongs; Lightning's own goes through memory and the system's temporary folder."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """Write it; a file that torch opens itself would hide what the disk says."""
        with Path(path).open("wb") as file:
            torch.save(checkpoint, file)


class Recorder(Checkpoint):
    """Writes each epoch into the run's folder; Lightning calls it when the epoch is all over.

    Args:
        run: The folder.
        digest: Of the data.
        tell: Is given sentences for a person.
    """

    def __init__(self, run: RunFolder, *, digest: str, tell: Callable[[str], None]) -> None:
        self.run, self.digest, self.tell = run, digest, tell

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Say where the run goes on, and see whether its logs reach there.

        Raises:
            RunFolderError: If there is not a line for each epoch.
        """
        assert isinstance(pl_module, RecipeModule)
        if not trainer.is_global_zero:
            return
        epoch = checkpoint["epoch"] + 1
        damaged = "last.ckpt is damaged: " if "last.ckpt" in self.run.damaged else ""
        self.tell(f"{damaged}going on after epoch {epoch} in {self.run.path}")
        if missing := {*range(1, epoch + 1)} - {line["epoch"] for line in self.run.metrics}:
            raise RunFolderError(
                f"{self.run.path / 'metrics.jsonl'}: must have a line for each of the {epoch} finished epochs, "
                f"lacks {_listed(missing)}: put it back, or remove the folder to start again"
            )
        is_scored = bool(json.loads(checkpoint["tempbalance"]["scheduler"]["scored"])["scores"])
        scored = {each for each in range(epoch + 1) if is_scored and pl_module.recipe.scores_after(each)}
        if missing := scored - {line["epoch"] for line in self.run.layers}:
            warnings.warn(f"{self.run.path / 'layers.jsonl'} lacks the epochs {_listed(missing)}", stacklevel=2)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Forget lines of epochs that will be trained again; note the recipe and the first scoring."""
        module = pl_module
        assert isinstance(module, RecipeModule)
        if not trainer.is_global_zero:
            return
        self.run.rewind(module.current_epoch or -1)
        if module.current_epoch == 0:
            made_with = {"data": self.digest, "precision": trainer.precision, "devices": trainer.world_size}
            self.run.write_recipe({"recipe": module.recipe.to_dict(), "versions": versions(), **made_with})
            self.run.append(layers=layer_lines(module, 0))

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the logs, the best network and the checkpoint.

        Raises:
            TrainingError: If the disk does not take them.
        """
        assert isinstance(pl_module, RecipeModule)
        if not trainer.is_global_zero:  # saving gathers from all processes
            trainer.save_checkpoint(self.run.path / "new.ckpt", weights_only=False)
            return
        try:
            self._write(trainer, pl_module)
        except OSError as err:
            epoch = pl_module.metrics["epoch"]
            raise TrainingError(
                f"epoch {epoch} cannot be written to {self.run.path}: {err}; when it can, the same command goes on "
                f"after epoch {epoch - 1}"
            ) from err

    def _write(self, trainer: Trainer, module: RecipeModule) -> None:
        epoch = module.metrics["epoch"]
        self.run.append(
            [module.metrics], layer_lines(module, epoch) if module.recipe.scores_after(epoch) else [], module.step_lines
        )
        if module.progress["best_epoch"] == epoch:
            buffer = io.BytesIO()
            torch.save(module.network.state_dict(), buffer)
            write_whole(self.run.path / "best.ckpt", buffer.getvalue())
        self.run.save_checkpoint(partial(trainer.save_checkpoint, weights_only=False))


def _listed(epochs: set[int]) -> str:
    return ", ".join(map(str, sorted(epochs)[:5])) + (", ..." if len(epochs) > 5 else "")


def layer_lines(module: RecipeModule, epoch: int) -> list[Line]:
    """What the latest scoring said of each layer."""
    groups = module.scheduler.optimizer.param_groups
    rates = {id(parameter): float(group["lr"]) for group in groups for parameter in group["params"]}
    layers = {layer.name: layer for layer in tempbalance.find_layers(module.network)}
    lines = []
    for row in module.scheduler.table():
        if row.score is None:
            continue
        line: Line = {"epoch": epoch, "layer": row.name, "alpha": row.alpha, "score": row.score, "scale": row.scale}
        line |= {f"{target}_scale": scale for target, scale in row.scales.items()}
        weight = layers[row.name].parameters[0]
        line["rate"] = rates[id(weight)]
        if module.recipe.log_gradients and weight.grad is not None:
            norm = float(weight.grad.norm())
            line["gradient_norm"] = norm if math.isfinite(norm) else None
        if module.recipe.log_eigenvalues:
            line["eigenvalues"] = eigenvalues(layers[row.name].weight())
        lines.append(line)
    return lines
