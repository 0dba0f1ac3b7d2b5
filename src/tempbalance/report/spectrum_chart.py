"""Spectra on log axes with threshold and fitted line, as in the paper's Figure 1: one to choose, or several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from tempbalance.report.histogram import spectrum_datum
from tempbalance.report.look import BLUE, DATA, INK, RED, finish
from tempbalance.report.panels import Panel, check, panels_chart


def spectrum_chart(
    data: list[dict[str, Any]], *, chosen: str, title: str, description: str, params: list[alt.Parameter]
) -> alt.TopLevelMixin:
    """The spectrum that the parameters choose.

    Args:
        data: What `spectrum_datum` gives, with the fields that ``chosen`` asks for.
        chosen: Expression that is true of the one datum to draw.
        title: Expression that gives the title.
        description: For screen readers.
        params: What the expressions know besides ``datum``.
    """
    base = alt.Chart(DATA).transform_filter(chosen)
    layers = [_bars(base), *_marks(base, "xmin", "xmin", [1, 0])]
    if any(datum["edge"] for datum in data):
        layers += _marks(base, "edge", "random edge", [2, 3])
    chart = alt.layer(*layers, _line(base), _note(base)).add_params(*params).properties(width="container")
    return finish(chart, data, title=alt.Title(text=alt.ExprRef(title), offset=24), description=description)


@dataclass(frozen=True)
class FittedSpectrum:
    """Spectrum of a panel, with the fit of its tail."""

    panel: str
    eigenvalues: tuple[float, ...]
    alpha: float
    xmin: float
    num_tail: int


def fitted_spectra(spectra: Sequence[FittedSpectrum], *, title: str, subtitle: str) -> alt.TopLevelMixin:
    """Draw a panel for each spectrum: histogram, threshold and fitted line.

    Raises:
        ValueError: Without a spectrum, or if one has no value above 0.
    """
    check(spectra, "spectrum", lambda each: each.panel)
    data = []
    for number, each in enumerate(spectra):
        datum = spectrum_datum(each.eigenvalues, alpha=each.alpha, xmin=each.xmin, num_tail=each.num_tail)
        if datum is None:
            raise ValueError(f"the chart needs a value above 0, got none in {each.panel}")
        data.append({"panel": number, **datum})

    def draw(panel: Panel) -> Any:
        return alt.layer(_bars(panel.base), *_marks(panel.base, "xmin", "xmin", [1, 0]), _line(panel.base))

    return panels_chart(
        [f"{each.panel}, alpha {each.alpha:.2f}" for each in spectra],
        data,
        draw,
        axes=84,
        title=title,
        subtitle=subtitle,
        note="Density of the eigenvalues, the tail darker. Upright line: xmin. Dashes: the fitted power law.",
        description=f"{len(spectra)} spectra with the threshold and the fitted power law of the tail.",
    )


def _bars(base: alt.Chart) -> alt.Chart:
    bars: alt.Chart = (
        base.transform_calculate(bin="sequence(length(datum.counts))")
        .transform_flatten(["bin", "counts"])
        .transform_filter("datum.counts > 0")
        .transform_calculate(
            left="pow(10, datum.start + datum.bin * datum.step)",
            right="pow(10, datum.start + (datum.bin + 1) * datum.step)",
        )
        .transform_calculate(
            density="datum.counts / (datum.size * (datum.right - datum.left))",
            in_tail="datum.xmin != null && datum.right > datum.xmin",
        )
        .mark_rect(fill=BLUE, aria=False)
        .encode(
            x=alt.X("left:Q", title="eigenvalue (log)", scale=alt.Scale(type="log", nice=False), axis=_axis()),
            x2="right:Q",
            y=alt.Y(
                "density:Q",
                title="density, share per unit (log)",
                scale=alt.Scale(type="log", nice=False),
                axis=_axis(),
            ),
            y2="floor:Q",
            fillOpacity=alt.condition("datum.in_tail", alt.value(0.6), alt.value(0.3)),
            tooltip=[
                alt.Tooltip("left:Q", title="from", format=".3g"),
                alt.Tooltip("right:Q", title="to", format=".3g"),
                alt.Tooltip("counts:Q", title="eigenvalues"),
            ],
        )
    )
    return bars


def _axis() -> alt.Axis:
    return alt.Axis(grid=False, format=".0e", labelOverlap="greedy", tickCount=6)


def _marks(base: alt.Chart, field: str, label: str, dash: list[int]) -> tuple[alt.Chart, alt.Chart]:
    """A vertical line with its name at the top."""
    there = base.transform_filter(f"isValid(datum.{field}) && datum.{field} > 0")
    x = alt.X(f"{field}:Q")
    line = there.mark_rule(color=INK, strokeWidth=1.5, strokeDash=dash, aria=False).encode(x=x)
    high = 8 if field == "xmin" else 22
    return line, there.mark_text(align="left", dx=4, text=label, color=INK, aria=False).encode(x=x, y=alt.value(high))


def _line(base: alt.Chart) -> alt.Chart:
    flat = base.transform_flatten(["tail_x", "tail_y"])
    line: alt.Chart = flat.mark_line(color=RED, strokeWidth=2.5, strokeDash=[6, 4]).encode(x="tail_x:Q", y="tail_y:Q")
    return line


def _note(base: alt.Chart) -> alt.Chart:
    """The datum's own words, between title and plot."""
    text = base.mark_text(align="left", fontSize=12, color=INK)
    note: alt.Chart = text.encode(x=alt.value(0), y=alt.value(-10), text=alt.Text("note:N"))
    return note
