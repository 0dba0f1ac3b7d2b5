"""Training a recipe with Lightning, in a folder that a killed run goes on from."""

from __future__ import annotations

import io
import math
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch import Tensor
from torch.nn.functional import cross_entropy

import tempbalance
from tempbalance.lab.augment import batches, normalize
from tempbalance.lab.data import ImageData, load_data
from tempbalance.lab.methods import find_method
from tempbalance.lab.networks import build_network
from tempbalance.lab.optimizers import build_optimizer, build_schedule
from tempbalance.lab.recipe import Recipe, differences, versions
from tempbalance.regularize import SpectralNormRegularizer
from tempbalance.runlog import Line, RunFolder, write_whole

Batch = tuple[Tensor, Tensor]


class TrainingError(Exception):
    """A run that cannot go on, and why."""


class InterruptedRunError(Exception):
    """A run that was asked to stop; what it has finished is kept."""


def train(
    recipe: Recipe,
    folder: Path,
    *,
    cache: Path | None = None,
    callbacks: list[Callback] | None = None,
    **trainer_options: Any,
) -> Line:
    """Train a recipe to its end, from where the folder stands.

    Args:
        recipe: What to train.
        folder: Where the run is kept. A folder with this recipe goes on where it stopped.
        cache: Where datasets are kept.
        callbacks: Of Lightning, such as a progress bar.
        trainer_options: For Lightning's Trainer: ``accelerator``, ``devices``, ``precision``, ``num_nodes``,
            ``logger``.

    Returns:
        The run's result.

    Raises:
        TrainingError: If the folder holds a run of another recipe, or the loss is not finite.
        InterruptedRunError: On Ctrl-C or SIGTERM.
    """
    run = RunFolder(folder)
    check_recipe(run, recipe)
    if run.result is not None:
        return run.result
    checkpoint = run.checkpoint()
    data = load_data(recipe.dataset, cache=cache, limit=recipe.limit)
    module = RecipeModule(recipe, data)
    if run.recipe is None:
        run.write_recipe({"recipe": recipe.to_dict(), "versions": versions()})
    if checkpoint is None:
        run.rewind(-1)
    trainer = Trainer(
        max_epochs=recipe.epochs,
        callbacks=[Recorder(run), *(callbacks or [])],
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        deterministic="warn" if torch.cuda.is_available() else False,
        **{"logger": False, **trainer_options},
    )
    try:
        trainer.fit(module, module.training_batches(), module.test_batches(), ckpt_path=checkpoint, weights_only=True)
    except (SystemExit, SIGTERMException) as err:  # SystemExit is Lightning's answer to Ctrl-C
        raise InterruptedRunError(
            f"stopped with {len(run.metrics)} of {recipe.epochs} epochs finished and kept in {run.path}: "
            "the same command goes on from there"
        ) from err
    # the accuracy after the last epoch, as the paper reports; from the log, for a run that was killed right before this
    result = {"test_accuracy": run.metrics[-1]["test_accuracy"], **module.progress, "epochs": recipe.epochs}
    run.write_result(result)
    return result


def check_recipe(run: RunFolder, recipe: Recipe) -> None:
    """Refuse a folder that holds a run of another recipe.

    Raises:
        TrainingError: With the options that differ.
    """
    if run.recipe is not None and (changed := differences(run.recipe["recipe"], recipe.to_dict())):
        raise TrainingError(f"{run.path} holds a run of another recipe: " + "; ".join(changed))


class RecipeModule(LightningModule):
    """A recipe as Lightning trains it."""

    def __init__(self, recipe: Recipe, data: ImageData) -> None:
        super().__init__()
        self.recipe, self.data = recipe, data
        self.method = find_method(recipe.method)
        channels, side = data.train_images.shape[1], data.train_images.shape[2]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(recipe.seed)
            self.network = build_network(
                recipe.model, num_classes=data.num_classes, channels=channels, side=side, width=recipe.width
            )
        self.progress: dict[str, Any] = {"seconds": 0.0, "best_accuracy": 0.0, "best_epoch": 0}
        self.metrics: Line = {}
        self._loaded: dict[str, Any] | None = None

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The method's optimizer, one group a layer; the scheduler is stepped here, once an epoch."""
        recipe = self.recipe
        optimizer = build_optimizer(tempbalance.param_groups(self.network), recipe)
        self.scheduler = tempbalance.TempBalance(
            optimizer,
            self.network,
            build_schedule(optimizer, recipe),
            scale_range=recipe.scale_range if self.method.balanced else (1.0, 1.0),
            tail=recipe.tail,  # type: ignore[arg-type]
            tail_fraction=recipe.tail_fraction,
            score=recipe.score,  # type: ignore[arg-type]
            assignment=recipe.assignment if self.method.balanced else "linear",  # type: ignore[arg-type]
            interval=recipe.interval,
            start=recipe.start,
            score_first=recipe.score_first,
            score_last=recipe.score_last,
            min_eigenvalues=recipe.min_eigenvalues,
        )
        self.regularizer = (
            SpectralNormRegularizer(self.network, strength=recipe.snr, seed=recipe.seed)
            if self.method.regularized
            else None
        )
        return optimizer

    def training_batches(self) -> _Batches:
        """The training images, shuffled and augmented anew each epoch."""
        return _Batches(self, is_training=True)

    def test_batches(self) -> _Batches:
        """The test images in order."""
        return _Batches(self, is_training=False)

    def on_train_start(self) -> None:
        """Go on from a checkpoint, once Lightning has loaded the network and the optimizer."""
        if self._loaded is not None:
            self.scheduler.load_state_dict(self._loaded["scheduler"])
            if self.regularizer is not None:
                self.regularizer.load_state_dict(self._loaded["regularizer"])
        self._started = time.monotonic() - self.progress["seconds"]

    def on_train_epoch_start(self) -> None:
        """Begin the epoch's sums, and note the rates it is trained with."""
        rates = [float(rate) for rate in self.scheduler.get_last_lr()]
        self.metrics = {"epoch": self.current_epoch + 1, "lr_min": min(rates), "lr_max": max(rates)}
        self._sums = {stage: torch.zeros(3, dtype=torch.float64, device=self.device) for stage in ("train", "test")}

    def training_step(self, batch: Batch, _: int) -> Tensor:
        """The loss of a batch.

        Raises:
            TrainingError: If it is not finite.
        """
        loss = self._loss(batch, "train")
        if not math.isfinite(loss.detach()):
            raise TrainingError(self._first_broken(float(loss)))
        return loss

    def validation_step(self, batch: Batch, _: int) -> None:
        """Add a test batch to the epoch's sums."""
        self._loss(batch, "test")

    def on_before_optimizer_step(self, _: torch.optim.Optimizer) -> None:
        """Add what the regulariser asks for."""
        if self.regularizer is not None:
            self.regularizer.add_gradients()

    def on_train_epoch_end(self) -> None:
        """Work out the epoch's metrics and step the scheduler."""
        for stage, sums in self._sums.items():
            total = self.trainer.strategy.reduce(sums, reduce_op="sum").tolist()
            self.metrics[f"{stage}_loss"] = total[0] / total[2]
            self.metrics[f"{stage}_accuracy"] = 100 * total[1] / total[2]
        if self.metrics["test_accuracy"] > self.progress["best_accuracy"]:
            self.progress.update(best_accuracy=self.metrics["test_accuracy"], best_epoch=self.metrics["epoch"])
        self.progress["seconds"] = time.monotonic() - self._started
        self.scheduler.step()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add what Lightning does not know of."""
        regularizer = None if self.regularizer is None else self.regularizer.state_dict()
        checkpoint["tempbalance"] = {
            "scheduler": self.scheduler.state_dict(),
            "regularizer": regularizer,
            "progress": dict(self.progress),
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep it until the optimizer is there."""
        self._loaded = checkpoint["tempbalance"]
        self.progress = self._loaded["progress"]

    def _loss(self, batch: Batch, stage: str) -> Tensor:
        images, labels = batch
        outputs = self.network(images)
        loss = cross_entropy(outputs, labels)
        num_correct = (outputs.detach().argmax(1) == labels).sum()
        self._sums[stage] += torch.stack(
            [loss.detach().double() * len(labels), num_correct, num_correct.new_tensor(len(labels))]
        )
        return loss

    def _first_broken(self, loss: float) -> str:
        """Where it went wrong: the epoch, the first layer with a weight that is not finite, and its rate."""
        where = f"the loss is {loss} in epoch {self.current_epoch + 1}"
        for group in self.scheduler.optimizer.param_groups:
            if not all(bool(parameter.isfinite().all()) for parameter in group["params"]):
                layer = group.get("layer", "the rest")
                return f"{where}; the first layer that is not finite is {layer!r}, rate {float(group['lr']):.3g}"
        return f"{where}; all weights are finite still, the rates are up to {self.metrics['lr_max']:.3g}"


class _Batches:
    """What Lightning iterates over once an epoch: images that live on the training device as uint8."""

    def __init__(self, module: RecipeModule, *, is_training: bool) -> None:
        self.module, self.is_training = module, is_training

    def __len__(self) -> int:
        data, size = self.module.data, self.module.recipe.batch_size
        return math.ceil(len(data.train_images if self.is_training else data.test_images) / size)

    def __iter__(self) -> Iterator[Batch]:
        module, recipe = self.module, self.module.recipe
        data = module.data = module.data.to(module.device)
        rank, world = module.global_rank, module.trainer.world_size
        if self.is_training:
            all_batches = batches(
                data.train_images,
                data.train_labels,
                batch_size=recipe.batch_size,
                seed=recipe.seed,
                epoch=module.current_epoch,
                crop=data.crop,
                flip=data.flip,
                mean=data.mean,
                std=data.std,
            )
            for images, labels in all_batches:
                yield images[rank::world], labels[rank::world]
            return
        pairs = zip(
            torch.split(data.test_images, recipe.batch_size),
            torch.split(data.test_labels, recipe.batch_size),
            strict=True,
        )
        for images, labels in pairs:
            yield normalize(images[rank::world], data.mean, data.std), labels[rank::world]


class Recorder(Checkpoint):
    """Writes each epoch into the run's folder; Lightning calls it when the epoch is all over."""

    def __init__(self, run: RunFolder) -> None:
        self.run = run

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Forget lines of epochs that will be trained again, and note the first scoring."""
        assert isinstance(pl_module, RecipeModule)
        if trainer.is_global_zero:
            self.run.rewind(pl_module.current_epoch)
            if pl_module.current_epoch == 0:
                self.run.rewind(-1)
                self.run.append(layers=layer_lines(pl_module, 0))

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the logs, the best network and the checkpoint."""
        module = pl_module
        assert isinstance(module, RecipeModule)
        epoch = module.metrics["epoch"]
        if trainer.is_global_zero:
            late = epoch - module.recipe.start
            is_scored = late >= 0 and late % module.recipe.interval == 0
            self.run.append([module.metrics], layer_lines(module, epoch) if is_scored else [])
            if module.progress["best_epoch"] == epoch:
                buffer = io.BytesIO()
                torch.save(module.network.state_dict(), buffer)
                write_whole(self.run.path / "best.ckpt", buffer.getvalue())
            self.run.save_checkpoint(partial(trainer.save_checkpoint, weights_only=False))
        else:  # saving gathers from all processes
            trainer.save_checkpoint(self.run.path / "new.ckpt", weights_only=False)


def layer_lines(module: RecipeModule, epoch: int) -> list[Line]:
    """What the latest scoring said of each layer."""
    rates = {group.get("layer"): float(group["lr"]) for group in module.scheduler.optimizer.param_groups}
    layers = {layer.name: layer for layer in tempbalance.find_layers(module.network)}
    lines = []
    for row in module.scheduler.table():
        if row.score is None:
            continue
        line: Line = {"epoch": epoch, "layer": row.name, "alpha": row.alpha, "score": row.score, "scale": row.scale}
        line["rate"] = rates[row.name]
        weight = layers[row.name].parameters[0]
        if module.recipe.log_gradients and weight.grad is not None:
            line["gradient_norm"] = float(weight.grad.norm())
        if module.recipe.log_eigenvalues:
            line["eigenvalues"] = _eigenvalues(layers[row.name].weight())
        lines.append(line)
    return lines


def _eigenvalues(weight: Tensor) -> list[float]:
    values: list[float] = tempbalance.spectrum(weight).tolist()
    return values
