"""What network to train on which images, and how."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from tempbalance.lab.methods import find_method
from tempbalance.lab.names import ACCURACY, pretty
from tempbalance.lab.options import CHOICES, DATASETS, NUM_IMAGES, RULES, check_dataset
from tempbalance.lab.recipe import BALANCING_RULES, SEEDS, UNUSED_ALONE, BalancingRecipe
from tempbalance.report.text import shown

# Initial rates at batch 128: the paper's best for each optimizer, for VGG half of SGD's.
_RATES = {
    "sgd": 0.1,
    "sgdp": 0.1,
    "lookahead": 0.1,
    "lars": 28.0,
    "lamb": 1e-2,
    "adam": 1e-3,
    "adamw": 1e-3,
    "adamp": 1e-3,
}


@dataclass(frozen=True)
class ImageRecipe(BalancingRecipe):
    """What to train on what, how, and from which seed. Defaults are the paper's (appendix "Hyperparameter settings").

    Attributes:
        dataset: A known name, an .npz file or a folder.
        model: A known network.
        width: Factor on the network's channels.
        method: A known method, or ``tb+`` one.
        seed: All randomness follows from it and the epoch.
        epochs: How long.
        stop_after: Train only the first so many of these epochs, at the rates of all; ``None`` for all.
        lr: Initial rate; ``None`` for the method's own.
        batch_size: Images a step.
        momentum: Of SGD and its relatives.
        weight_decay: Of every optimizer.
        scale_range: Smallest and largest scale of a balanced method.
        tail, tail_fraction, score, assignment, interval, start, score_first, score_last, min_eigenvalues: As for
            `tempbalance.TempBalance`; ``interval`` and ``start`` in epochs, as is ``blend``.
        interval_steps: Balance every so many optimizer steps instead; ``None`` for every ``interval`` epochs.
        snr: Strength of spectral norm regularisation, where the method has it.
        restart_epochs, restart_factor: Of SGDR; ``None`` for half the epochs, rounded up, the paper's (100, 1) of 200.
        lookahead_steps, lookahead_alpha: Of Lookahead.
        limit: Use only so many images of the training and of the test set; ``None`` for all.
        test_limit: Use only so many images of the test set; ``None`` for ``limit``.
        log_gradients: Whether a layer's line has its gradient norm.
        log_eigenvalues: Whether a layer's line has its spectrum.
        log_steps: Note each layer's gradient norm every so many steps too, and its spectrum with ``log_eigenvalues``;
            ``None`` for not.
    """

    kind = "images"
    measure = ACCURACY
    is_distributable = True
    rules: ClassVar = {**RULES, **BALANCING_RULES}
    choices = CHOICES
    result_names = ("test_accuracy", "best_accuracy", "best_epoch", "seconds")

    dataset: str = "digits"
    model: str = "resnet18"
    width: float = 1.0
    method: str = "tb"
    seed: int = SEEDS[0]
    epochs: int = 200
    stop_after: int | None = None
    lr: float | None = None
    batch_size: int = 128
    momentum: float = 0.9
    weight_decay: float = 5e-4
    scale_range: tuple[float, float] = (0.5, 1.5)
    tail: str = "median"
    tail_fraction: float = 0.5
    score: str = "alpha"
    assignment: str = "linear"
    interval: int = 1
    interval_steps: int | None = None
    start: int = 0
    score_first: bool = False
    score_last: bool = False
    min_eigenvalues: int = 50
    snr: float = 0.01
    restart_epochs: int | None = None
    restart_factor: int = 1
    lookahead_steps: int = 10
    lookahead_alpha: float = 0.8
    limit: int | None = None
    test_limit: int | None = None
    log_gradients: bool = False
    log_eigenvalues: bool = False
    log_steps: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stop_after is not None and self.stop_after >= self.epochs:
            object.__setattr__(self, "stop_after", None)  # which trains the same
        method = find_method(self.method)
        if self.lr is None:
            rate = _RATES[method.optimizer]
            halved = self.model.startswith("vgg") and method.optimizer in ("sgd", "sgdp", "lookahead")
            object.__setattr__(self, "lr", rate / 2 if halved else rate)
        if self.restart_epochs is None:
            object.__setattr__(self, "restart_epochs", math.ceil(self.epochs / 2))

    @property
    def name(self) -> str:
        """Short, for folders and tables."""
        dataset = Path(self.dataset).stem[:60]
        return f"{dataset}-{self.model}-{self.width:g}-{self.method}-{self.seed}"

    @property
    def num_epochs(self) -> int:
        """How many epochs are trained."""
        return self.epochs if self.stop_after is None else self.stop_after

    @property
    def unused(self) -> set[str]:
        """Options of other methods."""
        method = find_method(self.method)
        used = {
            ("snr",): method.regularized,
            ("restart_epochs", "restart_factor"): method.restarts,
            ("lookahead_steps", "lookahead_alpha"): method.optimizer == "lookahead",
            tuple(UNUSED_ALONE): method.balanced,
        }
        return {name for names, is_used in used.items() if not is_used for name in names}

    @property
    def pace(self) -> tuple[Any, ...]:
        """What an epoch's time depends on."""
        return self.dataset, self.limit, self.model, self.width, self.batch_size, self.tail

    @property
    def data_text(self) -> str:
        """The data with the number of images."""
        if self.dataset not in NUM_IMAGES:
            limited = f", at most {self.limit:,} images" if self.limit else ""
            return f"{shown(Path(self.dataset).name)}{limited}"
        train, test = NUM_IMAGES[self.dataset]
        train, test = min(train, self.limit or train), min(test, self.test_limit or self.limit or test)
        return f"{pretty(self.dataset)}, {train:,} + {test:,} images"

    @property
    def size_text(self) -> str:
        """Width and epochs."""
        part = f"{self.num_epochs} of " if self.num_epochs < self.epochs else ""
        return f"width {self.width:g}; {part}{self.epochs} epochs"

    def check_data(self) -> None:
        """Refuse a dataset that is neither known nor the path of anything.

        Raises:
            ValueError: It names the closest known ones.
        """
        check_dataset(self.dataset)

    def own_digest(self) -> str | None:
        """The checksum of somebody's own images that are there."""
        return _digest(self.dataset, self.limit, self.test_limit) if self.has_own_data else None

    @property
    def has_own_data(self) -> bool:
        """Whether the data is somebody's own, which can change, and is there."""
        return self.dataset not in DATASETS and Path(self.dataset).expanduser().exists()

    def scores_after(self, epoch: int) -> bool:
        """Whether layers are scored at the end of an epoch; epoch 0 is before training."""
        late = epoch - self.start
        return late >= 0 and (self.interval_steps is not None or late % self.interval == 0)


@lru_cache(maxsize=4)
def _digest(dataset: str, limit: int | None, test_limit: int | None) -> str:
    from tempbalance.lab.images.data import load_data

    return load_data(dataset, limit=limit, test_limit=test_limit).digest()
