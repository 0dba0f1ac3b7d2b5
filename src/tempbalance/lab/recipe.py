"""A run's complete configuration: what recipes of every kind have in common, and the kinds by name."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, TypeVar, get_type_hints

from tempbalance.lab.methods import find_method, unknown
from tempbalance.lab.names import Measure
from tempbalance.lab.options import ASSIGNMENTS, RULES, SCORES, TAILS, Rule, check_options, read_options

SEEDS = (43, 37, 13, 51, 71)  # the paper's

# The recipe of each kind. Its package also has the module ``training``; neither is loaded before it is needed.
_KINDS = {
    "images": "images.recipe.ImageRecipe",
    "language": "language.recipe.LanguageRecipe",
    "matrices": "matrices.recipe.MatricesRecipe",
    "operator": "operators.recipe.OperatorRecipe",
    "detection": "detection.recipe.DetectionRecipe",
}

T = TypeVar("T", bound="BaseRecipe")

_HINTS: dict[type, dict[str, Any]] = {}  # of kinds, once asked for: to work them out takes milliseconds


@dataclass(frozen=True)
class BaseRecipe:
    """Base of all recipes: a frozen dataclass of options, among them ``dataset``, ``model``, ``method``, ``seed``.

    Attributes:
        kind: Which kind of run it is; `find_kind` knows them all.
        measure: What runs are judged by.
        rules: What each option must be beside its type, as words and a function.
        choices: Options with known values.
        result_names: The numbers that a complete run's result has.
        best_by: The metric that chooses the best epoch; empty for the measure itself.
        is_float32: Whether runs train in 32-true alone.
        is_distributable: Whether several devices can train one run.
    """

    kind: ClassVar[str]
    measure: ClassVar[Measure]
    rules: ClassVar[Mapping[str, Rule]]
    choices: ClassVar[Mapping[str, Sequence[str]]]
    result_names: ClassVar[tuple[str, ...]]
    best_by: ClassVar[str] = ""
    is_float32: ClassVar[bool] = False
    is_distributable: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for name, value in self.checked(vars(self)).items():
            object.__setattr__(self, name, value)

    @property
    def num_epochs(self) -> int:
        """How many epochs are trained; an epoch is what a line of ``metrics.jsonl`` is of."""
        raise NotImplementedError

    @property
    def unused(self) -> set[str]:
        """Options that do not matter, given the others."""
        return set()

    @property
    def pace(self) -> tuple[Any, ...]:
        """What an epoch's time depends on."""
        raise NotImplementedError

    @property
    def data_text(self) -> str:
        """The data in words."""
        raise NotImplementedError

    @property
    def size_text(self) -> str:
        """The network's size and the duration in words, with a semicolon between them."""
        raise NotImplementedError

    def check_data(self) -> None:
        """Refuse data that are neither known nor there, before anything is started.

        Raises:
            ValueError: It says what is missing.
        """
        raise NotImplementedError

    @property
    def has_own_data(self) -> bool:
        """Whether the data are somebody's own, which can change, and are there."""
        return False

    def own_digest(self) -> str | None:
        """The checksum of data that are somebody's own and so can change; ``None`` for known ones."""
        return None

    @property
    def name(self) -> str:
        """Short, for folders and tables."""
        named = vars(self)
        dataset = Path(named["dataset"]).stem[:60]
        return "-".join([dataset, *(Path(str(named[each])).stem for each in ("model", "method", "seed"))])

    @property
    def key(self) -> dict[str, Any]:
        """What tells a run from others: the options that matter and are not at their defaults."""
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        unused = self.unused
        return {name: value for name, value in vars(self).items() if value != defaults[name] and name not in unused}

    @property
    def id(self) -> str:
        """The name with a checksum of the key: the same for recipes that train the same."""
        return f"{self.name}-{hashlib.sha256(json.dumps(self.key, sort_keys=True).encode()).hexdigest()[:8]}"

    def to_dict(self) -> dict[str, Any]:
        """All options as plain values."""
        values = {name: getattr(self, name) for name in self.hints()}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    @classmethod
    def checked(cls, options: Mapping[str, Any], *, where: str = "") -> dict[str, Any]:
        """Options with each value in its type.

        Raises:
            ValueError: If an option is not known or its value not allowed; it names the option, the rule and the value.
        """
        return check_options(options, cls.hints(), rules=cls.rules, choices=cls.choices, where=where)

    @classmethod
    def hints(cls) -> dict[str, Any]:
        """The type of each option, the kind's own ones first, as it declares them, then those of its bases."""
        if cls not in _HINTS:
            found = get_type_hints(cls)
            names = {field.name for field in dataclasses.fields(cls)}
            declared = [name for each in cls.__mro__ for name in vars(each).get("__annotations__", ())]
            _HINTS[cls] = {name: found[name] for name in declared if name in names}
        return _HINTS[cls]

    @classmethod
    def from_dict(cls: type[T], options: Mapping[str, Any]) -> T:
        """A recipe from options by name.

        Raises:
            ValueError: As of `checked`.
        """
        if strange := [name for name in options if name not in cls.hints()]:
            raise ValueError(unknown("option", str(strange[0]), cls.hints()))
        return cls(**options)  # which checks each value


REFERENCES = ("random",)  # a test holds them to those of the library
BALANCING_RULES: dict[str, Rule] = {
    "reference": ("random", lambda value: value in REFERENCES),
    "windows": ("'square' or a whole number of at least 2", lambda value: value == "square" or is_side(value)),
    "smooth": ("at least 0 and below 1", lambda value: 0 <= value < 1),
    "blend": ("at least 1", lambda value: value >= 1),
    "group_by": ("a name pattern", bool),
    "decay_range": ("two numbers above 0", lambda value: min(value) > 0),
}
UNUSED_ALONE = {"scale_range", "assignment", "keep_mean", "shrink", "smooth", "blend", "group_by", "decay_range"}


def is_side(text: str) -> bool:
    """Whether a text is the side of a window."""
    return text.isdecimal() and int(text) >= 2


@dataclass(frozen=True)
class BalancingRecipe(BaseRecipe):
    """Base of recipes whose layers can be balanced in ways that the paper does not have.

    Attributes:
        reference, keep_mean, shrink, smooth, blend, group_by: As in `tempbalance.Comparison`.
        windows: The same; a number as text.
        decay_range: Balance the weight decay too: its scales at the smallest and at the largest score.
    """

    reference: str | None = None
    windows: str | None = None
    keep_mean: bool = False
    shrink: bool = False
    smooth: float = 0.0
    blend: int = 1
    group_by: str | None = None
    decay_range: tuple[float, float] | None = None

    @classmethod
    def checked(cls, options: Mapping[str, Any], *, where: str = "") -> dict[str, Any]:
        """As of every recipe; windows may be a number."""
        if type(options.get("windows")) is int:
            options = {**options, "windows": str(options["windows"])}
        return super().checked(options, where=where)

    def scores_after(self, epoch: int) -> bool:
        """Whether layers are noted after an epoch; epoch 0 is before training."""
        return True


COUNT: Rule = ("at least 1", lambda value: value >= 1)
_SHARED = ("seed", "lr", "batch_size", "scale_range", "interval", "tail_fraction", "min_eigenvalues")


@dataclass(frozen=True)
class IterationsRecipe(BalancingRecipe):
    """Base of recipes that count in iterations.

    Attributes:
        method: An optimizer, alone or with ``tb+`` before it, with a cosine.
        seed: All randomness of the training follows from it.
        iterations: How long, in steps of the optimizer.
        lr: Initial learning rate.
        batch_size: Examples a step.
        scale_range: Smallest and largest scale of a balanced method.
        interval: Iterations between balancings; without balancing layers are scored with every evaluation.
        tail, tail_fraction, score, assignment, score_first, score_last, min_eigenvalues: As for
            `tempbalance.TempBalance`.
        evaluate_every: Iterations between evaluations, each of which is an epoch in the run's logs.
    """

    rules: ClassVar = {
        **{name: RULES[name] for name in _SHARED},
        **BALANCING_RULES,
        **dict.fromkeys(("iterations", "evaluate_every"), COUNT),
    }
    choices: ClassVar = {"tail": TAILS, "score": SCORES, "assignment": ASSIGNMENTS}

    method: str = "tb+adam"
    seed: int = 43
    iterations: int = 1000
    lr: float = 1e-3
    batch_size: int = 16
    scale_range: tuple[float, float] = (0.5, 1.5)
    interval: int = 50
    tail: str = "median"
    tail_fraction: float = 0.5
    score: str = "alpha"
    assignment: str = "linear"
    score_first: bool = False
    score_last: bool = False
    min_eigenvalues: int = 50
    evaluate_every: int = 100

    @property
    def num_epochs(self) -> int:
        """How many evaluations there are."""
        return math.ceil(self.iterations / self.evaluate_every)

    @property
    def is_balanced(self) -> bool:
        """Whether layers get scales; otherwise they are only scored."""
        return find_method(self.method).balanced

    @property
    def unused(self) -> set[str]:
        """Options of balancing, where there is none."""
        return set() if self.is_balanced else {"interval", *UNUSED_ALONE}


def find_kind(name: str) -> type[BaseRecipe]:
    """The recipe of a kind.

    Raises:
        ValueError: If there is no such kind; it names the closest.
    """
    if name not in _KINDS:
        raise ValueError(unknown("kind", name, _KINDS))
    module, _, attribute = _KINDS[name].rpartition(".")
    found: type[BaseRecipe] = getattr(import_module(f"tempbalance.lab.{module}"), attribute)
    return found


def training_module(kind: str) -> str:
    """Return the name of the module that trains a kind."""
    return f"tempbalance.lab.{_KINDS[kind].partition('.')[0]}.training"


def make_recipe(options: Mapping[str, Any]) -> BaseRecipe:
    """A recipe from its options, of images where ``kind`` does not say otherwise.

    Raises:
        ValueError: If the kind is not known, or an option is not as it should be.
    """
    kind = options.get("kind", "images")
    return find_kind(str(kind)).from_dict({name: value for name, value in options.items() if name != "kind"})


def recipe_dict(recipe: BaseRecipe) -> dict[str, Any]:
    """A recipe's options as `make_recipe` takes them."""
    return recipe.to_dict() if recipe.kind == "images" else {"kind": recipe.kind, **recipe.to_dict()}


def differences(saved: BaseRecipe, wanted: BaseRecipe) -> list[str]:
    """The options in which two recipes of a kind differ, in words; those that matter in neither are left out."""
    ours, theirs, names = wanted.to_dict(), saved.to_dict(), {*saved.key, *wanted.key}
    return [
        f"{name}: {theirs[name]!r} in the folder, {value!r} asked for"
        for name, value in ours.items()
        if name in names and theirs[name] != value
    ]


def read_recipe(path: Path, kind: type[BaseRecipe]) -> dict[str, Any]:
    """The options of a kind in a YAML or JSON file, checked; a run's ``recipe.json`` is one.

    Raises:
        ValueError: If the file does not hold options by name, or one of them is not as it should be; it names the file.
    """
    options = read_options(path)
    options.pop("kind", None)
    return kind.checked(options, where=f"{path}: ")
