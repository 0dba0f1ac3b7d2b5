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


@dataclass(frozen=True)
class Number:
    """Number in a table.

    Attributes:
        value: The number, which CSV has with all digits.
        spread: Printed after ±.
        digits: Digits after the point.
        signed: Whether a plus is written.
        note: Printed after the number, except in CSV.
        least: Smaller values read "< least", as p-values do.
    """

    value: float
    spread: float | None = None
    digits: int = 2
    signed: bool = False
    note: str = ""
    least: float | None = None

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
    """Table of results.

    Attributes:
        caption: Contents; printed after the study's preset and data.
        columns: Headings.
        rows: Entries, one per heading.
        spread: Columns whose numbers have a spread once there are any. Files have these columns from the first run on.
        noted: Columns whose numbers have a note.
        prose: Columns of sentences, which a page wraps instead of cutting them.
        kept: Columns that are shown even if all rows have the same entry.
        heading: Heading on a page.
    """

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Entry]]
    spread: Container[str] = ()
    noted: Container[str] = ()
    prose: Container[str] = ()
    kept: Container[str] = ()
    heading: str = "Results"

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"a row of table {self.caption!r} must have {len(self.columns)} cells, got {len(row)}")

    def is_number(self, column: int) -> bool:
        """Whether a column holds numbers."""
        return any(isinstance(row[column], Number) for row in self.rows)


@dataclass(frozen=True)
class Report:
    """Results of a study.

    Attributes:
        tables: Tables from top to bottom.
        charts: Charts by name, which becomes the name of a file.
        captions: Description of each chart by the same names.
        notes: Sentences about the results.
        study, preset: Names that each row of a CSV file has.
        title: Heading of the page.
        subtitle: Preset and data; printed under the title, with each table and on each chart.
        about: What the study varies, in a sentence.
    """

    tables: Sequence[ResultTable]
    charts: Mapping[str, alt.TopLevelMixin]
    captions: Mapping[str, str]
    notes: Sequence[str] = ()
    study: str = ""
    preset: str = ""
    title: str = ""
    subtitle: str = ""
    about: str = ""


def entry_text(entry: Entry) -> str:
    """Return an entry as text."""
    return "" if entry is None else str(entry)


def folded(table: ResultTable) -> tuple[str, list[int]]:
    """Return the entries that all of several rows have in common, as text, and the places of the other columns."""
    places = [i for i in _range(table) if len(table.rows) > 1 and table.columns[i] not in table.kept]
    same = {i for i in places if len({entry_text(row[i]) for row in table.rows}) == 1}
    common = [f"{table.columns[i]} {text}" for i in sorted(same) if (text := entry_text(table.rows[0][i]))]
    return ", ".join(common), sorted({*_range(table)} - same)


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
        header.append(name)
        header += [f"{name} ±"] if name in table.spread else []
        header += [f"{name} of"] if name in table.noted else []
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(header)
    for row in table.rows:
        cells: list[str] = [*everywhere.values()]
        for name, entry in zip(table.columns, row, strict=True):
            width = _spread(entry)
            cells.append(repr(entry.value) if isinstance(entry, Number) else entry or "")
            cells += ["" if width is None else repr(width)] if name in table.spread else []
            cells += [_note(entry).strip("()")] if name in table.noted else []
        writer.writerow(cells)
    return buffer.getvalue()


def to_latex(table: ResultTable, subtitle: str, *, label: str) -> str:
    """Return a ``table`` with a ``tabular``, which needs no LaTeX package."""
    alignment = "".join("r" if table.is_number(i) else "l" for i in _range(table))
    lines = [" & ".join(map(_latex, table.columns))]
    for row in table.rows:
        lines.append(" & ".join(_latex_entry(entry) for entry in row))
    body = [lines[0] + r" \\ \hline", *(line + r" \\" for line in lines[1:])]
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_latex(subtitle)}. {_latex(table.caption)}}}",
            rf"\label{{tab:{label}}}",
            rf"\begin{{tabular}}{{{alignment}}}",
            *body,
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def _spread(entry: Entry) -> float | None:
    return entry.spread if isinstance(entry, Number) else None


def _note(entry: Entry) -> str:
    return entry.note if isinstance(entry, Number) else ""


def _range(table: ResultTable) -> range:
    return range(len(table.columns))


def _latex_entry(entry: Entry) -> str:
    if isinstance(entry, Number):
        return f"${entry.text(_PLUS_MINUS)}$ {_latex(entry.note)}".rstrip()
    return _latex(entry or "")


_PLUS_MINUS = r" \pm "
_SPECIAL = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$",
}  # fmt: skip


def _latex(text: str) -> str:
    return "".join(_SPECIAL.get(char, char) for char in text)


def print_report(report: Report, form: str, console: Console) -> None:
    """Print the tables in one of `FORMS`; ``table`` has the captions and notes too."""
    for number, table in enumerate(report.tables):
        if form == "csv":
            console.out("\n" * (number > 0), end="")
            conditions = report.subtitle.partition(": ")[2]
            text = to_csv(table, study=report.study, preset=report.preset, conditions=conditions)
            console.out(text, end="", highlight=False)
        elif form == "latex":
            text = to_latex(table, report.subtitle, label=f"{report.study}-{report.preset}")
            console.out(text, end="", highlight=False)
        else:
            for part in (report.subtitle, to_rich(table), table.caption):
                console.print(part, markup=False, highlight=False)
    for note in report.notes if form == "table" else ():
        console.print(note, markup=False, highlight=False, soft_wrap=True)
