"""The tables of the paper: what was tried on what, what was best, and what came out.

A file is a table, with the settings that its caption or the text states for all of it, and its lines in the paper's
order. A line says every value that was tried of every option, and of each result at which of them it was: in some
tables a line has one, at the values in bold, in others one for each point.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from tempbalance.errors import unknown
from tempbalance.lab.images.recipe import MODELS, ImageRecipe
from tempbalance.lab.methods import find_method
from tempbalance.lab.options import DATASETS, Count, Number, Pair, Share, read_options
from tempbalance.lab.paper.fields import check_fields
from tempbalance.lab.paper.rows import BETTER, PaperResult, PaperRow, PaperTable, recipe_options

TABLES = ("main", "optimizers", "learning_rate", "width", "score", "tail", "detection", "language")

_DATASETS = (*DATASETS, "voc2007", "penn_treebank")
_MODELS = (*MODELS, "yolov8n", "tensorized_transformer")


class _Options(ImageRecipe):
    """Options that the tables name: those of images, and some of language models."""

    restarts: Pair | None = None  # restart_epochs and restart_factor, tried in pairs
    betas: Pair | None = None
    eps: Number | None = None
    dropout: Share | None = None
    iterations: Count | None = None
    interval_iterations: Count | None = None


_TABLE = {
    "title": str, "figure": str, "section": str, "metric": str, "seeds": list, "num_seeds": int, "num_timings": int,
    "settings": dict, "rows": list,
}  # fmt: skip
_ROW = {"index": int, "dataset": str, "model": str, "method": str, "tried": dict, "results": list}
_MEASURED = ("mean", "std", "seconds", "seconds_std")


@cache
def paper_tables() -> Mapping[str, PaperTable]:
    """All tables by name.

    Example:
        >>> paper_tables()["main"].rows[2].best.mean
        78.97
    """
    return {name: read_table(Path(__file__).with_name(f"{name}.yaml")) for name in TABLES}


def find_rows(
    *, table: str | None = None, dataset: str | None = None, model: str | None = None, method: str | None = None
) -> list[PaperRow]:
    """The rows that are of all that is given, in the order of the tables.

    Args:
        table: Only of this one.
        dataset: As the lab names it; one that the paper does not have has no rows.
        model: Likewise.
        method: Likewise.

    Raises:
        ValueError: If there is no such table.
    """
    if table is not None and table not in TABLES:
        raise ValueError(unknown("table", table, TABLES))
    wanted = {"table": table, "dataset": dataset, "model": model, "method": method}
    return [
        row
        for each in paper_tables().values()
        for row in each.rows
        if all(value is None or getattr(row, name) == value for name, value in wanted.items())
    ]


def read_table(path: Path) -> PaperTable:
    """The table in a YAML file, checked.

    Raises:
        ValueError: If anything is missing, not known or out of range; it names the file, the row and the value.
    """
    content = read_options(path)
    try:
        return _table(path.stem, content)
    except ValueError as err:
        raise ValueError(f"{path}: {err}") from err


def _table(name: str, content: dict[str, Any]) -> PaperTable:
    optional = ("figure", "seeds", "num_seeds", "num_timings")
    fields = check_fields(content, _TABLE, what="table", optional=optional)
    seeds = fields.get("seeds", [])
    if not all(type(seed) is int for seed in seeds):
        raise ValueError(f"seeds must be a list of whole numbers, got {seeds!r}")
    if fields["metric"] not in BETTER:
        raise ValueError(unknown("metric", fields["metric"], BETTER))
    common = {
        "settings": _checked(fields["settings"]),
        "num_seeds": fields.get("num_seeds", len(seeds)),
        "metric": fields["metric"],
    }
    rows = []
    for position, row in enumerate(fields["rows"]):
        try:
            rows.append(_row(row, table=name, position=position, **common))
        except ValueError as err:
            raise ValueError(f"row {position}: {err}") from err
    return PaperTable(
        name=name,
        title=fields["title"],
        figure=fields.get("figure"),
        section=fields["section"],
        seeds=tuple(seeds),
        num_timings=fields.get("num_timings"),
        rows=tuple(rows),
        **common,
    )


def _row(content: Any, *, settings: Mapping[str, Any], **of_table: Any) -> PaperRow:
    fields = check_fields(content, _ROW, what="row", optional=("index",))
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
    """The values that were tried of an option."""
    if not isinstance(values, list):
        raise ValueError(f"{name} must be a list of what was tried, got {values!r}")
    checked = tuple(_checked({name: value})[name] for value in values)
    if len(set(checked)) < len(checked):
        raise ValueError(f"{name} must be tried once each, got {values!r}")
    return checked


def _result(content: Any, tried: Mapping[str, tuple[Any, ...]], settings: Mapping[str, Any]) -> PaperResult:
    known = dict.fromkeys((*_MEASURED, *_Options.model_fields), object)
    fields = check_fields(content, known, what="result", optional=(*_MEASURED[1:], *_Options.model_fields))
    measured = {name: _number(name, fields[name]) for name in _MEASURED if name in fields}
    given = _checked({name: each for name, each in fields.items() if name not in _MEASURED})
    for name, value in given.items():
        if value not in tried.get(name, ()):
            raise ValueError(f"{name} must be one of those tried, {tried.get(name, ())!r}, got {value!r}")
    alone = {name: values[0] for name, values in tried.items() if len(values) == 1}
    chosen = {**alone, **given}
    return PaperResult(chosen=chosen, options=recipe_options(settings, chosen), **measured)


def _checked(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options in their types."""
    made = vars(_Options.from_dict(options))
    return {name: made[name] for name in options}


def _number(name: str, value: Any) -> float:
    if type(value) not in (int, float) or not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be a number above 0, got {value!r}")
    return float(value)
