"""The page around the charts: one HTML file that asks nobody for anything."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tempbalance.report.tables import Report, ResultTable, entry_text
from tempbalance.report.text import finite, json_block, named, number, shown
from tempbalance.runlog import write_whole

if TYPE_CHECKING:
    import altair as alt

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


def document(title: str, body: Sequence[str], charts: Mapping[str, alt.TopLevelMixin]) -> str:
    """The whole page.

    Args:
        title: Plain text.
        body: HTML, in which `figure` stands for each chart.
        charts: By name.
    """
    scripts = [_bundle(), _static("page.js")]
    block = json_block({name: _spec(chart) for name, chart in charts.items()})
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_policy(scripts)}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">',
            f"<title>{escape(shown(title))}</title>\n<style>\n{_static('page.css')}</style>\n</head>\n<body>\n<main>",
            *body,
            "<noscript><p>The charts and the sorting of tables need JavaScript.</p></noscript>\n</main>",
            "<footer><p>Made by tempbalance. Charts are drawn by Vega, Vega-Lite and Vega-Embed (BSD-3-Clause), "
            "which this file holds.</p></footer>",
            f'<script type="application/json" id="charts">{block}</script>',
            *(f"<script>{script}</script>" for script in scripts),
            "</body>\n</html>\n",
        ]
    )


def figure(name: str, caption: str) -> str:
    """The place of a chart: its inputs, the chart, and what it shows in words."""
    return (
        f'<figure><div class="inputs" id="inputs-{name}"></div><div class="scroll">'
        f'<div class="chart" id="chart-{name}"></div></div><figcaption>{escape(caption)}</figcaption></figure>'
    )


def section(heading: str, *content: str) -> str:
    """A part of the page under a heading."""
    return "\n".join([f"<section>\n<h2>{escape(heading)}</h2>", *content, "</section>"])


def facts(values: Mapping[str, Any]) -> str:
    """Names and values in short; values that are ``None`` or empty are not shown."""
    pairs = [
        f"<div><dt>{named(name.replace('_', ' '))}</dt><dd>{named(_plain(value))}</dd></div>"
        for name, value in values.items()
        if value is not None and value not in ({}, [])
    ]
    return f'<dl class="facts">{"".join(pairs)}</dl>'


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{_plain(each)} {name}" for name, each in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_plain, value))
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return number(value) if finite(value) is not None else str(value)


class Column(NamedTuple):
    """A column of a table: its heading, what it means, whether it holds numbers, and whether it is shown on demand."""

    name: str
    meaning: str
    is_number: bool = True
    is_more: bool = False


def table(columns: Sequence[Column], bodies: Iterable[str], *, caption: str) -> str:
    """A table that sorts by the column whose heading is clicked.

    Args:
        columns: From left to right.
        bodies: HTML of table bodies; each stays together and is sorted by its first row.
        caption: What the table holds.
    """
    heads = "".join(
        f'<th scope="col" class="{"number" if column.is_number else "text"}{" more" * column.is_more}" '
        f'aria-sort="none">'
        f'<button type="button" title="{escape(column.meaning)}">{escape(column.name)}</button></th>'
        for column in columns
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table>'
        f"<caption>{escape(caption)}</caption><thead><tr>{heads}</tr></thead>\n{''.join(bodies)}</table></div>"
    )


def cell(value: Any, digits: int = 4, *, is_more: bool = False) -> str:
    """Return a number in a table, in a column that is shown on demand if it is more."""
    return f'<td class="number{" more" * is_more}">{number(value, digits)}</td>'


def _spec(chart: alt.TopLevelMixin) -> dict[str, Any]:
    spec = chart.to_dict()
    spec["datasets"]["main"] = json.loads(spec["datasets"]["main"])
    spec["config"].update(background="transparent", font="system-ui, sans-serif")
    return spec


@cache
def _bundle() -> str:
    """Vega, Vega-Lite and Vega-Embed, with Vega's interpreter of expressions."""
    import vl_convert

    return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;").replace("</script", "<\\/script")


@cache
def _static(name: str) -> str:
    return files("tempbalance.report").joinpath("static", name).read_text(encoding="utf-8")


def _policy(scripts: Sequence[str]) -> str:
    """Only these scripts, no request, no eval; Vega writes styles, so those are allowed inline."""
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def check_places(html: Path | None, figures: Path | None) -> None:
    """Refuse places that cannot be written.

    Raises:
        ValueError: If the page's place is a folder, or that of the figures a file.
    """
    if html is not None and html.is_dir():
        raise ValueError(f"html must be a file to write, got the folder {str(html)!r}")
    if figures is not None and figures.exists() and not figures.is_dir():
        raise ValueError(f"figures must be a folder, got the file {str(figures)!r}")


def write_report(report: Report, *, html: Path | None, figures: Path | None) -> list[Path]:
    """Write the page and the charts to the places given, and return the files."""
    written = []
    if html is not None:
        write_whole(html, study_page(report).encode())
        written.append(html)
    if figures is not None:
        from tempbalance.report.chart import save_figures

        written += save_figures(report.charts, figures)
    return written


def study_page(report: Report) -> str:
    """Return one HTML document about a study, which opens offline.

    Raises:
        ValueError: If there is neither table nor chart, or a chart has no caption or no plain name.
    """
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
