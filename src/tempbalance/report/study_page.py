"""Report of a study: its tables, charts and notes in a terminal, as files and as a page."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from tempbalance.report.tables import ResultTable, entry_text, to_csv, to_latex, to_rich
from tempbalance.report.text import named, shown
from tempbalance.runlog import write_whole

if TYPE_CHECKING:
    import altair as alt
    from rich.console import Console

    from tempbalance.report.page import Column

FORMS = ("table", "csv", "latex")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


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


def check_places(html: Path | None, figures: Path | None) -> None:
    """Refuse places that cannot be written.

    Raises:
        ValueError: If the page's place is a folder, or that of the figures a file.
    """
    if html is not None and html.is_dir():
        raise ValueError(f"html must be a file to write, got the folder {str(html)!r}")
    if figures is not None and figures.exists() and not figures.is_dir():
        raise ValueError(f"figures must be a folder, got the file {str(figures)!r}")


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


def write_report(report: Report, *, html: Path | None, figures: Path | None) -> list[Path]:
    """Write the page and the charts to the places given, and return the files."""
    written = []
    if html is not None:
        write_whole(html, study_page(report).encode())
        written.append(html)
    if figures is not None:
        from tempbalance.report import save_figures

        written += save_figures(report.charts, figures)
    return written


def study_page(report: Report) -> str:
    """Return one HTML document about a study, which opens offline.

    Raises:
        ValueError: If there is neither table nor chart, or a chart has no caption or no plain name.
    """
    from tempbalance.report.page import document, figure, section

    charts, captions, subtitle = report.charts, report.captions, _text(report.subtitle)
    if not report.tables and not charts:
        raise ValueError("a page needs at least one table or chart, got neither")
    for name in charts:
        if not _NAME.fullmatch(name):
            raise ValueError(f"the name of a chart must be letters, digits, - and _, got {name!r}")
        if name not in captions:
            raise ValueError(f"captions must have one for each chart, got none for {name!r}")
    body = [
        f"<header><p>Study</p><h1><bdi>{_text(report.title)}</bdi></h1></header>",
        f"<p><strong><bdi>{subtitle}</bdi></strong></p>",
        f"<p>{_text(report.about)}</p>" if report.about else "",
    ]
    for table in report.tables:
        parts = (f"<p>{subtitle}</p>", _html_table(table, report.subtitle), f"<p>{_text(table.caption)}</p>")
        body.append(section(table.heading, *parts))
    if charts:
        body.append(section("Figures", *(figure(name, shown(captions[name])) for name in charts)))
    if report.notes:
        body.append(section("Notes", f"<ul>{''.join(f'<li>{_text(note)}</li>' for note in report.notes)}</ul>"))
    return document(f"Study: {report.title}", body, charts)


def _text(text: str) -> str:
    return escape(shown(text))


def _html_cell(column: Column, text: str, is_prose: bool) -> str:
    """Return attributes and content of a cell."""
    if column.is_number:
        return f' class="number">{_text(text)}'
    if is_prose:
        return f' style="white-space: normal; min-width: 15em">{_text(text)}'
    return f">{named(text) if text else ''}"


def _html_table(content: ResultTable, subtitle: str) -> str:
    from tempbalance.report.page import Column, table

    names = map(shown, content.columns)
    columns = [Column(name, name, content.is_number(place)) for place, name in enumerate(names)]
    bodies = []
    for row in content.rows:
        first, *others = map(
            _html_cell, columns, map(entry_text, row), (name in content.prose for name in content.columns)
        )
        cells = "".join(f"<td{each}</td>" for each in others)
        bodies.append(f'<tbody><tr><th scope="row"{first}</th>{cells}</tr></tbody>\n')
    return table(columns, bodies, caption=f"{shown(content.caption)} ({shown(subtitle)})")
