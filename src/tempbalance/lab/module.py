"""A recipe as Lightning trains it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from statistics import fmean, stdev
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import tempbalance
from tempbalance.lab.balancing import scheduler_options
from tempbalance.lab.errors import TrainingError
from tempbalance.lab.images.batches import batch_bounds, batches, normalize
from tempbalance.lab.images.data import ImageData
from tempbalance.lab.images.network import build_network
from tempbalance.lab.images.recipe import ImageRecipe
from tempbalance.lab.methods import find_method
from tempbalance.lab.optimizers import build_optimizer, build_schedule
from tempbalance.regularize import SpectralNormRegularizer
from tempbalance.runlog import Line

Batch = tuple[Tensor, Tensor, int]


class RecipeModule(LightningModule):
    """A recipe as Lightning trains it."""

    def __init__(self, recipe: ImageRecipe, data: ImageData) -> None:
        super().__init__()
        self.recipe, self.data = recipe, data
        self.method = find_method(recipe.method)
        channels, height, width = data.train_images.shape[1:]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(recipe.seed)
            self.network = build_network(
                recipe.model,
                num_classes=data.num_classes,
                channels=channels,
                side=(height, width),
                width=recipe.width,
            )
        self.progress: dict[str, Any] = {"seconds": 0.0, "best_accuracy": -1.0, "best_epoch": 0}
        self.timings: dict[str, list[float]] = {"epoch": [], "balancing": []}
        self.metrics: Line = {}
        self.step_lines: list[Line] = []
        self._loaded: dict[str, Any] | None = None

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The method's optimizer, one group a layer; the scheduler is stepped here, once an epoch."""
        recipe = self.recipe
        optimizer = build_optimizer(tempbalance.param_groups(self.network), recipe)
        options = scheduler_options(recipe, balanced=self.method.balanced)
        if recipe.interval_steps is not None:
            options["interval"] = recipe.epochs + 1
        self.scheduler = tempbalance.TempBalance(
            optimizer,
            self.network,
            build_schedule(optimizer, recipe),
            **options,
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
        self.step_lines = []
        self._epoch_started, self._balanced_before = time.monotonic(), sum(self.timings["balancing"])
        self._sums = {stage: torch.zeros(3, dtype=torch.float64, device=self.device) for stage in ("train", "test")}

    def training_step(self, batch: Batch, _: int) -> Tensor:
        """The loss of a batch.

        Raises:
            TrainingError: If it is not finite.
        """
        loss = self._loss(batch, "train")
        # that of all processes, so that all of them stop
        mean = float(self.trainer.strategy.reduce(loss.detach().clone(), reduce_op="mean"))
        self._check_finite("loss", mean)
        if self.global_step % self.trainer.log_every_n_steps == 0:  # type: ignore[attr-defined]
            self._log({"loss": mean})
        return loss

    def on_validation_start(self) -> None:
        """Stop the clock of the epoch."""
        self._epoch_ended = time.monotonic()

    def validation_step(self, batch: Batch, _: int) -> None:
        """Add a test batch to the epoch's sums."""
        self._loss(batch, "test")

    def on_before_optimizer_step(self, _: torch.optim.Optimizer) -> None:
        """Note gradients as the loss has them, then add what the regulariser asks for."""
        if self.recipe.log_steps is not None and self.global_step % self.recipe.log_steps == 0:
            self.step_lines += self._layer_gradients()
        if self.regularizer is not None:
            self.regularizer.add_gradients()

    def on_train_batch_end(self, *_: Any) -> None:
        """Balance, where that is counted in steps."""
        every = self.recipe.interval_steps
        if every is not None and self.global_step % every == 0 and self.current_epoch >= self.recipe.start:
            self._timed_balancing(self.scheduler.rescore)

    def on_train_epoch_end(self) -> None:
        """Work out the epoch's metrics and step the scheduler.

        Raises:
            TrainingError: If a loss is not finite.
        """
        for stage, sums in self._sums.items():
            total = self.trainer.strategy.reduce(sums, reduce_op="sum").tolist()
            self.metrics[f"{stage}_loss"] = total[0] / total[2]
            self._check_finite(f"{stage} loss", self.metrics[f"{stage}_loss"])
            self.metrics[f"{stage}_accuracy"] = 100 * total[1] / total[2]
        if self.metrics["test_accuracy"] > self.progress["best_accuracy"]:
            self.progress.update(best_accuracy=self.metrics["test_accuracy"], best_epoch=self.metrics["epoch"])
        self.progress["seconds"] = time.monotonic() - self._started
        self._log(self.metrics)
        balancing = sum(self.timings["balancing"]) - self._balanced_before
        self.timings["epoch"].append(self._epoch_ended - self._epoch_started - balancing)
        if self.recipe.interval_steps is None and self.recipe.scores_after(self.metrics["epoch"]):
            self._timed_balancing(self.scheduler.step)
        else:
            self.scheduler.step()

    def result(self) -> Line:
        """What the run came to beside its last epoch; an epoch's seconds are of training alone, without balancing."""
        means = {f"{name}_seconds": fmean(each) for name, each in self.timings.items() if each}
        spreads = {f"{name}_seconds_std": stdev(each) for name, each in self.timings.items() if len(each) > 1}
        return {**self.progress, **means, **spreads, "num_balancings": len(self.timings["balancing"])}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add what Lightning does not know of."""
        regularizer = None if self.regularizer is None else self.regularizer.state_dict()
        checkpoint["tempbalance"] = {
            "scheduler": self.scheduler.state_dict(),
            "regularizer": regularizer,
            "progress": dict(self.progress),
            "timings": {name: list(each) for name, each in self.timings.items()},
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep it until the optimizer is there."""
        self._loaded = checkpoint["tempbalance"]
        self.progress = self._loaded["progress"]
        self.timings = self._loaded.get("timings", self.timings)  # none in checkpoints of older versions

    def _loss(self, batch: Batch, stage: str) -> Tensor:
        """This process' share of a batch's loss: the mean over all processes is the mean over all images."""
        images, labels, num_images = batch
        outputs = self.network(images)
        loss = cross_entropy(outputs, labels, reduction="sum")
        num_correct = (outputs.detach().argmax(1) == labels).sum()
        self._sums[stage] += torch.stack([loss.detach().double(), num_correct, num_correct.new_tensor(len(labels))])
        return loss * (self.trainer.world_size / num_images)

    def _timed_balancing(self, balance: Callable[[], None]) -> None:
        start = time.monotonic()
        balance()
        self.timings["balancing"].append(time.monotonic() - start)

    def _layer_gradients(self) -> list[Line]:
        """A line for each layer: the norm of its weight's gradient before this step, and its spectrum if asked for."""
        found = []
        for layer in tempbalance.find_layers(self.network):
            gradient = layer.parameters[0].grad
            if gradient is None:
                continue
            norm = float(gradient.norm())
            line: Line = {"epoch": self.current_epoch + 1, "step": self.global_step, "layer": layer.name}
            line["gradient_norm"] = norm if math.isfinite(norm) else None
            if self.recipe.log_eigenvalues:
                line["eigenvalues"] = eigenvalues(layer.weight())
            found.append(line)
        return found

    def _log(self, values: Line) -> None:
        for logger in self.loggers:
            logger.log_metrics(values, step=self.global_step)

    def _check_finite(self, what: str, value: float) -> None:
        """Stop with the epoch, the first layer with a weight that is not finite, and its rate.

        Raises:
            TrainingError: If the value is not finite.
        """
        if math.isfinite(value):
            return
        where = f"the {what} is {value} in epoch {self.current_epoch + 1}"
        for group in self.scheduler.optimizer.param_groups:
            if not all(bool(parameter.isfinite().all()) for parameter in group["params"]):
                layer = group.get("layer", "the rest")
                rate = f"rate {float(group['lr']):.3g}"
                raise TrainingError(f"{where}; the first layer that is not finite is {layer!r}, {rate}")
        raise TrainingError(f"{where}; all weights are finite still, the rates are up to {self.metrics['lr_max']:.3g}")


class _Batches:
    """What Lightning iterates over once an epoch: images that live on the training device as uint8.

    Each process gets its share of a batch, and how many images all have.
    """

    def __init__(self, module: RecipeModule, *, is_training: bool) -> None:
        self.module, self.is_training = module, is_training

    def _bounds(self, num_images: int) -> list[tuple[int, int]]:
        size = self.module.recipe.batch_size
        return batch_bounds(num_images, size, least=least_images(self.module.recipe, self.module.trainer.world_size))

    def __len__(self) -> int:
        data = self.module.data
        return len(self._bounds(len(data.train_images if self.is_training else data.test_images)))

    def __iter__(self) -> Iterator[Batch]:
        module = self.module
        module.data = module.data.to(module.device)
        rank, world = module.global_rank, module.trainer.world_size
        for images, labels in self._training() if self.is_training else self._test():
            yield images[rank::world], labels[rank::world], len(labels)

    def _training(self) -> Iterator[tuple[Tensor, Tensor]]:
        module, recipe, data = self.module, self.module.recipe, self.module.data
        return batches(
            data.train_images,
            data.train_labels,
            batch_size=recipe.batch_size,
            seed=recipe.seed,
            epoch=module.current_epoch,
            crop=data.crop,
            flip=data.flip,
            mean=data.mean,
            std=data.std,
            least=least_images(recipe, module.trainer.world_size),
        )

    def _test(self) -> Iterator[tuple[Tensor, Tensor]]:
        data = self.module.data
        for start, end in self._bounds(len(data.test_images)):
            yield normalize(data.test_images[start:end], data.mean, data.std), data.test_labels[start:end]


def eigenvalues(weight: Tensor) -> list[float]:
    """The spectrum of a layer's weight."""
    values: list[float] = tempbalance.spectrum(weight).tolist()
    return values


def least_images(recipe: ImageRecipe, num_processes: int) -> int:
    """What a last batch has at least: two images a process, which BatchNorm needs, if other batches have as many."""
    return min(2 * num_processes, recipe.batch_size)


def check_batches(module: RecipeModule, num_processes: int) -> None:
    """Refuse batches that leave a process without an image, or BatchNorm with one.

    Raises:
        ValueError: With how many there must be.
    """
    recipe, num_images = module.recipe, len(module.data.train_images)
    is_normed = any(isinstance(each, nn.BatchNorm2d) for each in module.network.modules())
    least = num_processes * (2 if is_normed else 1)
    if min(recipe.batch_size, num_images) < least:
        reason = f"{recipe.model} has BatchNorm, which needs two" if is_normed else "each process needs one"
        raise ValueError(
            f"batch_size must be at least {least}, and so must the number of training images, on {num_processes} "
            f"device(s): {reason}; got {recipe.batch_size} and {num_images}"
        )
