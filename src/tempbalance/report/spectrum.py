"""Spectra on log axes with threshold and fitted line, as in the paper's Figure 1: one to choose, or several."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
import numpy as np
from numpy.typing import NDArray

from tempbalance.report.chart import BLUE, DATA, INK, RED, Datum, Panel, check, finish, panels_chart, tooltips
from tempbalance.report.text import finite

MOST_BINS = 60
DRAWN_RANGE = 1e-10  # values this much below the largest are rounding noise, and would stretch the axis
Array = NDArray[np.float64]


def is_drawn(values: Sequence[float]) -> bool:
    """Whether a log axis has a place for any of the values."""
    return any(1e-300 < value < 1e300 for value in values)


def drawn_logs(values: Sequence[float]) -> Array:
    """Return log10 of the values that a log axis has a place for, ascending, without those far below the largest."""
    array = np.sort(np.asarray(values, dtype=np.float64))
    array = array[(array > 1e-300) & (array < 1e300)]
    return np.log10(array[array >= array[-1] * DRAWN_RANGE] if len(array) else array)


def log_edges(logs: Array) -> Array:
    """Return the edges of bins of equal width for ascending values, more bins for more values."""
    low, high = float(logs[0]), float(logs[-1])
    if high - low < 1e-3:
        low, high = low - 0.01, high + 0.01
    num_bins = min(MOST_BINS, max(12, round(2 * math.sqrt(len(logs)))))
    edges = low + (high - low) / num_bins * np.arange(num_bins + 1, dtype=np.float64)
    edges[-1] = high
    return edges


def bin_counts(logs: Array, edges: Array) -> NDArray[np.int64]:
    """Count ascending values, none above the last edge, between edges."""
    places = np.searchsorted(logs, edges)
    places[-1] = len(logs)
    return np.diff(places)


def spectrum_datum(
    values: Sequence[float],
    *,
    alpha: float | None = None,
    xmin: float | None = None,
    num_tail: int | None = None,
    edge: float | None = None,
) -> Datum | None:
    """Return a spectrum and its fit as one datum of the spectrum chart; ``None`` if there is nothing to draw."""
    logs = drawn_logs(values)
    if len(logs) == 0:
        return None
    edges = log_edges(logs)
    counts, bounds = bin_counts(logs, edges), 10**edges
    tail_x, tail_y = _tail(alpha, xmin, num_tail, len(values), float(bounds[-1]))
    lowest = (counts / (len(values) * np.diff(bounds)))[counts > 0].min()
    hidden = f"{len(values) - len(logs)} of {len(values)} values too small to draw" if len(logs) < len(values) else ""
    return {
        "start": finite(float(edges[0]), 7),
        "step": finite(float(edges[-1] - edges[0]) / len(counts), 7),
        "counts": counts.tolist(),
        "size": len(values),
        "floor": finite(min(float(lowest), *tail_y, math.inf) / 1.5),
        "xmin": finite(xmin),
        "edge": finite(edge),
        "tail_x": tail_x,
        "tail_y": tail_y,
        "note": ", ".join(filter(None, [f"alpha {alpha:.3f}" if finite(alpha) is not None else "", hidden])),
    }


def _tail(
    alpha: float | None, xmin: float | None, num_tail: int | None, size: int, end: float
) -> tuple[list[float], list[float]]:
    """Return the two ends of the fitted density, a line on log axes, scaled by the share of values in the tail."""
    if alpha is None or xmin is None or not num_tail or not (alpha > 1 and 0 < xmin < end):
        return [], []
    # p(x) = (k / n) x (alpha - 1) / xmin x (x / xmin)^-alpha
    top = num_tail / size * (alpha - 1) / xmin
    line = [each for raw in (xmin, end, top, top * (end / xmin) ** -alpha) if (each := finite(raw))]
    return (line[:2], line[2:]) if len(line) == 4 else ([], [])


def spectrum_chart(
    data: list[Datum], *, chosen: str, title: str, description: str, params: list[Datum]
) -> alt.TopLevelMixin:
    """Draw the datum of `spectrum_datum` of which the expression ``chosen`` is true; ``title`` is an expression too."""
    base = alt.Chart(DATA).transform_filter(chosen)
    # between title and plot
    note = base.mark_text(align="left", fontSize=12, color=INK).encode(x=alt.value(0), y=alt.value(-10), text="note:N")
    layers = _layers(base, with_edge=any(datum["edge"] for datum in data))
    chart = alt.layer(*layers, note).properties(width="container")
    return finish(
        chart, data, title=alt.Title(text=alt.ExprRef(title), offset=24), description=description, params=params
    )


@dataclass(frozen=True)
class FittedSpectrum:
    """Spectrum of a panel, with the fit of its tail."""

    panel: str
    eigenvalues: tuple[float, ...]
    alpha: float
    xmin: float
    num_tail: int


def fitted_spectra(spectra: Sequence[FittedSpectrum], **texts: Any) -> alt.TopLevelMixin:
    """Draw a panel for each spectrum: histogram, threshold and fitted line."""
    check(spectra, "spectrum", "panel")
    data = []
    for each in spectra:
        datum = spectrum_datum(each.eigenvalues, alpha=each.alpha, xmin=each.xmin, num_tail=each.num_tail)
        if datum is None:
            raise ValueError(f"the chart needs a value above 0, got none in {each.panel}")
        data.append({"panel": f"{each.panel}, alpha {each.alpha:.2f}", **datum})

    def draw(panel: Panel) -> Any:
        return alt.layer(*_layers(panel.base, with_edge=False))

    return panels_chart("spectra", data, draw, axes=84, **texts)


def _layers(base: alt.Chart, *, with_edge: bool) -> Iterator[alt.Chart]:
    """Draw the bars, upright lines at threshold and edge with their names at the top, and the fitted line."""
    bins = (
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
    )
    log: dict[str, Any] = {
        "scale": alt.Scale(type="log", nice=False),
        "axis": alt.Axis(grid=False, format=".0e", labelOverlap="greedy", tickCount=6),
    }
    yield bins.mark_rect(fill=BLUE, aria=False).encode(
        x=alt.X("left:Q", title="eigenvalue (log)", **log),
        x2="right:Q",
        y=alt.Y("density:Q", title="density, share per unit (log)", **log),
        y2="floor:Q",
        fillOpacity=alt.condition("datum.in_tail", alt.value(0.6), alt.value(0.3)),
        tooltip=[*tooltips(".3g", left="from", right="to"), alt.Tooltip("counts:Q", title="eigenvalues")],
    )
    for field, label, dash, y in (("xmin", "xmin", [1, 0], 8), ("edge", "random edge", [2, 3], 22))[: 1 + with_edge]:
        there = base.transform_filter(f"isValid(datum.{field}) && datum.{field} > 0").encode(x=alt.X(f"{field}:Q"))
        yield there.mark_rule(color=INK, strokeWidth=1.5, strokeDash=dash, aria=False)
        yield there.mark_text(align="left", dx=4, text=label, color=INK, aria=False).encode(y=alt.value(y))
    line = base.transform_flatten(["tail_x", "tail_y"]).mark_line(color=RED, strokeWidth=2.5, strokeDash=[6, 4])
    yield line.encode(x="tail_x:Q", y="tail_y:Q")
