"""Recipes of image classifiers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import Field

from tempbalance.lab import options
from tempbalance.lab.options import BALANCING, LOGGING, METHOD, NUM_IMAGES, Count, Fraction, NotNegative, Rule, Share
from tempbalance.lab.recipe import ACCURACY, METHODS, BalancingRecipe, BaseRecipe, find_method
from tempbalance.report.text import shown

Model = Literal["resnet18", "resnet34", "resnet50", "resnet101", "vgg16", "vgg19", "wrn16_8", "wrn28_6", "mlp"]
MODELS: tuple[str, ...] = get_args(Model)
Images = Annotated[options.Place, f"Images: {', '.join(NUM_IMAGES)}, or the path of an .npz file or a folder."]

# Initial learning rates at batch 128: the paper's best for each optimizer. With VGG, SGD and its variants take half.
_RATES = {
    "sgd": 0.1, "sgdp": 0.1, "lookahead": 0.1, "lars": 28.0, "lamb": 1e-2, "adam": 1e-3, "adamw": 1e-3, "adamp": 1e-3,
}  # fmt: skip


class OnImages(BaseRecipe):
    """Base of recipes whose data are images with labels."""

    measure = ACCURACY
    known_data = NUM_IMAGES

    if TYPE_CHECKING:  # declared by each recipe, at its place in the list of options
        limit: int | None
        test_limit: int | None

    def load(self, cache: Path | None = None) -> Any:
        from tempbalance.lab.images.data import load_data

        return load_data(self.dataset, cache=cache, limit=self.limit, test_limit=self.test_limit)

    def check_data(self) -> None:
        options.check_dataset(self.dataset)

    @property
    def data_text(self) -> str:
        if self.dataset not in NUM_IMAGES:
            limited = f", at most {self.limit:,} images" if self.limit else ""
            return f"{shown(Path(self.dataset).name)}{limited}"
        train, test = NUM_IMAGES[self.dataset]
        train, test = min(train, self.limit or train), min(test, self.test_limit or self.limit or test)
        return f"{options.pretty(self.dataset)}, {train:,} + {test:,} images"


class ImageRecipe(OnImages, BalancingRecipe):
    """Training of an image classifier. Defaults are the paper's (appendix "Hyperparameter settings")."""

    kind = "images"
    is_distributable = True
    result_names = ("test_accuracy", "best_accuracy", "best_epoch", "seconds")

    dataset: Images = "digits"
    model: Annotated[Model, "Network."] = "resnet18"
    method: Annotated[
        str,
        Rule("a known method", lambda value: bool(find_method(value))),
        f"Training method: {', '.join(METHODS)}, or tb+ before another.",
    ] = "tb"
    width: Annotated[options.Number, Field(gt=0, le=32), "Factor on the channels of the network."] = 1.0
    epochs: options.Epochs = 200
    stop_after: Annotated[
        Count | None, "Stop after this many epochs, with the learning rates of the whole schedule."
    ] = None
    lr: Annotated[
        options.LearningRate | None,
        "Initial learning rate. Default: that of the method, 0.1 for SGD and 0.05 with VGG.",
    ] = None
    batch_size: options.BatchSize = 128
    momentum: Annotated[Share, "Momentum of SGD and its variants."] = 0.9
    flip: Annotated[bool | None, "Mirror training images at random. Default: not those of digits and SVHN."] = None
    weight_decay: options.WeightDecay = 5e-4
    limit: options.Limit = None
    test_limit: options.TestLimit = None
    interval_steps: Annotated[Count | None, "Optimizer steps between scorings, in place of epochs.", BALANCING] = None
    start: options.Start = 0
    norms: Annotated[
        Literal["order", "name"],
        "Layer that a BatchNorm follows: the one that feeds it, or as published the one of its name.",
        BALANCING,
    ] = "order"
    snr: Annotated[NotNegative, "Strength of the spectral norm regularisation in snr and tb+snr.", METHOD] = 0.01
    snr_iterations: Annotated[Count, "Power iterations per step; 2 or more start from random vectors.", METHOD] = 1
    lars_momentum: Annotated[Share, "Momentum of lars; the published code has none.", METHOD] = 0.0
    restart_epochs: Annotated[
        Count | None, "Epochs before the first restart of sgdr. Default: half of all.", METHOD
    ] = None
    restart_factor: Annotated[Count, "Factor on the length of each next cycle of sgdr.", METHOD] = 1
    lookahead_steps: Annotated[Count, "Steps of lookahead between two updates of the slow weights.", METHOD] = 10
    lookahead_alpha: Annotated[Fraction, "Step of lookahead's slow weights towards the fast ones.", METHOD] = 0.8
    log_gradients: Annotated[bool, "Add gradient norms to layers.jsonl.", LOGGING] = False
    log_eigenvalues: Annotated[bool, "Add spectra to layers.jsonl.", LOGGING] = False
    log_steps: Annotated[
        Count | None, "Log gradient norms every this many steps, and spectra with log_eigenvalues.", LOGGING
    ] = None
    log_layers: Annotated[
        Annotated[str, Rule("a name pattern", bool)] | None,
        "Log gradient norms and spectra only of layers whose names match this pattern.",
        LOGGING,
    ] = None

    def resolved(self) -> Mapping[str, Any]:
        if not self.is_scored and (self.log_gradients or (self.log_eigenvalues and self.log_steps is None)):
            name = "log_gradients" if self.log_gradients else "log_eigenvalues"
            raise ValueError(f"{name} needs scored layers: score_baseline must be true, got false")
        method = find_method(self.method)
        halved = self.model.startswith("vgg") and method.optimizer in ("sgd", "sgdp", "lookahead")
        rate = _RATES[method.optimizer] / (2 if halved else 1)
        return {
            "stop_after": None if self.stop_after is None or self.stop_after >= self.epochs else self.stop_after,
            "lr": rate if self.lr is None else self.lr,
            "restart_epochs": math.ceil(self.epochs / 2) if self.restart_epochs is None else self.restart_epochs,
        }

    @property
    def name(self) -> str:
        dataset = Path(self.dataset).stem[:60]
        return f"{dataset}-{self.model}-{self.width:g}-{self.method}-{self.seed}{self.name_end}"

    @property
    def num_epochs(self) -> int:
        return self.epochs if self.stop_after is None else self.stop_after

    @property
    def unused(self) -> set[str]:
        method = find_method(self.method)
        used = {
            ("snr", "snr_iterations"): method.regularized,
            ("norms",): method.balanced,
            ("momentum",): method.optimizer in ("sgd", "sgdp", "lookahead"),
            ("lars_momentum",): method.optimizer == "lars",
            ("restart_epochs", "restart_factor"): method.restarts,
            ("lookahead_steps", "lookahead_alpha"): method.optimizer == "lookahead",
        }
        return super().unused | {name for names, is_used in used.items() if not is_used for name in names}

    @property
    def pace(self) -> tuple[Any, ...]:
        return self.dataset, self.limit, self.model, self.width, self.batch_size, self.tail

    @property
    def size_text(self) -> str:
        part = f"{self.num_epochs} of " if self.num_epochs < self.epochs else ""
        return f"width {self.width:g}; {part}{self.epochs} epochs"

    def scores_after(self, epoch: int) -> bool:
        late = epoch - self.start
        return self.is_scored and late >= 0 and (self.interval_steps is not None or late % self.interval == 0)
