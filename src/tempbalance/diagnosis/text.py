"""Rows of a diagnosis as text: a table for people, JSON or CSV for programs."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Literal

from tempbalance.ranking.table import DiagnosisRow
from tempbalance.report.text import number, shown

Format = Literal["table", "json", "csv"]
NOT_IN_CSV = ("parts", "spectra", "scale", "score", "reason", "root")

_COLUMNS = {  # heading of the table: attribute of the row
    "layer": "name",
    "shape": "shape",
    "eigenvalues": "num_eigenvalues",
    "alpha": "alpha",
    "±": "alpha_stderr",
    "KS": "ks",
    "xmin": "xmin",
    "tail": "num_tail",
    "norm": "spectral_norm",
    "stable rank": "stable_rank",
    "beyond": "num_beyond",
    "shuffled": "num_beyond_shuffled",
    "verdict": "verdict",
}


def layer_text(rows: Sequence[DiagnosisRow], *, reference: str | None = None) -> str:
    """A line for each row, below its headings; with a reference, alpha over that beside alpha."""
    columns = list(_COLUMNS.items())
    if reference is not None:
        columns.insert(list(_COLUMNS).index("±") + 1, (f"/ {reference}", "score"))
    lines = ([cell(getattr(row, name)) for _, name in columns] for row in rows)
    return aligned([[heading for heading, _ in columns], *lines])


def cell(value: Any) -> str:
    """A value in short: no control character, four digits."""
    if isinstance(value, tuple):
        return " x ".join(map(str, value))
    return shown(value) if isinstance(value, str) else number(value)


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Columns of text, two spaces apart; numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    numeric = [all(_is_number(line[index]) for line in lines[1:]) for index in range(len(widths))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        for line in lines
    )


def _is_number(cell: str) -> bool:
    try:
        return not cell or float(cell) == float(cell)
    except ValueError:
        return False


def exact(value: Any) -> str:
    """A value with all its digits."""
    return cell(value) if value is None or isinstance(value, str | tuple) else repr(value)


def sort_rows(rows: Sequence[DiagnosisRow], sort: str, *, top: int | None = None) -> list[DiagnosisRow]:
    """The rows in another order: numbers from the largest, text by the alphabet; rows without a value last.

    Args:
        rows: Of a diagnosis.
        sort: Name of a value of a row, such as ``alpha``; ``depth`` leaves the model's order.
        top: How many to keep.

    Raises:
        ValueError: If no such value exists.
    """
    names = sorted({each.name for each in fields(DiagnosisRow)} - {*NOT_IN_CSV, "shape"})
    if sort not in ("depth", *names):
        raise ValueError(f"sort must be one of depth, {', '.join(names)}, got {sort!r}")
    if sort == "depth":
        return list(rows)[:top]
    known = [row for row in rows if getattr(row, sort) is not None]
    ordered = sorted(known, key=lambda row: getattr(row, sort), reverse=not isinstance(_first(known, sort), str))
    return [*ordered, *(row for row in rows if getattr(row, sort) is None)][:top]


def _first(rows: Sequence[DiagnosisRow], name: str) -> Any:
    return getattr(rows[0], name) if rows else None


def as_json(value: Any) -> str:
    """JSON in ASCII, on several lines; what is not finite is refused."""
    return json.dumps(value, indent=2, allow_nan=False)


def as_csv(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Comma-separated values without a line end after the last."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([headings, *lines])
    return text.getvalue().rstrip("\n")
