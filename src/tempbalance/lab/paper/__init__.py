"""The paper's numbers: a file for each of its tables, and one for the statements and claims of its text.

The file of a table has the settings that the caption or the text states for the whole table, and its lines in the
paper's order. A line lists every value that was tried of every option, and for each result the values it belongs to:
the ones in bold where a line has one result, otherwise each point of the grid. The files are part of the package:
tests compare every number with the paper's LaTeX, and reading them refuses only unknown fields and options.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tempbalance.lab.images.recipe import ImageRecipe
from tempbalance.lab.options import Count, Number, Pair, Share, read_options

TABLES = ("main", "optimizers", "learning_rate", "width", "score", "tail", "detection", "language")
BETTER = {"accuracy": max, "map": max, "perplexity": min}
_MEASURED = ("mean", "std", "seconds", "seconds_std")
Options = Mapping[str, Any]


class _Options(ImageRecipe):
    """Options that the tables name: those of images, and some of language models."""

    restarts: Pair | None = None  # restart_epochs and restart_factor, tried in pairs
    betas: Pair | None = None
    eps: Number | None = None
    dropout: Share | None = None
    iterations: Count | None = None
    interval_iterations: Count | None = None


@dataclass(frozen=True)
class PaperResult:
    """Number that the paper reports.

    Attributes:
        chosen: Value of each option tried, where the paper says which it was.
        options: The same with the settings of the table, named as a recipe's.
        mean, std: Over the seeds, in the metric of the table.
        seconds, seconds_std: Of one balancing.
    """

    chosen: Options
    options: Options
    mean: float
    std: float | None = None
    seconds: float | None = None
    seconds_std: float | None = None


@dataclass(frozen=True)
class PaperRow:
    """Line of a table: every value of every option that it lists, and at least one result.

    Attributes:
        index: Number printed before the line, in two tables not its position.
    """

    dataset: str
    model: str
    method: str
    tried: Mapping[str, tuple[Any, ...]]
    results: tuple[PaperResult, ...]
    settings: Options
    metric: str
    index: int | None = None

    def points(self) -> list[dict[str, Any]]:
        """Return the options of a recipe at every point of the grid."""
        grid = itertools.product(*self.tried.values())
        return [_recipe_options(self.settings, dict(zip(self.tried, each, strict=True))) for each in grid]


@dataclass(frozen=True)
class PaperTable:
    """Table of the paper.

    Attributes:
        metric: ``accuracy`` and ``map`` in percent, higher is better, or ``perplexity``, lower is better.
        seeds: Empty where the paper does not name them.
        settings: Options common to all rows, named as a recipe's.
        figure: Label of the figure that shows it.
        num_timings: Number of measurements that seconds are averaged over.
    """

    title: str
    section: str
    metric: str
    settings: Options
    rows: tuple[PaperRow, ...]
    num_seeds: int
    seeds: tuple[int, ...] = ()
    figure: str | None = None
    num_timings: int | None = None


@dataclass(frozen=True)
class PaperStatement:
    """Statement of the text.

    Attributes:
        section: Title of the section.
        says: The statement in our words.
        is_claim: Whether it claims something that could turn out otherwise, instead of a setting.
        value: Its number or numbers: a tuple of them, or some by name. ``None`` without any.
        note: Contradictions to the tables or other sources.
        untested: Why no study can test the claim; ``None`` if one does.
    """

    section: str
    says: str
    is_claim: bool
    value: Any = None
    note: str | None = None
    untested: str | None = None


@cache
def paper_tables() -> Mapping[str, PaperTable]:
    """Return all tables by name.

    Example:
        >>> paper_tables()["main"].rows[2].results[0].mean
        78.97
    """
    return {name: _table(**read_options(Path(__file__).with_name(f"{name}.yaml"))) for name in TABLES}


@cache
def paper_statements() -> Mapping[str, PaperStatement]:
    """Return all statements by name, in the order of the text."""
    found = {}
    for section, statements in read_options(Path(__file__).with_name("text.yaml")).items():
        for name, fields in statements.items():
            says, claims = fields.pop("says", ""), fields.pop("claims", "")
            value = resolved(fields.pop("value", None))
            found[name] = PaperStatement(section, says or claims, bool(claims), value, **fields)
    return found


def stated(name: str) -> Any:
    """Return the value of a statement.

    Example:
        >>> stated("interval")
        390
    """
    return paper_statements()[name].value


def resolved(value: Any) -> Any:
    """Return a value of a file with lists as tuples, and ``$name`` as the value of the statement."""
    if isinstance(value, dict):
        return {name: resolved(each) for name, each in value.items()}
    if isinstance(value, list):
        return tuple(map(resolved, value))
    return stated(value[1:]) if isinstance(value, str) and value.startswith("$") else value


def _in_type(options: Options) -> dict[str, Any]:
    """Return options of a table in their types."""
    made = vars(_Options.from_dict(options))
    return {name: made[name] for name in options}


def _table(*, rows: list[Any], settings: Options, metric: str, seeds: Any = (), **fields: Any) -> PaperTable:
    common = _in_type(settings)
    found = tuple(_row(common, metric=metric, **row) for row in rows)
    fields = {"num_seeds": len(seeds), **fields}
    return PaperTable(rows=found, settings=common, metric=metric, seeds=tuple(seeds), **fields)


def _row(settings: Options, *, tried: dict[str, Any], results: list[dict[str, Any]], **names: Any) -> PaperRow:
    values = {name: tuple(_in_type({name: value})[name] for value in each) for name, each in tried.items()}
    alone = {name: each[0] for name, each in values.items() if len(each) == 1}
    found = []
    for fields in results:
        measured = {name: float(fields.pop(name)) for name in _MEASURED if name in fields}
        chosen = alone | _in_type(fields)
        found.append(PaperResult(chosen, _recipe_options(settings, chosen), **measured))
    return PaperRow(tried=values, results=tuple(found), settings=settings, **names)


def _recipe_options(settings: Options, chosen: Options) -> dict[str, Any]:
    """Return the options of a recipe with the settings of a table at one point of a grid."""
    options = {**settings, **chosen}
    if "interval_iterations" in options:
        options["interval"] = options.pop("interval_iterations")
    if "restarts" in options:
        epochs, factor = options.pop("restarts")
        options.update(restart_epochs=int(epochs), restart_factor=int(factor))
    return options
