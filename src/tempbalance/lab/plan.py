"""What is to be trained for studies, and what is left of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.table import Table

from tempbalance.lab.findings import data_text
from tempbalance.lab.jobs import Job
from tempbalance.lab.methods import unknown
from tempbalance.lab.names import pretty
from tempbalance.lab.point import Point, Preset
from tempbalance.lab.present import settings_text
from tempbalance.lab.recipe import Recipe
from tempbalance.lab.study import Study
from tempbalance.runlog import RunFolder, RunFolderError

Only = Mapping[str, Sequence[str]]


def read_only(given: Sequence[str]) -> dict[str, list[str]]:
    """``NAME=VALUE`` as names and values.

    Raises:
        ValueError: If there is no ``=``.
    """
    found: dict[str, list[str]] = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not (name and equals and value):
            raise ValueError(f"only must be NAME=VALUE, such as model=resnet18, got {each!r}")
        found.setdefault(name.strip(), []).append(value.strip())
    return found


def points_of(study: Study, preset: Preset, only: Only) -> list[Point]:
    """The points of a study, only those with one of the given values of each given label.

    Raises:
        ValueError: If there is no such label, or no point is left.
    """
    found = study.points(preset)
    for name, wanted in only.items():
        labels = dict.fromkeys(label for point in found for label in point.cell)
        if name not in labels:
            raise ValueError(f"{study.name}: {unknown('label', name, labels)}")
        values = dict.fromkeys(_text(point.cell[name]) for point in found)
        if strange := [value for value in wanted if value not in values]:
            raise ValueError(f"{study.name}: {unknown(name, strange[0], values)}")
        found = [point for point in found if _text(point.cell[name]) in wanted]
    return found


def _text(value: object) -> str:
    return value if isinstance(value, str) else pretty(value)


def jobs_of_all(
    chosen: Mapping[str, Sequence[Point]], studies: Sequence[Study], preset: Preset, folder: Path
) -> list[Job]:
    """The runs that studies need, each once."""
    jobs = [job for study in studies for job in study.jobs(preset, chosen[study.name], folder)]
    return list({job.folder: job for job in jobs}.values())


def known_jobs(folder: Path) -> list[Job]:
    """All runs in a folder, whatever they are of."""
    found = []
    for path in sorted(folder.glob("*/recipe.json")):
        content = RunFolder(path.parent).recipe or {}
        try:
            recipe = Recipe.from_dict(content["recipe"])
        except (KeyError, ValueError, AttributeError) as err:
            raise RunFolderError(f"{path}: must hold a recipe: {err}") from err
        found.append(Job(recipe, path.parent))
    return found


def plan_table(study: Study, preset: Preset, points: Sequence[Point], folder: Path) -> Table:
    """Every point with its number of runs, and how many of these are complete."""
    table = Table(title=f"{study.name}, preset {preset.name}", title_justify="left")
    for name in ("data", "network", "method", "setting"):
        table.add_column(name, overflow="fold")
    table.add_column("runs", justify="right")
    table.add_column("done", justify="right")
    for point in points:
        jobs = study.jobs(preset, [point], folder)
        recipe = jobs[0].recipe
        done = sum(job.is_done for job in jobs)
        names = (data_text(recipe), pretty(recipe.model), pretty(recipe.method))
        table.add_row(*names, settings_text(point), str(len(jobs)), str(done))
    return table


def totals_text(jobs: Sequence[Job]) -> str:
    """How many runs there are, in all and of each method.

    Example:
        >>> totals_text([])
        '0 runs'
    """
    counts = Counter(pretty(job.recipe.method) for job in jobs)
    told = ", ".join(f"{number} {name}" for name, number in counts.items())
    return f"{len(jobs)} runs" + (f": {told}" if told else "")
