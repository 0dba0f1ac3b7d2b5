"""What the runs of a study came to: the best of each grid, beside the paper's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from tempbalance.lab.jobs import Job
from tempbalance.lab.measure import ACCURACY, Measure
from tempbalance.lab.names import pretty
from tempbalance.lab.paper.rows import PaperResult
from tempbalance.lab.point import Point, Preset
from tempbalance.lab.recipe import find_kind
from tempbalance.lab.statistics import Paired, paired
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
    def measure(self) -> Measure:
        """What its runs are judged by."""
        return find_kind(self.point.options.get("kind", "images")).measure

    @property
    def outcomes(self) -> dict[int, float]:
        """What each seed came to, in the measure of the runs."""
        return {seed: float(result[self.measure.name]) for seed, result in self.results.items()}

    @property
    def mean(self) -> float | None:
        """Of the outcomes."""
        return fmean(self.outcomes.values()) if self.results else None

    @property
    def std(self) -> float | None:
        """Of the outcomes, that of a sample."""
        return stdev(self.outcomes.values()) if len(self.results) > 1 else None

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
        return max(found, key=lambda pair: pair[1].measure.sign(pair[0]))[1] if found else None

    @property
    def is_complete(self) -> bool:
        """Whether every point of its grid has all its seeds."""
        return all(len(each.results) == self.num_seeds for each in self.tried)

    @property
    def outcomes(self) -> dict[int, float]:
        """Those of the best point."""
        return self.best.outcomes if self.best is not None else {}

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
    def measure(self) -> Measure:
        """What its runs are judged by."""
        return self.cells[0].tried[0].measure if self.cells else ACCURACY

    @property
    def num_runs(self) -> tuple[int, int]:
        """How many runs are complete, and how many there are to be."""
        tried = [each for cell in self.cells for each in cell.tried]
        return sum(len(each.runs) for each in tried), len(tried) * len(self.seeds)

    @property
    def subtitle(self) -> str:
        """Preset and data in a line, for every table and figure."""
        if not self.cells:
            return f"preset {self.preset.name}: nothing is trained"
        recipes = [each.point.recipe(self.seeds[0]) for cell in self.cells for each in cell.tried]
        data = "; ".join(dict.fromkeys(recipe.data_text for recipe in recipes))
        sizes = "; ".join(map(_listed, zip(*(recipe.size_text.split("; ") for recipe in recipes), strict=True)))
        told = f"preset {self.preset.name}: {data}; {sizes}; seeds {', '.join(map(str, self.seeds))}"
        done, total = self.num_runs
        return told if done == total else f"{told}; {done} of {total} runs complete"

    def compared_with(self, cell: Cell) -> Cell | None:
        """The reference of a cell; ``None`` for the reference itself, or where there is none."""
        labels = {**cell.labels, **self.reference}
        return next((each for each in self.cells if each.labels == labels and each is not cell), None)

    def against(self, cell: Cell) -> Paired | None:
        """The paired test of a cell against its reference; ``None`` without one or without common seeds."""
        other = self.compared_with(cell)
        return None if other is None else paired(cell.outcomes, other.outcomes)


def _listed(texts: Iterable[str]) -> str:
    """Each once; a first word that all have is said once."""
    first, *others = dict.fromkeys(texts)
    word = first.split(" ")[0] + " "
    same = all(each.startswith(word) for each in others)
    return ", ".join([first, *(each.removeprefix(word) if same else each for each in others)])


def find_cells(points: Sequence[Point], seeds: Sequence[int], folder: Path) -> tuple[Cell, ...]:
    """Read what the runs of points have come to, those of one cell together; damaged ones are left out."""
    cells: dict[str, list[Tried]] = {}
    for point in points:
        jobs = {seed: Job(recipe := point.recipe(seed), folder / recipe.id) for seed in seeds}
        runs = {seed: job.run for seed, job in jobs.items() if not job.damage}
        results = {seed: result for seed in runs if (result := jobs[seed].result) is not None}
        tried = Tried(point, {seed: runs[seed] for seed in results}, results)
        cells.setdefault(repr(sorted(point.cell.items())), []).append(tried)
    return tuple(Cell(each[0].point.cell, tuple(each), len(seeds)) for each in cells.values())
