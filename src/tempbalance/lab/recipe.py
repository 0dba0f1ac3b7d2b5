"""Recipes, complete configurations of runs: the paper's methods, base classes of the kinds, and the kinds by name."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from tempbalance.errors import quoted, unknown
from tempbalance.lab import options
from tempbalance.lab.options import ASSIGNMENTS, BALANCING, CONTROLS, Count, explain, read_options, scales_by_kind

# The recipe of each kind. Its package also has the module ``training``; both are loaded on first use.
_KINDS = {
    "images": "images.recipe.ImageRecipe",
    "language": "language.recipe.LanguageRecipe",
    "matrices": "matrices.recipe.MatricesRecipe",
    "operator": "operators.recipe.OperatorRecipe",
    "detection": "detection.recipe.DetectionRecipe",
    "encoder": "encoder.recipe.EncoderRecipe",
}

T = TypeVar("T", bound="BaseRecipe")

SEEDS = (43, 37, 13, 51, 71)  # the paper's


@dataclass(frozen=True)
class Method:
    """How to train: which optimizer, with scales for layers, a spectral norm regulariser, restarts of the cosine."""

    optimizer: str = "sgd"
    balanced: bool = False
    regularized: bool = False
    restarts: bool = False


METHODS: dict[str, Method] = {
    "cal": Method(),
    "snr": Method(regularized=True),
    "tb": Method(balanced=True),
    "tb+snr": Method(balanced=True, regularized=True),
    "sgdr": Method(restarts=True),
    "lars": Method("lars"),
    "lookahead": Method("lookahead"),
    "sgdp": Method("sgdp"),
    "tb+sgdp": Method("sgdp", balanced=True),
    "adam": Method("adam"),
    "adamw": Method("adamw"),
    "adamp": Method("adamp"),
    "lamb": Method("lamb"),
    "tb+adam": Method("adam", balanced=True),
    "tb+adamw": Method("adamw", balanced=True),
}


def find_method(name: str) -> Method:
    """Return a method by its name; ``tb+`` balances any other method, but balanced ``cal`` is called ``tb``."""
    if name in METHODS:
        return METHODS[name]
    base = METHODS.get(name.removeprefix("tb+"))
    if base is None:
        raise ValueError(unknown("method", name, METHODS))
    method = replace(base, balanced=True)
    if same := [known for known, each in METHODS.items() if each == method]:
        raise ValueError(f"unknown method {name!r}: it is called {same[0]!r}")
    return method


@dataclass(frozen=True)
class Measure:
    """Number by which a complete run is judged; ``points`` is the unit of a difference between two values."""

    name: str
    word: str
    unit: str = ""
    points: str = ""
    is_lower_better: bool = False

    @property
    def title(self) -> str:
        """Heading of a column: the word and the unit."""
        return self.with_unit(self.word)

    def with_unit(self, word: str) -> str:
        """Return a heading with the unit of its numbers."""
        return f"{word}, {self.unit}" if self.unit else word

    def text(self, value: float) -> str:
        """Return a value on a test set as part of a sentence."""
        return f"test {self.word} {value:.2f}{f' {self.unit}' if self.unit else ''}"

    def sign(self, value: float) -> float:
        """Return a value, or a difference, with the sign for which more is better."""
        return -value if self.is_lower_better else value


ACCURACY = Measure("test_accuracy", "accuracy", "%", "points")


class BaseRecipe(BaseModel):
    """Base of all recipes. Each field is an option: its type and range, its help text (a string) and its default."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    kind: ClassVar[str]  # its name in _KINDS
    known_data: ClassVar[Collection[str]] = ()  # datasets by name, which do not change
    data_options: ClassVar[tuple[str, ...]] = ("dataset", "limit", "test_limit")  # those that `load` reads
    measure: ClassVar[Measure]
    result_names: ClassVar[tuple[str, ...]]  # numbers in the result of a complete run
    is_float32: ClassVar[bool] = False  # whether runs train in 32-true only
    is_distributable: ClassVar[bool] = False  # whether several devices can train one run

    dataset: str
    model: str
    method: str
    seed: options.Seed = SEEDS[0]

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        for field in cls.model_fields.values():
            for text in (each for each in field.metadata if isinstance(each, str)):
                field.description = text  # the last, of those of an option and of its type

    def __init__(self, **options: Any) -> None:
        try:
            super().__init__(**options)
        except ValidationError as err:
            raise ValueError(explain(err, type(self).model_fields, options)) from None

    def model_post_init(self, context: Any) -> None:
        vars(self).update(self.resolved())

    def resolved(self) -> Mapping[str, Any]:
        """Return the options that follow from others, if they go together, such as the learning rate of a method."""
        return {}

    @property
    def num_epochs(self) -> int:
        """Number of epochs; ``metrics.jsonl`` has a line for each."""
        number: int = vars(self)["epochs"]
        return number

    @property
    def best_by(self) -> str:
        """Metric on validation data that chooses the best epoch; empty for the measure on the test set."""
        return ""

    @property
    def unused(self) -> set[str]:
        """Options without effect, given the others."""
        return set()

    @property
    def pace(self) -> tuple[Any, ...]:
        """Options that determine the time of an epoch."""
        raise NotImplementedError

    @property
    def data_text(self) -> str:
        raise NotImplementedError

    @property
    def size_text(self) -> str:
        """The network's size and the duration in words, separated by a semicolon."""
        raise NotImplementedError

    def check_data(self) -> None:
        """Refuse data that are neither known nor there, before anything starts."""
        raise NotImplementedError

    def load(self, cache: Path | None = None) -> Any:
        """Return the data, which have a ``digest()``; downloads are kept in the cache."""
        raise NotImplementedError

    @property
    def has_own_data(self) -> bool:
        """Whether the data are a user's own, which can change, and exist."""
        return self.dataset not in self.known_data and Path(self.dataset).expanduser().exists()

    def own_digest(self) -> str | None:
        """Return the checksum of a user's own data, which can change; ``None`` for known data."""
        if not self.has_own_data:
            return None
        return _own_digest(type(self), tuple((name, getattr(self, name)) for name in self.data_options))

    @property
    def name(self) -> str:
        return "-".join([Path(self.dataset).stem[:60], Path(self.model).stem, self.method, str(self.seed)])

    @property
    def key(self) -> dict[str, Any]:
        """The run's identity: the options that have an effect and differ from their defaults."""
        defaults, unused = {name: each.default for name, each in type(self).model_fields.items()}, self.unused
        return {name: value for name, value in vars(self).items() if value != defaults[name] and name not in unused}

    @property
    def id(self) -> str:
        """The name with a checksum of the key: the same for recipes that train the same."""
        return f"{self.name}-{hashlib.sha256(json.dumps(self.key, sort_keys=True).encode()).hexdigest()[:8]}"

    def to_dict(self) -> dict[str, Any]:
        """Return all options as plain values."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()}

    @classmethod
    def from_dict(cls: type[T], options: Mapping[Any, Any]) -> T:
        return cls(**{str(name): value for name, value in options.items()})


@lru_cache(maxsize=4)
def _own_digest(kind: type[BaseRecipe], options: tuple[tuple[str, Any], ...]) -> str:
    digest: str = kind(**dict(options)).load().digest()
    return digest


# Options of scoring. min_eigenvalues is not among them: some studies use it after training.
_SCORING = {
    "tail", "tail_fraction", "score", "interval", "interval_steps", "start", "score_first", "score_last", "reference",
    "windows",
}  # fmt: skip


class ScoredRecipe(BaseRecipe):
    """Base of recipes whose layers are scored, and balanced if the method says so. Defaults are the paper's."""

    scale_range: options.ScaleRange = (0.5, 1.5)
    tail: Annotated[options.Tail, "How to fit the tail of a spectrum.", BALANCING] = "median"
    tail_fraction: Annotated[
        options.Fraction, "Share of the eigenvalues in the tail, with a median tail.", BALANCING
    ] = 0.5
    score: Annotated[options.Score, "Number that ranks the layers.", BALANCING] = "alpha"
    assignment: Annotated[
        options.Assignment,
        f"Rule from scores to scales: {', '.join(ASSIGNMENTS)}; a control: shuffled, mean; or scales by kind of layer: "
        "embedding=5,head=5.",
        BALANCING,
    ] = "linear"
    interval: Annotated[Count, "Epochs between scorings.", BALANCING] = 1
    score_first: Annotated[bool, "Score the first layer too.", BALANCING] = False
    score_last: Annotated[bool, "Score the last layer too.", BALANCING] = False
    min_eigenvalues: Annotated[Count, "Skip layers with fewer eigenvalues.", BALANCING] = 50
    score_baseline: options.ScoreBaseline = True

    @property
    def control(self) -> str:
        """The control that the assignment is: ``shuffled``, ``mean`` or ``by type``; empty for TB itself."""
        word = self.assignment.partition(":")[0]
        if not self.is_balanced:
            return ""
        return "by type" if "=" in word else word if word in CONTROLS else ""

    @property
    def name(self) -> str:
        return super().name + self.name_end

    @property
    def name_end(self) -> str:
        """End of a control's name."""
        return f"-{self.control.replace(' ', '-')}" if self.control else ""

    @property
    def library_assignment(self) -> str | dict[str, float]:
        """The assignment as the library takes it; scales are shuffled by the run's seed unless another is given."""
        text = self.assignment
        if self.control == "by type":
            return scales_by_kind(text)
        if self.control == "shuffled" and text.count(":") < 2:
            return f"{text}:{self.seed}" if ":" in text else f"{text}:linear:{self.seed}"
        return text

    @property
    def is_balanced(self) -> bool:
        """Whether layers get scales; otherwise they are only scored, if at all."""
        return find_method(self.method).balanced

    @property
    def is_scored(self) -> bool:
        return self.is_balanced or self.score_baseline

    @property
    def unused(self) -> set[str]:
        if self.is_balanced:
            return {"score_baseline"}
        return {"scale_range", "assignment"} | (set() if self.is_scored else _SCORING)


class BalancingRecipe(ScoredRecipe):
    """Base of recipes that have the balancing options beyond the paper, as in `tempbalance.Comparison`."""

    reference: Annotated[options.Reference | None, "Kind of matrix whose alpha divides the layer's.", BALANCING] = None
    windows: Annotated[
        options.Windows, "Pool the eigenvalues of square windows of a matrix: square, or their side.", BALANCING
    ] = None
    keep_mean: Annotated[bool, "Divide scales by their mean, so that they average to 1.", BALANCING] = False
    shrink: Annotated[bool, "Shrink uncertain scores towards the mean.", BALANCING] = False
    smooth: Annotated[options.Share, "Weight of the earlier scores in a moving average.", BALANCING] = 0.0
    blend: Annotated[Count, "Epochs over which new scales are reached.", BALANCING] = 1
    group_by: Annotated[
        options.NamePattern | None, "Give one score to all layers whose names begin like this pattern.", BALANCING
    ] = None
    decay_range: Annotated[
        options.DecayRange | None,
        "Balance the weight decay too: its scales at the smallest and at the largest score.",
        BALANCING,
    ] = None

    @property
    def unused(self) -> set[str]:
        more = set() if self.is_balanced else {"keep_mean", "shrink", "smooth", "blend", "group_by", "decay_range"}
        return super().unused | more

    def scores_after(self, epoch: int) -> bool:
        """Whether layers are logged after an epoch; epoch 0 is before training."""
        return self.is_scored


class IterationsRecipe(BalancingRecipe):
    """Base of recipes that count in iterations. A method is an optimizer with a cosine schedule."""

    iterations: options.Iterations = 1000
    lr: options.LearningRate = 1e-3
    batch_size: options.BatchSize = 16
    interval: options.IterationInterval = 50
    blend: Annotated[Count, "Iterations over which new scales are reached.", BALANCING] = 1
    stop: Annotated[Count | None, "Iterations after which scales stay as they are.", BALANCING] = None
    score_embeddings: Annotated[bool, "Score embeddings too.", BALANCING] = False
    evaluate_every: options.EvaluateEvery = 100

    @property
    def num_epochs(self) -> int:
        """Number of evaluations."""
        return math.ceil(self.iterations / self.evaluate_every)

    @property
    def unused(self) -> set[str]:
        return super().unused | (set() if self.is_balanced else {"interval", "stop", "score_embeddings"})


def find_kind(name: str) -> type[BaseRecipe]:
    """Return the recipe class of a kind."""
    if name not in _KINDS:
        raise ValueError(unknown("kind", name, _KINDS))
    module, _, attribute = _KINDS[name].rpartition(".")
    found: type[BaseRecipe] = getattr(import_module(f"tempbalance.lab.{module}"), attribute)
    return found


def training_module(kind: str) -> str:
    """Return the name of the module that trains a kind."""
    return f"tempbalance.lab.{_KINDS[kind].partition('.')[0]}.training"


def make_recipe(options: Mapping[Any, Any]) -> BaseRecipe:
    """Make a recipe from its options; its kind is images unless ``kind`` names another."""
    kind = options.get("kind", "images")
    if not isinstance(kind, str):
        raise ValueError(f"kind must be text, got {quoted(kind)}")
    return find_kind(kind).from_dict({name: value for name, value in options.items() if name != "kind"})


def recipe_dict(recipe: BaseRecipe) -> dict[str, Any]:
    """Return a recipe's options in the form that `make_recipe` takes."""
    return recipe.to_dict() if recipe.kind == "images" else {"kind": recipe.kind, **recipe.to_dict()}


def read_recipe(path: Path) -> dict[Any, Any]:
    """Read and check the options in a YAML or JSON file, such as a run's ``recipe.json``."""
    options = read_options(path)
    try:
        make_recipe(options)
    except ValueError as err:
        raise ValueError(f"{path}: {err}") from err
    return options
