"""What a table of the paper is made of: rows, and the results in them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

BETTER = {"accuracy": max, "map": max, "perplexity": min}


@dataclass(frozen=True)
class PaperResult:
    """A number that the paper reports.

    Attributes:
        chosen: The value of each option tried, as far as the paper says which it was.
        options: The same with the settings of the table, named as a recipe's.
        mean: Over the seeds, in the metric of the table.
        std: Its standard deviation.
        seconds: What one balancing took, on average.
        seconds_std: Its standard deviation.
    """

    chosen: Mapping[str, Any]
    options: Mapping[str, Any]
    mean: float
    std: float | None = None
    seconds: float | None = None
    seconds_std: float | None = None


@dataclass(frozen=True)
class PaperRow:
    """A line of a table.

    Attributes:
        table: Its name.
        position: Counted from 0.
        index: The number printed before the line, in two tables not its position.
        dataset: As the lab names it.
        model: Likewise.
        method: Likewise.
        tried: Every value of every option that the line lists.
        results: At least one.
        settings: Options that the whole table has in common.
        num_seeds: How often each point was trained.
        metric: What the results are.
    """

    table: str
    position: int
    index: int | None
    dataset: str
    model: str
    method: str
    tried: Mapping[str, tuple[Any, ...]]
    results: tuple[PaperResult, ...]
    settings: Mapping[str, Any]
    num_seeds: int
    metric: str

    @property
    def id(self) -> str:
        """The table and the position in it."""
        return f"{self.table}/{self.position}"

    @property
    def best(self) -> PaperResult:
        """The result with the best mean."""
        return BETTER[self.metric](self.results, key=lambda result: result.mean)

    @property
    def num_runs(self) -> int:
        """How many trainings the line took."""
        return len(self.points()) * self.num_seeds

    def points(self) -> list[dict[str, Any]]:
        """The options of a recipe at every point of the grid that was searched."""
        grid = itertools.product(*self.tried.values())
        return [recipe_options(self.settings, dict(zip(self.tried, each, strict=True))) for each in grid]


@dataclass(frozen=True)
class PaperTable:
    """A table.

    Attributes:
        name: That of the study which repeats it.
        title: What it is about.
        figure: The label of the figure that shows it.
        section: Where the paper has it.
        metric: ``accuracy`` and ``map`` in percent, higher being better, or ``perplexity``, lower being better.
        seeds: Empty where the paper does not name them.
        num_seeds: How many.
        num_timings: Over how many measurements seconds are averaged.
        settings: Options common to all rows, named as a recipe's.
        rows: In the paper's order.
    """

    name: str
    title: str
    figure: str | None
    section: str
    metric: str
    seeds: tuple[int, ...]
    num_seeds: int
    num_timings: int | None
    settings: Mapping[str, Any]
    rows: tuple[PaperRow, ...]


def recipe_options(settings: Mapping[str, Any], chosen: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a recipe with the settings of a table at one point of a grid."""
    options = {**settings, **chosen}
    if "restarts" in options:
        epochs, factor = options.pop("restarts")
        options.update(restart_epochs=int(epochs), restart_factor=int(factor))
    return options
