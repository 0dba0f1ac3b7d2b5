"""The page around the charts: one HTML file that asks nobody for anything."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any, NamedTuple

import altair as alt
import vl_convert

from tempbalance.report.text import finite, json_block, named, number, shown


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
