"""What the runs of a study came to: the best of each grid, beside the paper's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from tempbalance.lab.jobs import Job
from tempbalance.lab.names import pretty
from tempbalance.lab.options import NUM_IMAGES
from tempbalance.lab.paper.rows import PaperResult
from tempbalance.lab.point import Point, Preset
from tempbalance.lab.recipe import Recipe
from tempbalance.lab.resume import finished
from tempbalance.lab.statistics import Paired, paired
from tempbalance.report.text import shown
from tempbalance.runlog import Line, RunFolder


@dataclass(frozen=True)
class Tried:
    """A point and its complete runs.

    Attributes:
        point: What was trained.
        runs: Of each seed that is complete.
        results: How each ended.
    """

    point: Point
    runs: Mapping[int, RunFolder]
    results: Mapping[int, Line]

    @property
    def accuracies(self) -> dict[int, float]:
        """Test accuracy in percent after the last epoch, by seed."""
        return {seed: float(result["test_accuracy"]) for seed, result in self.results.items()}

    @property
    def mean(self) -> float | None:
        """Of the accuracies."""
        return fmean(self.accuracies.values()) if self.results else None

    @property
    def std(self) -> float | None:
        """Of the accuracies, that of a sample."""
        return stdev(self.accuracies.values()) if len(self.results) > 1 else None

    def seconds(self, name: str) -> tuple[float, float | None] | None:
        """Seconds with their standard deviation, as a mean over the seeds; ``None`` where none were measured.

        Args:
            name: ``epoch`` for one of training alone, ``balancing`` for one, ``balancing_an_epoch`` for those of an
                epoch together.
        """
        measured = name.removesuffix("_an_epoch")
        results = [result for result in self.results.values() if f"{measured}_seconds" in result]
        times = [1.0 if measured == name else each["num_balancings"] / each["epochs"] for each in results]
        means = [each[f"{measured}_seconds"] * factor for each, factor in zip(results, times, strict=True)]
        found = zip(results, times, strict=True)
        spreads = [r[f"{measured}_seconds_std"] * factor for r, factor in found if f"{measured}_seconds_std" in r]
        return (fmean(means), fmean(spreads) if spreads else None) if means else None


@dataclass(frozen=True)
class Cell:
    """A place in a study's table.

    Attributes:
        labels: What it is, by name.
        tried: The points of its grid.
        num_seeds: How many each is to be trained with.
    """

    labels: Mapping[str, Any]
    tried: tuple[Tried, ...]
    num_seeds: int

    @property
    def paper(self) -> PaperResult | None:
        """What the paper reports for it."""
        return next((each.point.paper for each in self.tried if each.point.paper is not None), None)

    @cached_property
    def best(self) -> Tried | None:
        """The point with the best mean among those with the most seeds; ``None`` without a complete run."""
        most = max(len(each.results) for each in self.tried)
        found = [(each.mean, each) for each in self.tried if each.mean is not None and len(each.results) == most]
        return max(found, key=lambda pair: pair[0])[1] if found else None

    @property
    def is_complete(self) -> bool:
        """Whether every point of its grid has all its seeds."""
        return all(len(each.results) == self.num_seeds for each in self.tried)

    @property
    def accuracies(self) -> dict[int, float]:
        """Those of the best point."""
        return self.best.accuracies if self.best is not None else {}

    @property
    def panel(self) -> str:
        """Network and data."""
        return f"{pretty(self.labels['model'])}, {pretty(self.labels['dataset'])}"


@dataclass(frozen=True)
class Findings:
    """All that a study has found so far.

    Attributes:
        name: Of the study.
        preset: In which size.
        seeds: What each point is to be trained with.
        reference: The labels of what cells are tested against.
        cells: In order.
        damaged: What is wrong with runs that are left out.
    """

    name: str
    preset: Preset
    seeds: tuple[int, ...]
    reference: Mapping[str, Any]
    cells: tuple[Cell, ...]
    damaged: tuple[str, ...] = ()

    @property
    def num_runs(self) -> tuple[int, int]:
        """How many runs are complete, and how many there are to be."""
        tried = [each for cell in self.cells for each in cell.tried]
        return sum(len(each.runs) for each in tried), len(tried) * len(self.seeds)

    @property
    def subtitle(self) -> str:
        """Preset and data in a line, for every table and figure."""
        recipes = [each.point.recipe(self.seeds[0]) for cell in self.cells for each in cell.tried]
        data = "; ".join(dict.fromkeys(map(data_text, recipes)))
        widths = ", ".join(dict.fromkeys(f"{recipe.width:g}" for recipe in recipes))
        epochs = ", ".join(dict.fromkeys(_epochs_text(recipe) for recipe in recipes))
        told = f"preset {self.preset.name}: {data}; width {widths}; {epochs}; seeds {', '.join(map(str, self.seeds))}"
        done, total = self.num_runs
        return told if done == total else f"{told}; {done} of {total} runs complete"

    def compared_with(self, cell: Cell) -> Cell | None:
        """The reference of a cell; ``None`` for the reference itself, or where there is none."""
        labels = {**cell.labels, **self.reference}
        return next((each for each in self.cells if each.labels == labels and each is not cell), None)

    def against(self, cell: Cell) -> Paired | None:
        """The paired test of a cell against its reference; ``None`` without one or without common seeds."""
        other = self.compared_with(cell)
        return None if other is None else paired(cell.accuracies, other.accuracies)


def data_text(recipe: Recipe) -> str:
    """The data of a recipe with the number of images."""
    if recipe.dataset not in NUM_IMAGES:
        limited = f", at most {recipe.limit:,} images" if recipe.limit else ""
        return f"{shown(Path(recipe.dataset).name)}{limited}"
    train, test = NUM_IMAGES[recipe.dataset]
    train, test = min(train, recipe.limit or train), min(test, recipe.test_limit or recipe.limit or test)
    return f"{pretty(recipe.dataset)}, {train:,} + {test:,} images"


def _epochs_text(recipe: Recipe) -> str:
    if recipe.num_epochs < recipe.epochs:
        return f"{recipe.num_epochs} of {recipe.epochs} epochs"
    return f"{recipe.epochs} epochs"


def find_cells(points: Sequence[Point], seeds: Sequence[int], folder: Path) -> tuple[Cell, ...]:
    """Read what the runs of points have come to, those of one cell together; damaged ones are left out."""
    cells: dict[str, list[Tried]] = {}
    for point in points:
        jobs = {seed: Job(recipe := point.recipe(seed), folder / recipe.id) for seed in seeds}
        runs = {seed: job.run for seed, job in jobs.items() if not job.damage}
        results = {seed: result for seed, run in runs.items() if (result := finished(run)) is not None}
        tried = Tried(point, {seed: runs[seed] for seed in results}, results)
        cells.setdefault(repr(sorted(point.cell.items())), []).append(tried)
    return tuple(Cell(each[0].point.cell, tuple(each), len(seeds)) for each in cells.values())
