"""What a study is: settings to train, and the tables and charts made of their runs.

A study is a file in `tempbalance.lab.studies` with a ``STUDY``: what it is about and two functions. ``points`` says
what is trained in a preset, ``present`` makes tables and charts of what was found. Nothing else need know of it.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tempbalance.lab import studies as folder_of_studies
from tempbalance.lab.methods import unknown
from tempbalance.lab.options import DATASETS
from tempbalance.lab.paper.rows import PaperResult
from tempbalance.lab.recipe import SEEDS, Recipe

if TYPE_CHECKING:
    import altair as alt

    from tempbalance.lab.findings import Findings
    from tempbalance.lab.tables import ResultTable


@dataclass(frozen=True)
class Preset:
    """How large a study is.

    Attributes:
        name: ``paper``, ``laptop`` or ``smoke``.
        seeds: What each point is trained with.
        about: In a few words.
        options: What it sets in every recipe; none for the paper's.
        width: Factor on the paper's widths.
        dataset: What stands in for the paper's data; ``None`` for what each study says.
    """

    name: str
    seeds: tuple[int, ...]
    about: str
    options: Mapping[str, Any] = field(default_factory=dict)
    width: float = 1.0
    dataset: str | None = None

    @property
    def is_paper(self) -> bool:
        """Whether it is the paper's own."""
        return not self.options


PRESETS = {
    "paper": Preset("paper", SEEDS, "the paper's own setting, for GPUs"),
    "laptop": Preset("laptop", SEEDS[:3], "small real data, minutes to hours on two cores", {"epochs": 12}, 0.25),
    "smoke": Preset(
        "smoke", SEEDS[:2], "a few steps, to see that it works", {"epochs": 2, "limit": 256, "test_limit": 128}, 0.125
    ),
}


@dataclass(frozen=True)
class Point:
    """A setting that is trained with each seed.

    Attributes:
        cell: What it is one of, by name: dataset, model, method and what else the study varies. Points of the same cell
            are a grid, of which the best counts.
        options: Of a recipe, all but the seed.
        paper: What the paper reports for the cell.
        is_best: Whether the paper's number is of this point of the grid.
        stands_for: The paper's dataset that its own stands in for, if any.
    """

    cell: Mapping[str, Any]
    options: Mapping[str, Any]
    paper: PaperResult | None = None
    is_best: bool = False
    stands_for: str | None = None

    def recipe(self, seed: int) -> Recipe:
        """What is trained with a seed."""
        return Recipe.from_dict({**self.options, "seed": seed})


@dataclass(frozen=True)
class Presentation:
    """What a study shows.

    Attributes:
        tables: At least one.
        charts: By name, which becomes that of a file.
        captions: What each chart shows, by the same names.
        notes: Sentences about what was found.
    """

    tables: Sequence[ResultTable]
    charts: Mapping[str, alt.TopLevelMixin]
    captions: Mapping[str, str]
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Study:
    """An experiment.

    Attributes:
        name: That of its file.
        title: What it asks.
        figures: The labels of the paper's figures that show it.
        varies: What is varied, in a few words.
        points: What is trained in a preset.
        present: What is made of it.
        num_seeds: How many seeds at most, where fewer than the preset's are enough.
        reference: The labels of what others are tested against, seed by seed.
        is_timed: Whether it measures times, so that its runs are trained one at a time.
    """

    name: str
    title: str
    figures: tuple[str, ...]
    varies: str
    points: Callable[[Preset], list[Point]]
    present: Callable[[Findings], Presentation]
    num_seeds: int | None = None
    reference: Mapping[str, Any] = field(default_factory=lambda: {"method": "cal"})
    is_timed: bool = False

    def seeds(self, preset: Preset) -> tuple[int, ...]:
        """What each point is trained with."""
        return preset.seeds[: self.num_seeds]


@cache
def all_studies() -> Mapping[str, Study]:
    """All studies by name."""
    names = sorted(module.name for module in pkgutil.iter_modules(folder_of_studies.__path__))
    found = [import_module(f"{folder_of_studies.__name__}.{name}").STUDY for name in names]
    return {study.name: study for study in found}


def find_study(name: str) -> Study:
    """A study by its name.

    Raises:
        ValueError: If there is none; it names the closest.
    """
    if name not in all_studies():
        raise ValueError(unknown("study", name, all_studies()))
    return all_studies()[name]


def find_preset(name: str, *, dataset: str | None = None) -> Preset:
    """A preset by its name.

    Args:
        name: Of `PRESETS`.
        dataset: What stands in for the paper's data, a known name or a path.

    Raises:
        ValueError: If there is none, with the closest, or its data cannot be replaced.
    """
    if name not in PRESETS:
        raise ValueError(unknown("preset", name, PRESETS))
    if dataset is None:
        return PRESETS[name]
    if PRESETS[name].is_paper:
        raise ValueError(f"dataset must not be given with preset paper, which has the paper's own, got {dataset!r}")
    known = dataset in DATASETS
    return replace(PRESETS[name], dataset=dataset if known else str(Path(dataset).expanduser().resolve()))
