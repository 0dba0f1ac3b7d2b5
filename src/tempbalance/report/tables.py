"""Results of a study as tables, charts and notes; printed to a terminal, as CSV and as LaTeX."""

from __future__ import annotations

import csv
import io
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    import altair as alt
    from rich.console import Console

FORMS = ("table", "csv", "latex")
_SPECIAL = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$",
}  # fmt: skip


@dataclass(frozen=True)
class Number:
    """Number in a table."""

    value: float  # which CSV has with all digits
    spread: float | None = None  # printed after ±
    digits: int = 2  # after the point
    signed: bool = False
    note: str = ""  # printed after the number, except in CSV
    least: float | None = None  # smaller values read "< least", as p-values do

    def text(self, plus_minus: str = " ± ") -> str:
        """Return the rounded number with its spread."""
        if self.least is not None and self.value < self.least:
            return f"< {self.least:g}"
        text = f"{self.value:{'+' if self.signed else ''}.{self.digits}f}"
        return text if self.spread is None else f"{text}{plus_minus}{self.spread:.{self.digits}f}"

    def __str__(self) -> str:
        return f"{self.text()} {self.note}".rstrip()


Entry = str | Number | None


@dataclass(frozen=True)
class ResultTable:
    """Table of results; the caption is printed after the study's preset and data, the heading on a page."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Entry]]
    # columns whose numbers have a spread once there are any, and a note; files have these from the first run on
    spread: Container[str] = ()
    noted: Container[str] = ()
    prose: Container[str] = ()  # columns of sentences, which a page wraps instead of cutting them
    kept: Container[str] = ()  # columns that are shown even if all rows have the same entry
    heading: str = "Results"

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"a row of table {self.caption!r} must have {len(self.columns)} cells, got {len(row)}")

    def is_number(self, column: int) -> bool:
        return any(isinstance(row[column], Number) for row in self.rows)


@dataclass(frozen=True)
class Report:
    """Results of a study: charts and their captions by name, which becomes the name of a file."""

    tables: Sequence[ResultTable]
    charts: Mapping[str, alt.TopLevelMixin]
    captions: Mapping[str, str]
    notes: Sequence[str] = ()
    study: str = ""  # name that each row of a CSV file has, as the preset's
    preset: str = ""
    title: str = ""
    subtitle: str = ""  # preset and data; printed under the title, with each table and on each chart
    about: str = ""  # what the study varies, in a sentence


def entry_text(entry: Entry) -> str:
    return "" if entry is None else str(entry)


def folded(table: ResultTable) -> tuple[str, list[int]]:
    """Return the entries that all of several rows have in common, as text, and the places of the other columns."""
    common, others = [], []
    for i, name in enumerate(table.columns):
        texts = [entry_text(row[i]) for row in table.rows]
        if len(texts) < 2 or name in table.kept or len(set(texts)) > 1:
            others.append(i)
        elif texts[0]:
            common.append(f"{name} {texts[0]}")
    return ", ".join(common), others


def to_rich(table: ResultTable) -> Table:
    """Return the table for a terminal. A column with the same entry in all rows is printed above the table instead."""
    common, places = folded(table)
    found = Table(title=Text(common) if common else None, title_justify="left")
    for i in places:
        found.add_column(table.columns[i], justify="right" if table.is_number(i) else "left", overflow="fold")
    for row in table.rows:
        found.add_row(*(Text(entry_text(row[i])) for i in places))
    return found


def to_csv(table: ResultTable, **everywhere: str) -> str:
    """Return CSV with all digits; spreads and notes have their own columns, ``everywhere`` is added to each row."""
    header = [*everywhere]
    for name in table.columns:
        header += [name, *([f"{name} ±"] * (name in table.spread)), *([f"{name} of"] * (name in table.noted))]
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(header)
    for row in table.rows:
        cells = [*everywhere.values()]
        for name, entry in zip(table.columns, row, strict=True):
            number = entry if isinstance(entry, Number) else None
            cells.append(repr(number.value) if number else entry_text(entry))
            if name in table.spread:
                cells.append("" if number is None or number.spread is None else repr(number.spread))
            if name in table.noted:
                cells.append(number.note.strip("()") if number else "")
        writer.writerow(cells)
    return buffer.getvalue()


def to_latex(table: ResultTable, subtitle: str, *, label: str) -> str:
    """Return a ``table`` with a ``tabular``, which needs no LaTeX package."""
    alignment = "".join("r" if table.is_number(i) else "l" for i in range(len(table.columns)))
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_latex(subtitle)}. {_latex(table.caption)}}}",
        rf"\label{{tab:{label}}}",
        rf"\begin{{tabular}}{{{alignment}}}",
        " & ".join(map(_latex, table.columns)) + r" \\ \hline",
        *(" & ".join(map(_latex, row)) + r" \\" for row in table.rows),
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _latex(entry: Entry) -> str:
    if isinstance(entry, Number):
        number = entry.text(r" \pm ")
        return f"${number}$ {_latex(entry.note)}".rstrip()
    return "".join(_SPECIAL.get(char, char) for char in entry or "")


def print_report(report: Report, form: str, console: Console) -> None:
    """Print the tables in one of `FORMS`; ``table`` has the captions and notes too."""
    conditions = report.subtitle.partition(": ")[2]
    for number, table in enumerate(report.tables):
        if form == "csv":
            text = to_csv(table, study=report.study, preset=report.preset, conditions=conditions)
            console.out("\n" * (number > 0) + text, end="", highlight=False)
        elif form == "latex":
            text = to_latex(table, report.subtitle, label=f"{report.study}-{report.preset}")
            console.out(text, end="", highlight=False)
        else:
            for part in (report.subtitle, to_rich(table), table.caption):
                console.print(part, markup=False, highlight=False)
    for note in report.notes if form == "table" else ():
        console.print(note, markup=False, highlight=False, soft_wrap=True)
