"""Spectra on log axes with threshold and fitted line, as in the paper's Figure 1: one to choose, or several."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
import numpy as np
from numpy.typing import NDArray

from tempbalance.report.chart import BLUE, DATA, INK, RED, Datum, Panel, check, finish, panels_chart
from tempbalance.report.text import finite

MOST_BINS = 60
DRAWN_RANGE = 1e-10  # values this much below the largest are rounding noise, and would stretch the axis


@dataclass(frozen=True)
class Histogram:
    """Counts of values in bins.

    Attributes:
        start: log10 of where the first bin begins.
        step: Width of each bin, in decades.
        counts: Values in each bin.
        size: All values, those that are not drawn too.
    """

    start: float
    step: float
    counts: tuple[int, ...]
    size: int

    @property
    def num_hidden(self) -> int:
        """Values that are zero, or too small to be drawn."""
        return self.size - sum(self.counts)

    def densities(self) -> list[float]:
        """Share of all values in each bin over the bin's width."""
        edges = [10 ** (self.start + self.step * index) for index in range(len(self.counts) + 1)]
        return [
            count / (self.size * (right - left))
            for count, left, right in zip(self.counts, edges, edges[1:], strict=False)
        ]


def is_drawn(values: Sequence[float]) -> bool:
    """Whether a log axis has a place for any of the values."""
    return any(1e-300 < value < 1e300 for value in values)


def drawn(values: Sequence[float]) -> NDArray[np.float64]:
    """The values that a log axis has a place for, without those far below the largest."""
    array = np.asarray(values, dtype=np.float64)
    array = array[(array > 1e-300) & (array < 1e300)]
    return array[array >= array.max() * DRAWN_RANGE] if len(array) else array


def log_histogram(values: Sequence[float]) -> Histogram | None:
    """Count values in bins of equal width in log10, more bins for more values.

    Returns:
        ``None`` if no value can be drawn.
    """
    logs = np.log10(drawn(values))
    if len(logs) == 0:
        return None
    low, high = float(logs.min()), float(logs.max())
    if high - low < 1e-3:
        low, high = low - 0.01, high + 0.01
    num_bins = min(MOST_BINS, max(12, round(2 * math.sqrt(len(logs)))))
    counts, _ = np.histogram(logs, bins=num_bins, range=(low, high))
    return Histogram(low, (high - low) / num_bins, tuple(int(count) for count in counts), len(values))


def spectrum_datum(
    values: Sequence[float],
    *,
    alpha: float | None = None,
    xmin: float | None = None,
    num_tail: int | None = None,
    edge: float | None = None,
) -> dict[str, Any] | None:
    """A spectrum and its fit as one datum of the spectrum chart; ``None`` if there is nothing to draw."""
    histogram = log_histogram(values)
    if histogram is None:
        return None
    end = 10 ** (histogram.start + histogram.step * len(histogram.counts))
    tail_x, tail_y = _tail(alpha, xmin, num_tail, histogram.size, end)
    datum: dict[str, Any] = {
        "start": finite(histogram.start, 7),
        "step": finite(histogram.step, 7),
        "counts": list(histogram.counts),
        "size": histogram.size,
        "floor": finite(min(each for each in (*histogram.densities(), *tail_y) if each) / 1.5),
        "xmin": finite(xmin),
        "edge": finite(edge),
        "tail_x": tail_x,
        "tail_y": tail_y,
    }
    hidden = f"{histogram.num_hidden} of {histogram.size} values too small to draw" if histogram.num_hidden else ""
    datum["note"] = ", ".join(filter(None, [f"alpha {alpha:.3f}" if finite(alpha) is not None else "", hidden]))
    return datum


def _tail(
    alpha: float | None, xmin: float | None, num_tail: int | None, size: int, end: float
) -> tuple[list[float | None], list[float | None]]:
    """The two ends of the fitted density, a line on log axes, scaled by the share of values that are in the tail."""
    if alpha is None or xmin is None or not num_tail or not (alpha > 1 and 0 < xmin < end):
        return [], []
    # p(x) = (k / n) x (alpha - 1) / xmin x (x / xmin)^-alpha
    top = num_tail / size * (alpha - 1) / xmin
    line = [finite(each) for each in (xmin, end, top, top * (end / xmin) ** -alpha)]
    return (line[:2], line[2:]) if all(line) else ([], [])


def spectrum_chart(
    data: list[dict[str, Any]], *, chosen: str, title: str, description: str, params: list[Datum]
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
    chart = alt.layer(*layers, _line(base), _note(base)).properties(width="container")
    words = alt.Title(text=alt.ExprRef(title), offset=24)
    return finish(chart, data, title=words, description=description, params=params)


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
