"""Pages: single HTML files that open offline, from jinja2 templates that escape all text."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Mapping
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


class Column(NamedTuple):
    """A column of a table: its heading, its meaning, and whether it holds numbers and is shown on demand only."""

    name: str
    meaning: str
    field: str = ""  # that its numbers are from
    is_number: bool = True
    is_more: bool = False
    digits: int = 4


def render(template: str, *, title: str, charts: Mapping[str, alt.TopLevelMixin], **content: Any) -> str:
    """Return a page with charts by name, from a file in ``templates`` and further values for it."""
    scripts = [_vega(), _file("page.js")]
    look = {"background": "transparent", "font": "system-ui, sans-serif"}
    found = {name: chart.to_dict() for name, chart in charts.items()}
    specs = json_block({name: {**spec, "config": spec["config"] | look} for name, spec in found.items()})
    safe = {"style": _file("page.css"), "policy": _policy(scripts), "specs": specs}  # ours, or escaped as JSON
    given = {name: Markup(text) for name, text in safe.items()}
    page = _templates().get_template(template)
    return page.render(scripts=[Markup(each) for each in scripts], title=title, charts=charts, **given, **content)


@cache
def _templates() -> Environment:
    """Return the templates. All text is escaped, and characters that are not seen are shown as their escapes."""

    def seen(value: Any) -> Any:
        return shown(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    options: dict[str, Any] = {"autoescape": True, "undefined": StrictUndefined, "finalize": seen}
    loader = PackageLoader("tempbalance.report")
    templates = Environment(loader=loader, trim_blocks=True, lstrip_blocks=True, **options)
    templates.filters["short"] = short
    return templates


@cache
def _vega() -> str:
    """Return Vega, Vega-Lite and Vega-Embed, with Vega's interpreter of expressions."""
    import vl_convert

    return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;").replace("</script", "<\\/script")


def _file(name: str) -> str:
    return files("tempbalance.report").joinpath("templates", name).read_text(encoding="utf-8")


def _policy(scripts: list[str]) -> str:
    """Allow these scripts, no request, no eval; Vega writes styles, so those are allowed inline."""
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def facts(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return names and values as text; values that are ``None`` or empty are skipped."""
    there = {name: value for name, value in values.items() if value is not None and value not in ({}, [])}
    return [(name.replace("_", " "), _plain(value)) for name, value in there.items()]


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
    columns = [Column(table.columns[i], table.columns[i], is_number=kinds[i] == "number") for i in places]
    rows = [[(kinds[place], entry_text(row[place])) for place in places] for row in table.rows]
    return {
        "heading": table.heading, "caption": table.caption, "common": common, "columns": columns, "rows": rows
    }  # fmt: skip


def study_page(report: Report) -> str:
    """Return one HTML document about a study, which opens offline."""
    if not report.tables and not report.charts:
        raise ValueError("a page needs at least one table or chart, got neither")
    for name in report.charts:
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", name):
            raise ValueError(f"the name of a chart must be letters, digits, - and _, got {name!r}")
        if name not in report.captions:
            raise ValueError(f"captions must have one for each chart, got none for {name!r}")
    tables = [table_content(table) for table in report.tables]
    return render("study.html", title=f"Study: {report.title}", charts=report.charts, report=report, tables=tables)


def check_places(html: Path | None, figures: Path | None) -> None:
    """Refuse places that cannot be written."""
    if html is not None and html.is_dir():
        raise ValueError(f"html must be a file to write, got the folder {str(html)!r}")
    if figures is not None and figures.exists() and not figures.is_dir():
        raise ValueError(f"figures must be a folder, got the file {str(figures)!r}")


def write_report(report: Report, *, html: Path | None, figures: Path | None) -> list[Path]:
    """Write the page and the charts to the places given, and return the files."""
    return write_files(html, figures, page=lambda: study_page(report), charts=lambda: report.charts)


def write_files(
    html: Path | None,
    figures: Path | None,
    *,
    page: Callable[[], str],
    charts: Callable[[], Mapping[str, alt.TopLevelMixin]],
) -> list[Path]:
    written = []
    if html is not None:
        write_whole(html, page().encode())
        written.append(html)
    if figures is not None:
        from tempbalance.report.chart import save_figures

        written += save_figures(charts(), figures)
    return written
