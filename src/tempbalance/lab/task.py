"""What a run is to do: the part that recipes of every kind have in common."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar, get_type_hints

from tempbalance.lab.methods import unknown
from tempbalance.lab.names import Measure
from tempbalance.lab.options import Rule, check_options, read_options

T = TypeVar("T", bound="Task")


_HINTS: dict[type, dict[str, Any]] = {}  # of kinds, once asked for: to work them out takes milliseconds


@dataclass(frozen=True)
class Task:
    """Base of recipes. One is a frozen dataclass of options, among them ``dataset``, ``model``, ``method``, ``seed``.

    Attributes:
        kind: Which kind of run it is; `tempbalance.lab.kinds` knows them all.
        measure: What runs are judged by.
        rules: What each option must be beside its type, as words and a function.
        choices: Options with known values.
        result_names: The numbers that a complete run's result has.
    """

    kind: ClassVar[str]
    measure: ClassVar[Measure]
    rules: ClassVar[Mapping[str, Rule]]
    choices: ClassVar[Mapping[str, Sequence[str]]]
    result_names: ClassVar[tuple[str, ...]]

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


def differences(saved: Task, wanted: Task) -> list[str]:
    """The options in which two recipes of a kind differ, in words; those that matter in neither are left out."""
    ours, theirs, names = wanted.to_dict(), saved.to_dict(), {*saved.key, *wanted.key}
    return [
        f"{name}: {theirs[name]!r} in the folder, {value!r} asked for"
        for name, value in ours.items()
        if name in names and theirs[name] != value
    ]


def read_recipe(path: Path, kind: type[Task]) -> dict[str, Any]:
    """The options of a kind in a YAML or JSON file, checked; a run's ``recipe.json`` is one.

    Raises:
        ValueError: If the file does not hold options by name, or one of them is not as it should be; it names the file.
    """
    options = read_options(path)
    options.pop("kind", None)
    return kind.checked(options, where=f"{path}: ")
