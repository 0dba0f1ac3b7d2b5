"""One run's complete configuration."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, get_type_hints

from tempbalance.lab.methods import find_method
from tempbalance.lab.options import check_options, read_options

SEEDS = (43, 37, 13, 51, 71)  # the paper's

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
class Recipe:
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
            `tempbalance.TempBalance`; ``interval`` and ``start`` in epochs.
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
        for name, value in check_options(vars(self), get_type_hints(Recipe)).items():
            object.__setattr__(self, name, value)
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
    def key(self) -> dict[str, Any]:
        """What tells a run from others: the options that its method uses and that are not at their defaults."""
        method = find_method(self.method)
        unused = {
            "snr": not method.regularized,
            **dict.fromkeys(("restart_epochs", "restart_factor"), not method.restarts),
            **dict.fromkeys(("lookahead_steps", "lookahead_alpha"), method.optimizer != "lookahead"),
            **dict.fromkeys(("scale_range", "assignment"), not method.balanced),
        }
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        return {
            name: value
            for name, value in dataclasses.asdict(self).items()
            if value != defaults[name] and not unused.get(name, False)
        }

    @property
    def id(self) -> str:
        """The name with a checksum of the key: the same for recipes that train the same."""
        return f"{self.name}-{hashlib.sha256(json.dumps(self.key, sort_keys=True).encode()).hexdigest()[:8]}"

    def scores_after(self, epoch: int) -> bool:
        """Whether layers are scored at the end of an epoch; epoch 0 is before training."""
        late = epoch - self.start
        return late >= 0 and (self.interval_steps is not None or late % self.interval == 0)

    def to_dict(self) -> dict[str, Any]:
        """All options as plain values."""
        return {**dataclasses.asdict(self), "scale_range": list(self.scale_range)}

    @classmethod
    def from_dict(cls, options: Mapping[str, Any]) -> Recipe:
        """A recipe from options by name.

        Raises:
            ValueError: If an option is not known or its value not allowed; it names the option, the rule and the value.
        """
        return cls(**check_options(options, get_type_hints(cls)))


def read_recipe(path: Path) -> dict[str, Any]:
    """The options in a YAML or JSON file, checked; a run's ``recipe.json`` is one.

    Raises:
        ValueError: If the file does not hold options by name, or one of them is not as it should be; it names the file.
    """
    return check_options(read_options(path), get_type_hints(Recipe), where=f"{path}: ")


def versions() -> dict[str, str]:
    """What a run was made with."""
    found = {"python": platform.python_version()}
    for package in ("tempbalance", "torch", "numpy", "lightning", "pytorch_optimizer"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def differences(saved: Recipe, wanted: Recipe) -> list[str]:
    """The options in which two recipes differ, in words; those that neither's method uses are left out."""
    ours, theirs, names = wanted.to_dict(), saved.to_dict(), {*saved.key, *wanted.key}
    return [
        f"{name}: {theirs[name]!r} in the folder, {value!r} asked for"
        for name, value in ours.items()
        if name in names and theirs[name] != value
    ]
