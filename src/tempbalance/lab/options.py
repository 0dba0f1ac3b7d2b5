"""Types, ranges and help texts of a recipe's options, and files that hold options.

An option is declared once, as a field of a recipe: its type with its range, its help text and its default. Flags,
errors, ``recipe.json``, a run's id and docs/options.md follow from that declaration.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import AfterValidator, BeforeValidator, Field, GetCoreSchemaHandler, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, core_schema

from tempbalance.errors import quoted, unknown
from tempbalance.report.text import shown

_LARGEST_FILE = 200_000  # bytes; a recipe has about a thousand
_DEEPEST = 50  # levels of nesting in YAML


@dataclass(frozen=True)
class Panel:
    """Heading of the help under which an option stands."""

    title: str


BALANCING, METHOD, LOGGING = Panel("Balancing"), Panel("Method"), Panel("Logging")


@dataclass(frozen=True)
class Rule:
    """Condition on a value, in words and as a function."""

    words: str
    holds: Callable[[Any], bool]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Check the rule after the type."""
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def _check(self, value: Any) -> Any:
        if not self.holds(value):
            raise ValueError
        return value


def _number(value: Any) -> Any:
    """Convert whole numbers, and text such as YAML makes of 5e-5."""
    if isinstance(value, bool):
        raise ValueError
    try:
        return float(value) if isinstance(value, int | str) else value
    except (ValueError, OverflowError):
        raise ValueError from None


def _pair(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


# Bounds are far above every sensible value: they refuse typing errors before a network of terabytes is built.
Count = Annotated[int, Field(ge=1, le=10**9)]
Size = Annotated[int, Field(ge=1, le=100_000)]
Number = Annotated[float, BeforeValidator(_number)]
NotNegative = Annotated[Number, Field(ge=0, le=1e30)]
Share = Annotated[Number, Field(ge=0, lt=1)]
Fraction = Annotated[Number, Field(gt=0, lt=1)]
Pair = Annotated[tuple[Number, Number], BeforeValidator(_pair)]

# Known images, with the number of images for training and for the test; tests compare them with the loaders.
NUM_IMAGES = {
    "digits": (1438, 359), "fashion_mnist": (60_000, 10_000), "mnist": (60_000, 10_000), "cifar10": (50_000, 10_000),
    "cifar100": (50_000, 10_000), "svhn": (73_257, 26_032), "tiny_imagenet": (100_000, 10_000),
}  # fmt: skip
DATASETS = tuple(NUM_IMAGES)

# Names of the library, which is not imported because it loads torch; tests compare them.
Tail = Literal["median", "median_published", "goodness_of_fit", "peak"]
Score = Literal[
    "alpha", "alpha_weighted", "log_alpha_norm", "spectral_norm", "stable_rank", "frobenius_norm", "entropy"
]
ASSIGNMENTS = ("linear", "sqrt", "log2", "step", "sigmoid", "power")
CONTROLS = ("shuffled", "mean")
LAYER_KINDS = ("embedding", "attention", "feed-forward", "head", "convolution")
Reference = Literal["random"]


def scales_by_kind(text: str) -> dict[str, float]:
    """Read scales by kind of layer.

    Example:
        >>> scales_by_kind("embedding=5,head=5")
        {'embedding': 5.0, 'head': 5.0}
    """
    return {kind: float(scale) for kind, _, scale in (each.partition("=") for each in text.split(","))}


def _is_assignment(text: str) -> bool:
    if "=" in text:
        try:
            scales = scales_by_kind(text)
        except ValueError:
            return False
        return all(kind in LAYER_KINDS and 0 < scale <= 1e6 for kind, scale in scales.items())
    control, base, seed, *more = (*text.split(":"), *("", "linear", "0")[text.count(":") + 1 :])
    is_control = control in CONTROLS and base in ASSIGNMENTS and seed.isdecimal() and not more
    return text in ASSIGNMENTS or is_control


Assignment = Annotated[
    str,
    Rule(
        f"one of {', '.join(ASSIGNMENTS)}, a control such as shuffled, mean or shuffled:sqrt:7, or scales by kind of "
        "layer such as embedding=5,head=5",
        _is_assignment,
    ),
]

# Options that several kinds of runs have, each with its own default.
Place = Annotated[str, Rule("a name or a path", bool), AfterValidator(lambda value: str(Path(value)))]
Seed = Annotated[
    int,
    Rule("a whole number from 0 to 2**64 - 1", lambda value: 0 <= value < 2**64),
    "Seed of all randomness.",
]
Epochs = Annotated[Count, "Number of epochs."]
LearningRate = Annotated[Number, Field(gt=0, le=1e30), "Initial learning rate."]
BatchSize = Annotated[Count, "Examples per optimizer step, over all devices."]
WeightDecay = Annotated[NotNegative, "Weight decay of the optimizer."]
Betas = Annotated[
    Pair,
    Rule("two numbers, at least 0 and below 1", lambda value: all(0 <= each < 1 for each in value)),
    "Decay rates of Adam's two averages.",
    METHOD,
]
Epsilon = Annotated[Number, Field(gt=0, le=1), "Adam's epsilon.", METHOD]
Iterations = Annotated[Count, "Number of optimizer steps."]
IterationInterval = Annotated[Count, "Iterations between balancings.", BALANCING]
EvaluateEvery = Annotated[Count, "Iterations between evaluations, each of which ends an epoch of the logs."]
ScoreBaseline = Annotated[bool, "Score the layers of a method that does not balance, for layers.jsonl.", BALANCING]
Start = Annotated[int, Field(ge=0, le=10**9), "Epochs before the first scoring.", BALANCING]
Limit = Annotated[Count | None, "Train and test on at most this many images each."]
TestLimit = Annotated[Count | None, "Test on at most this many images. Default: the value of limit."]
ScaleRange = Annotated[
    Pair,
    Rule("two numbers with 0 < low <= high <= 1e6", lambda value: 0 < value[0] <= value[1] <= 1e6),
    "Smallest and largest scale of a balanced method.",
    BALANCING,
]
DecayRange = Annotated[
    Pair, Rule("two numbers above 0 and at most 1e6", lambda value: 0 < min(value) <= max(value) <= 1e6)
]
NamePattern = Annotated[str, Rule("a name pattern", bool)]


def is_side(text: str) -> bool:
    """Whether a text is the side of a window."""
    return text.isdecimal() and int(text) >= 2


Windows = Annotated[
    Annotated[str, Rule("'square' or a whole number of at least 2", lambda value: value == "square" or is_side(value))]
    | None,
    BeforeValidator(lambda value: str(value) if type(value) is int else value),
]


def check_dataset(name: str) -> None:
    """Refuse a dataset that is neither known nor a path."""
    if name not in DATASETS and not Path(name).expanduser().exists():
        sentence = unknown("dataset", name, DATASETS)
        raise ValueError(f"{sentence}; or the path of an .npz file or of a folder with train and test folders")


def _plain(hint: Any) -> Any:
    """Return a type without its annotations and without ``None``."""
    return _plain(get_args(hint)[0]) if get_origin(hint) in (Annotated, Union, UnionType) else hint


def choices_of(hint: Any) -> tuple[Any, ...]:
    """Return the values of an option that has only a few; an empty tuple for others."""
    return get_args(_plain(hint)) if get_origin(_plain(hint)) is Literal else ()


def type_of(hint: Any) -> Any:
    """Return the plain type of an option: str, int, float, bool or tuple."""
    choices = choices_of(hint)
    return type(choices[0]) if choices else get_origin(_plain(hint)) or _plain(hint)


def allowed(field: FieldInfo) -> str:
    """Return the values that an option takes, in words."""
    return _words(field.annotation, field.metadata)


_TYPES = {str: "text", int: "a whole number", float: "a finite number", bool: "true or false", tuple: "two numbers"}
_LIMITS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}


def _words(hint: Any, metadata: Iterable[Any]) -> str:
    if get_origin(hint) is Annotated:
        hint, *more = get_args(hint)
        metadata = [part for each in more for part in (each.metadata if isinstance(each, FieldInfo) else [each])]
    for each in metadata:
        if isinstance(each, Rule):
            return each.words
    if get_origin(hint) in (Union, UnionType):
        inner = [each for each in get_args(hint) if each is not NoneType]
        return f"{_words(inner[0], metadata)}, or null"
    if choices := choices_of(hint):
        return f"{'one of ' if len(choices) > 1 else ''}{', '.join(map(str, choices))}"
    limits = {
        name: f"{value:,}" if isinstance(value, int) else f"{value:g}"
        for each in metadata
        for name in _LIMITS
        if (value := getattr(each, name, None)) is not None
    }
    text = " and ".join(f"{_LIMITS[name]} {value}" for name, value in limits.items())
    if limits.keys() == {"ge", "le"}:
        text = f"from {limits['ge']} to {limits['le']}"
    return f"{_TYPES[type_of(hint)]} {text}".strip()


def explain(err: ValidationError, fields: Mapping[str, FieldInfo], given: Mapping[str, Any]) -> str:
    """Return the first error about an option in one line: the option, its rule and the value, or the closest name."""
    first = err.errors(include_url=False)[0]
    name = str(first["loc"][0]) if first["loc"] else ""
    if first["type"] == "extra_forbidden":
        return unknown("option", name, fields)
    cause = first.get("ctx", {}).get("error")
    if cause is not None and str(cause):
        return str(cause)
    value, choices = given.get(name), choices_of(fields[name].annotation)
    if isinstance(value, str) and str in map(type, choices):
        return unknown(name, value, choices)
    return f"{name} must be {allowed(fields[name])}, got {quoted(value)}"


def read_options(path: Path) -> dict[Any, Any]:
    """Read options by name from a JSON or YAML file; from a run's ``recipe.json``, its recipe."""
    try:
        content = _parse(_read(path))
    except (ValueError, RecursionError) as err:
        reason = "nested too deeply" if isinstance(err, RecursionError) else err
        raise ValueError(f"{path}: {reason}") from err
    if isinstance(content, dict) and "recipe" in content:
        content = content["recipe"]
    if not isinstance(content, dict):
        got = "nothing" if content is None else type(content).__name__
        raise ValueError(f"{path}: a recipe must be options by name, got {got}")
    return content


def _read(path: Path) -> str:
    if path.exists() and not path.is_file():  # a pipe would be waited for
        raise ValueError("must be a regular file")
    with path.open("rb") as file:
        content = file.read(_LARGEST_FILE + 1)
    if len(content) > _LARGEST_FILE:
        raise ValueError(f"must have at most {_LARGEST_FILE:,} bytes")
    return content.decode()


def _parse(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_once)
    except json.JSONDecodeError:
        pass
    import yaml  # type: ignore[import-untyped]

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        """Refuses a name that comes twice; PyYAML would take the last."""

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            return _once(
                (self.construct_object(name, True), self.construct_object(each, True)) for name, each in node.value
            )

    try:
        _check_depth(yaml.parse(text, Loader))
        return yaml.load(text, Loader)
    except (yaml.YAMLError, TypeError) as err:  # TypeError: a name that is a list
        raise ValueError(f"neither JSON nor YAML: {' '.join(str(err).split())[:200]}") from err


def _check_depth(events: Iterable[Any]) -> None:
    """Refuse deep nesting, which would crash the parser."""
    depth = 0
    for event in events:
        name = type(event).__name__
        depth += name.endswith("StartEvent") - name.endswith("EndEvent")
        if depth > _DEEPEST:
            raise ValueError("nested too deeply")


def _once(pairs: Iterable[Iterable[Any]]) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"an option must be given once, got {quoted(name)} twice")
        found[name] = value
    return found


# The paper's spelling
_NAMES = {
    "cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "svhn": "SVHN", "tiny_imagenet": "Tiny ImageNet",
    "digits": "digits", "fashion_mnist": "Fashion-MNIST", "mnist": "MNIST",
    "resnet18": "ResNet18", "resnet34": "ResNet34", "resnet50": "ResNet50", "resnet101": "ResNet101",
    "vgg16": "VGG16", "vgg19": "VGG19", "wrn16_8": "WRN16-8", "wrn28_6": "WRN28-6", "mlp": "MLP",
    "penn_treebank": "Penn Treebank", "pydoc": "Python's help", "voc2007": "PASCAL VOC 2007", "shapes": "drawn shapes",
    "burgers": "Burgers", "fno": "FNO",
    "gpt": "GPT", "llama": "LLaMA", "bert": "BERT", "bert_lora": "BERT with LoRA",
    "yolov8n": "YOLOv8n", "yolov8n.yaml": "YOLOv8n, random weights",
    "lookahead": "Lookahead", "adam": "Adam", "adamw": "AdamW", "adamp": "AdamP",
    **{name: name.upper() for name in ("cal", "snr", "tb", "sgdr", "lars", "sgdp", "lamb")},
}  # fmt: skip


def pretty(value: Any) -> str:
    """Return the value of an option as the paper writes it.

    Example:
        >>> pretty("tb+snr"), pretty("wrn16_8"), pretty((0.5, 1.5)), pretty(0.1), pretty("data/own.npz")
        ('TB+SNR', 'WRN16-8', '(0.5, 1.5)', '0.1', 'own')
    """
    if isinstance(value, tuple | list):
        return f"({', '.join(map(pretty, value))})"
    if isinstance(value, float):
        return f"{value:g}"
    if not isinstance(value, str):
        return str(value)
    if ", " in value:
        first, _, others = value.partition(", ")
        return f"{pretty(first)}, {others}"
    if value.startswith("tb+"):
        return f"TB+{pretty(value.removeprefix('tb+'))}"
    name = Path(value).stem if value.endswith((".npz", "/")) or "/" in value else value
    return _NAMES.get(value, shown(name))
