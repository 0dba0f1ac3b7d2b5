"""Recipes of object detectors."""

from __future__ import annotations

import re
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from tempbalance.errors import unknown
from tempbalance.lab.options import (
    BatchSize,
    Betas,
    Count,
    Epochs,
    Epsilon,
    LearningRate,
    NotNegative,
    Number,
    Place,
    Rule,
    ScaleRange,
    Start,
    WeightDecay,
    pretty,
)
from tempbalance.lab.recipe import SEEDS, Measure, ScoredRecipe
from tempbalance.report.text import shown

# Known data, with the number of images for training and for the test; tests compare them with the loaders.
NUM_IMAGES = {"voc2007": (5011, 4952), "shapes": (1000, 300)}
NUM_TRAIN_VAL = {"voc2007": (2501, 2510), "shapes": (800, 200)}  # the parts of the images for training
PRETRAINED = ("yolov8n",)

MAP = Measure("test_map", "mAP", "%", "points")


class DetectionRecipe(ScoredRecipe):
    """Training of an object detector by ultralytics. Defaults are the paper's (appendix "other tasks")."""

    kind = "detection"
    measure = MAP
    result_names = ("test_map", "test_map50", "seconds")

    dataset: Annotated[
        Place, Field(description="Images: voc2007, shapes, or the path of a folder in VOC's layout.")
    ] = "voc2007"
    model: Annotated[
        str,
        Rule(
            f"{', '.join(PRETRAINED)} or a name that ends in .yaml",
            lambda value: value in PRETRAINED or re.fullmatch(r"[\w-][\w.-]*\.yaml", value) is not None,
        ),
        Field(description="Network: yolov8n, pretrained on COCO, or a .yaml name of ultralytics for random weights."),
    ] = "yolov8n"
    method: Annotated[
        Literal["adam", "adamw", "tb+adam", "tb+adamw"], Field(description="Optimizer, alone or balanced.")
    ] = "tb+adam"
    seed: Annotated[
        int,
        Rule("a whole number from 0 to 2**32 - 2", lambda value: 0 <= value < 2**32 - 1),
        Field(description="Seed of ultralytics."),
    ] = SEEDS[0]
    epochs: Epochs = 200
    lr: LearningRate = 1e-5
    batch_size: BatchSize = 64
    weight_decay: WeightDecay = 5e-4
    betas: Betas = (0.9, 0.999)
    eps: Epsilon = 1e-8
    warmup_epochs: Annotated[NotNegative, Field(description="Epochs over which learning rates rise from 0.")] = 0.0
    image_size: Annotated[
        int,
        Rule("a multiple of 32 from 32 to 4096", lambda value: 32 <= value <= 4096 and value % 32 == 0),
        Field(description="Side of the images in pixels."),
    ] = 640
    mosaic: Annotated[
        Number, Field(ge=0, le=1, description="Probability of combining four training images into one.")
    ] = 1.0
    close_mosaic: Annotated[int, Field(ge=0, le=10**9, description="Number of last epochs without mosaic.")] = 10
    scale_range: ScaleRange = (0.6, 1.4)
    start: Start = 0
    split: Annotated[
        Literal["trainval", "train"],
        Field(
            description="Images to train on. trainval tests every epoch; train, as published, chooses the best epoch "
            "on val and tests that one."
        ),
    ] = "trainval"
    limit: Annotated[Count | None, Field(description="Train on at most this many images.")] = None
    test_limit: Annotated[Count | None, Field(description="Validate and test on at most this many images each.")] = None

    @property
    def num_epochs(self) -> int:
        """Number of epochs."""
        return self.epochs

    @property
    def pace(self) -> tuple[Any, ...]:
        """Options that determine the time of an epoch."""
        data = self.dataset, self.split, self.limit, self.test_limit
        return *data, self.model, self.image_size, self.batch_size, self.tail

    @property
    def best_by(self) -> str:
        """The published choice of a checkpoint, where there are validation images."""
        return "valid_fitness" if self.split == "train" else ""

    @property
    def data_text(self) -> str:
        """The data with the number of images."""
        if self.dataset in NUM_IMAGES:
            (train, test), val = NUM_IMAGES[self.dataset], ""
            if self.split == "train":
                train, num_val = NUM_TRAIN_VAL[self.dataset]
                val = f" + {min(num_val, self.test_limit or num_val):,} (val)"
            train, test = min(train, self.limit or train), min(test, self.test_limit or test)
            return f"{pretty(self.dataset)}, {train:,}{val} + {test:,} images"
        limits = {"for training": self.limit, "for the test": self.test_limit}
        parts = [f", at most {limit:,} images {what}" for what, limit in limits.items() if limit]
        return shown(Path(self.dataset).name) + "".join(parts)

    @property
    def size_text(self) -> str:
        """Pixels and epochs."""
        return f"{self.image_size} pixels; {self.epochs} epochs"

    def check_data(self) -> None:
        """Refuse a dataset that is neither known nor a folder, and a machine without ultralytics.

        Raises:
            ValueError: With the closest known names.
            ModuleNotFoundError: If ultralytics is not installed.
        """
        check_installed()
        if self.dataset not in NUM_IMAGES and not Path(self.dataset).expanduser().exists():
            raise ValueError(f"{unknown('dataset', self.dataset, NUM_IMAGES)}; or the path of a folder in VOC's layout")

    @property
    def has_own_data(self) -> bool:
        """Whether the images are a user's own, which can change, and exist."""
        return self.dataset not in NUM_IMAGES and Path(self.dataset).expanduser().exists()

    def own_digest(self) -> str | None:
        """Return the checksum of a user's own images."""
        return _digest(self.dataset, self.split, self.limit, self.test_limit) if self.has_own_data else None


@lru_cache(maxsize=4)
def _digest(dataset: str, split: str, limit: int | None, test_limit: int | None) -> str:
    from tempbalance.lab.detection.voc import read_voc

    return read_voc(Path(dataset).expanduser(), split=split, limit=limit, test_limit=test_limit).digest()


def check_installed() -> None:
    """Refuse a machine without ultralytics.

    Raises:
        ModuleNotFoundError: With what to install.
    """
    if find_spec("ultralytics") is None:
        raise ModuleNotFoundError(
            "detection needs ultralytics, which is not installed: pip install ultralytics "
            "(its licence is the AGPL; tempbalance does without it otherwise)",
            name="ultralytics",
        )
