"""A study's findings as text, page and files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from tempbalance.lab.findings import Findings
from tempbalance.lab.methods import unknown
from tempbalance.lab.study import Presentation, Study
from tempbalance.lab.tables import FORMS, ResultTable, entry_text, to_csv, to_latex, to_rich
from tempbalance.runlog import write_whole

if TYPE_CHECKING:
    from tempbalance.report.study_page import PageTable


def check_form(form: str) -> None:
    """Refuse a form that is not known.

    Raises:
        ValueError: It names the closest.
    """
    if form not in FORMS:
        raise ValueError(unknown("format", form, FORMS))


def check_places(html: Path | None, figures: Path | None) -> None:
    """Refuse places that cannot be written.

    Raises:
        ValueError: If the page's place is a folder, or that of the figures a file.
    """
    if html is not None and html.is_dir():
        raise ValueError(f"html must be a file to write, got the folder {str(html)!r}")
    if figures is not None and figures.exists() and not figures.is_dir():
        raise ValueError(f"figures must be a folder, got the file {str(figures)!r}")


def print_findings(findings: Findings, shown: Presentation, form: str, console: Console) -> None:
    """Print tables, and for people what they say, in one of `FORMS`."""
    for number, table in enumerate(shown.tables):
        if form == "csv":
            console.out("\n" * (number > 0), end="")
            setting = findings.subtitle.partition(": ")[2]
            text = to_csv(table, study=findings.name, preset=findings.preset.name, conditions=setting)
            console.out(text, end="", highlight=False)
        elif form == "latex":
            text = to_latex(table, findings.subtitle, label=f"{findings.name}-{findings.preset.name}")
            console.out(text, end="", highlight=False)
        else:
            for part in (findings.subtitle, to_rich(table), table.caption):
                console.print(part, markup=False, highlight=False)
    if form == "table":
        for note in (*notes(findings), *shown.notes):
            console.print(note, markup=False, highlight=False, soft_wrap=True)


def notes(findings: Findings) -> list[str]:
    """What is to be known of the runs: that there are none yet, or that some are damaged and left out."""
    told = [f"left out: {damage}" for damage in findings.damaged]
    if findings.cells and findings.num_runs[0] == 0:
        told.append(f"no run is complete yet: tempbalance study run {findings.name} --preset {findings.preset.name}")
    return told


def write_findings(
    study: Study, findings: Findings, shown: Presentation, *, html: Path | None, figures: Path | None
) -> list[Path]:
    """Write the page and the charts, where there is a place for them.

    Returns:
        What was written.
    """
    written = []
    if html is not None:
        write_whole(html, _page(study, findings, shown).encode())
        written.append(html)
    if figures is not None:
        from tempbalance.report import save_figures

        written += save_figures(shown.charts, figures)
    return written


def _page(study: Study, findings: Findings, shown: Presentation) -> str:
    from tempbalance.report.study_page import study_page

    figures = f"; the paper's figure {', '.join(study.figures)}" if study.figures else ""
    about = f"{study.varies}{figures}."
    return study_page(
        title=f"{study.name}: {study.title}",
        subtitle=findings.subtitle,
        about=about[0].upper() + about[1:],
        tables=[_page_table(table) for table in shown.tables],
        charts=shown.charts,
        captions=shown.captions,
        notes=[*notes(findings), *shown.notes],
    )


def _page_table(table: ResultTable) -> PageTable:
    from tempbalance.report.page import Column
    from tempbalance.report.study_page import PageTable

    columns = tuple(Column(name, name, table.is_number(index)) for index, name in enumerate(table.columns))
    return PageTable(table.caption, columns, tuple(tuple(map(entry_text, row)) for row in table.rows))
