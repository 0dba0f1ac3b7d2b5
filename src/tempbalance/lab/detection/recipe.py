"""One detection run's complete configuration."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from tempbalance.lab.methods import find_method, unknown
from tempbalance.lab.names import Measure
from tempbalance.lab.options import CHOICES, RULES
from tempbalance.lab.recipe import SEEDS, BaseRecipe
from tempbalance.report.text import shown

# Known data, with the number of images for training and for the test; tests hold them to those of the library.
NUM_IMAGES = {"voc2007": (5011, 4952), "shapes": (1000, 300)}
_TITLES = {"voc2007": "PASCAL VOC 2007", "shapes": "drawn shapes"}
METHODS = ("adam", "adamw", "tb+adam", "tb+adamw")
PRETRAINED = ("yolov8n",)

MAP = Measure("test_map", "mAP", "%", "points")


@dataclass(frozen=True)
class DetectionRecipe(BaseRecipe):
    """What to train on what, how, and from which seed. Defaults are the paper's (appendix "other tasks").

    Attributes:
        dataset: ``voc2007``, ``shapes``, or the path of a folder in VOC's layout.
        model: ``yolov8n`` for its weights pretrained on COCO, or a description that ultralytics knows, such as
            ``yolov8n.yaml``, for random ones.
        method: An optimizer with the cosine alone, or balanced.
        seed: What ultralytics is seeded with.
        epochs: How long.
        lr: Initial rate; it falls as a cosine to 0.
        batch_size: Images a step.
        weight_decay: Of weights, not of biases and norms, as ultralytics has it.
        betas: Of Adam and AdamW.
        eps: Likewise.
        warmup_epochs: How long rates rise from 0; the paper speaks of none.
        image_size: Side of the square that images are scaled to, in pixels.
        mosaic: How often four images become one in training, as a probability.
        close_mosaic: In how many of the last epochs that is over.
        scale_range: Smallest and largest scale of a balanced method.
        tail, tail_fraction, score, assignment, interval, start, score_first, score_last, min_eigenvalues: As for
            `tempbalance.TempBalance`; ``interval`` and ``start`` in epochs.
        limit: Use only so many images for training; ``None`` for all.
        test_limit: Use only so many for the test; ``None`` for all.
    """

    kind: ClassVar[str] = "detection"
    measure: ClassVar[Measure] = MAP
    rules: ClassVar = {
        **RULES,
        "model": (
            f"{', '.join(PRETRAINED)} or a name that ends in .yaml",
            lambda value: value in PRETRAINED or re.fullmatch(r"[\w-][\w.-]*\.yaml", value) is not None,
        ),
        "seed": ("at least 0 and below 2**32 - 1", lambda value: 0 <= value < 2**32 - 1),
        "betas": ("two numbers, at least 0 and below 1", lambda value: all(0 <= each < 1 for each in value)),
        "eps": ("> 0", lambda value: value > 0),
        "warmup_epochs": ("at least 0", lambda value: value >= 0),
        "image_size": ("at least 32 and a multiple of 32", lambda value: value >= 32 and value % 32 == 0),
        "mosaic": ("from 0 to 1", lambda value: 0 <= value <= 1),
        "close_mosaic": ("at least 0", lambda value: value >= 0),
    }
    choices: ClassVar = {**{name: known for name, known in CHOICES.items() if name != "model"}, "method": METHODS}
    result_names: ClassVar[tuple[str, ...]] = ("test_map", "test_map50", "seconds")

    dataset: str = "voc2007"
    model: str = "yolov8n"
    method: str = "tb+adam"
    seed: int = SEEDS[0]
    epochs: int = 200
    lr: float = 1e-5
    batch_size: int = 64
    weight_decay: float = 5e-4
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    warmup_epochs: float = 0.0
    image_size: int = 640
    mosaic: float = 1.0
    close_mosaic: int = 10
    scale_range: tuple[float, float] = (0.6, 1.4)
    tail: str = "median"
    tail_fraction: float = 0.5
    score: str = "alpha"
    assignment: str = "linear"
    interval: int = 1
    start: int = 0
    score_first: bool = False
    score_last: bool = False
    min_eigenvalues: int = 50
    limit: int | None = None
    test_limit: int | None = None

    @property
    def num_epochs(self) -> int:
        """All of them."""
        return self.epochs

    @property
    def is_balanced(self) -> bool:
        """Whether layers get scales; otherwise they are only scored."""
        return find_method(self.method).balanced

    @property
    def unused(self) -> set[str]:
        """What only balanced methods use."""
        return set() if self.is_balanced else {"scale_range", "assignment"}

    @property
    def pace(self) -> tuple[Any, ...]:
        """What an epoch's time depends on."""
        return self.dataset, self.limit, self.test_limit, self.model, self.image_size, self.batch_size, self.tail

    @property
    def data_text(self) -> str:
        """The data with the number of images."""
        if self.dataset in NUM_IMAGES:
            train, test = (
                min(number, limit or number)
                for number, limit in zip(NUM_IMAGES[self.dataset], (self.limit, self.test_limit), strict=True)
            )
            return f"{_TITLES[self.dataset]}, {train:,} + {test:,} images"
        limits = {"for training": self.limit, "for the test": self.test_limit}
        told = [f", at most {limit:,} images {what}" for what, limit in limits.items() if limit]
        return shown(Path(self.dataset).name) + "".join(told)

    @property
    def size_text(self) -> str:
        """Pixels and epochs."""
        return f"{self.image_size} pixels; {self.epochs} epochs"

    def check_data(self) -> None:
        """Refuse a dataset that is neither known nor a folder, and a machine without ultralytics.

        Raises:
            ValueError: It names the closest known ones.
            ModuleNotFoundError: If ultralytics is not installed.
        """
        check_installed()
        if self.dataset not in NUM_IMAGES and not Path(self.dataset).expanduser().exists():
            told = unknown("dataset", self.dataset, NUM_IMAGES)
            raise ValueError(f"{told}; or the path of a folder in VOC's layout")

    @property
    def has_own_data(self) -> bool:
        """Whether the images are somebody's own, which can change, and are there."""
        return self.dataset not in NUM_IMAGES and Path(self.dataset).expanduser().exists()

    def own_digest(self) -> str | None:
        """The checksum of somebody's own images that are there."""
        return _digest(self.dataset, self.limit, self.test_limit) if self.has_own_data else None


@lru_cache(maxsize=4)
def _digest(dataset: str, limit: int | None, test_limit: int | None) -> str:
    from tempbalance.lab.detection.voc import read_voc

    return read_voc(Path(dataset).expanduser(), limit=limit, test_limit=test_limit).digest()


def check_installed() -> None:
    """Tell what to install.

    Raises:
        ModuleNotFoundError: If ultralytics is not there.
    """
    if find_spec("ultralytics") is None:
        raise ModuleNotFoundError(
            "detection needs ultralytics, which is not installed: pip install ultralytics "
            "(its licence is the AGPL; tempbalance does without it otherwise)",
            name="ultralytics",
        )
