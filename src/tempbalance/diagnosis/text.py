"""Rows of a diagnosis as text: a table for people, JSON or CSV for programs."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any, Literal

from tempbalance.ranking.table import DiagnosisRow
from tempbalance.report.text import number, short

Format = Literal["table", "json", "csv"]
WIDTH = 100  # characters of a table that is not asked to be wide
_MOST_TEXT = 160  # characters of a name or reason; JSON has whole names
_FORMULA = ("=", "+", "-", "@")
_LEAST_NAME = 24
_NUMBER = re.compile(r"(-?[0-9]+\.?[0-9]*(e[+-][0-9]+)?)?")
_NARROW = {"layer": "name", "shape": "shape", "alpha": "alpha", "/ random": "alpha_over_random", "verdict": "verdict"}
_WIDE = {  # heading of the table: attribute of the row
    "layer": "name", "shape": "shape", "eigenvalues": "num_eigenvalues", "alpha": "alpha", "±": "alpha_stderr",
    "/ random": "alpha_over_random", "KS": "ks", "xmin": "xmin", "tail": "num_tail", "norm": "spectral_norm",
    "stable rank": "stable_rank", "beyond": "num_beyond", "shuffled": "num_beyond_shuffled", "excess": "excess",
    "verdict": "verdict",
}  # fmt: skip
_DECIMALS = {"alpha_over_random": 2, "excess": 3}  # of columns in which every number has as many
_NOT_IN_CSV = ("parts", "spectra", "scale", "scales", "score", "compared", "reason", "root")
CSV_COLUMNS = tuple(each.name for each in fields(DiagnosisRow) if each.name not in _NOT_IN_CSV)


def layer_text(rows: Sequence[DiagnosisRow], *, wide: bool = False) -> str:
    """Return a line for each row below its headings, of at most 100 characters unless all columns are shown (wide)."""
    columns = _WIDE if wide else _NARROW
    lines = [[_cell_of(row, name) for name in columns.values()] for row in rows]
    table = [list(columns), *lines]
    if not wide:
        others = sum(2 + max(len(line[place]) for line in table) for place in range(1, len(columns)))
        most = max(_LEAST_NAME, WIDTH - others)
        table = [[short(line[0], most) if len(line[0]) > most else line[0], *line[1:]] for line in table]
    return aligned(table)


def _cell_of(row: DiagnosisRow, name: str) -> str:
    value = getattr(row, name)
    return cell(value) if value is None or name not in _DECIMALS else f"{value:.{_DECIMALS[name]}f}"


def layer_csv(rows: Sequence[DiagnosisRow]) -> str:
    """Return comma-separated values with all digits."""
    return tabulated(CSV_COLUMNS, [[getattr(row, name) for name in CSV_COLUMNS] for row in rows], "csv")


def sort_rows(rows: Sequence[DiagnosisRow], sort: str, *, top: int | None = None) -> list[DiagnosisRow]:
    """Return the top rows by a value, the largest numbers or first letters; ``depth`` leaves the model's order."""
    names = sorted({*CSV_COLUMNS} - {"shape", "evidence"})
    if sort not in ("depth", *names):
        raise ValueError(f"sort must be one of depth, {', '.join(names)}, got {sort!r}")
    if sort == "depth":
        return list(rows)[:top]
    known = [row for row in rows if getattr(row, sort) is not None]
    descending = not any(isinstance(getattr(row, sort), str) for row in known)
    ordered = sorted(known, key=lambda row: getattr(row, sort), reverse=descending)
    return [*ordered, *(row for row in rows if getattr(row, sort) is None)][:top]


def cell(value: Any) -> str:
    """Return a value in short: text without control characters and cut, numbers with four digits."""
    if isinstance(value, tuple):
        return " x ".join(map(str, value))
    return number(value) if not isinstance(value, str) else short(value, _MOST_TEXT) if value else ""


def exact(value: Any) -> str:
    """Return a value for CSV: numbers with all digits, and text that no spreadsheet takes for a formula."""
    if value is None or isinstance(value, tuple):
        return cell(value)
    if not isinstance(value, str):
        return repr(value)
    return f"'{cell(value)}" if value.startswith(_FORMULA) else cell(value)


def tabulated(headings: Sequence[str], rows: Iterable[Iterable[Any]], form: Format) -> str:
    """Return rows of values below their headings, as a table or as comma-separated values."""
    if form == "table":
        return aligned([headings, *([cell(value) for value in row] for row in rows)])
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([headings, *(map(exact, row) for row in rows)])
    return text.getvalue().rstrip("\n")


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Return columns of text, two spaces apart; numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    # names in the first column are text, also those of nn.Sequential
    are_numbers = [all(_NUMBER.fullmatch(cell) for cell in column[1:]) for column in zip(*lines, strict=True)]
    pads = [str.rjust if index and each else str.ljust for index, each in enumerate(are_numbers)]
    padded = ([pad(cell, width) for pad, cell, width in zip(pads, line, widths, strict=True)] for line in lines)
    return "\n".join("  ".join(cells).rstrip() for cells in padded)


def as_json(value: Any) -> str:
    """Return JSON in ASCII on several lines; a number that is not finite is an error."""
    return json.dumps(value, indent=2, allow_nan=False)
