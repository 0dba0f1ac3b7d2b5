"""Pages: single HTML files that open offline, from jinja2 templates that escape all text."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from tempbalance.report.tables import Report, ResultTable, entry_text, folded
from tempbalance.report.text import finite, json_block, number, short, shown
from tempbalance.runlog import write_whole

if TYPE_CHECKING:
    import altair as alt

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


class Column(NamedTuple):
    """A column of a table: its heading, its meaning, whether it holds numbers, and whether it is shown on demand."""

    name: str
    meaning: str
    is_number: bool = True
    is_more: bool = False


def render(template: str, *, title: str, charts: Mapping[str, alt.TopLevelMixin], **content: Any) -> str:
    """Return a page.

    Args:
        template: File in ``templates``.
        title: Plain text.
        charts: By name.
        content: Further values for the template.
    """
    scripts = [_bundle(), _file("page.js")]
    look = {"background": "transparent", "font": "system-ui, sans-serif"}
    found = {name: chart.to_dict() for name, chart in charts.items()}
    specs = json_block({name: {**spec, "config": spec["config"] | look} for name, spec in found.items()})
    safe = {"style": _file("page.css"), "policy": _policy(scripts), "specs": specs}
    return (
        _templates()
        .get_template(template)
        .render(
            **{name: Markup(text) for name, text in safe.items()},  # ours, or escaped as JSON
            scripts=[Markup(script) for script in scripts],
            title=title,
            charts=charts,
            **content,
        )
    )


@cache
def _templates() -> Environment:
    """Return the templates. All text is escaped, and characters that are not seen are shown as their escapes."""

    def seen(value: Any) -> Any:
        return shown(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    templates = Environment(
        loader=PackageLoader("tempbalance.report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=seen,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters["short"] = short
    return templates


def facts(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return names and values as text; values that are ``None`` or empty are skipped."""
    return [
        (name.replace("_", " "), _plain(value))
        for name, value in values.items()
        if value is not None and value not in ({}, [])
    ]


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{_plain(each)} {name}" for name, each in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_plain, value))
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return number(value) if finite(value) is not None else str(value)


def table_content(table: ResultTable) -> dict[str, Any]:
    """Return a table as the template ``results`` takes it, without the columns that are the same in all rows."""
    common, places = folded(table)
    kinds = {
        place: "number" if table.is_number(place) else "prose" if table.columns[place] in table.prose else "name"
        for place in places
    }
    return {
        "heading": table.heading,
        "caption": table.caption,
        "common": common,
        "columns": [Column(name := table.columns[place], name, kinds[place] == "number") for place in places],
        "rows": [[(kinds[place], entry_text(row[place])) for place in places] for row in table.rows],
    }


@cache
def _bundle() -> str:
    """Return Vega, Vega-Lite and Vega-Embed, with Vega's interpreter of expressions."""
    import vl_convert

    return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;").replace("</script", "<\\/script")


@cache
def _file(name: str) -> str:
    return files("tempbalance.report").joinpath("templates", name).read_text(encoding="utf-8")


def _policy(scripts: Sequence[str]) -> str:
    """Allow these scripts, no request, no eval; Vega writes styles, so those are allowed inline."""
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def study_page(report: Report) -> str:
    """Return one HTML document about a study, which opens offline.

    Raises:
        ValueError: If there is neither table nor chart, or a chart has no caption or no plain name.
    """
    if not report.tables and not report.charts:
        raise ValueError("a page needs at least one table or chart, got neither")
    for name in report.charts:
        if not _NAME.fullmatch(name):
            raise ValueError(f"the name of a chart must be letters, digits, - and _, got {name!r}")
        if name not in report.captions:
            raise ValueError(f"captions must have one for each chart, got none for {name!r}")
    tables = [table_content(table) for table in report.tables]
    return render("study.html", title=f"Study: {report.title}", charts=report.charts, report=report, tables=tables)


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
