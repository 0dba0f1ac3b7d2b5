"""Recipes of object detectors."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from tempbalance.errors import unknown
from tempbalance.lab import options
from tempbalance.lab.options import Count, Number, Rule
from tempbalance.lab.recipe import SEEDS, Measure, ScoredRecipe
from tempbalance.report.text import shown

# Known data, with the number of images for training and for the test; tests compare them with the loaders.
NUM_IMAGES = {"voc2007": (5011, 4952), "shapes": (1000, 300)}
NUM_TRAIN_VAL = {"voc2007": (2501, 2510), "shapes": (800, 200)}  # the parts of the images for training
PRETRAINED = ("yolov8n",)


class DetectionRecipe(ScoredRecipe):
    """Training of an object detector by ultralytics. Defaults are the paper's (appendix "other tasks")."""

    kind = "detection"
    known_data = NUM_IMAGES
    data_options = ("dataset", "split", "limit", "test_limit")
    measure = Measure("test_map", "mAP", "%", "points")
    result_names = ("test_map", "test_map50", "seconds")

    dataset: Annotated[options.Place, "Images: voc2007, shapes, or the path of a folder in VOC's layout."] = "voc2007"
    model: Annotated[
        str,
        Rule(
            f"{', '.join(PRETRAINED)} or a name that ends in .yaml",
            lambda value: value in PRETRAINED or re.fullmatch(r"[\w-][\w.-]*\.yaml", value) is not None,
        ),
        "Network: yolov8n, pretrained on COCO, or a .yaml name of ultralytics for random weights.",
    ] = "yolov8n"
    method: Annotated[Literal["adam", "tb+adam", "adamw", "tb+adamw"], "Optimizer, alone or balanced."] = "tb+adam"
    seed: Annotated[
        int, Rule("a whole number from 0 to 2**32 - 2", lambda value: 0 <= value < 2**32 - 1), "Seed of ultralytics."
    ] = SEEDS[0]
    epochs: options.Epochs = 200
    lr: options.LearningRate = 1e-5
    batch_size: options.BatchSize = 64
    weight_decay: options.WeightDecay = 5e-4
    betas: options.Betas = (0.9, 0.999)
    eps: options.Epsilon = 1e-8
    warmup_epochs: Annotated[options.NotNegative, "Epochs over which learning rates rise from 0."] = 0.0
    image_size: Annotated[
        int,
        Rule("a multiple of 32 from 32 to 4096", lambda value: 32 <= value <= 4096 and value % 32 == 0),
        "Side of the images in pixels.",
    ] = 640
    mosaic: Annotated[Number, Field(ge=0, le=1), "Probability of combining four training images into one."] = 1.0
    close_mosaic: Annotated[int, Field(ge=0, le=10**9), "Number of last epochs without mosaic."] = 10
    scale_range: options.ScaleRange = (0.6, 1.4)
    start: options.Start = 0
    split: Annotated[
        Literal["trainval", "train"],
        "Images to train on. trainval tests every epoch; train, as published, chooses the best epoch on val and tests "
        "that one.",
    ] = "trainval"
    limit: Annotated[Count | None, "Train on at most this many images."] = None
    test_limit: Annotated[Count | None, "Validate and test on at most this many images each."] = None

    @property
    def pace(self) -> tuple[Any, ...]:
        data = self.dataset, self.split, self.limit, self.test_limit
        return *data, self.model, self.image_size, self.batch_size, self.tail

    @property
    def best_by(self) -> str:
        """The published choice of a checkpoint, where there are validation images."""
        return "valid_fitness" if self.split == "train" else ""

    @property
    def data_text(self) -> str:
        if self.dataset in NUM_IMAGES:
            (train, test), val = NUM_IMAGES[self.dataset], ""
            if self.split == "train":
                train, num_val = NUM_TRAIN_VAL[self.dataset]
                val = f" + {min(num_val, self.test_limit or num_val):,} (val)"
            train, test = min(train, self.limit or train), min(test, self.test_limit or test)
            return f"{options.pretty(self.dataset)}, {train:,}{val} + {test:,} images"
        limits = {"for training": self.limit, "for the test": self.test_limit}
        parts = [f", at most {limit:,} images {what}" for what, limit in limits.items() if limit]
        return shown(Path(self.dataset).name) + "".join(parts)

    @property
    def size_text(self) -> str:
        return f"{self.image_size} pixels; {self.epochs} epochs"

    def check_data(self) -> None:
        check_installed()
        if self.dataset not in NUM_IMAGES and not Path(self.dataset).expanduser().exists():
            raise ValueError(f"{unknown('dataset', self.dataset, NUM_IMAGES)}; or the path of a folder in VOC's layout")

    def load(self, cache: Path | None = None) -> Any:
        """Read a user's own images."""
        from tempbalance.lab.detection.data import read_voc

        limits = {"limit": self.limit, "test_limit": self.test_limit}
        return read_voc(Path(self.dataset).expanduser(), split=self.split, **limits)


def check_installed() -> None:
    """Refuse a machine without ultralytics."""
    if find_spec("ultralytics") is None:
        raise ModuleNotFoundError(
            "detection needs ultralytics, which is not installed: pip install ultralytics "
            "(its licence is the AGPL; tempbalance does without it otherwise)",
            name="ultralytics",
        )
