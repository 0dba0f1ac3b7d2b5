"""Rows as columns of text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tempbalance.ranking.table import DiagnosisRow
from tempbalance.report.text import number, shown

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
