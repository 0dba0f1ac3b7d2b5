"""What is to be trained for studies, and what is left of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.table import Table
from rich.text import Text

from tempbalance.lab.jobs import Job
from tempbalance.lab.methods import unknown
from tempbalance.lab.names import pretty
from tempbalance.lab.point import Point, Preset
from tempbalance.lab.present import settings_text
from tempbalance.lab.recipe import make_recipe
from tempbalance.lab.study import Study
from tempbalance.runlog import RunFolder, RunFolderError

_COLUMNS = {"data": "dataset", "network": "model"}  # as reports call them
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
    for given, wanted in only.items():
        name = _COLUMNS.get(given, given)
        labels = dict.fromkeys(label for point in found for label in point.cell)
        if name not in labels:
            raise ValueError(f"{study.name}: {unknown('label', name, labels)}")
        values = dict.fromkeys(_plain(point.cell[name]) for point in found)
        if strange := [each for each in wanted if not any(_is_meant(each, point.cell[name]) for point in found)]:
            raise ValueError(f"{study.name}: {unknown(name, strange[0], values)}")
        found = [point for point in found if any(_is_meant(each, point.cell[name]) for each in wanted)]
    return found


def _plain(value: object) -> str:
    return value if isinstance(value, str) else pretty(value)


def _is_meant(given: str, value: object) -> bool:
    """Whether a value is given as recipes or as reports write it."""
    return given.lower() in (str(value).lower(), pretty(value).lower())


def jobs_of_all(
    chosen: Mapping[str, Sequence[Point]], studies: Sequence[Study], preset: Preset, folder: Path
) -> list[Job]:
    """The runs that studies need, each once."""
    jobs = [job for study in studies for job in study.jobs(preset, chosen[study.name], folder)]
    return list({job.folder: job for job in jobs}.values())


def known_jobs(folder: Path) -> list[Job]:
    """All runs in a folder that can be read, whatever they are of: what an estimate of time goes by."""
    found = []
    for path in sorted(folder.glob("*/recipe.json")):
        try:
            content = RunFolder(path.parent).recipe or {}
            job = Job(make_recipe(content.get("recipe") or {"": ""}), path.parent)
        except (RunFolderError, ValueError, TypeError, AttributeError):  # of another kind or version
            continue
        if not job.damage:
            found.append(job)
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
        done = sum(job.state == "done" for job in jobs)
        names = (recipe.data_text, pretty(point.cell["model"]), pretty(point.cell["method"]), settings_text(point))
        table.add_row(*map(Text, names), str(len(jobs)), str(done))
    return table


def totals_text(jobs: Sequence[Job]) -> str:
    """How many runs there are, in all and of each method.

    Example:
        >>> totals_text([])
        '0 runs'
    """
    counts = Counter(pretty(vars(job.recipe)["method"]) for job in jobs)
    told = ", ".join(f"{number} {name}" for name, number in counts.items())
    return f"{len(jobs)} run{'s' * (len(jobs) != 1)}" + (f": {told}" if told else "")
