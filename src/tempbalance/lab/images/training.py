"""Training a recipe of images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from lightning.fabric import Fabric
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, CosineAnnealingWarmRestarts, LRScheduler

import tempbalance
from tempbalance.lab.balancing import BalancedTraining, gradient_norm
from tempbalance.lab.images.data import DATASETS, ImageData, batch_bounds, batches, normalize
from tempbalance.lab.images.network import build_network, follow_by_name
from tempbalance.lab.images.optimizers import SpectralNormRegularizer, build_optimizer
from tempbalance.lab.images.recipe import ImageRecipe
from tempbalance.lab.recipe import find_method
from tempbalance.runlog import Line

Batch = tuple[Tensor, Tensor, int]  # a process' share of images and labels, and how many images all have

_EVALUATED = 1024  # test images at a time, but on the CPU, where larger batches are no faster


class ImageTraining(BalancedTraining[ImageRecipe]):
    """A network that learns the labels of images, which live on the training device as uint8."""

    def __init__(self, recipe: ImageRecipe, data: ImageData, fabric: Fabric) -> None:
        super().__init__(
            recipe,
            initial_network(recipe, data),
            lambda groups: build_optimizer(groups, recipe),
            lambda optimizer: build_schedule(optimizer, recipe),
            fabric,
            # where steps are counted, the scheduler itself never finds a scoring due
            interval=None if recipe.interval_steps is None else recipe.epochs + 1,
        )
        layers = {layer.name: layer for layer in tempbalance.find_layers(self.network)}
        self.logged = {name: each for name, each in layers.items() if fnmatchcase(name, recipe.log_layers or "*")}
        if not self.logged:
            raise ValueError(f"log_layers must match the name of a layer, got {recipe.log_layers!r}")
        self.data = data.to(fabric.device)
        self._share = slice(fabric.global_rank, None, fabric.world_size)
        # a last batch has two images per process, as BatchNorm needs, if other batches have them
        self._least = min(2 * fabric.world_size, recipe.batch_size)
        self._num_batches = len(batch_bounds(len(data.train_images), recipe.batch_size, least=self._least))
        self.regularizer: SpectralNormRegularizer | None = None
        if find_method(recipe.method).regularized:
            number = recipe.snr_iterations
            options: dict[str, Any] = {"strength": recipe.snr, "num_iterations": number, "fresh": number > 1}
            self.regularizer = SpectralNormRegularizer(self.network, seed=recipe.seed, **options)

    @property
    def num_steps(self) -> int:
        return self._num_batches * self.recipe.num_epochs

    def batches(self, number: int) -> Iterator[Batch]:
        """Return the training images, shuffled and augmented anew each epoch."""
        self.iteration = (number - 1) * self._num_batches
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

    def _reset(self) -> None:
        """Begin the sums of losses and of correct images, and the number of all images."""
        self._sums, self._num_images = torch.zeros(2, dtype=torch.float64, device=self.fabric.device), 0

    def loss(self, batch: Batch) -> Tensor:
        """Add a batch to the sums; the mean of the losses over all processes is the mean over all images."""
        images, labels, num_images = batch
        outputs = self.model(images)
        loss = cross_entropy(outputs, labels, reduction="sum")
        num_correct = (outputs.detach().argmax(1) == labels).sum()
        self._sums += torch.stack([loss.detach().double(), num_correct])
        self._num_images += num_images
        return loss * (self.fabric.world_size / num_images)

    def training_metrics(self, losses: list[float]) -> Line:
        """Return mean loss and accuracy over the training images, each as it was when its batch came."""
        return self._means("train")

    def evaluate(self) -> Line:
        """Return mean loss and accuracy over the test images."""
        data, size = self.data, self.recipe.batch_size
        self._reset()
        size = size if self.fabric.device.type == "cpu" else max(size, _EVALUATED)
        for start, end in batch_bounds(len(data.test_images), size, least=self._least):
            images, labels = data.test_images[start:end][self._share], data.test_labels[start:end][self._share]
            self.loss((normalize(images, data.mean, data.std), labels, end - start))
        return self._means("test")

    def _means(self, stage: str) -> Line:
        loss, num_correct = self.reduced(self._sums, "sum").tolist()
        mean = self.finite(f"{stage} loss", loss / self._num_images)
        return {f"{stage}_loss": mean, f"{stage}_accuracy": 100 * num_correct / self._num_images}

    def before_step(self) -> None:
        """Log the gradients of the loss, then add those of the regulariser."""
        every = self.recipe.log_steps
        if every is not None and (self.iteration - 1) % every == 0:
            for name, layer in self.logged.items():
                if layer.parameters[0].grad is not None:
                    line: Line = {"epoch": self.number, "step": self.iteration - 1, "layer": name}
                    self.step_lines.append({**line, **self._extras(layer, gradient=True)})
        if self.regularizer is not None:
            self.regularizer.add_gradients()

    def _extras(self, layer: tempbalance.Layer, *, gradient: bool) -> Line:
        """Return the norm of the gradient of a layer's weight, and the spectrum if the recipe asks for it."""
        found: Line = {}
        if gradient and layer.parameters[0].grad is not None:
            found["gradient_norm"] = gradient_norm(layer.parameters[0])
        if self.recipe.log_eigenvalues:
            found["eigenvalues"] = tempbalance.spectrum(layer.weight()).tolist()
        return found

    def layer_extras(self, layer: str) -> Line:
        return self._extras(self.logged[layer], gradient=self.recipe.log_gradients) if layer in self.logged else {}

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

    def stateful(self) -> dict[str, Any]:
        more = {} if self.regularizer is None else {"regularizer": self.regularizer}
        return {**super().stateful(), **more}


def initial_network(recipe: ImageRecipe, data: ImageData) -> nn.Module:
    """Return a recipe's network with the weights that its seed gives."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        network = _build(recipe, data.num_classes, data.train_images.shape[1:])
    if recipe.norms == "name":
        follow_by_name(network)
    return network


def bare_network(recipe: ImageRecipe) -> nn.Module:
    """Return a network of a recipe's size without its data; one's own data count as CIFAR-10's."""
    known = DATASETS.get(recipe.dataset, DATASETS["cifar10"])
    return _build(recipe, known.num_classes, known.shape)


def _build(recipe: ImageRecipe, num_classes: int, shape: Sequence[int]) -> nn.Module:
    side = shape[1], shape[2]
    return build_network(recipe.model, num_classes=num_classes, channels=shape[0], side=side, width=recipe.width)


def check(recipe: ImageRecipe, data: ImageData, num_processes: int) -> None:
    """Refuse batches that leave a process without an image, or BatchNorm with one."""
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
