"""Training a recipe of images."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, CosineAnnealingWarmRestarts, LRScheduler

import tempbalance
from tempbalance.lab.balancing import BalancedTraining, gradient_norm
from tempbalance.lab.images.data import DATASETS, ImageData, batch_bounds, batches, load_data, normalize
from tempbalance.lab.images.network import build_network, follow_by_name
from tempbalance.lab.images.optimizers import build_optimizer
from tempbalance.lab.images.recipe import ImageRecipe
from tempbalance.lab.images.regularize import SpectralNormRegularizer
from tempbalance.lab.recipe import find_method
from tempbalance.runlog import Line

Batch = tuple[Tensor, Tensor, int]  # a process' share of images and labels, and how many images all have


class ImageTraining(BalancedTraining[ImageRecipe]):
    """A network that learns the labels of images, which live on the training device as uint8.

    Args:
        recipe: What to train.
        data: On what.
        fabric: Gives device, precision and processes.
    """

    def __init__(self, recipe: ImageRecipe, data: ImageData, fabric: Fabric) -> None:
        method = find_method(recipe.method)
        super().__init__(
            recipe,
            initial_network(recipe, data),
            lambda groups: build_optimizer(groups, recipe),
            lambda optimizer: build_schedule(optimizer, recipe),
            fabric,
            # where steps are counted, the scheduler itself never finds a scoring due
            interval=None if recipe.interval_steps is None else recipe.epochs + 1,
        )
        if not any(self._is_logged(layer.name) for layer in tempbalance.find_layers(self.network)):
            raise ValueError(f"log_layers must match the name of a layer, got {recipe.log_layers!r}")
        self.data = data.to(fabric.device)
        self.regularizer = (
            SpectralNormRegularizer(
                self.network,
                strength=recipe.snr,
                seed=recipe.seed,
                num_iterations=recipe.snr_iterations,
                fresh=recipe.snr_iterations > 1,
            )
            if method.regularized
            else None
        )

    @property
    def num_steps(self) -> int:
        """Number of steps of the whole run."""
        return self._steps_an_epoch * self.recipe.num_epochs

    @property
    def _steps_an_epoch(self) -> int:
        return len(self._bounds(len(self.data.train_images)))

    def batches(self, number: int) -> Iterator[Batch]:
        """Return the training images, shuffled and augmented anew each epoch."""
        self.iteration = (number - 1) * self._steps_an_epoch
        self._reset()
        return batches(
            self.data,
            batch_size=self.recipe.batch_size,
            seed=self.recipe.seed,
            epoch=number - 1,
            flip=self.recipe.flip,
            least=self._least,
            share=self._share,
        )

    @property
    def _share(self) -> slice:
        """Return this process's images of a batch."""
        return slice(self.fabric.global_rank, None, self.fabric.world_size)

    def _reset(self) -> None:
        """Begin the sums of an epoch: of the losses and of correct images, and the number of all images."""
        self._sums = {stage: torch.zeros(2, dtype=torch.float64, device=self.fabric.device) for stage in _STAGES}
        self._num_images = dict.fromkeys(_STAGES, 0)

    @property
    def _least(self) -> int:
        """Size of the smallest last batch: two images per process, as BatchNorm needs, if other batches have them."""
        return min(2 * self.fabric.world_size, self.recipe.batch_size)

    def _bounds(self, num_images: int) -> list[tuple[int, int]]:
        return batch_bounds(num_images, self.recipe.batch_size, least=self._least)

    def loss(self, batch: Batch) -> Tensor:
        """Return the loss of this process' share of a training batch."""
        return self._loss(batch, "train")

    def _loss(self, batch: Batch, stage: str) -> Tensor:
        """Add a batch to the epoch's sums; the mean of the losses over all processes is the mean over all images."""
        images, labels, num_images = batch
        outputs = self.model(images)
        loss = cross_entropy(outputs, labels, reduction="sum")
        num_correct = (outputs.detach().argmax(1) == labels).sum()
        self._sums[stage] += torch.stack([loss.detach().double(), num_correct])
        self._num_images[stage] += num_images
        return loss * (self.fabric.world_size / num_images)

    def training_metrics(self, losses: list[float]) -> Line:
        """Return mean loss and accuracy over the training images, each as it was when its batch came."""
        return self._means("train")

    def evaluate(self) -> Line:
        """Return mean loss and accuracy over the test images.

        Raises:
            TrainingError: If the loss is not finite.
        """
        data = self.data
        size = self.recipe.batch_size if self.fabric.device.type == "cpu" else max(self.recipe.batch_size, _EVALUATED)
        for start, end in batch_bounds(len(data.test_images), size, least=self._least):
            images, labels = data.test_images[start:end][self._share], data.test_labels[start:end][self._share]
            self._loss((normalize(images, data.mean, data.std), labels, end - start), "test")
        return self._means("test")

    def _means(self, stage: str) -> Line:
        total = self.reduced(self._sums[stage], "sum").tolist()
        loss = self.finite(f"{stage} loss", total[0] / (num_images := self._num_images[stage]))
        return {f"{stage}_loss": loss, f"{stage}_accuracy": 100 * total[1] / num_images}

    def before_step(self) -> None:
        """Note the gradients of the loss, then add those of the regulariser."""
        every = self.recipe.log_steps
        if every is not None and (self.iteration - 1) % every == 0:
            self.step_lines += self._noted_gradients()
        if self.regularizer is not None:
            self.regularizer.add_gradients()

    def _noted_gradients(self) -> list[Line]:
        """Return a line for each layer: its weight's gradient norm before this step, and its spectrum if asked for."""
        found = []
        for layer in tempbalance.find_layers(self.network):
            if layer.parameters[0].grad is None or not self._is_logged(layer.name):
                continue
            line: Line = {"epoch": self.number, "step": self.iteration - 1, "layer": layer.name}
            line["gradient_norm"] = gradient_norm(layer.parameters[0])
            if self.recipe.log_eigenvalues:
                line["eigenvalues"] = tempbalance.spectrum(layer.weight()).tolist()
            found.append(line)
        return found

    def _is_logged(self, layer: str) -> bool:
        return self.recipe.log_layers is None or fnmatchcase(layer, self.recipe.log_layers)

    def after_step(self) -> None:
        """Balance, where that is counted in steps."""
        every = self.recipe.interval_steps
        if every is None or not isinstance(self.scheduler, tempbalance.TempBalance):
            return
        if self.iteration % every == 0 and self.number > self.recipe.start:
            self.balance(self.scheduler.rescore)

    def after_epoch(self) -> None:
        """Step the scheduler, which balances when that is due."""
        is_due = self.recipe.interval_steps is None and self.recipe.scores_after(self.number)
        (self.balance if is_due else self.advance)(self.scheduler.step)

    def layer_extras(self, layer: str) -> Line:
        """Return a layer's gradient norm and spectrum, where the recipe asks for them."""
        found: Line = {}
        if (self.recipe.log_gradients or self.recipe.log_eigenvalues) and self._is_logged(layer):
            (chosen,) = [each for each in tempbalance.find_layers(self.network) if each.name == layer]
            if self.recipe.log_gradients and chosen.parameters[0].grad is not None:
                found["gradient_norm"] = gradient_norm(chosen.parameters[0])
            if self.recipe.log_eigenvalues:
                found["eigenvalues"] = tempbalance.spectrum(chosen.weight()).tolist()
        return found

    def stateful(self) -> dict[str, Any]:
        """Return the objects whose state a checkpoint holds."""
        more = {} if self.regularizer is None else {"regularizer": self.regularizer}
        return {**super().stateful(), **more}


_STAGES = ("train", "test")
_EVALUATED = 1024  # test images at a time, but on the CPU, where larger batches are no faster


def initial_network(recipe: ImageRecipe, data: ImageData) -> nn.Module:
    """Return a recipe's network with the weights that its seed gives."""
    channels, height, width = data.train_images.shape[1:]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        network = build_network(
            recipe.model,
            num_classes=data.num_classes,
            channels=channels,
            side=(height, width),
            width=recipe.width,
        )
    if recipe.norms == "name":
        follow_by_name(network)
    return network


def bare_network(recipe: ImageRecipe) -> nn.Module:
    """Return a network of a recipe's size without its data; one's own data count as CIFAR-10's."""
    known = DATASETS.get(recipe.dataset, DATASETS["cifar10"])
    channels, *side = known.shape
    return build_network(
        recipe.model, num_classes=known.num_classes, channels=channels, side=(side[0], side[1]), width=recipe.width
    )


def load(recipe: ImageRecipe, cache: Path | None) -> ImageData:
    """Return a recipe's images."""
    return load_data(recipe.dataset, cache=cache, limit=recipe.limit, test_limit=recipe.test_limit)


def check(recipe: ImageRecipe, data: ImageData, num_processes: int) -> None:
    """Refuse batches that leave a process without an image, or BatchNorm with one.

    Raises:
        ValueError: With how many there must be.
    """
    num_images = len(data.train_images)
    with torch.device("meta"):
        is_normed = any(isinstance(each, nn.BatchNorm2d) for each in initial_network(recipe, data).modules())
    least = num_processes * (2 if is_normed else 1)
    if min(recipe.batch_size, num_images) < least:
        reason = f"{recipe.model} has BatchNorm, which needs two" if is_normed else "each process needs one"
        raise ValueError(
            f"batch_size must be at least {least}, and so must the number of training images, on {num_processes} "
            f"device(s): {reason}; got {recipe.batch_size} and {num_images}"
        )


def build_schedule(optimizer: Optimizer, recipe: ImageRecipe) -> LRScheduler:
    """Return the base schedule of a recipe's method: a cosine to zero, with restarts for SGDR."""
    assert recipe.restart_epochs is not None
    if find_method(recipe.method).restarts:
        return CosineAnnealingWarmRestarts(optimizer, T_0=recipe.restart_epochs, T_mult=recipe.restart_factor)
    return CosineAnnealingLR(optimizer, T_max=recipe.epochs)


build = ImageTraining
