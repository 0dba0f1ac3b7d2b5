"""The paper's numbers: a file for each of its tables, and one for the statements and claims of its text.

The file of a table has the settings that the caption or the text states for the whole table, and its lines in the
paper's order. A line lists every value that was tried of every option, and for each result the values it belongs to:
the ones in bold where a line has one result, otherwise each point of the grid. The files are part of the package:
tests compare every number with the paper's LaTeX, and reading them refuses only unknown fields and options.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tempbalance.errors import unknown
from tempbalance.lab.images.recipe import ImageRecipe
from tempbalance.lab.options import Count, Number, Pair, Share, read_options

TABLES = ("main", "optimizers", "learning_rate", "width", "score", "tail", "detection", "language")
BETTER = {"accuracy": max, "map": max, "perplexity": min}
_MEASURED = ("mean", "std", "seconds", "seconds_std")


class _Options(ImageRecipe):
    """Options that the tables name: those of images, and some of language models."""

    restarts: Pair | None = None  # restart_epochs and restart_factor, tried in pairs
    betas: Pair | None = None
    eps: Number | None = None
    dropout: Share | None = None
    iterations: Count | None = None
    interval_iterations: Count | None = None


def _in_type(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of a table in their types.

    Raises:
        ValueError: If one is unknown or its value is not allowed.
    """
    made = vars(_Options.from_dict(options))
    return {name: made[name] for name in options}


@dataclass(frozen=True)
class PaperResult:
    """Number that the paper reports.

    Attributes:
        chosen: Value of each option tried, where the paper says which it was.
        options: The same with the settings of the table, named as a recipe's.
        mean, std: Over the seeds, in the metric of the table.
        seconds, seconds_std: Of one balancing.
    """

    chosen: Mapping[str, Any]
    options: Mapping[str, Any]
    mean: float
    std: float | None = None
    seconds: float | None = None
    seconds_std: float | None = None


@dataclass(frozen=True)
class PaperRow:
    """Line of a table.

    Attributes:
        table: Name of the table.
        position: Counted from 0.
        dataset, model, method: As the lab names them.
        tried: Every value of every option that the line lists.
        results: At least one.
        settings: Options that the whole table has in common.
        num_seeds: Number of seeds of each point.
        metric: As of the table.
        index: Number printed before the line, in two tables not its position.
    """

    table: str
    position: int
    dataset: str
    model: str
    method: str
    tried: Mapping[str, tuple[Any, ...]]
    results: tuple[PaperResult, ...]
    settings: Mapping[str, Any]
    num_seeds: int
    metric: str
    index: int | None = None

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
        """Number of trainings."""
        return len(self.points()) * self.num_seeds

    def points(self) -> list[dict[str, Any]]:
        """Return the options of a recipe at every point of the grid."""
        grid = itertools.product(*self.tried.values())
        return [_recipe_options(self.settings, dict(zip(self.tried, each, strict=True))) for each in grid]


@dataclass(frozen=True)
class PaperTable:
    """Table of the paper.

    Attributes:
        name: Name of the study that repeats it.
        title: Subject of the table.
        section: Section that has it.
        metric: ``accuracy`` and ``map`` in percent, higher is better, or ``perplexity``, lower is better.
        seeds: Empty where the paper does not name them.
        num_seeds: Number of seeds.
        settings: Options common to all rows, named as a recipe's.
        rows: Lines in the paper's order.
        figure: Label of the figure that shows it.
        num_timings: Number of measurements that seconds are averaged over.
    """

    name: str
    title: str
    section: str
    metric: str
    seeds: tuple[int, ...]
    num_seeds: int
    settings: Mapping[str, Any]
    rows: tuple[PaperRow, ...]
    figure: str | None = None
    num_timings: int | None = None


@dataclass(frozen=True)
class PaperStatement:
    """Statement of the text.

    Attributes:
        name: Short name.
        section: Title of the section.
        says: The statement in our words.
        is_claim: Whether it claims something that could turn out otherwise, instead of a setting.
        value: Its number or numbers: a tuple of them, or some by name. ``None`` without any.
        note: Contradictions to the tables or other sources.
        untested: Why no study can test the claim; ``None`` if one does.
    """

    name: str
    section: str
    says: str
    is_claim: bool = False
    value: Any = None
    note: str | None = None
    untested: str | None = None


@cache
def paper_tables() -> Mapping[str, PaperTable]:
    """Return all tables by name.

    Example:
        >>> paper_tables()["main"].rows[2].best.mean
        78.97
    """
    return {name: _table(name, **read_options(Path(__file__).with_name(f"{name}.yaml"))) for name in TABLES}


@cache
def paper_statements() -> Mapping[str, PaperStatement]:
    """Return all statements by name, in the order of the text.

    Example:
        >>> paper_statements()["interval"].value
        390
    """
    content = read_options(Path(__file__).with_name("text.yaml"))
    return {
        name: _statement(name, section, **fields)
        for section, statements in content.items()
        for name, fields in statements.items()
    }


def stated(name: str) -> Any:
    """Return the value of a statement."""
    return paper_statements()[name].value


def find_rows(*, table: str | None = None, **names: str) -> list[PaperRow]:
    """Return the rows of a table, or of all, with these values of ``dataset``, ``model`` and ``method``.

    Raises:
        ValueError: If there is no such table.
    """
    if table is not None and table not in TABLES:
        raise ValueError(unknown("table", table, TABLES))
    tables = [paper_tables()[table]] if table else paper_tables().values()
    return [
        row for each in tables for row in each.rows if all(getattr(row, key) == value for key, value in names.items())
    ]


def _table(name: str, *, seeds: Iterable[int] = (), rows: list[dict[str, Any]], **fields: Any) -> PaperTable:
    seeds = tuple(seeds)
    common = {"settings": _in_type(fields.pop("settings")), "num_seeds": fields.pop("num_seeds", len(seeds))}
    common["metric"] = fields.pop("metric")
    found = tuple(_row(name, position, common, **row) for position, row in enumerate(rows))
    return PaperTable(name=name, seeds=seeds, rows=found, **fields, **common)


def _row(
    table: str, position: int, common: dict[str, Any], *, tried: dict[str, Any], results: list[Any], **fields: Any
) -> PaperRow:
    values = {name: tuple(_in_type({name: value})[name] for value in each) for name, each in tried.items()}
    found = tuple(_result(each, values, common["settings"]) for each in results)
    return PaperRow(table=table, position=position, tried=values, results=found, **fields, **common)


def _result(fields: dict[str, Any], tried: Mapping[str, tuple[Any, ...]], settings: Mapping[str, Any]) -> PaperResult:
    measured = {name: float(fields[name]) for name in _MEASURED if name in fields}
    alone = {name: values[0] for name, values in tried.items() if len(values) == 1}
    chosen = alone | _in_type({name: each for name, each in fields.items() if name not in _MEASURED})
    return PaperResult(chosen=chosen, options=_recipe_options(settings, chosen), **measured)


def _recipe_options(settings: Mapping[str, Any], chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a recipe with the settings of a table at one point of a grid."""
    options = {**settings, **chosen}
    if "restarts" in options:
        epochs, factor = options.pop("restarts")
        options.update(restart_epochs=int(epochs), restart_factor=int(factor))
    return options


def _statement(
    name: str, section: str, *, says: str = "", claims: str = "", value: Any = None, **fields: Any
) -> PaperStatement:
    return PaperStatement(name, section, says or claims, bool(claims), _in_tuples(value), **fields)


def _in_tuples(value: Any) -> Any:
    """Return numbers as they are, lists of them as tuples."""
    if isinstance(value, dict):
        return {name: _in_tuples(each) for name, each in value.items()}
    return tuple(map(_in_tuples, value)) if isinstance(value, list) else value
