"""The options of a recipe, one by one: their types and ranges, and files that hold them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin

from tempbalance.lab.methods import find_method, unknown

# Names that torch need not be loaded to know; tests hold them to those of the library.
DATASETS = ("digits", "fashion_mnist", "mnist", "cifar10", "cifar100", "svhn", "tiny_imagenet")
NUM_IMAGES = {
    "digits": (1438, 359), "fashion_mnist": (60_000, 10_000), "mnist": (60_000, 10_000), "cifar10": (50_000, 10_000),
    "cifar100": (50_000, 10_000), "svhn": (73_257, 26_032), "tiny_imagenet": (100_000, 10_000),
}  # fmt: skip
MODELS = ("resnet18", "resnet34", "resnet50", "resnet101", "vgg16", "vgg19", "wrn16_8", "wrn28_6", "mlp")
TAILS = ("median", "median_published", "goodness_of_fit", "peak")
SCORES = (
    "alpha", "alpha_weighted", "log_alpha_norm", "spectral_norm", "stable_rank", "frobenius_norm", "entropy",
)  # fmt: skip
ASSIGNMENTS = ("linear", "sqrt", "log2", "step", "sigmoid", "power")

CHOICES = {"model": MODELS, "tail": TAILS, "score": SCORES, "assignment": ASSIGNMENTS}

Rule = tuple[str, Callable[[Any], bool]]  # in words, and whether a value keeps it

RULES: dict[str, Rule] = {
    "dataset": ("a name or a path", bool),
    "method": ("a known method", lambda value: bool(find_method(value))),  # which raises with the closest
    "width": ("> 0", lambda value: value > 0),
    "seed": ("at least 0 and below 2**64", lambda value: 0 <= value < 2**64),
    "lr": ("> 0", lambda value: value > 0),
    "momentum": ("at least 0 and below 1", lambda value: 0 <= value < 1),
    "weight_decay": ("at least 0", lambda value: value >= 0),
    "scale_range": ("two numbers with 0 < low <= high", lambda value: 0 < value[0] <= value[1]),
    "tail_fraction": ("above 0 and below 1", lambda value: 0 < value < 1),
    "start": ("at least 0", lambda value: value >= 0),
    "snr": ("at least 0", lambda value: value >= 0),
    "lookahead_alpha": ("above 0 and below 1", lambda value: 0 < value < 1),
    **dict.fromkeys(
        (
            "epochs", "stop_after", "batch_size", "interval", "min_eigenvalues", "restart_epochs", "restart_factor",
            "lookahead_steps", "limit", "test_limit", "interval_steps", "log_steps",
        ),
        ("at least 1", lambda value: value >= 1),
    ),
}  # fmt: skip

_KINDS = {str: "text", int: "a whole number", float: "a finite number", bool: "true or false", tuple: "two numbers"}


def check_options(
    options: Mapping[str, Any],
    hints: Mapping[str, Any],
    *,
    rules: Mapping[str, Rule] = RULES,
    choices: Mapping[str, Sequence[str]] = CHOICES,
    where: str = "",
) -> dict[str, Any]:
    """Options with each value in its type, checked one by one.

    Args:
        options: Values by name. Whole numbers and numbers in text do where a number is asked for.
        hints: The type of each known option.
        rules: What values must be beside that; those of images, unless told.
        choices: The values of options that have only some; likewise.
        where: Goes before a message: what the options are from.

    Raises:
        ValueError: If an option is not known, or its value has another type or is out of range; it names them.
    """
    checked = {}
    for name, value in options.items():
        if name not in hints:
            raise ValueError(where + unknown("option", str(name), hints))
        try:
            checked[name] = _check(name, _convert(name, value, hints[name]), rules, choices)
        except ValueError as err:
            raise ValueError(f"{where}{err}") from err
    return checked


def _convert(name: str, value: Any, hint: Any) -> Any:
    """The value of an option in the type of its hint.

    Raises:
        ValueError: If it is of another.
    """
    if value is None and NoneType in get_args(hint):
        return None
    inner = hint if get_origin(hint) is tuple else next(iter(get_args(hint)), hint)
    kind = get_origin(inner) or inner
    if kind is tuple and isinstance(value, list | tuple) and len(value) == 2:
        return tuple(_convert(name, each, float) for each in value)
    if kind is float and not isinstance(value, bool):
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if math.isfinite(number):
            return number
    elif kind is not tuple and isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
        return value
    raise ValueError(f"{name} must be {_KINDS[kind]}, got {value!r}")


def _check(name: str, value: Any, rules: Mapping[str, Rule], choices: Mapping[str, Sequence[str]]) -> Any:
    """A value of the right type, if it is in the range of its option; datasets in one way of writing.

    Raises:
        ValueError: If it is not.
    """
    if name in choices and value not in choices[name]:
        raise ValueError(unknown(name, value, choices[name]))
    rule, holds = rules.get(name, ("", lambda _: True))
    if value is not None and not holds(value):
        raise ValueError(f"{name} must be {rule}, got {value!r}")
    return str(Path(value)) if name == "dataset" and value not in DATASETS else value


def check_dataset(name: str) -> None:
    """Refuse a dataset that is neither known nor the path of anything.

    Raises:
        ValueError: It names the closest known ones.
    """
    if name not in DATASETS and not Path(name).expanduser().exists():
        told = unknown("dataset", name, DATASETS)
        raise ValueError(f"{told}; or the path of an .npz file or of a folder with train and test folders")


def read_options(path: Path) -> dict[Any, Any]:
    """What a JSON or YAML file says by name; of a run's ``recipe.json`` its recipe.

    Raises:
        ValueError: If the file is neither, holds something else, or says anything twice; it names the file.
    """
    try:
        text = path.read_text(encoding="utf-8")
        try:
            content = json.loads(text, object_pairs_hook=_once)
        except json.JSONDecodeError:
            content = _read_yaml(text)
    except ValueError as err:
        raise ValueError(f"{path}: {err}") from err
    if isinstance(content, dict) and "recipe" in content:
        content = content["recipe"]
    if not isinstance(content, dict):
        got = "nothing" if content is None else type(content).__name__
        raise ValueError(f"{path}: a recipe must be options by name, got {got}")
    return content


def _once(pairs: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    """A dictionary of pairs.

    Raises:
        ValueError: If a name comes twice.
    """
    found: dict[Any, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"an option must be given once, got {name!r} twice")
        found[name] = value
    return found


def _read_yaml(text: str) -> Any:
    """What a YAML document says.

    Raises:
        ValueError: If it is none; it tells the place.
    """
    import yaml  # type: ignore[import-untyped]

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        """Refuses names that come twice, which the plain one takes the last of."""

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            pairs = [
                (self.construct_object(key, True), self.construct_object(value, True)) for key, value in node.value
            ]
            return _once(pairs)

    try:
        return yaml.load(text, Loader)
    except (yaml.YAMLError, TypeError) as err:  # TypeError: a name that is a list
        raise ValueError(f"neither JSON nor YAML: {' '.join(str(err).split())}") from err
