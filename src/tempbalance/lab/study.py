"""What a study is: settings to train, and the tables and charts made of their runs.

A study is a file in `tempbalance.lab.studies` with a ``STUDY``: what it is about and two functions. ``points`` says
what is trained in a preset, ``present`` makes tables and charts of what was found. Nothing else need know of it.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tempbalance.lab import studies as folder_of_studies
from tempbalance.lab.findings import Findings, find_cells
from tempbalance.lab.jobs import Job
from tempbalance.lab.methods import unknown
from tempbalance.lab.point import Point, Preset
from tempbalance.lab.recipe import SEEDS
from tempbalance.lab.tables import ResultTable

if TYPE_CHECKING:
    import altair as alt


class StudyError(Exception):
    """A file that holds no study."""


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
        num_seeds: How many seeds, where not as many as the preset's: in all presets, or in some by name.
        reference: The labels of what others are tested against, seed by seed.
        is_timed: Whether it measures times, so that its runs are trained one at a time.
        evaluate: Works on complete runs once all are trained, and keeps in their folders what ``present`` reads there;
            is given the findings and the folder of downloads.
    """

    name: str
    title: str
    figures: tuple[str, ...]
    varies: str
    points: Callable[[Preset], list[Point]]
    present: Callable[[Findings], Presentation]
    num_seeds: int | Mapping[str, int] | None = None
    reference: Mapping[str, Any] = field(default_factory=lambda: {"method": "cal"})
    is_timed: bool = False
    evaluate: Callable[[Findings, Path | None], None] | None = None

    def seeds(self, preset: Preset) -> tuple[int, ...]:
        """What each point is trained with."""
        given = self.num_seeds.get(preset.name) if isinstance(self.num_seeds, Mapping) else self.num_seeds
        return preset.seeds if given is None else SEEDS[:given]

    def jobs(self, preset: Preset, points: Sequence[Point], folder: Path) -> list[Job]:
        """The runs that points need, each once, all seeds of a point together; a folder's name is the recipe's id."""
        recipes = [point.recipe(seed) for point in points for seed in self.seeds(preset)]
        return list({recipe.id: Job(recipe, folder / recipe.id) for recipe in recipes}.values())

    def find(self, preset: Preset, points: Sequence[Point], folder: Path) -> Findings:
        """What the runs of points have come to so far."""
        seeds = self.seeds(preset)
        damaged = tuple(damage for job in self.jobs(preset, points, folder) if (damage := job.damage))
        return Findings(self.name, preset, seeds, self.reference, find_cells(points, seeds, folder), damaged)


@cache
def all_studies() -> Mapping[str, Study]:
    """All studies by name.

    Raises:
        StudyError: If a file has none.
    """
    names = sorted(module.name for module in pkgutil.iter_modules(folder_of_studies.__path__))
    return {name: _load(name) for name in names}


def _load(name: str) -> Study:
    """The study in a file.

    Raises:
        StudyError: If there is none, or it is called otherwise.
    """
    try:
        study = import_module(f"{folder_of_studies.__name__}.{name}").STUDY
    except Exception as err:
        raise StudyError(f"the study in {name}.py cannot be loaded: {type(err).__name__}: {err}") from err
    if not isinstance(study, Study) or study.name != name:
        raise StudyError(f"{name}.py must have a STUDY that is called {name!r}, got {getattr(study, 'name', study)!r}")
    return study


def find_study(name: str) -> Study:
    """A study by its name.

    Raises:
        ValueError: If there is none; it names the closest.
    """
    if name not in all_studies():
        raise ValueError(unknown("study", name, all_studies()))
    return all_studies()[name]
