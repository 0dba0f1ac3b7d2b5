"""The page of a study: its tables and its charts, each with preset and data."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

import altair as alt

from tempbalance.report.page import Column, document, figure, section, table
from tempbalance.report.text import named, shown

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


@dataclass(frozen=True)
class PageTable:
    """A table of texts.

    Attributes:
        caption: What it holds.
        columns: From left to right.
        rows: A text for each column; the first one names the row.
    """

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(
                    f"a row of table {shown(self.caption)!r} must have {len(self.columns)} cells, got {len(row)}"
                )


def study_page(
    *,
    title: str,
    subtitle: str,
    about: str,
    tables: Sequence[PageTable],
    charts: Mapping[str, alt.TopLevelMixin],
    captions: Mapping[str, str],
    notes: Sequence[str],
) -> str:
    """One HTML document about a study, which opens offline.

    Args:
        title: What the study is called.
        subtitle: Preset and data; they stand under the title, with each table and on each chart.
        about: What the study asks.
        tables: From top to bottom.
        charts: By name, from top to bottom.
        captions: What each chart shows in words, by the chart's name.
        notes: What else is to be known.

    Raises:
        ValueError: If there is neither table nor chart, or a chart has no caption or no plain name.
    """
    if not tables and not charts:
        raise ValueError("a page needs at least one table or chart, got neither")
    for name in charts:
        if not _NAME.fullmatch(name):
            raise ValueError(f"the name of a chart must be letters, digits, - and _, got {name!r}")
        if name not in captions:
            raise ValueError(f"captions must have one for each chart, got none for {name!r}")
    body = [
        f"<header><p>Study</p><h1><bdi>{_text(title)}</bdi></h1></header>",
        f"<p><strong><bdi>{_text(subtitle)}</bdi></strong></p>",
        f"<p>{_text(about)}</p>" if about else "",
        *(section("Results", f"<p>{_text(subtitle)}</p>", _table(each, subtitle), _told(each)) for each in tables),
        *([section("Figures", *(figure(name, shown(captions[name])) for name in charts))] if charts else []),
        *([section("Notes", f"<ul>{''.join(f'<li>{_text(note)}</li>' for note in notes)}</ul>")] if notes else []),
    ]
    return document(f"Study: {title}", body, charts)


def _text(text: str) -> str:
    return escape(shown(text))


def _told(content: PageTable) -> str:
    return f"<p>{_text(content.caption)}</p>"


def _table(content: PageTable, subtitle: str) -> str:
    columns = [Column(shown(each.name), shown(each.meaning), each.is_number) for each in content.columns]
    bodies = [f"<tbody><tr>{_row(columns, row)}</tr></tbody>\n" for row in content.rows]
    return table(columns, bodies, caption=f"{shown(content.caption)} ({shown(subtitle)})")


def _row(columns: Sequence[Column], row: Sequence[str]) -> str:
    first, *others = (
        (f' class="number">{_text(text)}' if column.is_number else f">{named(text) if text else ''}")
        for column, text in zip(columns, row, strict=True)
    )
    return f'<th scope="row"{first}</th>' + "".join(f"<td{each}</td>" for each in others)
