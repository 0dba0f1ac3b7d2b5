"""The paper's numbers: a file for each of its tables, and one for the statements and claims of its text.

The file of a table has the settings that the caption or the text states for the whole table, and its lines in the
paper's order. A line lists every value that was tried of every option, and for each result the values it belongs to:
the ones in bold where a line has one result, otherwise each point of the grid.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tempbalance.errors import unknown
from tempbalance.lab.images.recipe import MODELS, ImageRecipe
from tempbalance.lab.options import DATASETS, Count, Number, Pair, Share, read_options
from tempbalance.lab.recipe import find_method

TABLES = ("main", "optimizers", "learning_rate", "width", "score", "tail", "detection", "language")
BETTER = {"accuracy": max, "map": max, "perplexity": min}
_DATASETS = (*DATASETS, "voc2007", "penn_treebank")
_MODELS = (*MODELS, "yolov8n", "tensorized_transformer")
_TABLE = {
    "title": str, "figure": str, "section": str, "metric": str, "seeds": list, "num_seeds": int, "num_timings": int,
    "settings": dict, "rows": list,
}  # fmt: skip
_ROW = {"index": int, "dataset": str, "model": str, "method": str, "tried": dict, "results": list}
_MEASURED = ("mean", "std", "seconds", "seconds_std")
_STATEMENT = {"value": object, "says": str, "claims": str, "untested": str, "note": str}
_KINDS = {str: "text", int: "a whole number", list: "a list", dict: "fields by name"}


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
        index: Number printed before the line, in two tables not its position.
        dataset, model, method: As the lab names them.
        tried: Every value of every option that the line lists.
        results: At least one.
        settings: Options that the whole table has in common.
        num_seeds: Number of seeds of each point.
        metric: As of the table.
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
        figure: Label of the figure that shows it.
        section: Section that has it.
        metric: ``accuracy`` and ``map`` in percent, higher is better, or ``perplexity``, lower is better.
        seeds: Empty where the paper does not name them.
        num_seeds: Number of seeds.
        num_timings: Number of measurements that seconds are averaged over.
        settings: Options common to all rows, named as a recipe's.
        rows: Lines in the paper's order.
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
    return {name: read_table(Path(__file__).with_name(f"{name}.yaml")) for name in TABLES}


@cache
def paper_statements() -> Mapping[str, PaperStatement]:
    """Return all statements by name, in the order of the text.

    Example:
        >>> paper_statements()["interval"].value
        390
    """
    return read_statements(Path(__file__).with_name("text.yaml"))


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


def read_table(path: Path) -> PaperTable:
    """Read a table from a YAML file.

    Raises:
        ValueError: If a field is missing, unknown or out of range, with the file, the row and the value.
    """
    content = read_options(path)
    try:
        return _table(path.stem, content)
    except ValueError as err:
        raise ValueError(f"{path}: {err}") from err


def _table(name: str, content: dict[str, Any]) -> PaperTable:
    optional = ("figure", "seeds", "num_seeds", "num_timings")
    fields = _checked(content, _TABLE, what="table", optional=optional)
    seeds = fields.get("seeds", [])
    if not all(type(seed) is int for seed in seeds):
        raise ValueError(f"seeds must be a list of whole numbers, got {seeds!r}")
    if fields["metric"] not in BETTER:
        raise ValueError(unknown("metric", fields["metric"], BETTER))
    settings = _in_type(fields["settings"])
    common = {"settings": settings, "num_seeds": fields.get("num_seeds", len(seeds)), "metric": fields["metric"]}
    rows = []
    for position, row in enumerate(fields["rows"]):
        try:
            rows.append(_row(row, table=name, position=position, **common))
        except ValueError as err:
            raise ValueError(f"row {position}: {err}") from err
    named = {key: fields.get(key) for key in ("title", "figure", "section", "num_timings")}
    return PaperTable(name=name, seeds=tuple(seeds), rows=tuple(rows), **named, **common)  # type: ignore[arg-type]


def _row(content: Any, *, settings: Mapping[str, Any], **of_table: Any) -> PaperRow:
    fields = _checked(content, _ROW, what="row", optional=("index",))
    for name, known in {"dataset": _DATASETS, "model": _MODELS}.items():
        if fields[name] not in known:
            raise ValueError(unknown(name, fields[name], known))
    find_method(fields["method"])
    tried = {name: _tried(name, values) for name, values in fields["tried"].items()}
    if not fields["results"]:
        raise ValueError("results must be a list of at least one, got []")
    results = tuple(_result(each, tried, settings) for each in fields["results"])
    names = {name: fields[name] for name in ("dataset", "model", "method")}
    return PaperRow(index=fields.get("index"), tried=tried, results=results, settings=settings, **names, **of_table)


def _tried(name: str, values: Any) -> tuple[Any, ...]:
    if not isinstance(values, list):
        raise ValueError(f"{name} must be a list of the values tried, got {values!r}")
    checked = tuple(_in_type({name: value})[name] for value in values)
    if len(set(checked)) < len(checked):
        raise ValueError(f"{name} must be tried once each, got {values!r}")
    return checked


def _result(content: Any, tried: Mapping[str, tuple[Any, ...]], settings: Mapping[str, Any]) -> PaperResult:
    known = dict.fromkeys((*_MEASURED, *_Options.model_fields), object)
    fields = _checked(content, known, what="result", optional=(*_MEASURED[1:], *_Options.model_fields))
    for name in _MEASURED:
        if name in fields and not (_is_number(fields[name]) and fields[name] > 0):
            raise ValueError(f"{name} must be a number above 0, got {fields[name]!r}")
    measured = {name: float(fields[name]) for name in _MEASURED if name in fields}
    given = _in_type({name: each for name, each in fields.items() if name not in _MEASURED})
    for name, value in given.items():
        if value not in tried.get(name, ()):
            raise ValueError(f"{name} must be one of those tried, {tried.get(name, ())!r}, got {value!r}")
    alone = {name: values[0] for name, values in tried.items() if len(values) == 1}
    chosen = {**alone, **given}
    return PaperResult(chosen=chosen, options=_recipe_options(settings, chosen), **measured)


def _recipe_options(settings: Mapping[str, Any], chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a recipe with the settings of a table at one point of a grid."""
    options = {**settings, **chosen}
    if "restarts" in options:
        epochs, factor = options.pop("restarts")
        options.update(restart_epochs=int(epochs), restart_factor=int(factor))
    return options


def read_statements(path: Path) -> dict[str, PaperStatement]:
    """Read statements from a YAML file: sections by title, and in each its statements by name.

    Raises:
        ValueError: If a field is missing, unknown or no number, with the file, the statement and the value.
    """
    found: dict[str, PaperStatement] = {}
    for section, statements in read_options(path).items():
        if not isinstance(statements, dict):
            raise ValueError(f"{path}: {section!r}: a section must be statements by name, got {statements!r}")
        for name, content in statements.items():
            try:
                if name in found:
                    raise ValueError("a statement must be made once")
                found[name] = _statement(name, section, content)
            except ValueError as err:
                raise ValueError(f"{path}: {name!r}: {err}") from err
    return found


def _statement(name: str, section: str, content: Any) -> PaperStatement:
    fields = _checked(content, _STATEMENT, what="statement", optional=_STATEMENT)
    is_claim = "claims" in fields
    if is_claim == ("says" in fields):
        raise ValueError("a statement must have either says or claims")
    if "untested" in fields and not is_claim:
        raise ValueError("only a claim can be untested")
    value = _numbers(fields["value"]) if "value" in fields else None
    says = fields["claims" if is_claim else "says"]
    return PaperStatement(name, section, says, is_claim, value, fields.get("note"), fields.get("untested"))


def _numbers(value: Any) -> Any:
    """Return numbers as they are, lists of them as tuples."""
    if isinstance(value, dict):
        return {name: _numbers(each) for name, each in value.items()}
    if isinstance(value, list):
        return tuple(_numbers(each) for each in value)
    if not _is_number(value):
        raise ValueError(f"value must be numbers, got {value!r}")
    return value


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _checked(content: Any, kinds: Mapping[str, type], *, what: str, optional: Iterable[str]) -> dict[str, Any]:
    """Return the fields of a part of a file, if all are known, of their type and there.

    Raises:
        ValueError: Otherwise, with the field.
    """
    if not isinstance(content, dict):
        raise ValueError(f"a {what} must be fields by name, got {content!r}")
    for name, value in content.items():
        if name not in kinds:
            raise ValueError(unknown("field", str(name), kinds))
        if not isinstance(value, kinds[name]) or isinstance(value, bool):
            raise ValueError(f"{name} must be {_KINDS[kinds[name]]}, got {value!r}")
    for name in kinds:
        if name not in content and name not in optional:
            raise ValueError(f"{name} must be given")
    return content
